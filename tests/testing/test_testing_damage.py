"""Damaged copies differ from the file, and what reading them does is judged."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import FormatError, LeftOutWarning
from stepwell.testing import check_damage, damaged_copies
from stepwell.testing.damage import DAMAGES

DATA = bytes(range(256)) * 8
TEXT = b'{"name": "a", "sizes": [1, 2]}' + b"x" * 3000


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
    with pytest.raises(AssertionError, match=r"bytes of memory\. Allowed: 1"):
        check_damage(file, lambda path: np.zeros(32 << 20, np.uint8).sum(), count=1)


def test_a_hang_is_told(file: Path):
    with pytest.raises(AssertionError, match="not done after 1 s"):
        check_damage(file, lambda path: time.sleep(30), count=1, seconds=1)


def test_a_directory_is_damaged_file_by_file_and_whole_at_the_end(tmp_path: Path) -> None:
    files = {tmp_path / "set" / name: DATA for name in ("a.bin", "deep/b.bin")}
    for path, data in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    seen: list[tuple[bool, ...]] = []

    def read(folder: Path) -> None:
        seen.append(tuple(path.exists() and path.read_bytes() == data for path, data in files.items()))
        if not all(path.exists() for path in files):
            raise FormatError("a file is missing")
        if seen[-1][0]:
            warnings.warn("b is damaged", LeftOutWarning, stacklevel=1)

    report = check_damage(tmp_path / "set", read, count=60, kinds=DAMAGES)
    assert len(seen) == 60 and all(sum(whole) == 1 for whole in seen)
    assert report.errors["FormatError"] > 0 and report.warnings["LeftOutWarning"] > 10 and report.num_read > 10
    assert all(path.read_bytes() == data for path, data in files.items())


@pytest.mark.parametrize(
    ("kind", "is_such"),
    [
        ("page", lambda copy: len(copy) == len(TEXT) and copy.count(0) >= 512),
        ("cut page", lambda copy: len(copy) % 512 == 0 and TEXT.startswith(copy)),
        ("joined", lambda copy: copy == TEXT + TEXT),
        ("names", lambda copy: sum(a != b for a, b in zip(copy, TEXT, strict=True)) == 1),
    ],
)
def test_each_kind_of_damage_is_what_it_says(kind: str, is_such: Callable[[bytes], bool]) -> None:
    copies = [copy for _, copy in damaged_copies(TEXT, 20, kinds=[kind])]
    assert len(copies) == 20 and all(map(is_such, copies))
