"""The store that a recorder writes into: what LeRobot's features become, and what a crash left of one.

::

    LeRobot says                      the store has
    "float32" (7,)                    Array(7)             (1,) is a scalar
    "string" (1,)                     Text()
    "video" (480, 640, 3)             Video(...)           encoded in the background
    "image" (480, 640, 3)             Image(codec="png")
    the five index features           task_index           the others follow from an episode's place: virtual columns
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from stepwell.errors import SchemaError
from stepwell.formats.source_episodes import SourceEpisode, episodes_of, schema_of
from stepwell.lerobot.info import DATA_PATHS, DEFAULT_CHUNKS_SIZE, INDEX_FEATURES, INFO_PATH, VIDEO_PATHS, DatasetInfo
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.tasks import tasks_of
from stepwell.schema import Array, Feature, Image, Schema, Video
from stepwell.store import EncodedRows, Store, Writer, create
from stepwell.store.layout import step_id
from stepwell.store.records import Sync
from stepwell.windows import View

__all__ = ["check_kept", "create_recorded", "extend_recorded", "make_info", "settle_unfinished"]

ENCODERS = ("h264", "hevc", "av1")
# a pixel format that is asked for; the other is the default
FULL_COLORS = "yuv444p"
INDEX_ENTRIES = {
    name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
    for name in INDEX_FEATURES
}


def make_info(features: Mapping[str, Mapping[str, Any]], fps: float, robot_type: str | None) -> DatasetInfo:
    """Return what ``meta/info.json`` of a dataset without episodes says, checked.

    Args:
        features: LeRobot's features by name; the index features may be among them, and are replaced.
        fps: rows a second.
        robot_type: any text, or None.

    Raises:
        SchemaError: a feature "task", or features that JSON cannot hold.
        FormatError: a feature or rate that a LeRobot dataset cannot have.
    """
    if "task" in features:
        raise SchemaError("a feature cannot be named 'task': a frame has the text of its task under that name.")
    try:
        # tuples become lists, and what is no JSON is found
        plain = json.loads(json.dumps(dict(features)))
    except TypeError as error:
        raise SchemaError(f"features: {error}. Allowed: what JSON holds, dtypes by name: 'float32'.") from error
    own = {name: _channels_last(entry) for name, entry in plain.items() if name not in INDEX_FEATURES}
    has_videos = any(isinstance(entry, dict) and entry.get("dtype") == "video" for entry in own.values())
    return DatasetInfo.parse(
        {
            "codebase_version": "v3.0",
            "robot_type": robot_type,
            "total_episodes": 0,
            "total_frames": 0,
            "total_tasks": 0,
            "chunks_size": DEFAULT_CHUNKS_SIZE,
            "fps": fps,
            "splits": {},
            "data_path": DATA_PATHS[True],
            "video_path": VIDEO_PATHS[True] if has_videos else None,
            "features": {**own, **INDEX_ENTRIES},
        },
        "features",
    )


def create_recorded(
    path: str | os.PathLike[str],
    info: DatasetInfo,
    *,
    video: Mapping[str, Any],
    image: Mapping[str, Any],
    sync: Sync,
    repo_id: str | None = None,
    tasks: Iterable[str] = (),
    video_of: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Store:
    """Create the store of a recording.

    Args:
        path: of the store.
        info: what the dataset says of itself.
        video: options of `Video`, for features of dtype "video".
        image: options of `Image`, for features of dtype "image".
        sync: when the writer waits for the disk.
        repo_id: name on the hub, kept for whoever exports.
        tasks: texts that are known already, by ``task_index``.
        video_of: options of single features of dtype "video", beside ``video``.

    Raises:
        StoreExistsError: something is there already.
        SchemaError: options that a camera cannot have.
    """
    own = {name: feature for name, feature in info.features.items() if not feature.is_index}
    schema = {
        name: _camera(feature.feature, "video", {**video, **video_of.get(name, {})})
        for name, feature in own.items()
        if feature.is_video
    }
    schema |= {name: _camera(feature.feature, "image", image) for name, feature in own.items() if feature.is_image}
    features = {name: schema.get(name, feature.feature) for name, feature in own.items()}
    told = {"repo_id": repo_id, "info": info.raw, "tasks": list(tasks)}
    return create(
        path,
        Schema({**features, "task_index": Array((), "int64")}),
        fps=info.fps,
        metadata={"lerobot": told},
        sync=sync,
    )


def extend_recorded(
    path: str | os.PathLike[str], dataset: Metadata, *, video: Mapping[str, Any] | None, image: Mapping[str, Any]
) -> Store:
    """Create the store of what is to be appended to a dataset.

    Args:
        path: of the store.
        dataset: its features, and its tasks, which keep their numbers.
        video: options of `Video`; each camera's encoder and pixel format are those that the dataset tells of.
        image: options of `Image`.

    Raises:
        SchemaError: another encoder or pixel format, or a dataset of one that is not written here.
    """
    told = {name: _told_video(dataset, name, video or {}) for name in dataset.info.video_keys}
    return create_recorded(
        path, dataset.info, video=video or {}, image=image, sync="episode", tasks=dataset.tasks, video_of=told
    )


def check_kept(store: Store, *, video: Mapping[str, Any] | None, image: Mapping[str, Any] | None) -> None:
    """Refuse options that are not those that the cameras of a recording have.

    Args:
        store: of the recording.
        video: options of `Video`; None: none.
        image: options of `Image`, likewise.

    Raises:
        SchemaError: names a camera, and the options that it has.
    """
    for name, feature in schema_of(store).items():
        kind = "video" if feature.codec == "video" else "image"
        given = video if kind == "video" else image
        if feature.kind != "image" or not given:
            continue
        own = {**dict(feature.options), **({} if kind == "video" else {"codec": feature.codec})}
        other = {option: value for option, value in given.items() if str(own.get(option)) != str(value)}
        if other:
            raise SchemaError(
                f"{kind}={dict(given)!r}: camera {name!r} is recorded with {own}, and a recording keeps its options. "
                f"Leave {kind}= out, or begin another recording."
            )


def _told_video(dataset: Metadata, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `Video` that make of a camera what the dataset's info.json says its files are."""
    told = dataset.info.features[name].raw.get("info") or {}
    found: dict[str, Any] = {}
    for option, key, allowed in (("encoder", "video.codec", ENCODERS), ("pixel_format", "video.pix_fmt", None)):
        value = told.get(key)
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
    """Drop the episodes that a crash cut short, or keep them as episodes like the others.

    A kept one is stored again, as bytes, with its tasks and ``recovered`` in its metadata.

    Args:
        store: opened for writing, so that what dead writers left is recovered.
        writer: of the store, without an open episode.
        keep: whether to keep them.

    Returns:
        How many steps they have together.
    """
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
    """Return a camera's entry with its shape as height x width x channels, as all else in here has it."""
    if not isinstance(entry, dict) or entry.get("dtype") not in ("image", "video"):
        return entry
    shape = entry.get("shape")
    if isinstance(shape, list) and len(shape) == 3 and shape[0] in (1, 3, 4) and shape[2] not in (1, 3, 4):
        return {**entry, "shape": [shape[1], shape[2], shape[0]], "names": ["height", "width", "channels"]}
    return entry


def _camera(plain: Feature, kind: str, options: Mapping[str, Any]) -> Feature:
    try:
        shape = plain.fixed_shape
        return Video(shape, **options) if kind == "video" else Image(shape, **options)
    except TypeError as error:
        raise SchemaError(f"{kind}={dict(options)!r}: {error}.") from error


def _rows_of(episode: SourceEpisode) -> dict[str, Any]:
    """Return the rows of an episode as the store has them: nothing is decoded."""
    schema = schema_of(episode.store)
    return {
        name: episode.read(name) if feature.is_raw else EncodedRows(map(bytes, episode.blobs(name)))
        for name, feature in schema.items()
    }
