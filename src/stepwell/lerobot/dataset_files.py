"""The files of a written dataset: those of v3.0 hold many episodes, in v2.1 each episode has its own."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.appending import FIRST, FirstFiles
from stepwell.lerobot.camera_writing import EpisodePackets, VideoFiles
from stepwell.lerobot.info import (
    DATA_PATHS,
    DEFAULT_CHUNKS_SIZE,
    ENCODER_SETTINGS,
    INFO_PATH,
    VIDEO_PATHS,
    DatasetInfo,
    FeatureInfo,
)
from stepwell.lerobot.meta_files import SUBTASK_INDEX, SUBTASKS_PATH, import_pyarrow
from stepwell.lerobot.parquet_writing import (
    EpisodeRow,
    EpisodeTableWriter,
    FileNumbers,
    ParquetFiles,
    VideoSpan,
    data_schema,
    data_table,
    episode_schema,
    plain_statistics,
    tasks_table,
)
from stepwell.lerobot.statistics import Statistics, StatisticsSum, as_lerobot
from stepwell.store.statistics import FeatureStatistics, write_statistics

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "EPISODES_PATH",
    "Counts",
    "DatasetFiles",
    "EpisodeLines",
    "EpisodePlace",
    "PreparedEpisode",
    "appended_info",
    "video_info",
    "write_json",
    "write_tasks",
]

EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
# rows of a table are cut where their images have more bytes: an array of arrow holds no more than twice that
TABLE_BYTES = 1 << 30
# of "episodes", "frames" and "tasks"
Counts = Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class EpisodePlace:
    """Where an episode will be in the dataset, and the task_index of each of its steps, int64 [n]."""

    index: int
    first_row: int
    task_index: npt.NDArray[np.int64]
    # texts, by first appearance
    tasks: tuple[str, ...]
    # what further columns of the table of episodes say of it
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class PreparedEpisode:
    """All that is written of one episode."""

    place: EpisodePlace
    length: int
    # by feature, in the dataset's order: arrays [n, ...], lists of text, lists of image files
    columns: dict[str, Any]
    videos: dict[str, EpisodePackets]
    statistics: Statistics
    # summaries of cameras; those of numbers are made from the columns
    images: dict[str, FeatureStatistics]

    def add_to(self, total: StatisticsSum, infos: Sequence[FeatureInfo]) -> None:
        """Add the episode to the statistics of the dataset."""
        total.add(self.images)
        for info in infos:
            if not info.is_camera and not info.is_text:
                total.add_rows(info.name, self.columns[info.name])


class DatasetFiles:
    """Write the files of a dataset, episode by episode and then ``meta/``; for one thread."""

    def __init__(  # noqa: PLR0917
        self,
        root: Path,
        infos: Sequence[FeatureInfo],
        fps: float,
        sizes_mb: tuple[float, float] | None,
        first: FirstFiles = FIRST,
        chunks_size: int = DEFAULT_CHUNKS_SIZE,
        further: Sequence[pa.Field] = (),
    ) -> None:
        """Begin with the files ``first``; ``sizes_mb`` are limits of parquet and mp4 files of v3.0, None for v2.1.

        A new table of episodes has the columns ``further``.
        """
        self._root, self._fps, self._sizes_mb, self._chunks_size = root, fps, sizes_mb, chunks_size
        self._infos = {info.name: info for info in infos}
        self._is_v3 = sizes_mb is not None
        data_mb, video_mb = sizes_mb or (0, 0)
        self._schema = data_schema(infos)
        self._data = self._parquet_files(DATA_PATHS[self._is_v3], self._schema, first.data, data_mb)
        self._videos = {
            info.name: VideoFiles(
                partial(self._path, VIDEO_PATHS[self._is_v3], key=info.name),
                fps,
                FileNumbers(chunks_size, first.videos.get(info.name, (0, 0))),
                video_mb,
                first.video_codecs.get(info.name),
            )
            for info in infos
            if info.is_video
        }
        self._table: EpisodeTableWriter | EpisodeLines
        if self._is_v3:
            schema = episode_schema(infos, further) if first.episode_schema is None else first.episode_schema
            self._table = EpisodeTableWriter(
                self._parquet_files(EPISODES_PATH, schema, first.episodes, data_mb), schema
            )
        else:
            self._table = EpisodeLines(root / "meta")

    def add(self, episode: PreparedEpisode) -> None:
        """Write an episode."""
        infos, place = list(self._infos.values()), episode.place
        data = self._data.begin(episode.length)
        for start, stop in _table_cuts(episode, infos):
            columns = {name: values[start:stop] for name, values in episode.columns.items()}
            self._data.write(data_table(self._schema, infos, columns))
        spans = {name: self._span(name, episode) for name in self._videos}
        stats = {
            name: plain_statistics(found, self._infos[name], quantiles=self._is_v3)
            for name, found in episode.statistics.items()
        }
        self._table.add(
            EpisodeRow(place.index, place.tasks, episode.length, place.first_row, data, spans, stats, place.others)
        )

    def close(self) -> None:
        """Complete the files of all episodes."""
        self._data.close()
        for files in self._videos.values():
            files.close()
        self._table.close()

    def write_meta(
        self, info: Mapping[str, Any], tasks: Sequence[str], total: StatisticsSum, subtasks: Sequence[str] | None = None
    ) -> None:
        """Write ``meta/info.json``, the tasks, and of v3.0 the subtasks and the statistics of all episodes."""
        meta = self._root / "meta"
        write_tasks(self._root, tasks, is_v3=self._is_v3)
        if self._is_v3:
            if subtasks is not None and SUBTASK_INDEX in self._infos:
                table = tasks_table(subtasks, SUBTASK_INDEX)
                import_pyarrow().parquet.write_table(table, self._root / SUBTASKS_PATH, write_page_checksum=True)
            found = total.result()
            stats = {name: as_lerobot(found[name], self._infos[name]) for name in found}
            write_json(meta / "stats.json", {name: plain_statistics(stats[name], self._infos[name]) for name in found})
            # an append merges with these: quantiles alone cannot be merged
            write_statistics(meta, found)
        write_json(self._root / INFO_PATH, info)

    def new_info(self, counts: Counts, robot_type: str | None, further: Mapping[str, Any]) -> dict[str, Any]:
        """Return the info.json of a new dataset whose episodes are all written, with further entries."""
        cameras = sum(info.is_video for info in self._infos.values())
        version = "v3.0" if self._is_v3 else "v2.1"
        content: dict[str, Any] = {"codebase_version": version, "robot_type": robot_type, **_totals(counts)}
        if self._sizes_mb is None:
            chunks = math.ceil(counts["episodes"] / self._chunks_size)
            content |= {"total_videos": cameras * counts["episodes"], "total_chunks": chunks}
        content["chunks_size"] = self._chunks_size
        if self._sizes_mb is not None:
            content |= dict(zip(("data_files_size_in_mb", "video_files_size_in_mb"), self._sizes_mb, strict=True))
        return content | {
            "fps": _rate(self._fps),
            "splits": {"train": f"0:{counts['episodes']}"},
            "data_path": DATA_PATHS[self._is_v3],
            "video_path": VIDEO_PATHS[self._is_v3] if cameras else None,
            **further,
            "features": self.entries(),
        }

    def entries(self) -> dict[str, Any]:
        """Return the entries of all features in info.json, when all episodes are written."""
        return {info.name: self._entry(info) for info in self._infos.values()}

    def _entry(self, info: FeatureInfo) -> dict[str, Any]:
        """Return the entry of a feature in info.json; of a video with the facts of its stream."""
        others = {name: value for name, value in info.raw.items() if name != "info"}
        entry = {**others, "dtype": info.dtype, "shape": list(info.shape), "names": info.names}
        if "fps" in entry:
            # as lerobot's converter from v2.1 has it
            entry["fps"] = _rate(self._fps)
        facts = self._videos[info.name].facts if info.name in self._videos else {}
        about: dict[str, Any] = dict(info.raw.get("info") or {})
        if facts:
            # how frames were encoded that are others now is not known of the new ones
            is_same = about.get("video.codec", facts["codec"]) == facts["codec"]
            about = {name: value for name, value in about.items() if is_same or not name.startswith("video.")}
            about |= video_info(facts, self._fps, info)
        return {**entry, "info": about} if about else entry

    def _span(self, name: str, episode: PreparedEpisode) -> VideoSpan:
        chunk, file, start = self._videos[name].add(episode.videos[name])
        # not start plus a length: sums of rounded numbers drift
        stop = (round(start * self._fps) + episode.length) / self._fps
        return VideoSpan(chunk, file, start, stop)

    def _parquet_files(self, template: str, schema: pa.Schema, first: tuple[int, int], limit_mb: float) -> ParquetFiles:
        return ParquetFiles(partial(self._path, template), schema, FileNumbers(self._chunks_size, first), limit_mb)

    def _path(self, template: str, chunk: int, file: int, *, key: str = "") -> Path:
        numbers = {"chunk_index": chunk, "file_index": file, "episode_chunk": chunk}
        # of v2.1, where each file is an episode
        numbers["episode_index"] = chunk * self._chunks_size + file
        return self._root / template.format(video_key=key, **numbers)


class EpisodeLines:
    """Write the episodes of v2.1 as lines of JSON, and their statistics."""

    def __init__(self, meta: Path) -> None:
        meta.mkdir(parents=True, exist_ok=True)
        self._episodes = (meta / "episodes.jsonl").open("w", encoding="utf-8")
        self._stats = (meta / "episodes_stats.jsonl").open("w", encoding="utf-8")

    def add(self, row: EpisodeRow) -> None:
        """Write an episode."""
        line = {**row.others, "episode_index": row.index, "tasks": list(row.tasks), "length": row.length}
        self._episodes.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._stats.write(json.dumps({"episode_index": row.index, "stats": row.stats}) + "\n")

    def close(self) -> None:
        """Complete the files."""
        self._episodes.close()
        self._stats.close()


def appended_info(raw: Mapping[str, Any], counts: Counts) -> dict[str, Any]:
    """Return the info.json of a dataset after an append; ``counts`` are those of all episodes, old and new."""
    content = {**copy.deepcopy(dict(raw)), **_totals(counts)}
    content["splits"] = {**content.get("splits", {}), "train": f"0:{counts['episodes']}"}
    return content


def with_settings(entries: Mapping[str, Any], info: DatasetInfo) -> dict[str, Any]:
    """Return the entries of a dataset that was empty, with the settings of encoders that it was created with."""
    found = dict(entries)
    for name in info.video_keys:
        about = info.features[name].raw.get("info") or {}
        settings = {key: about[key] for key in ENCODER_SETTINGS if key in about}
        if settings:
            found[name] = {**found[name], "info": {**settings, **found[name].get("info", {})}}
    return found


def video_info(facts: Mapping[str, Any], fps: float, info: FeatureInfo) -> dict[str, Any]:
    """Return what info.json says of a camera's videos; ``facts`` are those of `VideoFiles`."""
    # an entry of a depth map says itself that it is one
    mark = {} if info.is_depth else {"is_depth_map": False, "video.is_depth_map": False}
    return {
        "video.height": facts["height"],
        "video.width": facts["width"],
        "video.codec": facts["codec"],
        "video.pix_fmt": facts["pix_fmt"],
        **mark,
        "video.fps": _rate(fps),
        "video.channels": info.shape[2],
        "has_audio": False,
    }


def write_tasks(root: Path, texts: Sequence[str], *, is_v3: bool) -> None:
    """Write the texts of the tasks by their number."""
    meta = root / "meta"
    meta.mkdir(parents=True, exist_ok=True)
    if is_v3:
        import_pyarrow().parquet.write_table(tasks_table(texts), meta / "tasks.parquet", write_page_checksum=True)
    else:
        lines = (json.dumps({"task_index": i, "task": text}, ensure_ascii=False) for i, text in enumerate(texts))
        (meta / "tasks.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _table_cuts(episode: PreparedEpisode, infos: Sequence[FeatureInfo]) -> list[tuple[int, int]]:
    """Return ranges of rows: all of the episode, unless its images are too large for one table."""
    images = [episode.columns[info.name] for info in infos if info.is_image]
    cuts, held = [0], 0
    for row, files in enumerate(zip(*images, strict=True)):
        held += sum(map(len, files))
        if held > TABLE_BYTES and row > cuts[-1]:
            cuts.append(row)
            held = sum(map(len, files))
    return list(zip(cuts, [*cuts[1:], episode.length], strict=True))


def _totals(counts: Counts) -> dict[str, int]:
    return {f"total_{name}": counts[name] for name in ("episodes", "frames", "tasks")}


def _rate(fps: float) -> float:
    return int(fps) if float(fps).is_integer() else fps


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file as LeRobot writes those of ``meta/``."""
    path.write_text(json.dumps(content, indent=4, ensure_ascii=False), encoding="utf-8")
