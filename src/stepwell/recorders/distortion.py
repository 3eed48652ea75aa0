"""How far rows that were encoded and decoded again are from what they were: PSNR, of all and of the worst."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Distortion", "mean_square_error"]


@dataclass(frozen=True, slots=True)
class Distortion:
    """The errors of a number of rows.

    Args:
        num_rows: compared.
        total: sum of their `mean_square_error`.
        worst: greatest of them.
        episode: index of the episode in which the worst row is; None while no row differs.
        step: its step there.
    """

    num_rows: int = 0
    total: float = 0.0
    worst: float = 0.0
    episode: int | None = None
    step: int | None = None

    @property
    def is_lossless(self) -> bool:
        """Whether every row came back bit by bit."""
        return self.total == 0.0

    @property
    def mean_db(self) -> float:
        """PSNR of all rows together, dB; infinite where nothing was lost."""
        return _decibels(self.total / max(1, self.num_rows))

    @property
    def worst_db(self) -> float:
        """PSNR of the worst row, dB."""
        return _decibels(self.worst)

    def with_row(self, error: float, episode: int, step: int) -> Distortion:
        """Return what it is with one row more."""
        return Distortion.joined([self, Distortion(1, error, error, episode, step)])

    @staticmethod
    def joined(parts: Iterable[Distortion]) -> Distortion:
        """Return what it is over all rows; of rows that are equally bad the first counts."""
        num_rows, total, worst = 0, 0.0, Distortion()
        for part in parts:
            num_rows, total = num_rows + part.num_rows, total + part.total
            worst = part if part.worst > worst.worst else worst
        return Distortion(num_rows, total, worst.worst, worst.episode, worst.step)


def mean_square_error(before: Any, after: Any) -> float:
    """Return the mean squared difference of two rows in units of the peak: 0 is equal, 1 as wrong as can be.

    Args:
        before: an array, str or bytes. The peak is the span of an integer's dtype (255 for uint8), and of floats the
            greatest magnitude in this row.
        after: of the same dtype and shape. Where values have no difference (text, bools, structs), or one is NaN and
            the other is not, rows that are not equal have an error of 1.

    Example:
        >>> mean_square_error(np.uint8([0, 0]), np.uint8([0, 255]))
        0.5
    """
    if not isinstance(before, np.ndarray | np.generic):
        return 0.0 if before == after else 1.0
    if before.tobytes() == after.tobytes():
        return 0.0
    if before.dtype.kind not in "iuf" or before.shape != after.shape:
        return 1.0
    if before.dtype.kind == "f":
        error = np.square(before.astype(np.float64) - after)
        peak = float(np.max(np.abs(before), initial=0.0))
        found = float(error.mean()) / (peak * peak) if peak else 1.0
        return found if math.isfinite(found) else 1.0
    limits = np.iinfo(before.dtype)
    # float32 holds every difference of 16 bits exactly, at half the memory
    wide = np.float32 if before.dtype.itemsize <= 2 else np.float64
    difference = np.subtract(before, after, dtype=wide)
    peak = float(limits.max) - float(limits.min)
    return float(np.square(difference, out=difference).mean(dtype=np.float64)) / (peak * peak)


def _decibels(error: float) -> float:
    return math.inf if error == 0.0 else -10 * math.log10(error)
