"""The metadata of a dataset by LeRobot's names: `LeRobotDatasetMetadata`, of files; `DatasetMeta`, of a store.

::

    LeRobotDatasetMetadata      meta/ of a directory or of the hub
      DatasetMeta               a store that is, was or could be a LeRobot dataset
      RecordingMeta             a dataset that is being recorded (recording_meta.py)
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from stepwell.errors import DatasetNotFoundError, FormatError, SchemaError, WindowError
from stepwell.lerobot.depth import DepthUnit, check_unit, depth_entry, scaled_statistics
from stepwell.lerobot.info import INDEX_FEATURES, INDEX_INFOS, INFO_PATH, LANGUAGE, is_depth_map
from stepwell.lerobot.language import LANGUAGE_COLUMNS
from stepwell.lerobot.meta_files import SUBTASK_INDEX, read_json, read_subtasks, write_info
from stepwell.lerobot.meta_tables import EpisodeRows, InfoDict, TaskRows, import_lerobots
from stepwell.lerobot.tasks import episode_tasks, subtasks_of, tasks_of
from stepwell.schema import Feature

if TYPE_CHECKING:
    from stepwell.lerobot.installed import LerobotHub
    from stepwell.lerobot.metadata import Metadata
    from stepwell.store import Store

__all__ = [
    "DatasetMeta",
    "LeRobotDatasetMetadata",
    "check_repo_type",
    "dataset_info",
    "hub_of",
    "lerobot_home",
    "local_source",
    "plain_info",
]

LOGGER = logging.getLogger("stepwell.lerobot")
# of a dataset that says nothing of tools
SAY_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "say",
        "description": "Say a short sentence to the user.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "What is said, word for word."}},
            "required": ["text"],
        },
    },
}
CHUNK_SETTINGS = ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb")


class LeRobotDatasetMetadata:
    """The metadata of a LeRobot dataset, with the names that LeRobot's class has for them.

    Args:
        repo_id: a name on the hub (``owner/name``), a directory, or ``lerobot://...``, as for `LeRobotDataset`.
        root: directory of the dataset, where ``repo_id`` only names it. Default: below ``$HF_LEROBOT_HOME`` where
            LeRobot has put it, else the hub, of which only ``meta/`` is fetched.
        revision: branch, tag or commit on the hub; default: the newest version of the format.
        force_cache_sync: ask the hub, whatever lies below ``$HF_LEROBOT_HOME``.
        metadata_buffer_size: of LeRobot's; of no meaning here.
        repo_type: "dataset", or "bucket" of the hub, which is read after `install()` where LeRobot reads them.
        token: of the hub.
        cache_dir: of the hub's files.
        local_files_only: whether only files that are here already are used.
        ignore: names of features to leave out.

    Attributes:
        info: `InfoDict`, what ``meta/info.json`` holds.
        repo_id, root, revision: as in LeRobot's class.

    Raises:
        DatasetNotFoundError: no such dataset.
        FormatError: it is not as its format says; or a bucket, without `install()`.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_lerobot
        >>> meta = LeRobotDatasetMetadata("me/tiny", tiny_lerobot(f"{tempfile.mkdtemp()}/tiny", cameras={}))
        >>> meta.total_episodes, meta.fps, meta.episodes["length"], meta.tasks.iloc[0].name
        (3, 10, [11, 10, 9], 'push the block')
        >>> meta.get_data_file_path(1).as_posix()
        'data/chunk-000/file-000.parquet'

    Notes:
        `episodes` and `stats` are read on first use. Safe to share between threads, picklable.
    """

    repo_id: str
    root: Path | None
    revision: str | None
    info: InfoDict
    _tasks: Sequence[str]
    # of depth maps' statistics; None: as they are stored
    _stats_unit: DepthUnit | None = None
    # after install(): LeRobot's functions and cache
    lerobots_hub: ClassVar[LerobotHub | None] = None
    # likewise the class that it writes meta/ by, of which `create` makes one
    lerobots_class: ClassVar[Any] = None
    # as it was given, and whether the root is of the hub's cache, whose files are links
    _requested_root: Path | None = None
    _is_cached = False
    repo_type: str = "dataset"
    # LeRobot's open parquet file: there is none here
    writer = _pq_writer = None

    def __init__(
        self,
        repo_id: str | os.PathLike[str],
        root: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        force_cache_sync: bool = False,
        metadata_buffer_size: int = 10,
        *,
        repo_type: Literal["dataset", "bucket"] = "dataset",
        token: str | bool | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        local_files_only: bool = False,
        ignore: Collection[str] = (),
    ) -> None:
        from stepwell.lerobot.hub import locate_meta

        self._ignore, self.repo_type = frozenset(ignore), repo_type
        hub = hub_of(repo_id, root, cache_dir, local_files_only=local_files_only)
        check_repo_type(repo_type, hub)
        if hub is not None:
            self.repo_id, self.revision = str(repo_id), revision
            self._requested_root = None if root is None else Path(root)
            self._open_by_lerobot(hub, token, skip_home=force_cache_sync)
            return
        found, _ = locate_meta(
            local_source(repo_id, root, skip_home=force_cache_sync),
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            ignore=ignore,
        )
        named = os.fspath(repo_id)
        self.repo_id = found.repo_id or (named if "://" not in named else found.root.name)
        self.revision = found.revision or revision
        self._take(found)

    def _open_by_lerobot(self, hub: LerobotHub, token: str | bool | None, *, skip_home: bool) -> None:
        """Open what LeRobot's class opens, after `install()`: a directory, or what its functions fetch."""
        self.root = hub.directory_of(self.repo_id, self._requested_root, self.repo_type)
        try:
            if skip_home or (self._requested_root is None and hub.is_mirror(self.root)):
                raise DatasetNotFoundError(f"{self.root} is not looked at.")
            self._load_metadata()
        except FileNotFoundError:
            self._pull_from_repo("meta/", token=token)
            self._load_metadata()

    def _pull_from_repo(
        self, allow_patterns: str | None = None, ignore_patterns: str | None = None, *, token: str | bool | None = None
    ) -> None:
        assert self.lerobots_hub is not None
        if self.repo_type == "bucket":
            assert self.root is not None
            self.lerobots_hub.fetch_bucket(self.repo_id, "meta", self.root, token)
            return
        self.root, self.revision = self.lerobots_hub.fetch_meta(
            self.repo_id,
            self.revision,
            self._requested_root,
            token,
            allow_patterns=allow_patterns,
            ignore_patterns=ignore_patterns,
        )
        self._is_cached = self._requested_root is None

    def _load_metadata(self) -> None:
        assert self.root is not None
        self._take(self.files_of(None))

    def files_of(self, episodes: Iterable[int] | None) -> Metadata:
        """Return what the files of some episodes say."""
        from stepwell.lerobot.metadata import Metadata

        assert self.root is not None
        name = self.repo_id if self._is_cached else None
        return Metadata.load(self.root, episodes=episodes, repo_id=name, revision=self.revision, ignore=self._ignore)

    def _take(self, found: Metadata) -> None:
        """Tell what a dataset's files say."""
        self.root = found.root
        left_out = {name for name in found.info.raw["features"] if name not in found.info.features}
        self.info = plain_info({**found.info.raw, "total_episodes": len(found.episodes)}, left_out)
        self._tasks = found.tasks
        self._metadata = found

    @classmethod
    def create(  # noqa: PLR0917
        cls,
        repo_id: str,
        fps: float,
        features: Mapping[str, Mapping[str, Any]],
        robot_type: str | None = None,
        root: str | os.PathLike[str] | None = None,
        use_videos: bool = True,
        metadata_buffer_size: int = 10,
        chunks_size: int | None = None,
        data_files_size_in_mb: float | None = None,
        video_files_size_in_mb: float | None = None,
    ) -> LeRobotDatasetMetadata:
        """Write the ``meta/info.json`` of a v3.0 dataset without episodes, which `LeRobotDataset.resume` goes on with.

        Args:
            repo_id: name on the hub, "owner/name".
            fps: frames a second.
            features: name to ``{"dtype", "shape", "names"}``, as LeRobot has them.
            robot_type: noted only.
            root: of the dataset, where nothing may be; default: ``$HF_LEROBOT_HOME/owner/name``.
            use_videos: False: cameras of dtype "video" are refused.
            metadata_buffer_size: of LeRobot's; of no meaning here.
            chunks_size: files a directory; default 1000.
            data_files_size_in_mb: size from which on a parquet file is not added to; default 100.
            video_files_size_in_mb: likewise of an mp4 file; default 200.

        Raises:
            FileExistsError: something is at the root.
            SchemaError, FormatError: features that a dataset cannot have.

        Notes:
            After `install()` it is LeRobot's own class that is made, for programs that write ``meta/`` by its
            ``save_episode`` and ``save_episode_tasks``.
        """
        from stepwell.lerobot.staging import make_info

        if cls.lerobots_class is not None:
            theirs: LeRobotDatasetMetadata = cls.lerobots_class.create(
                repo_id,
                fps,
                features,
                robot_type,
                root,
                use_videos,
                metadata_buffer_size,
                chunks_size,
                data_files_size_in_mb,
                video_files_size_in_mb,
            )
            return theirs
        sizes = (chunks_size, data_files_size_in_mb, video_files_size_in_mb)
        settings = _checked_settings(dict(zip(CHUNK_SETTINGS, sizes, strict=True)))
        info = make_info(features, fps, robot_type, use_videos=use_videos, settings=settings)
        path = lerobot_home() / repo_id if root is None else Path(root)
        path.mkdir(parents=True)
        write_info(path, info.raw)
        return cls(repo_id, path)

    @cached_property
    def episodes(self) -> EpisodeRows | None:
        """All episodes of the dataset, whichever were selected: ``dataset_from_index``, ``length``, ``tasks`` ...

        None, as in LeRobot's class, where there are none.
        """
        found = self._metadata
        return None if found is None or not len(found.episodes) else EpisodeRows(_dataset_columns(found))

    @cached_property
    def stats(self) -> dict[str, dict[str, Any]] | None:
        """The stored statistics; None where a dataset has none."""
        return None if self._metadata is None else self._in_unit(self._metadata.stats)

    @cached_property
    def _metadata(self) -> Metadata | None:
        """What the files of the directory say; None where there is no dataset's directory."""
        return None

    @property
    def files(self) -> Metadata:
        """What the files of the directory say.

        Raises:
            WindowError: a store that is no dataset's directory.
        """
        if self._metadata is None:
            raise WindowError(f"{self.repo_id} has no files of a LeRobot dataset. Write them: write_dataset().")
        return self._metadata

    def filter_episodes(
        self, predicate: Callable[[dict[str, Any]], bool], candidates: Iterable[int] | None = None
    ) -> list[int]:
        """Return the numbers of episodes, ascending, whose row of `episodes` a function says True of.

        Args:
            predicate: gets a dict: ``episode_index``, ``length``, ``tasks`` ...
            candidates: numbers that are looked at; default all.
        """
        rows = self.episodes or ()
        among = range(len(rows)) if candidates is None else sorted(set(candidates) & set(range(len(rows))))
        return [number for number in among if predicate(rows[number])]

    def get_data_file_path(self, ep_index: int) -> Path:
        """Return the path of an episode's parquet file, relative to the root.

        Raises:
            IndexError: no such episode.
        """
        records = self.files.episodes
        place = self._place(ep_index)
        return Path(self.files.info.data_name(int(records.data_chunk[place]), int(records.data_file[place])))

    def get_video_file_path(self, ep_index: int, vid_key: str) -> Path:
        """Return the path of a camera's mp4 file with an episode, relative to the root.

        Raises:
            IndexError: no such episode.
            FeatureNotFoundError: no such camera, or its images are not in mp4 files.
        """
        place, spans = self._place(ep_index), self.files.episodes.videos.get(vid_key)
        numbers = (0, 0) if spans is None else (int(spans.chunk[place]), int(spans.file[place]))
        return Path(self.files.info.video_name(vid_key, *numbers))

    def _place(self, ep_index: int) -> int:
        count = len(self.files.episodes)
        if not 0 <= ep_index < count:
            raise IndexError(f"no episode {ep_index} among {count}. Allowed: 0 to {count - 1}.")
        return ep_index

    @property
    def data_path(self) -> str:
        """Template of the parquet files' paths."""
        path: str = self.info.data_path
        return path

    @property
    def video_path(self) -> str | None:
        """Template of the mp4 files' paths."""
        path: str | None = self.info.video_path
        return path

    @property
    def url_root(self) -> str:
        """The dataset's address on the hub, as fsspec has it."""
        return f"hf://{self.repo_type}s/{self.repo_id}"

    @property
    def _version(self) -> Any:
        """The version of the format, a ``packaging.version.Version``."""
        return import_lerobots("packaging.version").parse(self.info.codebase_version)

    @property
    def chunks_size(self) -> int:
        """Files a directory."""
        return int(self.info.chunks_size)

    @property
    def data_files_size_in_mb(self) -> float:
        """Size from which on a parquet file is not added to."""
        return float(self.info.data_files_size_in_mb)

    @property
    def video_files_size_in_mb(self) -> float:
        """Size from which on an mp4 file is not added to."""
        return float(self.info.video_files_size_in_mb)

    def get_chunk_settings(self) -> dict[str, Any]:
        """Return `chunks_size`, `data_files_size_in_mb` and `video_files_size_in_mb`."""
        return {name: getattr(self, name) for name in CHUNK_SETTINGS}

    def update_chunk_settings(
        self,
        chunks_size: int | None = None,
        data_files_size_in_mb: float | None = None,
        video_files_size_in_mb: float | None = None,
    ) -> None:
        """Set how files are cut that are written from now on, in ``meta/info.json``; None leaves one as it is.

        Raises:
            SchemaError: a size that is not positive (a ValueError).
        """
        sizes = (chunks_size, data_files_size_in_mb, video_files_size_in_mb)
        self._save_settings(_checked_settings(dict(zip(CHUNK_SETTINGS, sizes, strict=True))))

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Schemas of the tools that messages may call, as ``apply_chat_template(tools=...)`` takes them.

        Those of ``meta/info.json``, else that of ``say``, a function of a ``text``. Setting them writes the file; None
        or none takes them out.
        """
        return copy.deepcopy(self.info.get("tools") or [SAY_TOOL])

    @tools.setter
    def tools(self, value: Sequence[Mapping[str, Any]] | None) -> None:
        self._save_settings({"tools": [dict(each) for each in value] if value else None})

    def _save_settings(self, settings: Mapping[str, Any]) -> None:
        self.info.update(settings)
        # of the whole file as it is now: info may lack features that were left out
        root = self.files.root
        raw = {**read_json(root / INFO_PATH), **settings}
        write_info(root, {name: value for name, value in raw.items() if name != "tools" or value})

    def ensure_readable(self) -> None:
        """Do nothing: what is asked for is read then."""

    @property
    def depth_keys(self) -> list[str]:
        """Names of the cameras whose images are depth maps."""
        return [name for name, each in self.features.items() if is_depth_map(each)]

    def rescale_depth_stats(self, output_unit: str) -> None:
        """Give `stats` of depth maps in a unit, "mm" or "m", instead of that in which they were recorded.

        Raises:
            SchemaError: another unit (a ValueError).
        """
        unit = check_unit(output_unit)
        unknown = [name for name in self.depth_keys if not (self.features[name].get("info") or {}).get("depth_unit")]
        if unknown:
            LOGGER.warning(
                "%s: nothing says whether %s are mm or m: images and statistics stay as they are. Set depth_unit of "
                "the features' info in meta/info.json.",
                self.repo_id,
                ", ".join(unknown),
            )
        self._stats_unit = unit
        self.__dict__.pop("stats", None)

    def _in_unit(self, stats: dict[str, dict[str, Any]] | None) -> dict[str, dict[str, Any]] | None:
        """Return statistics with those of depth maps in the unit that is wanted."""
        if stats is None or self._stats_unit is None:
            return stats
        scaled = {
            name: scaled_statistics(stats[name], self.features[name], self._stats_unit)
            for name in self.depth_keys
            if name in stats
        }
        return {**stats, **scaled}

    @property
    def has_language_columns(self) -> bool:
        """Whether there are columns of language, see `stepwell.lerobot.language`."""
        return any(each["dtype"] == LANGUAGE for each in self.features.values())

    @cached_property
    def tasks(self) -> TaskRows | None:
        """The tasks by task_index; None, as in LeRobot's class, where there are none."""
        return TaskRows(self._tasks) if self._tasks else None

    @cached_property
    def subtasks(self) -> TaskRows | None:
        """The subtasks by subtask_index, of datasets that have them."""
        if SUBTASK_INDEX not in self.features:
            return None
        texts = self._stored_subtasks or (None if self.root is None else read_subtasks(self.root))
        return None if texts is None else TaskRows(texts)

    @property
    def _stored_subtasks(self) -> list[str] | None:
        """The texts that a store has in its metadata; None of a dataset that is only files."""
        return None

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
            f"<{type(self).__name__} {self.repo_id!r}  {self.total_episodes:,} episodes  {self.total_frames:,} frames  "
            f"{', '.join(self.features)}>"
        )


class DatasetMeta(LeRobotDatasetMetadata):
    """The metadata of a store, by LeRobot's names; of a dataset that is read in place, that of its files.

    Attributes:
        store: as given.
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
        self._ignore = frozenset(ignore)
        self.info = dataset_info(store, ignore)
        self.store = store
        self._tasks = tasks_of(store) or [""]

    @property
    def _stored_subtasks(self) -> list[str] | None:
        return subtasks_of(self.store)

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
            return self._in_unit(self._metadata.stats)
        from stepwell.lerobot.statistics import statistics_of

        return self._in_unit(statistics_of(self.store))

    @cached_property
    def _metadata(self) -> Metadata | None:
        """What the directory's files say; None for a store that is no dataset's."""
        if self.root is None:
            return None
        from stepwell.lerobot.metadata import Metadata

        return Metadata.load(self.root, repo_id=self.repo_id, revision=self.revision, ignore=self._ignore)


def local_source(
    source: str | os.PathLike[str], root: str | os.PathLike[str] | None, *, skip_home: bool = False
) -> str:
    """Return what a dataset is opened by: its root, the directory below LeRobot's home, or what names it."""
    where = os.fspath(source if root is None else root)
    if root is not None and not Path(where, INFO_PATH).exists():
        raise DatasetNotFoundError(
            f"no LeRobot dataset in {where}: there is no {INFO_PATH}. A directory is never looked for on the hub; "
            f"leave root out to fetch {os.fspath(source)!r} from there."
        )
    if root is None and "://" not in where and not skip_home and not Path(where).exists():
        downloaded = lerobot_home() / where
        return str(downloaded) if (downloaded / INFO_PATH).exists() else where
    return where


def check_repo_type(repo_type: str, hub: LerobotHub | None) -> None:
    """Refuse what is no type of repository, and buckets where there is nothing to read them by."""
    if repo_type not in ("dataset", "bucket"):
        raise WindowError(f"repo_type must be 'dataset' or 'bucket', got {repo_type!r}.")
    if repo_type == "bucket" and (hub is None or not hub.has_buckets):
        raise FormatError(
            "repo_type='bucket': buckets of the hub are not read before stepwell.lerobot.install() with a lerobot that "
            "reads them, nor with cache_dir or local_files_only. Allowed here: 'dataset'."
        )


def hub_of(
    repo_id: Any,
    root: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
    *,
    local_files_only: bool,
) -> LerobotHub | None:
    """Return the hub as LeRobot's modules reach it, where `install()` was called, for datasets of a name there."""
    from stepwell.lerobot.hub import REPO_ID

    if cache_dir is not None or local_files_only or not isinstance(repo_id, str) or not REPO_ID.fullmatch(repo_id):
        return None
    is_directory = root is None and Path(repo_id).is_dir()
    return None if is_directory else LeRobotDatasetMetadata.lerobots_hub


def lerobot_home() -> Path:
    """Return the directory that LeRobot keeps datasets in: ``$HF_LEROBOT_HOME``."""
    if LeRobotDatasetMetadata.lerobots_hub is not None:
        return LeRobotDatasetMetadata.lerobots_hub.home
    hugging_face = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return Path(os.environ.get("HF_LEROBOT_HOME") or Path(hugging_face) / "lerobot").expanduser()


def plain_info(raw: Mapping[str, Any], ignore: Collection[str] = ()) -> InfoDict:
    """Return an info.json as LeRobot's class has it, without some features: shapes are tuples, a whole fps an int."""
    # policies of LeRobot compare shapes
    features = {
        name: {**copy.deepcopy(each), "shape": tuple(each["shape"])}
        for name, each in raw["features"].items()
        if name not in ignore
    }
    fps = raw["fps"]
    steps = fps if isinstance(fps, int) or not float(fps).is_integer() else int(fps)
    return InfoDict({"robot_type": None, **raw, "fps": steps, "features": features})


def _checked_settings(settings: Mapping[str, float | None]) -> dict[str, float]:
    """Return the sizes that were given."""
    for name, size in settings.items():
        if size is not None and not size > 0:
            raise SchemaError(f"{name} must be positive, got {size}.")
    return {name: size for name, size in settings.items() if size is not None}


def dataset_info(store: Store, ignore: Collection[str] = ()) -> InfoDict:
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
    own = {name: _described(name, each) for name, each in schema.items() if not each.is_ragged or each.kind == "text"}
    added = {name: each for name, each in own.items() if name not in known and name not in INDEX_FEATURES}
    index = {name: own.get(name, INDEX_INFOS[name].raw) for name in INDEX_FEATURES if name not in known}
    features = {**known, **added, **index} if known else {**added, **index}
    info = plain_info({**(raw or {}), "fps": fps, "features": features}, set(ignore) - set(INDEX_FEATURES))
    if "root" not in store.metadata.get("lerobot", {}):
        # a store of its own counts for itself, also one that was converted from some of a dataset's episodes
        table = store.episodes
        lengths = table.length[~table.is_open]
        info |= {"total_episodes": len(lengths), "total_frames": int(lengths.sum())}
    return info


def _described(name: str, feature: Feature) -> dict[str, Any]:
    """Return what LeRobot says of a feature."""
    if feature.kind == "text":
        return {"dtype": LANGUAGE if name in LANGUAGE_COLUMNS else "string", "shape": [1], "names": None}
    if (depth := depth_entry(feature)) is not None:
        return depth
    shape = list(feature.fixed_shape) or [1]
    names = None if feature.names is None else list(feature.names)
    if feature.kind == "image":
        dtype = "video" if feature.codec == "video" else "image"
        return {"dtype": dtype, "shape": shape, "names": ["height", "width", "channels"][: len(shape)]}
    return {"dtype": feature.np_dtype.name, "shape": shape, "names": names}


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
    return {**columns, **metadata.further}
