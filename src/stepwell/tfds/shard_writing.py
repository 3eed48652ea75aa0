"""Shards: runs of consecutive episodes, a file each, written by several processes.

::

    episodes  | 0 1 2 3 | 4 5 6 | 7 8 9 |       cut by rows, the same for every number of processes
                  |         |       |
    shards    00000-of-3  00001   00002         each by whoever is free
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import WorkerError
from stepwell.formats.source_episodes import SourceEpisode, episodes_of
from stepwell.recorders.chunks import ITEM, NUM_BYTES, NUM_ITEMS, NUM_STEPS, run_chunks
from stepwell.tfds.episode_examples import EpisodeExamples, StepExamples, encode_all, runs_of
from stepwell.tfds.record_writing import FileFormat, write_records
from stepwell.windows import View

__all__ = ["Shard", "ShardJob", "ShardResult", "cut_shards", "mean_row_bytes", "write_shards"]

NUM_PROBED = 3


@dataclass(frozen=True, slots=True)
class Shard:
    """A file and the episodes that it gets.

    Args:
        path: of the file.
        split: it belongs to.
        start: the first episode of the split.
        stop: one past the last.
    """

    path: str
    split: str
    start: int
    stop: int


class ShardResult(NamedTuple):
    """What a shard became.

    Args:
        path: of its file.
        num_records: in it.
        num_bytes: of the records.
    """

    path: str
    num_records: int
    num_bytes: int


class ShardJob:
    """What every worker needs to write any shard.

    Args:
        views: split to its episodes.
        examples: how an episode becomes records.
        file_format: of the files.

    Notes:
        Picklable; each worker opens the stores for itself.
    """

    noun = "episode"

    def __init__(
        self, views: Mapping[str, View], examples: EpisodeExamples | StepExamples, file_format: FileFormat
    ) -> None:
        self.views, self.examples, self.file_format = dict(views), examples, file_format
        self._episodes: dict[str, list[SourceEpisode]] = {}

    def write(self, shard: Shard, counters: MutableSequence[int]) -> ShardResult:
        """Write one shard."""
        before = counters[NUM_BYTES]
        num_records = 0

        def records() -> Iterator[bytes]:
            nonlocal num_records
            chosen = self.episodes(shard.split)[shard.start : shard.stop]
            counters[ITEM] = shard.start
            for run in runs_of(chosen):
                for episode, encoded in zip(run, encode_all(self.examples, run), strict=True):
                    yield from encoded
                    num_records += len(encoded)
                    counters[NUM_BYTES] += sum(map(len, encoded))
                    counters[NUM_STEPS] += episode.length
                    counters[NUM_ITEMS] += 1
                    counters[ITEM] += 1

        write_records(shard.path, records(), self.file_format)
        return ShardResult(shard.path, num_records, counters[NUM_BYTES] - before)

    def episodes(self, split: str) -> list[SourceEpisode]:
        """Return the episodes of a split."""
        if split not in self._episodes:
            self._episodes[split] = list(episodes_of(self.views[split]))
        return self._episodes[split]

    def __getstate__(self) -> dict[str, Any]:
        # episodes hold maps of files, which every process has its own of
        return {**self.__dict__, "_episodes": {}}


def cut_shards(rows: npt.ArrayLike, num_shards: int) -> list[tuple[int, int]]:
    """Return the half-open range of episodes of each shard: about the same number of rows, at least one episode.

    Args:
        rows: int [n], of each episode.
        num_shards: at most n.

    Example:
        >>> cut_shards([10, 10, 10, 90, 10], 2), cut_shards([5, 5], 2)
        ([(0, 3), (3, 5)], [(0, 1), (1, 2)])
    """
    ends = np.cumsum(np.asarray(rows, np.int64))
    number = len(ends)
    # cuts are put where they lie nearest to equal parts
    middles = ends - np.asarray(rows, np.int64) / 2
    cuts = np.searchsorted(middles, ends[-1] * np.arange(1, num_shards) / num_shards)
    place = np.arange(1, num_shards)
    cuts = np.maximum.accumulate(np.maximum(cuts, place) - place) + place
    cuts = np.minimum(cuts, number - num_shards + place)
    edges = [0, *cuts.tolist(), number]
    return list(pairwise(edges))


def mean_row_bytes(job: ShardJob, split: str) -> float:
    """Return about how many bytes a row of the records has: some episodes are encoded to find it."""
    episodes = job.episodes(split)
    chosen = np.unique(np.linspace(0, len(episodes) - 1, NUM_PROBED).astype(np.int64)).tolist()
    sizes = [sum(map(len, job.examples.encode(episodes[index]))) for index in chosen]
    num_rows: int = sum(episodes[index].length for index in chosen)
    return sum(sizes) / num_rows


def write_shards(
    job: ShardJob, shards: Sequence[Shard], workers: int | None, progress: bool | None
) -> dict[str, ShardResult]:
    """Write all shards; returns path to result.

    Args:
        job: what to write.
        shards: of all splits.
        workers: processes; None: one a processor.
        progress: whether to show a bar; None: where somebody sees it.

    Raises:
        OSError: the disk is full.
        WorkerError: an episode that could not be written, where several processes write.
    """
    total = sum(shard.stop - shard.start for shard in shards)
    try:
        results = run_chunks(job, shards, workers=workers, total=total, unit="episodes", progress=progress)
    except WorkerError as error:
        # an error of this process is raised as it is
        found = error.__cause__ or error
        raise found from found.__cause__
    return {result.path: result for result in results}
