"""N-step returns of windows: rewards up to the end of the window or of the episode, and what to bootstrap with."""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import kernel

__all__ = ["n_step_returns", "one_step_discounts"]


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
