"""A few steps that an open episode grew by, taken into a table in one call: items come, and others go.

For a table that throws out its oldest item, and draws uniformly or by priority. The kernels that are called one after
the other here are those that such a table calls; a step at a time, calling them from Python costs more than their work.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel
from stepwell.replay.anchor_kernels import anchors_of_runs
from stepwell.replay.item_kernels import LINKS, NUM, NUM_RETIRED, NUM_USED, evicted_items, insert_items, remove_items
from stepwell.replay.link_kernels import FIRST, add_members, append_slots, pop_slots, remove_members, unlink_slots
from stepwell.replay.sum_tree_kernels import clear_weights, set_weights

__all__ = ["MOST_EVICTED", "NO_ROOM", "grow_items"]

MOST_EVICTED = 64
NO_ROOM = -1
# columns of the records of a history
START, SKIPPED = 1, 5


@kernel
def grow_items(  # noqa: PLR0917
    episode: Any, first: Any, stop: Any, cut: Any, left: Any, records: Any, base: Any, shape: Any, max_size: Any,
    priority: Any, exponent: Any, items: Any, ends: Any, items_base: Any, state: Any,
    order: Any, order_ends: Any, members: Any, places: Any, sums: Any, levels: Any,
) -> Any:  # fmt: skip
    """Let items of an episode go whose first step is gone, then insert those that new rows of another one complete.

    Args:
        episode: that grew; it has not ended.
        first: its first new row; ``stop``: the row after its last.
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
    runs[0] = episode, first, stop, 0
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
