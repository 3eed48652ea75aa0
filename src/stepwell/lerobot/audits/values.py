"""Checks of what the numeric columns hold: NaN, features that never change, actions of zeros, the same episode twice.

Columns are looked at one at a time, a file at a time; what is kept is a few numbers a feature, and a digest an episode.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.audits.pieces import Pieces
from stepwell.lerobot.audits.places import Places
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.audits.subject import Subject
from stepwell.sizes import counted

__all__ = ["ColumnFacts", "check_values", "is_action"]

ACTION = "action"
DIGEST_BYTES = 16
MAX_SHOWN = 5
# of fewer rows it says nothing that they are equal
FEWEST_ROWS = 2

NOT_FINITE = Rule("not-finite", "error", "Correct or remove these steps: one NaN in a batch makes every weight NaN.")
CONSTANT = Rule(
    "constant",
    "warning",
    "Leave the feature out, or do not normalise it: its standard deviation is 0, or what rounding left of 0.",
)
ZERO_ACTIONS = Rule("action-zero", "warning", "Look whether the robot was recorded; leave these episodes out if not.")
DUPLICATE = Rule("episode-duplicate", "warning", "Keep one of them: the others count double, also in a test set.")


def is_action(name: str) -> bool:
    """Whether a feature is what the robot is told.

    Example:
        >>> is_action("action"), is_action("action.gripper"), is_action("observation.actions")
        (True, True, False)
    """
    return name.partition(".")[0] == ACTION


@dataclass(slots=True)
class ColumnFacts:
    """What is kept of one numeric feature.

    Notes:
        For one thread. Pieces are numbered over all files, in the order of `see`.
    """

    num_rows: int = 0
    low: npt.NDArray[Any] | None = None
    high: npt.NDArray[Any] | None = None
    bad_pieces: dict[int, int] = field(default_factory=dict)
    zero_pieces: set[int] = field(default_factory=set)
    digests: dict[int, bytes] = field(default_factory=dict)

    def see(self, values: npt.NDArray[Any], pieces: Pieces, number: int, *, of_action: bool) -> None:
        """Take in a column of a file.

        Args:
            values: [rows, elements].
            pieces: of the file.
            number: of its first piece among those of all files.
            of_action: whether to compare episodes by it.
        """
        self.num_rows += len(values)
        starts = pieces.first - pieces.first[0]
        if values.dtype.kind == "f":
            is_bad = ~np.isfinite(values).all(axis=1)
            if is_bad.any():
                counts = np.add.reduceat(is_bad.astype(np.int64), starts)
                self.bad_pieces |= {number + int(at): int(counts[at]) for at in np.flatnonzero(counts)}
                values = values[~is_bad]
                of_action = False
        if len(values):
            low, high = values.min(axis=0), values.max(axis=0)
            self.low = low if self.low is None else np.minimum(self.low, low)
            self.high = high if self.high is None else np.maximum(self.high, high)
        if of_action:
            is_moved = np.logical_or.reduceat((values != 0).any(axis=1), starts)
            self.zero_pieces |= set((number + np.flatnonzero(~is_moved)).tolist())
            for at, (start, stop) in enumerate(zip(starts.tolist(), [*starts[1:].tolist(), len(values)], strict=True)):
                self.digests[number + at] = _digest(values[start:stop])


def _digest(values: npt.NDArray[Any]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=DIGEST_BYTES).digest()


def check_values(subject: Subject, facts: dict[str, ColumnFacts], pieces: Pieces, places: Places) -> None:
    """Look at what is kept of all numeric features.

    Args:
        subject: what is audited.
        facts: by feature.
        pieces: of all files.
        places: of the episodes.
    """
    for name, column in facts.items():
        _check_finite(subject, name, column, places)
        if subject.chosen is None:
            _check_constant(subject, name, column)
    actions = {name: column for name, column in facts.items() if is_action(name)}
    zeros = _check_zeros(subject, actions, places)
    _check_duplicates(subject, actions, pieces, places, zeros)


def _check_finite(subject: Subject, name: str, column: ColumnFacts, places: Places) -> None:
    owner = places.of_piece
    bad = {piece: rows for piece, rows in column.bad_pieces.items() if owner[piece] >= 0 or subject.chosen is None}
    if bad:
        detail = f"NaN, infinite or missing in {counted(sum(bad.values()), 'row')}"
        owners = np.unique(owner[list(bad)])
        subject.tally.add(NOT_FINITE, name, detail, subject.episodes.number[owners[owners >= 0]])


def _check_constant(subject: Subject, name: str, column: ColumnFacts) -> None:
    is_index = subject.info.features[name].is_index
    if column.low is None or column.high is None or is_index or column.num_rows < FEWEST_ROWS:
        return
    found = np.flatnonzero(column.low == column.high)
    if not len(found):
        return
    shown = ", ".join(f"{float(column.low[at]):g}" for at in found[:MAX_SHOWN].tolist())
    more = ", ..." if len(found) > MAX_SHOWN else ""
    if len(found) == len(column.low):
        detail = f"{shown}{more} in every row"
    else:
        which = ", ".join(map(str, found[:MAX_SHOWN].tolist())) + more
        detail = f"{counted(len(found), 'element')} of {len(column.low)} ({which}) never change: {shown}{more}"
    subject.tally.add(CONSTANT, name, detail)


def _check_zeros(subject: Subject, actions: dict[str, ColumnFacts], places: Places) -> set[int]:
    """Look for episodes whose actions all are 0; returns their places in the table."""
    if not actions:
        return set()
    zero_pieces = set.intersection(*(column.zero_pieces for column in actions.values()))
    moved = {owner for piece, owner in enumerate(places.of_piece.tolist()) if piece not in zero_pieces}
    still = {int(places.of_piece[piece]) for piece in zero_pieces} - moved - {-1}
    if still:
        detail = "every action of the episode is 0"
        subject.tally.add(ZERO_ACTIONS, "", detail, subject.episodes.number[sorted(still)])
    return still


def _check_duplicates(
    subject: Subject, actions: dict[str, ColumnFacts], pieces: Pieces, places: Places, zeros: set[int]
) -> None:
    """Look for episodes with the same actions, byte by byte."""
    owners, first_of, stop_of = places.of_piece.tolist(), places.first.tolist(), places.stop.tolist()
    known: dict[bytes, list[int]] = {}
    for piece, owner in enumerate(owners):
        begin, stop = int(pieces.first[piece]), int(pieces.stop[piece])
        is_whole = owner >= 0 and begin == first_of[owner] and stop == stop_of[owner]
        if is_whole and owner not in zeros and stop - begin >= FEWEST_ROWS:
            found = [column.digests[piece] for column in actions.values() if piece in column.digests]
            if found and len(found) == len(actions):
                known.setdefault(b"".join(found), []).append(owner)
    for group in known.values():
        if len(group) > 1:
            numbers = subject.episodes.number[group]
            listed = ", ".join(map(str, numbers[:MAX_SHOWN].tolist())) + (", ..." if len(group) > MAX_SHOWN else "")
            subject.tally.add(DUPLICATE, "", f"episodes {listed} have the same actions, byte by byte", numbers)
