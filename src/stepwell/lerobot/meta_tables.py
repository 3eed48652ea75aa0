"""The metadata of a dataset as code that was written for LeRobot asks for it, without pandas and datasets.

::

    meta.info["fps"], meta.info.fps         lerobot 0.4 has a dict, 0.6 a class
    meta.episodes["dataset_from_index"]     a list, an entry an episode          as a datasets.Dataset
    meta.episodes[3]["length"]              one episode as a dict
    meta.tasks.iloc[0].name                 the text of a task                   as a pandas.DataFrame
    meta.stats["action"]["mean"]            float64 arrays                       as it is

What else a Dataset or a DataFrame can do, `EpisodeRows` and `TaskRows` have of one that is made when it is asked for.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from stepwell.errors import FeatureNotFoundError, MissingDependencyError
from stepwell.lerobot.info import DATA_FILES_MB, DATA_PATHS, DEFAULT_CHUNKS_SIZE, VIDEO_FILES_MB, VIDEO_PATHS

__all__ = ["EpisodeRows", "InfoDict", "TaskRows", "import_lerobots"]

# of an info.json that lacks them
INFO_DEFAULTS = {
    "chunks_size": DEFAULT_CHUNKS_SIZE,
    "data_files_size_in_mb": DATA_FILES_MB,
    "data_path": DATA_PATHS[True],
    "robot_type": None,
    "splits": {},
    "tools": None,
    "video_files_size_in_mb": VIDEO_FILES_MB,
    "video_path": VIDEO_PATHS[True],
}


class InfoDict(dict[str, Any]):
    """What ``meta/info.json`` holds: by key, and by attribute.

    Example:
        >>> info = InfoDict(fps=10, total_episodes=0)
        >>> info.total_episodes += 2
        >>> info["total_episodes"], info.fps, info.data_files_size_in_mb
        (2, 10, 100)
    """

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in INFO_DEFAULTS:
            return copy.deepcopy(INFO_DEFAULTS[name])
        raise AttributeError(f"info.json has no {name!r}. There are: {', '.join(self)}.")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def to_dict(self) -> dict[str, Any]:
        """Return a copy as JSON has it: shapes are lists."""
        plain = copy.deepcopy(dict(self))
        for feature in plain["features"].values():
            feature["shape"] = list(feature["shape"])
        return plain


class EpisodeRows(Sequence[dict[str, Any]]):
    """What a dataset says of its episodes: by column, or by episode.

    Example:
        >>> episodes = EpisodeRows({"length": [5, 7], "dataset_from_index": [0, 5]})
        >>> episodes["length"], episodes[1], len(episodes)
        ([5, 7], {'length': 7, 'dataset_from_index': 5}, 2)
    """

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._columns = {name: list(values) for name, values in columns.items()}

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """Return a column by name as a list, an episode by number as a dict, or a slice of them as a dict of lists."""
        if isinstance(key, str):
            if key not in self._columns:
                raise FeatureNotFoundError(f"no column {key!r}. There are: {', '.join(self._columns)}.")
            return self._columns[key]
        at = key if isinstance(key, slice) else operator.index(key)
        return {name: values[at] for name, values in self._columns.items()}

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``, a row an episode."""
        return import_lerobots("pandas").DataFrame(self._columns)

    def __getattr__(self, name: str) -> Any:
        # what a datasets.Dataset has besides: features, with_format, select, filter, map ...
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_lerobots("datasets").Dataset.from_dict(self._columns), name)

    def __repr__(self) -> str:
        return f"<EpisodeRows {len(self)} x {', '.join(self._columns)}>"


class _RowsByText(dict[Any, Any]):
    """Rows by text; a text and a column are one value of a row."""

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, tuple) and len(key) == 2 and key[0] in self:
            return getattr(self[key[0]], key[1])
        raise KeyError(key)


class TaskRows:
    """The tasks of a dataset by number (``iloc``) and by text (``loc``), as far as LeRobot asks its table for them.

    Example:
        >>> tasks = TaskRows(["pick", "place"])
        >>> tasks.iloc[1].name, tasks.loc["place"].task_index, "drop" in tasks.index, tasks["task_index"]
        ('place', 1, False, [0, 1])
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self._tasks = list(tasks)

    @property
    def index(self) -> list[str]:
        """The texts, by task_index."""
        return self._tasks

    @cached_property
    def iloc(self) -> list[Any]:
        """The rows by number: each has ``name``, the text, and ``task_index``."""
        return [SimpleNamespace(name=text, task_index=number) for number, text in enumerate(self._tasks)]

    @cached_property
    def loc(self) -> _RowsByText:
        """The rows by text, and their values by (text, column)."""
        return _RowsByText((row.name, row) for row in self.iloc)

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, column: str) -> list[int]:
        if column != "task_index":
            raise FeatureNotFoundError(f"no column {column!r}. There is: task_index; the texts are in `index`.")
        return list(range(len(self._tasks)))

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``: ``task_index``, and the texts as its index."""
        pandas = import_lerobots("pandas")
        return pandas.DataFrame({"task_index": self["task_index"]}, index=pandas.Index(self._tasks, name="task"))

    def __getattr__(self, name: str) -> Any:
        # what a DataFrame has besides: reset_index, copy, iterrows ...
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.to_pandas(), name)

    def __repr__(self) -> str:
        return f"TaskRows({self._tasks!r})"


def import_lerobots(name: str) -> Any:
    """Return pandas or datasets, which lerobot needs and stepwell does not."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"{name} is not installed. Type: pip install {name}") from error
