"""The loader: windows of a view as batches, epoch after epoch.

::

    for batch in loader     BatchIterator.__next__
                              Inline.take or Pipeline.take     builds now, or waits for the oldest group of the threads
                                Builder.build                  anchors of the jobs -> read -> transform -> Batch
                                  WindowReader.read            anchors -> places -> the copy
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, overload

from stepwell.display.completion import Completed
from stepwell.display.html import never_raising
from stepwell.errors import LoaderError
from stepwell.loader.batch import Batch, V
from stepwell.loader.build import Builder
from stepwell.loader.devices import DeviceSource, make_copier
from stepwell.loader.jobs import Job, Position, grouped, schedule, with_anchors
from stepwell.loader.pipeline import Inline, Pipeline
from stepwell.loader.pool import BlockPool, PoolSupply
from stepwell.loader.settings import LoaderSettings, explain_arguments
from stepwell.loader.state import Cursor, LoaderState
from stepwell.loader.transforms import samples_of
from stepwell.order import BoundPooled, Order, Pad, make_order
from stepwell.order.order import check_count
from stepwell.sizes import counted
from stepwell.windows import View, WindowReader
from stepwell.windows.plans import ALIGNMENT

if TYPE_CHECKING:
    from typing import Unpack

    import numpy.typing as npt
    from torch import Tensor

    from stepwell.loader.memory import Target
    from stepwell.loader.transforms import WholeTransform
    from stepwell.store import Store

__all__ = ["BatchIterator", "Loader"]

_Threaded = Inline[Job, tuple[Job, Batch]] | Pipeline[Job, tuple[Job, Batch]]
_Source = _Threaded | DeviceSource
# the one that the consumer still has, and the one that it asks for
HELD_BATCHES = 2
# positions that are worked out at once where there are no threads
INLINE_POSITIONS = 4096
# a thread that has loaded a block finds the next one waiting
BLOCKS_AHEAD = 2
# arguments of torch's DataLoader, and what stands for them
RENAMED = {
    "dataset": "view, the first argument",
    "shuffle": 'order="random", or "pooled" where rows are decoded',
    "num_workers": "threads, which need no processes",
    "prefetch_factor": "prefetch",
    "collate_fn": "transform",
    "sampler": 'order: "sequential", "random", "pooled", weighted(...), mixed(...)',
    "batch_sampler": 'order: "sequential", "random", "pooled", weighted(...), mixed(...)',
    "generator": "seed",
    "pin_memory_device": "device",
}


class LoaderOptions(TypedDict, total=False):
    """The options of `Loader` beside ``to`` and ``nested``, for type checkers."""

    batch_size: int
    order: Literal["sequential", "random", "pooled"] | Order
    seed: int
    epochs: int | None
    drop_last: bool
    pad: Pad
    rank: int
    world_size: int
    threads: int | None
    prefetch: int
    pin_memory: bool | None
    page_cache: bool
    device: str | None
    transform: WholeTransform | None


class Loader(Completed, Generic[V]):
    """Stream windows of a view as batches.

    ::

        view, fields, order --> positions --> reader --> transforms --> (torch, JAX) --> Batch
                                              '------ threads: whole batches, in order ------'

    Args:
        view: the episodes (`stepwell.View`), or a store: all of its episodes.
        fields: key to `Field`, feature name or offsets; None: every feature at the anchor.
        batch_size: windows a batch (a rank).
        order: "sequential" (default), "random", "pooled" (random from a pool of decoded steps, 512 MiB of them), or an
            `Order` such as ``pooled("2 GiB")`` or ``weighted(...)``, which has a seed of its own.
        seed: of "random" and "pooled", and of the random numbers that transforms get; 0 or more.
        epochs: how many one ``for`` runs through, default 1; None is endless. Endless epochs run into each other, so
            that every batch is full and all ranks have equally many, unless ``drop_last`` or ``pad`` ends each by
            itself; a further ``for`` goes on where the last one was left.
        drop_last: leave out what does not fill a batch on every rank: equally many batches on all ranks (training).
        pad: fill the last batches up with repeats, marked in ``batch.valid``: equally many batches, nothing left out.
            True or "repeat" repeats a batch's last window, "wrap" those that the epoch began with, so that each comes
            once or twice (more often only in an epoch of less than a global batch). With neither, every anchor comes
            exactly once over all ranks, and a rank may have one batch less (evaluation).
        rank: of this process, ``0 <= rank < world_size``; plain ints: ``torch.distributed.get_rank()``,
        world_size: and ``torch.distributed.get_world_size()``.
        threads: that build batches; 0 builds in the consumer. Default: 0 for raw batches below 1 MiB, which cost less
            than a hand-over, else one a CPU (two with ``page_cache=False``: some wait for the disk), at most 8, of a
            pooled order 32. The batches are the same for any number.
        prefetch: hand-overs a thread builds ahead, default 2; a hand-over is one batch, or small ones of 1 MiB together
            (128 KiB where rows are decoded, at most 16 batches).
        to: "numpy" (default), or "torch": tensors over the same memory. What torch has no dtype for stays numpy: text,
            bytes and ragged features (object arrays), structured dtypes, and uint16/32/64 in old versions. "jax":
            arrays of JAX, on the CPU over the same memory. 64-bit types become 32-bit ones as everywhere in JAX, unless
            ``jax_enable_x64`` is set; integers that do not fit are an error, and text, bytes and ragged features stay
            numpy. A batch is a pytree.
        pin_memory: for "torch": page-locked memory; default: where CUDA is there.
        nested: whether keys with dots become nested dicts: ``batch["observation"]["image"]``.
        page_cache: whether rows are read through the system's page cache (default). False reads large spans into memory
            of the loader's own and lets the system forget them: for stores much larger than memory, with a pooled order
            (any other order works, too, and reads what a batch needs). Ragged features are always read through it.
        device: for "torch": "cuda" or "cuda:N" copies batches there from pinned memory, on a stream of their own and
            one batch ahead; the current stream waits for the batch that it gets. "cpu" (default): they stay. For "jax":
            "cpu", "gpu", "tpu" or another platform of JAX, "gpu:N"; default: JAX's default device.
        sharding: for "jax": how batches lie on several devices, each copied by one ``jax.device_put``: a
            ``jax.sharding.Sharding`` of the batch axis, a mapping of key to one, or a function of key and shape that
            returns one; None, or a key that is not named: the default device. Where it reaches over the devices of
            several processes, each gives its rows (``rank=jax.process_index()``).
        transform: of the whole batch, one or several in order, after those of the fields: a
            `stepwell.transforms.BatchTransform`, or a callable that takes a flat dict of key to numpy array and returns
            one. With a parameter ``draws`` it gets the windows' random numbers, which depend on (seed, epoch, position)
            only; with ``rng`` a numpy Generator of the batch. numba-compiled functions are simply called.

    Raises:
        OrderError: a setting out of range.
        WindowError: fields that do not fit the store.
        MissingDependencyError: ``to="torch"`` without torch, ``to="jax"`` without JAX.

    Example:
        >>> import tempfile, numpy as np, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/arm.well", {"state": stepwell.Array(3)})
        >>> with store.writer() as writer:
        ...     _ = writer.add_episode({"state": np.zeros((40, 3), np.float32)})
        >>> _ = store.refresh()
        >>> loader = Loader(store, {"state": range(8)}, batch_size=16, order="random")
        >>> for epoch in range(2):
        ...     for batch in loader:
        ...         pass
        >>> batch
        <Batch epoch 1, index 2
          state: float32[8, 8, 3]
          state_is_pad: bool[8, 8]>

    Notes:
        Every ``for batch in loader`` runs the next epoch(s): with ``epochs=1``, the n-th loop has epoch n-1, and
        another random order. A loop left early counts as run. `epoch` says which comes next and may be set.

        `state_dict` counts what the consumer got, not what was built ahead. It resumes at the exact next batch, also
        under another number of threads, ranks, or another batch size (then at the exact next anchor).

        Batches share no bytes with each other; memory is recycled once nobody holds an array, slice or tensor of it.
        Small batches of rows that are only copied are read several at once and lie in one block, of 1 MiB at most.
        A pooled order's memory is the loader's, at most the bytes of the order unless one batch needs more; it is kept
        from one ``for`` to the next, so that what fits is decoded once for all epochs. A second ``for`` while one is
        under way has a pool of its own.

        Several threads may take from one iterator (``batches = iter(loader)``, a ``for`` over it in each): each batch
        goes to one of them, and all of them end; where one gets an error, the others get a LoaderError that says which.
        The loader itself is for one thread. No worker processes. May be pickled (spawn) when its transforms may: the
        copy is where this one is. After a fork, parent and child each iterate their own; an iterator made before the
        fork works in the parent only.
    """

    _INTERNAL = frozenset({"reader", "settings"})

    # which values batches have, for type checkers; nested ones have dicts as well
    @overload
    def __init__(
        self: Loader[npt.NDArray[Any]],
        view: View | Store,
        fields: Mapping[str, Any] | None = None,
        *,
        to: Literal["numpy"] = "numpy",
        nested: Literal[False] = False,
        **options: Unpack[LoaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Tensor],
        view: View | Store,
        fields: Mapping[str, Any] | None = None,
        *,
        to: Literal["torch"],
        nested: Literal[False] = False,
        **options: Unpack[LoaderOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: Loader[Any],
        view: View | Store,
        fields: Mapping[str, Any] | None = None,
        *,
        to: Target = "numpy",
        nested: bool = False,
        **options: Unpack[LoaderOptions],
    ) -> None: ...

    @explain_arguments(RENAMED)
    def __init__(
        self,
        view: View | Store,
        fields: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 64,
        order: Literal["sequential", "random", "pooled"] | Order = "sequential",
        seed: int = 0,
        epochs: int | None = 1,
        drop_last: bool = False,
        pad: Pad = False,
        rank: int = 0,
        world_size: int = 1,
        threads: int | None = None,
        prefetch: int = 2,
        to: Target = "numpy",
        pin_memory: bool | None = None,
        nested: bool = False,
        page_cache: bool = True,
        device: str | None = None,
        sharding: Any = None,
        transform: WholeTransform | None = None,
    ) -> None:
        self.settings = LoaderSettings(
            batch_size=batch_size,
            seed=seed,
            epochs=epochs,
            drop_last=drop_last,
            pad=pad,
            rank=rank,
            world_size=world_size,
            threads=threads,
            prefetch=prefetch,
            to=to,
            pin_memory=pin_memory,
            nested=nested,
            page_cache=page_cache,
            device=device,
            sharding=sharding,
        )
        self.view = view if isinstance(view, View) else View(view)
        self.order = make_order(order, seed=seed)
        self._fields = fields
        self._transform = transform
        self._cursor = Cursor(self.settings.epochs)
        self._engine: _Engine | None = None
        self._running()

    def __iter__(self) -> BatchIterator[V]:
        """Begin the next epoch(s), or go on with an endless stream; after `load_state_dict`, with that state."""
        cursor, engine = self._cursor.following(), self._running()
        jobs = schedule(engine.order, self.settings, cursor.start, cursor.last_epoch)
        iterator: BatchIterator[V] = BatchIterator(engine.source(jobs), cursor)
        cursor.has_begun = True
        self._cursor = cursor
        return iterator

    def __len__(self) -> int:
        """Return the number of batches of one ``for`` over the loader from an epoch's beginning, on this rank."""
        if self.settings.epochs is None:
            raise TypeError("a loader with epochs=None is endless and has no length. Use num_batches for one epoch.")
        return self.settings.epochs * self.num_batches

    @property
    def num_batches(self) -> int:
        """The number of batches of one epoch on this rank."""
        return self.settings.partition(self.num_positions).num_batches

    @property
    def num_positions(self) -> int:
        """The number of anchors that an epoch visits, over all ranks."""
        return self._running().order.num_positions

    @property
    def num_threads(self) -> int:
        """The number of threads that an iteration uses; 0: batches are built in the consumer."""
        return self._running().num_threads

    @property
    def reader(self) -> WindowReader:
        """What reads the windows."""
        return self._running().reader

    @property
    def epoch(self) -> int:
        """The epoch that the next ``for`` begins with, or goes on with after `load_state_dict`."""
        return self._cursor.following().start.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``for`` begins with, from its beginning.

        Raises:
            OrderError: not an int of 0 or more.
        """
        check_count("epoch", epoch)
        self._cursor = Cursor(self.settings.epochs, Position(int(epoch), 0), int(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer of the latest iteration stands, as at most 1 KiB of JSON types.

        At the last batch of an epoch the state is the end of that epoch until the ``for`` has ended, and then the
        beginning of the next.
        """
        return self._state().to_json()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next ``for`` go on where a state was taken; iterations under way do not change.

        Args:
            state_dict: of any rank of a loader over the same anchors in the same order. Where an uneven last batch lets
                ranks of several epochs get ahead of each other, their states agree at the end of an iteration only.

        Raises:
            StateError: of another store, snapshot, order, seed or format; or taken in the middle of a pooled epoch by
                several ranks, and with another batch size or number of them. The message names both.
        """
        state = LoaderState.from_json(state_dict)
        state.check(self._state(), depends_on_ranks=self._running().order.depends_on_ranks)
        self._cursor = Cursor(self.settings.epochs, Position(state.epoch, state.consumed), state.first_epoch)

    def refresh(self) -> None:
        """Take in what the stores have become; the next ``for`` runs the next epoch over it, from its beginning."""
        reader = self.reader.refresh()
        self._engine = _Engine(reader, self.order, self.settings, self._transform)
        self.view = reader.view
        self._cursor = self._cursor.at_next_epoch()

    def for_rank(self, rank: int, world_size: int) -> Loader[V]:
        """Return a loader for one rank of several, otherwise as this one, and where this one is.

        Args:
            rank: ``0 <= rank < world_size``.
            world_size: number of ranks.

        Raises:
            OrderError: a rank out of range.
        """
        other = copy(self)
        other.settings = replace(self.settings, rank=rank, world_size=world_size)
        return other

    def __repr__(self) -> str:
        count = self.settings.epochs
        epochs = "endless epochs" if count is None else "1 epoch" if count == 1 else f"{count} epochs"
        return (
            f"<Loader {counted(self.num_positions, 'anchor')}  batch {self.settings.batch_size}  {self.order!r}  "
            f"{epochs} of {self.num_batches:,} batch{'' if self.num_batches == 1 else 'es'}  "
            f"{counted(self.num_threads, 'thread')}>"
        )

    @never_raising
    def _repr_html_(self) -> str:
        from stepwell.loader.notebook import loader_html

        return loader_html(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursor": copy(self._cursor), "_engine": None}

    def _state(self) -> LoaderState:
        engine = self._running()
        return LoaderState.of(engine.reader, self.order, engine.order, self.settings, self._cursor.here)

    def _running(self) -> _Engine:
        """Return what reads and builds in this process."""
        if self._engine is None or self._engine.pid != os.getpid():
            # a thread of the parent may have held a lock of its reader when this process was forked
            reader = WindowReader(self.view, self._fields, page_cache=self.settings.page_cache)
            # another one, where a ring evicted what the view had
            self.view = reader.view
            self._engine = _Engine(reader, self.order, self.settings, self._transform)
        return self._engine


class BatchIterator(Iterator[Batch[V]]):
    """One iteration of a loader.

    Notes:
        For the process that made it. Several threads may take from it: each batch goes to one of them, and all of them
        end. Its own threads end at the last batch, at an exception, with `close`, when the iterator is dropped, and
        when the interpreter exits. Works as a context manager that closes.
    """

    __slots__ = ("__weakref__", "_cursor", "_failure", "_is_closed", "_pid", "_source", "_turn")

    def __init__(self, source: _Source, cursor: Cursor) -> None:
        self._source = source
        self._cursor = cursor
        self._is_closed = False
        self._pid = os.getpid()
        # of the thread that takes; one that closes in the midst of it, in a signal handler, is the same
        self._turn = threading.RLock()
        # the thread that got the error which ended the iteration, and the error's text
        self._failure: tuple[weakref.ref[threading.Thread], str] | None = None

    def __iter__(self) -> BatchIterator[V]:
        return self

    def __next__(self) -> Batch[V]:
        """Return the next batch."""
        if os.getpid() != self._pid:
            raise LoaderError(
                f"this iterator is of process {self._pid} and was used in process {os.getpid()}, a fork of it. "
                "Call iter(loader) in the process that takes the batches."
            )
        cursor = self._cursor
        with self._turn:
            try:
                job, batch = self._source.take()
            except StopIteration:
                if self._failure is not None:
                    self._raise_in_others(*self._failure)
                cursor.is_done = not self._is_closed
                raise
            except BaseException as error:
                # a batch that failed, or was interrupted by Ctrl-C, is not skipped: the iteration is over
                self._failure = weakref.ref(threading.current_thread()), f"{type(error).__name__}: {error}"
                self.close()
                raise
            cursor.end = job.end
            return batch

    def close(self) -> None:
        """End the iteration early: threads end, later `next` calls stop, as do those that wait in other threads."""
        if os.getpid() != self._pid:
            # nothing of it runs in a fork, and its lock may have been held
            return
        if not self._cursor.is_done:
            self._is_closed = True
        self._source.interrupt()
        with self._turn:
            self._source.close()

    @staticmethod
    def _raise_in_others(thread: weakref.ref[threading.Thread], text: str) -> None:
        """Raise in the threads that did not get the error: for them the batches are not at their end, either."""
        if thread() is not threading.current_thread():
            raise LoaderError(f"the iteration ended in another thread that takes from it: {text}")

    def __enter__(self) -> BatchIterator[V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Engine:
    """What a loader runs on in one process: the reader, the order bound to it, and how batches are built ahead.

    Notes:
        Shared by all iterations of a loader, so that they recycle the same memory, also that of a pool: between two
        iterations its blocks stay. An iteration that is begun while another is under way has a pool of its own. Usable
        in the process that made it only.
    """

    def __init__(
        self, reader: WindowReader, order: Order, settings: LoaderSettings, transform: WholeTransform | None
    ) -> None:
        self.pid = os.getpid()
        self.reader = reader
        self.order = order.bind(reader.index)
        is_raw = reader.is_raw and reader.page_cache
        # where rows need no pool, the order alone keeps what is read together
        pooled = self.order if isinstance(self.order, BoundPooled) else None
        self._pooled = pooled if pooled and _pays(pooled, reader, settings.world_size) else None
        is_pooled = self._pooled is not None
        self._pools: deque[BlockPool] = deque(maxlen=1)
        batch_bytes = reader.sample_bytes * settings.batch_size
        self.num_threads = settings.num_threads(batch_bytes, is_raw, is_pooled)
        self._group = settings.group(batch_bytes, is_raw or is_pooled)
        if self._pooled is not None:
            self._group = _within_pool(self._group, self._pooled, settings.batch_size)
        self._inline_group = max(1, INLINE_POSITIONS // settings.batch_size)
        self._num_ahead = self.num_threads * settings.prefetch
        # batches that are only copied are read several at once
        read_group = self._group if is_raw and _stays_aligned(reader, settings.batch_size) else 1
        # each group that is built ahead takes as many blocks of memory as it has reads
        max_free = self._num_ahead * (self._group // read_group) + HELD_BATCHES
        self._builder = Builder(reader, settings, transform, max_free, read_group)
        self._copier = make_copier(settings, _last_sizes(settings, self.order.num_positions))

    def source(self, jobs: Iterator[Job]) -> _Source:
        """Return the batches of jobs, built in the consumer or ahead of it, where the consumer wants them."""
        source = self._unpooled_source(jobs) if self._pooled is None else self._pooled_source(jobs, self._pooled)
        return source if self._copier is None else DeviceSource(source, self._copier)

    def _unpooled_source(self, jobs: Iterator[Job]) -> _Threaded:
        if self.num_threads == 0:
            return Inline(self._builder.build, grouped(jobs, self._inline_group))
        groups = grouped(jobs, self._group)
        return Pipeline(self._builder.build, groups, num_threads=self.num_threads, num_ahead=self._num_ahead)

    def _pooled_source(self, jobs: Iterator[Job], order: BoundPooled) -> _Threaded:
        try:
            pool = self._pools.pop()
        except IndexError:
            num_slots = min(order.num_slots, len(order.blocks))
            pool = BlockPool(order.blocks, self.reader.row_loader, num_slots)
        supply = PoolSupply(pool, BLOCKS_AHEAD * self.num_threads, self._pools.append)
        size = self._group if self.num_threads else 1
        groups = supply.groups(with_anchors(jobs, self._group if self.num_threads else self._inline_group), size)
        if self.num_threads == 0:
            return Inline(self._builder.build, groups, supply=supply)
        return Pipeline(
            self._builder.build, groups, num_threads=self.num_threads, num_ahead=self._num_ahead, supply=supply
        )


def _pays(order: BoundPooled, reader: WindowReader, world_size: int) -> bool:
    """Return whether anything is saved by holding rows for later batches."""
    if not reader.page_cache or not reader.columns:
        return bool(reader.columns)
    # of what is more, too many rows leave the pool before the next epoch needs them again; a rank needs fewer in each
    most = (2 if world_size == 1 else 3) * order.num_slots
    return not reader.is_raw and (reader.shares_rows or len(order.blocks) <= most)


def _last_sizes(settings: LoaderSettings, num_positions: int) -> list[int]:
    """Return the rows of the batch that ends an epoch; of endless epochs none."""
    if settings.is_stream:
        return []
    partition = settings.partition(num_positions)
    return [partition[number].num_rows for number in range(partition.num_batches)[-1:]]


def _stays_aligned(reader: WindowReader, batch_size: int) -> bool:
    """Return whether batches that lie one after the other all begin at multiples of `ALIGNMENT` bytes, in any key."""
    samples = [sample for sample in samples_of(reader.fields).values() if sample is not None]
    return all(batch_size * math.prod(shape) * dtype.itemsize % ALIGNMENT == 0 for shape, dtype in samples)


def _within_pool(group: int, order: BoundPooled, batch_size: int) -> int:
    """Return how many batches a group has, ``group`` at most: together they need no more blocks than have room."""
    if order.num_resident == len(order.blocks):
        return group
    # for each block that a group uses up, another enters
    spare = order.num_slots - order.num_resident
    return max(1, min(group, spare * order.num_positions // (len(order.blocks) * batch_size)))
