"""Readers that do what evil copies want of them are caught, each in its own way; a careful one is not."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.files.local_files import read_regular
from stepwell.formats.source_paths import check_boundaries
from stepwell.testing import check_strangers, evil_copies


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "info.json").write_text(json.dumps({"name": "rows.bin", "count": 5, "note": "any"}))
    (tmp_path / "set" / "rows.bin").write_bytes(bytes(range(20)))
    return tmp_path / "set"


def careful(path: Path) -> Any:
    check_boundaries(str(path))
    try:
        told = json.loads(read_regular(path / "info.json"))
        if Path(told["name"]).name != told["name"] or told["name"] == "..":
            raise FormatError(f"{told['name'][:40]!r} is no name.")
        rows = np.frombuffer(read_regular(path / told["name"]), "<f4")
        if len(rows) != told["count"]:
            raise FormatError("another count")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError(f"{path}: {error}") from error
    return rows


def test_a_careful_reader_passes_and_each_kind_is_told(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    report = check_strangers(folder, careful)
    assert report.num_read >= 4  # notes that nobody reads
    assert report.errors["FormatError"] > 10
    assert report.errors["UntrustedFileError"] == 4  # /dev/zero, too
    assert before == {path: path.read_bytes() for path in folder.iterdir()}
    told = [copy.told for copy in evil_copies(folder, Path("/outside"))]
    assert len(told) == len(set(told)) == report.num_read + report.errors.total()


def follows(path: Path) -> Any:
    try:
        return (path / json.loads((path / "info.json").read_text())["name"]).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(str(error)) from error


def is_changed(path: Path) -> bool:
    """Return whether the note is another one, of a data set that is in order but for that."""
    careful(path)
    return bool(json.loads(read_regular(path / "info.json")).get("note") != "any")


def allocates(path: Path) -> Any:
    return np.ones(2**28) if is_changed(path) else 0


def waits(path: Path) -> Any:
    time.sleep(60 if is_changed(path) else 0)


def writes(path: Path) -> Any:
    if is_changed(path):
        (path.parents[1] / "outside" / "new").write_bytes(b"")


def ends(path: Path) -> Any:
    if is_changed(path):
        os._exit(3)


def raises(path: Path) -> Any:
    return {}["note"] if is_changed(path) else 0


def is_bad(path: Path) -> Any:
    raise FormatError("it is not there")


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (follows, r"(was read|not done after)"),
        (allocates, "MemoryError"),
        (waits, "not done after 1"),
        (writes, "outside of it was changed"),
        (ends, "was ended"),
        (raises, "KeyError"),
        (is_bad, "the good data set cannot be read"),
    ],
)
def test_a_careless_reader_is_caught(folder: Path, read: Callable[[Path], Any], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        check_strangers(folder, read, seconds=1 if read is waits else 30, memory_bytes=256 << 20)


def test_links_that_a_reader_follows_are_noticed(folder: Path) -> None:
    def reads_links(path: Path) -> Any:
        try:
            return read_regular(path / "rows.bin")
        except OSError as error:
            raise FormatError(str(error)) from error

    with pytest.raises(AssertionError, match=r"rows\.bin is a link to .*outside.*: what lies outside of it was read"):
        check_strangers(folder, reads_links)


def test_of_a_file_alone_and_of_some_copies_that_a_seed_draws(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")

    def read(path: Path) -> Any:
        try:
            return read_regular(path)
        except OSError as error:
            raise FormatError(str(error)) from error

    assert sum(check_strangers(tmp_path / "a.bin", read).errors.values()) == 3
    assert sum(check_strangers(tmp_path / "a.bin", read, count=2, seed=1).errors.values()) == 2
