"""Encoded and ragged columns of a batch.

A row of a fixed shape is decoded once, and copied where the batch has it again; ragged rows are decoded for each cell,
since cells that shared an array would change together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, make_codec
from stepwell.errors import CorruptSegmentError, StepwellError
from stepwell.windows.maps import Column, MapTable

__all__ = ["ColumnDecoder", "RowError"]

Int64s = npt.NDArray[np.int64]


class RowError(StepwellError):
    """A row could not be decoded; says which one of those that were asked for. Never leaves the reader."""

    def __init__(self, index: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.index, self.cause = index, cause


class ColumnDecoder:
    """Decode the rows of one column, whatever codec each store has for it.

    Args:
        column: the feature in each store.
        number: of the column in the table of maps.
        stores: int64 [S], number of the store of each segment.

    Notes:
        Thread-safe: codecs keep no state between calls, and a batch's decoded rows live in a mapping that its read
        owns.
    """

    def __init__(self, column: Column, number: int, stores: Int64s) -> None:
        self._column, self._slot = column, 2 * number
        self._stores = stores
        self._codecs: list[Codec] = [make_codec(feature) for feature in column.features]
        self._row_bytes = [feature.row_bytes if feature.is_raw else -1 for feature in column.features]

    def read_into(
        self, table: MapTable, segments: Int64s, rows: Int64s, out: npt.NDArray[Any], done: dict[int, npt.NDArray[Any]]
    ) -> None:
        """Decode rows of a fixed shape into a batch's memory.

        Args:
            table: maps, the segments among them.
            segments: int64 [m].
            rows: int64 [m]; -1 asks for zeros.
            out: [m, *shape], each entry C-contiguous; written.
            done: rows of this batch that were decoded already, by (segment << 32 | row); added to.

        Raises:
            RowError: bytes that are no row.
        """
        if not out[:1].size:
            return
        codecs, stores = self._codecs, self._stores
        for i, (key, segment, blob) in enumerate(self._blobs(table, segments, rows)):
            known = done.get(key)
            if key < 0:
                out[i] = np.zeros((), out.dtype)
            elif known is not None:
                out[i] = known
            else:
                cell = done[key] = out[i, ...]
                try:
                    codecs[stores[segment]].decode_into(blob, cell)
                except Exception as error:
                    raise RowError(i, error) from error

    def read_objects(self, table: MapTable, segments: Int64s, rows: Int64s, out: npt.NDArray[np.object_]) -> None:
        """Decode rows of any size into the cells of an object array [m]; -1 asks for an empty value.

        Raises:
            RowError: bytes that are no row.
        """
        for i, (key, segment, blob) in enumerate(self._blobs(table, segments, rows)):
            try:
                out[i] = self._empty() if key < 0 else self._codecs[self._stores[segment]].decode(blob)
            except Exception as error:
                raise RowError(i, error) from error

    def addresses(self, table: MapTable, segments: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return where the encoded bytes of rows lie in memory: address and size of each, int64 [m] twice."""
        begins, ends = self._spans(table, segments, rows)
        is_raw = np.array(self._row_bytes)[self._stores[segments]] >= 0
        slots = np.where(is_raw, self._slot, self._slot + 1)
        return table.addresses[slots, segments] + begins, ends - begins

    def _blobs(
        self, table: MapTable, segments: Int64s, rows: Int64s
    ) -> Iterator[tuple[int, int, npt.NDArray[np.uint8]]]:
        begins, ends = self._spans(table, segments, rows)
        keys = np.where(rows < 0, -1, (segments << 32) | rows)
        arrays: Mapping[int, npt.NDArray[np.uint8]] = {
            segment: self._bytes(table, segment) for segment in np.unique(segments).tolist()
        }
        for key, segment, begin, end in zip(
            keys.tolist(), segments.tolist(), begins.tolist(), ends.tolist(), strict=True
        ):
            yield key, segment, arrays[segment][begin:end]

    def _bytes(self, table: MapTable, segment: int) -> npt.NDArray[np.uint8]:
        maps = table.arrays[segment] or []
        found = maps[self._slot + 1]
        array: npt.NDArray[np.uint8] = maps[self._slot] if found is None else found  # type: ignore[assignment]
        return array

    def _spans(self, table: MapTable, segments: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        from stepwell.kernels.spans import spans

        row_bytes = np.array(self._row_bytes, dtype=np.int64)[self._stores[segments]]
        begins, ends = np.empty_like(rows), np.empty_like(rows)
        # rows of a fixed size have no offsets to look up
        encoded = np.where(row_bytes >= 0, -1, rows)
        wrong = spans(table.addresses[self._slot], table.sizes[self._slot + 1], segments, encoded, begins, ends)
        if wrong >= 0:
            cause = CorruptSegmentError(
                f"{self._column.name}.npy: the offsets of row {rows[wrong]} do not fit {self._column.name}.bin. "
                'Run "stepwell verify PATH".'
            )
            raise RowError(int(wrong), cause)
        is_raw = (row_bytes >= 0) & (rows >= 0)
        np.multiply(rows, row_bytes, out=begins, where=is_raw)
        np.add(begins, row_bytes, out=ends, where=is_raw)
        return begins, ends

    def _empty(self) -> Any:
        feature = self._column.features[0]
        if feature.kind == "text":
            return ""
        if feature.kind == "bytes":
            return b""
        return np.zeros((0, *(int(n or 0) for n in feature.shape[1:])), feature.np_dtype)
