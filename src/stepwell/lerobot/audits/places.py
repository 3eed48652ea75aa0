"""Which rows are which episode's: the table of episodes against what the rows say of themselves.

Either may be wrong. The rows count their episodes themselves (``episode_index``, and ``frame_index`` from 0 on). Where
they do so without a fault they are believed and the table is wrong; where they do not, or where ``frame_index`` agrees
with a longer range of the table, the table is believed.

::

    table     [0, 5)      [5, 9)             [9, 12)
    rows       0 0 0 0 0   1 1 1 1 | 7 7 7 |  2 2 2          rows 9 to 11 are orphans, and episode 2 is elsewhere
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.audits.pieces import Pieces
from stepwell.lerobot.audits.reports import Rule, Tally
from stepwell.lerobot.audits.subject import EpisodeList, Subject

__all__ = ["NOWHERE", "Places", "find_places", "of_owner"]

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
NOWHERE = -1

RANGE = Rule(
    "episode-range",
    "error",
    "Correct dataset_from_index and dataset_to_index: windows reach into other episodes, or stop too early.",
)
LENGTH = Rule("episode-length", "error", "Correct the length in the table of episodes, or write the episode again.")
EMPTY = Rule("episode-empty", "error", "Take the episode out of the table, or add its rows.")
ORPHANED = Rule(
    "orphaned-rows",
    "error",
    "Remove these rows, or add their episodes to the table: LeRobot draws them and looks for an episode that is not.",
)
MISSING = Rule(
    "data-missing", "error", "Download the file again, or leave these episodes out: LeRobot goes to the hub for it."
)
FILE = Rule(
    "data-file",
    "error",
    "Correct data/chunk_index and data/file_index: who asks for single episodes downloads and reads the wrong file.",
)


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where each episode's rows are.

    Args:
        first: int64 [E], position of the first row, by place in the table; -1 where no rows were found.
        stop: int64 [E], half-open.
        of_piece: int64 [P], place in the table of the episode that a piece belongs to; -1: none.
    """

    first: Integers
    stop: Integers
    of_piece: Integers

    @property
    def length(self) -> Integers:
        """Rows of each episode; 0 where none were found."""
        return self.stop - self.first


@dataclass(frozen=True, slots=True, eq=False)
class _Runs:
    """Consecutive rows with the same episode_index; sound: frame_index counts from 0 on, and there is no other run."""

    number: Integers
    first: Integers
    stop: Integers
    is_sound: Mask


def find_places(subject: Subject, pieces: Pieces, paths: Sequence[str], unread: Container[str]) -> Places:
    """Return where each episode's rows are.

    Args:
        subject: what is audited.
        pieces: of the rows.
        paths: of the data files, by `Pieces.file`.
        unread: data files that are there and could not be read.
    """
    bounds = _by_rows(subject, pieces) if subject.info.is_v3 else _by_files(subject, pieces, paths)
    places = Places(*bounds, _owners(*bounds, pieces))
    _check_absence(subject, places, {*paths}, unread)
    _check_lengths(subject, places)
    if subject.info.is_v3:
        _check_files(subject, places, pieces, paths)
    if subject.chosen is None:
        _check_orphans(places, pieces, subject.tally)
    return places


def _by_files(subject: Subject, pieces: Pieces, paths: Sequence[str]) -> tuple[Integers, Integers]:
    """Return first and stop of episodes that have a file each."""
    episodes = subject.episodes
    first, stop = np.full(len(episodes), NOWHERE), np.full(len(episodes), NOWHERE)
    numbers = {path: number for number, path in enumerate(paths)}
    begins = np.searchsorted(pieces.file, np.arange(len(paths)), "left")
    ends = np.searchsorted(pieces.file, np.arange(len(paths)), "right")
    for place in range(len(episodes)):
        number = numbers.get(subject.data_path(place) or "", NOWHERE)
        if number >= 0 and begins[number] < ends[number]:
            first[place], stop[place] = pieces.first[begins[number]], pieces.stop[ends[number] - 1]
    return first, stop


def _by_rows(subject: Subject, pieces: Pieces) -> tuple[Integers, Integers]:
    """Return first and stop of episodes that share files."""
    episodes = subject.episodes
    runs = _runs_of(pieces)
    first, stop = np.full(len(episodes), NOWHERE), np.full(len(episodes), NOWHERE)
    known: dict[int, list[int]] = {}
    for place, number in enumerate(runs.number.tolist()):
        known.setdefault(number, []).append(place)
    is_sane, is_counted = _sane_ranges(episodes, pieces)
    for place in subject.places.tolist():
        number, said = int(episodes.number[place]), (int(episodes.first[place]), int(episodes.stop[place]))
        found = known.get(number, [])
        bounds = [(int(runs.first[run]), int(runs.stop[run])) for run in found]
        is_believed = bool(found) and bool(runs.is_sound[found].all())
        if is_counted[place] and all(said[0] <= begin and end <= said[1] for begin, end in bounds):
            is_believed = False
        if said in bounds or (is_sane[place] and not is_believed):
            first[place], stop[place] = said
        elif found:
            first[place], stop[place] = bounds[0]
            right = f"its rows are [{bounds[0][0]}, {bounds[0][1]})"
            subject.tally.add(
                RANGE, "", f"episode {number} is said to be rows [{said[0]}, {said[1]}); {right}", [number]
            )
    return first, stop


def _runs_of(pieces: Pieces) -> _Runs:
    is_new = (np.diff(pieces.episode) != 0) | (pieces.first[1:] != pieces.stop[:-1])
    starts = np.concatenate([[0], np.flatnonzero(is_new) + 1]).astype(np.intp)[: len(pieces)]
    if not len(starts):
        none = np.empty(0, np.int64)
        return _Runs(none, none, none, np.empty(0, np.bool_))
    number, first = pieces.episode[starts], pieces.first[starts]
    stop = pieces.stop[np.append(starts[1:], len(pieces)) - 1]
    begin = np.repeat(first, np.diff(np.append(starts, len(pieces))))
    is_counted = np.logical_and.reduceat(pieces.frame == pieces.first - begin, starts)
    _, inverse, counts = np.unique(number, return_inverse=True, return_counts=True)
    return _Runs(number, first, stop, is_counted & (counts[inverse] == 1))


def _sane_ranges(episodes: EpisodeList, pieces: Pieces) -> tuple[Mask, Mask]:
    """Return which ranges of the table can be, and in which of these frame_index counts from 0 on.

    A range that can be lies among the rows that were read, and overlaps no other.
    """
    last = int(pieces.stop.max()) if len(pieces) else 0
    is_sane = (episodes.first >= 0) & (episodes.first < episodes.stop) & (episodes.stop <= last)
    order = np.argsort(episodes.first, kind="stable")
    overlaps = episodes.stop[order][:-1] > episodes.first[order][1:]
    is_sane[order[:-1][overlaps]] = False
    is_sane[order[1:][overlaps]] = False
    owners = _owners(np.where(is_sane, episodes.first, NOWHERE), episodes.stop, pieces)
    is_sane &= np.isin(np.arange(len(episodes)), owners)
    is_miscounted = pieces.frame != pieces.first - of_owner(episodes.first, owners)
    return is_sane, is_sane & ~np.isin(np.arange(len(episodes)), owners[is_miscounted])


def of_owner(values: Integers, owners: Integers) -> Integers:
    """Return a value of each episode for each piece of it; -1 for pieces of none."""
    return np.append(values, NOWHERE)[owners]


def _owners(first: Integers, stop: Integers, pieces: Pieces) -> Integers:
    """Return the place of the episode that holds each piece; -1 for none."""
    present = np.flatnonzero(first >= 0)
    order = present[np.argsort(first[present], kind="stable")]
    if not len(order):
        return np.full(len(pieces), NOWHERE)
    at = np.searchsorted(first[order], pieces.first, "right") - 1
    owner = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (pieces.first < stop[owner]), owner, NOWHERE)


def _check_absence(subject: Subject, places: Places, paths: Container[str], unread: Container[str]) -> None:
    for place in np.setdiff1d(subject.places, places.of_piece).tolist():
        path, number = subject.data_path(place), int(subject.episodes.number[place])
        if path is not None and path not in paths:
            subject.tally.add(MISSING, path, "no such file", [number])
        elif path not in unread:
            subject.tally.add(EMPTY, "", f"episode {number} has no rows", [number])


def _check_lengths(subject: Subject, places: Places) -> None:
    episodes = subject.episodes
    found = np.intersect1d(subject.places, places.of_piece)
    for place in found[episodes.length[found] != places.length[found]].tolist():
        number = int(episodes.number[place])
        said = f"said to have {episodes.length[place]} steps, there are {places.length[place]} rows"
        subject.tally.add(LENGTH, "", f"episode {number} is {said}", [number])


def _check_files(subject: Subject, places: Places, pieces: Pieces, paths: Sequence[str]) -> None:
    for place, file in sorted({*zip(places.of_piece.tolist(), pieces.file.tolist(), strict=True)}):
        said = subject.data_path(place) if place >= 0 else None
        if said is not None and said != paths[file]:
            number = int(subject.episodes.number[place])
            detail = f"episode {number} is said to be in {said}; its rows are in {paths[file]}"
            subject.tally.add(FILE, "", detail, [number])


def _check_orphans(places: Places, pieces: Pieces, tally: Tally) -> None:
    is_orphan = places.of_piece == NOWHERE
    if not is_orphan.any():
        return
    num_rows, total = (int(np.sum((pieces.stop - pieces.first)[mask])) for mask in (is_orphan, slice(None)))
    first = int(pieces.first[is_orphan][0])
    detail = f"{num_rows:,} rows ({num_rows / total:.2g} of all), the first at {first}, are in no episode of the table"
    tally.add(ORPHANED, "", detail, np.unique(pieces.episode[is_orphan]))
