"""In which store episodes were first written: with that and their ``origin``, an episode is told from all others.

``origin`` alone is an id of that store, and two stores that were recorded alike have the same ones. Episodes were first
written in the store that holds them, unless its ``store.json`` says otherwise: a concatenation and a conversion hold
episodes of others, and compaction of such a store moves them::

    "births": [[0, 0, "c0ffee..."],       from record 0 of the segment with ordinal 0 on: episodes of that store
               [2, 7, "beef..."],         from its record 7 on: of that one
               [5, 0, "abcd..."]]         what is recorded from here on: of the store itself
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from stepwell.store.ids import MAX_ROWS, step_id
from stepwell.store.records import Birth, StoreRecord

__all__ = ["BirthLog", "births_of", "runs_of"]

Int64s = npt.NDArray[np.int64]


class BirthLog:
    """Collect the entries of a store's ``births``.

    Args:
        own: the store's uuid.
    """

    def __init__(self, own: str) -> None:
        self._own = own
        self._entries: list[Birth] = []

    @classmethod
    def continued(cls, record: StoreRecord, there: Int64s) -> BirthLog:
        """Return the log of a store, without entries that no segment needs any more.

        Args:
            record: of the store.
            there: int64 [n], ordinals of its segments.
        """
        log = cls(record.uuid)
        there = np.sort(there)
        ends = [*record.births[1:], (MAX_ROWS, 0, "")]
        for (ordinal, first, uuid), (last, until, _) in zip(record.births, ends, strict=bool(record.births)):
            # segments of others are all made already; of the store's own any may be yet to come
            stop = last + (until > 0)
            if uuid == record.uuid or np.searchsorted(there, ordinal) < np.searchsorted(there, stop):
                log.add(ordinal, [(first, uuid)])
        return log

    def add(self, ordinal: int, runs: Iterable[tuple[int, str]]) -> None:
        """Take note of a segment, after all with smaller ordinals.

        Args:
            ordinal: of the segment.
            runs: the record at which each run of episodes of one store begins, and that store's uuid.
        """
        for first, uuid in runs:
            if self._entries and self._entries[-1][:2] == (ordinal, first):
                # what was to be recorded from there on
                self._entries.pop()
            if uuid != (self._entries[-1][2] if self._entries else self._own):
                self._entries.append((ordinal, first, uuid))

    def end(self, ordinal: int) -> tuple[Birth, ...]:
        """Return the entries; segments from an ordinal on are to be recorded in the store itself."""
        self.add(ordinal, [(0, self._own)])
        return tuple(self._entries)


def births_of(record: StoreRecord, ordinals: Int64s, records: Int64s) -> tuple[list[str], Int64s]:
    """Return in which store episodes were first written.

    Args:
        record: of the store that holds them.
        ordinals: int64 [n], of each episode's segment.
        records: int64 [n], its number in that segment.

    Returns:
        Uuids, and for each episode the number of its own among them, int64 [n].
    """
    known = {uuid: number for number, uuid in enumerate(dict.fromkeys([record.uuid, *(b[2] for b in record.births)]))}
    uuids = list(known)
    if not record.births:
        return uuids, np.zeros(len(ordinals), np.int64)
    numbers = np.array([0, *(known[uuid] for _, _, uuid in record.births)], np.int64)
    firsts = np.array([step_id(ordinal, first) for ordinal, first, _ in record.births], np.int64)
    return uuids, numbers[np.searchsorted(firsts, step_id(ordinals, records), side="right")]


def runs_of(parts: Sequence[tuple[StoreRecord, int, npt.ArrayLike]]) -> list[tuple[int, str]]:
    """Return where runs of episodes of one store begin in a segment that is made of parts of others.

    Args:
        parts: of each, the record of the store that it comes from, the ordinal of its segment there, and the numbers of
            its episodes' records there, int64 [n].
    """
    runs: list[tuple[int, str]] = []
    done = 0
    for record, ordinal, given in parts:
        places = np.asarray(given, np.int64)
        uuids, numbers = births_of(record, np.full(len(places), ordinal, np.int64), places)
        heads = np.flatnonzero(np.diff(numbers, prepend=-1))
        runs += [
            (done + head, uuids[number]) for head, number in zip(heads.tolist(), numbers[heads].tolist(), strict=True)
        ]
        done += len(places)
    return runs
