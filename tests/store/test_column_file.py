"""Checksums that are computed as rows are written are those of the files."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.schema import Bytes
from stepwell.store import EncodedRows, create, sealing
from stepwell.store.column_file import EncodedColumn, begin_writeback

LARGE = 2000  # bytes of a row, of which many are written from where they are


def rows_in_memory(count: int, seed: int) -> EncodedRows:
    data = np.random.default_rng(seed).integers(0, 256, count * LARGE, np.uint8)
    return EncodedRows.in_memory(data, LARGE * np.arange(count), np.full(count, LARGE))


@given(st.lists(st.tuples(st.sampled_from(["bulk", "one by one", "several"]), st.integers(1, 4), st.integers(0, 3))))
@settings(deadline=None, max_examples=60)
def test_a_checksum_is_of_the_file_or_is_not_told(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        column = EncodedColumn(f"{folder}/x", Bytes())
        column.reserve(100)
        row = 0
        for number, (kind, count, taken_back) in enumerate(steps):
            # an episode that was given up: its rows are written over
            row = max(0, row - taken_back)
            if row + count > 100:
                break
            rows = rows_in_memory(count, number)
            if kind == "bulk":
                column.write_rows(row, rows.buffers)
            elif kind == "several":
                column.write_rows(row, [bytes(each) for each in rows])
            else:
                for place, each in enumerate(rows):
                    column.write(row + place, bytes(each))
            row += count
        told, size = column.blobs.checksum, column.num_bytes(row)
        column.close()
        data = Path(f"{folder}/x.bin").read_bytes()[:size]
        if told is not None and told[0] == size:
            assert told[1] == zlib.crc32(data)
        is_plain = all(kind == "bulk" and not taken_back for kind, _, taken_back in steps)
        assert (told == (size, zlib.crc32(data))) or not is_plain


def test_a_file_that_was_written_at_once_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    checksum = sealing.file_checksum

    def counting(path: str, **options: Any) -> tuple[int, int]:
        if options.get("known") is None:
            read.append(Path(path).name)
        return checksum(path, **options)

    monkeypatch.setattr(sealing, "file_checksum", counting)
    store = create(tmp_path / "a.well", {"x": Bytes()})
    with store.writer() as writer:
        for number in range(3):
            writer.add_episode({"x": rows_in_memory(5, number)})
    assert "x.bin" not in read
    assert "x.npy" in read
    monkeypatch.undo()
    store.refresh()
    assert store.verify().is_ok


def test_a_known_checksum_of_another_length_is_not_believed(tmp_path: Path) -> None:
    file = tmp_path / "some.bin"
    file.write_bytes(b"123456789")
    assert sealing.file_checksum(str(file), known=(9, 5)) == (9, 5)
    assert sealing.file_checksum(str(file), known=(8, 5)) == (9, 0xCBF43926)


def test_writing_back_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "some.bin"
    with file.open("wb") as opened:
        opened.write(b"x" * 10000)
        opened.flush()
        begin_writeback(opened.fileno(), 0, 10000)
        begin_writeback(opened.fileno(), 5000, 20000)
    assert file.read_bytes() == b"x" * 10000
