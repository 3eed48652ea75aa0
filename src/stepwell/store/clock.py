"""The clock of a ring, which all its writers share: when each row was appended, so that the oldest go first.

::

    segments/00000003-7f3a/clock.stamps    int64 [rows], a .npy file: nanoseconds since 1970, never falling
    clock                                  int64, mapped by every writer: the last stamp that any of them gave

A stamp is the time, but more than the last one: a clock of the system that is set back makes no new step an old one.
Two writers that take a stamp at the same moment may take the same one, no more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.files.local_files import map_descriptor
from stepwell.schema import Schema
from stepwell.store.beneath import open_file
from stepwell.store.column_file import reserve
from stepwell.store.layout import OPEN_SUFFIX, SEGMENTS, STORE_CLOCK, locked_store
from stepwell.store.manifests import shown_segments
from stepwell.store.segments import Segment

__all__ = ["LATEST", "RingClock", "stamps_of_records"]

Int64s = npt.NDArray[np.int64]
NUM_BYTES = 8
LATEST = 1 << 62
"""Stamps are less, unless they are damaged: it is in the year 2116."""
# of steps that are as new as can be, but not more than the kernel's largest number
NEWEST = (1 << 63) - 2


class RingClock:
    """Give stamps that grow, in any number of threads and processes of a ring."""

    __slots__ = ("_words",)

    def __init__(self, store: str, schema: Schema) -> None:
        path = f"{store}/{STORE_CLOCK}"
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            with locked_store(store):
                reserve(descriptor, NUM_BYTES, path)
                self._words = map_descriptor(descriptor, NUM_BYTES, writable=True).data.cast("q")
                if not 0 < self._words[0] < LATEST:
                    self._words[0] = max(_newest_stamps(store, schema), default=0)
        finally:
            os.close(descriptor)

    def next(self, after: int, count: int = 1) -> int:
        """Return the first of ``count`` stamps that follow each other, all larger than ``after``."""
        words = self._words
        now, last = time.time_ns(), words[0]
        last = max(last, after)
        first = now if now > last else last + 1
        words[0] = first + count - 1
        return first


def _newest_stamps(store: str, schema: Schema) -> Iterator[int]:
    """Yield the newest stamp of each segment that has one."""
    for name, (_, is_sealed) in shown_segments(store)[0].items():
        # a damaged one must not prevent recording
        with suppress(FileNotFoundError, CorruptSegmentError):
            segment = Segment(f"{store}/{SEGMENTS}/{name}{'' if is_sealed else OPEN_SUFFIX}", schema)
            clock, num_rows = segment.clock_map(), segment.num_rows
            stamps = segment.records["time_ns"] if clock is None else clock[max(num_rows - 1, 0) : num_rows]
            if len(stamps) and stamps[-1] < LATEST:
                yield int(stamps[-1])


def stamps_of_records(records: npt.NDArray[np.void], num_rows: int) -> Int64s:
    """Return stamps, int64 [num_rows], for a segment that has none: the times at which the rows' episodes ended."""
    stamps = np.full(num_rows, NEWEST, np.int64)
    if len(records):
        ended = int(records["start"][-1] + records["rows"][-1])
        stamps[:ended] = np.repeat(np.maximum.accumulate(records["time_ns"]), records["rows"])
    return stamps
