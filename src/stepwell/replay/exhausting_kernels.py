"""Draws from items that go when they were drawn often enough, a batch of draws at a time.

Draws come with replacement from what was there before the batch. One that hits an item which the batch has used up is
passed over: what is left is distributed as draws from the items that are left (rejection), and its probability is taken
over their share of the whole. When that share falls below a half the rest is left for another selection.
"""

from __future__ import annotations

from typing import Any

from stepwell.kernels.kernel import kernel

__all__ = ["accept_draws"]


@kernel
def accept_draws(  # noqa: PLR0917
    slots: Any, probabilities: Any, times_sampled: Any, max_times: Any, size: Any, min_size: Any, sizes: Any
) -> Any:
    """Keep the draws that hit items which are still there, at the front; return (how many, draws looked at).

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
