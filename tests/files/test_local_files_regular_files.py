"""Only regular files are read: a FIFO is not waited for, a directory or device is an error."""

import os
from pathlib import Path

import pytest

from stepwell.files.local_files import open_file, open_regular, read_regular, state_of


def test_bytes_of_a_file_and_of_one_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert read_regular(tmp_path / "a") == read_regular(str(tmp_path / "b")) == b"abc"


@pytest.mark.parametrize("opens", [open_regular, read_regular, open_file, state_of])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, opens: object) -> None:
    assert callable(opens)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path, told in (
        (tmp_path / "fifo", "a FIFO"),
        (tmp_path / "folder", "a directory"),
        (Path("/dev/null"), "a device"),
    ):
        with pytest.raises(OSError, match=told):
            opens(str(path))
    with pytest.raises(FileNotFoundError):
        opens(str(tmp_path / "none"))
    assert len(list(Path("/proc/self/fd").iterdir())) == before
