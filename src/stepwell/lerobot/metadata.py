"""All that ``meta/`` of a LeRobot dataset says, and the names of its files."""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DatasetNotFoundError, EpisodeNotFoundError
from stepwell.formats.source_paths import check_boundaries
from stepwell.lerobot.info import INFO_PATH, DatasetInfo
from stepwell.lerobot.meta_files import EpisodeRecords, further_columns, read_episodes, read_json, read_tasks
from stepwell.references.trusted_paths import Trust

if TYPE_CHECKING:
    from stepwell.lerobot.statistics import EpisodeStatistics, Statistics

__all__ = ["Metadata", "read_info", "select_episodes"]


@dataclass(frozen=True, eq=False)
class Metadata:
    """What a LeRobot dataset on this machine says of itself.

    Args:
        root: its directory, an absolute path.
        repo_id: its name on the hub, None for a directory.
        revision: of the hub, None for a directory.
        info: version, rate, features.
        tasks: texts, by task_index.
        episodes: all of them.
        selected: int64 [n], ascending: the places in ``episodes`` that were selected, and whose files are here.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_lerobot
        >>> metadata = Metadata.load(tiny_lerobot(f"{tempfile.mkdtemp()}/tiny", cameras={}), episodes=[1])
        >>> metadata
        <Metadata tiny  v3.0  10 fps  1 of 3 episodes>
        >>> metadata.episodes.tasks[1]
        ('lift the block', 'put it down')

    Notes:
        Immutable: safe to share between threads; statistics are read on first use. A pickle holds all
        but these.
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
        episodes: Iterable[int | slice] | None = None,
        repo_id: str | None = None,
        revision: str | None = None,
        ignore: Collection[str] = (),
        trust: Trust = None,
    ) -> Metadata:
        """Read the files of ``meta/``.

        Args:
            root: directory of the dataset.
            episodes: numbers of episodes, and slices of them; None for all.
            repo_id: the name on the hub that the directory is a copy of.
            revision: of this copy.
            ignore: names of features to leave out.
            trust: directories that links may lead to, beyond the root; True: anywhere, as where ``repo_id`` is given.

        Returns:
            The metadata; whether the files are there that it names, is not looked at.

        Raises:
            DatasetNotFoundError: there is no dataset in this directory.
            FormatError: a file is missing or not as the format says.
            EpisodeNotFoundError: a selected episode is not there.
        """
        # resolved links would name the blobs of the hub's cache
        path = Path(os.path.abspath(root))  # noqa: PTH100
        if repo_id is None and trust is not True:
            check_boundaries(str(path), trust)
        info = read_info(path, ignore=ignore)
        records = read_episodes(path, info)
        selected = select_episodes(episodes, len(records), str(path))
        return cls(path, repo_id, revision, info, read_tasks(path, info), records, selected)

    @cached_property
    def stats(self) -> Statistics | None:
        """The stored statistics by feature, then by name ("mean", ...): float64 arrays of the stored shapes.

        None where the dataset stores none; of v2.1, which stores them by episode, those of all episodes together.
        """
        from stepwell.lerobot.statistics import read_statistics

        return read_statistics(self.root, self.info, self._episode_statistics)

    def episode_stats(self, place: int) -> Statistics | None:
        """Return the stored statistics of one episode, None where there are none.

        Raises:
            FormatError: their file is not as the format says.
        """
        return self._episode_statistics.of(place)

    @cached_property
    def _episode_statistics(self) -> EpisodeStatistics:
        from stepwell.lerobot.statistics import EpisodeStatistics

        return EpisodeStatistics(self.root, self.info)

    @cached_property
    def further(self) -> dict[str, list[Any]]:
        """What the table of episodes says besides the format's own columns: by name a value of each episode, or None.

        Raises:
            FormatError: the table is not as the format says.
        """
        return further_columns(self.root, self.info, self.episodes.index.tolist())

    def data_path(self, chunk: int, file: int) -> Path:
        """Return the path of a parquet file; of v2, ``file`` is the episode's number."""
        return self.root / self.info.data_name(chunk, file)

    def video_path(self, key: str, chunk: int, file: int) -> Path:
        """Return the path of an mp4 file; of v2, ``file`` is the episode's number.

        Raises:
            FeatureNotFoundError: no such camera, or its images are not in mp4 files.
        """
        return self.root / self.info.video_name(key, chunk, file)

    def data_files(self, places: npt.ArrayLike) -> list[Path]:
        """Return the distinct parquet files of the episodes at some places, in order."""
        at = np.asarray(places, np.int64)
        pairs = zip(self.episodes.data_chunk[at].tolist(), self.episodes.data_file[at].tolist(), strict=True)
        return [self.root / self.info.data_name(*pair) for pair in dict.fromkeys(pairs)]

    def video_files(self, places: npt.ArrayLike) -> list[Path]:
        """Return the distinct mp4 files of the episodes at some places, camera by camera, in order."""
        at = np.asarray(places, np.int64)
        files = []
        for key, spans in self.episodes.videos.items():
            pairs = zip(spans.chunk[at].tolist(), spans.file[at].tolist(), strict=True)
            files += [self.video_path(key, *pair) for pair in dict.fromkeys(pairs)]
        return files

    def __reduce__(self) -> tuple[Any, ...]:
        return Metadata, tuple(getattr(self, field.name) for field in fields(self))

    def __repr__(self) -> str:
        name, total = self.repo_id or self.root.name, len(self.episodes)
        count = f"{total}" if len(self.selected) == total else f"{len(self.selected)} of {total}"
        noun = "episode" if total == 1 else "episodes"
        return f"<Metadata {name}  {self.info.version}  {self.info.fps:g} fps  {count} {noun}>"


def read_info(root: Path, *, ignore: Collection[str] = ()) -> DatasetInfo:
    """Return what ``meta/info.json`` of a dataset says."""
    path = root / INFO_PATH
    if not path.is_file():
        raise DatasetNotFoundError(
            f"no LeRobot dataset at {root}: there is no {INFO_PATH}. Give the directory that has meta/ in it, or "
            f'"owner/name" for a dataset on the hub.'
        )
    return DatasetInfo.parse(read_json(path), str(path), ignore=ignore)


def select_episodes(episodes: Iterable[int | slice] | None, count: int, where: str) -> npt.NDArray[np.int64]:
    """Return the places of selected episodes, int64 [n], ascending, each once.

    Example:
        >>> select_episodes([slice(0, 3), 7, slice(-2, None)], 10, "x")
        array([0, 1, 2, 7, 8, 9])
    """
    every = np.arange(count)
    if episodes is None:
        return every
    if not isinstance(episodes, Iterable) or isinstance(episodes, str):
        raise EpisodeNotFoundError(f"episodes={episodes!r}. Allowed: a list of numbers and slices: [0, slice(10, 20)].")
    chosen = np.zeros(count, bool)
    for entry in episodes:
        if isinstance(entry, slice):
            chosen[entry] = True
            continue
        number = operator.index(entry)
        if not 0 <= number < count:
            raise EpisodeNotFoundError(f"no episode {number} in {where}. Allowed: 0 to {count - 1}, and slices.")
        chosen[number] = True
    return every[chosen]
