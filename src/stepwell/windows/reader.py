"""The batch path: positions of anchors in, arrays out.

::

    positions int64 [n]
        | AnchorIndex.places              episode, segment, row, lo, hi of each anchor          1 kernel call
        | SegmentMaps                     all segments of the batch are mapped                  1 kernel call
        | announce                        only when the files do not fit in memory              1 kernel call a column
        | gather                          every raw field, every held one                       1 kernel call each
        | ColumnDecoder, VirtualColumns   fields that must be decoded or computed
    dict of key to array [n, *window, *step]

Held rows (`stepwell.windows.held`) were decoded before; to the kernel they are raw rows at another address. Which
source comes from where is said in `stepwell.windows.routing`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, WindowError
from stepwell.kernels.draws import Draws
from stepwell.schema import Schema
from stepwell.store.counting import counted
from stepwell.windows.decoding import Cells, ColumnDecoder, RowError
from stepwell.windows.fields import as_fields
from stepwell.windows.held import HeldRows, row_at
from stepwell.windows.index import AnchorIndex, positions_array
from stepwell.windows.layouts import Layout, aligned_empty, make_layout
from stepwell.windows.maps import MAX_MAPS, Column, MapError, MapTable, SegmentMaps
from stepwell.windows.reach import column_of, reaches
from stepwell.windows.resolved import ResolvedField, Source, resolve_all
from stepwell.windows.routing import Routes, held_columns, make_routes
from stepwell.windows.row_loading import RowLoader
from stepwell.windows.rows import VirtualColumns, moved_places, window_rows
from stepwell.windows.transient import hold_rows
from stepwell.windows.views import View

__all__ = ["WindowReader"]

Int64s = npt.NDArray[np.int64]
Drawing = Callable[[str], Draws]
SEGMENT, ROW, LO, HI_STEP, HI_FINAL = 1, 2, 3, 4, 5  # rows of the places, as the kernels have them
# a training run uses one or two batch sizes; who uses many pays for a new layout now and then
MAX_LAYOUTS = 64


@dataclass(slots=True, eq=False)
class _Batch:
    """A batch that is being read.

    Args:
        places: of the anchors.
        held: rows, or None.
        draws: random numbers for a purpose.
        arrays: what is written, by key.
        table: of maps; the segments are in it where maps are needed.
        moved: places of windows that are not put at the anchor.
        decoded: rows that were decoded, by column.
    """

    places: Int64s
    held: HeldRows | None
    draws: Drawing
    arrays: dict[str, Any]
    table: MapTable
    moved: dict[str, Int64s] = field(default_factory=dict)
    decoded: dict[str, dict[int, npt.NDArray[Any]]] = field(default_factory=dict)


class WindowReader:
    """Read windows: from positions of anchors to a batch.

    Args:
        view: the episodes.
        fields: key to `Field`, name of a feature, or offsets; None: every feature at the anchor.
        max_maps: how many files may be mapped at a time.
        memory_bytes: what may be used to keep files cached; default: what is available when the first file is mapped.
            See `stepwell.windows.maps`.
        page_cache: False reads rows into memory of its own, past the page cache: for stores much
            larger than memory. Offsets of encoded rows, ragged features and windows that are placed elsewhere than at
            the anchor are read through maps all the same.

    Attributes:
        view: the episodes.
        index: the `AnchorIndex`.
        fields: key to `ResolvedField`, in the batch's order.
        is_raw: whether nothing has to be decoded.
        sample_bytes: decoded bytes of one sample, masks and ragged fields not counted.
        maps: the `SegmentMaps` that it reads through.
        page_cache: as given.

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
        page_cache: bool = True,
        _known: WindowReader | None = None,
    ) -> None:
        from stepwell.kernels.gather import gather
        from stepwell.kernels.locate import touch

        self._gather, self._touch = gather, touch
        self.view = view
        self.page_cache = page_cache
        self._arguments = (fields, max_maps, memory_bytes, page_cache)
        stores = [(_schema_of(store), store.fps) for store in view.stores]
        self.fields = {
            key: resolve_all(field, key, stores) for key, field in as_fields(fields, list(stores[0][0])).items()
        }
        resolved = list(self.fields.values())
        self.index = AnchorIndex(view, resolved)
        self.is_raw = not any(field.is_encoded for field in resolved)
        self.sample_bytes = sum(field.num_bytes for field in resolved)
        self._columns = _columns_of(resolved, [schema for schema, _ in stores])
        # nothing is fetched ahead of a read that goes past the page cache
        known = None if _known is None else _known.maps
        self.maps: SegmentMaps = self._make_maps(max_maps, memory_bytes if page_cache else 0, known)
        self._slots = {column.name: 2 * i for i, column in enumerate(self._columns)}
        self._held = held_columns(reaches(resolved), page_cache)
        self._plain_routes = make_routes(resolved, self._slots)
        self._held_routes = make_routes(resolved, self._slots, self._held)
        self._layouts: dict[tuple[int, bool], Layout] = {}
        self._final_at: dict[str, bool] = {
            field.field.at: all(s.is_final for f in resolved if f.field.at == field.field.at for s in f.sources)
            for field in resolved
        }
        encoded = {
            source.name
            for field in resolved
            for source in field.sources
            if source.kind in {"encoded", "converted", "ragged"}
        }
        self._decoders = {
            column.name: ColumnDecoder(column, i, self.index.stores)
            for i, column in enumerate(self._columns)
            if column.name in encoded
        }
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
        fields, max_maps, memory_bytes, page_cache = self._arguments
        return WindowReader(
            view, fields, max_maps=max_maps, memory_bytes=memory_bytes, page_cache=page_cache, _known=self
        )

    @cached_property
    def row_loader(self) -> RowLoader:
        """What loads held rows: those that need decoding, or, past the page cache, all of fixed shape."""
        return RowLoader(self.index, self.maps, self._held, self._decoders, self._slots, page_cache=self.page_cache)

    def num_bytes(self, num_anchors: int) -> int:
        """Return the bytes of memory that a batch of ``num_anchors`` takes."""
        return self._layout(num_anchors, False).num_bytes

    def read(
        self,
        positions: npt.ArrayLike,
        memory: npt.NDArray[np.uint8] | None = None,
        *,
        held: HeldRows | None = None,
        draws: Drawing | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Read a batch.

        Args:
            positions: int64 [n], anchors in any order, repeated or not.
            memory: uint8 [>= num_bytes(n)], contiguous, best at a multiple of 64 bytes (see `aligned_empty`). Default:
                new.
            held: the anchors' rows, loaded by `row_loader`. Default: they are decoded here, each once a batch.
            draws: the random numbers of the n windows for a purpose; for decoders that draw, and for windows that are
                not put at the anchor. Default: others at every call.

        Returns:
            Key to array [n, *window, *step], each a 64-byte aligned view of ``memory``, and ``<key>_is_pad`` to its
            mask; a ragged field's is an object array [n, *window].

        Raises:
            LoaderError: a row could not be read; names store, episode and step, and chains the cause.
            WindowError: a position that is no anchor.
        """
        positions = positions_array(positions)
        places = self.index.places(positions)
        if held is None and not self.page_cache:
            held = hold_rows(self.row_loader, places)
        routes = self._plain_routes if held is None else self._held_routes
        layout = self._layout(len(positions), held is not None)
        if memory is None:
            memory = aligned_empty(layout.num_bytes)
        elif memory.nbytes < layout.num_bytes or memory.dtype != np.uint8 or not memory.flags.carray:
            raise WindowError(
                f"memory of {memory.nbytes} bytes ({memory.dtype}) does not hold {layout.num_bytes}. "
                "Use writable, contiguous uint8 [num_bytes(n)]."
            )
        table = self._mapped(places) if routes.needs_maps else self.maps.table
        arrays = {
            output.key: np.ndarray(output.shape, output.dtype, memory, output.offset) for output in layout.outputs
        }
        batch = _Batch(places, held, draws or _fresh_draws(len(positions)), arrays, table)
        if self.maps.is_announcing:
            self._announce(batch, routes)
        for route, plan in zip(routes.routes, layout.plans, strict=True):
            tables = route.tables
            if route.is_held and held is not None:
                self._gather(plan, tables.runs, tables.offsets, held.table.addresses, _held_places(batch), memory)
            else:
                self._gather(plan, tables.runs, tables.offsets, table.addresses, self._at(batch, route.at), memory)
        return self._with_others(batch, routes) if routes.others else arrays

    def _at(self, batch: _Batch, at: str) -> Int64s:
        """Return where windows are put."""
        if at == "anchor":
            return batch.places
        if at not in batch.moved:
            batch.moved[at] = moved_places(at, self._final_at[at], batch.places, batch.draws(f"at {at}"))
        return batch.moved[at]

    def _with_others(self, batch: _Batch, routes: Routes) -> dict[str, npt.NDArray[Any]]:
        """Fill what the kernel left out, and return the batch in the order of its fields."""
        arrays = batch.arrays
        for each, rest in routes.others:
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
        return {key: arrays[key] for each in self.fields.values() for key in _keys_of(each)}

    def _fill(  # noqa: PLR0917
        self,
        field: ResolvedField,
        source: Source,
        out: npt.NDArray[Any],
        batch: _Batch,
        has_marks: bool,
        is_held: bool,
    ) -> None:
        """Decode or compute one source of a field into ``out`` [n * K, ...], and mark its padding."""
        places = self._at(batch, field.field.at)
        rows, is_pad = window_rows(field, source.is_final, places)
        if field.has_mask:
            mask = batch.arrays[field.mask_key].reshape(is_pad.shape)
            np.logical_or(mask, is_pad, out=mask) if has_marks else np.copyto(mask, is_pad)
        if source.kind == "virtual":
            values = np.broadcast_to(self._virtual.compute(source.name, places, rows), rows.shape)
            out[...] = (np.where(is_pad, 0, values) if field.pad == "zero" else values).reshape(-1)
            return
        wanted = (np.where(is_pad, -1, rows) if field.pad == "zero" else rows).reshape(-1)
        if is_held:
            self._convert_held(field, source, wanted, out, batch)
            return
        segments, los, his = (
            np.repeat(places[place], rows.shape[1]) for place in (SEGMENT, LO, HI_FINAL if source.is_final else HI_STEP)
        )
        cells = Cells(batch.table, segments, wanted, los, his)
        try:
            self._decode(field, source, cells, out, batch)
        except RowError as error:
            raise self._error(field, source, places, error, rows) from error.cause

    def _decode(self, field: ResolvedField, source: Source, cells: Cells, out: npt.NDArray[Any], batch: _Batch) -> None:
        column = self._decoders[source.name]
        done = batch.decoded.setdefault(source.name, {})
        if source.kind == "ragged":
            column.read_objects(cells, out)
        elif source.decoder is None:
            column.read_into(cells, out, done)
        else:
            drawn = self._draw(field, source, batch)
            draws = None if drawn is None else np.repeat(drawn, len(out) // len(drawn), axis=0)
            column.convert_into(cells, out, done, source.decoder, draws)

    def _draw(self, field: ResolvedField, source: Source, batch: _Batch) -> npt.NDArray[Any] | None:
        """Return what a field's decoder draws for each window, [n, ...]."""
        decoder, feature = source.decoder, source.feature
        if decoder is None or feature is None or not decoder.is_random or not batch.places.shape[1]:
            return None
        purpose = f"key {decoder.key}" if decoder.key is not None else f"decoder of {field.key}"
        return decoder.draw(feature, batch.draws(purpose))

    def _convert_held(
        self, field: ResolvedField, source: Source, rows: Int64s, out: npt.NDArray[Any], batch: _Batch
    ) -> None:
        """Let a decoder that draws make steps of rows that are held whole."""
        number = column_of(self._held, source)
        if batch.held is None or number is None or source.decoder is None:
            raise WindowError(f"field {field.key!r} is not among the held columns.")
        column, drawn = self._held[number], self._draw(field, source, batch)
        per_window = len(rows) // max(1, len(batch.held.columns))
        bases = np.repeat(batch.held.table.addresses[2 * number, batch.held.columns], per_window)
        addresses = (bases + rows * column.row_bytes).tolist()
        for i, row in enumerate(rows.tolist()):
            if row < 0:
                out[i] = np.zeros((), out.dtype)
            else:
                draw = None if drawn is None else drawn[i // per_window]
                source.decoder.convert(row_at(addresses[i], column), out[i, ...], draw)

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

    def _announce(self, batch: _Batch, routes: Routes) -> None:
        """Tell the system which bytes of files a batch is about to read, so that it fetches them all at once."""
        for each in self.fields.values():
            if each.key in routes.held:
                continue
            places = self._at(batch, each.field.at)
            for source in each.sources:
                if source.kind == "raw":
                    self._announce_raw(each, source, places, batch.table)
                elif source.kind != "virtual":
                    self._announce_encoded(each, source, places, batch.table)

    def _announce_raw(self, field: ResolvedField, source: Source, places: Int64s, table: MapTable) -> None:
        from stepwell.kernels.gather import runs_of
        from stepwell.kernels.spans import announce

        rows, _ = window_rows(field, source.is_final, places)
        bases = table.addresses[self._slots[source.name], places[SEGMENT]]
        for _, number, start in runs_of(field.offsets.tolist()):
            first, last = rows[:, start], rows[:, start + number - 1]
            announce(bases + first * source.row_bytes, (last - first + 1) * source.row_bytes)

    def _announce_encoded(self, field: ResolvedField, source: Source, places: Int64s, table: MapTable) -> None:
        from stepwell.kernels.spans import announce

        rows, _ = window_rows(field, source.is_final, places)
        segments = np.repeat(places[SEGMENT], rows.shape[1])
        try:
            announce(*self._decoders[source.name].addresses(table, segments, rows.reshape(-1)))
        except RowError as error:
            raise self._error(field, source, places, error, rows) from error.cause

    def _error(
        self, field: ResolvedField, source: Source, places: Int64s, error: RowError, rows: Int64s
    ) -> LoaderError:
        anchor, row = error.index // rows.shape[1], int(rows.reshape(-1)[error.index])
        segment = int(places[SEGMENT, anchor])
        return LoaderError(
            f"{self._where(places, anchor, row)}, field {field.key!r} ({self.maps.file_of(source.name, segment)}): "
            f"{error.cause}"
        )

    def _where(self, places: Int64s, anchor: int, row: int) -> str:
        return self.index.where(int(places[SEGMENT, anchor]), row)

    def _layout(self, num_anchors: int, is_held: bool) -> Layout:
        layout = self._layouts.get((num_anchors, is_held))
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts = {}
            routes = self._held_routes if is_held else self._plain_routes
            tables = [route.tables for route in routes.routes]
            layout = make_layout(list(self.fields.values()), tables, num_anchors)
            self._layouts[num_anchors, is_held] = layout
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
        sizes = f"{counted(self.index.num_anchors, 'anchor')}  {counted(self.sample_bytes, 'byte')} each"
        return f"<WindowReader {', '.join(self.fields)}  {sizes}>"


def _rebuild(
    view: View, fields: Mapping[str, Any] | None, max_maps: int, memory_bytes: int | None, page_cache: bool
) -> WindowReader:
    return WindowReader(view, fields, max_maps=max_maps, memory_bytes=memory_bytes, page_cache=page_cache)


def _fresh_draws(count: int) -> Drawing:
    """Return draws that nobody else has; the windows of one call of `read` agree on them."""
    key = np.frombuffer(os.urandom(16), np.uint64)

    def draw(purpose: str) -> Draws:
        word = np.frombuffer(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), np.uint64)
        return Draws.of(key ^ word, np.arange(count))

    return draw


def _held_places(batch: _Batch) -> Int64s:
    """Return the anchors' places with the piece that holds each in the place of its segment."""
    places = batch.places.copy()
    if batch.held is not None:
        places[SEGMENT] = batch.held.columns
    return places


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
