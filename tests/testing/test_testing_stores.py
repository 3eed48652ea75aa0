"""A tiny store says in every value where it belongs."""

from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import StoreExistsError
from stepwell.schema import Array, Bytes, Text
from stepwell.testing import TINY_FEATURES, counted_value, tiny_store


def test_every_element_is_a_hundred_times_the_episode_plus_the_step(tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "a.well", lengths=[4, 2])
    assert list(store.schema or ()) == list(TINY_FEATURES)
    np.testing.assert_array_equal(store[1]["action"], [[100, 100], [101, 101]])
    np.testing.assert_array_equal(store[1]["observation.state"][:, 0], [100, 101, 102])
    assert store[1]["task"] == ["1:0", "1:1"]


def test_episodes_differ_in_how_they_end_and_carry_their_number(tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "a.well", lengths=[1, 1, 1, 1])
    assert [(e.terminated, e.truncated) for e in store] == [(True, False), (False, True), (False, False), (True, False)]
    assert [e.metadata["number"] for e in store] == [0, 1, 2, 3]


def test_final_rows_can_be_left_away(tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "a.well", lengths=[4], final=False)
    assert (len(store[0]["observation.state"]), store[0].has_final) == (4, False)


def test_small_segment_bytes_makes_a_segment_of_every_episode(tmp_path: Path) -> None:
    assert len(tiny_store(tmp_path / "a.well", segment_bytes=1).segments) == 3


def test_path_that_is_taken_is_refused(tmp_path: Path) -> None:
    tiny_store(tmp_path / "a.well")
    with pytest.raises(StoreExistsError):
        tiny_store(tmp_path / "a.well")


def test_counted_values_wrap_and_vary_as_the_feature_says() -> None:
    assert counted_value(Array(1, "uint8"), 2, 60).tolist() == [260 - 256]
    assert counted_value(Array((None, 2), "int16"), 0, 7).tolist() == [[7, 7]] * 3
    assert (counted_value(Text(), 1, 2), counted_value(Bytes(), 1, 2)) == ("1:2", b"1:2")
