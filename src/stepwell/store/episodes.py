"""Episodes: the record of one on disk, and the table of all that a store shows.

``episodes.npy`` of a segment holds one `EPISODE_DTYPE` record an episode, in the order they were written; their rows
follow each other without gaps. ``episodes.jsonl`` holds their free metadata, one JSON object a line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.store.npy import header_bytes

__all__ = [
    "EPISODE_DTYPE",
    "GOES_ON",
    "MAX_SKIPPED",
    "EpisodeTable",
    "check_records",
    "is_episodes_header",
    "num_ended_rows",
]

EPISODE_DTYPE = np.dtype(
    [
        ("start", "<i8"),  # first row in the segment
        ("length", "<i8"),  # steps
        ("rows", "<i8"),  # length, or length + 1 with a final row
        ("origin", "<i8"),  # id of the first step when it was first written
        ("time_ns", "<i8"),  # when it ended, since 1970
        ("terminated", "?"),
        ("truncated", "?"),
        ("interrupted", "?"),  # its writer died before end_episode
        ("discarded", "?"),  # taken back by discard_episode: never shown
        ("cut", "<u4"),  # GOES_ON in another segment; below it: steps written before this piece
    ]
)


# as it was before rings: the last four bytes had no meaning, and are zero
_FIRST_DTYPE = np.dtype([*EPISODE_DTYPE.descr[:-1], ("pad", "V4")])
GOES_ON = 1 << 31
MAX_SKIPPED = GOES_ON - 1


@dataclass(frozen=True, slots=True)
class EpisodeTable:
    """The episodes that a store shows, as columns; memory per episode, never per step.

    Args:
        segment: int32 [E], index into the store's ``segments``.
        start: int64 [E], first row in the segment.
        length: int64 [E], steps.
        rows: int64 [E], length, or length + 1 with a final row.
        origin: int64 [E], id of its first step when it was first written, or what follows from its writer's key; kept
            by compaction and concatenation.
        time_ns: int64 [E], nanoseconds since 1970 when it ended; 0 while open.
        terminated: bool [E].
        truncated: bool [E].
        interrupted: bool [E], its writer died before ``end_episode``.
        is_open: bool [E], still being recorded: length and rows are what is committed.
        record: int64 [E], its place among the segment's records.
        skipped: int64 [E], steps of the episode that lie before ``start``: a ring evicted them, or wrote them into an
            earlier piece. Step 0 of the table's episode is number ``skipped`` of the one that was recorded.
        goes_on: bool [E], a ring cut it here: the rest is another episode of the table, with the same ``origin``.
        read_metadata: from (segment, record) to an episode's metadata.

    Notes:
        An immutable snapshot; safe to share between threads.
    """

    segment: npt.NDArray[np.int32]
    start: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    origin: npt.NDArray[np.int64]
    time_ns: npt.NDArray[np.int64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    interrupted: npt.NDArray[np.bool_]
    is_open: npt.NDArray[np.bool_]
    record: npt.NDArray[np.int64]
    skipped: npt.NDArray[np.int64]
    goes_on: npt.NDArray[np.bool_]
    read_metadata: Callable[[int, int], dict[str, Any]]

    def __len__(self) -> int:
        return len(self.start)

    def metadata(self, index: int) -> dict[str, Any]:
        """Return the free metadata of one episode."""
        return self.read_metadata(int(self.segment[index]), int(self.record[index]))

    def take(self, indices: Any) -> EpisodeTable:
        """Return the table of the chosen episodes: integer indices, a slice or a bool mask."""
        columns = {
            field.name: getattr(self, field.name)[indices] for field in fields(self) if field.name != "read_metadata"
        }
        return replace(self, **columns)


def num_ended_rows(records: npt.NDArray[Any]) -> int:
    """Return how many rows the episodes of a segment's records take: the row at which an open one begins."""
    return int(records["start"][-1] + records["rows"][-1]) if len(records) else 0


def is_episodes_header(head: bytes, num_records: int) -> bool:
    """Whether a file that begins like this is an ``episodes.npy`` of so many records."""
    return any(head == header_bytes(dtype, (), num_records) for dtype in (EPISODE_DTYPE, _FIRST_DTYPE))


def check_records(records: npt.NDArray[Any], segment: str, *, first_row: int = 0) -> None:
    """Refuse episode records that cannot be.

    Args:
        records: all of a segment, or some that follow those checked before.
        segment: its name, for messages.
        first_row: at which the first of them must begin.

    Raises:
        CorruptSegmentError: rows that do not follow each other, or a length that does not fit them.
    """
    if len(records) == 0:
        return
    rows, length, start = records["rows"], records["length"], records["start"]
    ends = rows.cumsum() + first_row
    # few numpy calls: a large store has thousands of segments to open
    misplaced = (
        start[0] != first_row or (start[1:] != ends[:-1]).any() or ((rows | start) >> 32).any() or ends[-1] >> 32
    )
    if misplaced or ((rows - length) & ~1).any() or length.min() < 0:
        raise CorruptSegmentError(
            f"episodes.npy of segment {segment}: the rows of its {len(records)} episodes do not follow each other. "
            'Run "stepwell verify PATH".'
        )
