"""Windows of features with a rate: from steps to the samples that came around them, and their bytes.

A row of such a column holds the samples that came since the row before it, one after the other, so that the samples of
a segment lie back to back: sample s of its rows is bytes [s * size, (s + 1) * size), and its time is entry s of another
column. The offsets of that column say where the samples of a row begin::

    rows      row - 3 | row - 2 | row - 1 | row      the rows that a window reaches: it sees no other sample
    times      . . .  |  . . .  |  . . .  |  . .     [low, high)
    now                                      ^       the last sample at or before the step's time, `now`

Notes:
    Offsets are checked against the sizes of the maps, and searches end wherever times lead them: files may be damaged.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.gather import LINE_BYTES, LINES_AHEAD, fetch_ahead
from stepwell.kernels.kernel import inlined, kernel
from stepwell.kernels.memory import load_f64, load_u64, memcpy, memset, prefetch
from stepwell.kernels.places import HI_FINAL, LO, ROW, SEGMENT

__all__ = ["HOLD", "LINEAR", "NEAREST", "copy_samples", "find_native", "find_points", "gather_native", "see_samples"]

NEAREST, HOLD, LINEAR = range(3)
# see stepwell.kernels.gather, which asks for cache lines in the same way
AHEAD = 8


@kernel
def see_samples(  # noqa: PLR0917
    places: Any, first: Any, last: Any, row_bytes: Any,
    offset_bases: Any, time_bases: Any, time_sizes: Any, value_bases: Any, value_sizes: Any, seen: Any,
) -> Any:  # fmt: skip
    """Find which samples each window sees.

    Args:
        places: int64 [6, n], see `stepwell.kernels.places`.
        first: int64, first row that a window reaches, counted from the anchor.
        last: int64, last one.
        row_bytes: int64, bytes of a sample.
        offset_bases: int64 [S], addresses of the uint64 offsets of the times of each segment.
        time_bases: int64 [S], addresses of the times.
        time_sizes: int64 [S], bytes that are mapped of them.
        value_bases: int64 [S], addresses of the samples.
        value_sizes: int64 [S], bytes that are mapped of them.
        seen: int64 [3, n], written: the first sample that is seen, the one after the last, and one near the anchor.

    Returns:
        -1, or the first anchor whose offsets do not fit the maps.
    """
    segments, rows, los, his = places[SEGMENT], places[ROW], places[LO], places[HI_FINAL]
    for i in range(rows.size):
        prefetch(offset_bases[segments[i]] + 8 * (rows[i] + first))
    for i in range(rows.size):
        begin = min(max(rows[i] + first, los[i]), his[i])
        end = max(min(rows[i] + last + 1, his[i]), begin)
        middle = min(max(rows[i] + 1, begin), end)
        offsets, segment = offset_bases[segments[i]], segments[i]
        low, high = load_u64(offsets + 8 * begin) // 8, load_u64(offsets + 8 * end) // 8
        near = load_u64(offsets + 8 * middle) // 8
        if low < 0 or high < low or high > time_sizes[segment] // 8 or high > value_sizes[segment] // row_bytes:
            return i
        seen[0, i], seen[1, i], seen[2, i] = low, high, min(max(near, low), high)
        prefetch(time_bases[segment] + 8 * near)
    return -1


@inlined
def count_until(times: Any, low: Any, high: Any, near: Any, time: Any) -> Any:
    """Return the first of the entries [low, high) that is after a time, or ``high``; searched from ``near`` on."""
    step = 1
    if near < high and load_f64(times + 8 * near) <= time:
        low = near + 1
        while low + step < high and load_f64(times + 8 * (low + step - 1)) <= time:
            low += step
            step *= 2
        high = min(low + step, high)
    elif near > low and load_f64(times + 8 * (near - 1)) > time:
        high = near - 1
        while high - step > low and load_f64(times + 8 * (high - step)) > time:
            high -= step
            step *= 2
        low = max(high - step, low)
    else:
        return near
    while low < high:
        middle = (low + high) // 2
        if load_f64(times + 8 * middle) <= time:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def end_of_seen(times: Any, low: Any, high: Any, limit: Any) -> Any:
    """Return ``high`` without the samples after the last step that a window reaches, which came with its row."""
    return count_until(times, low, high, high, limit)


@inlined
def native_window(  # noqa: PLR0917
    times: Any, low: Any, high: Any, begin: Any, count: Any, since: Any, until: Any
) -> Any:
    """Return which of ``count`` samples from ``begin`` on are in a window: they are seen, and in its span."""
    start, stop = min(max(begin, low), high), max(min(begin + count, high), low)
    while start < stop and load_f64(times + 8 * start) <= since:
        start += 1
    while start < stop and load_f64(times + 8 * (stop - 1)) > until:
        stop -= 1
    return start, stop


@kernel
def gather_native(  # noqa: PLR0917
    places: Any, seen: Any, steps: Any, rates: Any, first: Any, count: Any, last: Any,
    since: Any, until: Any, is_zero: Any, time_bases: Any, value_bases: Any, row_bytes: Any, out: Any, mask: Any,
) -> None:  # fmt: skip
    """Copy windows of ``count`` samples that follow each other, counted from the last one at or before the step.

    Args:
        places: as of `see_samples`.
        seen: as of `see_samples`.
        steps: int64 [n], number of each anchor's step in its episode.
        rates: float64 [n], steps a second.
        first: int64, the first sample of a window; 0 is the last one at or before the step.
        count: int64, samples of a window.
        last: int64, the last step that a window reaches.
        since: float64, seconds from the step's time after which a sample is in the window; others are padding.
        until: float64, the last such time.
        is_zero: whether padding is zeros; else it is the nearest sample of the window, or of those that are seen.
        time_bases: as of `see_samples`.
        value_bases: as of `see_samples`.
        row_bytes: as of `see_samples`.
        out: uint8 [n, count * row_bytes], C-contiguous, written.
        mask: bool [n, count], written: which are padding.
    """
    target = out.ctypes.data
    ahead_bytes = min(count * row_bytes, LINES_AHEAD * LINE_BYTES)
    for i in range(steps.size):
        if i + AHEAD < steps.size:
            segment, begin = places[SEGMENT, i + AHEAD], seen[2, i + AHEAD] - 1 + first
            fetch_ahead(value_bases[segment] + begin * row_bytes, ahead_bytes)
            prefetch(time_bases[segment] + 8 * begin)
            prefetch(time_bases[segment] + 8 * (begin + count))
        times, values = time_bases[places[SEGMENT, i]], value_bases[places[SEGMENT, i]]
        now = steps[i] / rates[i]
        low = seen[0, i]
        high = end_of_seen(times, low, seen[1, i], (steps[i] + last) / rates[i])
        begin = count_until(times, low, high, min(seen[2, i], high), now) - 1 + first
        start, stop = native_window(times, low, high, begin, count, now + since, now + until)
        if start == begin and stop == begin + count:
            memcpy(target, values + start * row_bytes, count * row_bytes)
            for k in range(count):
                mask[i, k] = False
            target += count * row_bytes
            continue
        if start >= stop:
            start, stop = low, high
            is_all = True
        else:
            is_all = False
        for k in range(count):
            sample = min(max(begin + k, start), stop - 1)
            mask[i, k] = is_all or sample != begin + k
            if low == high or (mask[i, k] and is_zero):
                memset(target, 0, row_bytes)
            else:
                memcpy(target, values + sample * row_bytes, row_bytes)
            target += row_bytes


@kernel
def find_native(  # noqa: PLR0917
    places: Any, seen: Any, steps: Any, rates: Any, first: Any, last: Any,
    since: Any, until: Any, time_bases: Any, samples: Any, mask: Any,
) -> None:  # fmt: skip
    """Find the samples that `gather_native` copies.

    Args:
        places: as of `see_samples`.
        seen: as of `see_samples`.
        steps: as of `gather_native`.
        rates: as of `gather_native`.
        first: as of `gather_native`.
        last: as of `gather_native`.
        since: as of `gather_native`.
        until: as of `gather_native`.
        time_bases: as of `see_samples`.
        samples: int64 [n, K], written: the sample of each cell, of padding the nearest that is seen; -1: none is.
        mask: bool [n, K], written: which are padding.
    """
    for i in range(steps.size):
        times, now, low = time_bases[places[SEGMENT, i]], steps[i] / rates[i], seen[0, i]
        high = end_of_seen(times, low, seen[1, i], (steps[i] + last) / rates[i])
        begin = count_until(times, low, high, min(seen[2, i], high), now) - 1 + first
        start, stop = native_window(times, low, high, begin, samples.shape[1], now + since, now + until)
        is_all = start >= stop
        if is_all:
            start, stop = low, high
        for k in range(samples.shape[1]):
            sample = min(max(begin + k, start), stop - 1)
            mask[i, k] = is_all or sample != begin + k
            samples[i, k] = sample if low < high else -1


@kernel
def find_points(  # noqa: PLR0917
    places: Any, seen: Any, steps: Any, rates: Any, points: Any, last: Any, grace: Any, method: Any,
    time_bases: Any, samples: Any, after: Any, weights: Any, mask: Any,
) -> None:  # fmt: skip
    """Find the samples that windows show at points in time.

    Args:
        places: as of `see_samples`.
        seen: as of `see_samples`.
        steps: as of `gather_native`.
        rates: as of `gather_native`.
        points: float64 [K], seconds from the step's time.
        last: as of `gather_native`.
        grace: float64, seconds that a sample may lie from the point that it is shown at.
        method: NEAREST, HOLD (the last one at or before), LINEAR (between the two around).
        time_bases: as of `see_samples`.
        samples: int64 [n, K], written: the sample of each point, of padding the nearest that is seen; -1: none is.
        after: int64 [n, K], written: of LINEAR the sample after it.
        weights: float64 [n, K], written: the share of ``after``.
        mask: bool [n, K], written: which are padding.
    """
    for i in range(steps.size):
        times = time_bases[places[SEGMENT, i]]
        now = steps[i] / rates[i]
        low = seen[0, i]
        high = end_of_seen(times, low, seen[1, i], (steps[i] + last) / rates[i])
        near = min(seen[2, i], high)
        for k in range(points.size):
            time = now + points[k]
            near = count_until(times, low, high, near, time)
            before_lag = time - load_f64(times + 8 * (near - 1)) if near > low else np.inf
            after_lag = load_f64(times + 8 * near) - time if near < high else np.inf
            sample = near if after_lag < before_lag else near - 1
            is_there = min(before_lag, after_lag) <= grace
            weights[i, k] = 0.0
            if method == HOLD:
                is_there = before_lag <= grace
                sample = near - 1 if near > low else near
            elif method == LINEAR:
                is_there = before_lag == 0.0 or (before_lag <= grace and after_lag <= grace)
                if is_there:
                    sample = near - 1
                    weights[i, k] = before_lag / (before_lag + after_lag) if before_lag > 0.0 else 0.0
            mask[i, k] = not is_there
            samples[i, k] = sample if low < high else -1
            after[i, k] = min(samples[i, k] + 1, high - 1) if weights[i, k] > 0.0 else samples[i, k]


@kernel
def copy_samples(segments: Any, samples: Any, value_bases: Any, row_bytes: Any, out: Any) -> None:
    """Copy samples; int64 [n, K] of the segments [n], -1: zeros; to uint8 [n, K * row_bytes], C-contiguous."""
    target = out.ctypes.data
    for i in range(segments.size):
        values = value_bases[segments[i]]
        for k in range(samples.shape[1]):
            if samples[i, k] < 0:
                memset(target, 0, row_bytes)
            else:
                memcpy(target, values + samples[i, k] * row_bytes, row_bytes)
            target += row_bytes
