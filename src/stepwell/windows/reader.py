"""Readers: from anchors to a batch.

::

    WindowReader    positions of a view's anchors, int64 [n] --- AnchorIndex.places ---.
    PlaceReader     places of one or several sources, int64 [6, n_i] each --- join ----+
                                                                                       v
    places int64 [6, n]                  episode, segment, row, lo, hi_step, hi_final of each anchor
        | touch                          are all rows of the batch mapped?                    1 kernel call
        | announce                       only when the files do not fit in memory             1 kernel call a column
        | gather                         every raw field, every held one                      1 kernel call each
        | Filler                         fields that must be decoded or computed
    dict of key to array [n, *window, *step]

Most batches of plain rows need the kernels only: `WindowReader.read` makes them in one compiled call. Held rows
(`stepwell.windows.blocks`) were decoded before; to the kernel they are raw rows at another address. Which source comes
from where is said in `stepwell.windows.plans`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, WindowError
from stepwell.kernels.draws import Draws
from stepwell.kernels.places import PLACE_ROWS, ROW, SEGMENT
from stepwell.schema import Schema
from stepwell.sizes import counted
from stepwell.windows.blocks import HeldRows, RowLoader, hold_rows
from stepwell.windows.chains import Chained, outer
from stepwell.windows.computed import moved_places
from stepwell.windows.decode import Cells, ColumnDecoder, Decoded, Filler, StoredCells, announce_batch
from stepwell.windows.fields import At, FieldSource, ResolvedField, resolve_fields, schema_of
from stepwell.windows.index import positions_array
from stepwell.windows.maps import MAX_MAPS, MapError, MappedColumn, MapTable, SegmentMaps, read_scattered
from stepwell.windows.plans import (
    BatchArray,
    GatherTables,
    Layout,
    Routes,
    aligned_empty,
    held_columns,
    make_layout,
    make_routes,
    reaches,
)
from stepwell.windows.sources import JoinedSources, PlaceSource, ViewSource
from stepwell.windows.views import View

__all__ = ["Drawing", "PlaceBatch", "PlaceReader", "WindowReader"]

Int64s = npt.NDArray[np.int64]
Drawing = Callable[[str], Draws]
# a training run uses one or two batch sizes; a program that uses many pays for a new layout now and then
MAX_LAYOUTS = 64
UINT8, INT64 = np.dtype(np.uint8), np.dtype(np.int64)
# more steps than any episode has
ANYWHERE = 1 << 40
# a ring may evict segments while others of it are being mapped
MAX_TRIES = 4


@dataclass(slots=True, eq=False)
class PlaceBatch:
    """A batch that is being read."""

    places: Int64s  # of the anchors
    parts: Sequence[Int64s]  # the places of each source, with its own numbers
    chained: Chained | None  # the anchors whose windows leave a piece of their episode, or None
    held: HeldRows | None  # rows, or None
    draws: Drawing | None  # random numbers for a purpose, or None until they are needed
    arrays: dict[str, Any]  # what is written, by key
    table: MapTable  # of maps; the segments are in it where maps are needed
    # where windows are put (``Field(at=...)``) to whether they may reach the episode's final row
    final_at: Mapping[At, bool]
    moved: dict[At, Int64s] = field(default_factory=dict)  # places of windows that are not put at the anchor
    decoded: dict[str, Decoded] = field(default_factory=dict)  # rows that were decoded, by column
    # rows and padding of windows, and the cells that are read: columns with the same windows share them
    windows: dict[Any, tuple[Int64s, npt.NDArray[np.bool_], Cells]] = field(default_factory=dict)

    def drawn(self, purpose: str) -> Draws:
        """Return the random numbers of the batch's windows for a purpose."""
        if self.draws is None:
            self.draws = _fresh_draws(self.places.shape[1])
        return self.draws(purpose)

    def at(self, where: At) -> Int64s:
        """Return where windows are put, int64 [6, n]."""
        if where == "anchor":
            return self.places
        if where not in self.moved:
            self.moved[where] = moved_places(where, self.final_at[where], self.places, self.drawn(f"at {where}"))
        return self.moved[where]


class PlaceReader:
    """Read windows at places of one or several sources, which may grow meanwhile.

    Args:
        sources: where places come from: a `stepwell.windows.sources.ViewSource`, a `stepwell.replay.history.History`.
        fields: key to `Field`, name of a feature, or offsets; None: every feature at the anchor. Every source's stores
            must have them, with the same shapes and dtypes; codecs may differ.
        max_maps: how many files may be mapped at a time.
        memory_bytes: memory for cached files; default: the memory available when the first file is mapped.
        page_cache: False where held rows are read past the page cache, those of raw fields too.

    Attributes:
        fields: key to `ResolvedField`, in the batch's order.
        is_raw: whether nothing has to be decoded: all is copied from maps.
        sample_bytes: decoded bytes of one sample, masks and ragged fields not counted.
        min_offset: the earliest step that any field reads, counted from the anchor; at most 0.
        max_offset: the latest; at least 0. Windows that are not placed at the anchor do not count.
        maps: the `SegmentMaps` that it reads through.
        columns: the columns that can be held.
        decoders: name of a column to its `ColumnDecoder`, of those that any store encodes.
        slots: name of a column to its row in the table of maps.

    Raises:
        WindowError: a field that does not fit the stores, or stores that do not agree.
        FeatureNotFoundError: no such feature.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.windows.sources import ViewSource
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well")
        >>> with store.writer() as writer:
        ...     episode = writer.add_episode({"action": [0, 1, 2]})
        >>> source = ViewSource(stepwell.View(store))
        >>> reader = PlaceReader([source], {"action": [0, 1]})
        >>> reader.read_places([source.places(np.array([0, 2]))])["action"].tolist()
        [[0, 1], [2, 2]]

    Notes:
        Thread-safe: any number of reads at once, also while sources grow. Old maps are let go when the last read that
        holds them is over. After a fork both processes go on. Segments that a ring may remove are mapped when they are
        first seen.
    """

    def __init__(
        self,
        sources: Sequence[PlaceSource],
        fields: Mapping[str, Any] | None = None,
        *,
        max_maps: int = MAX_MAPS,
        memory_bytes: int | None = None,
        page_cache: bool = True,
    ) -> None:
        joined = JoinedSources(sources)
        self._prepare(joined, resolve_fields(fields, joined.stores), max_maps, memory_bytes, page_cache)
        self._map_rings()

    def _prepare(  # noqa: PLR0917
        self,
        sources: JoinedSources,
        fields: dict[str, ResolvedField],
        max_maps: int,
        memory_bytes: int | None,
        page_cache: bool,
        known: SegmentMaps | None = None,
    ) -> None:
        from stepwell.kernels.chains import are_mapped, gather_chained
        from stepwell.kernels.gather import gather, touch_and_gather
        from stepwell.kernels.locate import touch

        # bound once: import statements in `read` would cost as much as a kernel's call
        self._gather, self._gather_chained, self._touch, self._are_mapped = gather, gather_chained, touch, are_mapped
        self._touch_and_gather = touch_and_gather
        self.sources, self.fields, self.page_cache = sources, fields, page_cache
        resolved = list(fields.values())
        self.sample_bytes = sum(each.num_bytes for each in resolved)
        anchored = [each for each in resolved if each.field.at == "anchor"]
        self.min_offset = min([0, *(each.min_offset for each in anchored)])
        self.max_offset = max([0, *(each.max_offset for each in anchored)])
        is_moved = len(anchored) < len(resolved)
        self._reach = (-ANYWHERE, ANYWHERE) if is_moved else (self.min_offset, self.max_offset)
        columns = _columns_of(resolved, [schema_of(store) for store in sources.stores])
        self.maps = SegmentMaps(
            sources.segments,
            sources.segment_stores,
            sources.need_rows,
            columns,
            max_maps=max_maps,
            # nothing is fetched ahead of a read that goes past the page cache
            memory_bytes=memory_bytes if page_cache else 0,
            known=known,
        )
        self.slots = {column.name: 2 * i for i, column in enumerate(columns)}
        self.columns = held_columns(reaches(resolved), page_cache)
        self._plain_routes = make_routes(resolved, self.slots)
        self._held_routes: dict[frozenset[str], Routes] = {}
        self._layouts: dict[tuple[int, Routes], Layout] = {}
        self._final_at: dict[At, bool] = {
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
        self._filler = Filler(sources, self.maps, self.columns, self.decoders, fields, self.slots)

    def _needs_decoding(self, source: FieldSource) -> bool:
        if source.kind == "encoded":
            return not self.decoders[source.name].only_copies
        return source.kind in {"converted", "ragged", "rated"}

    @property
    def shares_rows(self) -> bool:
        """Whether rows of neighbouring anchors cost less together: of windows that overlap, runs, files."""
        if self.maps.is_announcing or self.maps.is_crowded or any(each.is_reference for each in self.decoders.values()):
            return True
        return any(column.is_sequential or column.first < column.last for column in self.columns)

    def num_bytes(self, num_anchors: int) -> int:
        """Return the bytes of memory that a batch of ``num_anchors`` takes."""
        return self._layout(num_anchors, self._plain_routes).num_bytes

    def read_places(
        self,
        places: Sequence[Int64s],
        memory: npt.NDArray[np.uint8] | None = None,
        *,
        draws: Drawing | None = None,
        chained: Chained | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Read a batch.

        Args:
            places: int64 [6, n_i] of each source, C-contiguous, with the source's own numbers; n_i may be 0. The rows
                of the batch come in this order.
            memory: uint8 [>= num_bytes(n)], contiguous, best at a multiple of 64 bytes (see `aligned_empty`). Default:
                new.
            draws: the random numbers of the n windows for a purpose. Default: others at every call.
            chained: the anchors whose windows leave the piece of an episode that they are in, with places [9, n], where
                the source does not know of pieces.

        Returns:
            Key to array [n, *window, *step], each a 64-byte aligned view of ``memory``, and ``<key>_is_pad`` to its
            mask; a ragged field's is an object array [n, *window].

        Raises:
            LoaderError: a row could not be read; names store, episode and step, and chains the cause: a
                FileNotFoundError where its segment was removed.
            WindowError: places of another number of sources, or memory that does not hold the batch.
        """
        sources = self.sources
        if len(places) != len(sources.sources):
            raise WindowError(f"places of {len(places)} sources, {len(sources.sources)} are needed. Empty ones count.")
        if sources.is_live:
            self._catch_up()
        joined = places[0] if sources.is_single else sources.join(places)
        return self._read(joined, places, memory, None, draws, chained)

    def read_stored(self, places: Sequence[Int64s]) -> tuple[dict[str, StoredCells], dict[str, list[memoryview]]]:
        """Return rows as they are stored, each distinct one once, where every field is of one encoded column.

        Args:
            places: as of `read_places`.

        Returns:
            Key to the numbers of its rows, int32 [n, *window] (-1 means zeros), and its mask or None; name of a column
            to the encoded bytes of these rows, views of maps that stay as long as they do.

        Raises:
            LoaderError: as `read_places`.
        """
        if self.sources.is_live:
            self._catch_up()
        parts: Sequence[Int64s] = places
        joined, chained = places[0] if self.sources.is_single else self.sources.join(places), None
        if self.sources.has_chains:
            joined, parts, chained = self.sources.chained(joined, parts, *self._reach)
        segments = np.unique(joined[SEGMENT])
        if chained is not None:
            segments = np.union1d(chained.reached(joined, *self._reach), segments)
        table = self._mapped(joined, segments) if len(segments) else self.maps.table
        batch = PlaceBatch(joined, parts, chained, None, None, {}, table, self._final_at)
        return self._filler.stored(batch)

    def gathering(self, size: int) -> tuple[Any, ...] | None:
        """Return what `stepwell.kernels.gather.touch_and_gather` takes between the places and the memory.

        For a kernel that finds the places itself, of a single source, in one thread.

        Args:
            size: of the batch.

        Returns:
            None where that is not all there is to do, but for computed fields.
        """
        sources, maps = self.sources, self.maps
        if sources.is_live and not sources.is_current:
            self._catch_up()
        routes = self._plain_routes
        if not routes.is_plain or maps.is_announcing:
            return None
        table, layout = maps.table, self._layouts.get((size, routes)) or self._layout(size, routes)
        tables = routes.routes[0].tables
        maps.clock += 1
        return (
            table.num_rows, table.last_used, maps.clock,
            layout.plans[0], tables.runs, tables.offsets, table.addresses,
        )  # fmt: skip

    @property
    def computed(self) -> list[ResolvedField]:
        """The computed fields, of which `gathering` knows nothing."""
        return [field for field, _ in self._plain_routes.others]

    def views(self, size: int) -> tuple[BatchArray, ...]:
        """Return the arrays in the memory of a batch as (key, shape, dtype, offset), but for ragged fields."""
        return self._layout(size, self._plain_routes).views

    def compute(self, fields: Sequence[ResolvedField], places: Int64s, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Compute some of the computed fields at places, int64 [6, n], of a single source."""
        for each in fields:
            self._filler.compute(each, places, (places,), arrays)

    def _catch_up(self) -> None:
        # sources are current before their segments are taken in: no other thread reads until they are
        with self.maps.following:
            if not self.sources.is_current:
                self._follow()
                self._map_rings()

    def _follow(self) -> None:
        """Take in what the sources got and lost."""
        self.maps.follow(self.sources.state)
        for decoder in self.decoders.values():
            decoder.follow(self.sources.segment_stores)

    def _map_rings(self) -> None:
        """Map what a ring may remove before it is read for the first time."""
        table = self.maps.table
        for number in self.sources.ring_segments.tolist():
            if table.num_rows[number] < 0 and self.maps.segments[number] is not None:
                try:
                    table = self.maps.ensure(np.array([number]))
                except MapError:
                    # gone already: a read of its rows says so
                    continue

    def _read(  # noqa: PLR0917
        self,
        places: Int64s,
        parts: Sequence[Int64s],
        memory: npt.NDArray[np.uint8] | None,
        held: HeldRows | None,
        draws: Drawing | None,
        chained: Chained | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Return a batch of places of all sources; [9, n] have the bounds of episodes that are in pieces."""
        routes = self._plain_routes if held is None else self._routes_of(held)
        size = places.shape[1]
        layout = self._layouts.get((size, routes)) or self._layout(size, routes)
        if memory is None:
            memory = aligned_empty(layout.num_bytes)
        elif memory.nbytes < layout.num_bytes or memory.dtype != UINT8 or not memory.flags.carray:
            raise _too_small(memory, layout)
        maps = self.maps
        table, scattered = maps.table, None
        if self.sources.has_chains:
            places, parts, chained = self.sources.chained(places, parts, *self._reach)
        arrays = {}
        for key, shape, dtype, start in layout.views:
            arrays[key] = np.ndarray(shape, dtype, memory, start)
        is_plain = routes.is_plain and not maps.is_announcing
        # two reads at once may get the same time: it only says which maps were used last
        maps.clock += 1
        if is_plain and chained is None and self._is_copied(places, layout, memory):
            return self._computed(places, parts, arrays)
        table = maps.table
        if routes.needs_maps:
            if self._touch(places, table.num_rows, table.last_used, maps.clock):
                if routes.is_plain and chained is None and not self.sources.is_live:
                    scattered = read_scattered(maps, table, places, routes.routes[0].tables.plan)
                if scattered is None:
                    table = self._mapped(places, np.unique(places[SEGMENT]))
            if chained is not None and not self._are_mapped(
                places, chained.chosen, chained.at, chained.pieces, *self._reach, table.num_rows
            ):
                table = self._mapped(places, np.union1d(chained.reached(places, *self._reach), places[SEGMENT]))
        if is_plain or scattered is not None:
            tables = routes.routes[0].tables
            bases, at = (table.addresses, places) if scattered is None else (scattered.bases, scattered.places)
            self._gather(layout.plans[0], tables.runs, tables.offsets, bases, at, memory)
            if chained is not None:
                self._copy_chained(layout.plans[0], tables, table, places, chained, memory)
            return self._computed(places, parts, arrays)
        batch = PlaceBatch(places, parts, chained, held, draws, arrays, table, self._final_at)
        self._copy(batch, routes, layout, memory)
        return self._filler.fill(batch, routes) if routes.others else arrays

    def _is_copied(self, places: Int64s, layout: Layout, memory: npt.NDArray[np.uint8]) -> bool:
        """Copy plain rows, mapped first where they are not; return False where there are more files than maps."""
        maps, tables = self.maps, self._plain_routes.routes[0].tables
        table = maps.table
        for is_last in (False, True):
            touched = places, table.num_rows, table.last_used, maps.clock
            to_copy = layout.plans[0], tables.runs, tables.offsets, table.addresses, memory
            if not self._touch_and_gather(*touched, *to_copy):
                return True
            if is_last or maps.is_crowded:
                break
            table = self._mapped(places, np.unique(places[SEGMENT]))
        return False

    def _computed(self, places: Int64s, parts: Sequence[Int64s], arrays: dict[str, Any]) -> dict[str, Any]:
        """Return a batch of plain rows with its computed fields."""
        for each, _ in self._plain_routes.others:
            self._filler.compute(each, places, parts, arrays)
        return arrays

    def _copy(self, batch: PlaceBatch, routes: Routes, layout: Layout, memory: npt.NDArray[np.uint8]) -> None:
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
            bases = batch.table.addresses
            places = batch.places if route.at == "anchor" else batch.at(route.at)
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

    def _mapped(self, places: Int64s, segments: Int64s) -> MapTable:
        """Return a table in which all segments of a batch are mapped."""
        if self.sources.is_live:
            self._follow()
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

    def _routes_of(self, held: HeldRows) -> Routes:
        routes = self._held_routes.get(held.in_place)
        if routes is None:
            routes = make_routes(list(self.fields.values()), self.slots, self.columns, held.in_place)
            self._held_routes[held.in_place] = routes
        return routes

    def _layout(self, num_anchors: int, routes: Routes) -> Layout:
        layout = self._layouts.get((num_anchors, routes))
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts = {}
            tables = [route.tables for route in routes.routes]
            layout = make_layout(list(self.fields.values()), tables, num_anchors, routes.in_place)
            self._layouts[num_anchors, routes] = layout
        return layout

    def __repr__(self) -> str:
        return f"<PlaceReader {', '.join(self.fields)}  {counted(len(self.sources.sources), 'source')}>"


class WindowReader(PlaceReader):
    """Read windows around the anchors of a view: from their positions to a batch.

    Args:
        view: the episodes.
        fields: key to `Field`, name of a feature, or offsets; None: every feature at the anchor.
        max_maps: how many files may be mapped at a time.
        memory_bytes: memory for cached files; default: the memory available when the first file is mapped.
            See `stepwell.windows.maps`.
        page_cache: False reads rows into memory of its own, past the page cache: for stores much
            larger than memory. Offsets of encoded rows, ragged features and windows that are placed elsewhere than at
            the anchor are read through maps all the same.

    Attributes:
        view: the episodes.
        index: the `AnchorIndex`.
        page_cache: as given. Other attributes: see `PlaceReader`.

    Raises:
        WindowError: a field that does not fit the stores or any episode, or stores that do not agree.
        FeatureNotFoundError: no such feature.

    Notes:
        Thread-safe: any number of `read` at once. Pickles as its view and fields, and maps files again; after a fork
        both processes go on with the maps there are. Transforms are not applied here but by the loader, which knows
        the epoch. All segments of a ring are mapped when it is made, so that it can be read however far the writer
        gets; if one has gone since the view was made, the view is refreshed first.
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
        from stepwell.kernels.gather import locate_and_gather

        self._locate_and_gather = locate_and_gather
        self._arguments = (fields, max_maps, memory_bytes, page_cache)
        self._look_at(view, _known)
        for _ in range(MAX_TRIES):
            if self._map_view():
                break
            self._look_at(view.refresh(), _known)

    def _look_at(self, view: View, known: WindowReader | None) -> None:
        fields, max_maps, memory_bytes, page_cache = self._arguments
        self.view = view
        source = ViewSource(view, fields)
        self.index = source.index
        maps = None if known is None else known.maps
        self._prepare(JoinedSources([source]), source.fields, max_maps, memory_bytes, page_cache, maps)
        routes = self._plain_routes
        # what one compiled call copies, where nothing else is to be done
        is_plain = page_cache and routes.is_plain and routes.needs_maps and not self.sources.has_chains
        self._plain_tables = routes.routes[0].tables if is_plain else None

    def _map_view(self) -> bool:
        """Map all that a ring may remove; return False where a segment is gone already."""
        if not any(store.capacity is not None for store in self.view.stores):
            return True
        try:
            self.maps.ensure(np.flatnonzero(self.sources.need_rows))
        except MapError as error:
            # what is wrong with a file is said when it is read
            return not isinstance(error.cause, FileNotFoundError)
        return True

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
        """The loader of held rows: those that need decoding, or, past the page cache, all of fixed shape."""
        return RowLoader(self.index, self.maps, self.columns, self.decoders, self.slots, page_cache=self.page_cache)

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
            held: the anchors' rows, loaded by `row_loader`. Default: they are decoded here, each once a batch. Of the
                keys in ``held.in_place``, where they show one column of uint8, the rows are not copied: such a key's
                array is a `stepwell.windows.plans.HeldArray`.
            draws: the random numbers of the n windows for a purpose; for decoders that draw, and for windows that are
                not put at the anchor. Default: others at every call.

        Returns:
            Key to array [n, *window, *step], each a 64-byte aligned view of ``memory``, and ``<key>_is_pad`` to its
            mask; a ragged field's is an object array [n, *window].

        Raises:
            LoaderError: a row could not be read; names store, episode and step, and chains the cause.
            WindowError: a position that is no anchor, or memory that does not hold the batch.
        """
        if type(positions) is not np.ndarray or positions.dtype != INT64 or not positions.flags.carray:
            positions = positions_array(positions)
        maps, tables = self.maps, self._plain_tables
        if tables is not None and held is None and not maps.is_announcing:
            # most batches: one compiled call, and as few others as can be
            size = len(positions)
            table = maps.table
            routes = self._plain_routes
            layout = self._layouts.get((size, routes)) or self._layout(size, routes)
            if memory is None:
                memory = aligned_empty(layout.num_bytes)
            elif memory.nbytes < layout.num_bytes or memory.dtype != UINT8 or not memory.flags.carray:
                raise _too_small(memory, layout)
            places = np.empty((PLACE_ROWS, size), np.int64)
            maps.clock += 1
            for is_last in (False, True):
                num_missing = self._locate_and_gather(
                    positions,
                    *self.index.tables,
                    places,
                    table.num_rows,
                    table.last_used,
                    maps.clock,
                    layout.plans[0],
                    tables.runs,
                    tables.offsets,
                    table.addresses,
                    memory,
                )
                if num_missing == 0:
                    arrays = {}
                    for key, shape, dtype, start in layout.views:
                        arrays[key] = np.ndarray(shape, dtype, memory, start)
                    return self._computed(places, (places,), arrays) if routes.others else arrays
                if num_missing < 0 or is_last or maps.is_crowded:
                    break
                table = self._mapped(places, np.unique(places[SEGMENT]))
        places = self.index.places(positions)
        if held is None and not self.page_cache:
            if self.sources.has_chains:
                places, _, _ = self.sources.chained(places, (places,), -ANYWHERE, ANYWHERE)
            held = hold_rows(self.row_loader, places)
        return self._read(places, (places,), memory, held, draws)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.view, *self._arguments)

    def __repr__(self) -> str:
        sizes = f"{counted(self.index.num_anchors, 'anchor')}  {counted(self.sample_bytes, 'byte')} each"
        return f"<WindowReader {', '.join(self.fields)}  {sizes}>"


def _rebuild(
    view: View, fields: Mapping[str, Any] | None, max_maps: int, memory_bytes: int | None, page_cache: bool
) -> WindowReader:
    return WindowReader(view, fields, max_maps=max_maps, memory_bytes=memory_bytes, page_cache=page_cache)


def _too_small(memory: npt.NDArray[np.uint8], layout: Layout) -> WindowError:
    return WindowError(
        f"memory of {memory.nbytes} bytes ({memory.dtype}) does not hold {layout.num_bytes}. "
        "Use writable, contiguous uint8 [num_bytes(n)]."
    )


def _columns_of(fields: list[ResolvedField], schemas: list[Schema]) -> list[MappedColumn]:
    found = [source for each in fields for source in each.sources if source.kind != "virtual"]
    names = dict.fromkeys([*(source.name for source in found), *(source.times for source in found if source.times)])
    return [MappedColumn(name, tuple(schema[name] for schema in schemas)) for name in names]


def _fresh_draws(count: int) -> Drawing:
    """Return draws of their own for one call of `read`; its windows agree on them."""
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
