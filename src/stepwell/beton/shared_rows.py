"""Rows in such an order that the windows of many samples are runs of them: what an episode's samples share.

A window of consecutive steps is a run of the episode's rows already; what would lie outside of the episode is repeated
before and after it, so that padded windows are runs, too. Every second or third step: the rows are dealt out into as
many chains, and windows are runs of a chain::

    episode             0 1 2 3 4 5                 anchors 0 .. 5
    [-1, 0, 1], edge    0|0 1 2 3 4 5|5             the window of anchor 0 is the run at 0, that of anchor 1 at 1, ...
    [0, 2], edge        0 2 4|5    1 3 5|5          anchors 0, 2, 4 in the first chain, 1, 3, 5 in the second
    [0, 3, 4], edge     0 3 4  1 4 5  2 5 5 ...     no equal steps: each window by itself

Several fields with windows of the same steps, but of other places, share the rows: (observation, next observation).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["SharedRows", "stride_of"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedRows:
    """The rows of one feature that the windows of consecutive anchors need, in order.

    Args:
        offsets: of the earliest window, steps from the anchor.
        spread: how much later than it the latest window lies.

    Example:
        >>> shared = SharedRows((-1, 0, 1))
        >>> shared.rows(first=10, number=3), shared.starts(3)
        (array([ 9, 10, 11, 12, 13]), array([0, 1, 2]))
        >>> shared = SharedRows((0, 2))
        >>> shared.rows(first=10, number=3), shared.starts(3)
        (array([10, 12, 14, 11, 13]), array([0, 3, 1]))
    """

    offsets: tuple[int, ...]
    spread: int = 0

    @property
    def length(self) -> int:
        """Rows of a window."""
        return len(self.offsets)

    def num_rows(self, number: int) -> int:
        """Return how many rows the windows of some consecutive anchors need."""
        anchors = number + self.spread
        return anchors + self._num_chains(anchors) * (self.length - 1)

    def rows(self, first: int, number: int) -> Int64s:
        """Return these rows; some may lie outside of the episode.

        Args:
            first: row of the first anchor.
            number: of anchors.
        """
        anchors = number + self.spread
        stride = stride_of(self.offsets)
        if stride is None:
            windows: Int64s = first + np.arange(anchors)[:, None] + np.array(self.offsets)
            return windows.reshape(-1)
        begin = first + self.offsets[0] + (0 if stride > 0 else anchors - 1)
        chains = range(self._num_chains(anchors))
        return np.concatenate(
            [
                begin
                + np.sign(stride) * chain
                + stride * np.arange(self._chain_anchors(chain, anchors) + self.length - 1)
                for chain in chains
            ]
        ).astype(np.int64)

    def starts(self, number: int, later: int = 0) -> Int64s:
        """Return at which of the rows each anchor's window begins, int64 [number].

        Args:
            number: of anchors.
            later: how much later the window lies than the earliest, 0 to ``spread``.
        """
        anchors = number + self.spread
        stride = stride_of(self.offsets)
        wanted = np.arange(number) + later
        if stride is None:
            return wanted * self.length
        # anchors are dealt out from the end where windows run backwards
        dealt = wanted if stride > 0 else anchors - 1 - wanted
        chains = np.array([self._chain_anchors(chain, anchors) for chain in range(self._num_chains(anchors))], np.int64)
        firsts = np.cumsum(chains + self.length - 1) - (chains + self.length - 1)
        found: Int64s = firsts[dealt % len(chains)] + dealt // len(chains)
        return found

    def _num_chains(self, anchors: int) -> int:
        stride = stride_of(self.offsets)
        return anchors if stride is None else min(abs(stride), anchors)

    def _chain_anchors(self, chain: int, anchors: int) -> int:
        chains = self._num_chains(anchors)
        return -(-(anchors - chain) // chains)


def stride_of(offsets: Sequence[int]) -> int | None:
    """Return the step between offsets where it is the same everywhere, and None elsewhere.

    Example:
        >>> stride_of([-2, 0, 2]), stride_of([1, 0]), stride_of([5]), stride_of([0, 0]), stride_of([0, 1, 3])
        (2, -1, 1, None, None)
    """
    return _stride(tuple(offsets))


# asked for every piece, of the few windows that a file has
@lru_cache(maxsize=256)
def _stride(offsets: tuple[int, ...]) -> int | None:
    if len(offsets) == 1:
        return 1
    steps = {after - before for before, after in pairwise(offsets)}
    return steps.pop() if len(steps) == 1 and 0 not in steps else None
