"""Reading the files of ``meta/``: JSON, JSON lines, columns of parquet; what is wrong in them is a FormatError."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.decoded_sizes import WHAT_TO_SET, are_too_many_rows
from stepwell.errors import FormatError, MissingDependencyError
from stepwell.files.local_files import read_regular
from stepwell.json_text import parse_json

__all__ = [
    "WHAT_TO_DO",
    "number_column",
    "open_parquet",
    "parse_line",
    "read_columns",
    "read_json",
    "read_json_lines",
    "read_lines",
    "said",
    "whole_number",
]

WHAT_TO_DO = 'Download or write the dataset again; "stepwell verify" says what else is wrong.'
# no dataset has as many rows; sums of such numbers still fit into int64
HUGE = 2**40


def read_json(path: Path) -> Any:
    """Return what a JSON file holds.

    Raises:
        FormatError: it is missing, cannot be read or is no JSON.
    """
    text = _read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {said(error)}. {WHAT_TO_DO}") from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object a line; empty lines are left out.

    Raises:
        FormatError: it is missing, cannot be read, or a line is no JSON object.
    """
    return [parse_line(line, number, path) for number, line in enumerate(read_lines(path), 1)]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file that are not empty.

    Raises:
        FormatError: it is missing or cannot be read.
    """
    # not splitlines(), which also cuts at separators that may stand in a task's text
    return [line for line in _read_text(path).split("\n") if line and not line.isspace()]


def parse_line(line: str, number: int, path: Path) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        FormatError: it is none.
    """
    try:
        record = parse_json(line)
    except ValueError as error:
        raise FormatError(f"{path}, record {number} is not JSON: {said(error)}. {WHAT_TO_DO}") from error
    if not isinstance(record, dict):
        raise FormatError(f"{path}, record {number} is a JSON {type(record).__name__}. Allowed: an object.")
    return record


def whole_number(record: Mapping[str, Any], name: str, path: Path) -> int:
    """Return a count or an index that a record must have.

    Raises:
        FormatError: it is missing, negative or not a whole number.
    """
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < HUGE:
        raise FormatError(f"{path}: {name} is {value!r} in {_short(record)}. Allowed: a whole number, at least 0.")
    return value


def open_parquet(path: Path) -> Any:
    """Return the ``pyarrow.parquet.ParquetFile`` of a file, its footer read.

    Raises:
        FormatError: it is missing or no parquet file.
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingDependencyError.of("pyarrow", "lerobot") from error
    try:
        file = ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
        num_bytes = path.stat().st_size
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing. {WHAT_TO_DO}") from error
    except _parquet_errors() as error:
        raise FormatError(f"{path} is not a parquet file, or an unfinished one: {said(error)}. {WHAT_TO_DO}") from error
    if are_too_many_rows(file.metadata.num_rows, num_bytes):
        file.close()
        raise FormatError(f"{path} claims {file.metadata.num_rows:,} rows in {num_bytes:,} bytes. {WHAT_TO_SET}")
    return file


def read_columns(file: Any, path: Path, names: Sequence[str]) -> Any:
    """Return columns of an open parquet file as a ``pyarrow.Table``, read by one thread.

    Raises:
        FormatError: a column is missing or cannot be read.
    """
    for name in names:
        if name not in file.schema_arrow.names:
            raise FormatError(f"{path} has no column {name!r}. {WHAT_TO_DO}")
    try:
        return file.read(columns=list(names), use_threads=False)
    except _parquet_errors() as error:
        raise FormatError(f"{path} cannot be read: {said(error)}. {WHAT_TO_DO}") from error


def number_column(table: Any, name: str, dtype: npt.DTypeLike, path: Path) -> npt.NDArray[Any]:
    """Return a column of numbers of a ``pyarrow.Table`` as an array of a dtype that holds each value exactly.

    Raises:
        FormatError: it has a value that is missing, not a number or not exact in this dtype.
    """
    import pyarrow as pa

    column = table.column(name)
    try:
        if column.null_count:
            raise ValueError(f"{column.null_count} of {len(column)} values are missing")
        return np.asarray(column.cast(pa.from_numpy_dtype(np.dtype(dtype))).to_numpy())
    except _parquet_errors() as error:
        raise FormatError(f"{path}: column {name!r} is not {np.dtype(dtype)}: {said(error)}. {WHAT_TO_DO}") from error


def said(error: Exception) -> str:
    """Return the first line of a message, without its full stop: for a sentence that goes on."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(". ") if lines else type(error).__name__


def _short(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _read_text(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8")
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing. {WHAT_TO_DO}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} cannot be read: {said(error)}. {WHAT_TO_DO}") from error


def _parquet_errors() -> tuple[type[Exception], ...]:
    """Return what pyarrow raises on files that are no parquet, damaged or of other types."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, KeyError, MemoryError)
