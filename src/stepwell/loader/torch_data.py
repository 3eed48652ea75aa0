"""For torch's DataLoader: a map-style dataset of windows, and a batch sampler that hands it the loader's batches.

::

    BatchSampler --BatchIndices--> DataLoader --> worker: WindowDataset.__getitems__ --> Batch
    order, ranks, epochs, state     prefetches        the same builder as the loader's
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError, WindowError
from stepwell.loader.batch import Batch
from stepwell.loader.build import Builder
from stepwell.loader.jobs import Position, schedule, with_anchors
from stepwell.loader.settings import LoaderSettings
from stepwell.loader.state import Cursor, LoaderState
from stepwell.loader.transforms import BatchKey
from stepwell.order import Order, Pad, Share, make_order
from stepwell.order.order import check_count
from stepwell.sizes import counted
from stepwell.windows import View, WindowReader
from stepwell.windows.index import positions_array

if TYPE_CHECKING:
    from stepwell.loader.memory import Target
    from stepwell.loader.transforms import WholeTransform
    from stepwell.order import BoundOrder
    from stepwell.store import Store

__all__ = ["BatchIndices", "BatchSampler", "Samples", "WindowDataset"]

# of a sampler, that are worked out at once, at most: the first batch waits for all of them
POSITIONS_AHEAD = 4096
BATCHES_AHEAD = 64


@dataclass(frozen=True, slots=True, eq=False)
class BatchIndices(Sequence[int]):
    """The numbers of a batch's rows, as a sequence of ints for any dataset; a `WindowDataset` reads the rest, too.

    What is random about a window depends on its epoch and position. Persistent workers know of neither, so both travel
    with the numbers.

    Args:
        anchors: int64 [share.num_rows], which anchor each row is.
        share: positions of the epoch that the rows are of; which rows only fill up.
        number: of the batch within its epoch.

    Example:
        >>> from stepwell.order import Partition
        >>> indices = BatchIndices(np.array([5, 7, 9]), Partition(3, 3).batch(0), 0)
        >>> list(indices), indices.share.epoch
        ([5, 7, 9], 0)

    Notes:
        An immutable value; pickled (for a worker) it takes 8 bytes a row and some hundreds.
    """

    anchors: npt.NDArray[np.int64]
    share: Share
    number: int

    def __len__(self) -> int:
        return len(self.anchors)

    def __iter__(self) -> Iterator[int]:
        return iter(self.anchors.tolist())

    @overload
    def __getitem__(self, i: int) -> int: ...
    @overload
    def __getitem__(self, i: slice) -> list[int]: ...
    def __getitem__(self, i: int | slice) -> int | list[int]:
        found: int | list[int] = self.anchors[i].tolist()
        return found


class Samples(Sequence[dict[str, Any]]):
    """The samples of one read: each a dict of views into one batch.

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
        if to == "jax":
            raise OrderError('to="jax" of a WindowDataset. Allowed: "numpy" or "torch"; `Loader` makes arrays of JAX.')
        self.view = view if isinstance(view, View) else View(view)
        self.epoch = 0
        self._fields = fields
        self._transform = transform
        # pinned memory is for the process that copies to the GPU: torch's DataLoader(pin_memory=True) does it there
        self._settings = LoaderSettings(
            batch_size=1, seed=seed, to=to, pin_memory=False, nested=nested, page_cache=page_cache
        )
        self._running: tuple[int, WindowReader, Builder] | None = None
        self._builder()

    def __len__(self) -> int:
        """Return the number of anchors, as of the last `refresh`."""
        return self.reader.index.num_anchors

    @property
    def reader(self) -> WindowReader:
        """What reads the windows in this process; another one after `refresh`."""
        running = self._running
        return running[1] if running is not None and running[0] == os.getpid() else self._builder()[0]

    @property
    def seed(self) -> int:
        """The seed of the random numbers that transforms get."""
        return self._settings.seed

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Return one sample: key to array [*window, ...]."""
        return self.__getitems__([i])[0]

    def __getitems__(self, indices: Iterable[int]) -> Samples:
        """Return the samples of several numbers, read at once."""
        reader, builder = self._builder()
        num_anchors = reader.index.num_anchors
        asked = indices.anchors if isinstance(indices, BatchIndices) else positions_array(list(indices))
        outside = (asked < -num_anchors) | (asked >= num_anchors)
        if outside.any():
            raise IndexError(
                f"no anchor {asked[outside][0]} among {num_anchors}. Allowed: {-num_anchors} to {num_anchors - 1}."
            )
        if isinstance(indices, BatchIndices):
            return Samples(builder.batch(indices.share, asked, indices.number), len(asked))
        positions = asked % max(num_anchors, 1)
        key = BatchKey(self._settings.seed, ((self.epoch, positions),), len(positions))
        (values,) = builder.read(positions, key)
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

    def _builder(self) -> tuple[WindowReader, Builder]:
        """Return what reads and what builds in this process."""
        if self._running is None or self._running[0] != os.getpid():
            # a thread of the parent may have held a lock of its reader when this process was forked
            self._running = self._start(self.view)
        return self._running[1:]

    def _start(self, view: View) -> tuple[int, WindowReader, Builder]:
        """Return this process, what reads the anchors, and what builds batches of them."""
        reader = WindowReader(view, self._fields, page_cache=self._settings.page_cache)
        builder = Builder(reader, self._settings, self._transform, max_free=0)
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
        from stepwell.loader.memory import import_torch

        return import_torch().stack(values)
    if isinstance(first, (np.ndarray, np.generic)) and len({np.shape(value) for value in values}) == 1:
        return np.stack(values)
    objects = np.empty(len(values), dtype=object)
    objects[:] = values
    return objects


class SampledDataset(Protocol):
    """What a sampler asks of a dataset (`WindowDataset`, `stepwell.lerobot.LeRobotDataset`)."""

    @property
    def reader(self) -> WindowReader:
        """What reads the windows; another one when the dataset was refreshed."""

    @property
    def seed(self) -> int:
        """The seed of the random numbers that transforms get."""


class BatchSampler:
    """Say which windows the batches of a `WindowDataset` hold: for ``DataLoader(batch_sampler=...)``.

    The batches are those of a `Loader` with the same settings (and, for transforms, the dataset's seed), row for row:
    the same values, ``valid``, ``anchors`` and random numbers, for any number of workers, persistent or not.

    Args:
        dataset: that the batches are of: a `WindowDataset`, or a `stepwell.lerobot.LeRobotDataset`.
        batch_size: windows a batch (a rank).
        order: "sequential" (default), "random", "pooled", or an `Order` with a seed of its own. In worker processes a
            pooled order is an order like any other: each batch is decoded by itself.
        seed: of orders given by name; default: the dataset's. Transforms get the dataset's.
        epochs: how many one ``for`` runs through, default 1; None is endless, see `Loader`.
        drop_last: as for `Loader`.
        pad: as for `Loader`: False, True, "repeat" or "wrap".
        rank: of this process, ``0 <= rank < world_size``; plain ints: ``torch.distributed.get_rank()``,
        world_size: and ``torch.distributed.get_world_size()``.

    Raises:
        OrderError: a setting out of range.
        WindowError: a dataset of another kind.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> from stepwell.loader import WindowDataset
        >>> dataset = WindowDataset(tiny_store(f"{tempfile.mkdtemp()}/tiny.well", lengths=(4, 3)))
        >>> [list(indices) for indices in BatchSampler(dataset, 4)]
        [[0, 1, 2, 3], [4, 5, 6]]

    Notes:
        Lives in the process that takes the batches; workers get what it yields. Every ``for`` over the ``DataLoader``
        runs the next epoch, also with persistent workers; a `Loader`'s state can be loaded, and the other way round.
        When the dataset is refreshed, the next ``for`` runs the next epoch over what it has become. Picklable.
    """

    def __init__(
        self,
        dataset: SampledDataset,
        batch_size: int = 64,
        *,
        order: Literal["sequential", "random", "pooled"] | Order = "sequential",
        seed: int | None = None,
        epochs: int | None = 1,
        drop_last: bool = False,
        pad: Pad = False,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not hasattr(dataset, "reader"):
            raise WindowError(
                f"a {type(dataset).__name__} is no dataset of windows. Give a WindowDataset or a LeRobotDataset; "
                "choose episodes by a View of them, not by a subset."
            )
        self.dataset = dataset
        self.settings = LoaderSettings(
            batch_size=batch_size,
            seed=dataset.seed,
            epochs=epochs,
            drop_last=drop_last,
            pad=pad,
            rank=rank,
            world_size=world_size,
        )
        self.order = make_order(order, seed=dataset.seed if seed is None else seed)
        self._cursor = Cursor(self.settings.epochs)
        self._known: tuple[WindowReader, BoundOrder] | None = None
        self._bound()

    def __iter__(self) -> Iterator[BatchIndices]:
        """Begin the next epoch(s) with the first batch that is asked for."""
        # DataLoader makes two iterators for persistent workers and uses one: nothing may happen before the first batch
        order, cursor = self._bound(), self._cursor.following()
        jobs = schedule(order, self.settings, cursor.start, cursor.last_epoch)
        cursor.has_begun = True
        self._cursor = cursor
        group = max(1, min(BATCHES_AHEAD, POSITIONS_AHEAD // self.settings.batch_size))
        for job in with_anchors(jobs, group):
            cursor.end = job.end
            if job.anchors is not None:
                yield BatchIndices(job.anchors, job.share, job.index)
        cursor.is_done = True

    def __len__(self) -> int:
        """Return the number of batches of one ``for`` from an epoch's beginning, on this rank."""
        if self.settings.epochs is None:
            raise TypeError("a sampler with epochs=None is endless and has no length. Use num_batches for one epoch.")
        return self.settings.epochs * self.num_batches

    @property
    def num_batches(self) -> int:
        """The number of batches of one epoch on this rank."""
        return self.settings.partition(self.num_positions).num_batches

    @property
    def num_positions(self) -> int:
        """The number of anchors that an epoch visits, over all ranks."""
        return self._bound().num_positions

    @property
    def epoch(self) -> int:
        """The epoch that the next ``for`` begins with, or goes on with after `load_state_dict`."""
        return self._cursor.following().start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``for`` begins with, from its beginning; it counts on from there.

        Raises:
            OrderError: not an int of 0 or more.
        """
        check_count("epoch", epoch)
        self._cursor = Cursor(self.settings.epochs, Position(int(epoch), 0), int(epoch))

    def state_dict(self, num_taken: int | None = None) -> dict[str, Any]:
        """Return where a consumer stands, as at most 1 KiB of JSON types.

        Args:
            num_taken: batches that it has got since the latest ``for`` began. Default: all that were handed out, which
                is right without workers; a ``DataLoader`` with workers asks for batches ahead.

        Raises:
            OrderError: not so many were handed out.
        """
        order = self._bound()
        if num_taken is None:
            return self._state(order, self._cursor.here).to_json()
        check_count("num_taken", num_taken)
        return self._state(order, self._cursor.after(num_taken, self.settings, order.num_positions)).to_json()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next ``for`` go on where a state was taken.

        Args:
            state_dict: of any rank's sampler or `Loader` over the same anchors in the same order.

        Raises:
            StateError: of another store, snapshot, order, seed or format; see `Loader.load_state_dict`.
        """
        state, order = LoaderState.from_json(state_dict), self._bound()
        state.check(self._state(order, self._cursor.here), depends_on_ranks=order.depends_on_ranks)
        self._cursor = Cursor(self.settings.epochs, Position(state.epoch, state.consumed), state.first_epoch)

    def __repr__(self) -> str:
        return (
            f"<BatchSampler {counted(self.num_positions, 'anchor')}  batch {self.settings.batch_size}  {self.order!r}  "
            f"rank {self.settings.rank} of {self.settings.world_size}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": copy(self._cursor), "_known": None}

    def _state(self, order: BoundOrder, here: tuple[Position, int]) -> LoaderState:
        return LoaderState.of(self.dataset.reader, self.order, order, self.settings, here)

    def _bound(self) -> BoundOrder:
        """Return the order over what the dataset holds now."""
        reader = self.dataset.reader
        if self._known is None or self._known[0] is not reader:
            is_other = self._known is not None and self._known[0].snapshot_id != reader.snapshot_id
            self._known = reader, self.order.bind(reader.index)
            if is_other:
                self._cursor = self._cursor.at_next_epoch()
        return self._known[1]
