"""The tables of episodes and tasks under ``meta/``, read leniently: what is wrong is a finding, and the audit goes on.

The strict reader of the same files is `stepwell.lerobot.metadata`; it refuses what this one reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.lerobot.audits.info import problem_of
from stepwell.lerobot.audits.reports import Rule, Tally
from stepwell.lerobot.audits.subject import EpisodeList, SpanList
from stepwell.lerobot.info import DatasetInfo
from stepwell.lerobot.meta_files import number_column, open_parquet, read_columns, read_json_lines

__all__ = ["read_episodes", "read_tasks"]

Integers = npt.NDArray[np.int64]
UNKNOWN = -1
TEXT_COLUMNS = ("task", "__index_level_0__")
# what is said of each episode's place in a camera's files; the last is not needed to read it
SPAN_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")

EPISODES = Rule(
    "episodes-unreadable",
    "error",
    "Download or write meta/ again; a recorder that was killed leaves files without end.",
)
TASKS = Rule("tasks-unreadable", "error", "Download or write meta/tasks again: without it no step has a text.")


def read_tasks(root: Path, info: DatasetInfo, tally: Tally) -> list[tuple[int, str]] | None:
    """Return (task_index, text) in the order of the file; None when it cannot be read."""
    try:
        if not info.is_v3:
            return [(int(line["task_index"]), str(line["task"])) for line in read_json_lines(root / "meta/tasks.jsonl")]
        path = root / "meta/tasks.parquet"
        file = open_parquet(path)
        others = [name for name in file.schema_arrow.names if name != "task_index"]
        text = next((name for name in (*TEXT_COLUMNS, *others) if name in others), TEXT_COLUMNS[0])
        table = read_columns(file, path, ["task_index", text])
        numbers = number_column(table, "task_index", np.int64, path)
        return list(zip(numbers.tolist(), map(str, table.column(text).to_pylist()), strict=True))
    except (FormatError, KeyError, TypeError, ValueError) as error:
        tally.add(TASKS, "", problem_of(error))
        return None


def read_episodes(root: Path, info: DatasetInfo, tally: Tally) -> EpisodeList:
    """Return the table of episodes, as far as it can be read, in the order of the files."""
    parts = list(_v3_parts(root, info, tally) if info.is_v3 else _v2_parts(root, info, tally))
    return _joined(parts or [_empty(info)])


def _v3_parts(root: Path, info: DatasetInfo, tally: Tally) -> Iterator[EpisodeList]:
    paths = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not paths:
        tally.add(EPISODES, "", "no parquet file below meta/episodes")
    for path in paths:
        about = path.relative_to(root).as_posix()
        try:
            columns = _Columns.of(path, info)
            for name in columns.missing:
                tally.add(EPISODES, about, f"no column {name!r}")
            yield _v3_part(columns, info)
        except FormatError as error:
            tally.add(EPISODES, about, problem_of(error))


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of one file of ``meta/episodes``; what is missing is unknown in every row."""

    path: Path
    table: Any
    missing: tuple[str, ...]

    @classmethod
    def of(cls, path: Path, info: DatasetInfo) -> _Columns:
        file = open_parquet(path)
        spans = [f"videos/{key}/{name}" for key in info.video_keys for name in SPAN_COLUMNS]
        needed = ["dataset_from_index", "dataset_to_index", *spans]
        wanted = ["episode_index", "length", "data/chunk_index", "data/file_index", *needed]
        present = set(file.schema_arrow.names)
        missing = [name for name in needed if name not in present and not name.endswith(SPAN_COLUMNS[-1])]
        return cls(path, read_columns(file, path, [name for name in wanted if name in present]), tuple(missing))

    def whole(self, name: str, default: Integers | None = None) -> Integers:
        if name in self.table.column_names:
            return number_column(self.table, name, np.int64, self.path)
        return np.full(self.table.num_rows, UNKNOWN) if default is None else default

    def real(self, name: str) -> npt.NDArray[np.float64]:
        if name in self.table.column_names:
            return number_column(self.table, name, np.float64, self.path)
        return np.full(self.table.num_rows, np.nan)


def _v3_part(columns: _Columns, info: DatasetInfo) -> EpisodeList:
    first, stop = columns.whole("dataset_from_index"), columns.whole("dataset_to_index")
    videos = {}
    for key in info.video_keys:
        chunk, file, start, end = (f"videos/{key}/{name}" for name in SPAN_COLUMNS)
        videos[key] = SpanList(columns.whole(chunk), columns.whole(file), columns.real(start), columns.real(end))
    return EpisodeList(
        number=columns.whole("episode_index", np.arange(columns.table.num_rows)),
        first=first,
        stop=stop,
        length=columns.whole("length", stop - first),
        chunk=columns.whole("data/chunk_index"),
        file=columns.whole("data/file_index"),
        videos=videos,
    )


def _v2_parts(root: Path, info: DatasetInfo, tally: Tally) -> Iterator[EpisodeList]:
    try:
        lines = read_json_lines(root / "meta/episodes.jsonl")
        pairs = sorted((int(line["episode_index"]), int(line["length"])) for line in lines)
    except (FormatError, KeyError, TypeError, ValueError) as error:
        tally.add(EPISODES, "meta/episodes.jsonl", problem_of(error))
        return
    number, length = np.array(pairs, np.int64).reshape(-1, 2).T
    stop = np.cumsum(length)
    chunk = number // info.chunks_size
    start = np.zeros(len(number))
    videos = {key: SpanList(chunk, number, start, length / info.fps) for key in info.video_keys}
    yield EpisodeList(number, stop - length, stop, length, chunk, number, videos)


def _empty(info: DatasetInfo) -> EpisodeList:
    none, nowhen = np.empty(0, np.int64), np.empty(0)
    videos = {key: SpanList(none, none, nowhen, nowhen) for key in info.video_keys}
    return EpisodeList(none, none, none, none, none, none, videos)


def _joined(parts: Sequence[EpisodeList]) -> EpisodeList:
    if len(parts) == 1:
        return parts[0]

    def join(name: str) -> Integers:
        return np.concatenate([getattr(part, name) for part in parts])

    def join_spans(key: str) -> SpanList:
        spans = [part.videos[key] for part in parts]
        return SpanList(
            **{name: np.concatenate([getattr(span, name) for span in spans]) for name in SpanList.__slots__}
        )

    numbers = {name: join(name) for name in ("number", "first", "stop", "length", "chunk", "file")}
    return EpisodeList(**numbers, videos={key: join_spans(key) for key in parts[0].videos})
