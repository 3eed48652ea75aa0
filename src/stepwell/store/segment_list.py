"""The segments of a snapshot: a sequence whose members are made when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from stepwell.schema import Schema
from stepwell.store.beneath import check_directory
from stepwell.store.episodes import EPISODE_DTYPE
from stepwell.store.layout import SEGMENTS, key_of_name, name_of_key
from stepwell.store.segment_table import SegmentTable
from stepwell.store.segments import Segment

__all__ = ["SegmentList", "keys_of"]

Int64s = npt.NDArray[np.int64]


class SegmentList(Sequence[Segment]):
    """Segments in their order, as they were at one moment.

    Args:
        store: path of the store.
        schema: its features; None: there are no segments.
        keys: int64 [S], of the segments.
        own: segments by key that were read for themselves.
        table: of the others.
        made: segments of the table by key that were made before; what is made here is added.

    Notes:
        Safe to share between threads: of two that ask for a segment at once both get the same.
    """

    def __init__(  # noqa: PLR0917
        self,
        store: str,
        schema: Schema | None,
        keys: Int64s,
        own: Mapping[int, Segment],
        table: SegmentTable,
        made: dict[int, Segment],
    ) -> None:
        self.keys = keys
        self._store, self._schema, self._own, self._table, self._made = store, schema, own, table, made
        self._places = table.find(keys)
        # whose directories were found to be none of somebody else's
        self._checked: set[int] = set()
        if own:
            self._places[np.isin(keys, np.fromiter(own, np.int64, len(own)))] = -1
        # numbers and segments that were not sealed when this was made
        self.open = [(number, segment) for number, segment in self.own if not segment.is_sealed]

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        key = int(self.keys[index])
        found = self._own.get(key) or self._made.get(key)
        return self._make(key, int(self._places[index])) if found is None else found

    def __iter__(self) -> Iterator[Segment]:
        return (self[number] for number in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return False
        return all(mine is its for mine, its in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))

    @property
    def own(self) -> Iterator[tuple[int, Segment]]:
        """The segments that were read for themselves, each with its number."""
        for number in np.flatnonzero(self._places < 0).tolist():
            yield number, self._own[int(self.keys[number])]

    def directory(self, index: int) -> str:
        """Return the path of a segment's directory, without making the segment.

        Raises:
            FileNotFoundError: it is not there.
            CorruptSegmentError: it is a link.
        """
        key = int(self.keys[index])
        own = self._own.get(key)
        directory = f"{self._store}/{SEGMENTS}/{name_of_key(key)}" if own is None else own.path
        if key not in self._checked:
            check_directory(directory)
            self._checked.add(key)
        return str(directory)

    def records(self, own: Mapping[int, npt.NDArray[Any]] | None = None) -> tuple[npt.NDArray[Any], Int64s]:
        """Return the records of all segments, one segment after the other.

        Args:
            own: by number, records that stand for those of a segment that was read for itself.

        Returns:
            `EPISODE_DTYPE` [E], and how many each segment has, int64 [S].
        """
        table, places = self._table, self._places
        counts = np.zeros(len(self), np.int64)
        is_known = places >= 0
        known = places[is_known]
        counts[is_known] = table.ends[known] - table.starts[known]
        given = own or {}
        mine = {number: given.get(number, segment.records) for number, segment in self.own}
        numbers = np.fromiter(mine, np.int64, len(mine))
        counts[numbers] = [len(records) for records in mine.values()]
        if not (np.diff(self.keys) > 0).all():
            # those of their own stand anywhere among the others: all at once
            starts = np.zeros(len(self), np.int64)
            starts[is_known] = table.starts[known]
            starts[numbers] = len(table.records) + np.cumsum(counts[numbers]) - counts[numbers]
            return _gathered(_joined([table.records, *mine.values()]), starts, counts), counts
        parts: list[npt.NDArray[Any]] = []
        done = 0
        for number, records in mine.items():
            parts += [_run_of(table, places[done:number]), records]
            done = number + 1
        parts.append(_run_of(table, places[done:]))
        return _joined([part for part in parts if len(part)]), counts

    def _make(self, key: int, place: int) -> Segment:
        assert self._schema is not None
        directory = f"{self._store}/{SEGMENTS}/{name_of_key(key)}"
        segment = Segment(directory, self._schema, records=self._table.records_at(place))
        return self._made.setdefault(key, segment)


def keys_of(segments: Sequence[Any]) -> Int64s:
    """Return the keys of segments, int64 [S]."""
    if isinstance(segments, SegmentList):
        return segments.keys
    found = (key_of_name(segment.name) for segment in segments)
    return np.array([-1 if key is None else key for key in found], np.int64)


def _run_of(table: SegmentTable, places: Int64s) -> npt.NDArray[Any]:
    """Return the records of segments of a table, which mostly lie one after the other."""
    if len(places) == 0:
        return table.records[:0]
    starts, ends = table.starts[places], table.ends[places]
    if (starts[1:] == ends[:-1]).all():
        return table.records[starts[0] : ends[-1]]
    return _gathered(table.records, starts, ends - starts)


def _gathered(records: npt.NDArray[Any], starts: Int64s, counts: Int64s) -> npt.NDArray[Any]:
    """Return runs of records, one after the other."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    # as plain bytes: numpy copies structured entries field by field
    rows = records.view(f"V{EPISODE_DTYPE.itemsize}")[within + np.repeat(starts, counts)]
    found: npt.NDArray[Any] = rows.view(EPISODE_DTYPE)
    return found


def _joined(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    # joined as bytes: numpy compares the fields of structured arrays one by one before it concatenates them
    joined = b"".join(np.ascontiguousarray(part).view(np.uint8).data for part in parts)
    return np.frombuffer(joined, EPISODE_DTYPE)
