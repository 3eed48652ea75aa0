import errno
from pathlib import Path

import numpy as np
import pytest

from stepwell.beton import BetonFile
from stepwell.beton.laying import FilePart, unfinished_file
from stepwell.beton.layout import ALLOCATION_DTYPE, FieldDescriptor
from stepwell.errors import DiskFullError, FormatError, StoreExistsError
from stepwell.files.file_locks import lock_directory

FIELDS = (FieldDescriptor(3, "data"), FieldDescriptor(1, "number"))
PAGE = 1 << 16


def write(path, *, finish=True, replaces=False, seen=None):
    with unfinished_file(path, FIELDS, PAGE, 2, replaces=replaces) as file:
        part = FilePart(file)
        rows = np.zeros(2, file.layout.rows)
        rows["data"]["ptr"], rows["data"]["size"], rows["number"] = [PAGE, PAGE + 3], [3, 2], [7, 8]
        table = np.array([[(0, PAGE, 3)], [(1, PAGE + 3, 2)]], ALLOCATION_DTYPE)
        part.write(PAGE, b"abcde")
        part.write_samples(1, rows[1:], table[1:])
        part.write_samples(0, rows[:1], table[:1])
        part.close()
        if seen is not None:
            seen.append(file)
            with pytest.raises(FormatError, match="did not finish"):
                BetonFile(file.partial)
        if finish:
            file.finish(2 * PAGE)
            return
        raise RuntimeError("stopped")


def test_a_file_is_whole_or_not_there(tmp_path):
    path, seen = tmp_path / "a.beton", []
    with pytest.raises(RuntimeError):
        write(path, finish=False, seen=seen)
    assert list(tmp_path.iterdir()) == []
    write(path, seen=seen)
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.beton"]
    file = BetonFile(path)
    assert file.read(PAGE, 3) == b"abc" and file.rows()["number"].tolist() == [7, 8]
    assert path.stat().st_size == 2 * PAGE + 2 * 24


def test_folders_on_the_way_are_made(tmp_path):
    write(tmp_path / "some" / "where" / "a.beton")
    assert (tmp_path / "some" / "where" / "a.beton").exists()


def test_a_link_is_followed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "a.beton").symlink_to(tmp_path / "disk" / "b.beton")
    write(tmp_path / "a.beton")
    assert (tmp_path / "disk" / "b.beton").exists() and (tmp_path / "a.beton").is_symlink()


def test_what_is_there_is_refused_before_and_after(tmp_path):
    path = tmp_path / "a.beton"
    with pytest.raises(StoreExistsError), unfinished_file(path, FIELDS, PAGE, 2, replaces=False) as file:
        path.write_bytes(b"somebody was faster")
        file.finish(2 * PAGE)
    assert path.read_bytes() == b"somebody was faster"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.beton"]
    write(path, replaces=True)
    assert path.stat().st_size > PAGE


def test_a_folder_is_never_replaced(tmp_path):
    (tmp_path / "a.beton").mkdir()
    with pytest.raises(StoreExistsError):
        write(tmp_path / "a.beton", replaces=True)


def test_what_a_dead_writer_left_is_removed_and_a_living_one_s_stays(tmp_path):
    dead, alive, other = (tmp_path / f".{name}.partial" for name in ("a.beton.11", "a.beton.22", "b.beton.33"))
    for path in (dead, alive, other):
        path.mkdir()
        (path / "table").touch()
    with lock_directory(alive):
        write(tmp_path / "a.beton")
    assert not dead.exists() and alive.exists() and other.exists()


def test_two_writers_of_one_target_do_not_meet(tmp_path):
    with unfinished_file(tmp_path / "a.beton", FIELDS, PAGE, 2, replaces=True) as file:
        write(tmp_path / "a.beton", replaces=True)
        assert Path(file.partial).exists()
        file.finish(2 * PAGE)


def test_a_full_disk_is_reported_as_such_and_other_errors_as_they_are(tmp_path):
    full, other = OSError(errno.ENOSPC, "full"), OSError(errno.EIO, "broken")
    with pytest.raises(DiskFullError, match=r"a\.beton; nothing of it is left"), opened(tmp_path / "a.beton"):
        raise full
    with pytest.raises(OSError, match="broken") as caught, opened(tmp_path / "a.beton"):
        raise other
    assert caught.value is other and list(tmp_path.iterdir()) == []


def test_a_plain_file_of_such_a_name_is_left(tmp_path):
    (tmp_path / ".a.beton.11.partial").touch()
    write(tmp_path / "a.beton")
    assert (tmp_path / ".a.beton.11.partial").is_file()


def opened(path):
    return unfinished_file(path, FIELDS, PAGE, 2, replaces=False)
