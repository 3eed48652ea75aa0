"""The items of a table: which step each begins at, how long it is, its priority, and how often it was sampled.

An item lies in a slot, which is its number for as long as it lives; its key names it for ever. The line of eight words
that an item takes is drawn in `stepwell.replay.item_kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.replay.item_kernels import (
    FREE,
    ITEM_WORDS,
    LINKS,
    MAX_GENERATION,
    NUM,
    NUM_INSERTED,
    NUM_RETIRED,
    NUM_TOUCHED,
    NUM_USED,
    STATE_WORDS,
    TAKEN_WORDS,
    evicted_items,
    find_items,
    insert_items,
    insert_run,
    item_keys,
    link_items,
    list_free,
    remove_items,
    take_items,
    update_items,
)
from stepwell.replay.link_kernels import END, aligned_empty

__all__ = ["Items"]

Integers = npt.NDArray[np.int64]
Links = npt.NDArray[np.int32]
_FIRST_CAPACITY = 1024
_FIRST_EPISODES = 64
_FEW_EVICTED = 64


class Items:
    """Items by slot, in memory that grows by doubling.

    Attributes:
        episode: int64 [capacity], -1 where the slot is free.
        row: int64 [capacity], row of the first step.
        length: int32 [capacity], steps.
        priority: float64 [capacity].
        times_sampled: int32 [capacity].
        sequence: int64 [capacity], inserts before this item.
        touched: int64 [capacity], inserts and updates before this item's last one.
        generation: uint32 [capacity]; a key is ``generation << 32 | slot``.
        arrays: lines, ends, base and state, as `stepwell.replay.item_kernels.grow_items` takes them.

    Example:
        >>> items = Items(max_size=10)
        >>> slots = items.insert_run(episode=0, row=5, count=3)
        >>> keys = items.keys_of(slots)
        >>> items.remove(items.evict(0, first_row=7))
        2
        >>> items.slots_of(keys)
        array([-1, -1,  2])

    Notes:
        One thread at a time. The attributes are views of lines of 64 bytes; an insert that grows them replaces them,
        so ask for them again after one. Items of an episode are kept in the order of their rows: an item that begins
        before others of its episode costs a step for each of them.
    """

    def __init__(self, max_size: int = 1_000_000, *, first_generation: int = 0) -> None:
        self._first_generation = first_generation
        self._limit = max_size + 1
        self._state = np.zeros(STATE_WORDS, np.int64)
        self._state[FREE] = -1
        self._base = 0
        self._ends = np.full((_FIRST_EPISODES, 2), END, np.int32)
        self._set_lines(self._empty_lines(min(_FIRST_CAPACITY, self._limit)))

    def __len__(self) -> int:
        return int(self._state[NUM])

    def __repr__(self) -> str:
        return f"<Items {len(self):,} of {self.capacity:,}>"

    @property
    def capacity(self) -> int:
        """Slots that there is memory for."""
        return len(self._lines)

    @property
    def num_inserted(self) -> int:
        """Items inserted so far, gone ones too."""
        return int(self._state[NUM_INSERTED])

    @property
    def slots(self) -> Integers:
        """int64 [n], the slots of all items, oldest first; costs a sort."""
        slots = np.flatnonzero(self.episode[: self._state[NUM_USED]] >= 0)
        return np.asarray(slots[np.argsort(self.sequence[slots])], np.int64)

    @property
    def generations(self) -> npt.NDArray[np.uint32]:
        """uint32 [n], of the slots that were ever used, free ones too."""
        return self.generation[: self._state[NUM_USED]]

    @property
    def free_slots(self) -> Integers:
        """int64 [n], slots that were used and will be again, the next one first."""
        slots = np.empty(self._state[NUM_USED] - self._state[NUM] - self._state[NUM_RETIRED], np.int64)
        list_free(self._links, self._state[FREE], slots)
        return slots

    @property
    def num_touched(self) -> int:
        """Inserts and updates so far."""
        return int(self._state[NUM_TOUCHED])

    def restore(
        self,
        generations: npt.NDArray[np.uint32],
        slots: Integers,
        free: Integers,
        columns: Mapping[str, npt.NDArray[Any]],
        *,
        num_inserted: int,
        num_touched: int,
    ) -> None:
        """Put items where they were: for one that is made from a checkpoint, and has no items yet.

        Args:
            generations: uint32 [used], as `generations` was.
            slots: int64 [n].
            free: int64 [m], as `free_slots` was, and the slots of items that went since.
            columns: arrays [n] by name: every attribute of an item but its generation.
            num_inserted: as `num_inserted` was; ``num_touched`` likewise.
        """
        used = len(generations)
        self._set_lines(self._empty_lines(max(used, self.capacity)))
        self.generation[:used] = generations
        for name, values in columns.items():
            getattr(self, name)[slots] = values
        self._state[NUM_USED], self._state[NUM_INSERTED], self._state[NUM_TOUCHED] = used, num_inserted, num_touched
        if len(slots):
            self._cover(int(columns["episode"].min()), int(columns["episode"].max()))
        order = np.lexsort((columns["row"], columns["episode"]))
        free = free[generations[free] < MAX_GENERATION]
        link_items(slots[order], free, self._lines, self._links, self._ends, self._base, self._state)

    def insert(
        self, episodes: Integers, rows: Integers, lengths: npt.ArrayLike, priorities: npt.NDArray[np.float64]
    ) -> Integers:
        """Insert items, the first one as the oldest.

        Args:
            episodes: int64 [n], from 0 on.
            rows: int64 [n].
            lengths: int [n], steps.
            priorities: float64 [n], already checked.

        Returns:
            Slots, int64 [n].
        """
        episodes, rows = np.ascontiguousarray(episodes, np.int64), np.ascontiguousarray(rows, np.int64)
        steps = np.ascontiguousarray(lengths, np.int64)
        return self.insert_found((episodes, rows, steps), np.ascontiguousarray(priorities, np.float64))

    def insert_found(self, found: Sequence[Integers], priorities: npt.NDArray[np.float64]) -> Integers:
        """Insert items as `insert`, without looking at the arguments.

        Args:
            found: episodes, rows and lengths, contiguous int64 [n] each.
            priorities: contiguous float64 [n].
        """
        episodes, rows, steps = found
        bits = priorities.view(np.int64)
        slots = np.empty(len(bits), np.int64)
        while not insert_items(
            episodes, rows, steps, bits, self._lines, self._links, self._ends, self._base, self._state, slots
        ):
            self._make_room(len(slots), int(episodes.min()), int(episodes.max()))
        return slots

    def insert_run(
        self, episode: int, row: int, count: int, *, every: int = 1, length: int = 1, priority: float = 1.0
    ) -> Integers:
        """Insert items of one episode that differ only in their rows.

        Returns:
            Slots, int64 [count].
        """
        slots = np.empty(count, np.int64)
        bits = int(np.float64(priority).view(np.int64))
        while not insert_run(
            episode, row, every, length, bits, self._lines, self._links, self._ends, self._base, self._state, slots
        ):
            self._make_room(count, episode, episode)
        return slots

    def remove(self, slots: Integers) -> int:
        """Remove items by slot, int64 [n]; return how many there were. Their keys find nothing from now on."""
        return int(remove_items(slots, self._lines, self._links, self._ends, self._base, self._state))

    def update(self, slots: Integers, priorities: npt.NDArray[np.float64]) -> None:
        """Set priorities (float64 [n], already checked) of items; of a slot that comes twice the last one stays."""
        update_items(slots, priorities.view(np.int64), self._lines, self._state)

    def keys_of(self, slots: Integers) -> npt.NDArray[np.uint64]:
        """Return the keys, uint64 [n], of the items in slots."""
        keys = np.empty(len(slots), np.uint64)
        item_keys(slots, self._lines, keys)
        return keys

    def slots_of(self, keys: npt.NDArray[np.uint64]) -> Integers:
        """Return the slots, int64 [n], of keys; -1 where an item is gone, whoever has its slot now."""
        return self.find(keys)[0]

    def find(self, keys: npt.NDArray[np.uint64]) -> tuple[Integers, int]:
        """Return slots as `slots_of`, and how many of the items are there."""
        slots = np.empty(len(keys), np.int64)
        return slots, int(find_items(keys, self._lines, self._state[NUM_USED], slots))

    def evict(self, episode: int | Integers, first_row: int | Integers) -> Integers:
        """Return the slots of items whose first step is gone; they are still to be removed.

        Args:
            episode: an episode, or int64 [m].
            first_row: its first row that is still there, or int64 [m].

        Returns:
            Slots, int64 [n], by episode and row; costs what it finds.
        """
        episodes = np.array(episode, np.int64, ndmin=1)
        first_rows = np.array(first_row, np.int64, ndmin=1)
        slots, num = np.empty(0, np.int64), _FEW_EVICTED
        while num > len(slots):
            slots = np.empty(num, np.int64)
            num = evicted_items(episodes, first_rows, self._lines, self._links, self._ends, self._base, slots)
        return slots[:num]

    def take(self, slots: Integers, records: Integers, base: int) -> tuple[Integers, Links, int, int]:
        """Count a sample of each slot's item; a slot may come several times.

        Args:
            slots: int64 [n].
            records: int64 [E, 8] of a history; ``base``: the number of the first one's episode.

        Returns:
            int64 [TAKEN_WORDS, n] and int32 [2, n] as of `stepwell.replay.item_kernels.take_items`; how many were never
            drawn before; and -1, or the index of an item whose step is not there.
        """
        words = np.empty((TAKEN_WORDS, len(slots)), np.int64)
        halves = np.empty((2, len(slots)), np.int32)
        num_first, missing = take_items(slots, self._lines, records, base, self._state[NUM], words, halves)
        return words, halves, num_first, missing

    def clear(self) -> None:
        """Remove all items; their keys find nothing from now on."""
        self.remove(self.slots)

    def _make_room(self, num_new: int, lowest: int, highest: int) -> None:
        need = len(self) + int(self._state[NUM_RETIRED]) + num_new
        if need > self.capacity:
            lines = self._empty_lines(max(need, min(2 * self.capacity, self._limit)))
            lines[: self.capacity] = self._lines
            self._set_lines(lines)
        self._cover(lowest, highest)

    def _cover(self, lowest: int, highest: int) -> None:
        # episodes are numbered as they come and go about as they came, so a moving window of them is nearly full
        if self._base <= lowest and highest < self._base + len(self._ends):
            return
        alive = np.flatnonzero(self._ends[:, 0] != END)
        if len(alive):
            lowest = min(lowest, self._base + int(alive[0]))
            highest = max(highest, self._base + int(alive[-1]))
        num_lines = max(_FIRST_EPISODES, 1 << (2 * (highest - lowest) + 1).bit_length())
        ends = np.full((num_lines, 2), END, np.int32)
        ends[alive + self._base - lowest] = self._ends[alive]
        self._ends, self._base = ends, lowest
        self.arrays = self._lines, ends, lowest, self._state

    def _empty_lines(self, capacity: int) -> Integers:
        lines = aligned_empty((capacity, ITEM_WORDS), np.int64)
        lines[...] = 0
        lines[:, 0] = -1
        lines.view(np.uint32)[:, 12] = self._first_generation
        return lines

    def _set_lines(self, lines: Integers) -> None:
        halves, reals = lines.view(np.int32), lines.view(np.float64)
        self._lines, self._links = lines, halves[:, LINKS]
        self.episode, self.row, self.priority = lines[:, 0], lines[:, 1], reals[:, 2]
        self.sequence, self.touched = lines[:, 3], lines[:, 4]
        self.length, self.times_sampled = halves[:, 10], halves[:, 11]
        self.generation = halves.view(np.uint32)[:, 12]
        self.arrays = lines, self._ends, self._base, self._state
