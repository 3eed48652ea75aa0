"""The vector writer: what n environments recorded at once is what plain lists say, in every reader, live and later."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, StepwellError, Text
from stepwell.errors import SchemaError, StepError, StoreVersionError, WriterClosedError
from stepwell.store.lanes import LANE_MARKS, LANE_STEPS
from tests.store.vector_models import SCHEMA, Model, observation, read

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
            max_size=40,
        ),
    )
)


@settings(max_examples=30, deadline=None)
@given(FLAG_LISTS, st.sampled_from([20, 60, 10_000]))
def test_every_reader_sees_what_was_recorded(calls: tuple[int, list[Any]], capacity: int) -> None:
    num_envs, steps = calls
    store = stepwell.create(":memory:", SCHEMA, capacity=capacity)
    live = stepwell.open(store.path, mode="r")
    model = Model(store.vector_writer(num_envs), num_envs)
    assert model.writer is not None
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
            assert read(live) == model.shown(capacity)
        if kind % 5 == 0:
            copy = stepwell.open(store.checkpoint(f"{store.path}/copy"), mode="r")
            expected = model.shown(capacity, ended_as="interrupted")
            assert read(copy) == expected
    expected = model.shown(capacity, ended_as="interrupted")
    assert read(store) == expected
    assert store.verify().is_ok, store.verify()
    whole = stepwell.concatenate(f"{store.path}-joined", [store])
    assert read(whole) == expected
    whole.compact()
    assert read(whole) == expected
    assert whole.verify().is_ok, whole.verify()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**31), st.booleans()), min_size=1, max_size=8),
    st.sampled_from([30, 90, 10_000]),
    st.sampled_from(["none", "episode"]),
)
def test_steps_that_come_at_once_are_those_that_come_one_by_one(
    num_envs: int, batches: list[tuple[int, int, bool]], capacity: int, sync: Any
) -> None:
    store = stepwell.create(":memory:", SCHEMA, capacity=capacity, sync=sync)
    live = stepwell.open(store.path, mode="r")
    model = Model(store.vector_writer(num_envs), num_envs)
    assert model.writer is not None
    with model.writer:
        for count, seed, has_final in batches:
            ends = np.random.default_rng(seed).integers(0, 12, (count, num_envs))
            model.batch(ends, has_final=has_final)
            # and one as `append` stores it, between
            model.step([True] * num_envs, [False] * num_envs, [True] * num_envs, has_final=False)
            live.refresh()
            assert read(live) == model.shown(capacity)
    assert read(store) == model.shown(capacity, ended_as="interrupted")
    assert store.verify().is_ok, store.verify()


def test_refused_batches_leave_all_as_it_was(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    with store.vector_writer(2) as writer:
        good: dict[str, Any] = {"observation": np.zeros((3, 2, 2), np.float32), "action": np.zeros((3, 2), np.int64)}
        for steps, options, message in (
            ({"action": good["action"]}, {}, "observation"),
            ({**good, "action": np.zeros((2, 2), np.int64)}, {}, r"\[3, 2, ...\]"),
            ({**good, "action": np.zeros((3, 3), np.int64)}, {}, r"\[3, 2, ...\]"),
            ({**good, "observation": np.zeros((3, 2, 5), np.float32)}, {}, "observation"),
            (good, {"terminated": np.zeros(2, bool)}, r"bool \[3, 2\]"),
            (good, {"final": {"action": good["action"]}}, "final"),
            (good, {"final": {"observation": good["observation"][:2]}}, r"\[3, 2, ...\]"),
            (good, {"out": np.zeros((3, 2), np.int32)}, "out"),
        ):
            with pytest.raises(StepError, match=message):
                writer.append_batch(steps, **options)
        assert len(writer.append_batch({name: rows[:0] for name, rows in good.items()})) == 0
        # other types and orders of memory are taken where `append` takes them
        listed = {"observation": np.zeros((2, 3, 2), np.float32).swapaxes(0, 1), "action": [[1, 2], [3, 4], [5, 6]]}
        out = np.full((3, 2), -1)
        assert writer.append_batch(listed, out=out) is out
    assert sorted(episode["action"].tolist() for episode in store) == [[1, 3, 5], [2, 4, 6]]


def test_long_episodes_go_on_in_the_next_segment(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=40)
    model = Model(store.vector_writer(2), 2)
    assert model.writer is not None
    with model.writer:
        for t in range(60):
            model.step([True, t % 3 > 0], [False, t % 7 == 0], [False, False], has_final=True)
            store.refresh()
            assert read(store) == model.shown(40)
    assert len({name.name for name in (tmp_path / "ring.well" / "segments").iterdir()}) <= 4
    assert any(episode.skipped for episode in store)


def test_capacity_in_bytes_counts_final_rows(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity="1600 B")
    with store.vector_writer(4) as writer:
        for t in range(50):
            numbers = np.arange(4 * t, 4 * t + 4)
            done = np.full(4, t % 2 == 1)
            writer.append(observation=observation(numbers), action=numbers, terminated=done,
                          final={"observation": observation(numbers)})  # fmt: skip
            store.refresh()
            rows = sum(len(episode["observation"]) for episode in store)
            assert 16 * rows <= 1600
            assert 16 * (rows + 8) > 1600 or t < 18
            assert max(episode["action"].max() for episode in store) == numbers.max()


def test_refusals_leave_all_as_it_was(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    numbers = np.arange(3)
    with store.vector_writer(3) as writer:
        writer.append(observation=observation(numbers), action=numbers)
        with pytest.raises(StepError, match="2 values of 3 environments"):
            writer.append(observation=observation(numbers), action=numbers[:2])
        with pytest.raises(StepError, match="observation"):
            writer.append(observation=np.zeros((3, 5), np.float32), action=numbers)
        with pytest.raises(StepError, match="action"):
            writer.append(observation=observation(numbers))
        with pytest.raises(StepError, match="terminated of dtype"):
            writer.append(observation=observation(numbers), action=numbers, terminated=numbers)
        with pytest.raises(StepError, match="final=True"):
            writer.append(
                observation=observation(numbers), action=numbers, terminated=numbers > 1, final={"action": numbers}
            )
        step = {"observation": observation(numbers), "action": numbers}
        with pytest.raises(StepError, match=r"and 'done' beside it\. Give all"):
            writer.append(step, done=numbers > 1)
        with pytest.raises(StepError, match=r"'action': got 3\. Give an array \[t, 3, \.\.\.\]"):
            writer.append_batch({**step, "action": 3})
        ids = writer.append({"observation": observation(numbers).tolist(), "action": [7, 8, 9]})
        assert (np.diff(ids) > 0).all()
    assert [episode.length for episode in store] == [2, 2, 2]
    assert store[1]["action"].tolist() == [1, 8]
    with pytest.raises(WriterClosedError):
        writer.append(observation=observation(numbers), action=numbers)


def test_metadata_goes_to_the_episodes_that_end(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    numbers = np.arange(3)
    with store.vector_writer(3) as writer:
        done = np.array([True, False, True])
        writer.append(observation=observation(numbers), action=numbers, truncated=done, metadata={2: {"seed": 5}})
        writer.end_episodes(metadata={1: {"reset": True}})
    assert [episode.metadata for episode in store] == [{}, {"seed": 5}, {"reset": True}]


def test_numbers_of_environments_and_writers_that_cannot_be_are_refused(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "plain.well", SCHEMA)
    for number in (0, 1.5):
        with pytest.raises(StepwellError, match="1 to 65536"):
            store.vector_writer(number)  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="writers=4"):
        store.vector_writer(3, writers=4)


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
        writer.append(observation=observation(np.arange(1)), action=np.arange(1))
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
            writer.append(observation=observation(numbers), action=numbers)
    (segment,) = (tmp_path / "ring.well" / "segments").iterdir()
    data = bytearray((segment / file).read_bytes())
    data[-1 if file == "episodes.npy" else 130] ^= 0x55
    (segment / file).write_bytes(data)
    assert [found.file.rpartition("/")[2] for found in store.verify().findings] == [file]


def test_a_column_is_added_where_episodes_lie(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=60)
    model = Model(store.vector_writer(3), 3)
    assert model.writer is not None
    with model.writer:
        for t in range(40):
            model.step([True] * 3, [t % 7 == env for env in range(3)], [False] * 3, has_final=True)
    store.add_column("twice", Array((), "int64"), lambda episode: 2 * episode["action"])
    assert store.verify().is_ok, store.verify()
    assert all((episode["twice"] == 2 * episode["action"]).all() for episode in store)
    with pytest.raises(SchemaError, match="vector writer"):
        store.add_column("note", Text(), lambda episode: [""] * episode.length)


def test_views_in_all_orders_and_conversions_read_lanes(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=200)
    model = Model(store.vector_writer(3), 3)
    assert model.writer is not None
    with model.writer:
        for t in range(120):
            model.step([True, t % 3 > 0, True], [t % 7 == env for env in range(3)], [False] * 3, has_final=True)
    steps = sorted(step for steps, _, _ in read(store) for step in steps)
    fields = {"action": "action", "observation": stepwell.Field("observation", [0])}
    for order in (stepwell.sequential(), stepwell.random(seed=1), stepwell.pooled(bytes="4 KB")):
        batches = islice(stepwell.Loader(store, fields, batch_size=1, order=order), len(steps))
        found = []
        for batch in batches:
            assert (batch["observation"][:, 0, 0] == batch["action"]).all()
            found += batch["action"].tolist()
        assert sorted(found) == steps
    stepwell.convert(store, tmp_path / "plain.well", {"action": Array((), "int64", codec="zstd")}, progress=False)
    assert read(stepwell.open(tmp_path / "plain.well")) == read(store)


@pytest.mark.parametrize("way", ["end", "discard", "close", "step"])
@pytest.mark.parametrize("sync", ["none", "step"])
def test_an_environment_that_waits_at_a_cut_loses_nothing(tmp_path: Path, way: str, sync: Any) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=40, sync=sync)
    live = stepwell.open(store.path, mode="r")
    waits = np.array([False, True, False])
    with store.vector_writer(3) as writer:
        writer.append(observation=observation(np.arange(3)), action=np.arange(3))
        ordinals: set[int] = set()
        number = 2
        while len(ordinals) < 2:
            # environment 1 waits, and the others are cut; environment 2 begins to wait later
            number += 1
            ids = writer.append(
                observation=observation(np.full(3, number)),
                action=np.full(3, number),
                mask=np.array([True, False, number < 5]),
            )
            ordinals.add(int(ids[0]) >> 32)
        live.refresh()
        assert [1] in [steps for steps, _, ending in read(live) if ending == "open"]
        if way == "end":
            final = {"observation": observation(np.full(3, 99))}
            writer.end_episodes(waits, terminated=True, final=final, metadata={1: {"seed": 5}})
        elif way == "discard":
            writer.discard_episodes(waits)
        if way != "close":
            writer.append(observation=observation(np.full(3, 5000)), action=np.full(3, 5000))
        live.refresh()
        expected = {
            "end": [([1], 99, "terminated"), ([5000], None, "open")],
            "discard": [([5000], None, "open")],
            "close": [([1], None, "open")],
            "step": [([1, 5000], None, "open")],
        }[way]
        assert [each for each in read(live) if each[0][0] in {1, 5000}] == expected
        metadata = [episode.metadata for episode in live if episode.terminated]
        assert metadata == ([{"seed": 5}] if way == "end" else [])
    shown = [each for each in read(store) if each[0][0] in {1, 5000}]
    assert shown == [(*each[:2], "interrupted" if each[2] == "open" else each[2]) for each in expected]
    assert store.verify().is_ok


def test_segments_in_which_environments_wait_go_when_nothing_of_them_is_shown(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=60)
    with store.vector_writer(2) as writer:
        writer.append(observation=observation(np.arange(2)), action=np.arange(2))
        for number in range(2, 200):
            numbers = np.full(2, number)
            writer.append(observation=observation(numbers), action=numbers, mask=np.array([True, False]))
        writer.flush()
        assert len(list((store.path / "segments").iterdir())) < 20
        # it goes on as the one that it is
        writer.append(observation=observation(np.full(2, 200)), action=np.full(2, 200))
        store.refresh()
        assert sorted(
            (episode.skipped, episode["action"].tolist()) for episode in store if episode["action"][-1] == 200
        )[0] == (1, [200])
    assert store.verify().is_ok


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), min_size=1, max_size=30))
def test_lines_of_metadata_are_those_that_were_given(ends: list[tuple[int, bool]]) -> None:
    store = stepwell.create(":memory:", SCHEMA, capacity=10_000)
    live = stepwell.open(store.path, mode="r")
    expected: list[Any] = []
    with store.vector_writer(3) as writer:
        for number, (mask, has_metadata) in enumerate(ends):
            done = np.array([bool(mask & 1), bool(mask & 2), bool(mask & 4)])
            metadata = {env: {"text": "x" * (number + env)} for env in range(3)} if has_metadata else None
            numbers = np.arange(3) + 3 * number
            writer.append(observation=observation(numbers), action=numbers, terminated=done, metadata=metadata)
            expected += [metadata[env] if metadata else {} for env in np.flatnonzero(done).tolist()]
            live.refresh()
            assert [episode.metadata for episode in live if not episode.is_open] == expected
        num_ended = len(expected)
        copy = stepwell.open(store.checkpoint(f"{store.path}/copy"), mode="r")
    assert store.verify().is_ok
    for each in (store, copy):
        found = [episode.metadata for episode in each]
        assert (found[:num_ended], {*map(len, found[num_ended:])} <= {0}) == (expected, True)


def test_a_step_of_no_environment_leaves_nothing(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    live, nobody = stepwell.open(store.path, mode="r"), np.zeros(2, np.bool_)
    with store.vector_writer(2) as writer:
        writer.append(observation=observation(np.arange(2)), action=np.arange(2))
        files = sorted((store.path / "segments").glob("*.open/*"))
        before = [(file.stat().st_size, file.read_bytes()) for file in files]
        for _ in range(3000):
            ids = writer.append(observation=observation(np.arange(2)), action=np.arange(2), mask=nobody)
            assert ids.tolist() == [-1, -1]
        assert [(file.stat().st_size, file.read_bytes()) for file in files] == before
        writer.append(observation=observation(np.arange(2, 4)), action=np.arange(2, 4))
        live.refresh()
    assert [episode["action"].tolist() for episode in store] == [[0, 2], [1, 3]]


@pytest.mark.parametrize("capacity", [3, "20 B"])
def test_a_ring_without_room_for_a_step_of_each_environment_is_refused(tmp_path: Path, capacity: Any) -> None:
    store = stepwell.create(tmp_path / "ring.well", {"action": Array((), "int64")}, capacity=capacity)
    with store.vector_writer(4) as writer, pytest.raises(StepError, match="those of 4 environments never"):
        writer.append(action=np.arange(4))
    with store.vector_writer(2) as writer:
        writer.append(action=np.arange(2))
    assert store.num_steps == 2
