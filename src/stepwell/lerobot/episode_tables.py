"""Reading the episodes of a LeRobot dataset: a table of parquet files in v3, lines of JSON in v2.

::

    v3     meta/episodes/chunk-000/file-000.parquet    one row an episode, in order; looked up by position
    v2     meta/episodes.jsonl                         one line an episode
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError, LeftOutWarning
from stepwell.lerobot.episodes import EpisodeRecords, VideoSpans
from stepwell.lerobot.info import INFO_PATH, DatasetInfo
from stepwell.lerobot.meta_files import (
    HUGE,
    WHAT_TO_DO,
    number_column,
    open_parquet,
    read_columns,
    read_json_lines,
    said,
    whole_number,
)

__all__ = ["EPISODES_FOLDER", "EPISODES_LINES", "episode_paths", "read_episodes"]

EPISODES_FOLDER = "meta/episodes"
EPISODES_LINES = "meta/episodes.jsonl"
INDEX = "episode_index"
ROWS = ("dataset_from_index", "dataset_to_index")
DATA = ("data/chunk_index", "data/file_index")
VIDEO = ("chunk_index", "file_index", "from_timestamp")
# numbers of files go into references of int32
MAX_FILE = 2**31
Columns = dict[str, npt.NDArray[Any]]


def read_episodes(root: Path, info: DatasetInfo) -> EpisodeRecords:
    """Return the episodes that the files under ``meta/`` describe, as many as ``meta/info.json`` counts.

    Args:
        root: of the dataset.
        info: of the dataset.

    Returns:
        The records; of more than ``info.total_episodes`` the first ones: who appends writes ``meta/info.json`` last.

    Raises:
        FormatError: a file is missing or wrong, or there are fewer episodes than ``meta/info.json`` counts.
    """
    records = _read_v3(root, info) if info.is_v3 else _read_v2(root, info)
    if len(records) < info.total_episodes:
        raise FormatError(
            f"{root / INFO_PATH} counts {info.total_episodes} episodes, meta/ describes {len(records)}. {WHAT_TO_DO}"
        )
    num_described = len(records)
    records = records if num_described == info.total_episodes else records.take(np.arange(info.total_episodes))
    frames = int(records.length.sum())
    # who appends writes info.json last: then both counts are those of before
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


def _read_v2(root: Path, info: DatasetInfo) -> EpisodeRecords:
    path = root / EPISODES_LINES
    lines = sorted(read_json_lines(path), key=lambda line: whole_number(line, INDEX, path))
    index = np.array([line[INDEX] for line in lines], np.int64)
    _check_index(index, path)
    stops = list(accumulate(whole_number(line, "length", path) for line in lines))
    chunk = index // info.chunks_size
    return EpisodeRecords(
        index=index,
        first=np.array([0, *stops[:-1]][: len(stops)], np.int64),
        stop=np.array(stops, np.int64),
        data_chunk=chunk,
        data_file=index,
        tasks=[_texts(line.get("tasks"), path) for line in lines],
        videos={key: VideoSpans(chunk, index, np.zeros(len(index))) for key in info.video_keys},
    )


def _texts(tasks: Any, path: Path) -> tuple[str, ...]:
    found = () if tasks is None else tasks
    if not isinstance(found, list | tuple) or not all(isinstance(task, str) for task in found):
        raise FormatError(f"{path}: tasks is {tasks!r}. Allowed: a list of texts.")
    return tuple(found)


def _read_v3(root: Path, info: DatasetInfo) -> EpisodeRecords:
    folder, paths = root / EPISODES_FOLDER, episode_paths(root)
    if not paths and info.total_episodes:
        raise FormatError(f"{folder} has no parquet file. {WHAT_TO_DO}")
    videos = {key: tuple(f"videos/{key}/{name}" for name in VIDEO) for key in info.video_keys}
    needed = [*ROWS, *(name for names in videos.values() for name in names)]
    tables = [_read_table(path, needed) for path in paths]
    columns = _joined([numbers for numbers, _ in tables], [INDEX, *needed, *DATA])
    first, stop = (columns[name] for name in ROWS)
    index = columns.get(INDEX, np.arange(len(first)))
    _check_index(index, folder)
    _check_rows(first, stop, folder)
    for name in columns:
        _check_places(name, columns[name], folder)
    chunk, file = (columns[name] for name in DATA) if DATA[0] in columns else _places_by_rows(root, info, first)
    return EpisodeRecords(
        index=index,
        first=first,
        stop=stop,
        data_chunk=chunk,
        data_file=file,
        tasks=[tasks for _, texts in tables for tasks in texts],
        videos={key: VideoSpans(*(columns[name] for name in names)) for key, names in videos.items()},
    )


def _read_table(path: Path, needed: Sequence[str]) -> tuple[Columns, list[tuple[str, ...]]]:
    """Return the numbers and the tasks of one parquet file; what lerobot does without may be missing."""
    with open_parquet(path) as file:
        here = set(file.schema_arrow.names)
        numbers = [*(name for name in (INDEX,) if name in here), *needed, *(DATA if here.issuperset(DATA) else ())]
        texts = [name for name in ("tasks",) if name in here]
        table = read_columns(file, path, numbers + texts)
    columns = {name: number_column(table, name, _dtype(name), path) for name in numbers}
    return columns, _text_lists(table.column("tasks"), path) if texts else [()] * len(table)


def _dtype(name: str) -> str:
    return "float64" if name.endswith(VIDEO[2]) else "int64"


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


def _joined(parts: Sequence[Columns], names: Sequence[str]) -> Columns:
    """Return the columns that each part has, one part after the other; empty ones where there are no parts."""
    here = [name for name in names if all(name in part for part in parts)]
    return {name: np.concatenate([np.zeros(0, _dtype(name)), *(part[name] for part in parts)]) for name in here}


def _check_index(index: npt.NDArray[np.int64], where: Path) -> None:
    wrong = np.flatnonzero(index != np.arange(len(index)))
    if len(wrong):
        raise FormatError(
            f"{where}: episode {index[wrong[0]]} stands where episode {wrong[0]} belongs. Allowed: 0, 1, 2 and so on, "
            f"each once. {WHAT_TO_DO}"
        )


def _check_rows(first: npt.NDArray[np.int64], stop: npt.NDArray[np.int64], where: Path) -> None:
    before = np.concatenate([[0], stop[:-1]]) if len(stop) else stop
    wrong = np.flatnonzero((first < before) | (stop < first) | (stop >= HUGE))
    if len(wrong):
        at = int(wrong[0])
        raise FormatError(
            f"{where}: episode {at} has rows [{first[at]}, {stop[at]}), after row {before[at]}. Allowed: rows that "
            f"begin where the episode before ends, or later. {WHAT_TO_DO}"
        )


def _check_places(name: str, values: npt.NDArray[Any], where: Path) -> None:
    """Refuse numbers of files that cannot be, and seconds before the beginning of a file."""
    wrong = np.flatnonzero(~((values >= 0) & (values < (MAX_FILE if "_index" in name else HUGE))))
    if len(wrong):
        raise FormatError(f"{where}: {name} of episode {wrong[0]} is {values[wrong[0]]}. {WHAT_TO_DO}")


def _places_by_rows(
    root: Path, info: DatasetInfo, first: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
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
