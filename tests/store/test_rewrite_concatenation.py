"""A concatenated store holds the episodes of its parts, in their order, and lives on its own."""

import errno
import os
import shutil

import numpy as np
import pytest

import stepwell
from stepwell.errors import DiskFullError, SchemaError, StoreBusyError, StoreExistsError
from stepwell.store import layout


def files_of(store):
    return [file for file in (store.path / "segments").rglob("*") if file.is_file() and file.name != "segment.json"]


@pytest.mark.parametrize("link", [True, False])
def test_episodes_follow_each_other_store_by_store(wells, link):
    parts = [wells.make(range(3)), wells.make(range(3, 4), name="b.well"), wells.make(range(4, 9), name="c.well")]
    whole = stepwell.concatenate(wells.folder / "whole.well", parts, link=link)
    assert wells.shown(whole) == list(range(9))
    assert whole.uuid not in {part.uuid for part in parts}
    assert whole.episodes.origin.tolist() == np.concatenate([part.episodes.origin for part in parts]).tolist()
    assert {file.stat().st_nlink for file in files_of(whole)} == ({2} if link else {1})
    wells.assert_sound(whole)
    for part in parts:
        shutil.rmtree(part.path)
    whole = stepwell.open(whole.path)
    assert wells.shown(whole) == list(range(9))
    assert whole.statistics()["action"].max.tolist() == [8, 8]
    wells.assert_sound(whole)


def test_what_is_done_to_the_whole_does_not_touch_the_parts(wells):
    part = wells.make()
    whole = stepwell.concatenate(wells.folder / "whole.well", [part, part])
    whole.delete_episodes([0, 8])
    whole.add_column("more", stepwell.Array(), lambda episode: np.zeros(episode.length, "float32"))
    whole.compact()
    wells.fill(part, range(7, 9))
    assert wells.shown(whole) == [1, 2, 3, 4, 5, 6, 0, 2, 3, 4, 5, 6]
    assert wells.shown(part) == list(range(9))
    assert "more" not in part.schema
    wells.assert_sound(part)
    wells.assert_sound(whole)


def test_deleted_episodes_stay_deleted_and_compacted_ones_in_their_place(wells):
    first = wells.make(range(8), discard=True, segment_bytes=1)
    first.delete_episodes([1, 5])
    first.compact()
    first.delete_episodes(0)
    second = wells.make(range(8, 12), name="b.well", discard=True)
    second.delete_episodes(3)
    whole = stepwell.concatenate(wells.folder / "whole.well", [second, first])
    assert wells.shown(whole) == [8, 9, 10, 2, 3, 4, 6, 7]
    whole.compact()
    assert wells.shown(whole) == [8, 9, 10, 2, 3, 4, 6, 7]
    wells.fill(whole, range(12, 14))
    assert wells.shown(whole) == [8, 9, 10, 2, 3, 4, 6, 7, 12, 13]


def test_stores_must_have_the_same_features_and_fps(wells):
    first = wells.make(fps=10)
    with pytest.raises(SchemaError, match="fps=20"):
        stepwell.concatenate(wells.folder / "x.well", [first, wells.make(name="b.well", fps=20)])
    other = stepwell.create(wells.folder / "c.well", {"action": stepwell.Array(3)}, fps=10)
    with pytest.raises(SchemaError, match="must be equal"):
        stepwell.concatenate(wells.folder / "x.well", [first, other])
    with pytest.raises(SchemaError, match="no stores"):
        stepwell.concatenate(wells.folder / "x.well", [])
    assert not (wells.folder / "x.well").exists()


def test_metadata_is_joined_where_it_agrees_and_asked_for_where_not(wells):
    first = wells.make(metadata={"robot": "arm", "day": 1})
    second = wells.make(name="b.well", metadata={"robot": "arm", "site": "lab"})
    third = wells.make(name="c.well", metadata={"robot": "leg"})
    joined = stepwell.concatenate(wells.folder / "x.well", [first, second])
    assert joined.metadata == {"robot": "arm", "day": 1, "site": "lab"}
    with pytest.raises(SchemaError, match="'robot' is 'leg'"):
        stepwell.concatenate(wells.folder / "y.well", [first, third])
    assert stepwell.concatenate(wells.folder / "y.well", [first, third], metadata={"a": 1}).metadata == {"a": 1}


def test_a_store_that_is_being_recorded_is_refused_by_name_and_its_checkpoint_is_not(wells):
    first, second = wells.make(), wells.make(range(7, 9), name="busy.well", segment_bytes=10**6)
    with second.writer() as writer:
        writer.add_episode(wells.episode_of(9, 2), number=9)
        with pytest.raises(StoreBusyError, match=r"busy\.well is still being recorded"):
            stepwell.concatenate(wells.folder / "x.well", [first, second])
        copy = stepwell.open(second.checkpoint(wells.folder / "copy.well"))
        assert len(stepwell.concatenate(wells.folder / "x.well", [first, copy])) == 10


def test_a_path_that_is_taken_is_refused(wells):
    store = wells.make()
    with pytest.raises(StoreExistsError):
        stepwell.concatenate(store.path, [store])
    assert wells.shown(store) == list(range(7))


def test_stores_without_features_make_one_without(wells):
    empty = stepwell.create(wells.folder / "empty.well")
    whole = stepwell.concatenate(wells.folder / "x.well", [empty, empty])
    assert (whole.schema, len(whole)) == (None, 0)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM])
def test_files_are_copied_where_they_cannot_be_linked(wells, monkeypatch, code):
    store = wells.make()

    def refuse(*args, **options):
        raise OSError(code, "no link")

    monkeypatch.setattr(layout.os, "link", refuse)
    whole = stepwell.concatenate(wells.folder / "x.well", [store])
    assert wells.shown(whole) == list(range(7))
    assert {file.stat().st_nlink for file in files_of(whole)} == {1}
    wells.assert_sound(whole)


@pytest.mark.parametrize("call", ["link", "mkdir", "fsync", "rename"])
def test_a_full_disk_leaves_nothing(wells, monkeypatch, call):
    store = wells.make()
    there = sorted(wells.folder.iterdir())

    def full(*args, **options):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DiskFullError):
        stepwell.concatenate(wells.folder / "x.well", [store])
    assert sorted(wells.folder.iterdir()) == there


def test_a_kill_at_any_call_leaves_a_whole_store_or_none(wells):
    store = wells.make(range(3), name="template/a.well", segment_bytes=500)

    def concatenate(folder):
        part = stepwell.Store(str(folder / "a.well"))
        stepwell.concatenate(folder / "x.well", [part, part])

    outcomes = set()
    for folder in wells.kills(store.path.parent, concatenate):
        outcomes.add((folder / "x.well").exists())
        if not (folder / "x.well").exists():
            concatenate(folder)
        whole = stepwell.open(folder / "x.well")
        assert wells.shown(whole) == [0, 1, 2, 0, 1, 2]
        wells.assert_sound(whole)
        assert {entry.name for entry in folder.iterdir()} == {"a.well", "x.well"}
    assert outcomes == {False, True}
