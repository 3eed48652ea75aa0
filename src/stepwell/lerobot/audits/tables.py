"""Checks of the index columns: index, frame_index, episode_index, timestamp, task_index of every row.

Each is a comparison of pieces with the episodes that they belong to, see `stepwell.lerobot.audits.pieces`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.audits.pieces import Pieces
from stepwell.lerobot.audits.places import Places, of_owner
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.audits.subject import Subject

__all__ = ["TABLE_CHECKS", "TOLERANCE_SECONDS"]

TOLERANCE_SECONDS = 1e-4
SHORTEST_STEPS = 2
# a timestamp that is nearer to another step than to its own shows that other step
HALF_STEP = 0.5

INDEX = Rule(
    "index",
    "error",
    "Number the rows from 0 on in the order of the sorted files: readers take the n-th row for the row of index n.",
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
)
SHIFTED = Rule(
    "timestamp-shift",
    "error",
    "Write timestamp = frame_index / fps: videos are read at this time, so other steps' frames are shown.",
)
TASK = Rule("task-index", "error", "Add the task to meta/tasks, or correct the rows.")
SHORT = Rule("episode-short", "warning", "Leave the episode out: it has no step that follows another.")


def check_index(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Look whether the index of each row is its position."""
    wrong = (pieces.index != pieces.first) & _is_looked_at(subject, places)
    if not wrong.any():
        return
    at = int(np.flatnonzero(wrong)[0])
    detail = f"row {pieces.first[at]} has index {pieces.index[at]}"
    if at and pieces.index[at] != pieces.index[at - 1] + pieces.first[at] - pieces.first[at - 1]:
        before = pieces.index[at - 1] + pieces.stop[at - 1] - pieces.first[at - 1] - 1
        detail += f", the one before {before}"
    subject.tally.add(INDEX, "", f"{detail}; {_rows(pieces, wrong)}", _numbers(subject, places, wrong))


def check_frame_index(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Look whether frame_index counts each episode's rows from 0 on."""
    owner = places.of_piece
    right = pieces.first - of_owner(places.first, owner)
    wrong = (owner >= 0) & (pieces.frame != right)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        detail = f"row {pieces.first[at]} has frame_index {pieces.frame[at]}, where {right[at]} is right"
        subject.tally.add(FRAME, "", f"{detail}; {_rows(pieces, wrong)}", _numbers(subject, places, wrong))


def check_episode_index(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Look whether the rows of an episode bear its number."""
    owner = places.of_piece
    right = of_owner(subject.episodes.number, owner)
    wrong = (owner >= 0) & (pieces.episode != right)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        detail = f"row {pieces.first[at]} has episode_index {pieces.episode[at]}, it lies in episode {right[at]}"
        subject.tally.add(EPISODE, "", f"{detail}; {_rows(pieces, wrong)}", _numbers(subject, places, wrong))


def check_timestamps(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Look whether the timestamp of each row is a multiple of 1 / fps, and that of its own step."""
    owner, fps = places.of_piece, subject.info.fps
    is_known = owner >= 0
    off_grid = is_known & (pieces.off_grid > TOLERANCE_SECONDS)
    if off_grid.any():
        worst = float(pieces.off_grid[is_known].max())
        detail = f"timestamps up to {worst:.2g} s beside a multiple of 1/{fps:g} s (tolerance {TOLERANCE_SECONDS:g} s)"
        subject.tally.add(OFF_GRID, "", detail, _numbers(subject, places, off_grid))
    begin = of_owner(places.first, owner)
    late = np.maximum(np.abs(pieces.late_low + begin), np.abs(pieces.late_high + begin))
    shifted = is_known & (late > HALF_STEP) & np.isfinite(late)
    if shifted.any():
        at = int(np.flatnonzero(shifted)[0])
        detail = f"timestamps up to {late[at] / fps:.3g} s beside frame_index / fps, from row {pieces.first[at]} on"
        subject.tally.add(SHIFTED, "", detail, _numbers(subject, places, shifted))


def check_task_index(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Look whether each task_index names a task."""
    wrong = (pieces.num_bad_tasks > 0) & _is_looked_at(subject, places)
    if wrong.any():
        num_rows = int(pieces.num_bad_tasks[wrong].sum())
        first = int(pieces.first[wrong][0])
        detail = (
            f"{num_rows:,} rows from {first} on have a task_index that is no task's; there are {_num_tasks(subject)}"
        )
        subject.tally.add(TASK, "", detail, _numbers(subject, places, wrong))


def check_short_episodes(subject: Subject, pieces: Pieces, places: Places) -> None:
    """Look for episodes of a single step."""
    length = places.length
    found = np.flatnonzero((length > 0) & (length < SHORTEST_STEPS))
    if len(found):
        detail = f"fewer than {SHORTEST_STEPS} steps"
        subject.tally.add(SHORT, "", detail, subject.episodes.number[found])


TABLE_CHECKS = (
    check_index,
    check_frame_index,
    check_episode_index,
    check_timestamps,
    check_task_index,
    check_short_episodes,
)


def _is_looked_at(subject: Subject, places: Places) -> npt.NDArray[np.bool_]:
    """Return which pieces are looked at: all, or those of the chosen episodes."""
    return (places.of_piece >= 0) | (subject.chosen is None)


def _num_tasks(subject: Subject) -> int:
    return len(subject.tasks or ())


def _rows(pieces: Pieces, wrong: npt.NDArray[np.bool_]) -> str:
    count = int((pieces.stop - pieces.first)[wrong].sum())
    return f"{count:,} such rows" if count > 1 else "it alone"


def _numbers(subject: Subject, places: Places, wrong: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the numbers of the episodes of some pieces."""
    owners = np.unique(places.of_piece[wrong])
    return subject.episodes.number[owners[owners >= 0]]
