"""The tables of episodes and tasks of a written dataset: rows of parquet in v3.0, lines of JSON in v2.1."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.data_files import ParquetFiles, import_pyarrow
from stepwell.lerobot.info import FeatureInfo

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["EpisodeRow", "EpisodeTableWriter", "VideoSpan", "episode_schema", "plain_statistics", "tasks_table"]

KEYS = ("min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99")
GROUP_EPISODES = 64
# as pandas writes the name of an index that has none
TASK_COLUMN = "__index_level_0__"
TWO_63 = 2.0**63


@dataclass(frozen=True, slots=True)
class VideoSpan:
    """Where an episode is among a camera's mp4 files: seconds in that file, half-open."""

    chunk: int
    file: int
    start: float
    stop: float


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What the table says of one episode.

    Args:
        index: of the episode.
        tasks: texts, by first appearance.
        length: rows.
        first_row: of the whole dataset.
        data: (chunk, file) of its rows.
        videos: by camera.
        stats: plain lists, by feature and key; see `plain_statistics`.
    """

    index: int
    tasks: Sequence[str]
    length: int
    first_row: int
    data: tuple[int, int]
    videos: Mapping[str, VideoSpan]
    stats: Mapping[str, Mapping[str, Any]]

    def flat(self, place: tuple[int, int]) -> dict[str, Any]:
        """Return the row by column, of a table in the file with these numbers."""
        row: dict[str, Any] = {
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
    """Writes rows of episodes, some of them at a time.

    Args:
        files: of the table.
        schema: of the table: what it has and a row has not is null.

    Notes:
        For one thread; holds at most 64 rows.
    """

    def __init__(self, files: ParquetFiles, schema: pa.Schema) -> None:
        self._files, self._schema = files, schema
        self._rows: list[EpisodeRow] = []

    def add(self, row: EpisodeRow) -> None:
        """Add the row of the next episode."""
        self._rows.append(row)
        if len(self._rows) == GROUP_EPISODES:
            self._flush()

    def close(self) -> None:
        """Write what is left and complete the file."""
        if self._rows:
            self._flush()
        self._files.close()

    def _flush(self) -> None:
        place = self._files.begin(len(self._rows))
        rows = [row.flat(place) for row in self._rows]
        columns = [_column(field, [row.get(field.name) for row in rows]) for field in self._schema]
        self._files.write(import_pyarrow().Table.from_arrays(columns, schema=self._schema))
        self._rows = []


def episode_schema(infos: Sequence[FeatureInfo]) -> pa.Schema:
    """Return the schema of the table: least and greatest values of whole numbers and truth values are such, too."""
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
    return pa.schema(fields)


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


def tasks_table(texts: Iterable[str]) -> pa.Table:
    """Return ``meta/tasks.parquet``: sorted by number, the text being the index of a pandas frame."""
    pa = import_pyarrow()
    found = list(texts)
    columns = {
        "task_index": pa.array(np.arange(len(found), dtype=np.int64)),
        TASK_COLUMN: pa.array(found, pa.string()),
    }
    told = {
        "index_columns": [TASK_COLUMN],
        "column_indexes": [],
        "columns": [
            _pandas_column("task_index", "task_index", "int64", "int64"),
            _pandas_column(None, TASK_COLUMN, "unicode", "object"),
        ],
    }
    return pa.table(columns).replace_schema_metadata({"pandas": json.dumps(told)})


def _column(field: Any, values: list[Any]) -> Any:
    pa = import_pyarrow()
    if all(value is None for value in values):
        return pa.nulls(len(values), field.type)
    try:
        return pa.array(values).cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if not field.name.startswith("stats/"):
            raise
        # nobody needs them, and other writers have them in other forms
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
