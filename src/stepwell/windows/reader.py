"""The batch path: positions of anchors in, arrays out.

::

    positions int64 [n]
        | AnchorIndex.places              episode, segment, row, lo, hi of each anchor          1 kernel call
        | SegmentMaps                     all segments of the batch are mapped                  1 kernel call when they
        are | announce                        only when the files do not fit in memory              1 kernel call a
        column | gather                          every raw field                                       1 kernel call
        | ColumnDecoder, VirtualColumns   fields that must be decoded or computed
    dict of key to array [n, *window, *step]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, WindowError
from stepwell.schema import Schema
from stepwell.windows.decoding import ColumnDecoder, RowError
from stepwell.windows.fields import as_fields
from stepwell.windows.index import AnchorIndex, positions_array
from stepwell.windows.layouts import Layout, aligned_empty, gather_tables, make_layout
from stepwell.windows.maps import MAX_MAPS, Column, MapError, MapTable, SegmentMaps
from stepwell.windows.resolved import ResolvedField, resolve_all
from stepwell.windows.rows import VirtualColumns, window_rows
from stepwell.windows.views import View

__all__ = ["WindowReader"]

Int64s = npt.NDArray[np.int64]
SEGMENT, ROW = 1, 2  # rows of the places, as the kernels have them
# a training run uses one or two batch sizes; who uses many pays for a new layout now and then
MAX_LAYOUTS = 64


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that is being read: its arrays, the maps it holds, its places, and the rows it has decoded by column."""

    arrays: dict[str, Any]
    table: MapTable
    places: Int64s
    decoded: dict[str, dict[int, npt.NDArray[Any]]]


class WindowReader:
    """Read windows: from positions of anchors to a batch.

    Args:
        view: the episodes.
        fields: key to `Field`, name of a feature, or offsets; None: every feature at the anchor.
        max_maps: how many files may be mapped at a time.
        memory_bytes: what may be used to keep files cached; default: what is available when the first file is mapped.
            See `stepwell.windows.maps`.

    Attributes:
        view: the episodes.
        index: the `AnchorIndex`.
        fields: key to `ResolvedField`, in the batch's order.
        is_raw: whether nothing has to be decoded.
        sample_bytes: decoded bytes of one sample, masks and ragged fields not counted.
        maps: the `SegmentMaps` that it reads through.

    Raises:
        WindowError: a field that does not fit the stores or any episode, or stores that do not agree.
        FeatureNotFoundError: no such feature.

    Notes:
        Thread-safe: any number of `read` at once. Pickles as its view and fields, and maps files anew; after a fork
        both processes go on with the maps there are. Transforms are not applied here but by the loader, which knows
        the epoch.
    """

    def __init__(
        self,
        view: View,
        fields: Mapping[str, Any] | None = None,
        *,
        max_maps: int = MAX_MAPS,
        memory_bytes: int | None = None,
        _known: WindowReader | None = None,
    ) -> None:
        from stepwell.kernels.gather import gather
        from stepwell.kernels.locate import touch

        self._gather, self._touch = gather, touch
        self.view = view
        self._arguments = (fields, max_maps, memory_bytes)
        stores = [(_schema_of(store), store.fps) for store in view.stores]
        self.fields = {
            key: resolve_all(field, key, stores) for key, field in as_fields(fields, list(stores[0][0])).items()
        }
        resolved = list(self.fields.values())
        self.index = AnchorIndex(view, resolved)
        self.is_raw = not any(field.is_encoded for field in resolved)
        self.sample_bytes = sum(field.num_bytes for field in resolved)
        self._columns = _columns_of(resolved, [schema for schema, _ in stores])
        self.maps: SegmentMaps = self._make_maps(max_maps, memory_bytes, None if _known is None else _known.maps)
        self._slots = {column.name: 2 * i for i, column in enumerate(self._columns)}
        self._tables = gather_tables(resolved, self._slots)
        self._layouts: dict[int, Layout] = {}
        encoded = {
            source.name for field in resolved for source in field.sources if source.kind in {"encoded", "ragged"}
        }
        self._decoders = {
            column.name: ColumnDecoder(column, i, self.index.stores)
            for i, column in enumerate(self._columns)
            if column.name in encoded
        }
        # fields for which the kernel alone is not enough
        self._others = [field for field in resolved if any(source.kind != "raw" for source in field.sources)]
        self._virtual = VirtualColumns(view, self.index.ordinals)

    @property
    def snapshot_id(self) -> str:
        """16 hexadecimal digits that change when the set of anchors does."""
        return self.index.digest

    def refresh(self) -> WindowReader:
        """Return a reader of the stores as they are now; maps that are long enough go on being used."""
        view = self.view.refresh()
        if view is self.view:
            return self
        fields, max_maps, memory_bytes = self._arguments
        return WindowReader(view, fields, max_maps=max_maps, memory_bytes=memory_bytes, _known=self)

    def num_bytes(self, num_anchors: int) -> int:
        """Return the bytes of memory that a batch of ``num_anchors`` takes."""
        return self._layout(num_anchors).num_bytes

    def read(
        self, positions: npt.ArrayLike, memory: npt.NDArray[np.uint8] | None = None
    ) -> dict[str, npt.NDArray[Any]]:
        """Read a batch.

        Args:
            positions: int64 [n], anchors in any order, repeated or not.
            memory: uint8 [>= num_bytes(n)], contiguous, best at a multiple of 64 bytes (see `aligned_empty`). Default:
                new.

        Returns:
            Key to array [n, *window, *step], each a 64-byte aligned view of ``memory``, and ``<key>_is_pad`` to its
            mask; a ragged field's is an object array [n, *window].

        Raises:
            LoaderError: a row could not be read; names store, episode and step, and chains the cause.
            WindowError: a position that is no anchor.
        """
        positions = positions_array(positions)
        layout = self._layouts.get(len(positions)) or self._layout(len(positions))
        if memory is None:
            memory = aligned_empty(layout.num_bytes)
        elif memory.nbytes < layout.num_bytes or memory.dtype != np.uint8 or not memory.flags.carray:
            raise WindowError(
                f"memory of {memory.nbytes} bytes ({memory.dtype}) does not hold {layout.num_bytes}. "
                "Use writable, contiguous uint8 [num_bytes(n)]."
            )
        places = self.index.places(positions)
        table = self._mapped(places)
        if self.maps.is_announcing:
            self._announce(table, places)
        if len(layout.plan):
            self._gather(layout.plan, self._tables.runs, self._tables.offsets, table.addresses, places, memory)
        batch = {output.key: np.ndarray(output.shape, output.dtype, memory, output.offset) for output in layout.outputs}
        return self._with_others(batch, table, places) if self._others else batch

    def _with_others(self, arrays: dict[str, Any], table: MapTable, places: Int64s) -> dict[str, npt.NDArray[Any]]:
        """Fill what the kernel left out, and return the batch in the order of its fields."""
        batch = _Batch(arrays, table, places, {name: {} for name in self._decoders})
        for field in self._others:
            if field.is_ragged:
                arrays[field.key] = np.empty((places.shape[1], *field.window_shape), dtype=object)
            start = 0
            for number, source in enumerate(field.sources):
                stop = start + (1 if field.field.combine != "concat" else int(source.shape[0] or 0))
                if source.kind != "raw":
                    self._fill(field, number, _slice_of(arrays[field.key], field, start, stop), batch)
                start = stop
        return {key: arrays[key] for field in self.fields.values() for key in _keys_of(field)}

    def _fill(self, field: ResolvedField, number: int, out: npt.NDArray[Any], batch: _Batch) -> None:
        """Decode or compute one source of a field into ``out`` [n * K, ...], and mark its padding."""
        source = field.sources[number]
        rows, is_pad = window_rows(field, source.is_final, batch.places)
        if field.has_mask:
            mask = batch.arrays[field.mask_key].reshape(is_pad.shape)
            # the kernel has written the marks of raw sources, and further sources add to those of the first
            has_marks = number > 0 or any(other.kind == "raw" for other in field.sources)
            np.logical_or(mask, is_pad, out=mask) if has_marks else np.copyto(mask, is_pad)
        if source.kind == "virtual":
            values = np.broadcast_to(self._virtual.compute(source.name, batch.places, rows), rows.shape)
            out[...] = (np.where(is_pad, 0, values) if field.pad == "zero" else values).reshape(-1)
            return
        wanted = (np.where(is_pad, -1, rows) if field.pad == "zero" else rows).reshape(-1)
        segments = np.repeat(batch.places[SEGMENT], rows.shape[1])
        decoder = self._decoders[source.name]
        try:
            if source.kind == "ragged":
                decoder.read_objects(batch.table, segments, wanted, out)
            else:
                decoder.read_into(batch.table, segments, wanted, out, batch.decoded[source.name])
        except RowError as error:
            raise self._error(field, batch.places, error, rows) from error.cause

    def _mapped(self, places: Int64s) -> MapTable:
        """Return a table in which all segments of a batch are mapped."""
        table = self.maps.table
        if not self._touch(places, table.is_mapped, table.last_used, self.maps.tick()):
            return table
        try:
            return self.maps.ensure(np.unique(places[SEGMENT]))
        except MapError as error:
            first = int(np.flatnonzero(places[SEGMENT] == error.segment)[0])
            what: object = error.cause
            if isinstance(what, FileNotFoundError):
                what = f"segment {self.maps.segments[error.segment].name} was removed since. Refresh the loader."
            raise LoaderError(f"{self._where(places, first, int(places[ROW, first]))}: {what}") from error.cause

    def _announce(self, table: MapTable, places: Int64s) -> None:
        """Tell the system which bytes of files a batch is about to read, so that it fetches them all at once."""
        from stepwell.kernels.gather import runs_of
        from stepwell.kernels.spans import announce

        for field in self.fields.values():
            for source in field.sources:
                rows, _ = window_rows(field, source.is_final, places)
                if source.kind == "raw":
                    bases = table.addresses[self._slots[source.name], places[SEGMENT]]
                    for _, number, start in runs_of(field.offsets.tolist()):
                        first, last = rows[:, start], rows[:, start + number - 1]
                        announce(bases + first * source.row_bytes, (last - first + 1) * source.row_bytes)
                elif source.kind != "virtual":
                    segments = np.repeat(places[SEGMENT], rows.shape[1])
                    try:
                        announce(*self._decoders[source.name].addresses(table, segments, rows.reshape(-1)))
                    except RowError as error:
                        raise self._error(field, places, error, rows) from error.cause

    def _error(self, field: ResolvedField, places: Int64s, error: RowError, rows: Int64s) -> LoaderError:
        anchor, row = error.index // rows.shape[1], int(rows.reshape(-1)[error.index])
        return LoaderError(f"{self._where(places, anchor, row)}, field {field.key!r}: {error.cause}")

    def _where(self, places: Int64s, anchor: int, row: int) -> str:
        """Return the store's path, the episode's index in it and the step of a row, for people."""
        _, segment, _, lo, *_ = places[:, anchor].tolist()
        part = self.view.parts[int(np.searchsorted(self.index.segment_starts, segment, side="right")) - 1]
        return f"{part.store.path}: episode {self.index.episode_index[places[0, anchor]]}, step {row - lo}"

    def _layout(self, num_anchors: int) -> Layout:
        layout = self._layouts.get(num_anchors)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts = {}
            layout = make_layout(list(self.fields.values()), self._tables, num_anchors)
            self._layouts[num_anchors] = layout
        return layout

    def _make_maps(self, max_maps: int, memory_bytes: int | None, known: SegmentMaps | None) -> SegmentMaps:
        parts, records = self.view.parts, self.index.records
        need_rows = np.zeros(sum(len(part.segments) for part in parts), dtype=np.int64)
        np.maximum.at(need_rows, records[:, 0], records[:, 4])
        return SegmentMaps(
            [segment for part in parts for segment in part.segments],
            self.index.stores,
            need_rows,
            self._columns,
            max_maps=max_maps,
            memory_bytes=memory_bytes,
            known=known,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.view, *self._arguments)

    def __repr__(self) -> str:
        sizes = f"{self.index.num_anchors:,} anchors  {self.sample_bytes:,} bytes each"
        return f"<WindowReader {', '.join(self.fields)}  {sizes}>"


def _rebuild(view: View, fields: Mapping[str, Any] | None, max_maps: int, memory_bytes: int | None) -> WindowReader:
    return WindowReader(view, fields, max_maps=max_maps, memory_bytes=memory_bytes)


def _schema_of(store: Any) -> Schema:
    if store.schema is None:
        raise WindowError(f"{store.path} has no features yet: they are known with its first step.")
    schema: Schema = store.schema
    return schema


def _columns_of(fields: list[ResolvedField], schemas: list[Schema]) -> list[Column]:
    names = dict.fromkeys(source.name for field in fields for source in field.sources if source.kind != "virtual")
    return [Column(name, tuple(schema[name] for schema in schemas)) for name in names]


def _slice_of(array: npt.NDArray[Any], field: ResolvedField, start: int, stop: int) -> npt.NDArray[Any]:
    """Return the part of an output that one source fills, [n * K, *step of the source]."""
    num_rows = array.shape[0] * len(field.offsets)
    flat = array.reshape(num_rows, *array.shape[1 + len(field.window_shape) :])
    if field.field.combine is None:
        return flat
    return flat[:, start] if field.field.combine == "stack" else flat[:, start:stop]


def _keys_of(field: ResolvedField) -> tuple[str, ...]:
    return (field.key, field.mask_key) if field.has_mask else (field.key,)
