"""RecordingMeta: the metadata of a dataset that is being recorded, by LeRobot's names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.meta_files import write_info
from stepwell.lerobot.meta_tables import InfoDict
from stepwell.lerobot.meta_view import LeRobotDatasetMetadata, plain_info

if TYPE_CHECKING:
    from stepwell.lerobot.metadata import Metadata
    from stepwell.lerobot.recording import LeRobotRecorder

__all__ = ["RecordingMeta"]


class RecordingMeta(LeRobotDatasetMetadata):
    """What a recorder has so far; episodes are those that the directory has."""

    def __init__(self, recorder: LeRobotRecorder, repo_id: str) -> None:
        self.repo_id, self.root, self.revision = repo_id, recorder.root, None
        self._recorder, self._known = recorder, recorder.info
        self.info: InfoDict = plain_info(recorder.info.raw)
        self.count()

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Name to dtype, shape and names of each feature; the first frame tells the unit of depth maps."""
        known = self._recorder.info
        if known is not self._known and not self._recorder.is_final:
            self._known = known
            self.info["features"] = plain_info(known.raw)["features"]
        features: dict[str, dict[str, Any]] = self.info["features"]
        return features

    def write(self) -> None:
        """Write ``meta/info.json`` of a dataset that has no episodes yet."""
        write_info(self._recorder.root, self._recorder.info.raw)
        self.__dict__.pop("_metadata", None)

    def count(self) -> None:
        """Bring what is said up to date: after an episode was saved, and after the directory was written."""
        mine = self._recorder
        for name in ("tasks", "episodes", "stats", "_metadata"):
            self.__dict__.pop(name, None)
        if mine.is_final and self._metadata is not None:
            # with the facts of its videos
            self.info = plain_info(self._metadata.info.raw)
        self._tasks = mine.tasks
        self.info.update(total_episodes=mine.num_episodes, total_frames=mine.num_frames, total_tasks=len(self._tasks))

    @cached_property
    def stats(self) -> dict[str, dict[str, Any]] | None:
        """The statistics of the episodes that were saved, but for the index features; computed when asked for."""
        if self._recorder.is_final:
            return None if self._metadata is None else self._metadata.stats
        return self._recorder.statistics()

    @cached_property
    def _metadata(self) -> Metadata | None:
        from stepwell.lerobot.metadata import Metadata

        return Metadata.load(self._recorder.root) if (self._recorder.root / INFO_PATH).exists() else None

    def _save_settings(self, settings: Mapping[str, Any]) -> None:
        self._recorder.change_info(settings)
        if self._metadata is not None:
            super()._save_settings(settings)
        self.info.update(settings)
