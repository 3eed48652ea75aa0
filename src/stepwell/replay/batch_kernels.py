"""Columns of a batch that are computed: importance weights, n-step returns, marks of last steps."""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import prefetch

__all__ = ["importance_weights", "mark_last_steps", "n_step_returns", "one_step_discounts"]


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
