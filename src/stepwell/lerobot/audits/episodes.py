"""Checks of rows: which are which episode's, their index columns, and the values of numeric columns.

Either may be wrong. The rows count their episodes themselves (``episode_index``, and ``frame_index`` from 0 on). Where
they do so without a fault they are believed and the table is wrong; where they do not, or where ``frame_index`` agrees
with a longer range of the table, the table is believed.

::

    table     [0, 5)      [5, 9)             [9, 12)
    rows       0 0 0 0 0   1 1 1 1 | 7 7 7 |  2 2 2          rows 9 to 11 are orphans, and episode 2 is elsewhere

Of the values a few numbers a feature are kept, and a digest of the actions an episode.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.audits.absence import Absences
from stepwell.lerobot.audits.report import RENUMBER, Rule, Subject, Tally
from stepwell.lerobot.audits.rows import Pieces
from stepwell.lerobot.meta_files import EpisodeRecords
from stepwell.sizes import counted

__all__ = [
    "NOWHERE",
    "RATE",
    "TABLE_CHECKS",
    "TOLERANCE_SECONDS",
    "ColumnFacts",
    "Places",
    "check_values",
    "find_places",
    "is_action",
]

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
TOLERANCE_SECONDS = 1e-4
SHORTEST_STEPS = 2
# a timestamp that is nearer to another step than to its own shows that other step
HALF_STEP = 0.5

INDEX = Rule(
    "index",
    "error",
    "Number the rows from 0 on in the order of the sorted files: readers take the n-th row for the row of index n.",
    RENUMBER,
)
FRAME = Rule("frame-index", "error", "Number the rows of each episode from 0 on.")
EPISODE = Rule(
    "episode-index",
    "error",
    "Write the episode's number into all its rows: windows end, and videos are chosen, by it.",
)
OFF_GRID = Rule(
    "timestamp-grid",
    "error",
    "Write timestamp = frame_index / fps, or another fps: between steps no frame is found, or a neighbour's is shown.",
    RENUMBER,
)
SHIFTED = Rule(
    "timestamp-shift",
    "error",
    "Write timestamp = frame_index / fps: videos are read at this time, so other steps' frames are shown.",
    RENUMBER,
)
RATE = Rule(
    "fps",
    "error",
    "Correct fps in meta/info.json where the rows came at the other rate, and verify again. Where they did not, write "
    "the times anew: stepwell edit renumber.",
)
TASK = Rule("task-index", "error", "Add the task to meta/tasks, or correct the rows.")
SHORT = Rule("episode-short", "warning", "Leave the episode out: it has no step that follows another.")
ACTION = "action"
DIGEST_BYTES = 16
MAX_SHOWN = 5
# in steps: what float32 may round of times
RATE_TOLERANCE = 1e-3
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


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where each episode's rows are."""

    first: Integers  # int64 [E], position of the first row, by place in the table; -1 where no rows were found
    stop: Integers  # int64 [E], half-open
    of_piece: Integers  # int64 [P], place in the table of the episode that a piece belongs to; -1: none

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
    """Return where each episode's rows are."""
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
        number, listed = int(episodes.index[place]), (int(episodes.first[place]), int(episodes.stop[place]))
        found = known.get(number, [])
        bounds = [(int(runs.first[run]), int(runs.stop[run])) for run in found]
        is_believed = bool(found) and bool(runs.is_sound[found].all())
        if is_counted[place] and all(listed[0] <= begin and end <= listed[1] for begin, end in bounds):
            is_believed = False
        if listed in bounds or (is_sane[place] and not is_believed):
            first[place], stop[place] = listed
        elif found:
            first[place], stop[place] = bounds[0]
            right = f"its rows are [{bounds[0][0]}, {bounds[0][1]})"
            subject.tally.add(
                RANGE, "", f"episode {number} is said to be rows [{listed[0]}, {listed[1]}); {right}", [number]
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


def _sane_ranges(episodes: EpisodeRecords, pieces: Pieces) -> tuple[Mask, Mask]:
    """Return which ranges of the table are possible, and in which of these frame_index counts from 0 on."""
    # a possible range lies among the rows that were read, and overlaps no other
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
    absences, members = Absences(subject, MISSING), subject.members(subject.places, subject.data_path)
    for wanted, found in members.items():
        if wanted not in paths:
            absences.add(wanted, subject.episodes.index[found])
    absences.report(len(members))
    for place in np.setdiff1d(subject.places, places.of_piece).tolist():
        path, number = subject.data_path(place), int(subject.episodes.index[place])
        if (path is None or path in paths) and path not in unread:
            subject.tally.add(EMPTY, "", f"episode {number} has no rows", [number])


def _check_lengths(subject: Subject, places: Places) -> None:
    episodes = subject.episodes
    found = np.intersect1d(subject.places, places.of_piece)
    for place in found[episodes.table_length[found] != places.length[found]].tolist():
        number = int(episodes.index[place])
        lengths = f"said to have {episodes.table_length[place]} steps, there are {places.length[place]} rows"
        subject.tally.add(LENGTH, "", f"episode {number} is {lengths}", [number])


def _check_files(subject: Subject, places: Places, pieces: Pieces, paths: Sequence[str]) -> None:
    for place, file in sorted({*zip(places.of_piece.tolist(), pieces.file.tolist(), strict=True)}):
        listed = subject.data_path(place) if place >= 0 else None
        if listed is not None and listed != paths[file]:
            number = int(subject.episodes.index[place])
            detail = f"episode {number} is said to be in {listed}; its rows are in {paths[file]}"
            subject.tally.add(FILE, "", detail, [number])


def _check_orphans(places: Places, pieces: Pieces, tally: Tally) -> None:
    is_orphan = places.of_piece == NOWHERE
    if not is_orphan.any():
        return
    num_rows, total = (int(np.sum((pieces.stop - pieces.first)[mask])) for mask in (is_orphan, slice(None)))
    first = int(pieces.first[is_orphan][0])
    detail = f"{num_rows:,} rows ({num_rows / total:.2g} of all), the first at {first}, are in no episode of the table"
    tally.add(ORPHANED, "", detail, np.unique(pieces.episode[is_orphan]))


def check_index(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Check that the index of each row is its position."""
    wrong = (pieces.index != pieces.first) & _is_looked_at(subject, places)

    def detail(at: int) -> str:
        found = f"row {pieces.first[at]} has index {pieces.index[at]}"
        if at and pieces.index[at] != pieces.index[at - 1] + pieces.first[at] - pieces.first[at - 1]:
            before = pieces.index[at - 1] + pieces.stop[at - 1] - pieces.first[at - 1] - 1
            found += f", the one before {before}"
        return f"{found}; {_rows(pieces, wrong)}"

    _report(subject, places, INDEX, wrong, detail)


def check_frame_index(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Check that frame_index counts each episode's rows from 0 on."""
    right = pieces.first - of_owner(places.first, places.of_piece)
    wrong = (places.of_piece >= 0) & (pieces.frame != right)

    def detail(at: int) -> str:
        found = f"row {pieces.first[at]} has frame_index {pieces.frame[at]}, where {right[at]} is right"
        return f"{found}; {_rows(pieces, wrong)}"

    # of v2.0 the images are looked at, which are found by it
    command = RENUMBER if subject.info.version != "v2.0" else ""
    _report(subject, places, FRAME, wrong, detail, command)


def check_episode_index(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Check that the rows of an episode bear its number."""
    right = of_owner(subject.episodes.index, places.of_piece)
    wrong = (places.of_piece >= 0) & (pieces.episode != right)

    def detail(at: int) -> str:
        found = f"row {pieces.first[at]} has episode_index {pieces.episode[at]}, it lies in episode {right[at]}"
        return f"{found}; {_rows(pieces, wrong)}"

    _report(subject, places, EPISODE, wrong, detail)


def check_timestamps(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Check that the timestamp of each row is a multiple of 1 / fps, and that of its own step."""
    is_known, fps = places.of_piece >= 0, subject.info.fps
    rate = _other_rate(pieces, places, fps)
    if rate is not None:
        # whoever numbers the times anew would make the wrong rate that of the data, too
        subject.tally.add(RATE, "", f"all timestamps are those of {rate:.5g} rows a second, fps is {fps:g}")
        return
    worst = float(pieces.off_grid[is_known].max(initial=0))
    beside = f"timestamps up to {worst:.2g} s beside a multiple of 1/{fps:g} s (tolerance {TOLERANCE_SECONDS:g} s)"
    _report(subject, places, OFF_GRID, is_known & (pieces.off_grid > TOLERANCE_SECONDS), lambda _: beside)
    begin = of_owner(places.first, places.of_piece)
    late = np.maximum(np.abs(pieces.late_low + begin), np.abs(pieces.late_high + begin))
    shifted = is_known & (late > HALF_STEP) & np.isfinite(late)

    def detail(at: int) -> str:
        return f"timestamps up to {late[at] / fps:.3g} s beside frame_index / fps, from row {pieces.first[at]} on"

    _report(subject, places, SHIFTED, shifted, detail)


def _other_rate(pieces: Pieces, places: Places, fps: float) -> float | None:
    """Return the rate that the timestamps of all episodes are of, where it is not the dataset's."""
    steps = pieces.stop - pieces.first - 1
    told = (places.of_piece >= 0) & (steps > 1)
    begin = of_owner(places.first, places.of_piece)[told]
    low, high, steps = pieces.late_low[told] + begin, pieces.late_high[told] + begin, steps[told]
    # of a single episode a single wrong time may look alike
    if len(steps) <= 1 or not (np.isfinite(low) & np.isfinite(high)).all():
        return None
    # the first row is at its time, each later one is later by as much again, or earlier
    late = np.where(np.abs(low) > np.abs(high), low, high)
    ratios = 1 + late / steps
    is_one = (np.minimum(np.abs(low), np.abs(high)) < RATE_TOLERANCE) & (np.abs(ratios - ratios[0]) < RATE_TOLERANCE)
    is_other = ratios[0] > 0 and abs(float(late.max()) if late.max() > 0 else float(late.min())) > HALF_STEP
    return fps / float(ratios[0]) if is_one.all() and is_other else None


def check_task_index(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Check that each task_index names a task."""
    wrong = (pieces.num_bad_tasks > 0) & _is_looked_at(subject, places)

    def detail(at: int) -> str:
        rows = f"{int(pieces.num_bad_tasks[wrong].sum()):,} rows from {pieces.first[at]} on"
        return f"{rows} have a task_index that is no task's; there are {len(subject.tasks or ())}"

    _report(subject, places, TASK, wrong, detail)


def check_short_episodes(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Look for episodes of a single step."""
    length = places.length
    found = np.flatnonzero((length > 0) & (length < SHORTEST_STEPS))
    if len(found):
        detail = f"fewer than {SHORTEST_STEPS} steps"
        subject.tally.add(SHORT, "", detail, subject.episodes.index[found])


TABLE_CHECKS = (
    check_index,
    check_frame_index,
    check_episode_index,
    check_timestamps,
    check_task_index,
    check_short_episodes,
)


def _is_looked_at(subject: Subject, places: Places) -> Mask:
    """Return which pieces are looked at: all, or those of the chosen episodes."""
    return (places.of_piece >= 0) | (subject.chosen is None)


def _rows(pieces: Pieces, wrong: Mask) -> str:
    count = int((pieces.stop - pieces.first)[wrong].sum())
    return f"{count:,} such rows" if count > 1 else "it alone"


def _report(  # noqa: PLR0917
    subject: Subject, places: Places, rule: Rule, wrong: Mask, detail: Callable[[int], str], command: str = ""
) -> None:
    """Report the episodes of the pieces that are wrong, with the detail of the first."""
    found = np.flatnonzero(wrong)
    if len(found):
        owners = np.unique(places.of_piece[found])
        numbers = subject.episodes.index[owners[owners >= 0]]
        subject.tally.add(rule, "", detail(int(found[0])), numbers, command=command)


def is_action(name: str) -> bool:
    """Return whether a feature is an action of the robot: "action", "action.gripper", not "observation.actions"."""
    return name.partition(".")[0] == ACTION


@dataclass(slots=True)
class ColumnFacts:
    """Facts about one numeric feature; pieces are numbered over all files, in the order of `see`."""

    num_rows: int = 0
    low: npt.NDArray[Any] | None = None
    high: npt.NDArray[Any] | None = None
    bad_pieces: dict[int, int] = field(default_factory=dict)
    zero_pieces: set[int] = field(default_factory=set)
    digests: dict[int, bytes] = field(default_factory=dict)

    def see(self, values: npt.NDArray[Any], pieces: Pieces, number: int, *, of_action: bool) -> None:
        """Take in a column [rows, elements] of a file whose first piece has a number among those of all files."""
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
    """Check the facts about all numeric features."""
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
        subject.tally.add(NOT_FINITE, name, detail, subject.episodes.index[owners[owners >= 0]])


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
        subject.tally.add(ZERO_ACTIONS, "", detail, subject.episodes.index[sorted(still)])
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
            numbers = subject.episodes.index[group]
            listed = ", ".join(map(str, numbers[:MAX_SHOWN].tolist())) + (", ..." if len(group) > MAX_SHOWN else "")
            subject.tally.add(DUPLICATE, "", f"episodes {listed} have the same actions, byte by byte", numbers)
