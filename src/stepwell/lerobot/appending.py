"""Appending to a dataset: the facts of it that new files follow, and how these come into it: all of them, or none.

::

    reach/
      .stepwell-append/          files that are to be added, while they are written
        ready.json               they are complete: any process may move them into their places

The files are moved in an order in which every state in between is readable: files that new rows need, the rows, the
episodes, and last ``meta/info.json``, which counts them. Old rows stay where they are all the time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import FormatError, SchemaError, StepwellError, StoreBusyError
from stepwell.files.file_locks import FileLock, lock_directory
from stepwell.lerobot.info import DATA_PATHS, INFO_PATH, VIDEO_PATHS, DatasetInfo, FeatureInfo
from stepwell.lerobot.meta_files import episode_paths, import_pyarrow, open_parquet, read_json
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.schema_mapping import Cameras, Column
from stepwell.lerobot.statistics import as_lerobot, is_summed, summaries_of
from stepwell.store.beneath import disk_error
from stepwell.store.layout import replace_file
from stepwell.store.statistics import FeatureStatistics, load_statistics

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FIRST",
    "FirstFiles",
    "cameras_of",
    "check_complete",
    "finish_append",
    "first_files",
    "fitted_columns",
    "images_stride",
    "is_per_element",
    "load_extended",
    "locked_dataset",
    "staged_append",
    "summaries_before",
]

NUMBERS = re.compile(r"chunk-(\d+)/file-(\d+)\.\w+")
COUNT_RATIO = 1e-9
WRITE_ANEW = "Write what it counts anew first: stepwell export lerobot://PATH NEW."
STAGE = ".stepwell-append"
READY = "ready.json"
# by how a path begins; other files come before the last
ORDER = ("videos/", "meta/tasks", "data/", "meta/episodes/", "meta/stat", INFO_PATH)
REPLACED = ("meta/tasks", "meta/stat", INFO_PATH)


@dataclass(frozen=True, slots=True)
class FirstFiles:
    """(chunk, file) of the first file of each kind that is written; the schema of the table of episodes, if one is."""

    data: tuple[int, int] = (0, 0)
    episodes: tuple[int, int] = (0, 0)
    videos: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    video_codecs: Mapping[str, str] = field(default_factory=dict)
    episode_schema: pa.Schema | None = None


FIRST = FirstFiles()


def load_extended(root: Path, fps: float) -> Metadata:
    """Return the metadata of a dataset that can be appended to."""
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
    """Refuse a dataset that new files cannot follow: its new rows would be found under other episodes."""
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
                f"{root}: meta/info.json counts {counted} {what}, its tables have {found}: its writer was killed, or "
                f"files are missing. Episodes after these would not be found. {WRITE_ANEW}"
            )


def cameras_of(info: DatasetInfo) -> dict[str, Cameras]:
    """Return how the cameras of a dataset are stored."""
    return {name: "video" if each.is_video else "image" for name, each in info.features.items() if each.is_camera}


def fitted_columns(columns: Sequence[Column], before: Metadata) -> tuple[Column, ...]:
    """Return columns in the order of a dataset."""
    mine = {column.name: column for column in columns}
    theirs = {name: info for name, info in before.info.features.items() if not info.is_index}
    for name in (*theirs, *mine):
        there = _form(theirs[name]) if name in theirs else "nothing"
        here = _form(mine[name].info) if name in mine else "nothing"
        if there != here:
            raise SchemaError(
                f"feature {name!r} is {there} in {before.root}, and {here} in what is to be appended. They must have "
                "the same features: features= leaves some out, rename= gives other names."
            )
    return tuple(_as_there(mine[name], info) for name, info in theirs.items())


def _as_there(column: Column, info: FeatureInfo) -> Column:
    """Return a column; of a depth map with the codes and the unit of a dataset."""
    return column if column.depth is None or not info.is_depth else replace(column, info=info)


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
            if before.info.total_episodes
            and (codec := (before.info.features[name].raw.get("info") or {}).get("video.codec"))
        },
        episode_schema=None if schema is None else schema.remove_metadata(),
    )


def is_per_element(before: Metadata) -> bool:
    """Return whether the statistics have an entry for each element of an array: those converted from v2.1 have."""
    arrays = {name: info.shape for name, info in before.info.features.items() if not info.is_camera}
    stats = before.stats or {}
    return any(
        len(shape) > 1 and "mean" in stats.get(name, {}) and stats[name]["mean"].shape == shape
        for name, shape in arrays.items()
    )


def summaries_before(before: Metadata, *, per_element: bool) -> dict[str, FeatureStatistics]:
    """Return summaries of a dataset's features: the stored ones where they still fit its statistics, else new ones."""
    if not before.info.total_episodes:
        return {}
    # quantiles cannot be merged, and images of some versions have a std of 0: stats.json of others is not built upon
    stored, stats = load_statistics(before.root / "meta"), before.stats or {}
    infos = {name: info for name, info in before.info.features.items() if not info.is_text}
    if stored.keys() == infos.keys() and all(
        _is_same(stored[name], info, stats.get(name)) for name, info in infos.items()
    ):
        return stored
    from stepwell.lerobot.in_place import open_in_place

    with open_in_place(before) as store:
        features = {name: feature for name, feature in (store.schema or {}).items() if is_summed(feature)}
        return summaries_of(store, features, per_element=per_element)


def images_stride(before: Metadata, summaries: Mapping[str, FeatureStatistics]) -> int | None:
    """Return about every how many-th image of a dataset its statistics have looked at; None where there is none."""
    for name in before.info.cameras if summaries else ():
        images = int(as_lerobot(summaries[name], before.info.features[name])["count"][0])
        return max(1, round(before.info.total_frames / max(1, images)))
    return None


def _is_same(found: FeatureStatistics, info: FeatureInfo, stats: Mapping[str, Any] | None) -> bool:
    """Return whether statistics are those of a summary: no other program has written to the dataset since."""
    if stats is None:
        return False
    mine = as_lerobot(found, info)
    is_counted = int(np.ravel(stats.get("count", -1))[0]) == int(mine["count"][0])
    return is_counted and np.allclose(np.ravel(stats["mean"]), np.ravel(mine["mean"]), COUNT_RATIO, 0, equal_nan=True)


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


@contextmanager
def staged_append(root: Path) -> Iterator[Path]:
    """Yield a hidden directory in a dataset; at the end its files are moved to the same places of the dataset."""
    with locked_dataset(root):
        # files of an append that was killed are moved first if they were complete, else removed
        _finish(root)
        stage = root / STAGE
        stage.mkdir()
        try:
            yield stage
            ready = {"total_episodes": _total_episodes(root)}
            replace_file(str(stage / READY), json.dumps(ready).encode())
            _finish(root)
        except BaseException as error:
            if not (stage / READY).exists():
                shutil.rmtree(stage, ignore_errors=True)
            if isinstance(error, OSError) and not isinstance(error, StepwellError):
                raise disk_error(error, 0, str(root)) from error
            raise


def finish_append(root: str | os.PathLike[str]) -> bool:
    """Complete an append that was killed when all of its files were written, or remove what it left."""
    path = Path(root)
    if not (path / STAGE).exists():
        return False
    with locked_dataset(path):
        return _finish(path)


def _finish(root: Path) -> bool:
    stage = root / STAGE
    if not stage.exists():
        return False
    is_ready = (stage / READY).exists()
    if is_ready:
        _check_unchanged(root, read_json(stage / READY))
        for name in _names(stage):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).replace(root / name)
    shutil.rmtree(stage)
    return is_ready


def _names(stage: Path) -> list[str]:
    """Return the files that are to be moved, in the order in which they are."""
    names = [path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file()]
    return sorted((name for name in names if name != READY), key=lambda name: (_turn(name), name))


def _turn(name: str) -> int:
    turns = [turn for turn, begin in enumerate(ORDER) if name.startswith(begin)]
    return turns[0] if turns else len(ORDER) - 2


def _check_unchanged(root: Path, ready: dict[str, int]) -> None:
    """Refuse to move files into a dataset that another program has changed meanwhile."""
    stage = root / STAGE
    taken = [name for name in _names(stage) if not name.startswith(REPLACED) and (root / name).exists()]
    # moved last: where it is in its place already, the dataset counts the new episodes
    is_counted = not (stage / INFO_PATH).exists()
    if taken or (not is_counted and _total_episodes(root) != ready["total_episodes"]):
        raise FormatError(
            f"{root}: an append was killed, and others have written to the dataset since "
            f"({taken[0] if taken else INFO_PATH}). Remove {stage}, whose episodes are then lost, and append again."
        )


def _total_episodes(root: Path) -> int:
    return int(read_json(root / INFO_PATH)["total_episodes"])


def locked_dataset(root: Path) -> FileLock:
    """Hold the lock of a dataset that is written to."""
    try:
        while True:
            lock = lock_directory(root, is_waiting=False)
            # an edit may have put another directory in its place before it was locked
            if os.path.samestat(os.fstat(lock.descriptor), root.stat()):
                return lock
            lock.release()
    except BlockingIOError:
        raise StoreBusyError(f"{root}: another process writes to it. Wait for it, or write to another root.") from None
