"""What is audited: a dataset as its ``meta/`` describes it, nothing checked, and the findings so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.audits.reports import Tally
from stepwell.lerobot.info import DatasetInfo

__all__ = ["EpisodeList", "SpanList", "Subject"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SpanList:
    """Where the episodes lie in one camera's files, as the dataset says; in its order.

    Args:
        chunk: int64 [E], -1 where it is not said.
        file: int64 [E], likewise.
        start: float64 [E], seconds in the file; NaN where it is not said.
        stop: float64 [E], likewise.
    """

    chunk: Integers
    file: Integers
    start: npt.NDArray[np.float64]
    stop: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeList:
    """The table of episodes as the dataset says it, nothing checked.

    Args:
        number: int64 [E], ``episode_index``.
        first: int64 [E], the first row of the dataset; -1 where it is not said.
        stop: int64 [E], likewise, half-open.
        length: int64 [E], rows; -1 where it is not said.
        chunk: int64 [E], of the data file; -1 where it is not said.
        file: int64 [E], likewise.
        videos: by camera.
    """

    number: Integers
    first: Integers
    stop: Integers
    length: Integers
    chunk: Integers
    file: Integers
    videos: dict[str, SpanList]

    def __len__(self) -> int:
        return len(self.number)

    def data_path(self, info: DatasetInfo, place: int) -> str | None:
        """Return the path of an episode's data file below the root; None where it is not said."""
        return _path(info, info.data_path, int(self.chunk[place]), int(self.file[place]))

    def video_path(self, info: DatasetInfo, camera: str, place: int) -> str | None:
        """Return the path of an episode's video below the root; None where it is not said."""
        spans = self.videos[camera]
        return _path(info, str(info.video_path), int(spans.chunk[place]), int(spans.file[place]), camera)


def _path(info: DatasetInfo, template: str, chunk: int, file: int, camera: str = "") -> str | None:
    if chunk < 0 or file < 0:
        return None
    names = ("chunk_index", "file_index") if info.is_v3 else ("episode_chunk", "episode_index")
    return template.format(**dict(zip(names, (chunk, file), strict=True)), video_key=camera)


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """What the checks are given.

    Args:
        root: directory of the dataset.
        info: of the dataset, without the features that are wrong in it.
        tasks: (task_index, text) in the order of the file; None where it cannot be read.
        episodes: the table of episodes.
        chosen: int64 [n], places in the table of the episodes that are looked at; None: all of the dataset.
        tally: takes the findings.
    """

    root: Path
    info: DatasetInfo
    tasks: Sequence[tuple[int, str]] | None
    episodes: EpisodeList
    chosen: Integers | None
    tally: Tally

    def data_path(self, place: int) -> str | None:
        """Return the path of an episode's data file below the root; None where it is not said."""
        return self.episodes.data_path(self.info, place)

    @property
    def places(self) -> Integers:
        """Places in the table of the episodes that are looked at."""
        return np.arange(len(self.episodes)) if self.chosen is None else self.chosen
