"""How inserting and sampling wait for each other, by Reverb's names: the limiters of `stepwell.replay`.

Source: Reverb, ``reverb/rate_limiters.py``; what the numbers mean is in `stepwell.replay.limiters`.
"""

from __future__ import annotations

import math

from stepwell.replay import limiters
from stepwell.replay.limiters import Limiter

__all__ = ["MinSize", "Queue", "RateLimiter", "SampleToInsertRatio", "Stack"]

# Reverb's open ends are the largest doubles
OPEN = 1e300


def MinSize(min_size_to_sample: int) -> Limiter:
    """Let items be drawn as soon as so many are there; never refuse an insert."""
    return limiters.MinSize(min_size_to_sample)


def SampleToInsertRatio(
    samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]
) -> Limiter:
    """Keep samples per insert near a ratio; see `stepwell.replay.SampleToInsertRatio`."""
    return limiters.SampleToInsertRatio(samples_per_insert, min_size_to_sample, error_buffer)


def Queue(size: int) -> Limiter:
    """Let ``size`` items wait at most, each of which is drawn once."""
    return limiters.Queue(size)


def Stack(size: int) -> Limiter:
    """Let ``size`` items wait at most, each of which is drawn once."""
    return limiters.Stack(size)


def RateLimiter(samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float) -> Limiter:
    """Return a limiter of four numbers.

    Args:
        samples_per_insert: samples that an insert pays for; above 0.
        min_size_to_sample: items that must be there before any is drawn; at least 1.
        min_diff: the least that ``inserts * samples_per_insert - samples`` may become by sampling.
        max_diff: the most it may become by inserting.

    Raises:
        TableError: a ValueError; numbers that cannot be.
    """
    low, high = (math.copysign(math.inf, each) if abs(each) > OPEN else float(each) for each in (min_diff, max_diff))
    name = f"RateLimiter({samples_per_insert}, {min_size_to_sample}, {min_diff}, {max_diff})"
    return Limiter(name, float(samples_per_insert), min_size_to_sample, low, high)
