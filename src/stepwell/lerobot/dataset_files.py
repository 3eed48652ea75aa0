"""The files of a dataset that grow with its episodes: those of v3.0 hold many, in v2.1 each episode has its own."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.lerobot.data_files import FileNumbers, ParquetFiles, data_schema, data_table
from stepwell.lerobot.episode_preparing import PreparedEpisode
from stepwell.lerobot.episode_writing import (
    EpisodeRow,
    EpisodeTableWriter,
    VideoSpan,
    episode_schema,
    plain_statistics,
)
from stepwell.lerobot.info import DATA_PATHS, VIDEO_PATHS, FeatureInfo
from stepwell.lerobot.video_writing import VideoFiles

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CHUNKS_SIZE", "EPISODES_PATH", "DatasetFiles", "FirstFiles", "ManyEpisodeFiles", "OneEpisodeFiles"]

CHUNKS_SIZE = 1000
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
# rows of a table are cut where their images have more bytes: an array of arrow holds no more than twice that
TABLE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class FirstFiles:
    """(chunk, file) of the first file of each kind that is written; the schema of the table of episodes, if one is."""

    data: tuple[int, int] = (0, 0)
    episodes: tuple[int, int] = (0, 0)
    videos: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    video_codecs: Mapping[str, str] = field(default_factory=dict)
    episode_schema: pa.Schema | None = None


class DatasetFiles(ABC):
    """What episodes are written to.

    Args:
        root: directory.
        infos: of all features.
        fps: rows a second.
        data_mb: least size of a parquet file that is not added to.
        video_mb: likewise of an mp4 file.
        first: numbers of the first files.
        chunks_size: files in a directory.

    Notes:
        For one thread.
    """

    def __init__(
        self,
        root: Path,
        infos: Sequence[FeatureInfo],
        fps: float,
        *,
        data_mb: float,
        video_mb: float,
        first: FirstFiles,
        chunks_size: int = CHUNKS_SIZE,
    ) -> None:
        self._root, self._infos, self._fps, self._chunks_size = root, list(infos), fps, chunks_size
        self._schema = data_schema(infos)
        self._data = ParquetFiles(self._data_path, self._schema, FileNumbers(chunks_size, first.data), data_mb)
        self._videos = {
            info.name: VideoFiles(
                self._video_path_of(info.name),
                fps,
                FileNumbers(chunks_size, first.videos.get(info.name, (0, 0))),
                video_mb,
                first.video_codecs.get(info.name),
            )
            for info in infos
            if info.is_video
        }

    @property
    def video_facts(self) -> dict[str, dict[str, Any]]:
        """What the streams of cameras are, by name: "codec", "pix_fmt", "height", "width"."""
        return {name: files.facts for name, files in self._videos.items()}

    def add(self, episode: PreparedEpisode) -> None:
        """Write an episode."""
        data = self._data.begin(episode.length)
        for start, stop in _table_cuts(episode, self._infos):
            columns = {name: values[start:stop] for name, values in episode.columns.items()}
            self._data.write(data_table(self._schema, self._infos, columns))
        spans = {name: self._span(name, episode) for name in self._videos}
        infos = {info.name: info for info in self._infos}
        stats = {name: self._plain(found, infos[name]) for name, found in episode.statistics.items()}
        place = episode.place
        self._add_row(EpisodeRow(place.index, place.tasks, episode.length, place.first_row, data, spans, stats))

    def close(self) -> None:
        """Complete all files."""
        self._data.close()
        for files in self._videos.values():
            files.close()
        self._close_rows()

    def _span(self, name: str, episode: PreparedEpisode) -> VideoSpan:
        chunk, file, start = self._videos[name].add(episode.videos[name])
        # not start plus a length: sums of rounded numbers drift
        stop = (round(start * self._fps) + episode.length) / self._fps
        return VideoSpan(chunk, file, start, stop)

    def _video_path_of(self, name: str) -> Any:
        return lambda chunk, file: self._video_path(name, chunk, file)

    @abstractmethod
    def _data_path(self, chunk: int, file: int) -> Path: ...

    @abstractmethod
    def _video_path(self, name: str, chunk: int, file: int) -> Path: ...

    @abstractmethod
    def _plain(self, stats: Any, info: FeatureInfo) -> dict[str, Any]: ...

    @abstractmethod
    def _add_row(self, row: EpisodeRow) -> None: ...

    @abstractmethod
    def _close_rows(self) -> None: ...


class ManyEpisodeFiles(DatasetFiles):
    """The files of v3.0; see `DatasetFiles`."""

    def __init__(
        self,
        root: Path,
        infos: Sequence[FeatureInfo],
        fps: float,
        *,
        data_mb: float,
        video_mb: float,
        first: FirstFiles | None = None,
        chunks_size: int = CHUNKS_SIZE,
    ) -> None:
        first = first or FirstFiles()
        super().__init__(root, infos, fps, data_mb=data_mb, video_mb=video_mb, first=first, chunks_size=chunks_size)
        schema = episode_schema(infos) if first.episode_schema is None else first.episode_schema
        files = ParquetFiles(self._episodes_path, schema, FileNumbers(chunks_size, first.episodes), data_mb)
        self._table = EpisodeTableWriter(files, schema)

    def _data_path(self, chunk: int, file: int) -> Path:
        return self._root / DATA_PATHS[True].format(chunk_index=chunk, file_index=file)

    def _video_path(self, name: str, chunk: int, file: int) -> Path:
        return self._root / VIDEO_PATHS[True].format(video_key=name, chunk_index=chunk, file_index=file)

    def _episodes_path(self, chunk: int, file: int) -> Path:
        return self._root / EPISODES_PATH.format(chunk_index=chunk, file_index=file)

    def _plain(self, stats: Any, info: FeatureInfo) -> dict[str, Any]:
        return plain_statistics(stats, info)

    def _add_row(self, row: EpisodeRow) -> None:
        self._table.add(row)

    def _close_rows(self) -> None:
        self._table.close()


class OneEpisodeFiles(DatasetFiles):
    """The files of v2.1; see `DatasetFiles`."""

    def __init__(self, root: Path, infos: Sequence[FeatureInfo], fps: float) -> None:
        super().__init__(root, infos, fps, data_mb=0, video_mb=0, first=FirstFiles())
        meta = root / "meta"
        meta.mkdir(parents=True, exist_ok=True)
        self._episodes = (meta / "episodes.jsonl").open("w", encoding="utf-8")
        self._stats = (meta / "episodes_stats.jsonl").open("w", encoding="utf-8")

    def _data_path(self, chunk: int, file: int) -> Path:
        return self._root / DATA_PATHS[False].format(episode_chunk=chunk, episode_index=self._episode(chunk, file))

    def _video_path(self, name: str, chunk: int, file: int) -> Path:
        index = self._episode(chunk, file)
        return self._root / VIDEO_PATHS[False].format(video_key=name, episode_chunk=chunk, episode_index=index)

    def _episode(self, chunk: int, file: int) -> int:
        return chunk * self._chunks_size + file

    def _plain(self, stats: Any, info: FeatureInfo) -> dict[str, Any]:
        return plain_statistics(stats, info, quantiles=False)

    def _add_row(self, row: EpisodeRow) -> None:
        told = {"episode_index": row.index, "tasks": list(row.tasks), "length": row.length}
        self._episodes.write(json.dumps(told, ensure_ascii=False) + "\n")
        self._stats.write(json.dumps({"episode_index": row.index, "stats": row.stats}) + "\n")

    def _close_rows(self) -> None:
        self._episodes.close()
        self._stats.close()


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
