"""Blocks: the anchors cut into runs that a pool loads, holds and drops as one.

A **block** is a run of consecutive anchors. It consists of **pieces**: runs of anchors whose rows follow each other in
one segment. A piece holds the rows of a column that the windows of its anchors reach, within their episodes::

    episode of 12 steps, offsets -1..2, blocks of 5, 5 and 2 anchors

    anchors     | 0 1 2 3 4 | 5 6 7 8 9 | 10 11 |
    block 0       0 1 2 3 4   5 6                     2 rows of the next
    block 1               4   5 6 7 8 9   10 11       1 of the one before, 2 of the next
    block 2                           9   10 11

An episode that takes more than the target is cut into equal parts. Parts hold at least as much for their own anchors as
for the windows that reach beyond them, so that no row is loaded more than about twice. Episodes that take less are
joined, in the order of the view, also across segments, for as long as the sum stays within the target.

Where a column is sequential, a part is made to begin where the first row that it reaches is a sync row, the nearest
before its equal share: the block before it then loads a few rows from that one on, not a whole run. At least one run
lies between two cuts. With several such columns the one with the largest rows is looked at.

A `RowLoader` decodes the rows of a piece into memory; to the window kernel these are raw rows at another address::

    piece (segment, rows of its anchors)    memory  |image rows......|pad|depth rows....|
      | Reach.rows, for each column                  ^ addresses[0] + first * row_bytes
      | decode, or read past the page cache
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, LoaderError
from stepwell.sizes import counted
from stepwell.windows.chains import outer
from stepwell.windows.decode import Cells, ColumnDecoder, RowError
from stepwell.windows.maps import MapError, MapTable, SegmentMaps
from stepwell.windows.plans import (
    ALIGNMENT,
    PIECE_ANCHOR,
    PIECE_COLUMNS,
    PIECE_FIRST,
    PIECE_HI_FINAL,
    PIECE_HI_STEP,
    PIECE_LAST,
    PIECE_LO,
    PIECE_SEGMENT,
    Reach,
    SyncRows,
    aligned,
    aligned_empty,
)

if TYPE_CHECKING:
    from stepwell.windows.index import AnchorIndex

__all__ = ["Blocks", "HeldRows", "RowLoader", "cut_blocks", "hold_rows", "piece_bytes"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Blocks:
    """How the anchors of a view are cut into blocks.

    Args:
        starts: int64 [M + 1], block m holds the anchors ``[starts[m], starts[m + 1])``, at least one.
        pieces: int64 [Q, 7]: the number of its first anchor, its segment, the rows of its first and of its last anchor,
            LO of the first anchor's episode, HI_STEP and HI_FINAL of the last anchor's; see `stepwell.windows.plans`.
        piece_starts: int64 [M + 1], block m has the pieces ``[piece_starts[m], piece_starts[m + 1])``.
        max_bytes: memory that the largest block takes.
        num_bytes: memory that all of them take together; a row that is in two blocks counts in both.

    Notes:
        Immutable, safe to share between threads. Some numbers a piece; there are at most as many pieces as episodes
        and blocks together.
    """

    starts: Int64s
    pieces: Int64s
    piece_starts: Int64s
    max_bytes: int
    num_bytes: int = 0

    def __len__(self) -> int:
        return len(self.starts) - 1

    def block_of(self, anchors: Int64s) -> Int64s:
        """Return the block that each anchor lies in, int64 [n]."""
        return np.searchsorted(self.starts, anchors, side="right") - 1

    def piece_of(self, anchors: Int64s) -> Int64s:
        """Return the piece that each anchor lies in, int64 [n]."""
        return np.searchsorted(self._first_anchors, anchors, side="right") - 1

    def pieces_of(self, block: int) -> Int64s:
        """Return the numbers of a block's pieces, int64 [q]."""
        return np.arange(self.piece_starts[block], self.piece_starts[block + 1])

    @property
    def segments(self) -> Int64s:
        """The segment that each block begins in, int64 [M]."""
        segments: Int64s = self.pieces[self.piece_starts[:-1], PIECE_SEGMENT]
        return segments

    def within_segments(self) -> Blocks:
        """Return the same pieces in blocks that are cut where another segment begins."""
        changes = np.flatnonzero(np.diff(self.pieces[:, PIECE_SEGMENT])) + 1
        piece_starts = np.union1d(self.piece_starts, changes)
        starts = np.append(self.pieces[piece_starts[:-1], PIECE_ANCHOR], self.starts[-1])
        return Blocks(starts, self.pieces, piece_starts, self.max_bytes, self.num_bytes)

    @cached_property
    def _first_anchors(self) -> Int64s:
        # a search wants them side by side
        return np.ascontiguousarray(self.pieces[:, PIECE_ANCHOR])

    def __repr__(self) -> str:
        return (
            f"<Blocks {len(self):,} of at most {counted(self.max_bytes, 'byte')}, {counted(len(self.pieces), 'piece')}>"
        )


def piece_bytes(reaches: Sequence[Reach], pieces: Int64s) -> Int64s:
    """Return the memory that each piece takes: its rows of all columns, each column's rounded up to 64 bytes."""
    total = np.zeros(len(pieces), np.int64)
    for reach in reaches:
        first, stop = reach.rows(pieces)
        total += -(-(stop - first) * reach.row_bytes // ALIGNMENT) * ALIGNMENT
    return total


def cut_blocks(  # noqa: PLR0917
    anchor_starts: Int64s,
    records: Int64s,
    reaches: Sequence[Reach],
    max_bytes: int,
    sync_rows: SyncRows | None = None,
    outer: Int64s | None = None,
) -> Blocks:
    """Return the anchors of an index, cut into blocks."""
    cutter = _Cutter(anchor_starts, records, tuple(reaches), max_bytes, records[:, 2:] if outer is None else outer)
    cuts = cutter.even_cuts() if sync_rows is None else cutter.sync_cuts(sync_rows)
    return _joined(cutter.pieces(_distinct(np.concatenate((anchor_starts, cuts)))), cutter)


@dataclass(frozen=True, slots=True)
class _Cutter:
    """Cut episodes that are too long."""

    anchor_starts: Int64s
    records: Int64s
    reaches: tuple[Reach, ...]
    max_bytes: int
    outer: Int64s

    def pieces(self, starts: Int64s) -> Int64s:
        """Return the pieces between boundaries, int64 [q + 1], none of which is in more than one episode."""
        firsts, counts = starts[:-1], np.diff(starts)
        episodes = np.searchsorted(self.anchor_starts, firsts, side="right") - 1
        pieces = np.empty((len(firsts), PIECE_COLUMNS), np.int64)
        pieces[:, PIECE_ANCHOR] = firsts
        pieces[:, PIECE_SEGMENT] = self.records[episodes, 0]
        pieces[:, PIECE_FIRST] = self.records[episodes, 1] + firsts - self.anchor_starts[episodes]
        pieces[:, PIECE_LAST] = pieces[:, PIECE_FIRST] + counts - 1
        pieces[:, [PIECE_LO, PIECE_HI_STEP, PIECE_HI_FINAL]] = self.outer[episodes]
        return pieces

    def even_cuts(self) -> Int64s:
        """Return the anchors at which long episodes are cut into equal parts."""
        episodes, most = self._long_episodes(), self._most_anchors()
        counts = self.anchor_starts[episodes + 1] - self.anchor_starts[episodes]
        num_parts = -(-counts // most)
        parts = np.arange(num_parts.sum()) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
        lengths = np.repeat(counts, num_parts)
        cuts: Int64s = np.repeat(self.anchor_starts[episodes], num_parts) + parts * lengths // np.repeat(
            num_parts, num_parts
        )
        return cuts

    def sync_cuts(self, sync_rows: SyncRows) -> Int64s:
        """Return the anchors at which long episodes are cut, where sync rows allow."""
        held = [reach for reach in self.reaches if reach.name == sync_rows.name]
        reach = min(held, key=lambda reach: reach.first)
        found = [cut for e in self._long_episodes().tolist() for cut in self._episode_cuts(e, reach, sync_rows)]
        return np.array(found, np.int64)

    def _episode_cuts(self, episode: int, reach: Reach, sync_rows: SyncRows) -> Iterator[int]:
        segment, first_row, lo, hi_step, hi_final = self.records[episode].tolist()
        begin, end = self.anchor_starts[episode : episode + 2].tolist()
        bounds = (lo, hi_final if reach.is_final else hi_step)
        # from the number of an anchor to the first row that it reaches
        shift, most = first_row - begin + min(reach.first, 0), self._most_anchors()
        cut = begin
        while end - cut > most:
            left = end - cut
            target = cut + -(-left // -(-left // most))
            if target + shift <= lo:
                # what lies before the episode is not reached: its first row is
                cut = target
            else:
                before, after = sync_rows.around(segment, target + shift, *bounds)
                cut = before - shift if before - shift > cut else after - shift
            if cut >= end:
                return
            yield cut

    def _long_episodes(self) -> Int64s:
        wholes = self.pieces(_distinct(self.anchor_starts))
        firsts = wholes[piece_bytes(self.reaches, wholes) > self.max_bytes, PIECE_ANCHOR]
        episodes: Int64s = np.searchsorted(self.anchor_starts, firsts, side="right") - 1
        return episodes

    def _most_anchors(self) -> int:
        """Return how many anchors a part of an episode may have."""
        row_bytes = sum(reach.row_bytes for reach in self.reaches)
        beyond = sum((max(reach.last, 0) - min(reach.first, 0)) * reach.row_bytes for reach in self.reaches)
        if row_bytes == 0:
            return max(1, int(self.anchor_starts[-1]))
        room = self.max_bytes - beyond - (ALIGNMENT - 1) * len(self.reaches)
        return max(1, room // row_bytes, -(-beyond // row_bytes))


def _distinct(numbers: Int64s) -> Int64s:
    """Return numbers in order, each once: `np.unique` takes ten times as long for those that are nearly so."""
    ordered = np.sort(numbers, kind="stable")
    distinct: Int64s = ordered[np.append(True, ordered[1:] != ordered[:-1])]
    return distinct


def _joined(parts: Int64s, cutter: _Cutter) -> Blocks:
    """Return blocks of parts, joined up to the target, and parts whose rows follow each other as one piece."""
    total = np.concatenate(([0], np.cumsum(piece_bytes(cutter.reaches, parts))))
    bounds = [0]
    while bounds[-1] < len(parts):
        stop = int(total.searchsorted(total[bounds[-1]] + cutter.max_bytes, side="right")) - 1
        bounds.append(max(stop, bounds[-1] + 1))
    is_first = np.zeros(len(parts), np.bool_)
    is_first[bounds[:-1]] = True
    is_first[1:] |= parts[1:, PIECE_SEGMENT] != parts[:-1, PIECE_SEGMENT]
    is_first[1:] |= parts[1:, PIECE_FIRST] != parts[:-1, PIECE_LAST] + 1
    # rows of another piece of an episode stand where those of the next episode would
    is_first[1:] |= (parts[1:, PIECE_LO] != parts[:-1, PIECE_LO]) & (
        (parts[1:, PIECE_LO] <= parts[:-1, PIECE_LAST]) | (parts[:-1, PIECE_HI_STEP] > parts[1:, PIECE_FIRST])
    )
    first = np.flatnonzero(is_first)
    last = np.append(first, len(parts))[1:] - 1
    pieces = parts[first]
    pieces[:, [PIECE_LAST, PIECE_HI_STEP, PIECE_HI_FINAL]] = parts[last][:, [PIECE_LAST, PIECE_HI_STEP, PIECE_HI_FINAL]]
    piece_starts = np.searchsorted(first, bounds).astype(np.int64)
    starts = np.append(parts[:, PIECE_ANCHOR], cutter.anchor_starts[-1])[bounds]
    held = np.concatenate(([0], np.cumsum(piece_bytes(cutter.reaches, pieces))))[piece_starts]
    return Blocks(starts, pieces, piece_starts, int(np.diff(held).max(initial=0)), int(held[-1]))


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """The held rows of one batch.

    Args:
        table: addresses of held pieces, one a column: ``addresses[2 * column, piece]`` is where row 0 would lie.
        columns: int64 [n], the piece of each anchor: its column in the table.
        owner: whatever keeps the memory alive while the batch is read, and while rows in place are used.
        in_place: keys of fields whose rows need not be copied, see `WindowReader.read`.
    """

    table: MapTable
    columns: npt.NDArray[np.int64]
    owner: Any = None
    in_place: frozenset[str] = frozenset()


class RowLoader:
    """Load the rows that pieces of the anchors reach.

    ::

        piece (segment, rows of its anchors)    memory  |image rows......|pad|depth rows....|
          | Reach.rows, for each column                  ^ addresses[0] + first * row_bytes
          | decode, or read

    Args:
        index: of the anchors.
        maps: of the segments.
        columns: that are held.
        decoders: name of a column to its `ColumnDecoder`, of those that any store encodes.
        slots: name of a column to its row in the maps' table.
        page_cache: whether to read through maps; else what is large is read past it.

    Notes:
        Thread-safe: any number of `load` at once, each into memory of its own.
    """

    def __init__(
        self,
        index: AnchorIndex,
        maps: SegmentMaps,
        columns: Sequence[Reach],
        decoders: Mapping[str, ColumnDecoder],
        slots: Mapping[str, int],
        *,
        page_cache: bool,
    ) -> None:
        self.columns = tuple(columns)
        self.page_cache = page_cache
        self._index, self._maps, self._decoders, self._slots = index, maps, dict(decoders), dict(slots)
        self._finals = _final_rows(index)

    def new_table(self, num_pieces: int) -> MapTable:
        """Return an empty table for so many held pieces."""
        return MapTable(len(self.columns), num_pieces)

    def num_bytes(self, pieces: Int64s) -> Int64s:
        """Return the bytes of memory that each piece takes."""
        return piece_bytes(self.columns, pieces)

    def load(self, piece: Int64s, memory: npt.NDArray[np.uint8]) -> Int64s:
        """Load the rows of one piece, int64 [7]; return its column of a table's addresses, int64 [2 * columns]."""
        addresses = np.zeros(2 * len(self.columns), dtype=np.int64)
        base = int(memory.__array_interface__["data"][0])
        segment, start = int(piece[PIECE_SEGMENT]), 0
        anchors = int(piece[PIECE_FIRST]), int(piece[PIECE_LAST])
        for number, column in enumerate(self.columns):
            first, stop = (int(row) for row in column.rows(piece))
            num_bytes = (stop - first) * column.row_bytes
            out = memory[start : start + num_bytes].view(column.dtype).reshape(stop - first, *column.shape)
            addresses[2 * number] = base + start - first * column.row_bytes
            if num_bytes:
                stretches = self._index.stretches(segment, anchors, first, stop)
                table = self._mapped([each for each, _, _ in stretches], anchors[0])
                done = 0
                for each, begin, end in stretches:
                    self._load_column(column, table, each, begin, out[done : done + end - begin])
                    done += end - begin
            start += int(aligned(num_bytes))
        return addresses

    def _mapped(self, segments: list[int], row: int) -> MapTable:
        try:
            return self._maps.ensure(np.array(segments))
        except MapError as error:
            raise LoaderError(f"{self._index.where(error.segment, row)}: {error.cause}") from error.cause

    def _load_column(self, column: Reach, table: MapTable, segment: int, first: int, out: npt.NDArray[Any]) -> None:
        decoder = self._decoders.get(column.name)
        try:
            if decoder is None or decoder.is_raw_in(segment):
                self._copy(column, table, segment, first, out)
                return
            rows = self._rows_of(column, segment, first, first + len(out))
            direct = None if self.page_cache else self._maps.segments
            cells = Cells(table, np.full(len(rows), segment), rows, direct)
            if self.page_cache and self._maps.is_announcing:
                decoder.announce(cells)
            decoder.read(cells, out, {}, column.decoder)
        except RowError as error:
            row = first + error.index
            what = f"{self._maps.file_of(column.name, segment)}: {error.cause}"
            raise LoaderError(f"{self._index.where(segment, row)}, {what}") from error.cause
        except CorruptSegmentError as error:
            # names its file itself
            raise LoaderError(f"{self._index.where(segment, first)}, {error}") from error
        except OSError as error:
            what = f"{self._maps.file_of(column.name, segment)}: {error}"
            raise LoaderError(f"{self._index.where(segment, first)}, {what}") from error

    def _copy(self, column: Reach, table: MapTable, segment: int, first: int, out: npt.NDArray[Any]) -> None:
        """Copy plain rows, and let the field's decoder make something of them."""
        feature = self._maps.feature_of(column.name, segment)
        begin, num_bytes = first * feature.row_bytes, len(out) * feature.row_bytes
        if self.page_cache:
            rows = (table.arrays[segment] or [])[self._slots[column.name]]
            data = rows[begin : begin + num_bytes]  # type: ignore[index]
        else:
            is_own = column.decoder is None
            data = out.reshape(-1).view(np.uint8) if is_own else np.empty(num_bytes, np.uint8)
            self._maps.segments[segment].read_direct(f"{column.name}.npy", begin, data)
        values = data.view(feature.np_dtype).reshape(len(out), *feature.fixed_shape)
        if column.decoder is not None:
            for i, value in enumerate(values):
                column.decoder.convert(value, out[i, ...], None)
        elif self.page_cache:
            out[...] = values

    def _rows_of(self, column: Reach, segment: int, first: int, stop: int) -> Int64s:
        """Return rows; -1 in the place of a final one of a feature without final values."""
        rows = np.arange(first, stop)
        if not column.is_final:
            begin, end = np.searchsorted(self._finals, [(segment << 32) | first, (segment << 32) | stop])
            rows[(self._finals[begin:end] & 0xFFFFFFFF) - first] = -1
        return rows


def _final_rows(index: AnchorIndex) -> Int64s:
    """Return the final rows of all episodes as sorted (segment << 32 | row)."""
    segments, _, _, hi_step, hi_final = index.records.T
    # of other pieces than the view's only steps are read, but for the last one's final row
    has_final = hi_final > hi_step
    return np.sort((segments[has_final] << 32) | hi_step[has_final])


def hold_rows(loader: RowLoader, places: Int64s) -> HeldRows:
    """Load the rows that the windows at some anchors reach; anchors whose windows touch share a piece."""
    pieces, columns = _pieces_of(loader, places)
    sizes = loader.num_bytes(pieces)
    starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
    memory = aligned_empty(starts[-1])
    table = loader.new_table(len(pieces))
    for number, piece in enumerate(pieces):
        table.addresses[:, number] = loader.load(piece, memory[starts[number] : starts[number + 1]])
    return HeldRows(table, columns, memory)


def _pieces_of(loader: RowLoader, places: Int64s) -> tuple[Int64s, Int64s]:
    """Return the pieces, int64 [q, 7], and the piece of each anchor, int64 [n]."""
    episode, segment, row, lo, hi_step, hi_final = outer(places)
    order = np.lexsort((row, episode))
    span = max((column.last - column.first for column in loader.columns), default=0)
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (np.diff(episode[order]) != 0) | (np.diff(row[order]) > span + 1)
    heads = np.flatnonzero(is_new)
    tails = np.append(heads[1:], len(order))[: len(heads)] - 1
    first = order[heads]
    pieces = np.zeros((len(heads), PIECE_COLUMNS), dtype=np.int64)
    pieces[:, 1] = segment[first]
    pieces[:, PIECE_FIRST], pieces[:, PIECE_LAST] = row[first], row[order[tails]]
    pieces[:, PIECE_LO:] = np.stack([lo, hi_step, hi_final])[:, first].T
    columns = np.empty(len(order), dtype=np.int64)
    columns[order] = np.cumsum(is_new) - 1
    return pieces, columns
