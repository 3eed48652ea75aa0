"""When an open episode is followed without a detour, and when not."""

from __future__ import annotations

import pytest

import stepwell
from stepwell import Array
from stepwell.replay.history import History


@pytest.fixture
def store(tmp_path):
    return stepwell.create(tmp_path / "a.well", {"x": Array((), "int64")}, capacity=5)


def test_new_rows_of_the_one_open_episode_come_with_what_they_push_out(store):
    with store.writer() as writer:
        for length in (2, 3):
            writer.add_episode({"x": range(length)})
        history = History(store)
        history.advance()
        assert history.grow() is None
        writer.append(x=0)
        assert history.advance().evicted.tolist() == [[0, 1]]
        assert history.grow() == (2, 6, 6, -1, 1)
        # the last step of an episode goes with it, which is not for the short way
        writer.append(x=1)
        assert history.grow() is None
        assert history.advance().evicted.tolist() == [[0, 2]]
        writer.append(x=2)
        assert history.advance().evicted.tolist() == [[1, 3]]
        writer.append(x=3)
        assert history.grow() == (2, 8, 9, 1, 4)
        assert history.records[1 - history.base, 2] == 4


def test_an_end_and_a_second_open_episode_take_the_long_way(store):
    history = History(store)
    with store.writer() as one, store.writer() as other:
        one.append(x=0)
        history.advance()
        one.append(x=1)
        assert history.grow() == (0, 1, 2, -1, 0)
        other.append(x=0)
        history.advance()
        one.append(x=2)
        assert history.grow() is None
        other.end_episode(truncated=True)
        history.advance()
        one.append(x=3)
        growth = history.grow()
        assert growth is None or growth[:3] == (0, 3, 4)
        one.end_episode(truncated=True)
        assert history.grow() is None
        assert history.advance().runs[-1].tolist()[3] == 1
