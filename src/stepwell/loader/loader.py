"""The loader: windows of a view as batches, epoch after epoch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

from stepwell.loader.course import Course, Visit
from stepwell.loader.engine import Engine
from stepwell.loader.iterators import BatchIterator
from stepwell.loader.plans import Place, schedule
from stepwell.loader.settings import LoaderSettings
from stepwell.order import Order, Pad, make_order
from stepwell.order.order import check_count
from stepwell.store.counting import counted
from stepwell.windows import View, WindowReader

if TYPE_CHECKING:
    from stepwell.loader.handover import Target
    from stepwell.loader.transforms import WholeTransform
    from stepwell.store import Store

__all__ = ["Loader"]


class Loader:
    """Stream windows of a view as batches.

    ::

        view, fields, order --> positions --> reader --> transforms --> (torch) --> Batch
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
            bytes and ragged features (object arrays), structured dtypes, and uint16/32/64 in old versions.
        pin_memory: for "torch": page-locked memory; default: where CUDA is there.
        nested: whether keys with dots become nested dicts: ``batch["observation"]["image"]``.
        page_cache: whether rows are read through the system's page cache (default). False reads large spans into memory
            of the loader's own and lets the system forget them: for stores much larger than memory, with a pooled order
            (any other order works, too, and reads what a batch needs). Ragged features are always read through it.
        device: for "torch": "cuda" or "cuda:N" copies batches there from pinned memory, on a stream of their own and
            one batch ahead; the current stream waits for the batch that it gets. "cpu" (default): they stay.
        transform: of the whole batch, one or several in order, after those of the fields: a
            `stepwell.transforms.BatchTransform`, or a callable that takes a flat dict of key to numpy array and returns
            one. With a parameter ``draws`` it gets the windows' random numbers, which depend on (seed, epoch, position)
            only; with ``rng`` a numpy Generator of the batch. numba-compiled functions are simply called.

    Raises:
        OrderError: a setting out of range.
        WindowError: fields that do not fit the store.
        MissingDependencyError: ``to="torch"`` without torch.

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
        )
        self.view = view if isinstance(view, View) else View(view)
        self.order = make_order(order, seed=seed)
        self._fields = fields
        self._transform = transform
        self._course = Course(self.settings.epochs)
        self._engine: Engine | None = None
        self._running()

    def __iter__(self) -> BatchIterator:
        """Begin the next epoch(s), or go on with an endless stream; after `load_state_dict`, with that state."""
        cursor = self._course.next_cursor()
        engine = self._running()
        iterator = BatchIterator(engine.source(schedule(engine.order, self.settings, cursor)), cursor)
        self._course.follow(cursor)
        return iterator

    def __len__(self) -> int:
        """Return the number of batches of one ``for`` over the loader from an epoch's beginning, on this rank.

        Raises:
            TypeError: the loader is endless.
        """
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
        return self._course.next_start()[0].epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``for`` begins with, from its beginning.

        Raises:
            OrderError: not an int of 0 or more.
        """
        check_count("epoch", epoch)
        self._course.move_to(Place(int(epoch), 0), int(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer of the latest iteration stands, as at most 1 KiB of JSON types.

        At the last batch of an epoch the state is the end of that epoch until the ``for`` has ended, and then the
        beginning of the next.
        """
        return self._visit().state(*self._course.here())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next ``for`` go on where a state was taken; iterations under way do not change.

        Args:
            state_dict: of any rank of a loader over the same anchors in the same order. Where an uneven last batch lets
                ranks of several epochs get ahead of each other, their states agree at the end of an iteration only.

        Raises:
            StateError: of another store, snapshot, order, seed or format; or taken in the middle of a pooled epoch by
                several ranks, and with another batch size or number of them. The message names both.
        """
        self._course.move_to(*self._visit().place_of(state_dict))

    def refresh(self) -> None:
        """Take in what the stores have become; the next ``for`` runs the next epoch over it, from its beginning."""
        reader = self.reader.refresh()
        self._engine = Engine(reader, self.order, self.settings, self._transform)
        self.view = reader.view
        self._course.begin_anew()

    def __repr__(self) -> str:
        count = self.settings.epochs
        epochs = "endless epochs" if count is None else "1 epoch" if count == 1 else f"{count} epochs"
        return (
            f"<Loader {counted(self.num_positions, 'anchor')}  batch {self.settings.batch_size}  {self.order!r}  "
            f"{epochs} of {self.num_batches:,} batch{'' if self.num_batches == 1 else 'es'}  "
            f"{counted(self.num_threads, 'thread')}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_course": copy(self._course), "_engine": None}

    def _visit(self) -> Visit:
        engine = self._running()
        return Visit(engine.reader, self.order, engine.order, self.settings)

    def _running(self) -> Engine:
        """Return what reads and builds in this process."""
        if self._engine is None or self._engine.pid != os.getpid():
            # a thread of the parent may have held a lock of its reader when this process was forked
            reader = WindowReader(self.view, self._fields, page_cache=self.settings.page_cache)
            # another one, where a ring evicted what the view had
            self.view = reader.view
            self._engine = Engine(reader, self.order, self.settings, self._transform)
        return self._engine
