"""Fields that the kernel does not copy: decoded, converted or computed into a batch's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, WindowError
from stepwell.kernels.places import SEGMENT
from stepwell.windows.decode import Cells, ColumnDecoder, RowError
from stepwell.windows.held import row_at
from stepwell.windows.maps import SegmentMaps
from stepwell.windows.reach import Reach, column_of
from stepwell.windows.resolved import ResolvedField, Source
from stepwell.windows.routing import Routes
from stepwell.windows.rows import ComputedWindows, window_rows
from stepwell.windows.sources import JoinedSources

if TYPE_CHECKING:
    from stepwell.windows.reader import PlaceBatch

__all__ = ["Filler"]

Int64s = npt.NDArray[np.int64]


class Filler:
    """Fill in what the kernel left out of a batch.

    Args:
        sources: of the places.
        maps: of the segments.
        columns: that can be held.
        decoders: name of a column to its `ColumnDecoder`.

    Notes:
        Thread-safe: what a batch decoded lives in the batch.
    """

    def __init__(
        self,
        sources: JoinedSources,
        maps: SegmentMaps,
        columns: Sequence[Reach],
        decoders: Mapping[str, ColumnDecoder],
    ) -> None:
        self._sources, self._maps, self._columns, self.decoders = sources, maps, tuple(columns), decoders
        self._computed = ComputedWindows(sources)

    def fill(
        self, batch: PlaceBatch, routes: Routes, fields: Mapping[str, ResolvedField]
    ) -> dict[str, npt.NDArray[Any]]:
        """Fill what the kernel left out, and return the batch in the order of its fields.

        Raises:
            LoaderError: a row could not be decoded.
        """
        arrays = batch.arrays
        for each, rest in routes.others:
            if each.is_computed:
                self.compute(each, batch.places, batch.parts, arrays)
                continue
            if each.is_ragged:
                arrays[each.key] = np.empty((batch.places.shape[1], *each.window_shape), dtype=object)
            start = 0
            for number, source in enumerate(each.sources):
                stop = start + (1 if each.field.combine != "concat" else int(source.shape[0] or 0))
                if number in rest:
                    # the kernel has written the marks of what it copied, and further sources add to those of the first
                    has_marks = number > rest[0] or len(rest) < len(each.sources)
                    out = _slice_of(arrays[each.key], each, start, stop)
                    self._fill(each, source, out, batch, has_marks, each.key in routes.held)
                start = stop
        return {key: arrays[key] for each in fields.values() for key in each.keys}

    def error(
        self, field: ResolvedField, source: Source, segments: Int64s, error: RowError, rows: Int64s
    ) -> LoaderError:
        """Return the error of a row that could not be decoded: names store, episode, step, field and file."""
        segment, row = int(segments[error.index]), int(rows.reshape(-1)[error.index])
        return LoaderError(
            f"{self._sources.describe(segment, row)}, field {field.key!r} "
            f"({self._maps.file_of(source.name, segment)}): {error.cause}"
        )

    def compute(
        self, field: ResolvedField, places: Int64s, parts: Sequence[Int64s], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        """Compute a field and its mask.

        Args:
            field: whose `is_computed` holds.
            places: int64 [6, n].
            parts: the same of each source, with its own numbers.
            arrays: of the batch, written.
        """
        out, name = arrays[field.key], field.sources[0].name
        if field.is_step:
            self._computed.write_steps(name, places, parts, out)
        else:
            mask = arrays[field.mask_key] if field.has_mask else None
            self._computed.write(name, field, places, parts, out.reshape(-1), mask)

    def _fill(  # noqa: PLR0917
        self,
        field: ResolvedField,
        source: Source,
        out: npt.NDArray[Any],
        batch: PlaceBatch,
        has_marks: bool,
        is_held: bool,
    ) -> None:
        """Decode or compute one source of a field into ``out`` [n * K, ...], and mark its padding."""
        places = batch.at(field.field.at)
        mask = batch.arrays[field.mask_key] if field.has_mask else None
        if source.kind == "virtual":
            # of the anchors' episodes, wherever their windows are put
            self._computed.write(source.name, field, places, batch.parts, out, mask, has_marks)
            return
        rows, is_pad = window_rows(field, source.is_final, places)
        if mask is not None:
            mask = mask.reshape(is_pad.shape)
            np.logical_or(mask, is_pad, out=mask) if has_marks else np.copyto(mask, is_pad)
        if is_held:
            self._convert_held(field, source, rows, is_pad, out, batch)
            return
        segments = places[SEGMENT] if rows.shape[1] == 1 else np.repeat(places[SEGMENT], rows.shape[1])
        if batch.chained is not None:
            in_segments, rows = batch.chained.cells(places[SEGMENT], rows)
            segments = in_segments.reshape(-1)
        wanted = (np.where(is_pad, -1, rows) if field.pad == "zero" else rows).reshape(-1)
        cells = Cells(batch.table, segments, wanted)
        try:
            self._decode(field, source, cells, out, batch)
        except RowError as error:
            raise self.error(field, source, cells.segments, error, rows) from error.cause

    def _decode(
        self, field: ResolvedField, source: Source, cells: Cells, out: npt.NDArray[Any], batch: PlaceBatch
    ) -> None:
        column = self.decoders[source.name]
        done = batch.decoded.setdefault(source.name, {})
        if source.kind == "ragged":
            column.read_objects(cells, out)
        elif source.decoder is None:
            column.read(cells, out, done)
        else:
            drawn = _draw(field, source, batch)
            draws = None if drawn is None else np.repeat(drawn, len(out) // len(drawn), axis=0)
            column.read(cells, out, done, source.decoder, draws)

    def _convert_held(  # noqa: PLR0917
        self,
        field: ResolvedField,
        source: Source,
        rows: Int64s,
        is_pad: npt.NDArray[np.bool_],
        out: npt.NDArray[Any],
        batch: PlaceBatch,
    ) -> None:
        """Let a decoder that draws make steps of rows that are held whole."""
        number = column_of(self._columns, source)
        if batch.held is None or number is None or source.decoder is None:
            raise WindowError(f"field {field.key!r} is not among the held columns.")
        column, drawn = self._columns[number], _draw(field, source, batch)
        per_window, is_zero = rows.shape[1], field.pad == "zero"
        bases = batch.held.table.addresses[2 * number, batch.held.columns]
        addresses = (bases[:, None] + rows * column.row_bytes).reshape(-1).tolist()
        for i, is_outside in enumerate(is_pad.reshape(-1).tolist()):
            if is_zero and is_outside:
                out[i] = np.zeros((), out.dtype)
            else:
                draw = None if drawn is None else drawn[i // per_window]
                source.decoder.convert(row_at(addresses[i], column), out[i, ...], draw)


def _draw(field: ResolvedField, source: Source, batch: PlaceBatch) -> npt.NDArray[Any] | None:
    """Return what a field's decoder draws for each window, [n, ...]."""
    decoder, feature = source.decoder, source.feature
    if decoder is None or feature is None or not decoder.is_random or not batch.places.shape[1]:
        return None
    purpose = f"key {decoder.key}" if decoder.key is not None else f"decoder of {field.key}"
    return decoder.draw(feature, batch.drawn(purpose))


def _slice_of(array: npt.NDArray[Any], field: ResolvedField, start: int, stop: int) -> npt.NDArray[Any]:
    """Return the part of an output that one source fills, [n * K, *step of the source]."""
    num_rows = array.shape[0] * len(field.offsets)
    flat = array.reshape(num_rows, *array.shape[1 + len(field.window_shape) :])
    if field.field.combine is None:
        return flat
    return flat[:, start] if field.field.combine == "stack" else flat[:, start:stop]
