"""Files of ``meta/``: JSON and parquet, the table of episodes, the texts of tasks; damage is a FormatError.

::

    v3     meta/episodes/chunk-000/file-000.parquet    one row an episode, in order; looked up by position
           meta/tasks.parquet
    v2     meta/episodes.jsonl, meta/tasks.jsonl       one line an episode, one a task

A reader of a table reports each `Problem` and goes on; by default the report raises the first one that matters.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.decoded_sizes import WHAT_TO_SET, are_too_many_rows
from stepwell.errors import FormatError, LeftOutWarning, MissingDependencyError
from stepwell.files.local_files import check_status, read_regular
from stepwell.json_text import parse_json
from stepwell.lerobot.info import INFO_PATH, DatasetInfo, Problem, Report, refuse
from stepwell.store.layout import replace_file

__all__ = [
    "EPISODES_FOLDER",
    "EPISODES_LINES",
    "SUBTASKS_PATH",
    "SUBTASK_INDEX",
    "TASKS_LINES",
    "TASKS_TABLE",
    "WHAT_TO_DO",
    "EpisodeRecords",
    "VideoSpans",
    "episode_paths",
    "further_columns",
    "further_task_columns",
    "import_pyarrow",
    "is_of_format",
    "number_column",
    "open_parquet",
    "parquet_errors",
    "parse_line",
    "read_columns",
    "read_episodes",
    "read_json",
    "read_json_lines",
    "read_lines",
    "read_subtasks",
    "read_table",
    "read_task_rows",
    "read_tasks",
    "said",
    "whole_number",
    "write_info",
]

WHAT_TO_DO = 'Download or write the dataset again; "stepwell verify" says what else is wrong.'
# no dataset has as many rows; sums of such numbers still fit into int64
HUGE = 2**40
EPISODES_FOLDER = "meta/episodes"
# of lerobot 0.4 and 0.5
SUBTASKS_PATH, SUBTASK_INDEX = "meta/subtasks.parquet", "subtask_index"
EPISODES_LINES = "meta/episodes.jsonl"
# of the table's columns of cameras, of statistics, and of its own place
FORMAT_PREFIXES = ("videos/", "stats/", "meta/episodes/")
TASKS_TABLE = "meta/tasks.parquet"
TASKS_LINES = "meta/tasks.jsonl"
INDEX, LENGTH, TASKS, TASK_INDEX = "episode_index", "length", "tasks", "task_index"
ROWS = ("dataset_from_index", "dataset_to_index")
DATA = ("data/chunk_index", "data/file_index")
VIDEO, VIDEO_STOP = ("chunk_index", "file_index", "from_timestamp"), "to_timestamp"
UNKNOWN = {"int64": -1, "float64": np.nan}
# numbers of files go into references of int32
MAX_FILE = 2**31
# pandas calls an index without a name by the second
TEXT_NAMES = ("task", "__index_level_0__")
MAX_TASKS = 2**20
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def read_json(path: Path) -> Any:
    """Return what a JSON file holds."""
    text = _read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {said(error)}. {WHAT_TO_DO}") from error


def write_info(root: Path, info: Mapping[str, Any]) -> None:
    """Write ``meta/info.json`` as LeRobot does, in place of one that is there."""
    path = root / INFO_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(str(path), json.dumps(info, indent=4, ensure_ascii=False).encode())


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object a line; empty lines are left out."""
    return [parse_line(line, number, path) for number, line in enumerate(read_lines(path), 1)]


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file that are not empty."""
    # not splitlines(), which also cuts at separators that may stand in a task's text
    return [line for line in _read_text(path).split("\n") if line and not line.isspace()]


def parse_line(line: str, number: int, path: Path) -> dict[str, Any]:
    """Return the JSON object of a line."""
    try:
        record = parse_json(line)
    except ValueError as error:
        raise FormatError(f"{path}, record {number} is not JSON: {said(error)}. {WHAT_TO_DO}") from error
    if not isinstance(record, dict):
        raise FormatError(f"{path}, record {number} is a JSON {type(record).__name__}. Allowed: an object.")
    return record


def whole_number(record: Mapping[str, Any], name: str, path: Path) -> int:
    """Return a count or an index that a record must have."""
    value = record.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < HUGE:
        raise FormatError(f"{path}: {name} is {value!r} in {_short(record)}. Allowed: a whole number, at least 0.")
    return value


def import_pyarrow() -> Any:
    """Return pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError.of("pyarrow", "lerobot") from error
    return pyarrow


def open_parquet(path: Path) -> Any:
    """Return the ``pyarrow.parquet.ParquetFile`` of a file, its footer read."""
    open_file = import_pyarrow().parquet.ParquetFile
    try:
        # a pipe would be waited for
        num_bytes = check_status(path.stat(), path).st_size
        file = open_file(path, pre_buffer=False, page_checksum_verification=True)
    except FileNotFoundError as error:
        raise FormatError(f"{path} is missing. {WHAT_TO_DO}") from error
    except parquet_errors() as error:
        raise FormatError(f"{path} is not a parquet file, or an unfinished one: {said(error)}. {WHAT_TO_DO}") from error
    if are_too_many_rows(file.metadata.num_rows, num_bytes):
        file.close()
        raise FormatError(f"{path} claims {file.metadata.num_rows:,} rows in {num_bytes:,} bytes. {WHAT_TO_SET}")
    return file


def read_columns(file: Any, path: Path, names: Sequence[str]) -> Any:
    """Return columns of an open parquet file as a ``pyarrow.Table``, read by one thread."""
    for name in names:
        if name not in file.schema_arrow.names:
            raise FormatError(f"{path} has no column {name!r}. {WHAT_TO_DO}")
    try:
        return file.read(columns=list(names), use_threads=False)
    except parquet_errors() as error:
        raise FormatError(f"{path} cannot be read: {said(error)}. {WHAT_TO_DO}") from error


def number_column(table: Any, name: str, dtype: npt.DTypeLike, path: Path) -> npt.NDArray[Any]:
    """Return a column of numbers of a ``pyarrow.Table`` as an array of a dtype that holds each value exactly."""
    import pyarrow as pa

    column = table.column(name)
    try:
        if column.null_count:
            raise ValueError(f"{column.null_count} of {len(column)} values are missing")
        return np.asarray(column.cast(pa.from_numpy_dtype(np.dtype(dtype))).to_numpy())
    except parquet_errors() as error:
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


def parquet_errors() -> tuple[type[Exception], ...]:
    """Return what pyarrow raises on files that are no parquet, damaged or of other types."""
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, KeyError, MemoryError)


@dataclass(frozen=True, eq=False)
class VideoSpans:
    """Where the frames of one camera lie, episode by episode.

    Args:
        chunk: int64 [E], first number of the mp4 file's name; v2: the episode's chunk.
        file: int64 [E], second number; v2: the episode's index.
        start: float64 [E], seconds in that file at which the episode's first frame is shown; v2: 0.
        stop: float64 [E], seconds at which its last frame ends; NaN where the table does not have it.
    """

    chunk: Ints
    file: Ints
    start: Floats
    stop: Floats

    def take(self, places: npt.ArrayLike) -> VideoSpans:
        """Return the spans of some episodes."""
        at = np.asarray(places, np.int64)
        return VideoSpans(self.chunk[at], self.file[at], self.start[at], self.stop[at])


@dataclass(frozen=True, eq=False)
class EpisodeRecords:
    """The table of episodes of a LeRobot dataset, a struct of arrays in ascending order.

    ::

        episode             0         1             2      3
        rows                0 ----- 185 --------- 349 -- 420 ---- 500     first, stop: one axis for the whole dataset
        parquet file        | file 0              | file 1       |        v3: many episodes a file; v2: one
        mp4 files of a key  | file 0  | file 1           | file 2|        cut elsewhere; seconds begin at 0 in each file

    Args:
        index: int64 [E], number of the episode in the dataset.
        first: int64 [E], its first row among all rows of the dataset.
        stop: int64 [E], the row after its last.
        data_chunk: int64 [E], first number of its parquet file's name; v2: the episode's chunk.
        data_file: int64 [E], second number; v2: the episode's index.
        tasks: [E], the texts of its tasks, empty where the dataset has none.
        videos: by camera, where its frames are; cameras whose images are in the parquet files are not among them.
        table_length: int64 [E], the column "length" of the table, which an audit compares with `length`.

    Notes:
        Immutable: safe to share between threads, picklable. Rows need not be without gaps: a dataset may hold rows that
        belong to no episode. `read_table` fills numbers that the table lacks with -1, times with NaN.
    """

    index: Ints
    first: Ints
    stop: Ints
    data_chunk: Ints
    data_file: Ints
    tasks: Sequence[tuple[str, ...]]
    videos: dict[str, VideoSpans]
    table_length: Ints

    @property
    def length(self) -> Ints:
        """Number of rows of each episode, int64 [E]."""
        return self.stop - self.first

    def __len__(self) -> int:
        return len(self.index)

    def take(self, places: npt.ArrayLike) -> EpisodeRecords:
        """Return the records at some places, int [n]."""
        at = np.asarray(places, np.int64)
        return EpisodeRecords(
            self.index[at],
            self.first[at],
            self.stop[at],
            self.data_chunk[at],
            self.data_file[at],
            [self.tasks[place] for place in at.tolist()],
            {key: spans.take(at) for key, spans in self.videos.items()},
            self.table_length[at],
        )


def read_episodes(root: Path, info: DatasetInfo) -> EpisodeRecords:
    """Return the checked records of the episodes, as many as ``meta/info.json`` counts; raises FormatError."""
    records, absent = read_table(root, info)
    where = root / (EPISODES_FOLDER if info.is_v3 else EPISODES_LINES)
    if info.is_v3 and info.total_episodes and not episode_paths(root):
        raise FormatError(f"{where} has no parquet file. {WHAT_TO_DO}")
    _check_index(records.index, where)
    _check_rows(records.first, records.stop, where)
    _check_places(records, absent, where, refuse, _is_no_place)
    if not absent.isdisjoint(DATA):
        chunk, file = _places_by_rows(root, info, records.first)
        records = replace(records, data_chunk=chunk, data_file=file)
    if len(records) < info.total_episodes:
        raise FormatError(
            f"{root / INFO_PATH} counts {info.total_episodes} episodes, meta/ describes {len(records)}. {WHAT_TO_DO}"
        )
    num_described = len(records)
    # an append writes info.json last: further episodes are not finished
    records = records if num_described == info.total_episodes else records.take(np.arange(info.total_episodes))
    frames = int(records.length.sum())
    if frames != info.total_frames and num_described > info.total_episodes:
        raise FormatError(
            f"{root / INFO_PATH} counts {info.total_episodes} episodes and {info.total_frames} frames; meta/ describes "
            f"{num_described} episodes, of which the first {info.total_episodes} have {frames} frames. {WHAT_TO_DO}"
        )
    if frames != info.total_frames:
        warnings.warn(
            f"{root / INFO_PATH} counts {info.total_frames} frames, the episodes in meta/ have {frames}. What they "
            "name is read; stepwell verify says more.",
            LeftOutWarning,
            stacklevel=2,
        )
    return records


def episode_paths(root: Path) -> list[Path]:
    """Return the parquet files of the table of episodes (v3) in order: by number, file 1000 after file 999."""
    paths = (root / EPISODES_FOLDER).glob("*/*.parquet")
    return sorted(paths, key=lambda path: (_numbers(path), path))


def _numbers(path: Path) -> list[int]:
    return [int(digits) for digits in re.findall(r"[0-9]{1,18}", f"{path.parent.name}/{path.name}")]


def is_of_format(column: str) -> bool:
    """Whether a column of the table of episodes is one of the format."""
    return column in (INDEX, LENGTH, TASKS, *ROWS, *DATA) or column.startswith(FORMAT_PREFIXES)


def further_columns(root: Path, info: DatasetInfo, index: Sequence[int]) -> dict[str, list[Any]]:
    """Return what the table of episodes says of episodes besides the format's own columns, by name.

    None where an episode, or its file, lacks it.
    """
    rows = {row[INDEX]: row for row in _further_rows(root, info)}
    names = dict.fromkeys(name for row in rows.values() for name in row if not is_of_format(name))
    return {name: [rows.get(number, {}).get(name) for number in index] for name in names}


def _further_rows(root: Path, info: DatasetInfo) -> Iterator[dict[str, Any]]:
    if not info.is_v3:
        yield from read_json_lines(root / EPISODES_LINES)
        return
    for path in episode_paths(root):
        with open_parquet(path) as file:
            here = file.schema_arrow.names
            others = [name for name in here if not is_of_format(name)]
            if others and INDEX in here:
                yield from read_columns(file, path, [INDEX, *others]).to_pylist()


def read_table(root: Path, info: DatasetInfo, report: Report = refuse) -> tuple[EpisodeRecords, set[str]]:
    """Return the table of episodes as it is, and the columns that it lacks; by default the first problem is raised."""
    return _read_v3(root, info, report) if info.is_v3 else (_read_v2(root, info, report), set())


def _read_v2(root: Path, info: DatasetInfo, report: Report) -> EpisodeRecords:
    path = root / EPISODES_LINES
    try:
        lines = sorted(read_json_lines(path), key=lambda line: whole_number(line, INDEX, path))
        length = np.array([whole_number(line, LENGTH, path) for line in lines], np.int64)
    except FormatError as error:
        report(Problem(EPISODES_LINES, error))
        lines, length = [], np.zeros(0, np.int64)
    index = np.array([line[INDEX] for line in lines], np.int64)
    stop = np.cumsum(length)
    chunk = index // info.chunks_size
    spans = VideoSpans(chunk, index, np.zeros(len(index)), length / info.fps)
    return EpisodeRecords(
        index=index,
        first=stop - length,
        stop=stop,
        data_chunk=chunk,
        data_file=index,
        tasks=[_texts(line.get("tasks"), path, report) for line in lines],
        videos=dict.fromkeys(info.video_keys, spans),
        table_length=length,
    )


def _texts(tasks: Any, path: Path, report: Report) -> tuple[str, ...]:
    found = () if tasks is None else tasks
    if not isinstance(found, list | tuple) or not all(isinstance(task, str) for task in found):
        error = FormatError(f"{path}: tasks is {tasks!r}. Allowed: a list of texts.")
        report(Problem(EPISODES_LINES, error))
        return ()
    return tuple(found)


def _read_v3(root: Path, info: DatasetInfo, report: Report) -> tuple[EpisodeRecords, set[str]]:
    videos = {key: tuple(f"videos/{key}/{name}" for name in (*VIDEO, VIDEO_STOP)) for key in info.video_keys}
    needed = [*ROWS, *(name for names in videos.values() for name in names[:-1])]
    optional = [LENGTH, *(names[-1] for names in videos.values())]
    parts = []
    for path in episode_paths(root):
        about = path.relative_to(root).as_posix()
        try:
            parts.append(_read_part(path, about, needed, optional, report))
        except FormatError as error:
            report(Problem(about, error))
    columns = {
        name: _joined([part.column(name) for part in parts], name) for name in [INDEX, *needed, *DATA, *optional]
    }
    absent = {name for name in columns if any(name not in part.columns for part in parts)}
    first, stop = (columns[name] for name in ROWS)
    records = EpisodeRecords(
        index=np.arange(len(first)) if INDEX in absent else columns[INDEX],
        first=first,
        stop=stop,
        data_chunk=columns[DATA[0]],
        data_file=columns[DATA[1]],
        tasks=[texts for part in parts for texts in part.tasks],
        videos={key: VideoSpans(*(columns[name] for name in names)) for key, names in videos.items()},
        table_length=stop - first if LENGTH in absent else columns[LENGTH],
    )
    # an audit compares numbers that can be with the files themselves
    _check_places(records, absent, root / EPISODES_FOLDER, report, _is_unknown)
    return records, absent


@dataclass(frozen=True, slots=True)
class _Part:
    """One parquet file of the table of episodes."""

    columns: dict[str, npt.NDArray[Any]]
    tasks: list[tuple[str, ...]]

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column, or as many unknown values as there are rows."""
        return self.columns.get(name, np.full(len(self.tasks), UNKNOWN[_dtype(name)]))


def _read_part(path: Path, about: str, needed: Sequence[str], optional: Sequence[str], report: Report) -> _Part:
    with open_parquet(path) as file:
        here = set(file.schema_arrow.names)
        for name in needed:
            if name not in here:
                error = FormatError(f"{path} has no column {name!r}. {WHAT_TO_DO}")
                report(Problem(about, error, detail=f"no column {name!r}"))
        # lerobot does without the others, and without one of two numbers of a file the other says nothing
        others = [INDEX, *(DATA if here.issuperset(DATA) else ()), *optional, "tasks"]
        table = read_columns(file, path, [name for name in (*needed, *others) if name in here])
    columns = {}
    for name in table.column_names:
        try:
            if name != "tasks":
                columns[name] = number_column(table, name, _dtype(name), path)
        except FormatError as error:
            report(Problem(about, error, is_harmless=name in optional))
    tasks: list[tuple[str, ...]] = [()] * len(table)
    try:
        tasks = _text_lists(table.column("tasks"), path) if "tasks" in here else tasks
    except FormatError as error:
        report(Problem(about, error))
    return _Part(columns, tasks)


def _dtype(name: str) -> str:
    return "float64" if name.endswith("_timestamp") else "int64"


def _text_lists(column: Any, path: Path) -> list[tuple[str, ...]]:
    """Return a column of lists of strings; few texts are in many rows, so that each is decoded once."""
    import pyarrow as pa

    try:
        lists = column.combine_chunks().cast(pa.list_(pa.string()))
        codes = lists.flatten().dictionary_encode()
        words = codes.dictionary.to_pylist()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: column 'tasks' is not lists of texts: {said(error)}. {WHAT_TO_DO}") from error
    if codes.null_count:
        raise FormatError(f"{path}: column 'tasks' lacks {codes.null_count} texts. {WHAT_TO_DO}")
    flat = [words[code] for code in codes.indices.to_pylist()]
    # a missing list has no values
    lengths = lists.value_lengths().fill_null(0).to_pylist()
    ends = list(accumulate(lengths))
    return [tuple(flat[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _joined(parts: Sequence[npt.NDArray[Any]], name: str) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, _dtype(name)), *parts])


def _check_index(index: Ints, where: Path) -> None:
    wrong = np.flatnonzero(index != np.arange(len(index)))
    if len(wrong):
        raise FormatError(
            f"{where}: episode {index[wrong[0]]} stands where episode {wrong[0]} belongs. Allowed: 0, 1, 2 and so on, "
            f"each once. {WHAT_TO_DO}"
        )


def _check_rows(first: Ints, stop: Ints, where: Path) -> None:
    before = np.concatenate([[0], stop[:-1]]) if len(stop) else stop
    wrong = np.flatnonzero((first < before) | (stop < first) | (stop >= HUGE))
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(
            f"{where}: episode {at} has rows [{first[at]}, {stop[at]}), after row {before[at]}. Allowed: rows that "
            f"begin where the episode before ends, or later. {WHAT_TO_DO}"
        )


def _check_places(
    records: EpisodeRecords, absent: Container[str], where: Path, report: Report, is_wrong: Callable[[Any], Any]
) -> None:
    """Report the first wrong value of each column of numbers of files and of seconds."""
    columns: dict[str, npt.NDArray[Any]] = {}
    for key, spans in records.videos.items():
        names = [f"videos/{key}/{name}" for name in VIDEO]
        columns |= zip(names, (spans.chunk, spans.file, spans.start), strict=True)
    columns |= zip(DATA, (records.data_chunk, records.data_file), strict=True)
    for name, values in columns.items():
        wrong = np.flatnonzero(is_wrong(values))
        if len(wrong) and name not in absent:
            detail = f"{name} of episode {wrong[0]} is {values[wrong[0]]}"
            report(Problem(EPISODES_FOLDER, FormatError(f"{where}: {detail}. {WHAT_TO_DO}"), detail))


def _is_unknown(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether a number of a file is negative, or a time NaN, as those are that a table lacks."""
    return np.isnan(values) if values.dtype.kind == "f" else values < 0


def _is_no_place(values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Whether a number of a file cannot be, or a time is before the beginning of a file."""
    return ~((values >= 0) & (values < (HUGE if values.dtype.kind == "f" else MAX_FILE)))


def _places_by_rows(root: Path, info: DatasetInfo, first: Ints) -> tuple[Ints, Ints]:
    """Return chunk and file of each episode, from how many rows the parquet files have."""
    rows: dict[Path, int] = {}
    for number in count():
        chunk, file = divmod(number, info.chunks_size)
        path = root / info.data_name(chunk, file)
        # a template without numbers names the same file again and again
        if path in rows or not path.exists():
            break
        with open_parquet(path) as parquet:
            rows[path] = parquet.metadata.num_rows
    numbers = np.searchsorted(np.cumsum(list(rows.values())), first, side="right")
    if len(first) and numbers.max() >= len(rows):
        raise FormatError(
            f"{root / EPISODES_FOLDER} does not say in which parquet files the episodes are (columns {DATA[0]} and "
            f"{DATA[1]}), and those in {root} have {sum(rows.values())} rows. {WHAT_TO_DO}"
        )
    chunks, files = np.divmod(numbers, info.chunks_size)
    return chunks, files


def read_tasks(root: Path, info: DatasetInfo) -> tuple[str, ...]:
    """Return the texts of a dataset's tasks by their task_index, "" at one that no task has; raises FormatError."""
    path = root / (TASKS_TABLE if info.is_v3 else TASKS_LINES)
    if not info.total_episodes and not path.exists():
        return ()
    # lerobot looks them up by their place in the file: where that is not the order of task_index, its texts are wrong
    rows = read_task_rows(root, info)
    texts = dict(rows)
    if len(texts) < len(rows):
        raise _task_error(path)
    return tuple(texts.get(index, "") for index in range(max(texts, default=-1) + 1))


def read_task_rows(root: Path, info: DatasetInfo) -> list[tuple[int, str]]:
    """Return (task_index, text) in the order of the file; raises FormatError."""
    path = root / (TASKS_TABLE if info.is_v3 else TASKS_LINES)
    if info.is_v3:
        rows = _read_task_table(path)
    else:
        rows = [(whole_number(line, TASK_INDEX, path), line.get("task")) for line in read_json_lines(path)]
    if not all(isinstance(text, str) for _, text in rows):
        raise _task_error(path)
    low, high = min(rows, default=(0, ""))[0], max(rows, default=(0, ""))[0]
    if not 0 <= low <= high < MAX_TASKS:
        raise FormatError(f"{path}: {TASK_INDEX} reaches from {low} to {high}. Allowed: 0 to {MAX_TASKS - 1}.")
    return rows


def further_task_columns(root: Path, info: DatasetInfo) -> set[str]:
    """Return the names of what is said of tasks besides their numbers and texts."""
    path = root / (TASKS_TABLE if info.is_v3 else TASKS_LINES)
    if not path.exists():
        return set()
    if not info.is_v3:
        return {name for line in read_json_lines(path) for name in line} - {TASK_INDEX, "task"}
    with open_parquet(path) as file:
        return set(file.schema_arrow.names) - {TASK_INDEX, _text_name(file.schema_arrow, path)}


def _task_error(path: Path) -> FormatError:
    return FormatError(f"{path}: a {TASK_INDEX} stands there twice, or has no text. {WHAT_TO_DO}")


def _read_task_table(path: Path) -> list[tuple[int, Any]]:
    with open_parquet(path) as file:
        name = _text_name(file.schema_arrow, path)
        table = read_columns(file, path, [TASK_INDEX, name])
    try:
        texts = table.column(name).to_pylist()
    except ValueError as error:
        raise FormatError(f"{path}: column {name!r} is not text: {said(error)}. {WHAT_TO_DO}") from error
    return list(zip(number_column(table, TASK_INDEX, "int64", path).tolist(), texts, strict=True))


def _text_name(schema: Any, path: Path) -> str:
    """Return the column that pandas wrote the texts to, which were the index of its table."""
    others: list[str] = [name for name in schema.names if name != TASK_INDEX]
    indexes = [name for name in _pandas_index(schema) if name in others]
    named = [name for name in (*TEXT_NAMES, *indexes, *others[:1]) if name in others]
    if not named:
        raise FormatError(f"{path} has no column of texts, only {schema.names}. Allowed: {' or '.join(TEXT_NAMES)}.")
    return named[0]


def _pandas_index(schema: Any) -> list[str]:
    try:
        indexes = parse_json((schema.metadata or {}).get(b"pandas", b"{}"))["index_columns"]
    except (ValueError, KeyError, TypeError):
        return []
    return [name for name in indexes if isinstance(name, str)] if isinstance(indexes, list) else []


def read_subtasks(root: Path) -> list[str] | None:
    """Return the texts of ``meta/subtasks.parquet``, a pandas frame whose index they are; None without it."""
    path = root / SUBTASKS_PATH
    if not path.exists():
        return None
    with open_parquet(path) as file:
        others = [name for name in file.schema_arrow.names if name != SUBTASK_INDEX]
        if not others:
            raise FormatError(f"{path} has no column of texts. Write the dataset again.")
        texts: list[str] = read_columns(file, path, others[-1:]).column(0).to_pylist()
    return texts
