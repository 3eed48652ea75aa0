"""The statistics that a LeRobot dataset stores, as they are stored: of the whole dataset, and of each episode.

::

    v3     meta/stats.json      columns stats/FEATURE/mean ... of the table of episodes
    v2.1   of the episodes'     meta/episodes_stats.jsonl
    v2.0   meta/stats.json      none
"""

from __future__ import annotations

from collections.abc import Sequence
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
    read_columns,
    read_json,
    read_json_lines,
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
        return merged(episodes.all())
    path = root / STATS_PATH
    return _parsed(read_json(path), str(path)) if path.exists() else None


def merged(parts: Sequence[Statistics]) -> Statistics | None:
    """Return the statistics of several episodes together; None of no episode.

    Minimum, maximum, count, mean and standard deviation (of the population); quantiles cannot be merged.

    Raises:
        FormatError: an episode lacks one of these, or shapes differ from episode to episode.

    Example:
        >>> one, two = ({"x": {name: np.array([value]) for name in MERGED}} for value in (1.0, 3.0))
        >>> merged([one, two])["x"]["mean"]
        array([2.5])
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _merged_feature(name, [part[name] for part in parts if name in part]) for name in names} or None


def _merged_feature(name: str, parts: Sequence[dict[str, npt.NDArray[np.float64]]]) -> dict[str, Any]:
    try:
        low, high, mean, std, counts = (np.stack([part[key] for part in parts]) for key in MERGED)
        weights = counts.reshape(len(parts), *[1] * (mean.ndim - 1))
        # features with infinities have no mean, and that is what is said
        with np.errstate(all="ignore"):
            whole = (mean * weights).sum(0) / weights.sum()
            variance = ((std**2 + (mean - whole) ** 2) * weights).sum(0) / weights.sum()
            deviation = np.sqrt(variance)
    except (KeyError, ValueError) as error:
        raise FormatError(
            f"{EPISODES_STATS_LINES}: the statistics of {name!r} cannot be merged ({said(error)}). Allowed: "
            f"{', '.join(MERGED)} of one shape, the count of shape [1]. {WHAT_TO_DO}"
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
        self._lines: list[Statistics] | None = None
        self._tables: list[Any] | None = None

    def all(self) -> list[Statistics]:
        """Return those of v2.1, by episode; none in other versions.

        Raises:
            FormatError: the file is wrong.
        """
        if self._lines is None:
            path = self._root / EPISODES_STATS_LINES
            records = read_json_lines(path) if self._info.version == "v2.1" and path.exists() else []
            records.sort(key=lambda record: whole_number(record, "episode_index", path))
            self._lines = [_parsed(record.get("stats"), str(path)) for record in records]
            if records and [record["episode_index"] for record in records] != list(range(len(records))):
                raise FormatError(f"{path} does not have each episode once. {WHAT_TO_DO}")
        return self._lines

    def of(self, place: int) -> Statistics | None:
        """Return those of one episode, None where the dataset stores none.

        Raises:
            FormatError: the file is wrong.
        """
        if not self._info.is_v3:
            lines = self.all()
            return lines[place] if place < len(lines) else None
        for path, table in self._v3_tables():
            if place < len(table):
                return _from_row(table, place, path)
            place -= len(table)
        return None

    def _v3_tables(self) -> list[Any]:
        if self._tables is None:
            self._tables = [(path, _stats_table(path)) for path in episode_paths(self._root)]
        return self._tables


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
