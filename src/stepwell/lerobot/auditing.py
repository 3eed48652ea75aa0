"""Audit a LeRobot dataset: what silently breaks training from it, how many episodes it touches, what to do.

::

    meta/    --> info, tasks, table of episodes --+
    data/    --> a file at a time ----------------+--> checks --> findings --> report
    videos/  --> the index of each mp4 file ------+
    deep     --> every picture, decoded ----------+

The checks are in `stepwell.lerobot.audits`. Nothing is changed, nothing is trusted, and no check ends the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell.errors import DatasetNotFoundError, EpisodeNotFoundError, FormatError
from stepwell.lerobot.audits.episodes import read_episodes, read_tasks
from stepwell.lerobot.audits.info import read_info
from stepwell.lerobot.audits.meta import check_episode_order, check_task_order, check_totals
from stepwell.lerobot.audits.pictures import check_pictures
from stepwell.lerobot.audits.places import Places, find_places
from stepwell.lerobot.audits.reports import AuditReport, Finding, Tally
from stepwell.lerobot.audits.rows import data_paths
from stepwell.lerobot.audits.statistics import (
    StoredStatistics,
    check_camera_statistics,
    check_statistics,
    read_statistics,
)
from stepwell.lerobot.audits.subject import EpisodeList, Subject
from stepwell.lerobot.audits.tables import TABLE_CHECKS
from stepwell.lerobot.audits.values import check_values
from stepwell.lerobot.audits.videos import check_videos, video_members
from stepwell.lerobot.audits.walk import RowsSeen, walk_rows
from stepwell.lerobot.hub import Repository, Snapshot
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.sources import Source, parse_source
from stepwell.progress import make_bar

__all__ = ["AuditReport", "Finding", "audit", "is_lerobot"]

SCHEME = "lerobot://"


def is_lerobot(source: str | os.PathLike[str]) -> bool:
    """Whether something is a LeRobot dataset, or what is left of one: an address or a directory with ``meta/``."""
    return str(source).startswith(SCHEME) or (Path(source) / INFO_PATH).parent.is_dir()


def audit(
    source: str | os.PathLike[str],
    *,
    episodes: Iterable[int | slice] | None = None,
    deep: bool = False,
    progress: bool | None = None,
) -> AuditReport:
    """Look for what silently breaks training from a LeRobot dataset of v2.0, v2.1 or v3.0.

    Args:
        source: a directory, ``lerobot://...`` or ``"owner/name"`` of the hub, from which the files that the table of
            episodes names are fetched.
        episodes: numbers and slices; default those of the address, else all. What is said of the dataset as a whole,
            such as totals and statistics, is not compared with some.
        deep: whether to decode every picture and every frame, too.
        progress: draw a bar, or not; None draws it where standard error is a terminal.

    Returns:
        What was found; never raises for what is on the disk.

    Raises:
        DatasetNotFoundError: no such directory or repository.
        EpisodeNotFoundError: a number that the table of episodes does not have.
        MissingDependencyError: pyarrow is not installed.

    Example:
        >>> import json, tempfile
        >>> from stepwell.testing.lerobot import tiny_lerobot
        >>> root = tiny_lerobot(f"{tempfile.mkdtemp()}/tiny", cameras={})
        >>> audit(root).findings
        ()
        >>> info = json.loads((root / "meta/info.json").read_text())
        >>> _ = (root / "meta/info.json").write_text(json.dumps(info | {"total_frames": 1}))
        >>> [finding.code for finding in audit(root).findings]
        ['totals']

    Notes:
        Reads the numeric columns once, a file at a time; keeps a few hundred bytes an episode and the largest column of
        the largest file. Videos are judged by the index in their heads. For one thread.
    """
    place, tally = parse_source(source), Tally()
    snapshot = Repository(place.repo_id, place.revision).open() if place.repo_id is not None else None
    root = _directory(place) if snapshot is None else snapshot.root
    info = read_info(root, tally)
    if info is None:
        tally.skip("everything else: it can only be understood with meta/info.json")
        return AuditReport(os.fspath(source), "unknown", 0, 0, tally.findings(), tuple(tally.unchecked))
    table = read_episodes(root, info, tally)
    wanted = place.episodes if episodes is None else episodes
    chosen = None if wanted is None else _places_of(table, wanted)
    subject = Subject(root, info, read_tasks(root, info, tally), table, chosen, tally)
    if snapshot is not None:
        _fetch(snapshot, subject, progress)
    num_rows = _Audit(subject, deep).run(progress)
    unchecked = tuple(tally.unchecked)
    return AuditReport(os.fspath(source), info.version, len(subject.places), num_rows, tally.findings(), unchecked)


def _directory(place: Source) -> Path:
    if place.path is None or not place.path.is_dir():
        raise DatasetNotFoundError(f"no directory {place.path}. Give that of a LeRobot dataset.")
    return place.path


def _places_of(table: EpisodeList, wanted: Iterable[int | slice]) -> npt.NDArray[np.int64]:
    """Return the places of episodes in the table, ascending."""
    numbers = table.number.tolist()
    chosen: set[int] = set()
    for entry in wanted:
        chosen.update(numbers[entry] if isinstance(entry, slice) else [int(entry)])
    unknown = sorted(chosen.difference(numbers))
    if unknown:
        raise EpisodeNotFoundError(f"no episode {unknown[0]}. The table has {len(table)}.")
    return np.flatnonzero(np.isin(table.number, list(chosen)))


def _fetch(snapshot: Snapshot, subject: Subject, progress: bool | None) -> None:
    """Fetch the files of the episodes; those that the repository does not have are findings later."""
    names = {subject.data_path(place) for place in subject.places.tolist()}
    for camera in subject.info.video_keys:
        names.update(video_members(subject, camera))
    known = sorted(name for name in names if name is not None)
    try:
        snapshot.fetch(known, progress=progress)
    except FormatError:
        for name in known:
            with suppress(FormatError):
                snapshot.fetch([name], progress=False)


class _Audit:
    """The checks of one dataset, in their order."""

    def __init__(self, subject: Subject, deep: bool) -> None:
        self._subject, self._deep = subject, deep
        self._said = StoredStatistics(None, {})

    def run(self, progress: bool | None) -> int:
        """Run all checks; returns the number of steps that were looked at."""
        subject = self._subject
        paths = data_paths(subject)
        videos = sum(len(video_members(subject, camera)) for camera in subject.info.video_keys)
        self._guard("tasks", lambda: check_task_order(subject))
        self._guard("table of episodes", lambda: check_episode_order(subject))
        self._said = read_statistics(subject)
        with make_bar(len(paths) + videos, "files", "verifying", wanted=progress) as bar:
            seen = walk_rows(subject, paths, self._said, bar.update)
            places = find_places(subject, seen.pieces, paths, seen.unread)
            self._check_rows(seen, places)
            self._guard("videos", lambda: check_videos(subject, places, bar.update))
        if self._deep:
            self._guard("pictures", lambda: check_pictures(subject, places, self._said, progress))
        else:
            self._guard("statistics of cameras", self._check_cameras)
        return seen.num_rows if subject.chosen is None else int(places.length[subject.chosen].sum())

    def _check_rows(self, seen: RowsSeen, places: Places) -> None:
        subject = self._subject
        for check in TABLE_CHECKS:
            self._guard(check.__name__, lambda check=check: check(subject, seen.pieces, places))  # type: ignore[misc]
        self._guard("values", lambda: check_values(subject, seen.facts, seen.pieces, places))
        if subject.chosen is not None:
            subject.tally.skip("totals and statistics of the whole dataset: only some episodes were asked for")
            return
        self._guard("totals", lambda: check_totals(subject, seen.num_rows, places))
        whole = self._said.whole
        if whole is not None and (seen.unread or not (places.length > 0).all()):
            subject.tally.skip("statistics: not all rows could be read")
        elif whole is not None:
            self._guard("statistics", lambda: check_statistics(subject, whole, seen.sums))

    def _check_cameras(self) -> None:
        """Judge the statistics of cameras by themselves."""
        for camera in self._subject.info.cameras:
            if self._said.whole is not None:
                check_camera_statistics(self._subject, camera, self._said.whole, None)
            for number, said in self._said.by_episode.items():
                check_camera_statistics(self._subject, camera, said, None, (number,))

    def _guard(self, name: str, check: Callable[[], None]) -> None:
        """Run a check; what it cannot cope with is told, and the others go on."""
        try:
            check()
        except Exception as error:  # garbage on the disk may raise anything
            self._subject.tally.skip(f"{name}: {type(error).__name__}: {error}")
