"""The store that a recorder writes into, and how the episodes in it come into a LeRobot dataset, exactly once.

::

    data/
      reach/                 the dataset; readable at every moment, or not there yet
      .reach.recording/      the store that is recorded into, locked by the recorder
        export.json          while an export is going on: which episodes, and how many the dataset had before
      .reach.recorded/       on its way out

An export counts from the moment when the dataset's info.json counts its episodes. After a kill, an ``export.json`` is
compared with the dataset, by lengths and numbers of the episodes: none comes twice, and none is lost.

::

    LeRobot's feature                 in the store
    "float32" (7,)                    Array(7)             (1,) is a scalar
    "string" (1,)                     Text()
    "video" (480, 640, 3)             Video(...)           encoded in the background
    "image" (480, 640, 3)             Image(codec="png")
    depth map, "video"                Video(dtype="uint16")   codes, HEVC without loss
    depth map, "image"                Image(codec="zstd")     floats; "png" where whole millimetres are sure
    the five index features           task_index           the others follow from an episode's place: virtual columns
"""

from __future__ import annotations

import json
import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from stepwell.codecs.video_encoding import DEFAULT_GOP
from stepwell.errors import DatasetNotFoundError, FormatError, SchemaError, StoreBusyError, StoreExistsError
from stepwell.files.file_locks import FileLock, lock_directory
from stepwell.formats.source_episodes import SourceEpisode, episodes_of, schema_of
from stepwell.lerobot.appending import cameras_of, check_complete, finish_append, fitted_columns
from stepwell.lerobot.depth import Quantization, depth_entry, split_options
from stepwell.lerobot.info import (
    DATA_FILES_MB,
    DATA_PATHS,
    DEFAULT_CHUNKS_SIZE,
    ENCODERS,
    INDEX_FEATURES,
    INDEX_INFOS,
    INFO_PATH,
    VIDEO_FILES_MB,
    VIDEO_PATHS,
    DatasetInfo,
    FeatureInfo,
    is_depth_map,
    sizes_of,
)
from stepwell.lerobot.mapped_stores import read_columns
from stepwell.lerobot.meta_files import import_pyarrow, read_json, write_info
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.schema_mapping import map_schema
from stepwell.lerobot.tasks import tasks_of
from stepwell.lerobot.writing import write_dataset
from stepwell.schema import Array, Feature, Image, Schema, Video
from stepwell.store import EncodedRows, Store, Writer, create, open
from stepwell.store.layout import STORE_JSON, replace_file, step_id
from stepwell.store.records import Sync
from stepwell.windows import View

__all__ = [
    "Staging",
    "check_kept",
    "create_recorded",
    "extend_recorded",
    "is_being_recorded",
    "make_info",
    "recorded_info",
    "settle_unfinished",
]

EXPORT_JSON = "export.json"
# a pixel format that is not the default
FULL_COLORS = "yuv444p"


class Staging:
    """The hidden store of a dataset that is being recorded. Made by `begin` and `resume`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.path = _hidden(root)
        self._gone = root.with_name(f".{root.name}.recorded")
        shutil.rmtree(self._gone, ignore_errors=True)
        self._lock()

    @classmethod
    def begin(cls, root: str | os.PathLike[str], make: Callable[[Path], Store]) -> Staging:
        """Return the place for a new dataset, with a store in it."""
        import_pyarrow()
        path = Path(root).absolute()
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise StoreExistsError(
                f"{path} is there already. Go on with LeRobotRecorder.resume(), or choose another root."
            )
        staging = cls(path)
        with staging._unlocked_on_error():
            if staging._has_store and len(open(staging.path)):
                raise StoreExistsError(
                    f"an earlier recording of {path} was not finalized. Go on with LeRobotRecorder.resume(), or remove "
                    f"{staging.path}."
                )
            staging._remove()
            staging._make(make)
        return staging

    @classmethod
    def resume(cls, root: str | os.PathLike[str], make: Callable[[Path, Metadata], Store]) -> Staging:
        """Return the place of a dataset that is recorded already, with a store in it."""
        path = Path(root).absolute()
        if not (path / INFO_PATH).exists() and not (_hidden(path) / STORE_JSON).exists():
            raise DatasetNotFoundError(
                f"{path} is neither a recording nor a LeRobot dataset. Begin one with LeRobotRecorder.create()."
            )
        staging = cls(path)
        with staging._unlocked_on_error():
            staging._settle()
            if not staging._has_store:
                dataset = Metadata.load(path)
                staging._remove()
                if not dataset.info.is_v3:
                    raise FormatError(
                        f"{path} is a LeRobot dataset of {dataset.info.version}. Only v3.0 can be extended: write it "
                        "anew first, with stepwell.lerobot.write_dataset()."
                    )
                staging._make(lambda place: make(place, dataset))
        return staging

    def close(self) -> None:
        """Give up the lock."""
        self._unlock()

    @property
    def num_exported(self) -> tuple[int, int]:
        """Episodes and frames of the dataset."""
        dataset = self._dataset()
        return (0, 0) if dataset is None else (len(dataset.episodes), int(dataset.episodes.length.sum()))

    @property
    def dataset(self) -> Metadata | None:
        """What the dataset says of itself; None where there is none yet, or one without episodes."""
        found = self._dataset()
        return None if found is None or not len(found.episodes) else found

    def export(self, store: Store) -> None:
        """Append the store's episodes to the dataset and let go of them."""
        store.refresh()
        table = store.episodes
        saved = np.flatnonzero(~table.interrupted & ~table.is_open)
        if len(saved):
            self._finish_append()
            before, _ = self.num_exported
            record = {
                "before": before,
                "lengths": table.length[saved].tolist(),
                "origins": table.origin[saved].tolist(),
            }
            replace_file(f"{self.path}/{EXPORT_JSON}", json.dumps(record).encode())
            info = recorded_info(store)
            if not before and (self.root / INFO_PATH).exists():
                # what the first frames told, and sizes of files
                write_info(self.root, info.raw)
            data_mb, video_mb = sizes_of(info.raw)
            write_dataset(
                View(store, saved),
                self.root,
                append=(self.root / INFO_PATH).exists(),
                cameras=cameras_of(info),
                robot_type=info.raw["robot_type"],
                repo_id=store.metadata["lerobot"]["repo_id"],
                data_files_mb=data_mb,
                video_files_mb=video_mb,
                chunks_size=info.chunks_size,
            )
            if store.record.sync != "none":
                # the recording is on the disk, the dataset that takes its place may not be
                os.sync()
            self._let_go(record)
        elif not len(store) and (self.root / INFO_PATH).exists():
            self._remove()

    def _make(self, make: Callable[[Path], Store]) -> None:
        self._lock()
        try:
            # features that cannot be exported are refused before a frame is recorded
            self._check(make(self.path))
        except BaseException:
            self._remove()
            raise

    def _check(self, store: Store) -> None:
        info = recorded_info(store)
        columns = map_schema(schema_of(store), cameras=cameras_of(info), origin=info.raw["features"])
        dataset = self._dataset()
        if dataset is not None:
            fitted_columns(columns, dataset)
            check_complete(dataset)

    def _settle(self) -> None:
        """Remove the episodes of an export that was killed, where the dataset has them already."""
        self._finish_append()
        if not (self.path / EXPORT_JSON).exists():
            return
        record = read_json(self.path / EXPORT_JSON)
        if self._is_exported(record):
            self._let_go(record)
        else:
            (self.path / EXPORT_JSON).unlink()

    def _is_exported(self, record: dict[str, Any]) -> bool:
        dataset = self._dataset()
        first, lengths = record["before"], record["lengths"]
        if dataset is None or dataset.episodes.length[first : first + len(lengths)].tolist() != lengths:
            return False
        # another program may have added episodes of the same lengths meanwhile
        with open(self.path) as store:
            places = {origin: first + i for i, origin in enumerate(record["origins"])}
            mine = [(places[e], i) for i, e in enumerate(store.episodes.origin.tolist()) if e in places]
            names = [name for name, feature in schema_of(store).items() if feature.is_raw and name != "task_index"]
            theirs = dict(read_columns(dataset, [place for place, _ in mine], names))
            return all(
                np.array_equal(theirs[place][name], store[i][name], equal_nan=True)
                for place, i in mine
                for name in names
            )

    def _let_go(self, record: dict[str, Any]) -> None:
        """Remove episodes that are in the dataset, and the directory with the last of them."""
        with open(self.path) as store:
            store.delete_episodes(np.isin(store.episodes.origin, record["origins"]))
            is_empty = not len(store)
        if is_empty:
            self._remove()
        else:
            (self.path / EXPORT_JSON).unlink()

    def _remove(self) -> None:
        """Take the hidden directory away, and its lock with it."""
        if self._unlock.alive:
            self.path.rename(self._gone)
            shutil.rmtree(self._gone, ignore_errors=True)
            self._unlock()

    def _lock(self) -> None:
        self._unlock = weakref.finalize(self, _locked_directory(self.path).release)

    @contextmanager
    def _unlocked_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    @property
    def _has_store(self) -> bool:
        return (self.path / STORE_JSON).exists()

    def _finish_append(self) -> None:
        """Complete or remove an append that was killed, so that the dataset does not change later."""
        if (self.root / INFO_PATH).exists():
            finish_append(self.root)

    def _dataset(self) -> Metadata | None:
        return Metadata.load(self.root) if (self.root / INFO_PATH).exists() else None


def is_being_recorded(root: Path) -> bool:
    """Whether there is a recording of a dataset that is not finalized."""
    return (_hidden(root) / STORE_JSON).exists()


def _hidden(root: Path) -> Path:
    return root.with_name(f".{root.name}.recording")


def _locked_directory(path: Path) -> FileLock:
    """Make a directory if there is none and take its lock."""
    while True:
        path.mkdir(parents=True, exist_ok=True)
        try:
            lock = lock_directory(path, is_waiting=False)
        except BlockingIOError:
            raise StoreBusyError(
                f"{path} is being recorded into by another process. Finalize it there, or choose another root."
            ) from None
        # the process that had the lock before may have removed the directory
        if path.exists() and os.path.samestat(os.fstat(lock.descriptor), path.stat()):
            return lock
        lock.release()


def recorded_info(store: Store) -> DatasetInfo:
    """Return the info.json that a recording's store has in its metadata."""
    return DatasetInfo.parse(store.metadata["lerobot"]["info"], f"{store.path}/{STORE_JSON}")


def make_info(
    features: Mapping[str, Mapping[str, Any]],
    fps: float,
    robot_type: str | None,
    *,
    use_videos: bool = True,
    settings: Mapping[str, float] = MappingProxyType({}),
    depth: Mapping[str, Any] | None = None,
) -> DatasetInfo:
    """Return the checked info.json of a dataset without episodes; ``settings`` are sizes of its files."""
    if "task" in features:
        raise SchemaError("a feature cannot be named 'task': a frame has the text of its task under that name.")
    try:
        # tuples become lists, and values that JSON lacks are an error
        plain = json.loads(json.dumps(dict(features)))
    except TypeError as error:
        raise SchemaError(f"features: {error}. Allowed: what JSON holds, dtypes by name: 'float32'.") from error
    own = {
        name: _with_depth(_channels_last(entry), depth) for name, entry in plain.items() if name not in INDEX_FEATURES
    }
    has_videos = any(isinstance(entry, dict) and entry.get("dtype") == "video" for entry in own.values())
    info = DatasetInfo.parse(
        {
            "codebase_version": "v3.0",
            "robot_type": robot_type,
            "total_episodes": 0,
            "total_frames": 0,
            "total_tasks": 0,
            "chunks_size": DEFAULT_CHUNKS_SIZE,
            "data_files_size_in_mb": DATA_FILES_MB,
            "video_files_size_in_mb": VIDEO_FILES_MB,
            **settings,
            "fps": fps,
            "splits": {},
            "data_path": DATA_PATHS[True],
            "video_path": VIDEO_PATHS[True] if has_videos else None,
            "features": {**own, **{name: info.raw for name, info in INDEX_INFOS.items()}},
        },
        "features",
    )
    if info.video_keys and not use_videos:
        raise SchemaError(
            f"use_videos=False, but {', '.join(map(repr, info.video_keys))} is of dtype 'video'. "
            "Make it 'image', or leave use_videos out."
        )
    return info


def create_recorded(
    path: str | os.PathLike[str],
    info: DatasetInfo,
    *,
    video: Mapping[str, Any],
    image: Mapping[str, Any],
    depth: Mapping[str, Any] = MappingProxyType({}),
    sync: Sync,
    repo_id: str | None = None,
    tasks: Iterable[str] = (),
    video_of: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Store:
    """Create the store of a recording."""
    features = {}
    for name, feature in info.features.items():
        if feature.is_depth:
            features[name] = _depth_camera(feature, depth)
        elif feature.is_video:
            features[name] = _camera(feature.feature, "video", {**video, **video_of.get(name, {})})
        elif feature.is_image:
            features[name] = _camera(feature.feature, "image", image)
        elif not feature.is_index:
            features[name] = feature.feature
    lerobot = {"repo_id": repo_id, "info": info.raw, "tasks": list(tasks)}
    return create(
        path,
        Schema({**features, "task_index": Array((), "int64")}),
        fps=info.fps,
        metadata={"lerobot": lerobot},
        sync=sync,
    )


def extend_recorded(
    path: str | os.PathLike[str], dataset: Metadata, *, video: Mapping[str, Any] | None, image: Mapping[str, Any]
) -> Store:
    """Create the store of episodes that are to be appended to a dataset."""
    colours = [name for name in dataset.info.video_keys if not dataset.info.features[name].is_depth]
    video_of = {name: _video_options(dataset, name, video or {}) for name in colours}
    return create_recorded(
        path, dataset.info, video=video or {}, image=image, sync="episode", tasks=dataset.tasks, video_of=video_of
    )


def check_kept(store: Store, *, video: Mapping[str, Any] | None, image: Mapping[str, Any] | None) -> None:
    """Refuse options that are not those that the cameras of a recording have."""
    for name, feature in schema_of(store).items():
        kind = "video" if feature.codec == "video" else "image"
        given = video if kind == "video" else image
        if feature.kind != "image" or not given or depth_entry(feature) is not None:
            continue
        own = {**dict(feature.options), **({} if kind == "video" else {"codec": feature.codec})}
        other = {option: value for option, value in given.items() if str(own.get(option)) != str(value)}
        if other:
            raise SchemaError(
                f"{kind}={dict(given)!r}: camera {name!r} is recorded with {own}, and a recording keeps its options. "
                f"Leave {kind}= out, or begin another recording."
            )


def _video_options(dataset: Metadata, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `Video` that give a camera the codec and pixel format of the dataset's info.json."""
    facts = dataset.info.features[name].raw.get("info") or {}
    found: dict[str, Any] = {}
    for option, key, allowed in (
        ("encoder", "video.codec", ENCODERS.values()),
        ("pixel_format", "video.pix_fmt", None),
    ):
        value = facts.get(key)
        if value is None:
            continue
        if allowed is not None and value not in allowed:
            raise SchemaError(
                f"{dataset.root}: camera {name!r} has videos of {value!r}, which are not written here. Allowed: "
                f"{', '.join(allowed)}. Record another dataset, or write this one anew with stepwell export."
            )
        if given.get(option, value) != value:
            raise SchemaError(
                f"video={{{option!r}: {given[option]!r}}}: the videos of camera {name!r} are {value!r} by "
                f"{dataset.root / INFO_PATH}, and a dataset has one {option}. Leave it out, or record another dataset."
            )
        if option == "encoder" or value == FULL_COLORS:
            found[option] = value
    return found


def settle_unfinished(store: Store, writer: Writer, *, keep: bool) -> int:
    """Drop the episodes that a crash cut short, or keep them as episodes like the others."""
    table, tasks = store.episodes, tasks_of(store)
    places = np.flatnonzero(table.interrupted & ~table.is_open)
    if not len(places):
        return 0
    if keep:
        done = {table.metadata(place).get("recovered") for place in range(len(table))}
        for episode in episodes_of(View(store, places)):
            first = step_id(episode.segment.ordinal, episode.start)
            # a crash may come between the copy and the deletion
            if first not in done:
                rows = _rows_of(episode)
                texts = [tasks[index] for index in dict.fromkeys(rows["task_index"].tolist())]
                writer.add_episode(rows, tasks=texts, recovered=first)
    store.delete_episodes(places)
    return int(table.length[places].sum())


def _channels_last(entry: Any) -> Any:
    """Return a camera's entry with its shape as height x width x channels, as the rest of stepwell has it."""
    if not isinstance(entry, dict) or entry.get("dtype") not in ("image", "video"):
        return entry
    shape = entry.get("shape")
    if isinstance(shape, list) and len(shape) == 3 and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4):
        return {**entry, "shape": [shape[1], shape[2], shape[0]], "names": ["height", "width", "channels"]}
    return entry


def _with_depth(entry: Any, options: Mapping[str, Any] | None) -> Any:
    """Return the entry of a depth video with the meaning of its codes, and how they are encoded."""
    if not isinstance(entry, dict) or entry.get("dtype") != "video" or not is_depth_map(entry):
        return entry
    given, encoder = split_options(options)
    about = {
        **(entry.get("info") or {}),
        "video.g": encoder.get("gop", DEFAULT_GOP),
        "video.crf": encoder.get("crf"),
        "video.preset": encoder.get("preset"),
        "video.extra_options": {} if "crf" in encoder else {"x265-params": "lossless=1"},
        **(given or Quantization.of(entry)).info(),
    }
    return {**entry, "info": {key: value for key, value in about.items() if value is not None}}


def _camera(plain: Feature, kind: str, options: Mapping[str, Any]) -> Feature:
    try:
        shape = plain.fixed_shape
        return Video(shape, **options) if kind == "video" else Image(shape, **options)
    except TypeError as error:
        raise SchemaError(f"{kind}={dict(options)!r}: {error}.") from error


def _depth_camera(info: FeatureInfo, options: Mapping[str, Any]) -> Feature:
    """Return the feature of a depth map: codes, or what is recorded."""
    shape = info.feature.fixed_shape
    if info.is_video:
        try:
            return Video(shape, "uint16", **options)
        except TypeError as error:
            raise SchemaError(f"depth={dict(options)!r}: {error}.") from error
    # whether whole numbers come the first frame tells, if info.json does not
    unit = (info.raw.get("info") or {}).get("depth_unit")
    return Image(shape, "uint16", codec="png") if unit == "mm" else Image(shape, "float32", codec="zstd")


def _rows_of(episode: SourceEpisode) -> dict[str, Any]:
    """Return the rows of an episode as the store has them: nothing is decoded."""
    schema = schema_of(episode.store)
    return {
        name: episode.read(name) if feature.is_raw else EncodedRows(map(bytes, episode.blobs(name)))
        for name, feature in schema.items()
    }
