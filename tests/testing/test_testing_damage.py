"""Damaged copies differ from the file, and what reading them does is judged."""

import time
from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.testing import check_damage, damaged_copies

DATA = bytes(range(256)) * 8


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.bin"
    path.write_bytes(DATA)
    return path


def test_each_copy_differs_from_the_file_and_the_same_seed_gives_the_same():
    copies = list(damaged_copies(DATA, 200, seed=3))
    assert len(copies) == 200
    assert all(copy != DATA for _, copy in copies)
    assert copies == list(damaged_copies(DATA, 200, seed=3))
    assert copies != list(damaged_copies(DATA, 200, seed=4))
    assert len({told.split()[0] for told, _ in copies}) >= 4


def test_a_file_of_one_byte_can_be_damaged():
    assert all(copy != b"x" for _, copy in damaged_copies(b"x", 20))


def refuse(path: Path) -> bytes:
    if path.read_bytes() != DATA:
        raise FormatError(f"{path} is damaged.")
    return DATA


def test_a_reader_that_refuses_what_is_damaged_passes_and_the_file_is_there_again(file: Path):
    report = check_damage(file, refuse, count=30)
    assert report.errors == {"FormatError": 30}
    assert report.num_read == 0
    assert file.read_bytes() == DATA


def test_an_error_that_is_not_stepwells_is_told_with_the_damage(file: Path):
    def fail(path: Path) -> None:
        raise IndexError("list index out of range")

    with pytest.raises(AssertionError, match=r"copy 0 of a.bin, .*: IndexError"):
        check_damage(file, fail, count=3)
    assert file.read_bytes() == DATA


def test_wrong_data_are_told(file: Path):
    with pytest.raises(AssertionError, match="what came is wrong"):
        check_damage(file, Path.read_bytes, count=3, is_right=lambda found: found == DATA)


def test_too_much_memory_is_told(file: Path):
    with pytest.raises(AssertionError, match="bytes of memory for a file of"):
        check_damage(file, lambda path: np.zeros(32 << 20, np.uint8).sum(), count=1)


def test_a_hang_is_told(file: Path):
    with pytest.raises(AssertionError, match="not done after 1 s"):
        check_damage(file, lambda path: time.sleep(30), count=1, seconds=1)
