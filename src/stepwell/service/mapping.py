"""The files of a server's store, as a client of the same host maps them: windows at the places that the server drew.

::

    PLACES    {"segments": [[ordinal, name], ...]}    those that came since the last message; {"gone": [ordinal, ...]}
                        chained.*  pieces of episodes           where windows leave the piece that their anchor is in
        | check: every row that a window may reach is there, in files of this store
        v
    PlaceReader, as a ReplayLoader has it

What a server says is checked before anything is read: ordinals are of segments of this store, and rows are among those
that their writers have committed, as this process sees it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, SegmentGoneError, ServiceError
from stepwell.kernels.places import (
    CHAIN,
    CHAIN_COLUMNS,
    CHAIN_SEGMENT,
    CHAIN_START,
    CHAIN_STEP,
    EPISODE,
    HI_FINAL,
    OUTER_FINAL,
    OUTER_LO,
    OUTER_ROWS,
    PLACE_ROWS,
    ROW,
    SEGMENT,
)
from stepwell.replay.history import computed_of
from stepwell.store import Segment, Store
from stepwell.store.layout import OPEN_SUFFIX, SEGMENTS, parse_segment_name
from stepwell.windows.chains import Chained, located

__all__ = ["MappedStore", "place_columns"]

Int64s = npt.NDArray[np.int64]
# columns of a message that are not a feature's rows; no name of a feature has such a sign
PLACES, CHOSEN, AT, PIECES = "places:", "places:chosen", "places:at", "places:pieces"
FIRST_SEGMENTS = 64
NOTHING = np.empty(0, np.int64)
# more than any episode has
MOST_STEPS = 1 << 48


def place_columns(
    places: Int64s,
    chained: Chained | None,
    ordinals: Int64s,
    reach: tuple[int, int],
    clues: Int64s | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of places, with ordinals for the numbers of segments.

    Args:
        places: int64 [6 or 9, n].
        chained: the anchors whose windows leave their piece, or None.
        ordinals: int64 [S], of the segments by number.
        reach: the first and last offset of any window.
        clues: of `History.clues`, where computed columns are read.
    """
    named = places.copy()
    if clues is not None:
        named[EPISODE] = clues
    named[SEGMENT] = ordinals[places[SEGMENT]]
    if chained is None:
        return {PLACES: named}
    pieces, at = chained.pieces, chained.at
    is_sent = np.zeros(len(pieces), np.bool_)
    for first, last in set(zip(*(each.tolist() for each in _reached(chained, places, reach)), strict=True)):
        is_sent[first : last + 1] = True
    sent = np.flatnonzero(is_sent)
    found = pieces[sent]
    # each run of pieces is one by itself: what is between two of them is not read
    goes_on = (np.diff(sent) == 1) & (np.diff(found[:, CHAIN]) == 0)
    found[:, CHAIN] = np.cumsum(np.append(0, ~goes_on))
    found[:, CHAIN_SEGMENT] = ordinals[found[:, CHAIN_SEGMENT]]
    return {PLACES: named, CHOSEN: chained.chosen, AT: np.searchsorted(sent, at), PIECES: found}


def _reached(chained: Chained, places: Int64s, reach: tuple[int, int]) -> list[Int64s]:
    """Return the first and the last piece that each window reaches."""
    row, lo, final = places[ROW, chained.chosen], places[OUTER_LO, chained.chosen], places[OUTER_FINAL, chained.chosen]
    keys = chained.keys
    return [located(chained.pieces, keys, chained.at, np.clip(row + offset, lo, final - 1))[0] for offset in reach]


class MappedStore:
    """The segments of a store that a server's messages name: a source of places, see `stepwell.windows.sources`.

    Args:
        path: of the store, opened for reading only.
        uuid: that it must have.

    Raises:
        ServiceError: it is another store.

    Notes:
        `take_in` and `checked` are for one thread at a time, in the order of the messages; places that were checked may
        be read meanwhile.
    """

    is_live, chains = True, None

    def __init__(self, path: str, uuid: str) -> None:
        from stepwell.kernels.locate import number_places

        # bound once: an import statement would cost as much as the kernel's call
        self._number = number_places
        self.store = Store(path, "r")
        if self.store.uuid != uuid:
            found = self.store.uuid
            self.store.close()
            raise ServiceError(f"the store at {path} is {found}, and the server has {uuid}.")
        self.stores = (self.store,)
        self.is_ring = self.store.capacity is not None
        self.segments: list[Any] = []
        self.revision = 0
        self._is_begun = False
        self._names: dict[str, int] = {}
        self._lanes: dict[int, Segment] = {}
        # ordinals that are known, ascending, and the number of each one's segment
        self._ordinals = self._numbers = np.empty(0, np.int64)
        self._rows = np.zeros(FIRST_SEGMENTS, np.int64)

    @property
    def segment_stores(self) -> Int64s:
        """Number of the store of each segment, int64 [S]: 0."""
        return np.zeros(len(self.segments), np.int64)

    @property
    def need_rows(self) -> Int64s:
        """Rows of each segment that may be read, int64 [S]; 0 for one that went."""
        return self._rows[: len(self.segments)]

    def describe(self, segment: int, row: int) -> str:
        """Return the store's path, segment and row, for people."""
        return f"{self.store.path}: row {row} of segment {getattr(self.segments[segment], 'name', 'that is gone')}"

    def compute(self, name: str, places: Int64s, rows: Int64s) -> npt.NDArray[Any]:
        """Return a computed column; see `stepwell.windows.sources.PlaceSource`. Places have clues for episodes."""
        return computed_of(places[EPISODE], name, places[-2] - 1, rows, self.store.fps)

    # what messages say

    def begin(self) -> None:
        """Expect a message that names all segments: the first one of a connection."""
        self._is_begun = False

    def take_in(self, head: Mapping[str, Any]) -> None:
        """Take note of segments that came and went."""
        came, gone = head.get("segments", ()), head.get("gone", ())
        if not came and not gone:
            return
        known = dict(zip(self._ordinals.tolist(), self._numbers.tolist(), strict=True))
        try:
            if not self._is_begun:
                self._is_begun = True
                for ordinal in set(known) - {ordinal for ordinal, _ in came}:
                    self._drop(known.pop(ordinal))
            for ordinal, name in came:
                parsed = parse_segment_name(name)
                if parsed is None or not parsed[2] or parsed[0] != ordinal:
                    raise ValueError
                if name not in self._names:
                    if ordinal in known:
                        self._drop(known[ordinal])
                    self._add(name)
                known[ordinal] = self._names[name]
            for ordinal in gone:
                self._drop(known.pop(ordinal))
        except (TypeError, ValueError, KeyError, IndexError):
            raise ServiceError(f"segments {came!r:.100}, {gone!r:.100} gone, are none of a store's.") from None
        self.revision += 1
        self._ordinals = np.array(sorted(known), np.int64)
        self._numbers = np.array([known[ordinal] for ordinal in sorted(known)], np.int64)

    def _add(self, name: str) -> None:
        number = len(self.segments)
        if number == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros(number, np.int64)])
        segment = self._open(name)
        self._names[name] = number
        if segment is not None:
            self._rows[number] = segment.num_rows
            if segment.has_lanes:
                self._lanes[number] = segment
        self.segments.append(segment)

    def _drop(self, number: int) -> None:
        self._names = {name: other for name, other in self._names.items() if other != number}
        self._lanes.pop(number, None)
        self.segments[number] = None
        self._rows[number] = 0

    def _open(self, name: str) -> Segment | None:
        """Return a segment; None where a ring has come round to it already: a read of its rows says so."""
        schema = self.store.schema
        if schema is None:
            self.store.refresh()
            schema = self.store.schema
        assert schema is not None
        path = f"{self.store.path}/{SEGMENTS}/{name}"
        for directory in (path, f"{path}{OPEN_SUFFIX}", path):
            if os.path.lexists(directory):
                try:
                    return Segment(directory, schema)
                except (SegmentGoneError, FileNotFoundError):
                    continue
        return None

    def checked(
        self, columns: Mapping[str, npt.NDArray[Any]], count: int, reach: tuple[int, int]
    ) -> tuple[Int64s, Chained | None]:
        """Return the places of a message with numbers of segments here, and the anchors whose windows leave a piece.

        Args:
            columns: of the message.
            count: rows that were asked for.
            reach: the first and last offset of any window.

        Raises:
            ServiceError: places that are none, or beyond what is committed in this store's files.
            LoaderError: of a segment that is gone, with a FileNotFoundError as its cause.
        """
        places = columns.get(PLACES)
        if places is None or places.dtype != np.int64 or places.shape not in {(PLACE_ROWS, count), (OUTER_ROWS, count)}:
            raise ServiceError(f"a batch without places of {count} rows.")
        # the message is read-only
        places = places.copy()
        while (bad := self._number(places, self._ordinals, self._numbers, self._rows)) >= 0:
            self._grow_to(int(places[SEGMENT, bad]), int(places[HI_FINAL, bad]), places[:, bad])
        if self._lanes:
            self._check_lanes(places[SEGMENT], places[HI_FINAL])
        if PIECES not in columns:
            if len(places) == OUTER_ROWS:
                self._check_outer(places, np.ones(count, np.bool_))
            return places, None
        return places, self._checked_pieces(columns, places, reach)

    def _grow_to(self, ordinal: int, need: int, what: Int64s | tuple[int, ...]) -> None:
        """Take in rows that were committed since; raise where there are not so many."""
        at = int(np.searchsorted(self._ordinals, ordinal))
        if at < len(self._ordinals) and self._ordinals[at] == ordinal:
            number = int(self._numbers[at])
            segment = self.segments[number]
            if segment is None:
                raise self._gone(ordinal)
            try:
                segment.refresh()
            except (SegmentGoneError, FileNotFoundError) as error:
                raise self._gone(ordinal) from error
            if segment.num_rows > self._rows[number]:
                self._rows[number] = segment.num_rows
                if segment.has_lanes:
                    self._lanes[number] = segment
                if segment.num_rows >= need:
                    return
        raise ServiceError(
            f"the server's places are beyond what is stored: {np.asarray(what).tolist()!r:.200}, and {self.store.path} "
            "does not have these rows."
        )

    def _gone(self, ordinal: int) -> LoaderError:
        error = LoaderError(f"{self.store.path}: segment {ordinal} is gone. Sample again.")
        error.__cause__ = SegmentGoneError(f"segment {ordinal} of {self.store.path} is gone.")
        return error

    def _check_lanes(self, segments: Int64s, stops: Int64s) -> None:
        """Look whether rows of segments that environments share were written: their files have room for more."""
        for number, segment in self._lanes.items():
            last = stops[segments == number] - 1
            if len(last) and not segment.lane_marks()[last].all():
                raise ServiceError(f"the server's places are beyond what is stored in segment {segment.name}.")

    def _check_outer(self, places: Int64s, is_plain: npt.NDArray[np.bool_]) -> None:
        """Look at the bounds of whole episodes, where windows do not leave the anchor's piece."""
        lo, step, final = places[OUTER_LO:, is_plain]
        if not ((lo >= 0) & (lo <= step) & (step <= final) & (final <= self._rows[places[SEGMENT, is_plain]])).all():
            raise ServiceError("the server's places have bounds that are none.")

    def _checked_pieces(
        self, columns: Mapping[str, npt.NDArray[Any]], places: Int64s, reach: tuple[int, int]
    ) -> Chained:
        """Return the pieces of episodes that windows reach, with numbers of segments here."""
        count, bad = places.shape[1], ServiceError("the server's places reach beyond the pieces of their episodes.")
        chosen, at, pieces = (columns.get(name, NOTHING) for name in (CHOSEN, AT, PIECES))
        if not (
            len(places) == OUTER_ROWS
            and chosen.dtype == at.dtype == pieces.dtype == np.int64
            and chosen.shape == at.shape == (len(chosen),)
            and pieces.shape == (len(pieces), CHAIN_COLUMNS)
            and _are_below(chosen, count)
            and _are_below(at, len(pieces))
            and len(pieces)
            and _are_below(pieces, 1 << 32)
            and pieces[0, CHAIN] == 0
        ):
            raise bad
        chained = Chained(chosen.copy(), at.copy(), pieces.copy())
        chain, first_steps = pieces[:, CHAIN], pieces[:, CHAIN_STEP]
        goes_on = np.diff(chain) == 0
        row, (lo, stop, final) = places[ROW, chosen], places[OUTER_LO:, chosen]
        if not (
            (np.diff(first_steps)[goes_on] > 0).all()
            and (np.diff(chain)[~goes_on] == 1).all()
            and ((lo <= row) & (row < stop) & (stop <= final)).all()
            and ((lo > -MOST_STEPS) & (final < MOST_STEPS)).all()
        ):
            raise bad
        # every step that is reached lies in a piece of the same run
        shift = first_steps[at] - pieces[at, CHAIN_START]
        reached = [np.clip(row + offset, lo, final - 1) + shift for offset in reach]
        begins = np.flatnonzero(np.append(True, ~goes_on))
        if (reached[0] < first_steps[begins[chain[at]]]).any():
            raise bad
        stops = np.append(first_steps[1:], 0)
        ends = np.append(begins[1:], len(pieces)) - 1
        stops[ends] = first_steps[ends]
        np.maximum.at(stops, ends[chain[at]], reached[1] + 1)
        need = pieces[:, CHAIN_START] + stops - first_steps
        for line, (ordinal, rows) in enumerate(zip(pieces[:, CHAIN_SEGMENT].tolist(), need.tolist(), strict=True)):
            number = self._numbered(ordinal)
            if self._rows[number] < rows:
                self._grow_to(ordinal, rows, (ordinal, rows))
            chained.pieces[line, CHAIN_SEGMENT] = number
        self._check_lanes(chained.pieces[:, CHAIN_SEGMENT], np.maximum(need, 1))
        is_plain = np.ones(count, np.bool_)
        is_plain[chosen] = False
        self._check_outer(places, is_plain)
        return chained

    def _numbered(self, ordinal: int) -> int:
        at = int(np.searchsorted(self._ordinals, ordinal))
        if at == len(self._ordinals) or self._ordinals[at] != ordinal:
            raise ServiceError(f"the server names segment {ordinal}, of which it has not told.")
        return int(self._numbers[at])

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()


def _are_below(values: Int64s, limit: int) -> bool:
    return bool(((values >= 0) & (values < limit)).all())
