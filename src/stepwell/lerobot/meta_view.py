"""The metadata of a dataset as code that was written for LeRobot asks for it, without pandas and datasets.

::

    meta.episodes["dataset_from_index"]     a list, an entry an episode          as a datasets.Dataset
    meta.episodes[3]["length"]              one episode as a dict
    meta.tasks.iloc[0].name                 the text of a task                   as a pandas.DataFrame
    meta.stats["action"]["mean"]            float64 arrays                       as it is
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import FeatureNotFoundError, FormatError, WindowError
from stepwell.lerobot.info import INDEX_FEATURES, INDEX_INFOS
from stepwell.lerobot.tasks import episode_tasks, tasks_of
from stepwell.schema import Feature

if TYPE_CHECKING:
    from stepwell.lerobot.metadata import Metadata
    from stepwell.store import Store

__all__ = ["DatasetMeta", "EpisodeRows", "TaskRows", "dataset_info"]

SUBTASKS = "meta/subtasks.parquet"


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

    def __repr__(self) -> str:
        return f"<EpisodeRows {len(self)} x {', '.join(self._columns)}>"


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
    def loc(self) -> dict[str, Any]:
        """The rows by text."""
        return {row.name: row for row in self.iloc}

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, column: str) -> list[int]:
        if column != "task_index":
            raise FeatureNotFoundError(f"no column {column!r}. There is: task_index; the texts are in `index`.")
        return list(range(len(self._tasks)))

    def __repr__(self) -> str:
        return f"TaskRows({self._tasks!r})"


class DatasetMeta:
    """The metadata of a dataset, with the names that LeRobot has for them.

    Attributes:
        store: as given.
        info: what ``meta/info.json`` holds, or would.

    Notes:
        `episodes` and `stats` are read on first use. Safe to share between threads, picklable.
    """

    def __init__(
        self,
        store: Store,
        *,
        repo_id: str,
        root: Path | None = None,
        revision: str | None = None,
        ignore: Collection[str] = (),
    ) -> None:
        self.repo_id, self.root, self.revision = repo_id, root, revision
        self.info = dataset_info(store, ignore)
        self._ignore = frozenset(ignore)
        self.store = store
        self._tasks = tasks_of(store) or [""]

    @cached_property
    def episodes(self) -> EpisodeRows:
        """All episodes of the dataset, whichever were selected: ``dataset_from_index``, ``length``, ``tasks`` ..."""
        found = self._metadata
        columns = _store_columns(self.store) if found is None else _dataset_columns(found)
        # there may be more since the dataset was opened, and its items are those of then
        known = self.total_episodes
        is_longer = [0, *columns["dataset_to_index"]][known : known + 1] == [self.total_frames]
        return EpisodeRows({name: values[:known] for name, values in columns.items()} if is_longer else columns)

    @cached_property
    def stats(self) -> dict[str, dict[str, Any]] | None:
        """The stored statistics; None where a dataset has none. Those of a store are computed, which takes a while."""
        if self._metadata is not None:
            return self._metadata.stats
        from stepwell.lerobot.statistics import statistics_of

        return statistics_of(self.store)

    @cached_property
    def tasks(self) -> TaskRows:
        """The tasks by task_index."""
        return TaskRows(self._tasks)

    @cached_property
    def subtasks(self) -> TaskRows | None:
        """The subtasks by subtask_index, of datasets that have them."""
        path = None if self.root is None else self.root / SUBTASKS
        return TaskRows(_subtasks(path)) if path and "subtask_index" in self.features and path.exists() else None

    @cached_property
    def _metadata(self) -> Metadata | None:
        """What the directory's files say; None for a store that is no dataset's."""
        if self.root is None:
            return None
        from stepwell.lerobot.metadata import Metadata

        return Metadata.load(self.root, repo_id=self.repo_id, revision=self.revision, ignore=self._ignore)

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Name to dtype, shape and names of each feature, as LeRobot writes them."""
        features: dict[str, dict[str, Any]] = self.info["features"]
        return features

    @property
    def fps(self) -> int | float:
        """Rows a second, an int where the dataset says one."""
        fps: int | float = self.info["fps"]
        return fps

    @property
    def robot_type(self) -> str | None:
        """What the dataset says."""
        return self.info.get("robot_type")

    @property
    def image_keys(self) -> list[str]:
        """Names of the cameras that are stored as images."""
        return [name for name, each in self.features.items() if each["dtype"] == "image"]

    @property
    def video_keys(self) -> list[str]:
        """Names of the cameras that are stored as videos."""
        return [name for name, each in self.features.items() if each["dtype"] == "video"]

    @property
    def camera_keys(self) -> list[str]:
        """Names of all cameras."""
        return [name for name, each in self.features.items() if each["dtype"] in ("image", "video")]

    @property
    def names(self) -> dict[str, Any]:
        """Name of a feature to the names of its elements."""
        return {name: each.get("names") for name, each in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of a feature to its shape, (1,) for a scalar."""
        return {name: tuple(each["shape"]) for name, each in self.features.items()}

    @property
    def total_episodes(self) -> int:
        """How many episodes the dataset has, whichever were selected."""
        return int(self.info["total_episodes"])

    @property
    def total_frames(self) -> int:
        """How many rows the dataset has, whichever episodes were selected."""
        return int(self.info["total_frames"])

    @property
    def total_tasks(self) -> int:
        """How many tasks the dataset has."""
        return len(self._tasks)

    @property
    def task_texts(self) -> tuple[str, ...]:
        """The texts of the tasks, by task_index."""
        return tuple(self._tasks)

    def get_task_index(self, task: str) -> int | None:
        """Return the task_index of a text, None where there is no such task."""
        return self._tasks.index(task) if task in self._tasks else None

    def __repr__(self) -> str:
        return (
            f"<DatasetMeta {self.repo_id!r}  {self.total_episodes:,} episodes  {self.total_frames:,} frames  "
            f"{', '.join(self.features)}>"
        )


def dataset_info(store: Store, ignore: Collection[str] = ()) -> dict[str, Any]:
    """Return what ``meta/info.json`` holds of a store that is or was a LeRobot dataset, or would hold of any other."""
    # Features of the dataset that the store does not have are left out, those that were added come last. Features that
    # vary in shape are no tensors, and are left out, too.
    schema, raw = store.schema, store.metadata.get("lerobot", {}).get("info")
    fps = store.fps if raw is None else raw.get("fps", store.fps)
    if schema is None or not fps:
        what = "no features yet" if schema is None else "no fps"
        raise WindowError(f"{store.path} has {what}, and a LeRobot dataset has. Give them to stepwell.create.")
    # index features that a store does not hold are computed
    there = {*schema, *INDEX_FEATURES}
    known = {} if raw is None else {name: each for name, each in raw["features"].items() if name in there}
    own = {name: _described(each) for name, each in schema.items() if not each.is_ragged or each.kind == "text"}
    added = {name: each for name, each in own.items() if name not in known and name not in INDEX_FEATURES}
    index = {name: own.get(name, INDEX_INFOS[name].raw) for name in INDEX_FEATURES if name not in known}
    features = {**known, **added, **index} if known else {**added, **index}
    # tuples, as LeRobot makes them of what it reads: its policies compare shapes
    features = {
        name: {**each, "shape": tuple(each["shape"])}
        for name, each in features.items()
        if name in INDEX_FEATURES or name not in ignore
    }
    steps = fps if isinstance(fps, int) or not float(fps).is_integer() else int(fps)
    info = {"robot_type": None, **(raw or {}), "fps": steps, "features": features}
    if "root" not in store.metadata.get("lerobot", {}):
        # a store of its own counts for itself, also one that was converted from some of a dataset's episodes
        table = store.episodes
        lengths = table.length[~table.is_open]
        info |= {"total_episodes": len(lengths), "total_frames": int(lengths.sum())}
    return info


def _described(feature: Feature) -> dict[str, Any]:
    """Return what LeRobot says of a feature."""
    if feature.kind == "text":
        return {"dtype": "string", "shape": [1], "names": None}
    shape = list(feature.fixed_shape) or [1]
    names = None if feature.names is None else list(feature.names)
    if feature.kind == "image":
        dtype = "video" if feature.codec == "video" else "image"
        return {"dtype": dtype, "shape": shape, "names": ["height", "width", "channels"][: len(shape)]}
    return {"dtype": feature.np_dtype.name, "shape": shape, "names": names}


def _subtasks(path: Path) -> list[str]:
    """Return the texts of a table that pandas wrote with the texts as its index."""
    from stepwell.lerobot.meta_files import open_parquet, read_columns

    with open_parquet(path) as file:
        others = [name for name in file.schema_arrow.names if name != "subtask_index"]
        if not others:
            raise FormatError(f"{path} has no column of texts. Write the dataset again.")
        texts: list[str] = read_columns(file, path, others[-1:]).column(0).to_pylist()
    return texts


def _store_columns(store: Store) -> dict[str, Sequence[Any]]:
    """Return the columns of a store's own episodes."""
    places, every = np.flatnonzero(~store.episodes.is_open), episode_tasks(store)
    lengths = store.episodes.length[places]
    stops = np.cumsum(lengths)
    return {
        "episode_index": range(len(lengths)),
        "tasks": [list(every[place]) for place in places.tolist()],
        "length": lengths.tolist(),
        "dataset_from_index": (stops - lengths).tolist(),
        "dataset_to_index": stops.tolist(),
    }


def _dataset_columns(metadata: Metadata) -> dict[str, Sequence[Any]]:
    """Return the columns of a dataset's episodes, as v3.0 has them."""
    records = metadata.episodes
    columns: dict[str, Sequence[Any]] = {
        "episode_index": records.index.tolist(),
        "tasks": [list(texts) for texts in records.tasks],
        "length": records.length.tolist(),
        "data/chunk_index": records.data_chunk.tolist(),
        "data/file_index": records.data_file.tolist(),
        "dataset_from_index": records.first.tolist(),
        "dataset_to_index": records.stop.tolist(),
    }
    for key, spans in records.videos.items():
        stops = spans.start + records.length / metadata.info.fps
        columns |= {
            f"videos/{key}/chunk_index": spans.chunk.tolist(),
            f"videos/{key}/file_index": spans.file.tolist(),
            f"videos/{key}/from_timestamp": spans.start.tolist(),
            f"videos/{key}/to_timestamp": stops.tolist(),
        }
    return columns
