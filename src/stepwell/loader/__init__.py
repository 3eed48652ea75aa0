"""The loader: windows as batches, by threads, in order, over recycled memory."""

from stepwell.loader.batch import Batch
from stepwell.loader.gathering import gather_valid
from stepwell.loader.loader import Loader
from stepwell.loader.torch_data import BatchSampler, WindowDataset

__all__ = ["Batch", "BatchSampler", "Loader", "WindowDataset", "gather_valid"]
