"""The loader: windows as batches, by threads, in order, over recycled memory."""

from stepwell.loader.batch import Batch
from stepwell.loader.dataset import WindowDataset
from stepwell.loader.loader import Loader

__all__ = ["Batch", "Loader", "WindowDataset"]
