"""All that ``meta/`` of a LeRobot dataset says, and the names of its files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.episodes import EpisodeRecords
from stepwell.lerobot.info import DatasetInfo

__all__ = ["Metadata"]

Statistics = dict[str, dict[str, npt.NDArray[np.float64]]]


@dataclass(frozen=True, eq=False)
class Metadata:
    """What a LeRobot dataset on this machine says of itself.

    Args:
        root: its directory.
        repo_id: its name on the hub, None for a directory.
        revision: what was asked for on the hub, None for a directory.
        info: `DatasetInfo`.
        tasks: texts, by task_index.
        episodes: all of them.
        selected: int64 [n], ascending: the places in `episodes` that were asked for, and whose files are here.
    """

    root: Path
    repo_id: str | None
    revision: str | None
    info: DatasetInfo
    tasks: tuple[str, ...]
    episodes: EpisodeRecords
    selected: npt.NDArray[np.int64]

    @classmethod
    def load(
        cls,
        root: str | os.PathLike[str],
        *,
        episodes: Iterable[int] | None = None,
        repo_id: str | None = None,
        revision: str | None = None,
        ignore: Collection[str] = (),
    ) -> Metadata:
        """Read the files of ``meta/``."""
        raise NotImplementedError

    @property
    def stats(self) -> Statistics | None:
        """The stored statistics by feature, then by name ("mean", ...), float64; None where there are none."""
        raise NotImplementedError

    def episode_stats(self, place: int) -> Statistics | None:
        """Return the stored statistics of one episode, read on demand; None where there are none."""
        raise NotImplementedError

    def data_path(self, chunk: int, file: int) -> Path:
        """Return the path of a parquet file."""
        raise NotImplementedError

    def video_path(self, key: str, chunk: int, file: int) -> Path:
        """Return the path of an mp4 file."""
        raise NotImplementedError

    def data_files(self, places: npt.ArrayLike) -> list[Path]:
        """Return the distinct parquet files of some episodes, in order."""
        raise NotImplementedError

    def video_files(self, places: npt.ArrayLike) -> list[Path]:
        """Return the distinct mp4 files of some episodes, camera by camera, in order."""
        raise NotImplementedError

    def fingerprint(self, places: npt.ArrayLike) -> str:
        """Return a digest of names, sizes and mtimes of the meta files and of these episodes' parquet files."""
        raise NotImplementedError
