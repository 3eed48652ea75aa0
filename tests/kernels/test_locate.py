"""Finding the episode of a position, against numpy's search, for even and for very uneven lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.kernels.locate import guide_of, locate, touch
from stepwell.kernels.places import PLACE_ROWS


def starts_of(counts):
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def places_of(starts, positions, records=None):
    guide, shift = guide_of(starts)
    num_episodes = len(starts) - 1
    if records is None:
        records = np.arange(num_episodes * 5, dtype=np.int64).reshape(-1, 5)
    places = np.empty((PLACE_ROWS, len(positions)), np.int64)
    wrong = locate(np.asarray(positions, np.int64), starts, guide, shift, records, places)
    return wrong, places


@settings(deadline=None, max_examples=200)
@given(counts=st.lists(st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 3000)), max_size=40))
def test_every_position_is_in_the_episode_that_numpy_finds(counts):
    starts = starts_of(counts)
    positions = np.arange(starts[-1])
    wrong, places = places_of(starts, positions)
    assert wrong == -1
    np.testing.assert_array_equal(places[0], np.searchsorted(starts, positions, side="right") - 1)


@pytest.mark.parametrize(
    "counts",
    [[10**9, *[1] * 1000], [*[1] * 1000, 10**9], [*[0] * 500, 7, *[0] * 500], [1, 10**12, 1], [3] * 100_000],
    ids=["long-first", "long-last", "mostly-empty", "huge", "even"],
)
def test_very_uneven_lengths_are_found_and_the_guide_stays_small(counts):
    starts = starts_of(counts)
    guide, _ = guide_of(starts)
    assert len(guide) <= len(counts) + 2
    ends = np.array([0, 1, 2, starts[-1] // 2, starts[-1] - 2, starts[-1] - 1])
    positions = np.unique(
        np.clip(np.concatenate([ends, np.random.default_rng(0).integers(0, starts[-1], 500)]), 0, None)
    )
    wrong, places = places_of(starts, positions)
    assert wrong == -1
    np.testing.assert_array_equal(places[0], np.searchsorted(starts, positions, side="right") - 1)


def test_search_in_a_bucket_is_short_on_average():
    """Mean binary steps over all positions, for lengths from a heavy-tailed law."""
    counts = (np.random.default_rng(0).pareto(1.0, 20_000) * 10 + 1).astype(np.int64)
    starts = starts_of(counts)
    guide, shift = guide_of(starts)
    buckets = np.random.default_rng(1).integers(0, starts[-1], 10_000) >> shift
    assert np.log2(guide[buckets + 1] - guide[buckets] + 1).mean() < 3


@pytest.mark.parametrize("position", [-1, 8, 1 << 62, -(1 << 62)])
def test_position_outside_is_reported_by_its_index(position):
    wrong, _ = places_of(starts_of([3, 5]), [0, 7, position])
    assert wrong == 2


def test_no_anchors_report_any_position():
    assert places_of(starts_of([]), [0], np.empty((0, 5), np.int64))[0] == 0
    assert places_of(starts_of([]), [], np.empty((0, 5), np.int64))[0] == -1


def test_place_is_the_record_moved_by_the_steps_into_the_episode():
    records = np.array([[4, 100, 98, 110, 111], [7, 20, 20, 25, 25]], np.int64)
    _, places = places_of(starts_of([3, 5]), [0, 2, 3, 7], records)
    assert places.T.tolist() == [
        [0, 4, 100, 98, 110, 111],
        [0, 4, 102, 98, 110, 111],
        [1, 7, 20, 20, 25, 25],
        [1, 7, 24, 20, 25, 25],
    ]


def test_touch_counts_anchors_that_may_reach_rows_no_map_holds_and_marks_the_time():
    places = np.zeros((PLACE_ROWS, 4), np.int64)
    places[1] = [2, 0, 2, 1]
    places[5] = [0, 8, 3, 9]
    last_used = np.zeros(4, np.int64)
    # segment 0 is mapped up to row 8, segment 1 as well, segment 2 not at all
    assert touch(places, np.array([8, 8, -1, -1]), last_used, 9) == 3
    assert last_used.tolist() == [9, 9, 9, 0]
