"""Files that are kept open: few, read at places, opened again where another is at their path."""

from pathlib import Path

import numpy as np
import pytest

from stepwell.files.local_files import MAX_OPEN_FILES, open_file, state_of


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_bytes_are_those_of_the_place_and_fewer_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    file = open_file(str(path))
    assert file.read(7, 3) == bytes([7, 8, 9])
    assert file.read(95, 10) == bytes(range(95, 100))
    assert file.read(200, 10) == b""
    assert file.num_bytes == 100


def test_bytes_are_read_into_memory_and_fewer_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(range(100)))
    out = np.full(8, 200, np.uint8)
    assert open_file(str(path)).read_into(7, out[:5]) == 5
    assert out.tolist() == [7, 8, 9, 10, 11, 200, 200, 200]
    assert open_file(str(path)).read_into(97, out) == 3
    assert out.tolist() == [97, 98, 99, 10, 11, 200, 200, 200]
    assert open_file(str(path)).read_into(100, out) == 0 == open_file(str(path)).read_into(0, out[:0])


def test_no_more_files_stay_open_than_allowed(tmp_path: Path) -> None:
    before = num_descriptors()
    for number in range(3 * MAX_OPEN_FILES):
        path = tmp_path / str(number)
        path.write_bytes(bytes([number]))
        assert open_file(str(path)).read(0, 1) == bytes([number])
    assert num_descriptors() <= before + MAX_OPEN_FILES


def test_file_that_was_replaced_is_opened_again_and_the_old_one_can_still_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    old = open_file(str(path))
    (tmp_path / "b").write_bytes(b"newer")
    (tmp_path / "b").replace(path)
    assert open_file(str(path)) is old
    new = open_file(str(path), state_of(str(path)))
    assert (new.read(0, 9), old.read(0, 9)) == (b"newer", b"old")


def test_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_file(str(tmp_path / "none"))
