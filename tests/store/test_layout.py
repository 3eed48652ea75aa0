"""Names, ordinals and the lock of a store's directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import StoreExistsError
from stepwell.files.file_locks import lock_directory, lock_file
from stepwell.store import layout
from stepwell.store.layout import (
    LOCK,
    SEGMENTS,
    built_directory,
    list_segments,
    locked_store,
    mend_ordinals,
    reserve_ordinals,
)

SEGMENT_NAMES = st.builds(
    "{:08d}-{:04x}{}".format, st.integers(0, 120), st.integers(0, 65535), st.sampled_from(["", ".open"])
)
LOCK_TEXTS = st.one_of(
    st.none(),
    st.integers(0, 120).map(lambda n: b"%-20d\n" % n),
    st.sampled_from([b"", b"-3\n", b"what\n", b"\0" * 21, b"9" * 21]),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("ordinals")


@settings(max_examples=60, deadline=None)
@given(names=st.sets(SEGMENT_NAMES, max_size=6), text=LOCK_TEXTS)
def test_no_ordinal_is_given_twice_whatever_the_lock_says_once_the_store_was_opened_for_writing(directory, names, text):
    store = directory / os.urandom(8).hex()
    for name in names:
        (store / SEGMENTS / name).mkdir(parents=True)
    (store / SEGMENTS).mkdir(parents=True, exist_ok=True)
    if text is not None:
        (store / LOCK).write_bytes(text)
    mend_ordinals(str(store), [entry.name for entry in (store / SEGMENTS).iterdir()])
    taken = {ordinal for ordinal, _ in list_segments(str(store)).values()}
    for count in (1, 3, 1):
        with locked_store(str(store)) as lock:
            first = reserve_ordinals(str(store), lock, count)
        given_now = set(range(first, first + count))
        assert not taken & given_now
        taken |= given_now


def test_a_new_segment_lists_no_directory(tmp_path, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", {"x": stepwell.Array(())})
    with store.writer() as writer:
        writer.add_episode({"x": [1.0]})
    calls = []
    monkeypatch.setattr(layout, "list_segments", lambda *arguments: calls.append(arguments) or {})
    assert store.reserve_ordinals(2) == 1
    with store.writer() as writer:
        writer.append(x=2.0)
        monkeypatch.undo()
    assert calls == []
    assert [segment.ordinal for segment in store.segments] == [0, 3]


def test_opening_for_writing_mends_a_lock_that_is_behind(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"x": stepwell.Array(())})
    for _ in range(3):
        with store.writer() as writer:
            writer.add_episode({"x": [1.0]})
    (store.path / LOCK).write_bytes(b"%-20d\n" % 1)
    assert stepwell.open(store.path).reserve_ordinals(1) == 3


def build(path):
    with built_directory(path) as hidden:
        Path(hidden, "file").write_text("whole")


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_is_followed(tmp_path, is_there):
    if is_there:
        (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    build(tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "disk/file").read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "link"]
    with pytest.raises(StoreExistsError, match="disk is there already"):
        build(tmp_path / "link")


def test_nothing_is_left_of_what_failed(tmp_path):
    with pytest.raises(RuntimeError), built_directory(tmp_path / "set"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inner", ["set", "deeper/set"])
def test_a_file_in_place_of_a_directory_is_refused(tmp_path, inner):
    (tmp_path / "file").touch()
    with pytest.raises(StoreExistsError, match="would lie in a file"):
        build(tmp_path / "file" / inner)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_hidden_directory_that_is_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch, is_early):
    lock, removed = layout.lock_directory, []

    def lock_late(path, **options):
        if removed:
            return lock(path, **options)
        removed.append(path)
        if is_early:
            path.rmdir()
        held = lock(path, **options)
        path.rmdir()
        return held

    monkeypatch.setattr(layout, "lock_directory", lock_late)
    build(tmp_path / "set")
    assert len(removed) == 1
    assert (tmp_path / "set" / "file").read_text() == "whole"


def test_a_directory_that_another_process_made_just_now_is_refused(tmp_path, monkeypatch):
    rename = os.rename

    def rename_late(source, target):
        target.mkdir()
        (target / "file").touch()
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_late)
    with pytest.raises(StoreExistsError, match="is there already"):
        build(tmp_path / "set")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_what_was_forked_meanwhile_does_not_lock_the_directory_that_appeared(tmp_path, forked_child):
    with built_directory(tmp_path / "set"):
        forked_child()
    lock_directory(tmp_path / "set", is_waiting=False).release()


def test_what_was_forked_while_a_store_was_locked_does_not_hold_up_the_next(tmp_path, forked_child):
    with locked_store(str(tmp_path)):
        forked_child()
    lock_file(tmp_path / LOCK, is_waiting=False).release()
