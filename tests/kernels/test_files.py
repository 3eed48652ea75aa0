"""Pieces of many files, read by one call: what cannot be read is said, nothing is followed, nothing is left open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.kernels.files import MAX_PATH, read_files


def joined(texts: list[bytes]) -> tuple[Any, Any]:
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([len(text) for text in texts])


def num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def read(
    directories: list[Path], names: list[str], offsets: list[list[int]], sizes: list[list[int]]
) -> tuple[int, Any]:
    """Return what the call returns, and the bytes of each piece."""
    memory = np.zeros((len(directories), len(names), 16), np.uint8)
    targets = memory.ctypes.data + np.arange(memory.size // 16).reshape(memory.shape[:2]) * 16
    number = read_files(
        *joined([os.fsencode(each) for each in directories]),
        *joined([name.encode() for name in names]),
        np.array(offsets),
        np.array(sizes),
        targets,
        np.empty(MAX_PATH, np.uint8),
    )
    pieces = [[bytes(memory[n, k, :size]) for k, size in enumerate(row)] for n, row in enumerate(sizes)]
    return int(number), pieces


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    """Three directories of names of several lengths, with two files each."""
    found = []
    for number in range(3):
        directory = tmp_path / f"d{'x' * number}"
        directory.mkdir()
        for name in ("a.npy", "longer.npy"):
            (directory / name).write_bytes(f"{number}{name}".encode())
        found.append(directory)
    return found


def test_pieces_are_those_of_their_files(directories: list[Path]) -> None:
    before = num_open()
    number, pieces = read(directories, ["longer.npy", "a.npy"], [[0, 1], [2, 0], [0, 3]], [[3, 5], [4, 0], [1, 2]])
    assert number == 3
    assert pieces == [[b"0lo", b"a.npy"], [b"onge", b""], [b"2", b"np"]]
    assert num_open() == before


@pytest.mark.parametrize("damage", ["missing", "short", "link", "fifo", "directory"])
def test_the_first_directory_that_cannot_be_read_is_said(directories: list[Path], damage: str) -> None:
    file = directories[1] / "a.npy"
    if damage == "short":
        file.write_bytes(b"12")
    else:
        content = file.read_bytes()
        file.unlink()
        if "link" in damage:
            (directories[1] / "b").write_bytes(content)
            file.symlink_to("b")
        elif damage == "fifo":
            os.mkfifo(file)
        elif damage == "directory":
            file.mkdir()
    before = num_open()
    number, pieces = read(directories, ["a.npy"], [[0]] * 3, [[4]] * 3)
    assert (number, pieces[0]) == (1, [b"0a.n"])
    assert num_open() == before
