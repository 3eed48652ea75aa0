"""One pass over the data files: schemas, pieces of the index columns, what the numeric columns hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.lerobot.audits.columns import SHAPE, problems_of
from stepwell.lerobot.audits.images import check_first_images
from stepwell.lerobot.audits.info import problem_of
from stepwell.lerobot.audits.pieces import Pieces, episode_cuts, pieces_of
from stepwell.lerobot.audits.rows import UNREADABLE, DataFile, read_data_files
from stepwell.lerobot.audits.statistics import StoredStatistics, check_statistics
from stepwell.lerobot.audits.subject import Subject
from stepwell.lerobot.audits.values import ColumnFacts, is_action
from stepwell.lerobot.statistics import StatisticsSum, numeric_summary
from stepwell.store.statistics import FeatureStatistics

__all__ = ["RowsSeen", "walk_rows"]


@dataclass(slots=True)
class RowsSeen:
    """What is kept of the rows of all data files.

    Args:
        pieces: of the index columns.
        facts: by numeric feature.
        sums: statistics of the numeric features, without those of which some rows could not be read.
        unread: data files that are there and could not be read.
        num_rows: of the others.
    """

    pieces: Pieces
    facts: dict[str, ColumnFacts]
    sums: dict[str, FeatureStatistics]
    unread: set[str]
    num_rows: int


@dataclass(slots=True)
class _Walk:
    subject: Subject
    said: StoredStatistics
    facts: dict[str, ColumnFacts] = field(default_factory=dict)
    sums: StatisticsSum = field(default_factory=StatisticsSum)
    parts: list[Pieces] = field(default_factory=list)
    partial: set[str] = field(default_factory=set)
    num_pieces: int = 0

    def see(self, data: DataFile, cuts: npt.NDArray[np.int64]) -> bool:
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
                found[name] = numeric_summary(rows, per_element=self.said.is_per_element(feature))
        self.sums.add(found)
        self.parts.append(pieces)
        self.num_pieces += len(pieces)
        for number in data.episodes.tolist():
            if number in self.said.by_episode:
                check_statistics(subject, self.said.by_episode[number], found, number)
        return True

    def _numbers(self, data: DataFile, name: str, is_told: bool) -> npt.NDArray[Any] | None:
        """Return a numeric column; None where it is missing or is none, which is told unless it was."""
        rule = SHAPE
        try:
            return data.numbers(name, self.subject.info)
        except FormatError as error:
            rule, problem = UNREADABLE, problem_of(error)
        except ValueError as error:
            problem = str(error)
        self.partial.add(name)
        if not is_told:
            self.subject.tally.add(rule, name, problem, data.episodes)
        return None


def walk_rows(subject: Subject, paths: Sequence[str], said: StoredStatistics, advance: Callable[[], None]) -> RowsSeen:
    """Read every data file once.

    Args:
        subject: what is audited.
        paths: of the data files.
        said: by it is known in which shapes statistics are wanted; those of single episodes are compared at once.
        advance: called after each file.
    """
    walk, cuts, unread, num_rows = _Walk(subject, said), episode_cuts(subject), set(paths), 0
    for data in read_data_files(subject, paths):
        num_rows += data.num_rows
        try:
            if walk.see(data, cuts):
                unread.discard(data.path)
        except Exception as error:  # garbage on the disk may raise anything
            subject.tally.skip(f"{data.path}: {type(error).__name__}: {error}")
        advance()
    sums = {name: found for name, found in walk.sums.result().items() if name not in walk.partial}
    return RowsSeen(Pieces.joined(walk.parts), walk.facts, sums, unread, num_rows)
