"""The plan of a batch's read: the rows to be there, the source of each field, and the place of each output.

The rows of a column that all fields together reach around an anchor are its `Reach`. Which rows the kernel copies::

    source                    not held                 held, page_cache=True       held, page_cache=False
    raw                       kernel, maps             kernel, maps                kernel, held rows
    encoded                   ColumnDecoder            kernel, held rows           kernel, held rows
    converted by a decoder    ColumnDecoder            kernel, held rows           kernel, held rows
      ... drawn a window      ColumnDecoder            the decoder, of held rows   the decoder, of held rows
    ... of uint8, in place    as above                 addresses of held rows      addresses of held rows
      ... of any size         ColumnDecoder            ColumnDecoder               ColumnDecoder
    ragged                    ColumnDecoder            ColumnDecoder               ColumnDecoder
    virtual                   ComputedWindows          ComputedWindows             ComputedWindows

Windows that are placed elsewhere than at the anchor (``Field(at=...)``) are never held. All sources of a field that is
held are, so that one call of the kernel writes its mask. The arrays of a batch lie in one memory, planned once for each
batch size::

    memory  |observation......|pad|observation_is_pad|pad|action........|pad|...
            0                 64-byte aligned        64-byte aligned
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Decoder, SequentialCodec, make_codec
from stepwell.errors import CorruptSegmentError, LoaderError, WindowError
from stepwell.windows.fields import At, FieldSource, ResolvedField
from stepwell.windows.views import Part

__all__ = [
    "ALIGNMENT",
    "PIECE_ANCHOR",
    "PIECE_COLUMNS",
    "PIECE_FIRST",
    "PIECE_HI_FINAL",
    "PIECE_HI_STEP",
    "PIECE_LAST",
    "PIECE_LO",
    "PIECE_SEGMENT",
    "GatherTables",
    "HeldArray",
    "Layout",
    "Reach",
    "Route",
    "Routes",
    "SyncRows",
    "aligned",
    "aligned_empty",
    "column_of",
    "gather_tables",
    "held_columns",
    "make_layout",
    "make_routes",
    "reaches",
    "row_at",
    "sync_rows_of",
]

Int64s = npt.NDArray[np.int64]

# columns of a table of pieces, see stepwell.windows.blocks
PIECE_ANCHOR, PIECE_SEGMENT, PIECE_FIRST, PIECE_LAST, PIECE_LO, PIECE_HI_STEP, PIECE_HI_FINAL = range(7)
PIECE_COLUMNS = 7
ALIGNMENT = 64
ADDRESS_BYTES = 8
# key, shape, dtype and first byte of one array of a batch
BatchArray = tuple[str, tuple[int, ...], np.dtype[Any], int]
SlotOf = Callable[[ResolvedField, FieldSource], int | None]


@dataclass(frozen=True, slots=True)
class Reach:
    """The offsets between which all fields of a view read one column."""

    name: str  # of the column
    first: int  # the earliest offset from the anchor
    last: int  # the latest
    is_final: bool  # whether it has a value in an episode's final row
    row_bytes: int  # bytes of a decoded row, as the pool holds it
    is_sequential: bool  # whether rows must be decoded from a sync row on
    is_encoded: bool  # whether a field that reads it needs decoding
    shape: tuple[int, ...]  # of a row as the pool holds it
    dtype: np.dtype[Any]  # likewise
    decoder: Decoder | None  # that makes such a row, or None for the feature's own

    def rows(self, pieces: Int64s) -> tuple[Int64s, Int64s]:
        """Return the rows that the windows of pieces reach in this column."""
        hi = pieces[..., PIECE_HI_FINAL] if self.is_final else pieces[..., PIECE_HI_STEP]
        first = np.maximum(pieces[..., PIECE_LO], pieces[..., PIECE_FIRST] + min(self.first, 0))
        return first, np.minimum(hi, pieces[..., PIECE_LAST] + max(self.last, 0) + 1)


def reaches(fields: Iterable[ResolvedField]) -> tuple[Reach, ...]:
    """Return the reach of every column that can be held: ragged and computed ones, and moved windows, cannot."""
    # A column of which a decoder makes the same for every window is held as that; another decoder of it is one more.
    found: list[Reach] = []
    for field in fields:
        for source in field.sources:
            if not field.is_held or source.kind == "virtual":
                continue
            number = column_of(found, source)
            first, last, is_encoded = field.min_offset, field.max_offset, field.is_encoded
            if number is not None:
                known = found.pop(number)
                first, last = min(first, known.first), max(last, known.last)
                is_encoded |= known.is_encoded
            found.insert(len(found) if number is None else number, _reach(source, first, last, is_encoded))
    return tuple(found)


def column_of(columns: Sequence[Reach], source: FieldSource) -> int | None:
    """Return the number of the held column that a source reads, or None."""
    decoder = None if source.is_drawn else source.decoder
    for number, column in enumerate(columns):
        if column.name == source.name and column.decoder == decoder:
            return number
    return None


def _reach(source: FieldSource, first: int, last: int, is_encoded: bool) -> Reach:
    feature = source.feature
    if source.is_drawn and feature is not None:
        shape, dtype, decoder = feature.fixed_shape, feature.np_dtype, None
    else:
        shape, dtype, decoder = cast(tuple[int, ...], source.shape), source.dtype, source.decoder
    row_bytes = math.prod(shape) * dtype.itemsize
    return Reach(
        source.name,
        first,
        last,
        source.is_final,
        row_bytes,
        source.is_sequential,
        is_encoded,
        shape,
        dtype,
        decoder,
    )


class SyncRows:
    """Find the sync rows of one column."""

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self.name = name
        self._parts = parts
        self._ends = np.cumsum([len(part.segments) for part in parts]).tolist()
        self._segment = -1
        self._codec: SequentialCodec | None = None
        self._maps: tuple[npt.NDArray[Any], npt.NDArray[np.uint8]] | None = None

    def around(self, segment: int, row: int, lo: int, hi: int) -> tuple[int, int]:
        """Return the sync row nearest before a row, or the row itself, and the next one after it."""
        if segment != self._segment:
            self._open(segment)
        if self._maps is None or self._codec is None:
            return row, row + 1
        first, stop = self._codec.run_of(*self._maps, row, 0, hi)
        # a ring may show a run in part; damaged bytes have no marks: the read that decodes them will say so
        return (lo, row + 1) if first < 0 else (max(first, lo), stop)

    def _open(self, number: int) -> None:
        part = self._parts[bisect_right(self._ends, number)]
        segment = part.segments[number - self._ends[bisect_right(self._ends, number)] + len(part.segments)]
        schema = part.store.schema
        feature = None if schema is None else schema[self.name]
        codec = None if feature is None or feature.is_raw else make_codec(feature)
        self._segment, self._codec, self._maps = number, None, None
        if isinstance(codec, SequentialCodec):
            try:
                self._maps = segment.offsets_map(self.name), segment.blob_map(self.name)
            except FileNotFoundError:
                raise LoaderError(
                    f"{part.store.path}: segment {segment.name} was removed since. Refresh the loader."
                ) from None
            except CorruptSegmentError as error:
                raise LoaderError(f"{part.store.path}: {error}") from error
            self._codec = codec


def sync_rows_of(reaches: Sequence[Reach], parts: Sequence[Part]) -> SyncRows | None:
    """Return the sync rows of the sequential column with the largest rows; None without one."""
    found = [reach for reach in reaches if reach.is_sequential]
    return SyncRows(max(found, key=lambda reach: reach.row_bytes).name, parts) if found else None


def row_at(address: int, column: Reach) -> npt.NDArray[Any]:
    """Return a held row as an array, which does not keep its memory alive."""
    flat = np.asarray(_Memory(address, column.row_bytes))
    return flat.view(column.dtype).reshape(column.shape)


class _Memory:
    """Bytes at an address, as numpy takes them."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__array_interface__ = {"shape": (num_bytes,), "typestr": "|u1", "data": (address, True), "version": 3}


@dataclass(frozen=True, slots=True, eq=False)
class HeldArray:
    """An array of held rows that were left where they are: uint8 [n, *window, *row], for what takes addresses.

    Args:
        addresses: int64 [n, *window], of each row, which is C-contiguous.
        row: the shape of one.

    Notes:
        Does not keep the rows alive.
    """

    addresses: Int64s
    row: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype[np.uint8]:
        """uint8."""
        return np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """That of an array of the rows."""
        return (*self.addresses.shape, *self.row)

    @property
    def strides(self) -> tuple[int, ...]:
        """Those of an array of the rows, in bytes: right within each row, which lies anywhere."""
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def __array__(self, *_: Any, **__: Any) -> npt.NDArray[np.uint8]:
        raise WindowError("rows that are left where they are were taken for an array. Let them be read as one.")

    def parts(self, shape: tuple[int, ...]) -> HeldArray:
        """Return the arrays of a shape that the rows consist of, [m, *shape]: the images of stacked ones."""
        starts = np.arange(0, math.prod(self.row), math.prod(shape))
        return HeldArray((self.addresses[..., None] + starts).reshape(-1), shape)

    def __len__(self) -> int:
        return len(self.addresses)

    def __getitem__(self, windows: slice) -> HeldArray:
        return HeldArray(self.addresses[windows], self.row)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A batch of one size."""

    num_bytes: int  # of the memory
    # for each of the reader's tables the plan, int64 [num_sources, PLAN_COLUMNS], as `stepwell.kernels.gather.gather`
    # takes it
    plans: tuple[npt.NDArray[np.int64], ...]
    # the arrays in it in the batch's order, as (key, shape, dtype, offset); ragged fields are not among them
    views: tuple[BatchArray, ...]


@dataclass(frozen=True, slots=True, eq=False)
class GatherTables:
    """The kernel's tables of the raw sources, at any batch size."""

    plan: npt.NDArray[np.int64]  # int64 [num_sources, PLAN_COLUMNS], without the columns that depend on the batch size
    # for each source the key of its field, and its first byte within a row of that field
    keys: tuple[tuple[str, int], ...]
    runs: npt.NDArray[np.int64]  # int64 [num_runs, 3]
    offsets: npt.NDArray[np.int64]  # int64 [num_offsets]


def gather_tables(fields: Sequence[ResolvedField], slot_of: SlotOf) -> GatherTables:
    """Return the kernel's tables of the sources that it is to copy."""
    from stepwell.kernels import gather as kernel

    rows: list[list[int]] = []
    keys: list[tuple[str, int]] = []
    runs: list[tuple[int, int, int]] = []
    offsets: list[int] = []
    for field in fields:
        inner, row_stride = 0, sum(source.row_bytes for source in field.sources)
        field_runs = kernel.runs_of(field.offsets.tolist())
        for source in field.sources:
            slot = slot_of(field, source)
            if slot is not None:
                row = [0] * kernel.PLAN_COLUMNS
                row[kernel.SLOT], row[kernel.ROW_BYTES] = slot, source.row_bytes
                row[kernel.FIRST_OFFSET], row[kernel.NUM_OFFSETS] = len(offsets), len(field.offsets)
                row[kernel.FIRST_RUN], row[kernel.NUM_RUNS] = len(runs), len(field_runs)
                row[kernel.MIN_OFFSET], row[kernel.MAX_OFFSET] = field.min_offset, field.max_offset
                row[kernel.ROW_STRIDE], row[kernel.WINDOW_STRIDE] = row_stride, row_stride * len(field.offsets)
                row[kernel.IS_ZERO], row[kernel.IS_FINAL] = field.pad == "zero", source.is_final
                rows.append(row)
                keys.append((field.key, inner))
            inner += source.row_bytes
        runs += field_runs
        offsets += field.offsets.tolist()
    plan = np.array(rows, dtype=np.int64).reshape(-1, kernel.PLAN_COLUMNS)
    return GatherTables(plan, tuple(keys), np.array(runs, dtype=np.int64), np.array(offsets, dtype=np.int64))


def make_layout(
    fields: Sequence[ResolvedField],
    tables: Sequence[GatherTables],
    num_anchors: int,
    in_place: Collection[str] = (),
) -> Layout:
    """Return the layout of a batch of ``num_anchors``, with a plan for each of the tables.

    ``in_place`` are keys of fields of which there are addresses.
    """
    from stepwell.kernels.gather import MASK, OUTPUT

    views: list[BatchArray] = []
    end = 0
    for field in fields:
        if field.key in in_place:
            views.append((field.key, (num_anchors, *field.window_shape), np.dtype(np.int64), end))
            end = aligned(end + ADDRESS_BYTES * num_anchors * len(field.offsets))
        elif not field.is_ragged:
            views.append((field.key, (num_anchors, *field.shape), field.dtype, end))
            end = aligned(end + num_anchors * field.num_bytes)
        if field.has_mask:
            views.append((field.mask_key, (num_anchors, *field.window_shape), np.dtype(np.bool_), end))
            end = aligned(end + num_anchors * len(field.offsets))
    starts = {key: offset for key, _, _, offset in views}
    masks = {field.key: starts.get(field.mask_key, -1) if field.has_mask else -1 for field in fields}
    plans = tuple(each.plan.copy() for each in tables)
    for each, plan in zip(tables, plans, strict=True):
        for row, (key, inner) in zip(plan, each.keys, strict=True):
            row[OUTPUT], row[MASK] = starts[key] + inner, masks[key]
    return Layout(end, plans, tuple(views))


def aligned_empty(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return new memory that begins at a multiple of 64 bytes, uint8 [num_bytes], not initialised.

    Raises:
        LoaderError: there is not so much.
    """
    try:
        memory = np.empty(num_bytes + ALIGNMENT - 1, dtype=np.uint8)
    except (MemoryError, ValueError) as error:
        raise LoaderError(
            f"a batch takes {num_bytes:,} bytes, and there is not so much memory. Make batches or windows smaller, or "
            "leave out a field; if that is more than it can be, the store's shapes are wrong."
        ) from error
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + num_bytes]


def aligned(size: Any) -> Any:
    """Return the next multiple of `ALIGNMENT`, of an int or of an array of them."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The sources that one call of the kernel copies."""

    tables: GatherTables  # its sources
    at: At  # where their windows are placed
    is_held: bool  # whether the rows are held ones, else they are mapped


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """How a batch is read."""

    routes: tuple[Route, ...]  # the calls of the kernel
    # fields with sources that it does not copy, and which of them
    others: tuple[tuple[ResolvedField, tuple[int, ...]], ...]
    held: frozenset[str]  # keys of the fields whose rows are held
    in_place: frozenset[str]  # keys of those whose rows are not copied: `HeldArray`
    needs_maps: bool  # whether anything is read from maps
    # whether one call of the kernel at the anchors' places, over maps, is all there is to do, but for computed columns
    # around the anchors
    is_plain: bool


def held_columns(columns: Sequence[Reach], page_cache: bool) -> tuple[Reach, ...]:
    """Return the columns whose rows are held: all of them, or, over the page cache, those that need decoding."""
    return tuple(column for column in columns if column.is_encoded or not page_cache)


def make_routes(
    fields: Sequence[ResolvedField],
    slots: Mapping[str, int],
    columns: Sequence[Reach] | None = None,
    wanted_in_place: frozenset[str] = frozenset(),
) -> Routes:
    """Return how batches are read."""
    held = frozenset(field.key for field in fields if columns is not None and _is_held(field, columns))
    in_place = frozenset(field.key for field in fields if field.key in held & wanted_in_place and _is_bytes(field))

    def held_slot(field: ResolvedField, source: FieldSource) -> int | None:
        if field.key not in held or not _is_copied(field, source, held, in_place):
            return None
        number = column_of(columns or (), source)
        return None if number is None else 2 * number

    def mapped_slot(at: At, field: ResolvedField, source: FieldSource) -> int | None:
        is_mapped = source.kind == "raw" and field.field.at == at and field.key not in held
        return slots[source.name] if is_mapped else None

    routes = [
        Route(gather_tables(fields, lambda f, s, at=at: mapped_slot(at, f, s)), at, False)  # type: ignore[misc]
        for at in dict.fromkeys(field.field.at for field in fields)
    ]
    if held:
        routes.append(Route(gather_tables(fields, held_slot), "anchor", True))
    routes = [route for route in routes if len(route.tables.plan)]
    others = []
    for field in fields:
        copied = {number for number, source in enumerate(field.sources) if _is_copied(field, source, held, in_place)}
        rest = tuple(number for number in range(len(field.sources)) if number not in copied)
        if rest:
            others.append((field, rest))
    needs_maps = any(not route.is_held for route in routes) or any(
        field.sources[number].kind != "virtual" and field.key not in held for field, rest in others for number in rest
    )
    is_plain = all(field.is_computed for field, _ in others) and [(route.at, route.is_held) for route in routes] == [
        ("anchor", False)
    ]
    return Routes(tuple(routes), tuple(others), held, in_place, needs_maps, is_plain)


def _is_held(field: ResolvedField, columns: Sequence[Reach]) -> bool:
    stored = [source for source in field.sources if source.kind != "virtual"]
    return field.is_held and bool(stored) and all(column_of(columns, source) is not None for source in stored)


def _is_bytes(field: ResolvedField) -> bool:
    """Return whether a field is one column of uint8, of which every window takes the same, in rows worth an address."""
    is_single = len(field.sources) == 1 and field.field.combine is None
    is_large = field.num_bytes >= ADDRESS_BYTES * len(field.offsets)
    return is_single and is_large and field.dtype == np.uint8 and not field.sources[0].is_drawn


def _is_copied(field: ResolvedField, source: FieldSource, held: frozenset[str], in_place: frozenset[str]) -> bool:
    if field.key in held:
        return source.kind != "virtual" and not source.is_drawn and field.key not in in_place
    return source.kind == "raw"
