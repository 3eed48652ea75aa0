"""Columns of a batch that are computed: importance weights, n-step returns, marks of last steps.

`draw_batch` draws a batch and reads it: what else are six calls of kernels is one, which counts where a network's step
between two batches has thrown their code and data out of the processor's caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.gather import touch_and_gather
from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import load_u8, load_u64, prefetch
from stepwell.kernels.places import EPISODE, HI_STEP, LO, PLACE_ROWS, ROW
from stepwell.replay.item_kernels import TAKEN_SIZE, TAKEN_WORDS, grow_items, take_items, untake_items
from stepwell.replay.link_kernels import draw_members
from stepwell.replay.sum_tree_kernels import draw_weighted

__all__ = [
    "DRAWN_BYTES",
    "HALVES",
    "NOT_DRAWN",
    "PROBABILITY",
    "WEIGHT",
    "draw_batch",
    "episode_clues",
    "importance_weights",
    "mark_changed_rows",
    "mark_last_steps",
    "n_step_returns",
    "one_step_discounts",
]

# rows of 8 bytes a row of a batch that `draw_batch` writes: what was taken of the items, then
PROBABILITY, HALVES, WEIGHT = range(TAKEN_WORDS, TAKEN_WORDS + 3)
DRAWN_BYTES = 8 * HALVES + 8 + 4
NOT_DRAWN = -1
# columns of the records of a history
_RECORD_HI_STEP, _FLAGS = 3, 6


@kernel
def n_step_returns(  # noqa: PLR0917
    rewards: Any,
    is_pad: Any,
    terminated: Any,
    is_missing: Any,
    gamma: Any,
    returns: Any,
    discounts: Any,
    is_terminal: Any,
    is_valid: Any,
    lengths: Any,
) -> None:
    """Sum up each window's rewards and say where and how much to bootstrap.

    A reward counts when its step is there, none before it terminated, and, unless it terminates itself, the observation
    after it is there. When that leaves none, the first one is counted and the window is not valid.

    Args:
        rewards: [B, n] of any number type.
        is_pad: bool [B, n], steps beyond the episode.
        terminated: bool [B, n].
        is_missing: bool [B, n], whether the observation after each step is padding.
        gamma: discount of one step.
        returns: float32 [B], written.
        discounts: float32 [B], written: ``gamma ** length``, 0 where a step terminated.
        is_terminal: bool [B], written: whether one did.
        is_valid: bool [B], written.
        lengths: int64 [B], written: how many rewards were counted.
    """
    for b in range(rewards.shape[0]):
        total, power, length, has_terminated = 0.0, 1.0, 0, False
        for t in range(rewards.shape[1]):
            if is_pad[b, t] or (is_missing[b, t] and not terminated[b, t]):
                break
            total += power * rewards[b, t]
            power *= gamma
            length += 1
            if terminated[b, t]:
                has_terminated = True
                break
        is_valid[b] = length > 0
        if length == 0:
            total, power, length = 1.0 * rewards[b, 0], gamma, 1
        returns[b] = total
        discounts[b] = 0.0 if has_terminated else power
        is_terminal[b] = has_terminated
        lengths[b] = length


@kernel
def one_step_discounts(terminated: Any, is_missing: Any, gamma: Any, discounts: Any, is_valid: Any) -> None:
    """Do what `n_step_returns` does where there is one reward.

    Args:
        terminated: bool [B].
        is_missing: bool [B, 1].
        gamma: discount of one step.
        discounts: float32 [B], written.
        is_valid: bool [B], written.
    """
    for b in range(len(terminated)):
        discounts[b] = 0.0 if terminated[b] else gamma
        is_valid[b] = terminated[b] or not is_missing[b, 0]


@kernel
def importance_weights(probabilities: Any, sizes: Any, betas: Any, normalize: Any, weights: Any) -> None:
    """Compute ``(size * probability) ** -beta`` of each row, over the largest of its batch where ``normalize``.

    Args:
        probabilities: float64 [n], of ``len(betas)`` batches of equal size, one after the other.
        sizes: int64 [n].
        betas: float64, of each batch; 0 or more.
        normalize: whether the largest of a batch is to be 1.
        weights: float32 [n], written; computed in float64.
    """
    size = len(weights) // len(betas)
    for batch in range(len(betas)):
        rows = slice(batch * size, batch * size + size)
        _weigh_batch(probabilities[rows], sizes[rows], betas[batch], normalize, weights[rows])


@kernel
def _weigh_batch(probabilities: Any, sizes: Any, beta: Any, normalize: Any, weights: Any) -> None:
    last, power, largest = -1.0, 1.0, 0.0
    for i in range(len(weights)):
        product = sizes[i] * probabilities[i]
        # rows of a uniform table share it, and a power costs as much as all the rest
        if product != last:
            last = product
            power = product**-beta if product > 0.0 else 0.0
        largest = max(largest, power)
        weights[i] = power
    if not normalize or largest == 0.0:
        return
    last = -1.0
    for i in range(len(weights)):
        product = sizes[i] * probabilities[i]
        if product != last:
            last = product
            power = product**-beta / largest if product > 0.0 else 0.0
        weights[i] = power


_AHEAD = 16


@kernel
def episode_clues(  # noqa: PLR0917
    episodes: Any,
    last_episodes: Any,
    last_rows: Any,
    records: Any,
    base: Any,
    columns: Any,
    otherwise: Any,
    shift: Any,
    clues: Any,
) -> Any:
    """Write of each place its episode's first row, were it whole, and the flags of the piece that it ends in.

    Args:
        episodes: int64 [n].
        last_episodes: int64 [n], the last pieces that windows reach.
        last_rows: int64 [n], the last row that they reach, counted in rows of that piece.
        records: int64 [E, columns], by ``episode - base``.
        base: int64.
        columns: int64 [4], those with the row after the last step, the flags, the first row, and the steps before it.
        otherwise: the flags where the last row is not the last step.
        shift: bits of the flags.
        clues: int64 [n], written.

    Returns:
        -1, or the index of the first row of which an episode is not among the records.
    """
    hi_column, flag_column, start_column, skipped_column = columns
    for i in range(episodes.size):
        line, last = episodes[i] - base, last_episodes[i] - base
        if line < 0 or line >= records.shape[0] or last < 0 or last >= records.shape[0]:
            return i
        flags = records[last, flag_column] if records[last, hi_column] - 1 == last_rows[i] else otherwise
        clues[i] = (records[line, start_column] - records[line, skipped_column]) << shift | flags
    return -1


@kernel
def mark_last_steps(  # noqa: PLR0917
    episodes: Any,
    rows: Any,
    records: Any,
    base: Any,
    hi_column: Any,
    flag_column: Any,
    mask: Any,
    wanted: Any,
    marks: Any,
) -> Any:
    """Mark the rows that are the last step of an episode whose flags, masked, are the wanted ones.

    Args:
        episodes: int64 [n].
        rows: int64 [n, K].
        records: int64 [E, columns], by ``episode - base``.
        base: int64.
        hi_column: the column with the row after the last step.
        flag_column: the column with the flags.
        mask: which flags are looked at.
        wanted: what they must be.
        marks: bool [n, K], written.

    Returns:
        -1, or the index of the first row whose episode is not among the records.
    """
    address, row_bytes, num = records.ctypes.data, 8 * records.shape[1], episodes.size
    for i in range(num):
        if i + _AHEAD < num:
            prefetch(address + row_bytes * (episodes[i + _AHEAD] - base))
        line = episodes[i] - base
        if line < 0 or line >= records.shape[0]:
            return i
        has_ended_so = records[line, flag_column] & mask == wanted
        last = records[line, hi_column] - 1
        for k in range(rows.shape[1]):
            marks[i, k] = has_ended_so and rows[i, k] == last
    return -1


@kernel
def draw_batch(  # noqa: PLR0917
    episode: Any, first_row: Any, stop_row: Any, has_ended: Any, cut: Any, left: Any, records: Any, base: Any,
    shape: Any, max_size: Any, priority: Any, exponent: Any, items: Any, ends: Any, items_base: Any, state: Any,
    order: Any, order_ends: Any, members: Any, member_places: Any, sums: Any, levels: Any, num: Any,
    size: Any, key: Any, first: Any, pieces: Any, reach: Any, endings: Any, targets: Any, discount: Any, beta: Any,
    normalize: Any, memory: Any, start: Any, num_rows: Any, last_used: Any, now: Any, plan: Any, runs: Any,
    offsets: Any, bases: Any,
) -> Any:  # fmt: skip
    """Take in new rows of an episode, then draw items, count them as drawn, read their windows and weigh them.

    Args:
        episode: that grew; as what follows, to ``levels``, of `grow_items`. With ``first_row == stop_row`` none did.
        num: items in the table.
        size: rows of the batch.
        key: uint64, of the sampler's random numbers; ``first``: number of the first draw.
        pieces: int64 [P], ascending, episodes that are pieces of longer ones.
        reach: int64 [2], the earliest and the latest step that a window reaches, counted from its anchor.
        endings: int64 [m, 3]: where in ``memory`` to mark the anchors that are the last step of an episode whose flags,
            masked by the second number, are the third.
        targets: int64 [0], or where in ``memory`` one-step targets are made as of `one_step_discounts`: marks of
            terminated ones, discounts, marks of valid ones, float32 marks of terminated ones or -1, and the masks of
            windows of two steps, bool [size, 2] each.
        discount: float64, of one step.
        beta: float64, exponent of the importance weights; ``normalize``: whether the largest is to be 1.
        memory: uint8, written: the windows, and from ``start`` (a multiple of 8) on int64 [TAKEN_WORDS, size] as of
            `take_items`, float64 [size] probabilities, int32 [2, size] as of `take_items`, float32 [size] weights.
        num_rows: int64 [S]; as what follows, of `touch_and_gather`.

    Returns:
        How many items were drawn for the first time, or `NOT_DRAWN` where that takes more than this, a map or another
        piece of an episode: none was drawn. And what `grow_items` returned; where it had no room, none was drawn.
    """
    num_evicted, num_dropped, num_inserted = 0, 0, 0
    if first_row < stop_row:
        num_evicted, num_dropped, num_inserted = grow_items(
            episode, first_row, stop_row, has_ended, cut, left, records, base, shape, max_size, priority, exponent,
            items, ends, items_base, state, order, order_ends, members, member_places, sums, levels,
        )  # fmt: skip
        if num_inserted < 0:
            return NOT_DRAWN, num_evicted, num_dropped, num_inserted
        num += num_inserted - num_evicted - num_dropped
    if num < 1:
        return NOT_DRAWN, num_evicted, num_dropped, num_inserted
    slots = np.empty(size, np.int64)
    stop = start + 8 * TAKEN_WORDS * size
    words = memory[start:stop].view(np.int64).reshape((TAKEN_WORDS, size))
    probabilities = memory[stop : stop + 8 * size].view(np.float64)
    stop += 8 * size
    halves = memory[stop : stop + 8 * size].view(np.int32).reshape((2, size))
    weights = memory[stop + 8 * size : stop + 12 * size].view(np.float32)
    is_drawn = False
    if levels is not None:
        is_drawn = draw_weighted(sums, levels, key, first, slots, probabilities)
    if not is_drawn:
        draw_members(members, num, key, first, slots, probabilities)
    num_first, missing = take_items(slots, items, records, base, num, words, halves)
    places = words[:PLACE_ROWS]
    if (
        missing >= 0
        or (pieces.size and _leave_pieces(places, pieces, reach))
        or touch_and_gather(places, num_rows, last_used, now, plan, runs, offsets, bases, memory)
    ):
        untake_items(slots, items)
        return NOT_DRAWN, num_evicted, num_dropped, num_inserted
    _weigh_batch(probabilities, words[TAKEN_SIZE], beta, normalize, weights)
    for m in range(endings.shape[0]):
        at, mask, wanted = endings[m, 0], endings[m, 1], endings[m, 2]
        for i in range(size):
            record = records[places[EPISODE, i] - base]
            has_ended_so = record[_FLAGS] & mask == wanted
            memory[at + i] = has_ended_so and places[ROW, i] == record[_RECORD_HI_STEP] - 1
    if targets.size:
        _make_targets(targets, discount, size, memory)
    return num_first, num_evicted, num_dropped, num_inserted


@kernel
def _make_targets(targets: Any, discount: Any, size: Any, memory: Any) -> None:
    ended, valid = targets[0], targets[2]
    discounts = memory[targets[1] : targets[1] + 4 * size].view(np.float32)
    for i in range(size):
        discounts[i] = 0.0 if memory[ended + i] else discount
        is_missing = False
        for m in range(4, targets.size):
            is_missing |= memory[targets[m] + 2 * i + 1] != 0
        memory[valid + i] = memory[ended + i] or not is_missing
    if targets[3] >= 0:
        done = memory[targets[3] : targets[3] + 4 * size].view(np.float32)
        for i in range(size):
            done[i] = memory[ended + i]


@kernel
def _leave_pieces(places: Any, pieces: Any, reach: Any) -> Any:
    """Return whether any window leaves a piece of a longer episode."""
    for i in range(places.shape[1]):
        row = places[ROW, i]
        if row + reach[0] < places[LO, i] or row + reach[1] >= places[HI_STEP, i]:
            found = np.searchsorted(pieces, places[EPISODE, i])
            if found < pieces.size and pieces[found] == places[EPISODE, i]:
                return True
    return False


@kernel
def mark_changed_rows(first: Any, second: Any, num_bytes: Any, marks: Any) -> None:
    """Mark where rows at two addresses differ in any byte.

    Args:
        first: address of the first row; the others follow it.
        second: the same of the rows that they are compared with.
        num_bytes: of a row.
        marks: bool [t, n], which are set, for rows in this order; others stay as they are.
    """
    num_words = num_bytes // 8
    for step in range(marks.shape[0]):
        for lane in range(marks.shape[1]):
            is_changed = False
            for word in range(num_words):
                if load_u64(first + 8 * word) != load_u64(second + 8 * word):
                    is_changed = True
                    break
            for byte in range(8 * num_words, num_bytes):
                is_changed |= load_u8(first + byte) != load_u8(second + byte)
            if is_changed:
                marks[step, lane] = True
            first += num_bytes
            second += num_bytes
