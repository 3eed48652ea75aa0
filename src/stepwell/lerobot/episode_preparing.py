"""An episode of a store made ready to be written: rows, packets and statistics; what threads do side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.formats.source_episodes import SourceEpisode
from stepwell.lerobot.camera_rows import image_files, video_packets
from stepwell.lerobot.info import FeatureInfo
from stepwell.lerobot.schema_mapping import INDEX_INFOS, Column
from stepwell.lerobot.statistics import (
    Statistics,
    StatisticsSum,
    as_lerobot,
    image_summary,
    numeric_statistics,
    sampled_steps,
)
from stepwell.lerobot.video_writing import EpisodePackets
from stepwell.schema import Feature
from stepwell.store.statistics import FeatureStatistics

__all__ = ["EpisodePlace", "Preparation", "PreparedEpisode"]

# of the timestamps that a store has: those further off the grid are made anew
TOLERANCE_SECONDS = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class EpisodePlace:
    """Where an episode will be in the dataset.

    Args:
        index: of the episode.
        first_row: of the whole dataset.
        task_index: int64 [n], of each step.
        tasks: their texts, by first appearance.
    """

    index: int
    first_row: int
    task_index: npt.NDArray[np.int64]
    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedEpisode:
    """All that is written of one episode.

    Args:
        place: where it will be.
        length: rows.
        columns: by feature, in the dataset's order: arrays [n, ...], lists of text, lists of image files.
        videos: by camera.
        statistics: by feature, as LeRobot has them.
        images: what `StatisticsSum` takes of cameras; it takes numbers from the columns.
    """

    place: EpisodePlace
    length: int
    columns: dict[str, Any]
    videos: dict[str, EpisodePackets]
    statistics: Statistics
    images: dict[str, FeatureStatistics]

    def add_to(self, total: StatisticsSum, infos: Sequence[FeatureInfo]) -> None:
        """Add the episode to the statistics of the dataset."""
        total.add(self.images)
        for info in infos:
            if not info.is_camera and not info.is_text:
                total.add_rows(info.name, self.columns[info.name])


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """How episodes are made ready.

    Args:
        columns: that are written.
        encodings: of cameras that are written as video, by name.
        fps: rows a second.
        timestamp: name of the store's own times, or None.
        stride: about every how many-th image statistics look at.
        per_element: see `stepwell.lerobot.statistics.statistics_of`.

    Notes:
        An immutable value; any number of threads may prepare episodes at once.
    """

    columns: Sequence[Column]
    encodings: Mapping[str, Feature]
    fps: float
    timestamp: str | None
    stride: int
    per_element: bool

    @property
    def infos(self) -> list[FeatureInfo]:
        """All features of the dataset, in order."""
        return [*(column.info for column in self.columns), *INDEX_INFOS.values()]

    def prepare(self, episode: SourceEpisode, place: EpisodePlace) -> PreparedEpisode:
        """Read and encode an episode.

        Raises:
            DecodeError: a row that its codec refuses.
        """
        columns: dict[str, Any] = {}
        videos = {}
        for column in self.columns:
            if column.info.is_video:
                videos[column.name] = video_packets(episode, column, self.encodings[column.name])
            elif column.info.is_image:
                columns[column.name] = image_files(episode, column)
            else:
                columns[column.name] = episode.read(column.source)
        columns |= self._index_columns(episode, place)
        images = self._images(episode)
        return PreparedEpisode(place, episode.length, columns, videos, self._statistics(columns, images), images)

    def _index_columns(self, episode: SourceEpisode, place: EpisodePlace) -> dict[str, npt.NDArray[Any]]:
        numbers = np.arange(episode.length, dtype=np.int64)
        return {
            "timestamp": self._timestamps(episode, numbers),
            "frame_index": numbers,
            "episode_index": np.full(episode.length, place.index, np.int64),
            "index": place.first_row + numbers,
            "task_index": place.task_index,
        }

    def _timestamps(self, episode: SourceEpisode, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the store's own times where they lie on the grid, since they may be rounded otherwise."""
        grid = numbers / self.fps
        if self.timestamp is not None:
            own = np.asarray(episode.read(self.timestamp), np.float64).reshape(-1)
            if (np.abs(own - grid) <= TOLERANCE_SECONDS).all():
                return own.astype(np.float32)
        return grid.astype(np.float32)

    def _images(self, episode: SourceEpisode) -> dict[str, FeatureStatistics]:
        steps = sampled_steps(episode.length, self.stride)
        return {
            column.name: image_summary(episode.images(column.source, column.feature, steps), column.feature)
            for column in self.columns
            if column.info.is_camera
        }

    def _statistics(self, columns: Mapping[str, Any], images: Mapping[str, FeatureStatistics]) -> Statistics:
        return {
            info.name: as_lerobot(images[info.name], info)
            if info.is_camera
            else numeric_statistics(columns[info.name], per_element=self.per_element)
            for info in self.infos
            if not info.is_text
        }
