"""Ranks of `test_timm`: each serves its part of a dataset by torch's DataLoader, as timm does."""

import warnings
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from stepwell.timm import ReaderTfds


class Samples(IterableDataset):  # type: ignore[misc]
    """What timm's `IterableImageDataset` is."""

    def __init__(self, reader: ReaderTfds) -> None:
        self.reader = reader

    def __iter__(self) -> Any:
        for image, target in self.reader:
            yield image, int(target)

    def __len__(self) -> int:
        return len(self.reader)


def batches_of(reader: ReaderTfds, num_workers: int) -> list[list[tuple[int, int]]]:
    """Return the batches of a rank: of each sample its first pixel's red, and its label."""
    reader.set_loader_cfg(num_workers=num_workers)
    loader = DataLoader(
        Samples(reader),
        batch_size=reader.batch_size,
        num_workers=num_workers,
        drop_last=reader.is_training,
        collate_fn=lambda batch: [(image.getpixel((0, 0))[0], label) for image, label in batch],
        multiprocessing_context="fork" if num_workers else None,
    )
    found = list(loader)
    if reader.is_training:
        assert len(found) == len(loader)
    return found


def prepare_serve(root: str, settings: Any) -> None:
    ReaderTfds("set", root, "train")


def serve(rank: int, world: int, root: str, settings: Any) -> Any:
    """Return, of each setting and epoch, the batches of this rank, and how many it warned that others have more."""
    found = []
    for options, num_workers, epochs in settings:
        reader = ReaderTfds("set", root, "train", **options)
        for epoch in range(epochs):
            reader.set_epoch(epoch)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                served = batches_of(reader, num_workers)
            found.append((served, sum("evaluates" in str(each.message) for each in told)))
    return found
