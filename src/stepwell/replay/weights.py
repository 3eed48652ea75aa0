"""Importance weights: what makes up for drawing some items more often than others, and how much of it when.

The weight of a row is ``(N * P) ** -beta``: N items in the table and P the probability of the item when it was drawn.
With ``beta=1`` the mean of ``weight * loss`` is what uniform draws would give; smaller ones correct in part. Over the
largest of the batch (``normalize``), weights only scale down.

Source: T. Schaul et al., Prioritized experience replay, 2016, section 3.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError

__all__ = ["Beta", "BetaSchedule", "importance_weights"]

Beta: TypeAlias = float | Sequence[float] | Callable[[int], float]


class BetaSchedule:
    """The exponent of importance weights at any number of rows drawn so far.

    Args:
        beta: a number; ``(first, last, samples)``, which goes from first to last in a straight line over so many rows
            and stays there; or a function of the rows drawn so far.

    Raises:
        TableError: none of these, or a number that is negative or not finite.

    Example:
        >>> beta = BetaSchedule((0.4, 1.0, 1_000_000))
        >>> beta(0), beta(500_000), beta(2_000_000)
        (0.4, 0.7, 1.0)
    """

    def __init__(self, beta: Beta) -> None:
        self._beta = beta
        self._function: Callable[[int], float] | None = None
        self._first = self._last = 0.0
        self._samples = 1
        if callable(beta):
            self._function = beta
        elif isinstance(beta, tuple | list):
            if len(beta) != 3 or not beta[2] > 0:
                raise TableError(f"beta={beta!r}. Allowed: a number, (first, last, samples) or a function of samples.")
            self._first, self._last = _checked(beta[0]), _checked(beta[1])
            self._samples = int(beta[2])
        else:
            self._first = self._last = _checked(beta)

    def __call__(self, num_samples: int) -> float:
        """Return beta after a number of rows.

        Raises:
            TableError: the function returned what beta cannot be.
        """
        if self._function is not None:
            return _checked(self._function(num_samples))
        if num_samples >= self._samples:
            return self._last
        return self._first + (self._last - self._first) * (num_samples / self._samples)

    def __repr__(self) -> str:
        return f"BetaSchedule({self._beta!r})"


def importance_weights(
    probabilities: npt.ArrayLike, sizes: npt.ArrayLike, beta: float, *, normalize: bool = True
) -> npt.NDArray[np.float32]:
    """Return the importance weights of rows.

    Args:
        probabilities: float64 [n], of the items when they were drawn; above 0.
        sizes: int64 [n] or one number, items in the table then.
        beta: 0 (no correction) to 1 (full).
        normalize: divide by the largest.

    Returns:
        float32 [n], computed in float64.

    Example:
        >>> importance_weights([0.5, 0.25], 4, beta=1.0).tolist()
        [0.5, 1.0]
    """
    from stepwell.replay.weight_kernels import importance_weights as kernel

    drawn = np.asarray(probabilities, np.float64)
    weights = np.empty(len(drawn), np.float32)
    counts = np.broadcast_to(np.asarray(sizes, np.int64), drawn.shape)
    kernel(drawn, counts, np.array([beta], np.float64), normalize, weights)
    return weights


def _checked(beta: object) -> float:
    if isinstance(beta, int | float | np.number) and math.isfinite(beta) and beta >= 0:
        return float(beta)
    raise TableError(f"beta={beta!r}. Allowed is a finite number of 0 or more.")
