"""The items of a table with their sampler and remover: inserting, drawing, updating and removing, a batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepwell.replay.counts import Counts
from stepwell.replay.growing import Grower
from stepwell.replay.items import Items
from stepwell.replay.samples import Sample
from stepwell.replay.selectors import Fifo, Lifo, Selector

if TYPE_CHECKING:
    from stepwell.replay.extensions import Notices
    from stepwell.replay.tails import Growth

__all__ = ["Contents"]

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Reals = npt.NDArray[np.float64]


class Contents:
    """What is in a table.

    Args:
        max_size: items that it keeps.
        sampler: selects what is drawn.
        remover: selects what goes when there are more.
        max_times_sampled: draws after which an item goes; 0 for any number.
        keys: of the random numbers of the sampler and of the remover, and a number that other tables do not have.
        notices: told of every change.

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
        self._notices = notices
        self._kept_keys: list[Keys] | None = None
        self._grower = None if notices else Grower.of(self.items, sampler, remover, max_size)
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

    def grow(self, growth: Growth, window: tuple[Ints, int], shape: Ints) -> int:
        """Evict items and insert others as `evict` and `insert`, by a short way where there is one.

        Args:
            growth: what an open episode grew by.
            window: the history's records, int64 [E, 8], and the number of the first one's episode.
            shape: int64 [6], of a pattern without conditions.

        Returns:
            How many were inserted; below 0: none, and all is still to be evicted and inserted the other way.
        """
        if self._grower is None:
            return -1
        dropped = self.counts.dropped
        num = self._grower.grow(growth, window, shape, self.largest, self.counts)
        self.num_drops += self.counts.dropped - dropped
        return num

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

    def draw(self, count: int, min_size: int) -> Sample:
        """Draw items one after the other; fewer than ``count`` when fewer than ``min_size`` items are left before.

        Args:
            count: at least 1.
            min_size: at least 1, and not more than there are.
        """
        if self._max_times:
            return self._draw_exhausting(count, min_size)
        slots, probabilities = self.sampler.select(count, self._sampler_key, self.num_draws)
        self.num_draws += count
        sizes = np.empty(count, np.int64)
        sizes.fill(len(self.items))
        return self._taken(slots, probabilities, sizes)

    def _draw_exhausting(self, count: int, min_size: int) -> Sample:
        """Draw until what was selected is used up: at most ``count``, at least one."""
        size = len(self.items)
        if self._pops:
            count = min(count, size - min_size + 1)
            slots = self.sampler.pop(count, self._sampler_key, self.num_draws)
            self.num_draws += count
            sample = self._taken(slots, np.ones(count), np.arange(size, size - count, -1))
        else:
            sample, slots = self._draw_accepted(count, min_size)
        gone = slots[sample.times_sampled >= self._max_times]
        if len(gone):
            self.remove(gone)
            self.counts.exhausted += len(gone)
        return sample

    def _draw_accepted(self, count: int, min_size: int) -> tuple[Sample, Ints]:
        from stepwell.replay.exhausting_kernels import accept_draws

        slots, probabilities = self.sampler.select(count, self._sampler_key, self.num_draws)
        sizes = np.empty(count, np.int64)
        num, looked = accept_draws(
            slots, probabilities, self.items.times_sampled, self._max_times, len(self.items), min_size, sizes
        )
        # what was not looked at is drawn again, with the same random numbers
        self.num_draws += looked
        return self._taken(slots[:num], probabilities[:num], sizes[:num]), slots[:num]

    def _taken(self, slots: Ints, probabilities: Reals, sizes: Ints) -> Sample:
        taken = self.items.take(slots)
        counts = self.counts
        counts.samples += len(slots)
        keys, episodes, rows, lengths, priorities, times_sampled, num_first = taken
        counts.unique_samples += num_first
        sample = Sample(keys, episodes, rows, lengths, probabilities, priorities, times_sampled, sizes, int(sizes[0]))
        if self._notices:
            self._notices.add("on_sample", sample)
        return sample
