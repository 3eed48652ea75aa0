"""A directory appears whole, where its path leads to, or not at all."""

from pathlib import Path

import pytest

from stepwell.errors import StoreExistsError
from stepwell.store.building import built_directory


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
