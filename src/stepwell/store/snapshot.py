"""What one refresh of a store saw, and the table of episodes that follows from it."""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.store.deletion import hidden_steps
from stepwell.store.episodes import EPISODE_DTYPE, GOES_ON, MAX_SKIPPED, EpisodeTable, num_ended_rows
from stepwell.store.ids import step_id
from stepwell.store.layout import ordinals_of_keys
from stepwell.store.segment_list import SegmentList
from stepwell.store.segments import Segment

__all__ = ["MetadataLines", "Snapshot", "columns_of"]

Records = npt.NDArray[Any]
MAX_SEGMENTS = 64


class MetadataLines:
    """The metadata of the episodes of the segments that were asked last."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()

    def read(self, segment: Segment, record: int) -> dict[str, Any]:
        """Return the metadata of an episode by its record's number; none of one that is being recorded."""
        if record >= len(segment.records):
            return {}
        lines = self._lines.get(segment.name)
        if lines is None or len(lines) <= record:
            lines = self._lines[segment.name] = segment.metadata_lines()
            while len(self._lines) > MAX_SEGMENTS:
                self._lines.popitem(last=False)
        return lines[record]


class Snapshot:
    """The segments of a store at one moment; whatever they grow by later is not in its table.

    Args:
        segments: in their order.
        deleted: int64 [n], see `stepwell.store.deletion`.
        metadata: what reads it.
        first_rows: int64 [S], of a ring: rows of each segment before that are not shown. None: all are.

    Notes:
        The table is made when it is first asked for: who follows a store only by its segments pays nothing an episode.
        Costs a few words a segment that is being recorded; sealed ones do not change.
    """

    def __init__(
        self,
        segments: SegmentList,
        deleted: npt.NDArray[np.int64],
        metadata: MetadataLines,
        first_rows: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.segments = segments
        self._deleted, self._first_rows = deleted, first_rows
        self._metadata = metadata
        self._live = {
            number: (segment.records, segment.num_rows) for number, segment in segments.open if not segment.is_sealed
        }

    @cached_property
    def table(self) -> EpisodeTable:
        """All shown episodes, the open ones of live segments included."""
        # neither the store nor this is held by a table: both are to go when nobody needs them
        segments, metadata = self.segments, self._metadata
        records, counts, opened = self._records()
        segment_of = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        is_open = np.zeros(len(records), bool)
        is_open[opened] = True
        table = EpisodeTable(
            segment=segment_of,
            **columns_of(records),
            is_open=is_open,
            record=np.arange(len(records)) - (np.cumsum(counts) - counts)[segment_of],
            read_metadata=lambda segment, record: metadata.read(segments[segment], record),
        )
        hidden = records["discarded"].copy()
        if len(self._deleted):
            ordinals = ordinals_of_keys(segments.keys)
            is_deleted, gone = hidden_steps(step_id(ordinals[segment_of], table.start), table.length, self._deleted)
            hidden |= is_deleted
            if gone.any():
                _trim(table, gone)
        if self._first_rows is not None and self._first_rows.any():
            hidden |= _trim(table, np.clip(self._first_rows[segment_of] - table.start, 0, table.length))
        return table.take(~hidden) if hidden.any() else table

    def _records(self) -> tuple[Records, npt.NDArray[np.int64], list[int]]:
        """Return the records of all segments, how many each has, and which are of episodes that are being recorded."""
        own: dict[int, Records] = {}
        is_opened = np.zeros(len(self.segments), np.bool_)
        for number, (records, num_rows) in self._live.items():
            ended = num_ended_rows(records)
            own[number] = records
            if num_rows > ended:
                opened = _open_record(self.segments[number], records, num_rows)
                own[number] = np.frombuffer(records.tobytes() + opened, EPISODE_DTYPE)
                is_opened[number] = True
        records, counts = self.segments.records(own)
        return records, counts, (np.cumsum(counts)[is_opened] - 1).tolist()


def columns_of(records: Records) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of an `EpisodeTable` that follow from episodes' records, as arrays of their own."""
    names = ("start", "length", "rows", "origin", "time_ns", "terminated", "truncated", "interrupted")
    return {
        **{name: records[name].copy() for name in names},
        "skipped": (records["cut"] & MAX_SKIPPED).astype(np.int64),
        "goes_on": (records["cut"] & GOES_ON) != 0,
    }


def _open_record(segment: Segment, records: Records, num_rows: int) -> bytes:
    """Return the record that the episode after those of ``records`` would have if it ended now."""
    start = num_ended_rows(records)
    length = num_rows - start
    record = np.zeros((), EPISODE_DTYPE)
    record["start"], record["length"], record["rows"] = start, length, length
    record["cut"], record["origin"] = segment.next_piece(records)
    return record.tobytes()


def _trim(table: EpisodeTable, gone: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Let episodes begin so many steps (int64 [E]) later; returns which of them have no step left.

    The columns of the table, of a snapshot in the making, are changed.
    """
    table.start[...] += gone
    table.length[...] -= gone
    table.rows[...] -= gone
    table.skipped[...] += gone
    is_gone: npt.NDArray[np.bool_] = (table.length == 0) & (gone > 0)
    return is_gone
