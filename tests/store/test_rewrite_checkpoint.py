"""A checkpoint is the store as it was, whatever happens to the store afterwards, and opens by itself."""

import errno
import os
import shutil
import subprocess
import sys

import pytest
import warm_children

import stepwell
from stepwell.errors import DiskFullError, ReadOnlyError, StoreExistsError
from stepwell.store import rewrite
from stepwell.store.column_file import SegmentFiles


def files_of(store):
    return [file for file in (store.path / "segments").rglob("*") if file.is_file()]


def test_a_checkpoint_is_the_store_as_it_was(wells):
    store = wells.make(discard=True, fps=10, metadata={"robot": "arm"})
    store.delete_episodes(2)
    path = store.checkpoint(wells.folder / "copy.well")
    copy = stepwell.open(path, mode="r")
    assert (copy.uuid, copy.fps, copy.metadata, copy.schema) == (store.uuid, store.fps, store.metadata, store.schema)
    assert [episode.first_step_id for episode in copy] == [episode.first_step_id for episode in store]
    assert {file.stat().st_nlink for file in files_of(copy)} == {2}
    wells.assert_sound(copy)
    store.delete_episodes([0, -1])
    store.compact()
    wells.fill(store, range(7, 9))
    assert wells.shown(store) == [1, 3, 4, 5, 7, 8]
    shutil.rmtree(store.path)
    copy = stepwell.open(path)
    assert wells.shown(copy) == [0, 1, 3, 4, 5, 6]
    wells.assert_sound(copy)


def test_a_checkpoint_of_a_compacted_store_keeps_the_order(wells):
    store = wells.make(range(9), segment_bytes=1)
    store.delete_episodes(1)
    store.compact()
    copy = stepwell.open(store.checkpoint(wells.folder / "copy.well"))
    assert wells.shown(copy) == [0, *range(2, 9)]
    wells.fill(copy, range(9, 11))
    copy.compact()
    assert wells.shown(copy) == [0, *range(2, 11)]
    assert wells.shown(store) == [0, *range(2, 9)]
    wells.assert_sound(copy)
    wells.assert_sound(store)


def test_the_copy_of_what_is_being_recorded_ends_where_it_was_committed(wells):
    store = wells.make(range(2), segment_bytes=10**6)
    with store.writer() as writer:
        writer.add_episode(wells.episode_of(2, 3), truncated=True, number=2)
        open_episode = wells.episode_of(4, 3)
        for step in range(3):
            writer.append({name: column[step] for name, column in open_episode.items()})
        copy = stepwell.open(store.checkpoint(wells.folder / "copy.well"), mode="r")
        assert len(copy) == 4
        last = copy[3]
        assert (last.interrupted, last.is_open, last.length) == (True, False, 3)
        assert last["text"] == open_episode["text"]
        assert last["depth"].tolist() == open_episode["depth"].tolist()
        assert all(segment.is_sealed for segment in copy.segments)
        wells.assert_sound(copy)
        writer.end_episode(number=4)
    store.refresh()
    assert (len(store), store[3].interrupted) == (4, False)
    assert last.first_step_id == store[3].first_step_id


def test_what_the_store_shows_does_not_change_by_a_checkpoint(wells):
    store = wells.make(range(2))
    stale = stepwell.open(store.path)
    wells.fill(store, range(2, 5))
    copy = stepwell.open(stale.checkpoint(wells.folder / "copy.well"))
    assert (len(stale), len(copy)) == (2, 5)
    assert (stale.refresh(), len(stale)) == (True, 5)


def test_ordinals_go_on_in_a_checkpoint(wells):
    store = wells.make(range(2))
    store.reserve_ordinals(5)
    copy = stepwell.open(store.checkpoint(wells.folder / "copy.well"))
    assert copy.reserve_ordinals(1) == store.reserve_ordinals(1)


def test_a_store_without_features_has_a_checkpoint(wells):
    store = stepwell.create(wells.folder / "empty.well")
    copy = stepwell.open(store.checkpoint(wells.folder / "copy.well"))
    assert (copy.schema, len(copy)) == (None, 0)


def test_files_are_copied_where_they_cannot_be_linked(wells, monkeypatch):
    store = wells.make()

    def refuse(*args, **options):
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(os, "link", refuse)
    copy = stepwell.open(store.checkpoint(wells.folder / "copy.well"))
    assert {file.stat().st_nlink for file in files_of(copy)} == {1}
    assert wells.shown(copy) == list(range(7))
    wells.assert_sound(copy)


def test_a_path_that_is_taken_and_a_store_for_reading_are_refused(wells):
    store = wells.make()
    with pytest.raises(StoreExistsError):
        store.checkpoint(store.path)
    with pytest.raises(ReadOnlyError):
        stepwell.open(store.path, mode="r").checkpoint(wells.folder / "x.well")


def test_a_full_disk_leaves_nothing(wells, monkeypatch):
    store = wells.make(segment_bytes=10**6)
    there = sorted(wells.folder.iterdir())
    with store.writer() as writer:
        writer.add_episode(wells.episode_of(2, 3), truncated=True, number=2)

        def full(*args, **options):
            raise OSError(errno.ENOSPC, "no space")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(DiskFullError):
                store.checkpoint(wells.folder / "x.well")
    assert sorted(wells.folder.iterdir()) == there


@pytest.mark.parametrize("step", ["append_from", "append_episodes", "_checkpoint_segment", "_copy_committed"])
def test_a_segment_sealed_in_the_middle_of_it_is_there_once(wells, monkeypatch, step):
    store = wells.make(range(2), segment_bytes=10**6)
    writer = store.writer()
    writer.add_episode(wells.episode_of(2, 3), truncated=True, number=2)
    owner = SegmentFiles if step.startswith("append") else rewrite
    original = getattr(owner, step)

    def close_first(*args):
        writer.close()
        return original(*args)

    monkeypatch.setattr(owner, step, close_first)
    copy = stepwell.open(store.checkpoint(wells.folder / "copy.well"), mode="r")
    assert wells.shown(copy) == [0, 1, 2]
    wells.assert_sound(copy)


def test_a_segment_that_is_sealed_but_for_its_name_is_there(wells):
    store = wells.make(range(3), segment_bytes=10**6)
    (sealed,) = (store.path / "segments").iterdir()
    sealed.rename(f"{sealed}.open")
    copy = stepwell.open(stepwell.Store(str(store.path)).checkpoint(wells.folder / "copy.well"), mode="r")
    assert wells.shown(copy) == [0, 1, 2]
    wells.assert_sound(copy)


def test_a_kill_at_any_call_leaves_a_whole_checkpoint_or_none(wells):
    store = wells.make(range(3), name="template/a.well", segment_bytes=500)

    def checkpoint(folder):
        store = stepwell.Store(str(folder / "a.well"))
        writer = store.writer()
        writer.add_episode(wells.episode_of(3, 4), number=3)
        store.checkpoint(folder / "x.well")
        os._exit(0)

    outcomes = set()
    for folder in wells.kills(store.path.parent, checkpoint):
        outcomes.add((folder / "x.well").exists())
        if (folder / "x.well").exists():
            copy = stepwell.open(folder / "x.well", mode="r")
            assert wells.shown(copy) == [0, 1, 2, 3]
            wells.assert_sound(copy)
        else:
            stepwell.open(folder / "a.well").checkpoint(folder / "x.well")
        assert {entry.name for entry in folder.iterdir()} == {"a.well", "x.well"}
    assert outcomes == {False, True}


WRITER = """
import sys
import numpy as np
import stepwell

with stepwell.open(sys.argv[1]).writer() as writer:
    print("ready", flush=True)
    for number in range(10**6):
        for step in range(number % 7 + 1):
            writer.append({"number": number, "step": step, "text": f"{number}/{step}"})
        writer.end_episode(number=number)
"""


def test_checkpoints_of_a_store_that_another_process_records_are_each_a_prefix(wells):
    features = {"number": stepwell.Array((), "int64"), "step": stepwell.Array((), "int64"), "text": stepwell.Text()}
    store = stepwell.create(wells.folder / "a.well", features, segment_bytes=20_000)
    child = warm_children.Popen([sys.executable, "-c", WRITER, str(store.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "ready\n"
        paths = [store.checkpoint(wells.folder / f"{k}.well") for k in range(8)]
    finally:
        child.kill()
        child.communicate()
    counts = []
    for path in paths:
        copy = stepwell.open(path, mode="r")
        wells.assert_sound(copy)
        for number, episode in enumerate(copy):
            steps = range(episode.length)
            assert episode["number"].tolist() == [number] * episode.length
            assert episode["text"] == [f"{number}/{step}" for step in steps]
            assert episode.interrupted or episode.metadata == {"number": number}
            assert episode.interrupted or episode.length == number % 7 + 1
        assert not any(episode.interrupted for episode in list(copy)[:-1])
        counts.append(copy.num_steps)
    assert counts == sorted(counts)
