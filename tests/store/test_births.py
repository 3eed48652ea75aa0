"""Where episodes were first written: kept by every copy of them, so that splits of several stores are independent."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import CorruptSegmentError, View, WindowError, convert
from stepwell.json_text import seal_json
from stepwell.store.layout import ordinals_of_keys
from stepwell.store.records import births_of


def make(path, lengths, tag=0, **options):
    """Make a store of episodes that tell their store and number in metadata."""
    store = stepwell.create(path, {"x": stepwell.Array(())}, **options)
    add(store, len(lengths), tag)
    return store


def add(store, count, tag):
    first = len(store)
    for number in range(first, first + count):
        with store.writer() as writer:
            writer.add_episode({"x": np.zeros(3, np.float32)}, name=f"{tag}/{number}")


def sides(view, low=0.0, high=0.5, seed=0):
    """Return the names of a view's episodes that are on one side."""
    chosen = view.select(split=(low, high), seed=seed)
    names = []
    for part in chosen.parts:
        names += [part.table.metadata(index)["name"] for index in part.indices.tolist()]
    return set(names)


def births(store):
    table = store.episodes
    uuids, numbers = births_of(store.record, ordinals_of_keys(store.segments.keys)[table.segment], table.record)
    return [uuids[number] for number in numbers.tolist()]


def test_splits_of_many_stores_of_one_episode_have_about_their_shares(tmp_path):
    stores = [make(tmp_path / f"{k}.well", [3], k) for k in range(20)]
    whole = stepwell.concatenate(tmp_path / "whole.well", stores)
    for view in (View(stores), View(whole)):
        sizes = [len(view.select(split=(0, 0.5), seed=seed)) for seed in range(30)]
        # 600 fair coins: further from 300 than 90 once in 10^13
        assert abs(sum(sizes) - 300) < 90
        assert len(set(sizes)) > 3
        tests = [tuple(view.split(0.8, 0.2, seed=seed)[1].column("origin").tolist()) for seed in range(3)]
        assert {len(test) for test in tests} == {4}
    chosen = [View(stores).split(0.8, 0.2, seed=seed)[1].store_index.tolist() for seed in range(10)]
    assert len(set(map(tuple, chosen))) == 10


def test_stores_that_were_recorded_alike_split_independently(tmp_path):
    stores = [make(tmp_path / f"{k}.well", [3] * 10, k) for k in range(4)]
    whole = stepwell.concatenate(tmp_path / "whole.well", stores)
    equal = total = 0
    for seed in range(20):
        view = View(stores).select(split=(0, 0.5), seed=seed)
        in_store = np.zeros((4, 10), bool)
        in_store[view.store_index, view.episode_index] = True
        equal += sum((in_store[i] == in_store[j]).sum() for i in range(4) for j in range(i))
        total += 60
        assert sides(View(whole), seed=seed) == sides(View(stores), seed=seed)
    # pairs of fair coins agree in half of the cases: 600 of 1200, and never in all
    assert abs(equal - total / 2) < 150


ACTIONS = st.lists(
    st.sampled_from(["compact", "delete", "checkpoint", "concatenate", "twice", "convert", "record"]), max_size=5
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, seed=st.integers(0, 99))
def test_an_episode_stays_on_its_side_whatever_becomes_of_its_store(tmp_path_factory, actions, seed):
    folder = tmp_path_factory.mktemp("births")
    stores = [make(folder / f"{k}.well", [3] * 4, k) for k in range(2)]
    names = {f"{k}/{number}" for k in range(2) for number in range(4)}
    low = sides(View(stores), seed=seed)
    store = stepwell.concatenate(folder / "c.well", stores)
    for number, action in enumerate(actions):
        if action == "compact":
            store.compact()
        elif action == "delete":
            store.delete_episodes(seed % len(store))
        elif action == "checkpoint":
            store = stepwell.open(store.checkpoint(folder / f"{number}-check.well"))
        elif action == "concatenate":
            other = stepwell.create(folder / f"{number}-new.well", store.schema)
            store = stepwell.concatenate(folder / f"{number}-cat.well", [store, other])
        elif action == "twice":
            store = stepwell.concatenate(folder / f"{number}-cat.well", [store, store])
        elif action == "convert":
            convert(
                store, folder / f"{number}-zstd.well", {"x": "zstd" if store.schema["x"].is_raw else "lz4"}, workers=1
            )
            store = stepwell.open(folder / f"{number}-zstd.well")
        elif action == "record":
            store.compact()
            reserved = store.reserve_ordinals(2)
            add(store, 1, f"r{number}")
            with store.writer(ordinal=reserved) as writer:
                writer.add_episode({"x": np.zeros(3, np.float32)}, name=f"late {number}")
            assert births(stepwell.open(store.path, mode="r")).count(store.uuid) >= 2
        there = {episode.metadata["name"] for episode in store} & names
        assert sides(View(store), seed=seed) & names == low & there
        assert sides(View(store), 0.5, 1.0, seed=seed) & names == there - low
        assert store.verify().is_ok


def test_a_split_of_version_1_is_as_it_ever_was(tmp_path):
    stores = [make(tmp_path / f"{k}.well", [3] * 0, k, segment_bytes="1 MB") for k in range(2)]
    for store in stores:
        with store.writer() as writer:
            for length in range(3, 15):
                writer.add_episode({"x": np.zeros(length, np.float32)})
    view = View(stores)
    test = {0: [1, 8, 9], 7: [0, 8, 10]}
    some = {0: [0, 1, 8, 9], 7: [0]}
    for seed in (0, 7):
        parts = view.split(0.75, 0.25, seed=seed, version=1)
        assert parts[1].episode_index.tolist() == test[seed] * 2
        assert parts[0].refresh().episode_index.tolist() == [i for i in range(12) if i not in test[seed]] * 2
        chosen = view.select(split=(0.6, 1.0), seed=seed, split_version=1)
        assert chosen.episode_index.tolist() == some[seed] * 2
        add(stores[0], 1, 0)
        stores[0].delete_episodes(-1)
        assert chosen.refresh().episode_index.tolist() == some[seed] * 2
    for wrong in (0, 3, "1"):
        with pytest.raises(WindowError, match="no split of version"):
            view.split(0.5, version=wrong)
        with pytest.raises(WindowError, match="no split of version"):
            view.select(split=(0, 0.5), split_version=wrong)


@pytest.mark.parametrize("births", [[[1, 0, "a"], [0, 0, "b"]], [[0, -1, "a"]], [[0, 0]], "a", [[0, "x", "a"]]])
def test_births_that_cannot_be_are_damage(tmp_path, births):
    store = make(tmp_path / "a.well", [3])
    record = json.loads((store.path / "store.json").read_text())
    del record["crc32"]
    (store.path / "store.json").write_bytes(seal_json({**record, "births": births}))
    with pytest.raises(CorruptSegmentError):
        stepwell.open(store.path)
