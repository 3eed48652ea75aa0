"""When the end of a segment is followed without a detour, and when not."""

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
        assert history.grow() == (-1, 5, 5, 0, -1, 0)
        writer.append(x=0)
        assert history.advance().evicted.tolist() == [[0, 1]]
        assert history.grow() == (2, 6, 6, 0, -1, 1)
        # the last step of an episode goes with it, which is not for the short way
        writer.append(x=1)
        assert history.grow() is None
        assert history.advance().evicted.tolist() == [[0, 2]]
        writer.append(x=2)
        assert history.advance().evicted.tolist() == [[1, 3]]
        writer.append(x=3)
        assert history.grow() == (2, 8, 9, 0, 1, 4)
        assert history.records[1 - history.base, 2] == 4


def test_an_end_and_the_next_episode_take_the_short_way(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"x": Array((), "int64", final=True)})
    history = History(store)
    with store.writer() as writer:
        writer.append(x=0)
        history.advance()
        writer.append(x=1)
        writer.end_episode(terminated=True, final={"x": 7})
        assert history.grow() == (0, 1, 2, 1, -1, 0)
        assert history.grow() == (-1, 3, 3, 0, -1, 0)
        writer.append(x=2)
        assert history.grow() == (1, 3, 4, 0, -1, 0)
        # no new steps, but an end
        writer.end_episode(truncated=True, final={"x": 8})
        writer.append(x=3)
        assert history.grow() == (1, 4, 4, 1, -1, 0)
        assert history.grow() == (2, 5, 6, 0, -1, 0)
        records = history.records[:3].tolist()
    followed = History(store)
    followed.advance()
    assert followed.records[:2].tolist() == records[:2]


def test_what_is_no_plain_end_takes_the_long_way(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"x": Array((), "int64")})
    history = History(store)
    with store.writer() as writer:
        writer.append(x=0)
        history.advance()
        writer.append(x=1)
        writer.discard_episode()
        assert history.grow() is None
        assert history.advance().evicted.tolist() == [[0, 2]]
        for length in (1, 2):
            for value in range(length):
                writer.append(x=value)
            writer.end_episode(truncated=True)
        assert history.grow() is None
        assert history.advance().runs.tolist() == [[1, 2, 3, 1], [2, 3, 5, 1]]


def test_a_second_open_episode_takes_the_long_way(store):
    history = History(store)
    with store.writer() as one, store.writer() as other:
        one.append(x=0)
        history.advance()
        one.append(x=1)
        assert history.grow() == (0, 1, 2, 0, -1, 0)
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
        assert history.advance().runs[-1].tolist()[3] == 1
