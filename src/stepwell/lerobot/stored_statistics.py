"""The statistics that a LeRobot dataset stores, as they are stored: of the whole dataset, and of each episode.

::

    v3     meta/stats.json      columns stats/FEATURE/mean ... of the table of episodes
    v2.1   of the episodes'     meta/episodes_stats.jsonl
    v2.0   meta/stats.json      none
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.lerobot.episode_tables import episode_paths
from stepwell.lerobot.info import DatasetInfo
from stepwell.lerobot.meta_files import (
    WHAT_TO_DO,
    open_parquet,
    parse_line,
    read_columns,
    read_json,
    read_lines,
    said,
    whole_number,
)

__all__ = ["EPISODES_STATS_LINES", "STATS_PATH", "EpisodeStatistics", "Statistics", "merged", "read_statistics"]

STATS_PATH = "meta/stats.json"
EPISODES_STATS_LINES = "meta/episodes_stats.jsonl"
MERGED = ("min", "max", "mean", "std", "count")
Statistics = dict[str, dict[str, npt.NDArray[np.float64]]]


def read_statistics(root: Path, info: DatasetInfo, episodes: EpisodeStatistics) -> Statistics | None:
    """Return the statistics of a whole dataset, None where it stores none.

    Args:
        root: of the dataset.
        info: of the dataset.
        episodes: of its episodes: what v2.1 stores.

    Raises:
        FormatError: the file is wrong.
    """
    if info.version == "v2.1":
        return episodes.merged()
    path = root / STATS_PATH
    return _parsed(read_json(path), str(path)) if path.exists() else None


def merged(parts: Iterable[Mapping[str, Any]], where: str) -> Statistics | None:
    """Return the statistics of several episodes together; None of no episode.

    Minimum, maximum, count, mean and standard deviation (of the population); quantiles cannot be merged.

    Args:
        parts: of each episode: feature, then name, then a number or lists of numbers.
        where: the file, for messages.

    Raises:
        FormatError: an episode lacks one of these, or shapes differ from episode to episode.

    Example:
        >>> one, two = ({"x": dict.fromkeys(MERGED, [value])} for value in (1.0, 3.0))
        >>> merged([one, two], "somewhere")["x"]["mean"]
        array([2.5])
    """
    rows: dict[str, list[list[Any]]] = {}
    for part in parts:
        if not isinstance(part, dict):
            raise FormatError(f"{where} is not statistics. Allowed: an object, feature by feature. {WHAT_TO_DO}")
        for feature, found in part.items():
            try:
                rows.setdefault(feature, []).append([found[name] for name in MERGED])
            except (KeyError, TypeError, IndexError) as error:
                raise FormatError(f"{where}: {feature!r} lacks some of {', '.join(MERGED)}. {WHAT_TO_DO}") from error
    return {feature: _merged_feature(feature, values, where) for feature, values in rows.items()} or None


def _merged_feature(feature: str, rows: Sequence[Sequence[Any]], where: str) -> dict[str, npt.NDArray[np.float64]]:
    columns = zip(MERGED, zip(*rows, strict=True), strict=True)
    arrays = [_array(column, f"{where}: {name} of {feature!r}") for name, column in columns]
    low, high, mean, std, counts = arrays
    try:
        weights = counts.reshape(len(rows), *[1] * (mean.ndim - 1))
        # features with infinities have no mean, and that is what is said
        with np.errstate(all="ignore"):
            whole = (mean * weights).sum(0) / weights.sum()
            variance = ((std**2 + (mean - whole) ** 2) * weights).sum(0) / weights.sum()
            deviation = np.sqrt(variance)
    except ValueError as error:
        raise FormatError(
            f"{where}: shapes of {feature!r} do not fit together ({said(error)}). Allowed: a count of shape [1], all "
            f"others of one shape. {WHAT_TO_DO}"
        ) from error
    return dict(zip(MERGED, (low.min(0), high.max(0), whole, deviation, counts.sum(0)), strict=True))


def _parsed(raw: Any, where: str) -> Statistics:
    """Return statistics from JSON types."""
    if not isinstance(raw, dict) or not all(isinstance(found, dict) for found in raw.values()):
        raise FormatError(f"{where} is not statistics. Allowed: an object of objects, feature by feature. {WHAT_TO_DO}")
    return {
        feature: {name: _array(value, f"{where}: {name} of {feature!r}") for name, value in found.items()}
        for feature, found in raw.items()
    }


def _array(value: Any, where: str) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{where} is not an array of numbers: {said(error)}. {WHAT_TO_DO}") from error


class EpisodeStatistics:
    """The stored statistics of single episodes, read when they are first asked for.

    Args:
        root: of the dataset.
        info: of the dataset.
    """

    def __init__(self, root: Path, info: DatasetInfo) -> None:
        self._root, self._info = root, info
        self._lines: list[str] | None = None
        self._tables: list[Any] | None = None

    def of(self, place: int) -> Statistics | None:
        """Return those of one episode, None where the dataset stores none.

        Raises:
            FormatError: the file is wrong.
        """
        if self._info.is_v3:
            return self._of_v3(place)
        return self._of_v21(place) if self._info.version == "v2.1" else None

    def merged(self) -> Statistics | None:
        """Return those of all episodes of v2.1 together; None where the dataset stores none.

        Raises:
            FormatError: the file is wrong.
        """
        path = self._root / EPISODES_STATS_LINES
        if not path.exists():
            return None
        numbers: list[int] = []
        found = merged(_stats_of_lines(path, numbers), str(path))
        if sorted(numbers) != list(range(len(numbers))):
            raise FormatError(f"{path} does not have each episode once. {WHAT_TO_DO}")
        return found

    def _of_v21(self, place: int) -> Statistics | None:
        path = self._root / EPISODES_STATS_LINES
        if self._lines is None:
            self._lines = read_lines(path) if path.exists() else []
        # each is long to parse, and nearly always they are in order
        nearest = [*self._lines[place : place + 1], *self._lines]
        records = (parse_line(line, number, path) for number, line in enumerate(nearest, place + 1))
        for record in records:
            if record.get("episode_index") == place:
                return _parsed(record.get("stats"), str(path))
        return None

    def _of_v3(self, place: int) -> Statistics | None:
        for path, table in self._v3_tables():
            if place < len(table):
                return _from_row(table, place, path)
            place -= len(table)
        return None

    def _v3_tables(self) -> list[Any]:
        if self._tables is None:
            self._tables = [(path, _stats_table(path)) for path in episode_paths(self._root)]
        return self._tables


def _stats_of_lines(path: Path, numbers: list[int]) -> Iterator[Any]:
    """Yield what each line says, and note of which episode; one at a time, since all together are large."""
    for number, line in enumerate(read_lines(path), 1):
        record = parse_line(line, number, path)
        numbers.append(whole_number(record, "episode_index", path))
        yield record.get("stats")


def _stats_table(path: Path) -> Any:
    with open_parquet(path) as file:
        # a column that is always there counts the rows where there are no statistics
        names = [name for name in file.schema_arrow.names if name.startswith("stats/")]
        return read_columns(file, path, [*names, "dataset_from_index"])


def _from_row(table: Any, row: int, path: Path) -> Statistics | None:
    found: Statistics = {}
    for column in table.column_names[:-1]:
        feature, _, name = column.removeprefix("stats/").rpartition("/")
        value = table.column(column)[row].as_py()
        if value is not None:
            found.setdefault(feature, {})[name] = _array(value, f"{path}: {column}")
    return found or None
