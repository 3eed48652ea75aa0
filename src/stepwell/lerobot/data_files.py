"""Parquet files of a dataset: an episode is a row group, and a file that is large enough is followed by a new one."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import MissingDependencyError
from stepwell.lerobot.info import FeatureInfo

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileNumbers", "ParquetFiles", "data_schema", "data_table", "hf_features", "import_pyarrow"]

MEGABYTE = 1 << 20
EXTENSIONS = "Array2D", "Array3D", "Array4D", "Array5D"
COMPRESSION = "snappy"


def import_pyarrow() -> Any:
    """Return pyarrow.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError.of("pyarrow", "lerobot") from error
    return pyarrow


class FileNumbers:
    """The numbers of files as LeRobot counts them: so many a directory, then the next directory.

    Args:
        chunks_size: files in a directory.
        first: (chunk, file) of the first one.

    Example:
        >>> numbers = FileNumbers(chunks_size=2)
        >>> [numbers.take() for _ in range(3)]
        [(0, 0), (0, 1), (1, 0)]
    """

    def __init__(self, chunks_size: int, first: tuple[int, int] = (0, 0)) -> None:
        self._chunks_size, self._next = chunks_size, first

    def take(self) -> tuple[int, int]:
        """Return the numbers of one more file."""
        chunk, file = self._next
        self._next = (chunk, file + 1) if file + 1 < self._chunks_size else (chunk + 1, 0)
        return chunk, file


class ParquetFiles:
    """Writes tables to a row of files.

    Args:
        path_of: from (chunk, file) to a file's path.
        schema: of the tables.
        numbers: of the files.
        limit_mb: a file that would become larger is not added to.

    Notes:
        For one thread. A file is readable only when it is complete: when the next is begun, or after `close`.
    """

    def __init__(
        self, path_of: Callable[[int, int], Path], schema: pa.Schema, numbers: FileNumbers, limit_mb: float
    ) -> None:
        self._path_of, self._schema, self._numbers = path_of, schema, numbers
        self._limit_bytes = limit_mb * MEGABYTE
        self._writer: Any = None
        self._file: Any = None
        self._rows = 0
        self._place = (0, 0)

    def begin(self, num_rows: int) -> tuple[int, int]:
        """Return (chunk, file) of the file that so many more rows go to; begins one where they need it."""
        if self._writer is not None:
            size = self._file.tell()
            if size + size / max(1, self._rows) * num_rows >= self._limit_bytes:
                self.close()
        if self._writer is None:
            self._open()
        return self._place

    def write(self, table: pa.Table) -> None:
        """Write a table as one row group, to the file that `begin` said."""
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows

    def close(self) -> None:
        """Complete the file that is open, if one is."""
        if self._writer is not None:
            self._writer.close()
            self._file.close()
            self._writer = None

    def _open(self) -> None:
        pa = import_pyarrow()
        self._place = self._numbers.take()
        path = self._path_of(*self._place)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file, self._rows = path.open("wb"), 0
        plain = [field.name for field in self._schema if not pa.types.is_struct(field.type)]
        # pictures are all different: a dictionary of them, and the least and greatest, only cost
        self._writer = pa.parquet.ParquetWriter(
            self._file,
            self._schema,
            compression=COMPRESSION,
            use_dictionary=plain,
            write_statistics=plain,
            write_page_checksum=True,
        )


def data_schema(infos: Sequence[FeatureInfo]) -> pa.Schema:
    """Return the schema of the data files, with what Hugging Face's datasets are to make of it.

    Args:
        infos: of all features; videos have no column.
    """
    pa = import_pyarrow()
    fields = [pa.field(info.name, _arrow_type(pa, info)) for info in _columns(infos)]
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": hf_features(infos)}})})


def data_table(schema: pa.Schema, infos: Sequence[FeatureInfo], columns: Mapping[str, Any]) -> pa.Table:
    """Return the table of an episode.

    Args:
        schema: from `data_schema`.
        infos: the same.
        columns: by name; numbers as arrays [n, ...], text as a list of str, images as a list of bytes objects.
    """
    pa = import_pyarrow()
    arrays = []
    for info in _columns(infos):
        values = columns[info.name]
        if info.is_camera:
            pictures = pa.array(values, pa.binary())
            paths = pa.nulls(len(values), pa.string())
            arrays.append(pa.StructArray.from_arrays([pictures, paths], names=["bytes", "path"]))
        elif info.is_text:
            arrays.append(pa.array(values, pa.string()))
        else:
            arrays.append(_number_array(pa, values, info))
    return pa.Table.from_arrays(arrays, schema=schema)


def hf_features(infos: Sequence[FeatureInfo]) -> dict[str, Any]:
    """Return the features as Hugging Face's ``datasets`` declares them, of any generation.

    Lists are "Sequence": the "List" of datasets 4 cannot be read by datasets 3, while both know this name.
    """
    return {info.name: _hf_feature(info) for info in _columns(infos)}


def _columns(infos: Sequence[FeatureInfo]) -> list[FeatureInfo]:
    return [info for info in infos if not info.is_video]


def _hf_feature(info: FeatureInfo) -> dict[str, Any]:
    if info.is_image:
        return {"_type": "Image"}
    value = {"dtype": info.dtype, "_type": "Value"}
    if info.shape == (1,):
        return value
    if len(info.shape) == 1:
        return {"feature": value, "length": info.shape[0], "_type": "Sequence"}
    return {"shape": list(info.shape), "dtype": info.dtype, "_type": EXTENSIONS[len(info.shape) - 2]}


def _arrow_type(pa: Any, info: FeatureInfo) -> Any:
    if info.is_image:
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if info.is_text:
        return pa.string()
    found = pa.from_numpy_dtype(np.dtype(info.dtype))
    if info.shape == (1,):
        return found
    if len(info.shape) == 1:
        return pa.list_(found, info.shape[0])
    for _ in info.shape:
        found = pa.list_(found)
    return found


def _number_array(pa: Any, values: npt.NDArray[Any], info: FeatureInfo) -> Any:
    """Return a column of numbers; its arrays are lists of lists."""
    native = np.ascontiguousarray(values, np.dtype(info.dtype))
    flat = pa.array(native.reshape(-1))
    if info.shape == (1,):
        return flat
    if len(info.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(flat, info.shape[0])
    for axis in range(len(info.shape) - 1, -1, -1):
        size = info.shape[axis]
        count = len(native) * math.prod(info.shape[:axis])
        offsets = np.arange(count + 1, dtype=np.int64) * size
        flat = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat)
    return flat
