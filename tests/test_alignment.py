"""Rows with clocks of their own are shown at the ticks of another as a plain search says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.alignment import METHODS, align, covers, rate_ticks
from stepwell.errors import FormatError

TIMES = st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=12).map(sorted)
TICKS = st.lists(st.integers(-2 * 10**6, 2 * 10**6), max_size=12)


def shown(times: list[int], values: list[float], tick: int, method: str) -> tuple[float, int] | None:
    """Return the value and the lag at a tick, by looking at all rows; None where none can be shown."""
    before = [row for row, time in enumerate(times) if time <= tick]
    after = [row for row, time in enumerate(times) if time > tick]
    if method == "nearest":
        row = min(range(len(times)), key=lambda each: (abs(times[each] - tick), times[each] > tick, -each))
        return values[row], tick - times[row]
    if not before:
        return None
    last = before[-1]
    if method == "hold" or (times[last] == tick):
        return values[last], tick - times[last]
    if not after:
        return None
    first = after[0]
    share = (tick - times[last]) / (times[first] - times[last])
    near = first if times[first] - tick < tick - times[last] else last
    return values[last] * (1 - share) + values[first] * share, tick - times[near]


@given(times=TIMES, ticks=TICKS, method=st.sampled_from(METHODS))
def test_rows_and_lags_are_those_of_a_plain_search(times: list[int], ticks: list[int], method: str) -> None:
    values = [float(number) for number in range(len(times))]
    wanted = [shown(times, values, tick, method) for tick in ticks]
    rows, all_ticks = np.array(times, np.int64), np.array(ticks, np.int64)
    is_covered = covers(rows, all_ticks, method)
    assert is_covered.tolist() == [each is not None for each in wanted]
    kept = [each for each in wanted if each is not None]
    aligned = align(rows, all_ticks[is_covered], method)
    assert aligned.of(np.array(values)) == pytest.approx([value for value, _ in kept])
    assert aligned.lag == pytest.approx([lag / 1e9 for _, lag in kept], rel=1e-6)
    assert aligned.lag.dtype == np.float32


def test_values_keep_their_dtype_where_they_are_not_mixed() -> None:
    times, ticks = np.array([0, 10]), np.array([5, 10])
    assert align(times, ticks, "hold").of(np.array([1, 3], np.int16)).dtype == np.int16
    assert align(times, ticks, "linear").of(np.array([1, 3], np.int16)).tolist() == [2.0, 3.0]
    assert align(times, ticks, "linear").of(np.array([[1], [3]], np.float32)).dtype == np.float32


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_a_row_without_a_share_leaves_no_trace(odd: float) -> None:
    aligned = align(np.array([0, 10, 20]), np.array([0, 5, 10, 20]), "linear")
    assert np.array_equal(aligned.of(np.array([1.0, 2.0, odd])), [1, 1.5, 2, odd], equal_nan=True)


@given(rate=st.floats(0.1, 1000), start=st.integers(0, 10**18), seconds=st.floats(0, 5))
def test_ticks_of_a_rate_are_even_and_within_its_span(rate: float, start: int, seconds: float) -> None:
    stop = start + int(seconds * 1e9)
    ticks = rate_ticks(rate, start, stop)
    assert ticks[0] == start
    assert ticks[-1] <= stop + 1
    assert ticks[-1] + 1e9 / rate > stop - 2
    assert np.abs(np.diff(ticks) - 1e9 / rate).max(initial=0) <= 1


def test_what_cannot_be_is_refused() -> None:
    for call, told in (
        (lambda: align(np.array([1]), np.array([1]), "middle"), "align: 'middle'. Allowed: nearest, hold, linear"),
        (lambda: align(np.array([2, 1]), np.array([1])), "times that descend"),
        (lambda: align(np.array([], np.int64), np.array([1])), "no row has"),
        (lambda: rate_ticks(0, 0, 1), "a clock of 0 ticks a second"),
        (lambda: rate_ticks(1e6, 0, 10**15), "Choose a slower clock"),
    ):
        with pytest.raises(FormatError, match=told):
            call()
    assert not covers(np.array([], np.int64), np.array([1, 2]), "hold").any()
