"""Compaction shows the same episodes in the same order, whenever it is killed and whoever looks on."""

import contextlib
import errno
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell.errors import DiskFullError, ReadOnlyError, StoreBusyError
from stepwell.store import bulk_writing
from stepwell.store.maintenance import read_deleted
from stepwell.store.manifests import ARRANGEMENT_JSON


def segment_names(path):
    return {entry.name for entry in (Path(path) / "segments").iterdir()}


def test_compact_frees_deleted_and_discarded_episodes_and_keeps_the_order(wells):
    store = wells.make(discard=True)
    before = {entry.metadata["number"]: entry for entry in store}
    kept = {number: (entry.first_step_id, entry._table.origin[entry.index]) for number, entry in before.items()}
    times = store.episodes.time_ns.copy()
    store.delete_episodes([0, 3])
    freed = store.compact()
    assert freed > 0
    assert wells.shown(store) == [1, 2, 4, 5, 6]
    assert store.episodes.origin.tolist() == [kept[number][1] for number in (1, 2, 4, 5, 6)]
    assert store.episodes.time_ns.tolist() == np.delete(times, [0, 3]).tolist()
    assert sum(segment.num_rows for segment in store.segments) == store.episodes.rows.sum()
    wells.assert_sound(store)
    again = stepwell.open(store.path)
    assert wells.shown(again) == [1, 2, 4, 5, 6]


def test_compacting_twice_does_nothing_more(wells):
    store = wells.make(discard=True)
    store.delete_episodes(slice(0, 2))
    store.compact()
    names = segment_names(store.path)
    assert store.compact() == 0
    assert segment_names(store.path) == names


def test_a_segment_in_the_middle_keeps_its_place_when_compacted_again(wells):
    store = wells.make(range(12), segment_bytes=1)
    expected = list(range(12))
    for index in (5, 5, 2, 0):
        store.delete_episodes(index)
        del expected[index]
        store.compact()
        assert wells.shown(store) == expected
        wells.fill(store, range(12 + len(expected), 13 + len(expected)))
        expected.append(12 + len(expected))
        assert wells.shown(store) == expected
    assert wells.shown(stepwell.open(store.path, mode="r")) == expected
    wells.assert_sound(store)


def test_small_neighbours_are_merged_into_segments_of_about_the_wanted_size(wells):
    store = wells.make(range(30), segment_bytes=1)
    with stepwell.open(store.path) as other:
        record = other.record
        other.replace_record(type(record)(record.schema, segment_bytes=6_000, uuid=record.uuid))
    store = stepwell.open(store.path)
    assert len(store.segments) == 30
    store.compact()
    assert 1 < len(store.segments) < 10
    assert store.compact() == 0
    assert wells.shown(store) == list(range(30))
    wells.assert_sound(store)


def test_segments_without_a_kept_episode_are_removed(wells):
    store = wells.make(range(3))
    store.delete_episodes(slice(None))
    store.compact()
    assert (len(store), store.segments, segment_names(store.path)) == (0, [], set())
    wells.fill(store, range(3, 5))
    assert wells.shown(store) == [3, 4]


def test_step_ids_are_never_reused_by_compaction(wells):
    store = wells.make()
    before = {segment.name for segment in store.segments}
    highest = max(segment.ordinal for segment in store.segments)
    store.delete_episodes(slice(0, None, 2))
    store.compact()
    new = [segment for segment in store.segments if segment.name not in before]
    assert new and all(segment.ordinal > highest for segment in new)


def test_segments_of_live_writers_are_left_alone_and_not_jumped_over(wells):
    store = wells.make(range(2), segment_bytes=10**9)
    with store.writer() as writer:
        writer.add_episode(wells.episode_of(2, 3), truncated=True, number=2)
        wells.fill(store, range(3, 5))
        store.delete_episodes(0)
        store.compact()
        assert wells.shown(store) == [1, 2, 3, 4]
        writer.add_episode(wells.episode_of(6, 3), number=6)
    store.refresh()
    assert wells.shown(store) == [1, 2, 6, 3, 4]
    store.compact()
    assert wells.shown(store) == [1, 2, 6, 3, 4]
    assert len(store.segments) == 1


def test_a_kill_at_any_call_neither_loses_nor_doubles_an_episode(wells):
    store = wells.make(range(4), name="template/a.well", discard=True)
    store.delete_episodes(1)

    for folder in wells.kills(store.path.parent, lambda folder: stepwell.Store(str(folder / "a.well")).compact()):
        reader = stepwell.open(folder / "a.well", mode="r")
        assert wells.shown(reader) == [0, 2, 3]
        store = stepwell.open(folder / "a.well")
        assert wells.shown(store) == [0, 2, 3]
        wells.assert_sound(store)
        assert not store._follower._manifest.hidden
        reader.refresh()
        assert wells.shown(reader) == [0, 2, 3]
        store.compact()
        assert wells.shown(store) == [0, 2, 3]
        assert all(not segment.records["discarded"].any() for segment in store.segments)


@pytest.mark.parametrize("call", ["pwrite", "mkdir", "rename", "fsync"])
def test_a_disk_that_is_full_at_any_call_leaves_the_store_as_before(wells, monkeypatch, call):
    store = wells.make(range(4), discard=True)
    store.delete_episodes(1)
    original, failures = getattr(os, call), 0
    for failing in range(0, 1000, 3):
        calls = itertools.count()

        def call_or_fail(*args, calls=calls, failing=failing, **options):
            if next(calls) == failing:
                raise OSError(errno.ENOSPC, "no space")
            return original(*args, **options)

        with monkeypatch.context() as patch, contextlib.suppress(DiskFullError):
            patch.setattr(os, call, call_or_fail)
            store.compact()
        assert wells.shown(store) == [0, 2, 3]
        assert wells.shown(stepwell.open(store.path)) == [0, 2, 3]
        wells.assert_sound(store)
        if next(calls) <= failing:
            break
        failures += 1
    assert failures > 0


def test_an_episode_deleted_while_it_is_copied_stays_deleted(wells, monkeypatch):
    store = wells.make(discard=True)
    other = stepwell.open(store.path)
    copy = bulk_writing.write_manifest

    def delete_meanwhile(*args, **options):
        monkeypatch.setattr(bulk_writing, "write_manifest", copy)
        other.delete_episodes([1, 5])
        copy(*args, **options)

    monkeypatch.setattr(bulk_writing, "write_manifest", delete_meanwhile)
    store.compact()
    assert wells.shown(store) == [0, 2, 3, 4, 6]
    other.refresh()
    assert wells.shown(other) == [0, 2, 3, 4, 6]
    store.compact()
    assert wells.shown(store) == [0, 2, 3, 4, 6]


def test_deleting_by_indices_of_before_a_compaction_is_refused(wells):
    store = wells.make(discard=True)
    other = stepwell.open(store.path)
    store.compact()
    with pytest.raises(StoreBusyError, match="compacted since it was refreshed"):
        other.delete_episodes(0)
    other.refresh()
    assert other.delete_episodes(0) == 1
    assert wells.shown(other) == list(range(1, 7))


def test_ids_of_segments_long_gone_are_forgotten(wells):
    store = wells.make(range(12))
    for _ in range(4):
        store.delete_episodes(0)
        store.compact()
    assert len(read_deleted(str(store.path))) <= 2


def test_maps_and_episodes_taken_before_stay_readable(wells):
    store = wells.make(discard=True)
    old = store[2]
    segment = store.segments[int(store.episodes.segment[2])]
    actions = segment.raw_map("action")
    before = actions.copy()
    store.delete_episodes([0, 1])
    store.compact()
    assert np.array_equal(actions, before)
    with pytest.raises(FileNotFoundError):
        old["action"]


def test_a_table_taken_before_means_the_segments_of_then(wells):
    store = wells.make(range(9), segment_bytes=1)
    table, last = store.episodes, store[8]
    store.delete_episodes([0, 1])
    store.compact()
    wells.fill(store, range(9, 12))
    assert len(store.segments) != 9
    assert (last["text"], last.metadata) == (["8/0"], {"number": 8})
    assert table.metadata(8) == {"number": 8}


def test_two_at_once_are_refused(wells, monkeypatch):
    store = wells.make(discard=True)
    copy = bulk_writing.write_manifest

    def compact_too(*args, **options):
        monkeypatch.setattr(bulk_writing, "write_manifest", copy)
        with pytest.raises(StoreBusyError, match="compacted"):
            stepwell.open(store.path).compact()
        copy(*args, **options)

    monkeypatch.setattr(bulk_writing, "write_manifest", compact_too)
    store.compact()
    assert wells.shown(store) == list(range(7))


def test_a_store_opened_for_reading_is_refused(wells):
    store = wells.make()
    with pytest.raises(ReadOnlyError):
        stepwell.open(store.path, mode="r").compact()
    assert not (store.path / ARRANGEMENT_JSON).exists()


READER = """
import sys
import stepwell

path, states = sys.argv[1], 9
store = stepwell.open(path, mode="r")
seen = set()
print("ready", flush=True)
while len(seen) == 0 or min(seen) > 12 - states:
    store.refresh()
    try:
        numbers = [int(store[i]["observation"][0]) // 1000 for i in range(len(store))]
    except FileNotFoundError:
        continue
    assert numbers == list(range(12 - len(numbers), 12)), numbers
    seen.add(len(numbers))
print(len(seen), flush=True)
"""


def test_a_reader_in_another_process_sees_every_episode_once_at_all_times(wells):
    store = wells.make(range(12), discard=True)
    reader = warm_children.Popen(
        [sys.executable, "-c", READER, str(store.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert reader.stdout.readline() == "ready\n"
        for _ in range(9):
            store.delete_episodes(0)
            store.compact()
        output, errors = reader.communicate(timeout=240)
        assert reader.returncode == 0, errors
        assert int(output) >= 1
    finally:
        reader.kill()
        reader.communicate()
