"""A directory appears whole, where its path leads to, or not at all."""

from pathlib import Path

import pytest

from stepwell.errors import StoreExistsError
from stepwell.files.file_locks import lock_directory, lock_file
from stepwell.store.layout import LOCK, built_directory, locked_store


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


def test_what_was_forked_meanwhile_does_not_lock_the_directory_that_appeared(tmp_path, forked_child):
    with built_directory(tmp_path / "set"):
        forked_child()
    lock_directory(tmp_path / "set", is_waiting=False).release()


def test_what_was_forked_while_a_store_was_locked_does_not_hold_up_the_next(tmp_path, forked_child):
    with locked_store(str(tmp_path)):
        forked_child()
    lock_file(tmp_path / LOCK, is_waiting=False).release()
