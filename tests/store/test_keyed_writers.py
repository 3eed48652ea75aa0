"""Writers with a key: tasks that are tried again leave their episodes once, in the order of the keys."""

import pickle
import random
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import stepwell
from stepwell import Array, CorruptSegmentError, StepwellError, Store, StoreBusyError
from stepwell.store.arrangement import ARRANGEMENT
from stepwell.store.concatenation import concatenate
from stepwell.store.key_notes import MAX_KEY
from stepwell.store.manifests import seal_json

SCHEMA = {"state": Array(2), "action": Array((), "int64")}
KEYS = ("task-1", "task-10", "task-2", "Ünit", "été")


def write(store: Store, key: str, *, ends: int = 3, attempt: int = 0) -> stepwell.Writer:
    """Write the first episodes of a task, and return the writer as it is then."""
    writer = store.writer(key=key)
    for number in range(ends):
        seed = KEYS.index(key) * 10 + number
        length = 1 + seed % 4
        action = np.arange(length) + 100 * seed
        writer.add_episode({"state": np.full((length, 2), seed, "float32"), "action": action}, key=key, number=number)
    if attempt:
        writer.append(state=[-1.0, -1.0], action=-attempt)
    return writer


def contents(store: Store) -> list[tuple[object, ...]]:
    return [(e.metadata["key"], e.metadata["number"], e["action"].tolist(), e["state"].tolist()) for e in store]


def expected(store: Store, keys: tuple[str, ...] = KEYS) -> None:
    """Assert that the store shows each task once, in order, opened anew as well."""
    names = [(key, number) for key in sorted(keys) for number in range(3)]
    store.refresh()
    assert [(e.metadata.get("key"), e.metadata.get("number")) for e in store] == names
    assert contents(stepwell.open(store.path, mode="r")) == contents(store)
    assert store.verify().is_ok


def record(path: Path, seed: int) -> Store:
    """Run all tasks in a random order, some of which die and some of which are run twice."""
    draw = random.Random(seed)
    store = stepwell.create(path, SCHEMA)
    runs = [(key, attempt) for key in KEYS for attempt in range(draw.randint(1, 3))]
    draw.shuffle(runs)
    for key, attempt in runs:
        writer = write(store, key, ends=draw.randint(0, 3), attempt=attempt) if draw.random() < 0.6 else None
        if writer is not None and draw.random() < 0.5:
            writer.close()
        # else abandoned: its steps stay as those of a killed one
        del writer
    for key in draw.sample(KEYS, len(KEYS)):
        write(store, key).close()
    return store


def loaded(store: Store) -> list[list[int]]:
    orders: tuple[Literal["random", "pooled"], ...] = ("random", "pooled")
    found = []
    for order in orders:
        loader = stepwell.Loader(store, {"action": "action"}, batch_size=4, seed=3, order=order)
        found += [batch["action"].tolist() for batch in pickle.loads(pickle.dumps(loader))]
    return found


def test_the_store_is_the_same_whatever_order_tasks_ran_in_and_however_often(tmp_path: Path) -> None:
    first, *others = [record(tmp_path / f"{seed}.well", seed) for seed in range(4)]
    expected(first)
    for other in others:
        expected(other)
        assert contents(other) == contents(first)
        assert loaded(other) == loaded(first)


def test_a_second_writer_of_a_key_replaces_what_the_first_left(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    write(store, "task-1").close()
    reader = stepwell.open(store.path, mode="r")
    held = reader[0]["action"]
    writer = store.writer(key="task-1")
    assert len(store) == 0
    assert held.tolist() == [0]
    writer.add_episode({"state": np.zeros((1, 2), "float32"), "action": [7]})
    writer.close()
    reader.refresh()
    assert [episode["action"].tolist() for episode in reader] == [[7]]
    assert [path.name for path in store.path.glob("segments/*/key.json")] == ["key.json"]


def test_two_live_writers_of_one_key_are_refused(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    idle = store.writer(key="task-1")
    with pytest.raises(StoreBusyError, match="'task-1'"):
        stepwell.open(store.path).writer(key="task-1")
    store.writer(key="task-2").close()
    idle.close()
    writer = write(store, "task-1")
    with pytest.raises(StoreBusyError, match="'task-1'"):
        store.writer(key="task-1")
    writer.close()
    assert len(store) == 3
    write(store, "task-1").close()
    assert not list((store.path / "keys").iterdir())


def test_segments_without_a_key_come_first(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    write(store, "task-2").close()
    with store.writer() as writer:
        writer.add_episode({"state": np.zeros((1, 2), "float32"), "action": [7]})
    write(store, "task-1").close()
    assert [episode.metadata.get("key") for episode in store] == [None, *["task-1"] * 3, *["task-2"] * 3]


def test_changes_keep_the_order(tmp_path: Path) -> None:
    store = record(tmp_path / "a.well", 5)
    before = contents(store)
    store.checkpoint(tmp_path / "copy.well")
    copy = stepwell.open(tmp_path / "copy.well")
    joined = concatenate(tmp_path / "joined.well", [store, copy])
    assert contents(copy) == before
    assert contents(joined) == before + before
    store.delete_episodes([4, 6])
    kept = [row for number, row in enumerate(before) if number not in (4, 6)]
    store.compact()
    assert contents(store) == contents(stepwell.open(store.path, mode="r")) == kept
    store.add_column("reward", Array(()), lambda episode: np.ones(episode.length, np.float32))
    assert contents(store) == kept
    # those of a compacted segment, and those of a copy, are replaced as well
    for each in (copy, stepwell.open(store.path)):
        if "reward" in (each.schema or {}):
            with each.writer(key="task-10"):
                pass
            assert [row[0] for row in contents(each)].count("task-10") == 0
        else:
            write(each, "task-10").close()
            assert contents(each) == before


def test_compaction_merges_segments_of_one_key_only(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    for key in ("task-2", "task-1"):
        write(store, key).close()
    with store.writer() as writer:
        writer.add_episode({"state": np.zeros((1, 2), "float32"), "action": [7]}, key="", number=0)
    with store.writer() as writer:
        writer.add_episode({"state": np.zeros((1, 2), "float32"), "action": [8]}, key="", number=1)
    before = contents(store)
    store.compact()
    assert contents(store) == before
    assert len(store.segments) == 3


@pytest.mark.parametrize("key", ["", "x" * (MAX_KEY + 1), 17, "\ud800"])
def test_what_is_no_key_is_refused(tmp_path: Path, key: str) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    with pytest.raises(StepwellError, match="key"):
        store.writer(key=key)


def test_rings_and_given_places_have_no_keys(tmp_path: Path) -> None:
    ring = stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=100)
    with pytest.raises(StepwellError, match="rings"):
        ring.writer(key="task-1")
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    with pytest.raises(StepwellError, match="ordinal"):
        store.writer(key="task-1", ordinal=store.reserve_ordinals(1))


@pytest.mark.parametrize(
    "keys", [[], {"../../etc": "a"}, {"00000000-7f3a": ""}, {"00000000-7f3a": 3}, {"00000000-7f3a": "x" * 201}, "a"]
)
def test_damaged_keys_are_found(tmp_path: Path, keys: object) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record = {"sequence": 1, "positions": {}, "hidden": [], "keys": keys}
    (store.path / ARRANGEMENT).write_bytes(seal_json(record))
    with pytest.raises(CorruptSegmentError, match="arrangement"):
        stepwell.open(store.path)
