"""Arrow and Parquet files are one table, of which any run of rows is read."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.readers.arrow import ArrowFiles

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
SIZES = (5, 1, 12)


def write_stream(path: Path, table) -> None:
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=4)


def write_file(path: Path, table) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=4)


def write_parquet(path: Path, table) -> None:
    pq.write_table(table, path, row_group_size=4)


@pytest.fixture(params=[("arrow", write_stream), ("arrow", write_file), ("parquet", write_parquet)])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    suffix, write = request.param
    found, start = [], 0
    for number, size in enumerate(SIZES):
        found.append(str(tmp_path / f"{number}.{suffix}"))
        rows = np.arange(start, start + size)
        write(tmp_path / f"{number}.{suffix}", pa.table({"row": rows, "text": [str(row) for row in rows]}))
        start += size
    return found


def test_any_run_of_rows_is_read(paths: list[str]):
    files = ArrowFiles(paths)
    assert files.num_rows == sum(SIZES)
    assert files.file_starts.tolist() == [0, 5, 6, 18]
    for start in range(files.num_rows):
        for stop in range(start + 1, files.num_rows + 1):
            assert files.read(start, stop).column("row").to_pylist() == list(range(start, stop))
    assert files.column("text").to_pylist() == [str(row) for row in range(files.num_rows)]


def test_heads_are_from_all_over_the_files(paths: list[str]):
    rows = ArrowFiles(paths).heads(3, 2).column("row").to_pylist()
    assert rows[:2] == [0, 1]
    assert rows[-1] >= 14
    assert len(rows) <= 6


def test_it_is_sent_without_what_it_holds(paths: list[str]):
    files = ArrowFiles(paths)
    files.read(0, 18)
    again = pickle.loads(pickle.dumps(files))
    assert again.read(3, 8).equals(files.read(3, 8))


def test_other_columns_and_other_rows_are_told(paths: list[str]):
    files = ArrowFiles(paths)
    write = write_parquet if paths[0].endswith("parquet") else write_stream
    write(Path(paths[2]), pa.table({"row": [1], "text": ["a"]}))
    with pytest.raises(FormatError, match="has changed since it was opened: 1 rows, not 4"):
        files.read(6, 18)
    write(Path(paths[2]), pa.table({"row": [1]}))
    with pytest.raises(FormatError, match=r"2\.\w+ has other columns than .*0\.\w+"):
        ArrowFiles(paths)


def test_a_file_that_is_none_is_named(paths: list[str]):
    Path(paths[1]).write_bytes(b"nothing")
    with pytest.raises(FormatError, match=r"1\.(arrow|parquet)"):
        ArrowFiles(paths)
