"""The vector writer: what n environments recorded at once is what plain lists say, in every reader, live and later."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, Image, Store, Text
from stepwell.errors import SchemaError, StepError, StoreVersionError, WriterClosedError
from stepwell.store.lanes import LANE_MARKS, LANE_STEPS

SCHEMA = {"observation": Array(2, final=True), "action": Array((), "int64")}


@dataclass
class Recorded:
    """An episode as the test recorded it: the number of each step, and how it ended."""

    env: int
    steps: list[int]
    final: int | None = None
    ending: str = "open"
    # number of the vector step of each step
    times: list[int] = field(default_factory=list)


class Model:
    """Records into a store by a vector writer, and keeps what should be there in lists."""

    def __init__(self, store: Store, num_envs: int) -> None:
        self.store, self.num_envs = store, num_envs
        self.writer = store.vector_writer(num_envs)
        self.episodes: list[Recorded] = []
        self.open: dict[int, Recorded] = {}
        self.time = self.count = 0

    def step(self, mask: list[bool], terminated: list[bool], truncated: list[bool], *, has_final: bool) -> None:
        numbers = np.arange(self.count, self.count + self.num_envs)
        self.count += 2 * self.num_envs
        finals = numbers + self.num_envs
        options: dict[str, Any] = {} if all(mask) else {"mask": np.array(mask)}
        if any(terminated):
            options["terminated"] = np.array(terminated)
        if any(truncated):
            options["truncated"] = np.array(truncated)
        if has_final:
            options["final"] = {"observation": _observation(finals)}
        ids = self.writer.append(observation=_observation(numbers), action=numbers, **options)
        assert (ids >= 0).tolist() == mask
        for env in np.flatnonzero(mask).tolist():
            episode = self.open.get(env)
            if episode is None:
                episode = self.open[env] = Recorded(env, [])
                self.episodes.append(episode)
            episode.steps.append(int(numbers[env]))
            episode.times.append(self.time)
            if terminated[env] or truncated[env]:
                self.end(env, "terminated" if terminated[env] else "truncated", int(finals[env]) if has_final else None)
        self.time += 1

    def end(self, env: int, ending: str, final: int | None) -> None:
        episode = self.open.pop(env, None)
        if episode is not None:
            episode.ending, episode.final = ending, final

    def discard(self, mask: list[bool]) -> None:
        self.writer.discard_episodes(np.array(mask))
        for env in np.flatnonzero(mask).tolist():
            self.end(env, "discarded", None)

    def end_some(self, mask: list[bool]) -> None:
        self.writer.end_episodes(np.array(mask), truncated=True)
        for env in np.flatnonzero(mask).tolist():
            self.end(env, "truncated", None)

    def shown(self, capacity: int) -> tuple[list[Any], int]:
        """Return (steps, final, ending) of all that a ring shows, sorted; and how many steps that are."""
        sizes = np.zeros(self.time, np.int64)
        for episode in self.episodes:
            np.add.at(sizes, episode.times, 1)
        kept = np.cumsum(sizes[::-1])[::-1] <= capacity
        first = int(np.argmax(kept)) if kept.any() else self.time
        found = []
        for episode in self.episodes:
            steps = [step for step, time in zip(episode.steps, episode.times, strict=True) if time >= first]
            if steps and episode.ending != "discarded":
                found.append((steps, episode.final, episode.ending))
        return sorted(found), sum(len(steps) for steps, _, _ in found)


def _observation(numbers: Any) -> Any:
    return np.stack([numbers, -numbers], axis=1).astype(np.float32)


def read(store: Store) -> list[Any]:
    """Return (steps, final, ending) of all episodes, pieces joined, sorted."""
    pieces: dict[int, list[Any]] = {}
    for episode in store:
        key = int(store.episodes.origin[episode.index])
        pieces.setdefault(key, []).append(episode)
    found = []
    for parts in pieces.values():
        parts.sort(key=lambda part: part.skipped)
        steps: list[int] = []
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            steps += part["action"].tolist()
            observation = part["observation"]
            assert observation[: part.length, 0].tolist() == part["action"].tolist()
            assert (observation[:, 0] == -observation[:, 1]).all()
            if part.goes_on and part.has_final and after is not None:
                assert observation[-1, 0] == after["observation"][0, 0]
        last = parts[-1]
        final = int(last["observation"][-1, 0]) if last.has_final and not last.goes_on else None
        names = ("terminated", "truncated", "interrupted", "is_open")
        ending = next((name for name in names if getattr(last, name)), "ended")
        found.append((steps, final, {"is_open": "open"}.get(ending, ending)))
    return sorted(found)


FLAG_LISTS = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(
            st.tuples(
                st.lists(st.booleans(), min_size=n, max_size=n),
                st.lists(st.integers(0, 9), min_size=n, max_size=n),
                st.integers(0, 30),
            ),
            min_size=1,
            max_size=60,
        ),
    )
)


@settings(max_examples=60, deadline=None)
@given(FLAG_LISTS, st.sampled_from([20, 60, 10_000]))
def test_every_reader_sees_what_was_recorded(calls: tuple[int, list[Any]], capacity: int) -> None:
    num_envs, steps = calls
    store = stepwell.create(":memory:", SCHEMA, capacity=capacity)
    live = stepwell.open(store.path, mode="r")
    model = Model(store, num_envs)
    with model.writer:
        for mask, ends, kind in steps:
            if kind == 0:
                model.discard(mask)
            elif kind == 1:
                model.end_some(mask)
            else:
                everybody = [True] * num_envs if kind % 2 else mask
                terminated = [end == 0 for end in ends]
                truncated = [end == 1 for end in ends]
                model.step(everybody, terminated, truncated, has_final=kind % 3 > 0)
            live.refresh()
            assert read(live) == model.shown(capacity)[0]
        if kind % 5 == 0:
            copy = stepwell.open(store.checkpoint(f"{store.path}/copy"), mode="r")
            expected = [(s, f, "interrupted" if e == "open" else e) for s, f, e in model.shown(capacity)[0]]
            assert read(copy) == expected
    expected = [(s, f, "interrupted" if e == "open" else e) for s, f, e in model.shown(capacity)[0]]
    assert read(store) == expected
    assert store.verify().is_ok, store.verify()
    whole = stepwell.concatenate(f"{store.path}/joined", [store])
    assert read(whole) == expected
    whole.compact()
    assert read(whole) == expected
    assert whole.verify().is_ok, whole.verify()


def test_long_episodes_go_on_in_the_next_segment(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=40)
    model = Model(store, 2)
    with model.writer:
        for t in range(60):
            model.step([True, t % 3 > 0], [False, t % 7 == 0], [False, False], has_final=True)
            store.refresh()
            assert read(store) == model.shown(40)[0]
    assert len({name.name for name in (tmp_path / "ring.well" / "segments").iterdir()}) <= 4
    assert any(episode.skipped for episode in store)


def test_capacity_in_bytes_counts_final_rows(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity="1600 B")
    with store.vector_writer(4) as writer:
        for t in range(50):
            numbers = np.arange(4 * t, 4 * t + 4)
            done = np.full(4, t % 2 == 1)
            writer.append(observation=_observation(numbers), action=numbers, terminated=done,
                          final={"observation": _observation(numbers)})  # fmt: skip
            store.refresh()
            rows = sum(len(episode["observation"]) for episode in store)
            assert 16 * rows <= 1600
            assert 16 * (rows + 8) > 1600 or t < 18
            assert max(episode["action"].max() for episode in store) == numbers.max()


def test_refusals_leave_all_as_it_was(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    numbers = np.arange(3)
    with store.vector_writer(3) as writer:
        writer.append(observation=_observation(numbers), action=numbers)
        with pytest.raises(StepError, match="2 values of 3 environments"):
            writer.append(observation=_observation(numbers), action=numbers[:2])
        with pytest.raises(StepError, match="observation"):
            writer.append(observation=np.zeros((3, 5), np.float32), action=numbers)
        with pytest.raises(StepError, match="action"):
            writer.append(observation=_observation(numbers))
        with pytest.raises(StepError, match="terminated of dtype"):
            writer.append(observation=_observation(numbers), action=numbers, terminated=numbers)
        with pytest.raises(StepError, match="final=True"):
            writer.append(observation=_observation(numbers), action=numbers, final={"action": numbers})
        ids = writer.append({"observation": _observation(numbers).tolist(), "action": [7, 8, 9]})
        assert (np.diff(ids) > 0).all()
    assert [episode.length for episode in store] == [2, 2, 2]
    assert store[1]["action"].tolist() == [1, 8]
    with pytest.raises(WriterClosedError):
        writer.append(observation=_observation(numbers), action=numbers)


def test_metadata_goes_to_the_episodes_that_end(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    numbers = np.arange(3)
    with store.vector_writer(3) as writer:
        done = np.array([True, False, True])
        writer.append(observation=_observation(numbers), action=numbers, truncated=done, metadata={2: {"seed": 5}})
        writer.end_episodes(metadata={1: {"reset": True}})
    assert [episode.metadata for episode in store] == [{}, {"seed": 5}, {"reset": True}]


def test_stores_that_cannot_have_lanes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="capacity"):
        stepwell.create(tmp_path / "plain.well", SCHEMA).vector_writer(2)
    encoded = {"image": Image((16, 16, 3), codec="zstd"), "note": Text()}
    with pytest.raises(SchemaError, match="'image', 'note'"):
        stepwell.create(tmp_path / "ring.well", encoded, capacity=100).vector_writer(2)


def test_a_schema_is_inferred_from_one_environment(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", capacity=100)
    with store.vector_writer(2) as writer:
        writer.append(observation={"state": np.zeros((2, 3), np.float32)}, action=np.array([1, 2]))
    assert store.schema is not None
    assert store.schema["observation.state"].shape == (3,)
    assert len(store) == 2


def test_older_releases_refuse_a_store_with_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    assert b'"version": 1' in (tmp_path / "ring.well" / "store.json").read_bytes()
    with store.vector_writer(1) as writer:
        writer.append(observation=_observation(np.arange(1)), action=np.arange(1))
    assert b'"version": 2' in (tmp_path / "ring.well" / "store.json").read_bytes()
    monkeypatch.setattr("stepwell.store.records.LANES_VERSION", 1)
    from stepwell.store.records import _parse_record

    _parse_record.cache_clear()
    with pytest.raises(StoreVersionError, match="format version 2"):
        stepwell.open(tmp_path / "ring.well")
    _parse_record.cache_clear()


@pytest.mark.parametrize("file", [LANE_MARKS, LANE_STEPS, "episodes.npy", "action.npy"])
def test_a_damaged_file_is_found(tmp_path: Path, file: str) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    numbers = np.arange(3)
    with store.vector_writer(3) as writer:
        for _ in range(5):
            writer.append(observation=_observation(numbers), action=numbers)
    (segment,) = (tmp_path / "ring.well" / "segments").iterdir()
    data = bytearray((segment / file).read_bytes())
    data[-1 if file == "episodes.npy" else 130] ^= 0x55
    (segment / file).write_bytes(data)
    assert [found.file.rpartition("/")[2] for found in store.verify().findings] == [file]
