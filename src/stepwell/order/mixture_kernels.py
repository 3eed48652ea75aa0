"""Deals the slots of a mixture of parts: which part each slot goes to, and the how-manieth of that part it is.

A **span** of slots has a whole quota for each part. It is cut into **blocks** of `BLOCK` slots; each block's quotas
follow from splitting off one part after the other with whole-number rounding, which cannot go negative and meets the
span's quotas exactly; inside a block the parts are shuffled. Any block can be dealt without the ones before it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.kernel import kernel
from stepwell.kernels.permutation import mix64, shuffle_labels

__all__ = ["BLOCK", "deal_blocks"]

BLOCK = 64
"""Slots in a block; any batch of at least as many is close to the shares."""


@kernel
def _deal_to(slot: int, quotas: Any, phases: Any, out: Any) -> None:
    # out[p] = slots of part p among the first `slot`: of what earlier parts left over, every (rest / quota)-th one
    rest = np.int64(0)
    for p in range(quotas.size):
        rest += quotas[p]
    left = np.int64(slot)
    for p in range(quotas.size):
        out[p] = 0
        if quotas[p] > 0:
            out[p] = (left * quotas[p] + phases[p]) // rest
        left -= out[p]
        rest -= quotas[p]


@kernel
def _deal_into(first: int, quotas: Any, phases: Any, key: Any, out: Any) -> None:
    parts, ranks = out
    begin = np.empty(quotas.size, np.int64)
    end = np.empty(quotas.size, np.int64)
    _deal_to(first * BLOCK, quotas, phases, begin)
    for b in range(parts.size // BLOCK):
        _deal_to((first + b + 1) * BLOCK, quotas, phases, end)
        block = parts[b * BLOCK : (b + 1) * BLOCK]
        slot = 0
        for p in range(quotas.size):
            for _ in range(end[p] - begin[p]):
                block[slot] = p
                slot += 1
        shuffle_labels(block, mix64(key[0] + np.uint64(first + b)) ^ key[1])
        for i in range(BLOCK):
            ranks[b * BLOCK + i] = begin[block[i]]
            begin[block[i]] += 1


def deal_blocks(
    first: int,
    count: int,
    quotas: npt.NDArray[np.int64],
    phases: npt.NDArray[np.int64],
    key: npt.NDArray[np.uint64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the part of each slot in some blocks of a span, and its rank among all slots of that part in the span.

    Args:
        first: first block within the span.
        count: number of blocks; ``(first + count) * BLOCK`` is at most the span's length.
        quotas: int64 [P], slots of each part in the span; they sum to its length, a multiple of `BLOCK` up to 2**31.
        phases: int64 [P], ``0 <= phases[p] < quotas[p] + quotas[p + 1] + ...``: how early a part has its turns.
        key: uint64 [2], for the shuffle inside the blocks.

    Returns:
        parts: int64 [count * BLOCK]; and ranks: int64 [count * BLOCK], one higher at each next slot of a part.
    """
    out = np.empty((2, count * BLOCK), np.int64)
    _deal_into(first, quotas, phases, key, out)
    return out[0], out[1]
