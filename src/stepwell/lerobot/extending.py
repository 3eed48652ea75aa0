"""What an append must know of the dataset that is there: its features, its last files, its statistics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import FormatError, SchemaError
from stepwell.lerobot.data_files import import_pyarrow
from stepwell.lerobot.dataset_files import FirstFiles
from stepwell.lerobot.episode_tables import episode_paths
from stepwell.lerobot.info import DATA_PATHS, VIDEO_PATHS, FeatureInfo
from stepwell.lerobot.meta_files import open_parquet
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.schema_mapping import Cameras, Column
from stepwell.lerobot.statistics import as_lerobot, is_summed, summaries_of
from stepwell.store.statistics import FeatureStatistics, load_statistics

__all__ = [
    "cameras_of",
    "check_complete",
    "first_files",
    "fitted_columns",
    "images_stride",
    "is_per_element",
    "load_extended",
    "summaries_before",
]

NUMBERS = re.compile(r"chunk-(\d+)/file-(\d+)\.\w+")
COUNT_RATIO = 1e-9
WRITE_ANEW = "Write what it counts anew first: stepwell export lerobot://PATH NEW."


def load_extended(root: Path, fps: float) -> Metadata:
    """Return the metadata of a dataset that can be appended to.

    Raises:
        FormatError: it is not of v3.0, or not complete, see `check_complete`.
        SchemaError: it has another rate.
    """
    before = Metadata.load(root)
    if not before.info.is_v3:
        raise FormatError(
            f"{root} is a LeRobot dataset of {before.info.version}. Only v3.0 can be appended to: write it anew first, "
            "with write_dataset(), or use lerobot's converter."
        )
    if before.info.fps != fps:
        raise SchemaError(f"{root} has {before.info.fps:g} fps, what is to be appended {fps:g}. They must be equal.")
    check_complete(before)
    return before


def check_complete(before: Metadata) -> None:
    """Refuse a dataset that new files cannot follow: what comes after its last row and episode would be another's.

    Raises:
        FormatError: its files have other names, or more or fewer rows or episodes than ``meta/info.json`` counts.
    """
    info, root = before.info, before.root
    for template, allowed in ((info.data_path, DATA_PATHS[True]), (info.video_path, VIDEO_PATHS[True])):
        if template not in (allowed, None):
            raise FormatError(f"{root} has files {template!r}; only to {allowed!r} can be appended. {WRITE_ANEW}")
    stop = int(before.episodes.stop[-1]) if len(before.episodes) else 0
    for what, counted, found in (
        ("episodes", info.total_episodes, _num_rows(episode_paths(root))),
        ("frames", info.total_frames, stop),
        ("frames", info.total_frames, _num_rows(sorted((root / "data").glob("*/*.parquet")))),
    ):
        if counted != found:
            raise FormatError(
                f"{root}: meta/info.json counts {counted} {what}, its tables have {found}: who wrote it was killed, or "
                f"files are missing. Episodes after these would not be found. {WRITE_ANEW}"
            )


def cameras_of(before: Metadata) -> dict[str, Cameras]:
    """Return how the cameras of a dataset are stored."""
    return {
        name: "video" if info.is_video else "image" for name, info in before.info.features.items() if info.is_camera
    }


def fitted_columns(columns: Sequence[Column], before: Metadata) -> tuple[Column, ...]:
    """Return columns in the order of a dataset.

    Raises:
        SchemaError: they are not the dataset's.
    """
    mine = {column.name: column for column in columns}
    theirs = {name: info for name, info in before.info.features.items() if not info.is_index}
    for name in (*theirs, *mine):
        told = _form(theirs[name]) if name in theirs else "nothing"
        found = _form(mine[name].info) if name in mine else "nothing"
        if told != found:
            raise SchemaError(
                f"feature {name!r} is {told} in {before.root}, and {found} in what is to be appended. They must have "
                "the same features: features= leaves some out, rename= gives other names."
            )
    return tuple(mine[name] for name in theirs)


def first_files(before: Metadata) -> FirstFiles:
    """Return the numbers of the first new files of a dataset: after all that are there."""
    root, size = before.root, before.info.chunks_size
    tables = episode_paths(root)
    schema = import_pyarrow().parquet.read_schema(tables[-1]) if tables else None
    return FirstFiles(
        data=_next(root / "data", size),
        episodes=_next(root / "meta/episodes", size),
        videos={name: _next(root / "videos" / name, size) for name in before.info.video_keys},
        video_codecs={
            name: codec
            for name in before.info.video_keys
            if (codec := (before.info.features[name].raw.get("info") or {}).get("video.codec"))
        },
        episode_schema=None if schema is None else schema.remove_metadata(),
    )


def is_per_element(before: Metadata) -> bool:
    """Whether the statistics of a dataset have an entry for each element of an array: those that come of v2.1 have."""
    arrays = {name: info.shape for name, info in before.info.features.items() if not info.is_camera}
    stats = before.stats or {}
    return any(
        len(shape) > 1 and name in stats and stats[name]["mean"].shape == shape for name, shape in arrays.items()
    )


def summaries_before(before: Metadata, *, per_element: bool) -> dict[str, FeatureStatistics]:
    """Return summaries of a dataset's features: those that lie beside its statistics, if they are of it, else new ones.

    Quantiles cannot be merged, and images of some versions have a std of 0: what lerobot wrote is not built upon.

    Args:
        before: the dataset.
        per_element: see `stepwell.lerobot.statistics.statistics_of`.
    """
    stored, told = load_statistics(before.root / "meta"), before.stats or {}
    infos = {name: info for name, info in before.info.features.items() if not info.is_text}
    if stored.keys() == infos.keys() and all(
        _is_same(stored[name], info, told.get(name)) for name, info in infos.items()
    ):
        return stored
    from stepwell.lerobot.in_place import open_in_place

    with open_in_place(before) as store:
        features = {name: feature for name, feature in (store.schema or {}).items() if is_summed(feature)}
        return summaries_of(store, features, per_element=per_element)


def images_stride(before: Metadata, summaries: Mapping[str, FeatureStatistics]) -> int | None:
    """Return about every how many-th image of a dataset its statistics have looked at; None without cameras."""
    for name in before.info.cameras:
        images = int(as_lerobot(summaries[name], before.info.features[name])["count"][0])
        return max(1, round(before.info.total_frames / max(1, images)))
    return None


def _is_same(found: FeatureStatistics, info: FeatureInfo, told: Mapping[str, Any] | None) -> bool:
    """Whether statistics are those of a summary: nobody else wrote to the dataset since."""
    if told is None:
        return False
    mine = as_lerobot(found, info)
    is_counted = int(np.ravel(told.get("count", -1))[0]) == int(mine["count"][0])
    return is_counted and np.allclose(np.ravel(told["mean"]), np.ravel(mine["mean"]), COUNT_RATIO, 0, equal_nan=True)


def _num_rows(paths: Sequence[Path]) -> int:
    found = 0
    for path in paths:
        with open_parquet(path) as file:
            found += file.metadata.num_rows
    return found


def _form(info: FeatureInfo) -> str:
    return f"{info.dtype} {list(info.shape)}"


def _next(directory: Path, chunks_size: int) -> tuple[int, int]:
    """Return the (chunk, file) after the last file of a directory."""
    names = (path.relative_to(directory).as_posix() for path in directory.glob("*/*") if path.is_file())
    found = [(int(match[1]), int(match[2])) for match in map(NUMBERS.fullmatch, names) if match]
    if not found:
        return 0, 0
    chunk, file = max(found)
    return (chunk, file + 1) if file + 1 < chunks_size else (chunk + 1, 0)
