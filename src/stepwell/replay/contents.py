"""The items of a table with their sampler and remover: inserting, drawing, updating and removing, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError
from stepwell.kernels.kernel import entry_of
from stepwell.kernels.places import EPISODE, PLACE_ROWS, ROW
from stepwell.replay.batch_kernels import draw_batch
from stepwell.replay.following import Growth
from stepwell.replay.item_kernels import TAKEN_KEY, TAKEN_PRIORITY, TAKEN_SIZE, accept_draws, grow_items
from stepwell.replay.items import Items
from stepwell.replay.selectors import Fifo, Lifo, Prioritized, Selector, Uniform

if TYPE_CHECKING:
    from stepwell.replay.episode_records import EpisodeRecords
    from stepwell.replay.extensions import Notices

__all__ = ["NO_GROWTH", "Contents", "Counts", "Sample", "checked_count", "joined_samples"]

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Reals = npt.NDArray[np.float64]
# of a sampler without weights
NO_TREE = (None, None)
NO_GROWTH: Growth = (-1, 0, 0, 0, -1, 0)


@dataclass(slots=True)
class Counts:
    """Numbers of items since a table was made or reset; each item counts on its own."""

    inserts: int = 0
    samples: int = 0
    deletes: int = 0
    dropped: int = 0
    exhausted: int = 0
    evicted: int = 0
    unique_samples: int = 0
    updates: int = 0
    missed_updates: int = 0

    @property
    def size(self) -> int:
        """Items that are there."""
        return self.inserts - self.deletes


class Sample(NamedTuple):
    """Items drawn from a table, in the order in which they were drawn; one row each, so an item may be there twice.

    Args:
        keys: uint64 [n], for `Table.update_priorities` and `Table.delete`.
        episodes: int64 [n], numbers of the table's history.
        rows: int64 [n], of the first step in its segment.
        lengths: int32 [n], steps that the item covers.
        probabilities: float64 [n], of being drawn, at the time; 1.0 where the sampler has no choice.
        priorities: float64 [n], at the time.
        times_sampled: int32 [n], this time included.
        table_size: int64 [n], items in the table at the time, this one included.
        num_items: items in the table before the first row was drawn.

    Example:
        >>> import tempfile
        >>> from stepwell.replay import Table
        >>> from stepwell.testing import tiny_store
        >>> table = Table(tiny_store(f"{tempfile.mkdtemp()}/a.well", lengths=[3, 5]), seed=0)
        >>> sample = table.sample(4)
        >>> sample.rows.tolist(), sample.probabilities.tolist(), sample.num_items
        ([8, 0, 7, 2], [0.125, 0.125, 0.125, 0.125], 8)
    """

    keys: npt.NDArray[np.uint64]
    episodes: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    probabilities: npt.NDArray[np.float64]
    priorities: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.int32]
    table_size: npt.NDArray[np.int64]
    num_items: int

    def __repr__(self) -> str:
        return f"<Sample  {len(self.keys)} rows of {self.num_items} items>"

    def part(self, rows: slice | npt.NDArray[np.bool_]) -> Sample:
        """Return some of the rows: a slice of them, or those where a mask holds."""
        return Sample._make([*(column[rows] for column in self[:-1]), self.num_items])


def checked_count(count: int) -> int:
    """Return a number of rows to draw."""
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise TableError(f"sample({count!r}): draw a whole number of rows, one or more.")
    return int(count)


def joined_samples(parts: Sequence[Sample]) -> Sample:
    """Return the rows of several samples, one after the other."""
    if len(parts) == 1:
        return parts[0]
    columns = (np.concatenate(column) for column in zip(*(part[:-1] for part in parts), strict=True))
    return Sample._make([*columns, parts[0].num_items])


class Contents:
    """What is in a table.

    Notes:
        Used under its table's lock. Priorities are checked before they come here.
    """

    def __init__(  # noqa: PLR0917
        self,
        max_size: int,
        sampler: Selector,
        remover: Selector,
        max_times_sampled: int,
        keys: tuple[int, ...],
        notices: Notices,
        records: EpisodeRecords,
    ) -> None:
        self.items = Items(max_size, first_generation=keys[2] >> 33)
        self.counts = Counts()
        self.sampler, self.remover = sampler, remover
        sampler.is_taken = remover.is_taken = True
        self.num_draws = self.num_drops = 0
        # that new items get
        self.largest = 1.0
        self._max_size, self._max_times = max_size, max_times_sampled
        self._sampler_key, self._remover_key, _ = keys
        self._draw_key = np.uint64(keys[0])
        self._notices = notices
        self._kept_keys: list[Keys] | None = None
        self._records = records
        # the two selectors that `grow_items` knows, and the set of slots of the sampler
        self.grows_in_one = not notices and type(remover) is Fifo and type(sampler) in {Uniform, Prioritized}
        self._weights = sampler if isinstance(sampler, Prioritized) else None
        self._members: Any = sampler if self._weights is None else self._weights.members
        # whether `draw_batch` does
        self.draws_in_one = self.grows_in_one and not max_times_sampled
        # its machine code, of which the types of this table's arguments are always the same
        self._draw: Callable[..., Any] | None = None
        self._drops_oldest = isinstance(remover, Fifo)
        self._pops = max_times_sampled == 1 and isinstance(sampler, Fifo | Lifo)

    def __len__(self) -> int:
        return len(self.items)

    # in

    def insert(self, found: Ints, priorities: Reals) -> None:
        """Insert items one after the other; each is a candidate for removal itself.

        Args:
            found: int64 [3, n]: episode, row and number of steps.
            priorities: float64 [n].
        """
        num = found.shape[1]
        surplus = len(self.items) + num - self._max_size
        if surplus <= 0:
            self._put(found, priorities)
        elif num <= self._max_size and self._drops_oldest:
            # the oldest go whatever comes, so that all can go before the new ones come
            self._drop(surplus)
            self._put(found, priorities)
        else:
            self._insert_in_parts(found, priorities)

    def _insert_in_parts(self, found: Ints, priorities: Reals) -> None:
        start, num = 0, found.shape[1]
        while start < num:
            room = self._max_size - len(self.items)
            part = self._max_size if self._drops_oldest else max(room, 1)
            stop = min(start + part, num)
            self._drop_for(stop - start - room)
            self._put(np.ascontiguousarray(found[:, start:stop]), priorities[start:stop])
            self.shrink()
            start = stop

    def _drop_for(self, surplus: int) -> None:
        if surplus > 0 and self._drops_oldest:
            self._drop(surplus)

    def grow(self, growth: Growth, shape: Ints) -> int:
        """Evict items and insert others as `evict` and `insert`, in one call where the selectors allow it.

        Args:
            growth: what an episode grew by.
            shape: int64 [6], of a pattern without conditions.
        """
        if not self.grows_in_one:
            return -1
        return self._count(*grow_items(*growth, *self._growing(shape)))

    def _growing(self, shape: Ints) -> tuple[Any, ...]:
        """Return what `stepwell.replay.item_kernels.grow_items` takes beside what an episode grew by."""
        weights = self._weights
        tree, exponent = (NO_TREE, 1.0) if weights is None else (weights.tree, weights.exponent)
        remover: Any = self.remover
        return (
            *self._records.window, shape, self._max_size, self.largest, exponent,
            *self.items.arrays, *remover.arrays, *self._members.arrays, *tree,
        )  # fmt: skip

    def _count(self, evicted: int, dropped: int, inserted: int) -> int:
        """Take note of what `grow_items` did; return how many items it inserted, or -1."""
        if evicted < 0:
            return -1
        counts, weights = self.counts, self._weights
        came = inserted if inserted > 0 else 0
        change = came - evicted - dropped
        self.remover.num += change
        self._members.num += change
        if weights is not None:
            weights.num += change
        counts.inserts += came
        if evicted or dropped:
            counts.deletes += evicted + dropped
            counts.dropped += dropped
            counts.evicted += evicted
            self.num_drops += dropped
        return inserted

    def insert_keyed(self, found: Ints, priorities: Reals) -> Keys:
        """Insert items as `insert`; return their keys, also of those that had to go at once."""
        self._kept_keys = []
        try:
            self.insert(found, priorities)
            return np.concatenate(self._kept_keys)
        finally:
            self._kept_keys = None

    def shrink(self) -> None:
        """Let the remover choose what goes while there are more items than the table keeps."""
        if len(self.items) > self._max_size:
            self._drop(len(self.items) - self._max_size)

    def _put(self, found: Ints, priorities: Reals) -> None:
        slots = self.items.insert_found(found, priorities)  # type: ignore[arg-type]
        self.sampler.insert(slots, priorities)
        self.remover.insert(slots, priorities)
        self.counts.inserts += len(slots)
        if self._notices or self._kept_keys is not None:
            keys = self.items.keys_of(slots)
            self._notices.add("on_insert", keys, priorities)
            if self._kept_keys is not None:
                self._kept_keys.append(keys)

    # out

    def _drop(self, count: int) -> None:
        slots = self.remover.pop(count, self._remover_key, self.num_drops)
        self.num_drops += count
        self.sampler.remove(slots)
        self._forget(slots)
        self.counts.dropped += count

    def remove(self, slots: Ints) -> None:
        """Remove items, int64 [n], each slot once."""
        self.sampler.remove(slots)
        self.remover.remove(slots)
        self._forget(slots)

    def evict(self, evicted: Ints) -> None:
        """Remove the items whose first step is gone.

        Args:
            evicted: int64 [m, 2], of `stepwell.replay.history.Advance`.
        """
        slots = self.items.evict(evicted[:, 0], evicted[:, 1])
        if len(slots):
            self.remove(slots)
            self.counts.evicted += len(slots)

    def _forget(self, slots: Ints) -> None:
        if self._notices:
            self._notices.add("on_remove", self.items.keys_of(slots))
        self.counts.deletes += self.items.remove(slots)

    def clear(self) -> None:
        """Remove all items and begin to count anew; keys that were given out find nothing from now on."""
        self.items.clear()
        self.sampler.clear()
        self.remover.clear()
        self.counts, self.largest = Counts(), 1.0
        if self._notices:
            self._notices.add("on_reset")

    # changed

    def delete_keyed(self, keys: npt.NDArray[np.uint64]) -> int:
        """Remove the items that keys name; return how many there were."""
        slots = np.unique(self.items.slots_of(keys))
        slots = slots[slots >= 0]
        if len(slots):
            self.remove(slots)
        return len(slots)

    def update_keyed(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> int:
        """Set the priorities of the items that keys name; return how many there were, and count the others."""
        slots, num = self.items.find(keys)
        if num < len(slots):
            is_there = slots >= 0
            self.counts.missed_updates += len(slots) - num
            slots, priorities = slots[is_there], priorities[is_there]
        if num:
            self.update(slots, priorities)
            self.largest = max(self.largest, float(priorities.max()))
            self.counts.updates += num
        return num

    def update(self, slots: Ints, priorities: Reals) -> None:
        """Set priorities of items; of a slot that comes twice the last one stays."""
        self.items.update(slots, priorities)
        self.sampler.update(slots, priorities)
        self.remover.update(slots, priorities)
        if self._notices:
            self._notices.add("on_update", self.items.keys_of(slots), priorities)

    # drawn

    def draw(self, count: int, min_size: int) -> tuple[Sample, Ints | None]:
        """Draw items one after the other; fewer than ``count`` when fewer than ``min_size`` items are left before.

        Returns:
            What was drawn, and the places, int64 [6, n]; None where a step is not there.
        """
        if self._max_times:
            return self._draw_exhausting(count, min_size)
        slots, probabilities = self.sampler.select(count, self._sampler_key, self.num_draws)
        self.num_draws += count
        return self._taken(slots, probabilities)

    def draw_batch(self, growth: Growth, shape: Ints, size: int, *reading: Any) -> tuple[bool, bool]:
        """Let items come as `grow`, draw others as `draw` and read them, in one call.

        Args:
            growth: what an episode grew by, `NO_GROWTH` for nothing.
            shape: as of `grow`.
            size: rows of the batch.
            reading: what `stepwell.replay.batch_kernels.draw_batch` takes behind the number of the first draw.

        Returns:
            Whether the items came, and whether any were drawn: neither where that takes more than one call.
        """
        arguments = (*growth, *self._growing(shape), self._members.num, size, self._draw_key, self.num_draws, *reading)
        if self._draw is None:
            self._draw = entry_of(draw_batch, arguments)
        num_first, *grown = self._draw(*arguments)
        if growth is not NO_GROWTH and self._count(*grown) < 0:
            return False, False
        if num_first < 0:
            return True, False
        self.num_draws += size
        self.counts.samples += size
        self.counts.unique_samples += num_first
        return True, True

    def _draw_exhausting(self, count: int, min_size: int) -> tuple[Sample, Ints | None]:
        """Draw until what was selected is used up: at most ``count``, at least one."""
        size = len(self.items)
        if self._pops:
            count = min(count, size - min_size + 1)
            slots = self.sampler.pop(count, self._sampler_key, self.num_draws)
            self.num_draws += count
            sample, places = self._taken(slots, np.ones(count), np.arange(size, size - count, -1))
        else:
            sample, places, slots = self._draw_accepted(count, min_size)
        gone = slots[sample.times_sampled >= self._max_times]
        if len(gone):
            self.remove(gone)
            self.counts.exhausted += len(gone)
        return sample, places

    def _draw_accepted(self, count: int, min_size: int) -> tuple[Sample, Ints | None, Ints]:
        slots, probabilities = self.sampler.select(count, self._sampler_key, self.num_draws)
        sizes = np.empty(count, np.int64)
        num, looked = accept_draws(
            slots, probabilities, self.items.times_sampled, self._max_times, len(self.items), min_size, sizes
        )
        # what was not looked at is drawn again, with the same random numbers
        self.num_draws += looked
        return *self._taken(slots[:num], probabilities[:num], sizes[:num]), slots[:num]

    def _taken(self, slots: Ints, probabilities: Reals, sizes: Ints | None = None) -> tuple[Sample, Ints | None]:
        words, halves, num_first, missing = self.items.take(slots, *self._records.window)
        counts = self.counts
        counts.samples += len(slots)
        counts.unique_samples += num_first
        if sizes is None:
            sizes = words[TAKEN_SIZE]
        sample = Sample(
            words[TAKEN_KEY].view(np.uint64),
            words[EPISODE],
            words[ROW],
            halves[0],
            probabilities,
            words[TAKEN_PRIORITY].view(np.float64),
            halves[1],
            sizes,
            int(sizes[0]),
        )
        if self._notices.extensions:
            self._notices.add("on_sample", sample)
        return sample, None if missing >= 0 else words[:PLACE_ROWS]
