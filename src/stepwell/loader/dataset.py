"""A map-style dataset, for those who keep torch's DataLoader."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from stepwell.loader.batch import Batch
from stepwell.loader.builder import BatchBuilder
from stepwell.loader.indices import BatchIndices
from stepwell.loader.settings import LoaderSettings
from stepwell.loader.transforms import BatchKey
from stepwell.order.order import check_count
from stepwell.store.counting import counted
from stepwell.windows import View, WindowReader
from stepwell.windows.index import positions_array

if TYPE_CHECKING:
    from stepwell.loader.handover import Target
    from stepwell.loader.transforms import WholeTransform
    from stepwell.store import Store

__all__ = ["Samples", "WindowDataset"]


class Samples(Sequence[dict[str, Any]]):
    """The samples of one read: each a dict of views into one batch.

    Args:
        batch: the batch they are rows of.
        size: number of samples.

    Notes:
        The views are made when the first sample is asked for; `WindowDataset.collate` never does.
    """

    __slots__ = ("_rows", "_size", "batch")

    def __init__(self, batch: Batch, size: int) -> None:
        self.batch = batch
        self._size = size
        self._rows: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, i: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, i: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, i: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if self._rows is None:
            self._rows = [_row(self.batch, number) for number in range(self._size)]
        return self._rows[i]


class WindowDataset:
    """Windows by number: ``dataset[i]`` is the i-th anchor's sample.

    Args:
        view: the episodes (`stepwell.View`), or a store: all of its episodes.
        fields: as for `Loader`.
        seed: of the random numbers that transforms get, which also depend on the epoch and on each window's number.
        to: "numpy" (default) or "torch", as for `Loader`.
        nested: as for `Loader`.
        page_cache: as for `Loader`.
        transform: of the whole batch, as for `Loader`; sees a batch of one in ``dataset[i]``.

    Example:
        With torch, a batch a read and no copy of it::

            DataLoader(dataset, batch_size=64, shuffle=True, collate_fn=dataset.collate, num_workers=2)

        Without ``collate_fn`` torch's own ``default_collate`` stacks the samples, which copies. Exact over ranks,
        epochs and workers, with a `BatchSampler`::

            DataLoader(dataset, batch_sampler=BatchSampler(dataset, 64, order="random"), collate_fn=dataset.collate)

    Notes:
        Its length is that of the view's snapshot until `refresh`, however the stores grow. Picklable; works in forked
        and spawned workers, each of which reads by itself. Safe to use from several threads. For random transforms with
        ``shuffle=False`` or without batched reads, call `set_epoch` before each epoch, or they repeat. Neither that nor
        `refresh` reaches the copies in persistent workers: without ``persistent_workers`` each epoch has new ones.
        What a `BatchSampler` asks for says its epoch itself.
        Workers copy every batch from process to process; `Loader` builds them by threads and copies nothing.
    """

    def __init__(
        self,
        view: View | Store,
        fields: Mapping[str, Any] | None = None,
        *,
        seed: int = 0,
        to: Target = "numpy",
        nested: bool = False,
        page_cache: bool = True,
        transform: WholeTransform | None = None,
    ) -> None:
        self.view = view if isinstance(view, View) else View(view)
        self.epoch = 0
        self._fields = fields
        self._transform = transform
        # pinned memory is for the process that copies to the GPU: torch's DataLoader(pin_memory=True) does it there
        self._settings = LoaderSettings(
            batch_size=1, seed=seed, to=to, pin_memory=False, nested=nested, page_cache=page_cache
        )
        self._running: tuple[int, WindowReader, BatchBuilder] | None = None
        self._builder()

    def __len__(self) -> int:
        """Return the number of anchors, as of the last `refresh`."""
        return self.reader.index.num_anchors

    @property
    def reader(self) -> WindowReader:
        """What reads the windows in this process; another one after `refresh`."""
        return self._builder()[0]

    @property
    def seed(self) -> int:
        """The seed of the random numbers that transforms get."""
        return self._settings.seed

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Return one sample: key to array [*window, ...].

        Args:
            i: number of the anchor; negative counts from the end.

        Raises:
            IndexError: no such anchor.
            WindowError: not a whole number.
            LoaderError: it could not be read or transformed.
        """
        return self.__getitems__([i])[0]

    def __getitems__(self, indices: Iterable[int]) -> Samples:
        """Return the samples of several numbers, read at once.

        Args:
            indices: numbers of anchors; negative ones count from the end. Those of a `BatchSampler` make the batch that
                a `Loader` would.

        Raises:
            IndexError: no such anchor.
            LoaderError: they could not be read or transformed.
        """
        reader, builder = self._builder()
        num_anchors = reader.index.num_anchors
        asked = indices.anchors if isinstance(indices, BatchIndices) else positions_array(list(indices))
        outside = (asked < -num_anchors) | (asked >= num_anchors)
        if outside.any():
            raise IndexError(
                f"no anchor {asked[outside][0]} among {num_anchors}. Allowed: {-num_anchors} to {num_anchors - 1}."
            )
        if isinstance(indices, BatchIndices):
            return Samples(builder.build_share(indices.share, asked, indices.number), len(asked))
        positions = asked % max(num_anchors, 1)
        key = BatchKey(self._settings.seed, ((self.epoch, positions),), len(positions))
        values = builder.read(positions, key)
        return Samples(Batch(values, self.epoch, anchors=positions), len(positions))

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that random numbers of transforms depend on.

        Raises:
            OrderError: not an int of 0 or more.
        """
        check_count("epoch", epoch)
        self.epoch = int(epoch)

    def refresh(self) -> None:
        """Take in what the stores have become; the length may change.

        Raises:
            WindowError: no window fits any episode any more; nothing has changed then.
        """
        view = self.view.refresh()
        if view is not self.view:
            self._running = self._start(view)
            self.view = view

    @staticmethod
    def collate(samples: Sequence[Mapping[str, Any]]) -> Batch:
        """Return samples as a batch; those of one read are handed over without a copy.

        Args:
            samples: what `__getitems__` returned, or any samples of one dataset.

        Returns:
            The batch; ragged features stay object arrays. Samples of several reads do not know their anchors.
        """
        if isinstance(samples, Samples):
            return samples.batch
        return Batch(_stack(samples))

    def __repr__(self) -> str:
        return f"<WindowDataset {counted(len(self), 'anchor')}  {self.view!r}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_running": None}

    def _builder(self) -> tuple[WindowReader, BatchBuilder]:
        """Return what reads and what builds in this process."""
        if self._running is None or self._running[0] != os.getpid():
            # a thread of the parent may have held a lock of its reader when this process was forked
            self._running = self._start(self.view)
        return self._running[1:]

    def _start(self, view: View) -> tuple[int, WindowReader, BatchBuilder]:
        """Return this process, what reads the anchors, and what builds batches of them."""
        reader = WindowReader(view, self._fields, page_cache=self._settings.page_cache)
        builder = BatchBuilder(reader, self._settings, self._transform, max_free=0)
        return os.getpid(), reader, builder


def _row(values: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {key: _row(value, number) if isinstance(value, Mapping) else value[number] for key, value in values.items()}


def _stack(samples: Sequence[Any]) -> dict[str, Any]:
    return {key: _stack_values([sample[key] for sample in samples]) for key in samples[0]}


def _stack_values(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return _stack(values)
    if hasattr(first, "new_empty"):
        from stepwell.loader.handover import import_torch

        return import_torch().stack(values)
    if isinstance(first, (np.ndarray, np.generic)) and len({np.shape(value) for value in values}) == 1:
        return np.stack(values)
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects
