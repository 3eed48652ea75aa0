"""Rows with clocks of their own, shown at the ticks of one clock: by the nearest row, the last one, or interpolation.

::

    rows     a       b           c     d            times of a topic, ascending
    ticks        |       |       |       |   |      of another topic, or of a rate
    nearest      a       b       c       d   d
    hold         a       b       b       d   d      the last row before
    linear      a~b     b~c     b~c     c~d  -      between the two around; no tick after the last row
    lag        0.02 ...                             tick less row in seconds; of linear: of the nearer one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError

__all__ = ["METHODS", "Aligned", "align", "check_method", "covers", "rate_ticks"]

METHODS = ("nearest", "hold", "linear")
NANOSECONDS = 1_000_000_000
# of one clock; 10 hours at 1 kHz are fewer
MOST_TICKS = 1 << 26

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Aligned:
    """Which rows are shown at ticks.

    Attributes:
        rows: int64 [T], the row of each tick; of linear the one before it.
        lag: float32 [T], seconds from the row to the tick; negative where the row comes after the tick.
        weights: float64 [T], the share of the row after ``rows``, of linear; None: the rows are shown as they are.
    """

    rows: Int64s
    lag: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float64] | None = None

    def of(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return what is shown of numbers [n, ...]: [T, ...] of their dtype, of interpolated integers float64.

        Example:
            >>> align(np.array([0, 10]), np.array([4]), "linear").of(np.array([[0.0], [1.0]]))
            array([[0.4]])
        """
        if self.weights is None:
            return values[self.rows]
        weights = self.weights.reshape(-1, *[1] * (values.ndim - 1))
        after = np.minimum(self.rows + 1, len(values) - 1)
        # a row that has no share may be NaN or infinite
        rest = np.where(weights > 0, values[after], 0) * weights
        shown = values[self.rows] * (1.0 - weights) + rest
        return shown.astype(values.dtype if values.dtype.kind == "f" else np.float64)


def align(times: Int64s, ticks: Int64s, method: str = "nearest") -> Aligned:
    """Return which rows are shown at ticks.

    Args:
        times: of the rows, int64 [n] nanoseconds, ascending, at least one.
        ticks: int64 [T] nanoseconds, each where `covers` says so.
        method: nearest (of two as near, the one before), hold or linear.

    Raises:
        FormatError: another method, times that descend, or none.

    Example:
        >>> align(np.array([0, 10, 20]), np.array([4, 6, 20]), "hold").rows
        array([0, 0, 2])
    """
    check_method(method)
    if not len(times) or (np.diff(times) < 0).any():
        raise FormatError(f"{len(times)} times that {'descend' if len(times) else 'no row has'}. Give ascending times.")
    before = np.maximum(np.searchsorted(times, ticks, side="right") - 1, 0)
    if method == "hold":
        return Aligned(before, _seconds(ticks - times[before]))
    after = np.minimum(before + 1, len(times) - 1)
    is_after = (times[after] - ticks < ticks - times[before]) & (after > before)
    nearest = np.where(is_after, after, before)
    lag = _seconds(ticks - times[nearest])
    if method == "nearest":
        return Aligned(nearest, lag)
    span = (times[after] - times[before]).astype(np.float64)
    weights = np.divide(ticks - times[before], span, out=np.zeros(len(ticks)), where=span > 0)
    return Aligned(before, lag, weights)


def covers(times: Int64s, ticks: Int64s, method: str) -> npt.NDArray[np.bool_]:
    """Return at which ticks rows can be shown, bool [T]: held and interpolated ones not before the first, and so on.

    Example:
        >>> covers(np.array([10, 20]), np.array([5, 15, 25]), "linear")
        array([False,  True, False])
    """
    check_method(method)
    if not len(times):
        return np.zeros(len(ticks), np.bool_)
    is_covered = np.ones(len(ticks), np.bool_)
    if method != "nearest":
        is_covered &= ticks >= times[0]
    if method == "linear":
        is_covered &= ticks <= times[-1]
    return is_covered


def rate_ticks(rate: float, start: int, stop: int) -> Int64s:
    """Return the ticks of a clock of so many a second, from one time up to another, int64 [T] nanoseconds.

    Example:
        >>> rate_ticks(2.0, 0, 1_000_000_000)
        array([         0,  500000000, 1000000000])
    """
    if not 0 < rate < NANOSECONDS:
        raise FormatError(f"a clock of {rate} ticks a second. Allowed: more than 0, less than 1e9.")
    count = int((stop - start) * rate / NANOSECONDS) + 1 if stop >= start else 0
    if count > MOST_TICKS:
        raise FormatError(f"{count:,} ticks of {rate} a second. Allowed: {MOST_TICKS:,}. Choose a slower clock.")
    ticks: Int64s = start + np.rint(np.arange(count) * (NANOSECONDS / rate)).astype(np.int64)
    return ticks


def check_method(method: str) -> None:
    """Refuse a way of alignment that is none."""
    if method not in METHODS:
        raise FormatError(f"align: {method!r}. Allowed: {', '.join(METHODS)}.")


def _seconds(nanoseconds: Int64s) -> npt.NDArray[np.float32]:
    return (nanoseconds / NANOSECONDS).astype(np.float32)
