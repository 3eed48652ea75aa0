"""Episodes of one step each, many in a call: the same store as one by one."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import stepwell
from stepwell import Array, Bytes, Image, Text
from stepwell.errors import StepError
from stepwell.recorders import write_episodes
from stepwell.recorders.sources import EpisodeData
from stepwell.store.values import EncodedRows

SCHEMA = {"x": Array(3), "note": Text(), "raw": Bytes(), "rows": Array((None, 2), "int16"), "big": Image((64, 64, 3))}


def columns_of(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(count)
    return {
        "x": rng.normal(size=(count, 3)).astype("f4"),
        "note": [f"é{k}" for k in range(count)],
        "raw": EncodedRows(bytes([k % 256]) * k for k in range(count)),
        "rows": [np.full((k % 4, 2), k, "i2") for k in range(count)],
        "big": rng.integers(0, 256, (count, 64, 64, 3), dtype=np.uint8),
    }


def contents(store: stepwell.Store) -> list[Any]:
    return [(episode.length, {name: plain(episode[name][0]) for name in store.schema or ()}) for episode in store]


def plain(value: Any) -> tuple[tuple[int, ...], bytes]:
    row = np.asarray(value)
    return row.shape, row.tobytes()


def test_many_at_once_are_the_same_as_one_by_one(tmp_path: Path) -> None:
    columns = columns_of(300)
    one, many = (stepwell.create(tmp_path / name, SCHEMA) for name in ("one", "many"))
    with one.writer() as writer:
        for k in range(300):
            writer.add_episode({name: values[k : k + 1] for name, values in columns.items()})
    with many.writer() as writer:
        assert writer.add_one_step_episodes({name: values[:200] for name, values in columns.items()}) == 0
        writer.add_episode({name: values[200:202] for name, values in columns.items()}, task="two")
        assert writer.add_one_step_episodes({name: values[202:] for name, values in columns.items()}) == 201
    assert [episode.length for episode in many] == [1] * 200 + [2] + [1] * 98
    assert contents(many)[:200] == contents(one)[:200] and contents(many)[201:] == contents(one)[202:]
    assert many[200].metadata == {"task": "two"} and many[201].metadata == {}


def test_a_segment_that_is_full_is_followed_by_another(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a", {"big": Image((64, 64, 3))}, segment_bytes=1 << 20)
    values = columns_of(300)["big"]
    with store.writer() as writer:
        for start in range(0, 300, 50):
            writer.add_one_step_episodes({"big": values[start : start + 50]})
    assert len(store.segments) > 1
    assert all(np.array_equal(episode["big"][0], value) for episode, value in zip(store, values, strict=True))


def test_codecs_of_runs_get_a_run_each(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    store = stepwell.create(tmp_path / "a", {"x": Array((4, 4), "uint8", codec="delta")})
    values = np.arange(5 * 16, dtype=np.uint8).reshape(5, 4, 4)
    with store.writer() as writer:
        writer.add_one_step_episodes({"x": values})
    assert np.array_equal([episode["x"][0] for episode in store], values)


def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a", {"x": Array(3), "y": Array()})
    with store.writer() as writer:
        with pytest.raises(StepError, match="columns of different lengths"):
            writer.add_one_step_episodes({"x": np.zeros((2, 3), "f4"), "y": np.zeros(3, "f4")})
        with pytest.raises(StepError, match="columns of 0 values"):
            writer.add_one_step_episodes({"x": np.zeros((0, 3), "f4"), "y": np.zeros(0, "f4")})
        writer.append(x=np.zeros(3, "f4"), y=1.0)
        with pytest.raises(StepError, match="an episode is open"):
            writer.add_one_step_episodes({"x": np.zeros((2, 3), "f4"), "y": np.zeros(2, "f4")})
        writer.end_episode()
    assert len(store) == 1


class Samples:
    """Ten samples, read three at a time; the eighth is bad."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> EpisodeData:
        if index == self.bad:
            raise ValueError("no digits")
        return EpisodeData({"x": np.array([index], "i8")})

    def one_step_episodes(self, start: int, stop: int) -> dict[str, Any] | None:
        if start == 4:
            return None
        values = np.arange(start, min(start + 3, stop))
        if self.bad in values:
            raise ValueError("one of them")
        return {"x": values}


def test_a_source_gives_as_many_at_a_time_as_it_likes(tmp_path: Path) -> None:
    store = write_episodes(tmp_path / "a", Samples(), workers=1, chunk_episodes=4, progress=False)
    assert [episode["x"].tolist() for episode in store] == [[k] for k in range(10)]
    assert [segment.num_rows for segment in store.segments] == [4, 4, 2]


def test_a_bad_one_among_many_is_named(tmp_path: Path) -> None:
    with pytest.raises(stepwell.errors.WorkerError, match="item 7 could not be written: ValueError: no digits"):
        write_episodes(tmp_path / "a", Samples(bad=7), workers=1, progress=False)


def test_many_are_not_asked_for_again_when_one_of_them_is_bad(tmp_path: Path) -> None:
    class Counted(Samples):
        asked: ClassVar[list[int]] = []

        def one_step_episodes(self, start: int, stop: int) -> dict[str, Any] | None:
            self.asked.append(start)
            raise ValueError("one of them")

    store = write_episodes(tmp_path / "a", Counted(), workers=1, chunk_episodes=5, progress=False)
    assert len(store) == 10 and Counted.asked == [0, 5]
