"""A quantile sketch: some 256 weighted points that stand for any number of values, and can be merged.

::

    sorted values   1 1 1 1 1 2 3 3 4 5 6 8 9 9 9 9 9 9 12
    points          1 ×5 exact ·· 3 ×3 ·· 5 ×3 ·· 9 ×6 exact · 12 ×1 exact

A point is *exact* when all of its weight has that very value, otherwise it is the median of a cell of neighbours.
Cells are small at the tails and widest in the middle. Up to 256 distinct values are all kept, so uint8 and bool
data, constants and short columns lose nothing, however often they are merged.

Error: a quantile at fraction q of n values has a rank within ``RANK_ERROR * n * (1 + c) / 2`` of q * (n - 1), where c
is the largest number of compressions that a value went through: 1 in a sketch of one sorted column, one more for each
merge that had to compress. So 0.62 % of n after one, 0.92 % after two; near the tails of one column, where cells have
sqrt(q * (1 - q)) * 2 of the width in the middle, 0.12 % at q = 0.01. A compression moves at most half a cell's weight
over any threshold, and reading interpolates over at most half a cell.

Cells of equal width in asin(2q - 1) are from T. Dunning and O. Ertl, Computing extremely accurate quantiles using
t-digests, 2019 (scale function k1). Their centroids are replaced by medians, which bounds the error of merged sketches
too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_EXACT_VALUES", "RANK_ERROR", "Sketch", "merge_sketches", "sketch_counts", "sketch_sorted"]

MAX_EXACT_VALUES = 256
NUM_CELLS = 256
# the widest cell, as a fraction of all values
RANK_ERROR = float(np.pi / (2 * NUM_CELLS))

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """A sorted summary of finite numbers, from which any quantile can be read."""

    values: Floats
    weights: Ints
    is_exact: npt.NDArray[np.bool_]

    @property
    def count(self) -> int:
        """How many numbers it stands for."""
        return int(self.weights.sum())

    def quantile(self, fractions: npt.ArrayLike) -> Floats:
        """Return the values at fractions of the sorted numbers, as ``np.quantile`` with linear interpolation does."""
        wanted = np.atleast_1d(np.asarray(fractions, np.float64))
        if len(self.values) == 0:
            return np.full(wanted.shape, np.nan)
        ranks = wanted * (self.count - 1)
        positions, values = self._knots()
        left = np.clip(np.searchsorted(positions, ranks, "right") - 1, 0, len(positions) - 2)
        gap = positions[left + 1] - positions[left]
        part = np.divide(ranks - positions[left], gap, out=np.zeros_like(ranks), where=gap > 0)
        low, high = values[left], values[left + 1]
        # a weighted sum, since high - low may overflow; clipped, since its rounding may leave [low, high]
        found: Floats = np.clip(low * (1 - part) + high * part, low, high)
        return found

    def _knots(self) -> tuple[Floats, Floats]:
        """Return ranks and values to interpolate between: both ends of an exact point, the middle of a cell."""
        first = np.cumsum(self.weights) - self.weights
        middle = first + (self.weights - 1) / 2
        begins = np.where(self.is_exact, first, middle)
        ends = np.where(self.is_exact, first + self.weights - 1, middle)
        return np.stack([begins, ends], 1).ravel(), np.repeat(self.values, 2)


def sketch_sorted(values: npt.NDArray[Any]) -> Sketch:
    """Return the sketch of a sorted column."""
    num_values = len(values)
    changes = np.flatnonzero(values[1:] != values[:-1]) + 1
    if len(changes) < MAX_EXACT_VALUES:
        starts = np.concatenate(([0], changes))[: min(num_values, len(changes) + 1)]
        weights = np.diff(starts, append=num_values)
        return _sketch(values[starts], weights, np.ones(len(starts), np.bool_))
    edges = _cell_edges(num_values)
    first, last = values[edges[:-1]], values[edges[1:] - 1]
    medians = values[(edges[:-1] + edges[1:] - 1) // 2]
    return _sketch(*_join_equal(medians.astype(np.float64), np.diff(edges), first == last))


def sketch_counts(counts: npt.ArrayLike, first: int = 0) -> Sketch:
    """Return the sketch of integers that were counted, e.g. pixels."""
    all_counts = np.asarray(counts, np.int64)
    present = np.flatnonzero(all_counts)
    return _sketch(present + first, all_counts[present], np.ones(len(present), np.bool_))


def merge_sketches(sketches: Sequence[Sketch]) -> Sketch:
    """Return the sketch of all numbers of several; compressed at most once, however many they are."""
    values = np.concatenate([sketch.values for sketch in sketches])
    weights = np.concatenate([sketch.weights for sketch in sketches])
    is_exact = np.concatenate([sketch.is_exact for sketch in sketches])
    order = np.lexsort((~is_exact, values))
    points = _join_equal(values[order], weights[order], is_exact[order])
    return _sketch(*(points if len(points[0]) <= MAX_EXACT_VALUES else _compress(*points)))


def _sketch(values: npt.NDArray[Any], weights: npt.NDArray[Any], is_exact: npt.NDArray[np.bool_]) -> Sketch:
    return Sketch(values.astype(np.float64), weights.astype(np.int64), is_exact)


def _cell_edges(num_values: int) -> Ints:
    """Return the ranks that cut a sorted column into cells; the first and the last value are cells of their own."""
    fractions = (np.sin(np.pi * (np.arange(NUM_CELLS + 1) / NUM_CELLS - 0.5)) + 1) / 2
    edges = np.floor(fractions * num_values).astype(np.int64)
    return np.unique(np.concatenate((edges, [0, 1, num_values - 1, num_values])))


def _join_equal(
    values: Floats, weights: Ints, is_exact: npt.NDArray[np.bool_]
) -> tuple[Floats, Ints, npt.NDArray[np.bool_]]:
    """Join neighbouring exact points of one value."""
    joins = (values[1:] == values[:-1]) & is_exact[1:] & is_exact[:-1]
    starts = np.flatnonzero(np.concatenate(([True], ~joins))[: len(values)])
    if len(starts) == 0:
        return values, weights, is_exact
    return values[starts], np.add.reduceat(weights, starts), is_exact[starts]


def _compress(
    values: Floats, weights: Ints, is_exact: npt.NDArray[np.bool_]
) -> tuple[Floats, Ints, npt.NDArray[np.bool_]]:
    """Join neighbouring points into cells; a point wider than a cell, and the two ends, stay as they are."""
    ends = np.cumsum(weights)
    total = ends[-1]
    scale = np.arcsin(np.clip(2 * (ends / total) - 1, -1, 1)) * (NUM_CELLS / np.pi)
    starts = [0]
    begin, last = 1, len(values) - 1
    while begin < last:
        starts.append(begin)
        begin = min(max(int(np.searchsorted(scale, scale[begin - 1] + 1, "right")), begin + 1), last)
    firsts = np.array([*starts, last])
    lasts = np.append(firsts[1:], len(values)) - 1
    cell_weights = np.add.reduceat(weights, firsts)
    medians = np.searchsorted(ends, ends[lasts] - cell_weights / 2, "left")
    return values[medians], cell_weights, (firsts == lasts) & is_exact[firsts]
