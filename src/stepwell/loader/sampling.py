"""A batch sampler for torch's DataLoader: the loader's batches, built by worker processes.

::

    BatchSampler --BatchIndices--> DataLoader --> worker: WindowDataset.__getitems__ --> Batch
    order, ranks, epochs, state     prefetches        the same builder as the loader's
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, Protocol

from stepwell.errors import WindowError
from stepwell.loader.course import Course, Visit
from stepwell.loader.indices import BatchIndices
from stepwell.loader.plans import Place, draft, schedule
from stepwell.loader.settings import LoaderSettings
from stepwell.order import Order, Pad, make_order
from stepwell.order.order import check_count
from stepwell.store.counting import counted

if TYPE_CHECKING:
    from stepwell.order import BoundOrder
    from stepwell.windows import WindowReader

__all__ = ["BatchSampler"]

# that are worked out at once, at most: the first batch waits for all of them
POSITIONS_AHEAD = 4096
BATCHES_AHEAD = 64


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
        self._course = Course(self.settings.epochs)
        self._known: tuple[WindowReader, BoundOrder] | None = None
        self._bound()

    def __iter__(self) -> Iterator[BatchIndices]:
        """Begin the next epoch(s) with the first batch that is asked for."""
        # DataLoader makes two iterators for persistent workers and uses one: nothing may happen before the first batch
        order = self._bound()
        cursor = self._course.next_cursor()
        tickets = schedule(order, self.settings, cursor)
        self._course.follow(cursor)
        group = max(1, min(BATCHES_AHEAD, POSITIONS_AHEAD // self.settings.batch_size))
        while together := list(islice(tickets, group)):
            for ticket, share, anchors in draft(together):
                cursor.taken = ticket
                yield BatchIndices(anchors, share, ticket.plan.index(ticket.number))
        cursor.is_done = True

    def __len__(self) -> int:
        """Return the number of batches of one ``for`` from an epoch's beginning, on this rank.

        Raises:
            TypeError: it is endless.
        """
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
        return self._course.next_start()[0].epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next ``for`` begins with, from its beginning; it counts on from there.

        Raises:
            OrderError: not an int of 0 or more.
        """
        check_count("epoch", epoch)
        self._course.move_to(Place(int(epoch), 0), int(epoch))

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
            return self._visit(order).state(*self._course.here())
        check_count("num_taken", num_taken)
        return self._visit(order).state(*self._course.after(num_taken, self.settings, order.num_positions))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next ``for`` go on where a state was taken.

        Args:
            state_dict: of any rank's sampler or `Loader` over the same anchors in the same order.

        Raises:
            StateError: of another store, snapshot, order, seed or format; see `Loader.load_state_dict`.
        """
        self._course.move_to(*self._visit(self._bound()).place_of(state_dict))

    def __repr__(self) -> str:
        return (
            f"<BatchSampler {counted(self.num_positions, 'anchor')}  batch {self.settings.batch_size}  {self.order!r}  "
            f"rank {self.settings.rank} of {self.settings.world_size}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_course": copy(self._course), "_known": None}

    def _visit(self, order: BoundOrder) -> Visit:
        return Visit(self.dataset.reader, self.order, order, self.settings)

    def _bound(self) -> BoundOrder:
        """Return the order over what the dataset holds now."""
        reader = self.dataset.reader
        if self._known is None or self._known[0] is not reader:
            is_other = self._known is not None and self._known[0].snapshot_id != reader.snapshot_id
            self._known = reader, self.order.bind(reader.index)
            if is_other:
                self._course.begin_anew()
        return self._known[1]
