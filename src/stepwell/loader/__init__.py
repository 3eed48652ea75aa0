"""The loader: windows as batches, by threads, in order, over recycled memory."""

from stepwell.loader.batch import Batch
from stepwell.loader.dataset import WindowDataset
from stepwell.loader.gathering import gather_valid
from stepwell.loader.loader import Loader
from stepwell.loader.sampling import BatchSampler

__all__ = ["Batch", "BatchSampler", "Loader", "WindowDataset", "gather_valid"]
