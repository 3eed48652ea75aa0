"""Files of meta/ are read whole, or the file and what is wrong with it are named."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.lerobot.meta_files import (
    number_column,
    open_parquet,
    read_columns,
    read_json,
    read_json_lines,
    said,
    whole_number,
)

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def table(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def column(path: Path, name: str, dtype: str) -> Any:
    with open_parquet(path) as file:
        return number_column(read_columns(file, path, [name]), name, dtype, path)


@pytest.mark.parametrize("read", [read_json, read_json_lines, open_parquet])
def test_missing_file_is_named(tmp_path: Path, read: Any) -> None:
    with pytest.raises(FormatError, match=f"^{tmp_path}/none is missing. Download"):
        read(tmp_path / "none")


@pytest.mark.parametrize("read", [read_json, read_json_lines, open_parquet])
def test_directory_in_the_place_of_a_file_is_named(tmp_path: Path, read: Any) -> None:
    with pytest.raises(FormatError, match=re.escape(str(tmp_path))):
        read(tmp_path)


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 100_000, b"", b'{"a": }'])
def test_what_is_no_json_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"x\.json"):
        read_json(path)


def test_lines_end_at_line_feeds_only_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"task": "a\u2028b\u0085c"}\r\n\n  \n{"task": "d"}', encoding="utf-8", newline="")
    assert read_json_lines(path) == [{"task": "a\u2028b\u0085c"}, {"task": "d"}]


@pytest.mark.parametrize("value", [None, -1, True, 1.0, "1", 2**40, [1]])
def test_only_whole_numbers_are_counts(value: Any) -> None:
    with pytest.raises(FormatError, match=r"x: length is .* in "):
        whole_number({"length": value, "tasks": ["a" * 200]}, "length", Path("x"))
    assert whole_number({"length": 0}, "length", Path("x")) == 0


def test_numbers_come_as_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    path = table(tmp_path / "x.parquet", small=pa.array([1, 2], pa.int8()), whole=[1.0, 2.0])
    for name in ("small", "whole"):
        found = column(path, name, "int64")
        assert (found.tolist(), found.dtype) == ([1, 2], np.int64)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([1, None], "1 of 2 values are missing"),
        ([1.5, 2.0], "is not int64"),
        (["a", "b"], "is not int64"),
        ([[1], [2]], ""),
    ],
)
def test_numbers_that_would_change_are_refused(tmp_path: Path, values: list[Any], says: str) -> None:
    with pytest.raises(FormatError, match=f"column 'a'.*{says}"):
        column(table(tmp_path / "x.parquet", a=values), "a", "int64")


def test_columns_with_dots_and_slashes_in_their_names_are_found(tmp_path: Path) -> None:
    path = table(tmp_path / "x.parquet", **{"videos/observation.images.top/file_index": [3], "observation": [1]})
    assert column(path, "videos/observation.images.top/file_index", "int64").tolist() == [3]
    with pytest.raises(FormatError, match="has no column 'videos/observation'"):
        column(path, "videos/observation", "int64")


def test_message_goes_on_in_one_line() -> None:
    assert said(ValueError("too short.\nmore")) == "too short"
    assert said(KeyError()) == "KeyError"
