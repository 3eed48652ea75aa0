"""Where each episode of a LeRobot dataset lies: its rows, its parquet file, its part of the mp4 files.

::

    v3     meta/episodes/chunk-000/file-000.parquet    one row an episode, in order    files hold many episodes
    v2     meta/episodes.jsonl                         one line an episode             each episode has its own files
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.lerobot.info import DatasetInfo
from stepwell.lerobot.meta_files import WHAT_TO_DO, number_column, open_parquet, read_columns, read_json_lines

__all__ = ["EpisodeRecords", "VideoSpans", "read_episodes"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class VideoSpans:
    """Where the frames of one camera lie, episode by episode.

    Args:
        chunk: int64 [E], first number of the mp4 file's name; v2: the episode's chunk.
        file: int64 [E], second number; v2: the episode's index.
        start: float64 [E], seconds in that file at which the episode's first frame is shown; v2: 0.
    """

    chunk: Ints
    file: Ints
    start: Floats

    def take(self, places: npt.ArrayLike) -> VideoSpans:
        """Return the spans of some episodes."""
        at = np.asarray(places, np.int64)
        return VideoSpans(self.chunk[at], self.file[at], self.start[at])


@dataclass(frozen=True, eq=False)
class EpisodeRecords:
    """What a LeRobot dataset says of its episodes, a struct of arrays in ascending order.

    Args:
        index: int64 [E], number of the episode in the dataset.
        first: int64 [E], its first row among all rows of the dataset.
        stop: int64 [E], the row after its last.
        data_chunk: int64 [E], first number of its parquet file's name; v2: the episode's chunk.
        data_file: int64 [E], second number; v2: the episode's index.
        tasks: [E], the texts of its tasks, empty where the dataset says none.
        videos: by camera, where its frames are; cameras whose pictures are in the parquet files are not among them.

    Notes:
        Immutable: safe to share between threads, picklable. Texts of tasks become Python strings when they are asked
        for.
    """

    index: Ints
    first: Ints
    stop: Ints
    data_chunk: Ints
    data_file: Ints
    tasks: Sequence[tuple[str, ...]]
    videos: dict[str, VideoSpans]

    @property
    def length(self) -> Ints:
        """Number of rows of each episode, int64 [E]."""
        return self.stop - self.first

    def __len__(self) -> int:
        return len(self.index)

    def take(self, places: npt.ArrayLike) -> EpisodeRecords:
        """Return the records at some places, int [n]."""
        at = np.asarray(places, np.int64)
        return EpisodeRecords(
            self.index[at],
            self.first[at],
            self.stop[at],
            self.data_chunk[at],
            self.data_file[at],
            [self.tasks[place] for place in at.tolist()],
            {key: spans.take(at) for key, spans in self.videos.items()},
        )


def read_episodes(root: Path, info: DatasetInfo) -> EpisodeRecords:
    """Return the episodes that the files under ``meta/`` name, as many as ``meta/info.json`` counts.

    Args:
        root: of the dataset.
        info: of the dataset.

    Returns:
        The records; of more than ``info.total_episodes`` the first ones: who appends writes ``meta/info.json`` last.

    Raises:
        FormatError: a file is missing or wrong, or there are fewer episodes than ``meta/info.json`` says.
    """
    raise NotImplementedError
