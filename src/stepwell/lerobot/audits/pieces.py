"""The rows of the data files cut into pieces in which everything counts up by one.

In a sound dataset a piece is an episode: so what is kept of 10^7 rows is a few numbers an episode, and every check of
the index columns is a comparison of pieces.

::

    row             0  1  2  3  4 | 5  6  7  8 | 9 ...
    episode_index   0  0  0  0  0 | 1  1  1  1 | 2
    frame_index     0  1  2  3  4 | 0  1  2  3 | 0
    index           0  1  2  3  4 | 5  6  7  8 | 9       cut where one of these does not go on, and where the table of
                                                         episodes says that one begins or ends
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.lerobot.audits.info import problem_of
from stepwell.lerobot.audits.rows import UNREADABLE, DataFile
from stepwell.lerobot.audits.subject import Subject
from stepwell.lerobot.info import INDEX_FEATURES

__all__ = ["Pieces", "episode_cuts", "pieces_of"]

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Runs of rows in which episode_index stays, and frame_index and index count up by one.

    Args:
        file: int64 [P], number of the data file.
        first: int64 [P], position of its first row in the dataset.
        stop: int64 [P], half-open.
        episode: int64 [P], episode_index of its rows.
        frame: int64 [P], frame_index of its first row.
        index: int64 [P], index of its first row.
        late_low: float64 [P], least of timestamp times fps minus the position, in steps.
        late_high: float64 [P], greatest.
        off_grid: float64 [P], seconds by which a timestamp lies beside a multiple of 1 / fps, at most.
        num_bad_tasks: int64 [P], rows whose task_index is no task's.
    """

    file: Integers
    first: Integers
    stop: Integers
    episode: Integers
    frame: Integers
    index: Integers
    late_low: Floats
    late_high: Floats
    off_grid: Floats
    num_bad_tasks: Integers

    def __len__(self) -> int:
        return len(self.first)

    @classmethod
    def joined(cls, parts: Sequence[Pieces]) -> Pieces:
        """Return the pieces of all files."""
        if not parts:
            whole, real = np.empty(0, np.int64), np.empty(0)
            return cls(whole, whole, whole, whole, whole, whole, real, real, real, whole)
        columns: Any = (np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__)
        return cls(*columns)


def episode_cuts(subject: Subject) -> Integers:
    """Return the positions of the dataset where its table says that episodes begin and end, int64 [C], ascending."""
    return np.union1d(subject.episodes.first, subject.episodes.stop)


def pieces_of(data: DataFile, subject: Subject, cuts: Integers) -> Pieces | None:
    """Return the pieces of a file; None where it cannot be read or has no rows.

    Args:
        data: the file.
        subject: what is audited.
        cuts: of `episode_cuts`.
    """
    try:
        columns = {name: data.numbers(name, subject.info) for name in INDEX_FEATURES}
    except FormatError as error:
        subject.tally.add(UNREADABLE, data.path, problem_of(error), data.episodes)
        return None
    except ValueError:  # the check of the columns' types and shapes tells it
        return None
    episode = _whole(columns["episode_index"])
    if episode is None or not data.num_rows:
        return None
    position = data.first + np.arange(data.num_rows)
    index, frame = _whole(columns["index"]), _whole(columns["frame_index"])
    index = position if index is None else index
    frame = _counted(episode) if frame is None else frame
    is_cut = (np.diff(episode) != 0) | (np.diff(frame) != 1) | (np.diff(index) != 1)
    inner = cuts[(cuts > data.first) & (cuts < data.first + data.num_rows)] - data.first
    starts = np.union1d(np.append(np.flatnonzero(is_cut) + 1, 0), inner)
    time = columns["timestamp"]
    late, off_grid = _lateness(frame / subject.info.fps if time is None else time[:, 0], position, subject.info.fps)
    is_bad_task = _is_no_task(_whole(columns["task_index"]), subject, data.num_rows)
    return Pieces(
        file=np.full(len(starts), data.number),
        first=position[starts],
        stop=np.append(position[starts[1:]], data.first + data.num_rows),
        episode=episode[starts],
        frame=frame[starts],
        index=index[starts],
        late_low=np.minimum.reduceat(late, starts),
        late_high=np.maximum.reduceat(late, starts),
        off_grid=np.maximum.reduceat(off_grid, starts),
        num_bad_tasks=np.add.reduceat(is_bad_task, starts),
    )


def _is_no_task(task: Integers | None, subject: Subject, num_rows: int) -> Integers:
    """Return 1 for each row whose task_index names no task."""
    if task is None or subject.tasks is None:
        return np.zeros(num_rows, np.int64)
    known = range(len(subject.tasks)) if subject.info.is_v3 else [number for number, _ in subject.tasks]
    return np.isin(task, np.array(known, np.int64), invert=True).astype(np.int64)


def _whole(column: npt.NDArray[Any] | None) -> Integers | None:
    """Return a column of whole numbers; what is missing becomes a number that nothing is equal to."""
    if column is None:
        return None
    values = column[:, 0]
    if values.dtype.kind == "f":
        values = np.where(np.isfinite(values), values, np.iinfo(np.int32).min)
    whole: Integers = values.astype(np.int64)
    return whole


def _counted(episode: Integers) -> Integers:
    """Return the number of each row in its run of equal values."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(episode)) + 1])
    counted: Integers = np.arange(len(episode)) - np.repeat(starts, np.diff(np.append(starts, len(episode))))
    return counted


def _lateness(time: npt.NDArray[Any], position: Integers, fps: float) -> tuple[Floats, Floats]:
    """Return timestamps in steps, minus the position; and by how many seconds they are beside the grid."""
    seconds = time.astype(np.float64)
    # what a float of the column's type cannot tell apart is no fault
    resolution = np.spacing(np.abs(time)).astype(np.float64) if time.dtype.kind == "f" else np.zeros(len(time))
    steps = seconds * fps
    off_grid = np.maximum(np.abs(steps - np.round(steps)) / fps - resolution, 0)
    is_known = np.isfinite(steps)
    return np.where(is_known, steps - position, np.inf), np.where(is_known, off_grid, np.inf)
