"""The items of a table: a line of eight words each, so that inserting, finding or drawing one touches one cache line.

::

    0 episode     -1: the slot is free             4 touched      inserts and updates of the table before it
    1 row         of its first step                5 length       low half; times sampled: high half
    2 priority    the bits of a float64            6 generation   low half
    3 sequence    inserts of the table before it   7 next, previous item of the episode, by row; next free slot

A key is ``generation << 32 | slot``. A slot's generation grows when its item goes, so what still asks for that item
misses. A slot whose generations are used up is never used again: no key ever comes twice.

Notes:
    Nothing here grows; `insert_items` returns False, having changed nothing, where there is no room. What is inlined is
    so because a call with arrays counts their references, which took half the time of an insert.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import inlined, kernel
from stepwell.kernels.memory import prefetch
from stepwell.kernels.places import EPISODE, HI_FINAL, HI_STEP, LO, PLACE_ROWS, ROW, SEGMENT
from stepwell.replay.link_kernels import (
    END,
    FIRST,
    LAST,
    NEXT,
    PREVIOUS,
    add_members,
    append_slots,
    link_after,
    pop_slots,
    remove_members,
    unlink,
    unlink_slots,
)
from stepwell.replay.pattern_kernels import anchors_of_runs
from stepwell.replay.sum_tree_kernels import clear_weights, set_weights

__all__ = [
    "FREE",
    "ITEM_WORDS",
    "LINKS",
    "MAX_GENERATION",
    "MOST_EVICTED",
    "NO_ROOM",
    "NUM",
    "NUM_INSERTED",
    "NUM_RETIRED",
    "NUM_TOUCHED",
    "NUM_USED",
    "STATE_WORDS",
    "TAKEN_KEY",
    "TAKEN_PRIORITY",
    "TAKEN_SIZE",
    "TAKEN_WORDS",
    "accept_draws",
    "evicted_items",
    "find_items",
    "grow_items",
    "insert_items",
    "insert_run",
    "item_keys",
    "item_places",
    "link_items",
    "list_free",
    "remove_items",
    "take_items",
    "untake_items",
    "update_items",
]

# words of an item
ITEM_WORDS = 8
_EPISODE, _ROW, _PRIORITY, _SEQUENCE, _TOUCHED, _COUNTS, _GENERATION = range(7)
# halves of the last word of an item
LINKS = slice(14, 16)
# words of the state of a table's items
NUM, NUM_USED, FREE, NUM_INSERTED, NUM_TOUCHED, NUM_RETIRED = range(6)
STATE_WORDS = 6
# rows of what is written of items that are drawn: their places, then these
TAKEN_KEY, TAKEN_PRIORITY, TAKEN_SIZE, TAKEN_WORDS = range(PLACE_ROWS, PLACE_ROWS + 4)
MAX_GENERATION = 0xFFFFFFFF
_ONE_TIME = 1 << 32
_LOW_HALF = 0xFFFFFFFF
_U32 = np.uint64(32)
_ITEM_BYTES = 8 * ITEM_WORDS
# lines asked for ahead of their use, the first ones before the loop: 256 of 64 MB cost 2.2 us, where 16 ahead and
# nothing asked for at first cost 4.5
_AHEAD = 64
# of `grow_items`
MOST_EVICTED = 64
NO_ROOM = -1
# columns of the records of a history
START, SKIPPED = 1, 5


@inlined
def _link_by_row(slot: Any, items: Any, links: Any, ends: Any, line: Any) -> None:
    row = items[slot, _ROW]
    first = ends[line, FIRST]
    before = np.int64(END)
    if first >= 0 and items[first, _ROW] <= row:
        before = np.int64(ends[line, LAST])
        while items[before, _ROW] > row:
            before = np.int64(links[before, PREVIOUS])
    link_after(links, ends, line, slot, before)


@inlined
def _put(  # noqa: PLR0917
    episode: Any, row: Any, length: Any, priority: Any, items: Any, links: Any, lists: Any, state: Any
) -> Any:
    ends, base = lists
    slot = state[FREE]
    if slot >= 0:
        state[FREE] = links[slot, NEXT]
    else:
        slot = state[NUM_USED]
        state[NUM_USED] = slot + 1
    items[slot, _EPISODE] = episode
    items[slot, _ROW] = row
    items[slot, _PRIORITY] = priority
    items[slot, _SEQUENCE] = state[NUM_INSERTED]
    items[slot, _TOUCHED] = state[NUM_TOUCHED]
    items[slot, _COUNTS] = length
    state[NUM_INSERTED] += 1
    state[NUM_TOUCHED] += 1
    _link_by_row(slot, items, links, ends, episode - base)
    return slot


@kernel
def insert_items(  # noqa: PLR0917
    episodes: Any, rows: Any, lengths: Any, priorities: Any, items: Any, links: Any, ends: Any, base: Any,
    state: Any, slots: Any,
) -> Any:  # fmt: skip
    """Insert items; return False, having changed nothing, where slots or lists of episodes are missing.

    Args:
        episodes: int64 [n].
        rows: int64 [n].
        lengths: int64 [n].
        priorities: int64 [n], the bits of float64.
        items: int64 [capacity, ITEM_WORDS], 0 where no slot was used yet; written.
        links: int32 [capacity, 2], the last word of ``items``; written.
        ends: int32 [E, 2], first and last item of episode ``base + line``; written.
        base: int64.
        state: int64 [STATE_WORDS], written.
        slots: int64 [n], written.
    """
    num = slots.size
    if state[NUM] + state[NUM_RETIRED] + num > items.shape[0]:
        return False
    for i in range(num):
        if episodes[i] < base or episodes[i] - base >= ends.shape[0]:
            return False
    for i in range(num):
        slots[i] = _put(episodes[i], rows[i], lengths[i], priorities[i], items, links, (ends, base), state)
    state[NUM] += num
    return True


@kernel
def insert_run(  # noqa: PLR0917
    episode: Any, row: Any, every: Any, length: Any, priority: Any, items: Any, links: Any, ends: Any, base: Any,
    state: Any, slots: Any,
) -> Any:  # fmt: skip
    """Insert ``slots.size`` items of one episode, at every ``every``-th row from ``row`` on; else as `insert_items`."""
    num = slots.size
    if state[NUM] + state[NUM_RETIRED] + num > items.shape[0]:
        return False
    if episode < base or episode - base >= ends.shape[0]:
        return False
    for i in range(num):
        slots[i] = _put(episode, row + i * every, length, priority, items, links, (ends, base), state)
    state[NUM] += num
    return True


@kernel
def link_items(  # noqa: PLR0917
    slots: Any, free: Any, items: Any, links: Any, ends: Any, base: Any, state: Any
) -> None:
    """Link items whose words are there already to their episodes, and the slots that are free to each other.

    Args:
        slots: int64 [n], of the items, by episode and row.
        free: int64 [m], slots that are free, the next one to be used first.
        items: int64 [capacity, ITEM_WORDS].
        links: int32 [capacity, 2], written.
        ends: int32 [E, 2], as of `insert_items`; written.
        base: int64.
        state: int64 [STATE_WORDS]; ``NUM_USED`` is read, the number of items and retired slots written.
    """
    for i in range(free.size - 1, -1, -1):
        links[free[i], NEXT] = state[FREE]
        state[FREE] = free[i]
    state[NUM_RETIRED] = state[NUM_USED] - slots.size - free.size
    for i in range(slots.size):
        _link_by_row(slots[i], items, links, ends, items[slots[i], _EPISODE] - base)
    state[NUM] = slots.size


@kernel
def list_free(links: Any, first: Any, slots: Any) -> None:
    """Write the free slots, int64 [m]: the first, and those that follow it in ``links`` (int32 [capacity, 2])."""
    slot = first
    for i in range(slots.size):
        slots[i] = slot
        slot = np.int64(links[slot, NEXT])


@kernel
def remove_items(  # noqa: PLR0917
    slots: Any, items: Any, links: Any, ends: Any, base: Any, state: Any
) -> Any:
    """Remove the items of slots (int64 [n]; free ones are passed over), else as `insert_items`; return how many."""
    removed = np.int64(0)
    for i in range(slots.size):
        slot = slots[i]
        episode = items[slot, _EPISODE]
        if episode < 0:
            continue
        unlink(links, ends, episode - base, slot)
        items[slot, _EPISODE] = -1
        items[slot, _GENERATION] += 1
        if items[slot, _GENERATION] == MAX_GENERATION:
            state[NUM_RETIRED] += 1
        else:
            links[slot, NEXT] = state[FREE]
            state[FREE] = slot
        removed += 1
    state[NUM] -= removed
    return removed


@kernel
def evicted_items(  # noqa: PLR0917
    episodes: Any, first_rows: Any, items: Any, links: Any, ends: Any, base: Any, slots: Any
) -> Any:
    """Write the slots of items that begin before the first row of their episode that is left, by episode and row.

    Args:
        episodes: int64 [m]; without items is fine.
        first_rows: int64 [m].
        items: int64 [capacity, ITEM_WORDS].
        links: int32 [capacity, 2].
        ends: int32 [E, 2].
        base: int64.
        slots: int64, written as far as it goes.

    Returns:
        How many there are, even if ``slots`` is too short.
    """
    num = 0
    for i in range(episodes.size):
        line = episodes[i] - base
        if line < 0 or line >= ends.shape[0]:
            continue
        slot = np.int64(ends[line, FIRST])
        while slot >= 0 and items[slot, _ROW] < first_rows[i]:
            if num < slots.size:
                slots[num] = slot
            num += 1
            slot = np.int64(links[slot, NEXT])
    return num


@kernel
def update_items(slots: Any, priorities: Any, items: Any, state: Any) -> None:
    """Set the priorities of items (int64 [n], the bits of float64); of a slot that comes twice the last one stays."""
    address = items.ctypes.data
    for i in range(min(_AHEAD, slots.size)):
        prefetch(address + _ITEM_BYTES * slots[i])
    for i in range(slots.size):
        if i + _AHEAD < slots.size:
            prefetch(address + _ITEM_BYTES * slots[i + _AHEAD])
        items[slots[i], _PRIORITY] = priorities[i]
        items[slots[i], _TOUCHED] = state[NUM_TOUCHED]
        state[NUM_TOUCHED] += 1


@kernel
def item_keys(slots: Any, items: Any, keys: Any) -> None:
    """Write the key (uint64 [n]) of each slot."""
    for i in range(slots.size):
        keys[i] = np.uint64(items[slots[i], _GENERATION]) << _U32 | np.uint64(slots[i])


@kernel
def find_items(keys: Any, items: Any, num_used: Any, slots: Any) -> Any:
    """Write the slot of each key (uint64 [n]), -1 where its item is gone; return how many are there."""
    address = items.ctypes.data
    num = keys.size
    found = np.int64(0)
    for i in range(min(_AHEAD, num)):
        prefetch(address + _ITEM_BYTES * np.int64(keys[i] & np.uint64(_LOW_HALF)))
    for i in range(num):
        if i + _AHEAD < num:
            prefetch(address + _ITEM_BYTES * np.int64(keys[i + _AHEAD] & np.uint64(_LOW_HALF)))
        slot = np.int64(keys[i] & np.uint64(_LOW_HALF))
        slots[i] = -1
        if slot < num_used and items[slot, _EPISODE] >= 0 and items[slot, _GENERATION] == np.int64(keys[i] >> _U32):
            slots[i] = slot
            found += 1
    return found


@kernel
def item_places(episodes: Any, rows: Any, records: Any, base: Any, places: Any) -> Any:
    """Write the places of items; return -1, or the index of the first item whose step is not there.

    Args:
        episodes: int64 [n].
        rows: int64 [n].
        records: int64 [E, 8] of a `History`, by ``episode - base``: segment, start, lo, hi_step, hi_final first.
        base: int64.
        places: int64 [PLACE_ROWS or more, n] as of `locate`, written.
    """
    address, num_records = records.ctypes.data, records.shape[0]
    record_bytes = 8 * records.shape[1]
    num = episodes.size
    for i in range(min(_AHEAD, num)):
        prefetch(address + record_bytes * (episodes[i] - base))
    for i in range(num):
        if i + _AHEAD < num:
            prefetch(address + record_bytes * (episodes[i + _AHEAD] - base))
        line = episodes[i] - base
        if line < 0 or line >= num_records or rows[i] < records[line, 2]:
            return i
        places[EPISODE, i] = episodes[i]
        places[SEGMENT, i] = records[line, 0]
        places[ROW, i] = rows[i]
        places[LO, i] = records[line, 2]
        places[HI_STEP, i] = records[line, 3]
        places[HI_FINAL, i] = records[line, 4]
    return -1


@kernel
def take_items(  # noqa: PLR0917
    slots: Any, items: Any, records: Any, base: Any, size: Any, words: Any, halves: Any
) -> Any:
    """Count a sample of each slot's item, and write what the sample says of it and where it lies.

    A slot may come several times.

    Args:
        slots: int64 [n].
        items: int64 [capacity, ITEM_WORDS], times sampled written.
        records: int64 [E, 8] of a `History`, as of `item_places`; ``base`` likewise.
        size: items in the table.
        words: int64 [TAKEN_WORDS, n], written: places, key, priority (bits), ``size``.
        halves: int32 [2, n], written: length, times sampled with this one.

    Returns:
        How many were the first of their item, and -1 or the index of an item whose step is not there.
    """
    address = items.ctypes.data
    num = slots.size
    num_first = np.int64(0)
    for i in range(min(_AHEAD, num)):
        prefetch(address + _ITEM_BYTES * slots[i])
    for i in range(num):
        if i + _AHEAD < num:
            prefetch(address + _ITEM_BYTES * slots[i + _AHEAD])
        slot = slots[i]
        counts = items[slot, _COUNTS] + _ONE_TIME
        items[slot, _COUNTS] = counts
        words[EPISODE, i] = items[slot, _EPISODE]
        words[ROW, i] = items[slot, _ROW]
        words[TAKEN_KEY, i] = items[slot, _GENERATION] << 32 | slot
        words[TAKEN_PRIORITY, i] = items[slot, _PRIORITY]
        words[TAKEN_SIZE, i] = size
        halves[0, i] = counts & _LOW_HALF
        halves[1, i] = counts >> 32
        num_first += halves[1, i] == 1
    return num_first, item_places(words[EPISODE], words[ROW], records, base, words)


@inlined
def untake_items(slots: Any, items: Any) -> None:
    """Take back the counts of `take_items`."""
    for i in range(slots.size):
        items[slots[i], _COUNTS] -= _ONE_TIME


@kernel
def grow_items(  # noqa: PLR0917
    episode: Any, first: Any, stop: Any, has_ended: Any, cut: Any, left: Any, records: Any, base: Any, shape: Any,
    max_size: Any, priority: Any, exponent: Any, items: Any, ends: Any, items_base: Any, state: Any,
    order: Any, order_ends: Any, members: Any, places: Any, sums: Any, levels: Any,
) -> Any:  # fmt: skip
    """Let items of an episode go whose first step is gone, then insert those that new rows of another one complete.

    For a table that throws out its oldest item, and draws uniformly or by priority. The kernels that are called one
    after the other here are those that such a table calls; a step at a time, calling them from Python costs more than
    their work.

    Args:
        episode: that grew.
        first: its first new row; ``stop``: the row after its last new step; ``has_ended``: 1 where that is its last.
        cut: an episode of which rows are gone, or -1; ``left``: the first row of it that is there.
        records: int64 [E, 8] of a history, by episode - ``base``.
        base: int64.
        shape: int64 [6]: length, every, ahead, behind, whether ends are kept, whether items lie at ends only.
        max_size: items that the table keeps.
        priority: float64, of new items; ``exponent``: float64, of the sampler.
        items: int64 [capacity, ITEM_WORDS], written; as ``ends``, ``items_base`` and ``state`` those of
            `stepwell.replay.item_kernels.insert_items`.
        order: int32 [capacity, 2], links of the remover, the oldest item first; written, as its ``order_ends``.
        members: int32 [capacity], set of the sampler; written, as its ``places``.
        sums: float64 [lines, 8], weights of the sampler; written. ``levels``: int64; both None where it has no weights.

    Returns:
        Numbers of items evicted, dropped and inserted. Of these, `NO_ROOM` where the arrays are too short: none was
        inserted. All three are `NO_ROOM` where more than `MOST_EVICTED` would go, or items may begin in an earlier
        piece of an episode that a ring cut: nothing was changed.
    """
    record = records[episode - base]
    if record[SKIPPED] > 0 and first - record[START] < shape[0] - 1 + shape[2] + shape[3]:
        # items begin in the piece of the episode before this one
        return NO_ROOM, NO_ROOM, NO_ROOM
    links = items.view(np.int32)[:, LINKS]
    runs = np.empty((1, 4), np.int64)
    runs[0] = episode, first, stop, has_ended
    found = anchors_of_runs(
        runs, records, base, shape[0], shape[1], shape[2], shape[3], shape[4] != 0, shape[5] != 0
    )  # fmt: skip
    num = found.shape[1]
    gone = np.empty(MOST_EVICTED, np.int64)
    num_evicted = 0
    if cut >= 0:
        trimmed = np.empty((2, 1), np.int64)
        trimmed[0], trimmed[1] = cut, left
        num_evicted = evicted_items(trimmed[0], trimmed[1], items, links, ends, items_base, gone)
    num_dropped = max(0, state[NUM] - num_evicted + num - max_size) if num else 0
    if num_evicted + num_dropped > MOST_EVICTED or num > max_size:
        return NO_ROOM, NO_ROOM, NO_ROOM
    if num_evicted + num_dropped:
        unlink_slots(gone[:num_evicted], order, order_ends)
        pop_slots(order, order_ends, FIRST, gone[num_evicted : num_evicted + num_dropped])
        gone = gone[: num_evicted + num_dropped]
        remove_members(gone, members, places, state[NUM])
        if levels is not None:
            clear_weights(gone, sums, levels)
        remove_items(gone, items, links, ends, items_base, state)
    num_free = state[NUM_USED] - state[NUM] - state[NUM_RETIRED]
    need = state[NUM_USED] + max(0, num - num_free)
    if need > order.shape[0] or need > places.size:
        return num_evicted, num_dropped, NO_ROOM
    if levels is not None and need > 8 * levels[1]:
        return num_evicted, num_dropped, NO_ROOM
    slots = np.empty(num, np.int64)
    priorities = np.full(num, priority)
    if not insert_items(
        found[0], found[1], found[2], priorities.view(np.int64), items, links, ends, items_base, state, slots
    ):
        return num_evicted, num_dropped, NO_ROOM
    if num:
        append_slots(slots, order, order_ends)
        add_members(slots, members, places, state[NUM] - num)
        if levels is not None:
            set_weights(slots, priorities, exponent, sums, levels)
    return num_evicted, num_dropped, num


@kernel
def accept_draws(  # noqa: PLR0917
    slots: Any, probabilities: Any, times_sampled: Any, max_times: Any, size: Any, min_size: Any, sizes: Any
) -> Any:
    """Keep the draws that hit items which are still there, at the front; return (how many, draws looked at).

    For items that go when they were drawn often enough. Draws come with replacement from what was there before the
    batch. One that hits an item which the batch has used up is passed over: what is left is distributed as draws from
    the items that are left (rejection), and its probability is taken over their share of the whole. When that share
    falls below a half the rest is left for another selection.

    Args:
        slots: int64 [n], drawn; written.
        probabilities: float64 [n], of each draw, over all items; written: over the items that were left.
        times_sampled: int32 [capacity], by slot, before these draws; as it was afterwards.
        max_times: draws after which an item is gone.
        size: items before these draws.
        min_size: with fewer items left than that, nothing more is drawn.
        sizes: int64 [n], written: items before each draw.
    """
    share = 1.0
    num = 0
    looked = 0
    while looked < slots.size and size >= min_size and share >= 0.5:
        slot, probability = slots[looked], probabilities[looked]
        looked += 1
        if times_sampled[slot] >= max_times:
            continue
        slots[num] = slot
        probabilities[num] = probability / share
        sizes[num] = size
        num += 1
        times_sampled[slot] += 1
        if times_sampled[slot] == max_times:
            size -= 1
            share -= probability
    for i in range(num):
        times_sampled[slots[i]] -= 1
    return num, looked
