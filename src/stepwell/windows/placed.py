"""From places to a batch: what every reader shares, wherever its places come from.

::

    places int64 [6, n]                  episode, segment, row, lo, hi_step, hi_final of each anchor
        | touch                          are all rows of the batch mapped?                    1 kernel call
        | announce                       only when the files do not fit in memory             1 kernel call a column
        | gather                         every raw field, every held one                      1 kernel call each
        | Filler                         fields that must be decoded or computed
    dict of key to array [n, *window, *step]

Held rows (`stepwell.windows.held`) were decoded before; to the kernel they are raw rows at another address. Which
source comes from where is said in `stepwell.windows.routing`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, WindowError
from stepwell.kernels.draws import Draws
from stepwell.schema import Schema
from stepwell.windows.announcing import announce_batch
from stepwell.windows.chains import Chained, outer
from stepwell.windows.decoding import ColumnDecoder
from stepwell.windows.filling import Filler
from stepwell.windows.held import HeldRows
from stepwell.windows.layouts import GatherTables, Layout, aligned_empty, make_layout
from stepwell.windows.maps import MAX_MAPS, Column, MapError, MapTable, SegmentMaps
from stepwell.windows.reach import reaches
from stepwell.windows.resolved import ResolvedField, Source, schema_of
from stepwell.windows.routing import Routes, held_columns, make_routes
from stepwell.windows.rows import moved_places
from stepwell.windows.scattered import read_scattered
from stepwell.windows.sources import JoinedSources

__all__ = ["PlaceBatch", "PlaceReader"]

Int64s = npt.NDArray[np.int64]
Drawing = Callable[[str], Draws]
SEGMENT, ROW = 1, 2  # rows of the places, as the kernels have them
# a training run uses one or two batch sizes; who uses many pays for a new layout now and then
MAX_LAYOUTS = 64
UINT8 = np.dtype(np.uint8)
# more steps than any episode has
ANYWHERE = 1 << 40


@dataclass(slots=True, eq=False)
class PlaceBatch:
    """A batch that is being read.

    Args:
        places: of the anchors.
        parts: the places of each source, with its own numbers.
        chained: the anchors whose windows leave a piece of their episode, or None.
        held: rows, or None.
        draws: random numbers for a purpose, or None until somebody draws.
        arrays: what is written, by key.
        table: of maps; the segments are in it where maps are needed.
        final_at: where windows may be put to whether they may reach a final row there.
        moved: places of windows that are not put at the anchor.
        decoded: rows that were decoded, by column.
    """

    places: Int64s
    parts: Sequence[Int64s]
    chained: Chained | None
    held: HeldRows | None
    draws: Drawing | None
    arrays: dict[str, Any]
    table: MapTable
    final_at: Mapping[str, bool]
    moved: dict[str, Int64s] = field(default_factory=dict)
    decoded: dict[str, dict[int, npt.NDArray[Any]]] = field(default_factory=dict)

    def drawn(self, purpose: str) -> Draws:
        """Return the random numbers of the batch's windows for a purpose."""
        if self.draws is None:
            self.draws = _fresh_draws(self.places.shape[1])
        return self.draws(purpose)

    def at(self, where: str) -> Int64s:
        """Return where windows are put, int64 [6, n]."""
        if where == "anchor":
            return self.places
        if where not in self.moved:
            self.moved[where] = moved_places(where, self.final_at[where], self.places, self.drawn(f"at {where}"))
        return self.moved[where]


class PlaceReader:
    """Read windows at places.

    Args:
        sources: of the places.
        fields: key to resolved field, in the batch's order.
        max_maps: how many files may be mapped at a time.
        memory_bytes: what may be used to keep files cached; default: what is available when the first file is mapped.
        page_cache: False where held rows are read past the page cache, those of raw fields too.
        known: maps of an older reader of the same segments.

    Attributes:
        sources: as given.
        fields: as given.
        is_raw: whether nothing has to be decoded: all is copied from maps.
        sample_bytes: decoded bytes of one sample, masks and ragged fields not counted.
        maps: the `SegmentMaps` that it reads through.
        columns: the columns that can be held.
        decoders: name of a column to its `ColumnDecoder`, of those that any store encodes.
        slots: name of a column to its row in the table of maps.

    Notes:
        Thread-safe: any number of `read` and `follow` at once.
    """

    def __init__(
        self,
        sources: JoinedSources,
        fields: dict[str, ResolvedField],
        *,
        max_maps: int = MAX_MAPS,
        memory_bytes: int | None = None,
        page_cache: bool = True,
        known: SegmentMaps | None = None,
    ) -> None:
        from stepwell.kernels.chains import are_mapped, gather_chained
        from stepwell.kernels.gather import gather
        from stepwell.kernels.locate import touch

        # bound once: import statements in `read` would cost as much as a kernel's call
        self._gather, self._gather_chained, self._touch, self._are_mapped = gather, gather_chained, touch, are_mapped
        self.sources, self.fields = sources, fields
        resolved = list(fields.values())
        self.sample_bytes = sum(each.num_bytes for each in resolved)
        is_moved = any(each.field.at != "anchor" for each in resolved)
        self._reach = (
            min([0, *(each.min_offset for each in resolved), -ANYWHERE * is_moved]),
            max([0, *(each.max_offset for each in resolved), ANYWHERE * is_moved]),
        )
        columns = _columns_of(resolved, [schema_of(store) for store in sources.stores])
        self.maps = SegmentMaps(
            sources.segments,
            sources.segment_stores,
            sources.need_rows,
            columns,
            max_maps=max_maps,
            memory_bytes=memory_bytes,
            known=known,
        )
        self.slots = {column.name: 2 * i for i, column in enumerate(columns)}
        self.columns = held_columns(reaches(resolved), page_cache)
        self._plain_routes = make_routes(resolved, self.slots)
        self._held_routes = make_routes(resolved, self.slots, self.columns)
        self._layouts: dict[tuple[int, bool], Layout] = {}
        self._final_at: dict[str, bool] = {
            each.field.at: all(s.is_final for f in resolved if f.field.at == each.field.at for s in f.sources)
            for each in resolved
        }
        encoded = {source.name for each in resolved for source in each.sources if source.kind not in {"raw", "virtual"}}
        self.decoders = {
            column.name: ColumnDecoder(column, i, sources.segment_stores)
            for i, column in enumerate(columns)
            if column.name in encoded
        }
        self.is_raw = not any(self._needs_decoding(source) for each in resolved for source in each.sources)
        self._filler = Filler(sources, self.maps, self.columns, self.decoders)

    def _needs_decoding(self, source: Source) -> bool:
        if source.kind == "encoded":
            return not self.decoders[source.name].only_copies
        return source.kind in {"converted", "ragged"}

    def num_bytes(self, num_anchors: int) -> int:
        """Return the bytes of memory that a batch of ``num_anchors`` takes."""
        return self._layout(num_anchors, False).num_bytes

    def follow(self) -> None:
        """Take in what its sources got and lost."""
        self.maps.follow(self.sources.state)
        for decoder in self.decoders.values():
            decoder.follow(self.sources.segment_stores)

    def read(
        self,
        places: Int64s,
        memory: npt.NDArray[np.uint8] | None = None,
        *,
        parts: Sequence[Int64s] | None = None,
        held: HeldRows | None = None,
        draws: Drawing | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Read a batch.

        Args:
            places: int64 [6, n]: episode, segment, row, lo, hi_step, hi_final, as `AnchorIndex.places`; or [9, n] with
                lo, hi_step and hi_final of the whole episode, counted in rows of the piece that a ring cut it into.
            memory: uint8 [>= num_bytes(n)], contiguous, best at a multiple of 64 bytes. Default: new.
            parts: the same places of each source, with its own numbers; needed when there are several.
            held: the anchors' rows, loaded before. Default: they are decoded here, each once a batch.
            draws: the random numbers of the n windows for a purpose. Default: others at every call.

        Returns:
            See `WindowReader.read`.

        Raises:
            LoaderError: a row could not be read; names store, episode and step, and chains the cause.
            WindowError: memory that does not hold the batch.
        """
        is_held = held is not None
        size = places.shape[1]
        layout = self._layouts.get((size, is_held)) or self._layout(size, is_held)
        if memory is None:
            memory = aligned_empty(layout.num_bytes)
        elif memory.nbytes < layout.num_bytes or memory.dtype != UINT8 or not memory.flags.carray:
            raise WindowError(
                f"memory of {memory.nbytes} bytes ({memory.dtype}) does not hold {layout.num_bytes}. "
                "Use writable, contiguous uint8 [num_bytes(n)]."
            )
        routes = self._held_routes if is_held else self._plain_routes
        maps = self.maps
        table = maps.table
        parts, chained = parts or (places,), None
        if self.sources.has_chains:
            places, parts, chained = self.sources.chained(places, parts, *self._reach)
        scattered = None
        if routes.needs_maps:
            if self._touch(places, table.num_rows, table.last_used, maps.tick()):
                if routes.is_plain and chained is None and not self.sources.is_live:
                    scattered = read_scattered(maps, table, places, routes.routes[0].tables.plan)
                if scattered is None:
                    table = self._mapped(places, np.unique(places[SEGMENT]))
            if chained is not None and not self._are_mapped(
                places, chained.chosen, chained.at, chained.pieces, *self._reach, table.num_rows
            ):
                table = self._mapped(places, np.union1d(chained.reached(places, *self._reach), places[SEGMENT]))
        arrays = {key: np.ndarray(shape, dtype, memory, start) for key, shape, dtype, start in layout.views}
        if routes.is_plain and (scattered is not None or not maps.is_announcing):
            tables = routes.routes[0].tables
            bases, at = (table.addresses, places) if scattered is None else (scattered.bases, scattered.places)
            self._gather(layout.plans[0], tables.runs, tables.offsets, bases, at, memory)
            if chained is not None:
                self._copy_chained(layout.plans[0], tables, table, places, chained, memory)
            for each, _ in routes.others:
                self._filler.compute(each, places, parts, arrays)
            return arrays
        batch = PlaceBatch(places, parts, chained, held, draws, arrays, table, self._final_at)
        self._run(batch, routes, layout, memory)
        return self._filler.fill(batch, routes, self.fields) if routes.others else arrays

    def _run(self, batch: PlaceBatch, routes: Routes, layout: Layout, memory: npt.NDArray[np.uint8]) -> None:
        """Let the kernel copy what it can."""
        if self.maps.is_announcing:
            mapped = [each for each in self.fields.values() if each.key not in routes.held]
            announce_batch(batch, mapped, self._filler, self.slots)
        for route, plan in zip(routes.routes, layout.plans, strict=True):
            tables = route.tables
            if route.is_held and batch.held is not None:
                bases, places = batch.held.table.addresses, _held_places(batch.places, batch.held)
                self._gather(plan, tables.runs, tables.offsets, bases, places, memory)
                continue
            bases, places = batch.table.addresses, batch.at(route.at)
            self._gather(plan, tables.runs, tables.offsets, bases, places, memory)
            if batch.chained is not None:
                self._copy_chained(plan, tables, batch.table, places, batch.chained, memory)

    def _copy_chained(  # noqa: PLR0917
        self,
        plan: Int64s,
        tables: GatherTables,
        table: MapTable,
        places: Int64s,
        chained: Chained,
        memory: npt.NDArray[np.uint8],
    ) -> None:
        """Copy the windows that leave a piece of their episode once more, from all pieces that they reach."""
        self._gather_chained(
            plan, tables.offsets, table.addresses, places, chained.chosen, chained.at, chained.pieces, memory
        )

    def widened(self, places: Int64s) -> Int64s:
        """Return places, of a single source, with the bounds of whole episodes where any is in pieces."""
        if self.sources.has_chains:
            places, _, _ = self.sources.chained(places, (places,), -ANYWHERE, ANYWHERE)
        return places

    def _mapped(self, places: Int64s, segments: Int64s) -> MapTable:
        """Return a table in which all segments of a batch are mapped."""
        if self.sources.is_live:
            self.follow()
        try:
            return self.maps.ensure(segments)
        except MapError as error:
            first = int(np.argmax(places[SEGMENT] == error.segment))
            what: object = error.cause
            if isinstance(what, FileNotFoundError):
                name = getattr(self.maps.segments[error.segment], "name", "of it")
                what = f"segment {name} was removed since. Refresh the loader, or sample again."
            where = self.sources.describe(error.segment, int(places[ROW, first]))
            raise LoaderError(f"{where}: {what}") from error.cause

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


def _columns_of(fields: list[ResolvedField], schemas: list[Schema]) -> list[Column]:
    names = dict.fromkeys(source.name for each in fields for source in each.sources if source.kind != "virtual")
    return [Column(name, tuple(schema[name] for schema in schemas)) for name in names]


def _fresh_draws(count: int) -> Drawing:
    """Return draws that nobody else has; the windows of one call of `read` agree on them."""
    key = np.frombuffer(os.urandom(16), np.uint64)

    def draw(purpose: str) -> Draws:
        word = np.frombuffer(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), np.uint64)
        return Draws.of(key ^ word, np.arange(count))

    return draw


def _held_places(places: Int64s, held: HeldRows) -> Int64s:
    """Return the anchors' places with the piece that holds each in the place of its segment."""
    moved = outer(places).copy()
    moved[SEGMENT] = held.columns
    return moved
