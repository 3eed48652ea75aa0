"""Where each episode of a LeRobot dataset lies: its rows, its parquet file, its part of the mp4 files.

::

    episode             0         1             2      3
    rows                0 ----- 185 --------- 349 -- 420 ---- 500       first, stop: one axis for the whole dataset
    parquet file        | file 0              | file 1       |          v3: many episodes a file; v2: one
    mp4 files of a key  | file 0  | file 1           | file 2|          cut elsewhere; seconds begin at 0 in each file
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["EpisodeRecords", "VideoSpans"]

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
        Immutable: safe to share between threads, picklable. Rows need not be without gaps: a dataset may hold rows that
        belong to no episode.
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
