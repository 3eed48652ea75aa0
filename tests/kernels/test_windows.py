from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.kernels.windows import clamp_windows, count_along, mark_rows

# lo, steps, anchor as a share of the steps, whether marked
EPISODES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 9), st.integers(0, 8), st.booleans()), min_size=1, max_size=6
)
OFFSETS = st.lists(st.integers(-12, 12), min_size=1, max_size=6)


def _places(episodes: list[tuple[int, int, int, bool]]) -> np.ndarray:
    places = np.zeros((6, len(episodes)), np.int64)
    for i, (lo, steps, at, _) in enumerate(episodes):
        places[:, i] = i, 0, lo + at % steps, lo, lo + steps, lo + steps
    return places


def _windows(places: np.ndarray, offsets: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of windows, and which are padding, one by one."""
    rows = [[min(max(row + o, lo), hi - 1) for o in offsets] for row, lo, hi in places[2:5].T]
    is_pad = [[not lo <= row + o < hi for o in offsets] for row, lo, hi in places[2:5].T]
    return np.array(rows), np.array(is_pad)


@settings(deadline=None, max_examples=60)
@given(EPISODES, OFFSETS, st.booleans())
def test_marks_are_where_the_marked_row_is(
    episodes: list[tuple[int, int, int, bool]], offsets: list[int], is_zero: bool
) -> None:
    places = _places(episodes)
    rows, is_pad = _windows(places, offsets)
    is_marked = np.array([episode[3] for episode in episodes])
    values, mask = np.ones((2, *rows.shape), np.bool_)
    mark_rows(places[4] - 1, is_marked, places, np.array(offsets), is_zero, values, mask, False)
    expected = (rows == places[4][:, None] - 1) & is_marked[:, None]
    np.testing.assert_array_equal(values, expected & ~is_pad if is_zero else expected)
    np.testing.assert_array_equal(mask, is_pad)


@settings(deadline=None, max_examples=60)
@given(EPISODES, OFFSETS, st.booleans(), st.integers(0, 1))
def test_counts_grow_with_the_rows(
    episodes: list[tuple[int, int, int, bool]], offsets: list[int], is_zero: bool, step: int
) -> None:
    places = _places(episodes)
    rows, is_pad = _windows(places, offsets)
    starts = 100 + np.arange(len(episodes))
    values, mask = np.full(rows.shape, -1), np.ones(rows.shape, np.bool_)
    count_along(starts, step, places, np.array(offsets), is_zero, values, mask, False)
    expected = starts[:, None] + step * (rows - places[2][:, None])
    np.testing.assert_array_equal(values, np.where(is_pad, 0, expected) if is_zero else expected)
    np.testing.assert_array_equal(mask, is_pad)


@pytest.mark.parametrize("is_counted", [False, True])
def test_marks_of_padding_stay_where_others_are_added(is_counted: bool) -> None:
    places, offsets = _places([(0, 3, 1, False)]), np.array([-2, 0, 1])
    mask = np.array([[False, True, False]])
    settings_ = (places, offsets, False)
    if is_counted:
        count_along(np.zeros(1, np.int64), 1, *settings_, np.empty((1, 3), np.int64), mask, True)
    else:
        mark_rows(places[3], np.zeros(1, np.bool_), *settings_, np.empty((1, 3), np.bool_), mask, True)
    assert mask.tolist() == [[True, True, False]]


@settings(max_examples=60, deadline=None)
@given(EPISODES, OFFSETS)
def test_rows_of_windows_are_the_nearest_of_their_episode(
    episodes: list[tuple[int, int, int, bool]], offsets: list[int]
) -> None:
    places = _places(episodes)
    rows, is_pad = np.full((len(episodes), len(offsets)), 77), np.ones((len(episodes), len(offsets)), np.bool_)
    clamp_windows(np.array(offsets), places[2], places[3], places[4], rows, is_pad)
    wanted, padding = _windows(places, offsets)
    assert np.array_equal(rows, wanted) and np.array_equal(is_pad, padding)
