"""Parquet files of a written dataset: rows of features, and the tables of episodes and tasks.

::

    data           a row group an episode, of more than 1 GiB of images several
    episodes       a row group of up to 64 episodes: where each lies, and its statistics
    tasks          the text of each task_index

A file that is large enough is followed by a new one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.info import FeatureInfo
from stepwell.lerobot.language import arrow_rows, arrow_type, hf_type
from stepwell.lerobot.meta_files import import_pyarrow
from stepwell.store.layout import link_file

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "MEGABYTE",
    "EpisodeRow",
    "EpisodeTableWriter",
    "FileNumbers",
    "ParquetFiles",
    "VideoSpan",
    "data_schema",
    "data_table",
    "episode_schema",
    "hf_features",
    "place_file",
    "plain_array",
    "plain_statistics",
    "tasks_table",
]

MEGABYTE = 1 << 20
EXTENSIONS = "Array2D", "Array3D", "Array4D", "Array5D"
COMPRESSION = "snappy"
KEYS = ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99")
GROUP_EPISODES = 64
# as pandas writes the name of an index that has none
TASK_COLUMN = "__index_level_0__"
TWO_63 = 2.0**63


class FileNumbers:
    """The numbers of files as LeRobot counts them: so many a directory, then the next directory."""

    def __init__(self, chunks_size: int, first: tuple[int, int] = (0, 0)) -> None:
        self._chunks_size, self._next = chunks_size, first

    def take(self) -> tuple[int, int]:
        """Return the numbers of one more file."""
        chunk, file = self._next
        self._next = (chunk, file + 1) if file + 1 < self._chunks_size else (chunk + 1, 0)
        return chunk, file


class ParquetFiles:
    """Writes tables to a row of files."""

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

    def place(self, source: Path, *, link: bool) -> tuple[int, int]:
        """Let a file of another dataset be the next one, as it is; returns its numbers."""
        self.close()
        place = self._numbers.take()
        place_file(source, self._path_of(*place), link=link)
        return place

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
        # images are all different: a dictionary of them, and the least and greatest, only take time
        self._writer = pa.parquet.ParquetWriter(
            self._file,
            self._schema,
            compression=COMPRESSION,
            use_dictionary=plain,
            write_statistics=plain,
            write_page_checksum=True,
        )


def place_file(source: Path, target: Path, *, link: bool) -> None:
    """Make a file a hard link, or else a copy, of another; of a link what it leads to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    link_file(str(source.resolve()), str(target), link=link)


def data_schema(infos: Sequence[FeatureInfo]) -> pa.Schema:
    """Return the schema of the data files, with the features for Hugging Face's datasets."""
    pa = import_pyarrow()
    fields = [pa.field(info.name, _arrow_type(pa, info)) for info in _columns(infos)]
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": hf_features(infos)}})})


def data_table(schema: pa.Schema, infos: Sequence[FeatureInfo], columns: Mapping[str, Any]) -> pa.Table:
    """Return the table of an episode."""
    pa = import_pyarrow()
    arrays = []
    for info in _columns(infos):
        values = columns[info.name]
        if info.is_camera:
            images = pa.array(values, pa.binary())
            paths = pa.nulls(len(values), pa.string())
            arrays.append(pa.StructArray.from_arrays([images, paths], names=["bytes", "path"]))
        else:
            arrays.append(plain_array(values, info))
    return pa.Table.from_arrays(arrays, schema=schema)


def plain_array(values: Any, info: FeatureInfo) -> Any:
    """Return the column of a feature that is no camera, as a ``pyarrow.Array``."""
    pa = import_pyarrow()
    if info.is_language:
        return arrow_rows(info.name, values)
    return pa.array(values, pa.string()) if info.is_text else _number_array(pa, values, info)


def hf_features(infos: Sequence[FeatureInfo]) -> dict[str, Any]:
    """Return the features as Hugging Face's ``datasets`` declares them, of any generation."""
    return {info.name: _hf_feature(info) for info in _columns(infos)}


def _columns(infos: Sequence[FeatureInfo]) -> list[FeatureInfo]:
    return [info for info in infos if not info.is_video]


def _hf_feature(info: FeatureInfo) -> dict[str, Any]:
    if info.is_image:
        return {"_type": "Image"}
    if info.is_language:
        return hf_type(info.name)
    value = {"dtype": info.dtype, "_type": "Value"}
    if info.shape == (1,):
        return value
    if len(info.shape) == 1:
        return {"feature": value, "length": info.shape[0], "_type": "Sequence"}
    return {"shape": list(info.shape), "dtype": info.dtype, "_type": EXTENSIONS[len(info.shape) - 2]}


def _arrow_type(pa: Any, info: FeatureInfo) -> Any:
    if info.is_image:
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if info.is_language:
        return arrow_type(info.name)
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


@dataclass(frozen=True, slots=True)
class VideoSpan:
    """Where an episode is among a camera's mp4 files: seconds in that file, half-open."""

    chunk: int
    file: int
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What the table says of one episode."""

    index: int
    tasks: Sequence[str]
    length: int
    first_row: int
    data: tuple[int, int]
    videos: Mapping[str, VideoSpan]
    stats: Mapping[str, Mapping[str, Any]]
    # further columns, by name
    others: Mapping[str, Any] = field(default_factory=dict)

    def flat(self, place: tuple[int, int]) -> dict[str, Any]:
        """Return the row by column, of a table in the file with these numbers."""
        row: dict[str, Any] = {
            **self.others,
            "episode_index": self.index,
            "tasks": list(self.tasks),
            "length": self.length,
            "data/chunk_index": self.data[0],
            "data/file_index": self.data[1],
            "dataset_from_index": self.first_row,
            "dataset_to_index": self.first_row + self.length,
        }
        for key, span in self.videos.items():
            row |= {
                f"videos/{key}/chunk_index": span.chunk,
                f"videos/{key}/file_index": span.file,
                f"videos/{key}/from_timestamp": span.start,
                f"videos/{key}/to_timestamp": span.stop,
            }
        for name, stats in self.stats.items():
            row |= {f"stats/{name}/{key}": value for key, value in stats.items()}
        return row | {"meta/episodes/chunk_index": place[0], "meta/episodes/file_index": place[1]}


class EpisodeTableWriter:
    """Writes rows of episodes, some of them at a time."""

    def __init__(self, files: ParquetFiles, schema: pa.Schema) -> None:
        self._files, self._schema = files, schema
        self._rows: list[EpisodeRow] = []

    def add(self, row: EpisodeRow) -> None:
        """Add the row of the next episode."""
        self._rows.append(row)
        if len(self._rows) == GROUP_EPISODES:
            self._flush()

    def close(self) -> None:
        """Write the last rows and complete the file."""
        if self._rows:
            self._flush()
        self._files.close()

    def _flush(self) -> None:
        place = self._files.begin(len(self._rows))
        rows = [row.flat(place) for row in self._rows]
        columns = [_column(field, [row.get(field.name) for row in rows]) for field in self._schema]
        self._files.write(import_pyarrow().Table.from_arrays(columns, schema=self._schema))
        self._rows = []


def episode_schema(infos: Sequence[FeatureInfo], further: Sequence[pa.Field] = ()) -> pa.Schema:
    """Return the schema of the table: least and greatest values of whole numbers and truth values are such, too.

    ``further`` are columns that the format does not know.
    """
    pa = import_pyarrow()
    names = ("length", "data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
    fields: list[Any] = [("episode_index", pa.int64()), ("tasks", pa.list_(pa.string()))]
    fields += [(name, pa.int64()) for name in names]
    for info in infos:
        if info.is_video:
            fields += [(f"videos/{info.name}/{name}", pa.int64()) for name in ("chunk_index", "file_index")]
            fields += [(f"videos/{info.name}/{name}", pa.float64()) for name in ("from_timestamp", "to_timestamp")]
    for info in infos:
        if not info.is_text:
            fields += [(f"stats/{info.name}/{key}", _stats_type(pa, info, key)) for key in KEYS]
    fields += [(f"meta/episodes/{name}", pa.int64()) for name in ("chunk_index", "file_index")]
    return pa.schema([*fields, *further])


def plain_statistics(
    stats: Mapping[str, npt.NDArray[Any]], info: FeatureInfo, *, quantiles: bool = True
) -> dict[str, Any]:
    """Return statistics as lists; least and greatest of whole numbers are whole, those of truth values truth values."""
    plain = {}
    for key, value in stats.items():
        if quantiles or not key.startswith("q"):
            kind = _extreme_kind(info) if key in ("min", "max") else None
            plain[key] = _of_kind(value, kind).tolist()
    return plain


def tasks_table(texts: Iterable[str], name: str = "task_index") -> pa.Table:
    """Return ``meta/tasks.parquet``: sorted by number, the text being the index of a pandas frame."""
    pa = import_pyarrow()
    found = list(texts)
    columns = {
        name: pa.array(np.arange(len(found), dtype=np.int64)),
        TASK_COLUMN: pa.array(found, pa.string()),
    }
    pandas = {
        "index_columns": [TASK_COLUMN],
        "column_indexes": [],
        "columns": [
            _pandas_column(name, name, "int64", "int64"),
            _pandas_column(None, TASK_COLUMN, "unicode", "object"),
        ],
    }
    return pa.table(columns).replace_schema_metadata({"pandas": json.dumps(pandas)})


def _column(field: Any, values: list[Any]) -> Any:
    pa = import_pyarrow()
    if all(value is None for value in values):
        return pa.nulls(len(values), field.type)
    try:
        return pa.array(values).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if not field.name.startswith("stats/"):
            raise
        # no reader needs them, and other writers have them in other forms
        return pa.nulls(len(values), field.type)


def _pandas_column(name: str | None, field: str, pandas_type: str, numpy_type: str) -> dict[str, Any]:
    return {
        "name": name,
        "field_name": field,
        "pandas_type": pandas_type,
        "numpy_type": numpy_type,
        "metadata": None,
    }


def _stats_type(pa: Any, info: FeatureInfo, key: str) -> Any:
    if key == "count":
        return pa.list_(pa.int64())
    kind = _extreme_kind(info) if key in ("min", "max") else None
    found = pa.float64() if kind is None else pa.from_numpy_dtype(np.dtype(kind))
    for _ in range(3 if info.is_camera else 1):
        found = pa.list_(found)
    return found


def _of_kind(values: npt.NDArray[Any], kind: str | None) -> npt.NDArray[Any]:
    if kind != "int64":
        return values if kind is None else values.astype(kind)
    # the greatest int64 is 2**63 as a float64, which no int64 is
    is_beyond = values >= TWO_63
    return np.where(is_beyond, np.iinfo(np.int64).max, np.where(is_beyond, 0, values).astype(np.int64))


def _extreme_kind(info: FeatureInfo) -> str | None:
    """Return the type of a feature's least and greatest value; None: float64."""
    # statistics are float64, whose whole numbers int64 need not hold
    if info.is_camera or info.is_text or info.dtype == "uint64":
        return None
    return {"b": "bool", "i": "int64", "u": "int64"}.get(np.dtype(info.dtype).kind)
