"""The table of sealed segments: a store shows the same with it, without it, and with one that is behind or damaged."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import CorruptSegmentError, SegmentGoneError
from stepwell.store import snapshot
from stepwell.store.layout import list_keys, name_of_key
from stepwell.store.snapshot import TABLE, load_table, read_table

SCHEMA = {"x": stepwell.Array((), "int64", final=True), "note": stepwell.Text()}


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    """Write a table as soon as there is a segment that it does not have."""
    monkeypatch.setattr(snapshot, "MIN_NEW", 1)
    monkeypatch.setattr(snapshot, "NEW_SHARE", 10**9)


def record(store, numbers, *, per_segment=1, discard=False):
    for number in numbers:
        with store.writer() as writer:
            for each in range(number * per_segment, (number + 1) * per_segment):
                columns = {"x": np.arange(1 + each % 3 + each % 2) + 100 * each, "note": [str(each)] * (1 + each % 3)}
                writer.add_episode(columns, truncated=True, number=each)
                if discard:
                    writer.append(x=-1, note="taken back")
                    writer.discard_episode()


def seen(store):
    """Return all that a store shows of its episodes."""
    table = store.episodes
    columns = [getattr(table, name).tolist() for name in ("start", "length", "rows", "origin", "record", "is_open")]
    columns += [[store.segments[number].name for number in table.segment.tolist()]]
    values = [(episode["x"].tolist(), list(episode["note"]), episode.metadata) for episode in store]
    return columns, values


def without_table(path):
    """Return what a store shows to a reader that finds no table."""
    (path / TABLE).rename(path / "aside")
    try:
        return seen(stepwell.open(path, mode="r"))
    finally:
        (path / "aside").rename(path / TABLE)


ACTIONS = st.lists(
    st.sampled_from(["record", "live", "close", "delete", "compact", "column", "discard", "keep", "restore", "spoil"]),
    min_size=2,
    max_size=9,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, seed=st.integers(0, 99))
def test_a_store_shows_the_same_with_its_table_without_it_and_with_one_that_is_behind(tmp_path_factory, actions, seed):
    path = tmp_path_factory.mktemp("table") / "a.well"
    store, random = stepwell.create(path, SCHEMA, segment_bytes=200), np.random.default_rng(seed)
    count, live, kept, columns = 0, None, path.parent / "kept", 0
    for action in ["record", *actions]:
        if action in ("record", "discard"):
            record(store, range(count, count + 2), per_segment=2, discard=action == "discard")
            count += 2
        elif action == "live" and live is None and columns == 0:
            live = store.writer()
            live.append(x=7, note="live")
        elif action == "close" and live is not None:
            live.close()
            live = None
        elif action == "delete" and live is None and len(store):
            store.delete_episodes(random.integers(len(store)))
        elif action == "compact" and live is None:
            store.compact()
        elif action == "column" and live is None and columns == 0:
            store.add_column("y", stepwell.Array(()), lambda episode: np.zeros(episode.length, np.float32))
            columns += 1
            break
        elif action == "keep" and (path / TABLE).exists():
            shutil.copy(path / TABLE, kept)
        elif action == "restore" and kept.exists():
            shutil.copy(kept, path / TABLE)
        elif action == "spoil" and (path / TABLE).exists():
            data = bytearray((path / TABLE).read_bytes())
            data[random.integers(len(data))] ^= 1 << random.integers(8)
            (path / TABLE).write_bytes(data)
        store.refresh()
        reader = stepwell.open(path, mode="r")
        assert seen(reader) == seen(store)
        if (path / TABLE).exists():
            assert seen(reader) == without_table(path)
    if live is not None:
        live.close()
    again = stepwell.open(path)
    assert len(read_table(str(path))) == len([s for s in again.segments if s.is_sealed])
    assert seen(again) == without_table(path)
    assert again.verify(deep=True).is_ok


def test_concatenations_and_checkpoints_show_what_their_sources_do(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record(store, range(4))
    store = stepwell.open(store.path)
    copy = stepwell.open(store.checkpoint(tmp_path / "b.well"))
    whole = stepwell.concatenate(tmp_path / "c.well", [store, copy])
    assert seen(copy) == seen(store)
    assert seen(whole)[1] == 2 * seen(store)[1]
    for made in (copy, whole):
        assert (made.path / TABLE).exists()
        assert seen(made) == without_table(made.path)


def test_a_ring_has_no_table(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=8, segment_bytes=200)
    record(store, range(9))
    store = stepwell.open(store.path)
    assert not (store.path / TABLE).exists()
    assert store.num_steps <= 8


def test_readers_write_no_table_and_need_no_right_to(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record(store, range(3))
    (store.path / TABLE).unlink()
    reader = stepwell.open(store.path, mode="r")
    reader.refresh()
    assert len(reader) == 3
    assert not (store.path / TABLE).exists()


def test_segments_are_opened_when_they_are_asked_for(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record(store, range(6), per_segment=2)
    made = []
    original = stepwell.store.segments.Segment.__init__
    monkeypatch.setattr(
        stepwell.store.segments.Segment,
        "__init__",
        lambda self, directory, *rest, **options: made.append(directory) or original(self, directory, *rest, **options),
    )
    reader = stepwell.open(store.path, mode="r")
    assert (len(reader), reader.num_steps, len(made)) == (12, store.num_steps, 0)
    assert reader[7]["x"].tolist() == store[7]["x"].tolist()
    assert len(made) == 1
    assert reader.segments[3] is reader.segments[3]
    reader.refresh()
    record(store, [6], per_segment=2)
    reader.refresh()
    assert len(reader) == 14
    assert len(made) <= 3
    assert reader.segments[3] is reader.segments[-4]


def test_a_segment_that_is_not_there_is_not_shown_and_one_that_goes_later_is_an_error(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record(store, range(4))
    names = [segment.name for segment in store.segments]
    shutil.rmtree(store.path / "segments" / names[1])
    reader = stepwell.open(store.path, mode="r")
    assert [segment.name for segment in reader.segments] == [names[0], names[2], names[3]]
    assert [episode.metadata["number"] for episode in reader] == [0, 2, 3]
    shutil.rmtree(store.path / "segments" / names[2])
    with pytest.raises(SegmentGoneError):
        reader[1]["x"]
    assert reader.refresh()
    assert [episode.metadata["number"] for episode in reader] == [0, 3]


def test_a_segment_with_another_number_of_episodes_than_the_table_says_is_an_error(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record(store, range(2))
    segments = [segment.path for segment in store.segments]
    other = stepwell.create(tmp_path / "b.well", SCHEMA)
    record(other, [0], per_segment=3)
    shutil.copy(other.segments[0].path / "episodes.npy", segments[1] / "episodes.npy")
    reader = stepwell.open(store.path, mode="r")
    with pytest.raises(CorruptSegmentError, match="records of the store's table"):
        reader[1]["x"]
    assert "episodes.npy" in str(reader.verify())


def test_a_damaged_table_is_found_by_verify_and_replaced_by_the_next_to_write(tmp_path):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record(store, range(3))
    table = store.path / TABLE
    for place in (0, 18, 40, 70, -1):
        data = bytearray(table.read_bytes())
        data[place] ^= 4
        table.write_bytes(data)
        with pytest.raises(ValueError, match=r"crc32|begin|bytes"):
            load_table(str(store.path))
        assert len(stepwell.open(store.path, mode="r")) == 3
        assert [finding.file for finding in store.verify().findings] == [TABLE]
        assert len(stepwell.open(store.path)) == 3
        assert store.verify().is_ok
    table.write_bytes(table.read_bytes()[:50])
    assert len(stepwell.open(store.path, mode="r")) == 3


def test_keys_list_what_names_say(tmp_path):
    names = ["00000000-00ff", "00000003-7f3a", "123456789-0001", "00000002-abcd.open", "00000003-7f3a.open"]
    others = [
        ".new-00000004-1111",
        "00000005-7F3A",
        "0000006-7f3a",
        "00000007_7f3a",
        "000000008-7f3a",
        "notes",
        "x" * 40,
    ]
    for entry in names + others:
        (tmp_path / "segments" / entry).mkdir(parents=True)
    keys, opened = list_keys(str(tmp_path))
    assert [name_of_key(key) for key in keys.tolist()] == [
        "00000000-00ff",
        "00000002-abcd",
        "00000003-7f3a",
        "123456789-0001",
    ]
    assert [name_of_key(key) for key in opened.tolist()] == ["00000002-abcd"]


@pytest.mark.parametrize("looks", ["never", "between", "after"])
def test_a_name_that_comes_again_is_of_the_new_segment(tmp_path, looks):
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    record(store, range(4))
    store, reader = stepwell.open(store.path), stepwell.open(store.path, mode="r")
    assert len(read_table(str(store.path))) == 4
    name = store.segments[1].name
    shutil.rmtree(store.path / "segments" / name)
    if looks == "between":
        reader.refresh()
        store.refresh()
    other = stepwell.open(store.path)
    with other.writer(ordinal=1, tag=name[-4:]) as writer:
        writer.add_episode({"x": np.arange(5), "note": ["new"] * 5}, number=99)
    assert [episode.metadata["number"] for episode in other] == [0, 99, 2, 3]
    record(other, [4])
    if looks != "never":
        for each in (reader, store):
            each.refresh()
    if looks == "between":
        assert seen(reader) == seen(store) == seen(other)
    record(stepwell.open(store.path), [5])
    again = stepwell.open(store.path)
    assert [episode.length for episode in again] == [1, 5, 3, 1, 2, 3]
    assert seen(again) == without_table(store.path)
    assert again.verify().is_ok


def test_several_stores_of_one_path_write_one_table_in_any_order(tmp_path):
    path = stepwell.create(tmp_path / "a.well", SCHEMA).path
    stores = [stepwell.open(path) for _ in range(3)]

    def work(number):
        for _ in range(4):
            with stores[number].writer() as writer:
                writer.add_episode({"x": np.arange(3), "note": ["-"] * 3}, number=number)
            stepwell.open(path, mode="r").refresh()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    for store in [*stores, stepwell.open(path)]:
        store.refresh()
        assert len(store) == 12
        assert seen(store) == without_table(path)
    assert sorted(path.glob("*.tmp")) == []
