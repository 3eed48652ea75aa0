"""Tables by Reverb's arguments: items of the tables of `stepwell.replay`, whose steps may be any of their server's.

::

    create_item --(limiter)--> Contents: keys, sampler, remover, counts     as every table of stepwell
                                  |  row of an item = its number
                                  '--> Trajectory: columns of (leaf, step) ---> Steps
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError
from stepwell.kernels.signatures import load_kernels
from stepwell.replay.contents import Contents, Sample
from stepwell.replay.episode_records import EpisodeRecords
from stepwell.replay.extensions import Notices
from stepwell.replay.limiters import Limiter
from stepwell.replay.selectors import Selector
from stepwell.replay.table_settings import checked_keys, checked_priorities
from stepwell.reverb import rate_limiters, selectors
from stepwell.reverb.specs import TensorSpec, specs_of
from stepwell.reverb.steps import Steps

__all__ = ["Column", "RateLimiterInfo", "Stats", "Table", "TableInfo", "Trajectory"]

Int64s = npt.NDArray[np.int64]
# what inserting, drawing and updating call, beside the kernels of the selectors
KERNELS = (
    "stepwell.replay.item_kernels.insert_items",
    "stepwell.replay.item_kernels.take_items",
    "stepwell.replay.item_kernels.find_items",
    "stepwell.replay.item_kernels.update_items",
)


class Column(NamedTuple):
    """One column of an item.

    Args:
        leaves: int32 [n], which value of its step each row is; see `stepwell.reverb.steps`.
        ids: int64 [n], of the steps.
        is_squeezed: one row, given without the dimension of the steps.
    """

    leaves: npt.NDArray[np.int32]
    ids: Int64s
    is_squeezed: bool


class Trajectory(NamedTuple):
    """What an item consists of: its columns, the episodes that its steps are of, and the segments in which they lie."""

    columns: Sequence[Column]
    episodes: Sequence[Any]
    segments: Sequence[tuple[Any, int]]


class Stats(NamedTuple):
    """How many calls a limiter has let through."""

    completed: int
    pending: int = 0


class _Exponent(NamedTuple):
    priority_exponent: float


class _Heap(NamedTuple):
    min_heap: bool


@dataclass(frozen=True)
class SelectorOptions:
    """How a table chooses: one of these is set; by the names of Reverb's message.

    Args:
        fifo: the oldest.
        lifo: the newest.
        uniform: any.
        heap: the largest priority, or the smallest where ``heap.min_heap``.
        prioritized: in proportion to ``priority ** prioritized.priority_exponent``.
    """

    fifo: bool = False
    lifo: bool = False
    uniform: bool = False
    heap: _Heap | None = None
    prioritized: _Exponent | None = None

    def HasField(self, name: str) -> bool:
        """Return whether a field is set."""
        return bool(getattr(self, name) is not None and getattr(self, name) is not False)

    @classmethod
    def of(cls, text: str) -> SelectorOptions:
        """Return the options of a selector's text, such as ``"Prioritized(0.8)"``."""
        kind, _, rest = text.partition("(")
        match kind:
            case "Prioritized":
                return cls(prioritized=_Exponent(float(rest.rstrip(")"))))
            case "MaxHeap" | "MinHeap":
                return cls(heap=_Heap(kind == "MinHeap"))
        return cls(fifo=kind == "Fifo", lifo=kind == "Lifo", uniform=kind == "Uniform")


class RateLimiterInfo(NamedTuple):
    """The numbers of a table's limiter."""

    samples_per_insert: float
    min_diff: float
    max_diff: float
    min_size_to_sample: int
    insert_stats: Stats
    sample_stats: Stats


class TableInfo(NamedTuple):
    """What a server tells of a table.

    Args:
        name: of the table.
        sampler_options: what is drawn.
        remover_options: what goes.
        max_size: items that it keeps.
        max_times_sampled: draws after which an item goes; 0: any number.
        rate_limiter_info: the limiter, and what it let through.
        signature: a nest of specs of an item's columns, or None.
        current_size: items.
        num_episodes: episodes of which there are items.
        num_deleted_episodes: episodes of which all items have gone.
        num_unique_samples: items that were drawn at least once.

    Example:
        >>> from stepwell import reverb
        >>> info = reverb.Table.queue("queue", max_size=100).info
        >>> info.name, info.max_size, info.current_size, info.max_times_sampled
        ('queue', 100, 0, 1)
    """

    name: str
    sampler_options: SelectorOptions
    remover_options: SelectorOptions
    max_size: int
    max_times_sampled: int
    rate_limiter_info: RateLimiterInfo
    signature: Any
    current_size: int
    num_episodes: int
    num_deleted_episodes: int
    num_unique_samples: int


class Table:
    """A table of a `stepwell.reverb.Server`.

    Args:
        name: of the table.
        sampler: what is drawn, of `stepwell.reverb.selectors`.
        remover: what goes when there are more than ``max_size``; likewise.
        max_size: items that it keeps.
        rate_limiter: of `stepwell.reverb.rate_limiters`.
        max_times_sampled: draws after which an item goes; 0 for any number.
        extensions: none are taken; `stepwell.replay.Extension` is for tables in the process.
        signature: a nest of specs: what the items' columns are. Writers are refused others.

    Raises:
        ValueError: arguments that cannot be.

    Example:
        >>> from stepwell import reverb
        >>> table = reverb.Table("replay", reverb.selectors.Uniform(), reverb.selectors.Fifo(), 1000,
        ...                      reverb.rate_limiters.MinSize(1))
        >>> table.info.current_size, table.can_sample(1), table.can_insert(1)
        (0, False, True)

    Notes:
        A table is of one server. Random draws are seeded by the system.
    """

    def __init__(  # noqa: PLR0917
        self,
        name: str,
        sampler: Selector,
        remover: Selector,
        max_size: int,
        rate_limiter: Limiter,
        max_times_sampled: int = 0,
        extensions: Sequence[Any] = (),
        signature: Any = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ValueError(f"name={name!r}: give a table a name of at least one character.")
        if isinstance(max_size, bool) or not isinstance(max_size, int | np.integer) or max_size < 1:
            raise ValueError(f"max_size={max_size!r} of table {name!r} must be a whole number, at least 1.")
        if not isinstance(max_times_sampled, int | np.integer) or max_times_sampled < 0:
            raise ValueError(f"max_times_sampled={max_times_sampled!r} of table {name!r} must be 0 or more.")
        if extensions:
            raise ValueError("extensions of a served table are not called. Leave them out.")
        for role, given in (("sampler", sampler), ("remover", remover)):
            if not isinstance(given, Selector):
                raise ValueError(f"{role}={given!r} of table {name!r} is none of stepwell.reverb.selectors.")
        if not isinstance(rate_limiter, Limiter):
            raise ValueError(f"rate_limiter={rate_limiter!r} is none of stepwell.reverb.rate_limiters.")
        self.name = name
        self.signature = signature
        self.specs: list[TensorSpec] | None = None if signature is None else specs_of(signature)
        self._max_size, self._max_times = int(max_size), int(max_times_sampled)
        self._arguments: dict[str, Any] = {
            "name": name,
            "sampler": sampler,
            "remover": remover,
            "max_size": int(max_size),
            "rate_limiter": rate_limiter,
            "max_times_sampled": int(max_times_sampled),
            "signature": self.signature,
        }
        self.limiter = rate_limiter
        chosen, removing = selectors.fresh(sampler), selectors.fresh(remover)
        load_kernels((*KERNELS, *chosen.kernels, *removing.kernels))
        self._contents = _Contents(int(max_size), chosen, removing, int(max_times_sampled))

    @classmethod
    def queue(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> Table:
        """Return a table whose items are drawn once, first in first out; inserting waits while ``max_size`` wait."""
        fifo = selectors.Fifo()
        return cls(name, fifo, fifo, max_size, rate_limiters.Queue(max_size), 1, extensions, signature)

    @classmethod
    def stack(cls, name: str, max_size: int, extensions: Sequence[Any] = (), signature: Any = None) -> Table:
        """Return a table whose items are drawn once, last in first out; inserting waits while ``max_size`` wait."""
        lifo = selectors.Lifo()
        return cls(name, lifo, lifo, max_size, rate_limiters.Stack(max_size), 1, extensions, signature)

    def replace(self, **changes: Any) -> Table:
        """Return a new, empty table with some of the arguments changed."""
        return Table(**{**self._arguments, **changes})

    # what it is

    @property
    def info(self) -> TableInfo:
        """Its settings and numbers."""
        counts, limiter, contents = self._contents.counts, self.limiter, self._contents
        return TableInfo(
            self.name,
            SelectorOptions.of(repr(contents.sampler)),
            SelectorOptions.of(repr(contents.remover)),
            self._max_size,
            self._max_times,
            RateLimiterInfo(
                limiter.samples_per_insert,
                limiter.min_diff,
                limiter.max_diff,
                limiter.min_size,
                Stats(counts.inserts),
                Stats(counts.samples),
            ),
            self.signature,
            counts.size,
            len(contents.episodes),
            contents.num_deleted_episodes,
            counts.unique_samples,
        )

    def can_sample(self, num_samples: int) -> bool:
        """Return whether the limiter lets so many items be drawn now."""
        return self.limiter.can_sample(self._contents.counts, num_samples)

    def can_insert(self, num_inserts: int) -> bool:
        """Return whether the limiter lets so many items in now."""
        return self.limiter.can_insert(self._contents.counts, num_inserts)

    def __len__(self) -> int:
        return len(self._contents)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<reverb.Table {self.name}  {len(self)} of {self._max_size:,} items>"

    @property
    def selector_texts(self) -> tuple[str, str]:
        """Sampler and remover as text."""
        return repr(self._contents.sampler), repr(self._contents.remover)

    # of its server, in one thread

    def use(self, steps: Steps) -> None:
        """Refer to the steps of a server; TableError: it is another one's already."""
        if self._contents.steps is not None:
            raise TableError(f"table {self.name!r} is another server's already. table.replace() gives a new one.")
        self._contents.steps = steps

    def insert(self, trajectory: Trajectory, priority: float) -> None:
        """Insert an item that the limiter lets in."""
        self._contents.insert_trajectory(trajectory, checked_priorities(priority, 1))

    def draw(self, count: int) -> tuple[Sample, list[Trajectory]] | None:
        """Draw at most ``count`` items, as many as the limiter lets; None: not one."""
        contents = self._contents
        allowed = self.limiter.num_samples(contents.counts, count)
        if not allowed:
            return None
        return contents.draw_trajectories(allowed, self.limiter.min_size)

    def done_reading(self) -> None:
        """Say that what `draw` gave was read."""
        self._contents.done_reading()

    def mutate(self, updates: tuple[Any, Any] | None, deletes: Any) -> None:
        """Remove items by key, then set the priorities of others; unknown keys are passed over."""
        keys, priorities = (checked_keys([]), None) if updates is None else (checked_keys(updates[0]), updates[1])
        checked = None if priorities is None else checked_priorities(priorities, len(keys))
        if deletes is not None and len(deletes):
            self._contents.delete_keyed(checked_keys(deletes))
        if checked is not None and len(keys):
            self._contents.update_keyed(keys, checked)

    def reset(self) -> None:
        """Remove all items and begin to count anew."""
        self._contents.clear()

    def state(self) -> tuple[dict[str, Any], list[Trajectory]]:
        """Return what a checkpoint keeps: counts, and of each item, the oldest first, priority and trajectory."""
        return self._contents.state()

    def restore(self, state: dict[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """Go on from a `state`; items get new keys."""
        self._contents.restore(state, trajectories)


class _Contents(Contents):
    """Items with what they refer to; the row of an item is the number of its trajectory."""

    def __init__(self, max_size: int, sampler: Selector, remover: Selector, max_times_sampled: int) -> None:
        keys = tuple(int.from_bytes(os.urandom(7)) for _ in range(3))
        super().__init__(max_size, sampler, remover, max_times_sampled, keys, Notices(()), EpisodeRecords())
        self.steps: Steps | None = None
        self.episodes: Counter[Any] = Counter()
        self.num_deleted_episodes = 0
        self._trajectories: dict[int, Trajectory] = {}
        self._number = 0
        # items that went by being drawn: what they refer to is kept until it was read
        self._is_drawing = False
        self._drawn: dict[int, Trajectory] = {}

    def insert_trajectory(self, trajectory: Trajectory, priorities: npt.NDArray[np.float64]) -> None:
        """Insert an item."""
        if self.steps is None:
            raise TableError("a table without a server takes no items. Give it to stepwell.reverb.Server.")
        number, self._number = self._number, self._number + 1
        self._trajectories[number] = trajectory
        for structure, ordinal in trajectory.segments:
            structure.hold(ordinal)
        self.episodes.update(trajectory.episodes)
        self.insert(np.array([[0], [number], [1]], np.int64), priorities)

    def draw_trajectories(self, count: int, min_size: int) -> tuple[Sample, list[Trajectory]]:
        """Draw items; `done_reading` is called when what they refer to was read."""
        self._is_drawing = True
        try:
            sample, _ = self.draw(count, min_size)
        finally:
            self._is_drawing = False
        return sample, [self._trajectories.get(row) or self._drawn[row] for row in sample.rows.tolist()]

    def done_reading(self) -> None:
        """Let go of what items refer to that went by being drawn."""
        drawn, self._drawn = self._drawn, {}
        for trajectory in drawn.values():
            self._let_go(trajectory)

    def clear(self) -> None:
        """Remove all items and begin to count anew."""
        gone = list(self._trajectories)
        super().clear()
        for number in gone:
            self._release(number)
        self.episodes.clear()
        self.num_deleted_episodes = 0

    def state(self) -> tuple[dict[str, Any], list[Trajectory]]:
        """Return counts, and the items, the oldest first."""
        slots = self.items.slots
        rows = self.items.row[slots].tolist()
        state = {
            "priorities": self.items.priority[slots],
            "times_sampled": self.items.times_sampled[slots],
            "counts": [self.counts.inserts, self.counts.samples, self.counts.deletes, self.counts.unique_samples],
            "num_deleted_episodes": self.num_deleted_episodes,
        }
        return state, [self._trajectories[row] for row in rows]

    def restore(self, state: dict[str, Any], trajectories: Sequence[Trajectory]) -> None:
        """Insert the items of a state."""
        priorities = np.asarray(state["priorities"], np.float64)
        for trajectory, priority in zip(trajectories, priorities, strict=True):
            self.insert_trajectory(trajectory, np.array([priority]))
        counts = self.counts
        counts.inserts, counts.samples, counts.deletes, counts.unique_samples = map(int, state["counts"])
        slots = self.items.slots
        self.items.times_sampled[slots] = state["times_sampled"]
        self.num_deleted_episodes = int(state["num_deleted_episodes"])

    def _forget(self, slots: Int64s) -> None:
        rows = self.items.row[slots].tolist()
        super()._forget(slots)
        for row in rows:
            self._release(row)

    def _release(self, number: int) -> None:
        trajectory = self._trajectories.pop(number)
        if self._is_drawing:
            self._drawn[number] = trajectory
        else:
            self._let_go(trajectory)
        for episode in trajectory.episodes:
            self.episodes[episode] -= 1
            if not self.episodes[episode]:
                del self.episodes[episode]
                self.num_deleted_episodes += 1

    def _let_go(self, trajectory: Trajectory) -> None:
        for structure, ordinal in trajectory.segments:
            structure.let_go(ordinal)
