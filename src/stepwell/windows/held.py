"""Rows that lie in memory, decoded: loaded into pools, or for one batch, once for all windows that show them.

::

    piece (segment, rows of its anchors)    memory  |image rows......|pad|depth rows....|
      | Reach.rows, for each column                  ^ addresses[0] + first * row_bytes
      | decode, or read past the page cache

To the window kernel they are raw rows at another address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, LoaderError
from stepwell.windows.blocks import piece_bytes
from stepwell.windows.chains import outer
from stepwell.windows.decode import Cells, ColumnDecoder, RowError
from stepwell.windows.index import AnchorIndex
from stepwell.windows.layouts import ALIGNMENT, aligned_empty
from stepwell.windows.maps import MapError, MapTable, SegmentMaps
from stepwell.windows.reach import PIECE_COLUMNS, PIECE_FIRST, PIECE_LAST, PIECE_LO, PIECE_SEGMENT, Reach

__all__ = ["HeldRows", "RowLoader", "hold_rows", "row_at"]

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class HeldRows:
    """The held rows of one batch.

    Args:
        table: addresses of held pieces, one a column: ``addresses[2 * column, piece]`` is where row 0 would lie.
        columns: int64 [n], the piece of each anchor: its column in the table.
        owner: whatever keeps the memory alive while the batch is read.
    """

    table: MapTable
    columns: npt.NDArray[np.int64]
    owner: Any = None


def row_at(address: int, column: Reach) -> npt.NDArray[Any]:
    """Return a held row as an array, which does not keep its memory alive."""
    flat = np.asarray(_Memory(address, column.row_bytes))
    return flat.view(column.dtype).reshape(column.shape)


class _Memory:
    """Bytes at an address, as numpy takes them."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, True), "version": 3}


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
            start += int(_aligned(num_bytes))
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


def _aligned(num_bytes: Any) -> Any:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def hold_rows(loader: RowLoader, places: Int64s) -> HeldRows:
    """Load what the windows at some anchors reach; anchors whose windows touch share a piece."""
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
