"""Audit a LeRobot dataset: what silently breaks training from it, how many episodes it touches, what to do.

::

    meta/    --> info, tasks, table of episodes --+
    data/    --> a file at a time ----------------+--> checks --> findings --> report
    videos/  --> the index of each mp4 file ------+
    deep     --> every image, decoded ------------+

The checks are in `stepwell.lerobot.audits`. Nothing is changed, nothing is trusted, and no check ends the others.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DatasetNotFoundError, EpisodeNotFoundError, FormatError
from stepwell.lerobot.audits.cameras import check_first_images, check_images, check_videos, video_members
from stepwell.lerobot.audits.episodes import TABLE_CHECKS, ColumnFacts, Places, check_values, find_places, is_action
from stepwell.lerobot.audits.meta import (
    StoredStatistics,
    check_camera_statistics,
    check_episode_order,
    check_statistics,
    check_subtasks,
    check_task_order,
    check_totals,
    read_episodes,
    read_info,
    read_statistics,
    read_tasks,
)
from stepwell.lerobot.audits.report import FETCH, AuditReport, Finding, Subject, Tally, problem_of
from stepwell.lerobot.audits.rows import (
    SHAPE,
    UNREADABLE,
    DataFile,
    Pieces,
    data_paths,
    episode_cuts,
    pieces_of,
    problems_of,
    read_data_files,
)
from stepwell.lerobot.hub import Repository, Snapshot, Source, parse_source
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.meta_files import EpisodeRecords
from stepwell.lerobot.statistics import StatisticsSum, numeric_summary
from stepwell.progress import make_bar
from stepwell.store.statistics import FeatureStatistics

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
        episodes: numbers and slices; default those of the address, else all. Totals and
            statistics of the whole dataset are not compared with some.
        deep: whether to decode every image and every frame, too.
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
        findings = tally.findings(*_commanded(place))
        return AuditReport(os.fspath(source), "unknown", 0, 0, findings, tuple(tally.unchecked))
    table = read_episodes(root, info, tally)
    wanted = place.episodes if episodes is None else episodes
    chosen = None if wanted is None else _places_of(table, wanted)
    subject = Subject(root, info, read_tasks(root, info, tally), table, chosen, tally)
    if snapshot is not None:
        _fetch(snapshot, subject, progress)
    num_rows = _Audit(subject, deep).run(progress)
    findings, unchecked = tally.findings(*_commanded(place)), tuple(tally.unchecked)
    return AuditReport(os.fspath(source), info.version, len(subject.places), num_rows, findings, unchecked)


def _commanded(place: Source) -> tuple[str, str]:
    """Return the directory that commands edit, and the command that fetches it."""
    if place.repo_id is None:
        return str(place.path), ""
    name = place.repo_id.rpartition("/")[2]
    fetch = FETCH.format(repo=shlex.quote(place.repo_id), name=shlex.quote(name))
    return name, fetch if place.revision is None else fetch.replace(
        " --local-dir", f" --revision {shlex.quote(place.revision)} --local-dir"
    )


def _directory(place: Source) -> Path:
    if place.path is None or not place.path.is_dir():
        raise DatasetNotFoundError(f"no directory {place.path}. Give that of a LeRobot dataset.")
    return place.path


def _places_of(table: EpisodeRecords, wanted: Iterable[int | slice]) -> npt.NDArray[np.int64]:
    """Return the places of episodes in the table, ascending."""
    numbers = table.index.tolist()
    chosen: set[int] = set()
    for entry in wanted:
        chosen.update(numbers[entry] if isinstance(entry, slice) else [int(entry)])
    unknown = sorted(chosen.difference(numbers))
    if unknown:
        raise EpisodeNotFoundError(f"no episode {unknown[0]}. The table has {len(table)}.")
    return np.flatnonzero(np.isin(table.index, list(chosen)))


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
        self._stored = StoredStatistics(None, {})

    def run(self, progress: bool | None) -> int:
        """Run all checks; returns the number of steps that were looked at."""
        subject = self._subject
        paths = data_paths(subject)
        videos = sum(len(video_members(subject, camera)) for camera in subject.info.video_keys)
        self._guard("tasks", lambda: check_task_order(subject))
        self._guard("table of episodes", lambda: check_episode_order(subject))
        self._stored = read_statistics(subject)
        with make_bar(len(paths) + videos, "files", "verifying", wanted=progress) as bar:
            rows = _Rows(subject, self._stored)
            rows.read(paths, bar.update)
            pieces = Pieces.joined(rows.parts)
            places = find_places(subject, pieces, paths, rows.unread)
            self._check_rows(rows, pieces, places)
            self._guard("videos", lambda: check_videos(subject, places, bar.update))
        if self._deep:
            self._guard("pictures", lambda: check_images(subject, places, self._stored, progress))
        else:
            self._guard("statistics of cameras", self._check_cameras)
        return rows.num_rows if subject.chosen is None else int(places.length[subject.chosen].sum())

    def _check_rows(self, rows: _Rows, pieces: Pieces, places: Places) -> None:
        subject = self._subject
        for check in TABLE_CHECKS:
            self._guard(check.__name__, lambda check=check: check(subject, pieces, places))  # type: ignore[misc]
        self._guard("subtasks", lambda: check_subtasks(subject, rows.statistics()))
        self._guard("values", lambda: check_values(subject, rows.facts, pieces, places))
        if subject.chosen is not None:
            subject.tally.skip("totals and statistics of the whole dataset: only some episodes were asked for")
            return
        self._guard("totals", lambda: check_totals(subject, rows.num_rows, places))
        whole = self._stored.whole
        if whole is not None and (rows.unread or not (places.length > 0).all()):
            subject.tally.skip("statistics: not all rows could be read")
        elif whole is not None:
            self._guard("statistics", lambda: check_statistics(subject, whole, rows.statistics()))

    def _check_cameras(self) -> None:
        """Check the statistics of cameras against themselves."""
        for camera in self._subject.info.cameras:
            if self._stored.whole is not None:
                check_camera_statistics(self._subject, camera, self._stored.whole, None)
            for number, stored in self._stored.by_episode.items():
                check_camera_statistics(self._subject, camera, stored, None, (number,))

    def _guard(self, name: str, check: Callable[[], None]) -> None:
        """Run a check; its exceptions become a line of the report, and the others go on."""
        try:
            check()
        except Exception as error:  # garbage on the disk may raise anything
            self._subject.tally.skip(f"{name}: {type(error).__name__}: {error}")


@dataclass(slots=True)
class _Rows:
    """The facts about the rows of all data files, each of which is read once."""

    subject: Subject
    stored: StoredStatistics
    facts: dict[str, ColumnFacts] = field(default_factory=dict)  # by numeric feature
    sums: StatisticsSum = field(default_factory=StatisticsSum)
    partial: set[str] = field(default_factory=set)  # features of which some rows cannot be read
    unread: set[str] = field(default_factory=set)  # data files that are there and cannot be read
    parts: list[Pieces] = field(default_factory=list)
    num_pieces: int = 0
    num_rows: int = 0  # of the files that can be opened

    def read(self, paths: Sequence[str], advance: Callable[[], None]) -> None:
        """Read the data files."""
        cuts = episode_cuts(self.subject)
        self.unread.update(paths)
        for data in read_data_files(self.subject, paths):
            self.num_rows += data.num_rows
            try:
                if self._see(data, cuts):
                    self.unread.discard(data.path)
            except Exception as error:  # garbage on the disk may raise anything
                self.subject.tally.skip(f"{data.path}: {type(error).__name__}: {error}")
            advance()

    def statistics(self) -> dict[str, FeatureStatistics]:
        """Return the statistics of the numeric features of which all rows were read."""
        return {name: found for name, found in self.sums.result().items() if name not in self.partial}

    def _see(self, data: DataFile, cuts: npt.NDArray[np.int64]) -> bool:
        """Look at a file; returns whether its rows were understood."""
        subject, wrong = self.subject, set()
        for rule, name, problem in problems_of(data.file.schema_arrow, subject.info):
            subject.tally.add(rule, name, problem, data.episodes)
            wrong.add(name)
        check_first_images(subject, data)
        pieces = pieces_of(data, subject, cuts)
        if pieces is None:
            return not data.num_rows
        found = {}
        for name, feature in subject.info.features.items():
            values = None if feature.is_camera or feature.is_text else self._numbers(data, name, name in wrong)
            if values is not None:
                facts = self.facts.setdefault(name, ColumnFacts())
                facts.see(values, pieces, self.num_pieces, of_action=is_action(name))
                rows = values.reshape(-1, *feature.shape)
                found[name] = numeric_summary(rows, per_element=self.stored.is_per_element(feature))
        self.sums.add(found)
        self.parts.append(pieces)
        self.num_pieces += len(pieces)
        for number in data.episodes.tolist():
            if number in self.stored.by_episode:
                check_statistics(subject, self.stored.by_episode[number], found, number)
        return True

    def _numbers(self, data: DataFile, name: str, is_reported: bool) -> npt.NDArray[Any] | None:
        """Return a numeric column; None, and a finding unless there is one, where it cannot be read."""
        rule = SHAPE
        try:
            return data.numbers(name, self.subject.info)
        except FormatError as error:
            rule, problem = UNREADABLE, problem_of(error)
        except ValueError as error:
            problem = str(error)
        self.partial.add(name)
        if not is_reported:
            self.subject.tally.add(rule, name, problem, data.episodes)
        return None
