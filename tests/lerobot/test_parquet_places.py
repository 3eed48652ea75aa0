"""Byte strings of a row group, read alone: found whatever way the pages are written, or the row group is read whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from stepwell.errors import DecodeError  # noqa: E402
from stepwell.files import local_files  # noqa: E402
from stepwell.files.shared_cache import SharedCache  # noqa: E402
from stepwell.lerobot.parquet_places import STREAK_ROWS, RowPlaces, find_places  # noqa: E402
from stepwell.lerobot.parquet_row_groups import RowGroups, TableFile, stamp_of  # noqa: E402

STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def noise(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8).tobytes()


def like_pictures(seed: int = 0) -> list[bytes | None]:
    """Return strings as pictures are: some small, some across blocks of 64 KiB, some that compress, repeats."""
    sizes = [100, 70_000, 3, 65_536, 200_000, 1, 40_000, 131_072, 5_000]
    rows: list[bytes | None] = [noise(size, seed + i) for i, size in enumerate(sizes)]
    rows += [bytes(90_000), b"ab" * 50_000, noise(1000, seed) * 80, rows[1], rows[0], rows[4]]
    return rows


def write(path: Path, rows: list[bytes | None], *, kind: Any = STRUCT, **options: Any) -> Path:
    values = [None if row is None else {"bytes": row, "path": None} for row in rows] if kind is STRUCT else rows
    pq.write_table(pa.table({"n": pa.array(range(len(rows))), "top": pa.array(values, kind)}), path, **options)
    return path


def places_in(path: Path, group: int = 0) -> tuple[RowPlaces, list[bytes]]:
    file = TableFile(str(path))
    rows = file.read("top", group)
    return file.places("top", group, stamp_of(str(path))[1], rows), [row.tobytes() for row in rows.rows()]


@pytest.mark.parametrize("compression", ["snappy", "none"])
@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(("batch", "kind"), [(1024, STRUCT), (2, STRUCT), (3, pa.binary())])
def test_each_row_is_read_alone(
    tmp_path: Path, compression: str, use_dictionary: bool, version: str, batch: int, kind: Any
) -> None:
    rows = like_pictures()
    options = {"compression": compression, "use_dictionary": use_dictionary, "data_page_version": version}
    path = write(tmp_path / "a.parquet", rows, kind=kind, write_batch_size=batch, data_page_size=1000, **options)
    found, read = places_in(path)
    assert read == rows
    assert len(found.rows) == len(rows)
    for row in np.random.default_rng(1).permutation(len(rows)).tolist():
        assert found.read(*stamp_of(str(path)), row).tobytes() == rows[row]


def test_missing_and_empty_rows_have_no_bytes(tmp_path: Path) -> None:
    rows = [noise(100, 0), None, b"", noise(80, 1), b"", None, noise(70, 2)]
    path = write(tmp_path / "a.parquet", rows)
    found, _ = places_in(path)
    assert [found.read(*stamp_of(str(path)), row).tobytes() for row in range(7)] == [row or b"" for row in rows]


def test_columns_that_must_not_miss_values_have_no_levels(tmp_path: Path) -> None:
    rows = [noise(300, seed) for seed in range(5)]
    schema = pa.schema([pa.field("top", pa.binary(), nullable=False)])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"top": pa.array(rows, pa.binary())}, schema=schema), path, use_dictionary=False)
    found, _ = places_in(path)
    assert [found.read(*stamp_of(str(path)), row).tobytes() for row in range(5)] == rows


@pytest.mark.parametrize("compression", ["zstd", "gzip", "lz4"])
def test_other_compressions_are_left_whole(tmp_path: Path, compression: str) -> None:
    found, _ = places_in(write(tmp_path / "a.parquet", like_pictures(), compression=compression))
    assert (len(found.rows), found.is_for(0)) == (0, False)


def test_other_encodings_are_left_whole(tmp_path: Path) -> None:
    options = {"use_dictionary": False, "column_encoding": {"top": "DELTA_LENGTH_BYTE_ARRAY"}}
    found, _ = places_in(write(tmp_path / "a.parquet", like_pictures(), kind=pa.binary(), **options))
    assert len(found.rows) == 0


def test_a_stream_that_copies_from_afar_is_left_whole() -> None:
    from stepwell.lerobot.snappy_kernels import find_blocks

    # 65,536 bytes, then 4 that are copied from 65,536 before
    literal = bytes([61 << 2]) + (65_535).to_bytes(2, "little") + bytes(65_536)
    stream = np.frombuffer(literal + bytes([(3 << 2) | 3]) + (65_536).to_bytes(4, "little"), np.uint8)
    blocks = np.zeros(3, np.int64)
    assert find_blocks(stream, 0, blocks) == -1
    assert find_blocks(stream[: len(literal)], 0, blocks) == 65_536
    assert blocks[:2].tolist() == [0, len(literal)]


@given(st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 3)), min_size=1, max_size=5))
@settings(max_examples=20)
def test_blocks_of_any_stream_are_streams(parts: list[tuple[int, int]]) -> None:
    from stepwell.lerobot.parquet_places import _decompressed
    from stepwell.lerobot.snappy_kernels import BLOCK_BYTES, find_blocks

    data = b"".join(noise(size, kind) if kind else bytes(size) for size, kind in parts)
    stream = np.frombuffer(pa.compress(data, codec="snappy", asbytes=True), np.uint8)
    first = int(np.argmax(stream < 128)) + 1
    blocks = np.zeros(-(-len(data) // BLOCK_BYTES) + 1, np.int64)
    assert find_blocks(stream, first, blocks) == len(data)
    for number in range(len(blocks) - 1):
        expected = data[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
        part = stream[blocks[number] : blocks[number + 1]].tobytes()
        assert _decompressed(part, len(expected)).tobytes() == expected


@given(st.data())
@settings(max_examples=60)
def test_damaged_pages_are_left_whole_or_are_right(data: st.DataObject) -> None:
    rows = [np.frombuffer(noise(60, seed), np.uint8) for seed in range(4)]
    chunk = bytearray(_chunk(rows))
    for _ in range(data.draw(st.integers(1, 3))):
        chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(chunk[: data.draw(st.integers(0, len(chunk)))])
    found = find_places(cut, 0, "UNCOMPRESSED", rows, has_levels=True)
    for row, (begin, end, _, before, size) in enumerate(found.rows.tolist()):
        assert cut[begin:end][before : before + size] == rows[row].tobytes()


def _chunk(rows: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"top": pa.array([row.tobytes() for row in rows])}), sink, compression="none")
    file = sink.getvalue().to_pybytes()
    column = pq.ParquetFile(pa.BufferReader(file)).metadata.row_group(0).column(0)
    start = column.dictionary_page_offset
    return file[start : start + column.total_compressed_size]


def test_a_row_group_that_was_forgotten_is_read_in_part_from_the_third_time_on(tmp_path: Path) -> None:
    rows = [noise(3000, seed) for seed in range(40)]
    stamp = stamp_of(str(write(tmp_path / "a.parquet", rows, row_group_size=4)))
    groups = RowGroups(max_bytes=30_000)
    for turn in range(5):
        for row in np.random.default_rng(turn).permutation(40).tolist():
            assert groups.row(stamp, "top", row).tobytes() == rows[row]
    # twice at most, though each was forgotten many times
    assert 10 <= groups.num_read <= 20


def test_many_rows_in_a_row_are_read_whole(tmp_path: Path) -> None:
    rows = [noise(300, seed) for seed in range(3 * STREAK_ROWS)]
    stamp = stamp_of(str(write(tmp_path / "a.parquet", rows, row_group_size=len(rows) // 2)))
    groups = RowGroups(max_bytes=1)
    for _ in range(4):
        for row in range(len(rows)):
            assert groups.row(stamp, "top", row).tobytes() == rows[row]
    assert groups.num_read == 8


def test_a_file_that_took_its_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", like_pictures())
    found, _ = places_in(path)
    stamp = stamp_of(str(path))
    write(tmp_path / "b.parquet", like_pictures(seed=50)).rename(path)
    # who has it open reads on; once it was closed for others, the one that took its place is none
    assert found.read(*stamp, 1).tobytes() == like_pictures()[1]
    monkeypatch.setattr(local_files, "_FILES", SharedCache(1, size_of=lambda file: 1))
    with pytest.raises(DecodeError, match=r"a\.parquet was changed"):
        found.read(*stamp, 1)
    path.unlink()
    monkeypatch.setattr(local_files, "_FILES", SharedCache(1, size_of=lambda file: 1))
    with pytest.raises(DecodeError, match=r"a\.parquet cannot be read: No such file"):
        found.read(*stamp, 1)
