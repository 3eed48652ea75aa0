"""Which source of which field comes from where: copied by the kernel from maps or from held rows, or made otherwise.

::

    source                    not held                 held, page_cache=True       held, page_cache=False
    raw                       kernel, maps             kernel, maps                kernel, held rows
    encoded                   ColumnDecoder            kernel, held rows           kernel, held rows
    converted by a decoder    ColumnDecoder            kernel, held rows           kernel, held rows
      ... drawn a window      ColumnDecoder            the decoder, of held rows   the decoder, of held rows
      ... of any size         ColumnDecoder            ColumnDecoder               ColumnDecoder
    ragged                    ColumnDecoder            ColumnDecoder               ColumnDecoder
    virtual                   ComputedWindows          ComputedWindows             ComputedWindows

Windows that are placed elsewhere than at the anchor (``Field(at=...)``) are never held. All sources of a field that is
held are, so that one call of the kernel writes its mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepwell.windows.layouts import GatherTables, gather_tables
from stepwell.windows.reach import Reach, column_of
from stepwell.windows.resolved import ResolvedField, Source

__all__ = ["Route", "Routes", "held_columns", "make_routes"]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """What one call of the kernel copies.

    Args:
        tables: its sources.
        at: where their windows are placed.
        is_held: whether the rows are held ones, else they are mapped.
    """

    tables: GatherTables
    at: str
    is_held: bool


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """How a batch is read.

    Args:
        routes: the calls of the kernel.
        others: fields with sources that it does not copy, and which of them.
        held: keys of the fields whose rows are held.
        needs_maps: whether anything is read from maps.
        is_plain: whether one call of the kernel at the anchors' places, over maps, is all there is to do, but for
            computed columns around the anchors.
    """

    routes: tuple[Route, ...]
    others: tuple[tuple[ResolvedField, tuple[int, ...]], ...]
    held: frozenset[str]
    needs_maps: bool
    is_plain: bool


def held_columns(columns: Sequence[Reach], page_cache: bool) -> tuple[Reach, ...]:
    """Return the columns whose rows are held: all of them, or, over the page cache, those that need decoding."""
    return tuple(column for column in columns if column.is_encoded or not page_cache)


def make_routes(
    fields: Sequence[ResolvedField], slots: Mapping[str, int], columns: Sequence[Reach] | None = None
) -> Routes:
    """Return how batches are read.

    Args:
        fields: of the batch.
        slots: name of a feature to its row in the maps' table of addresses.
        columns: that are held, in the order of their slots; None: nothing is.
    """
    held = frozenset(field.key for field in fields if columns is not None and _is_held(field, columns))

    def held_slot(field: ResolvedField, source: Source) -> int | None:
        if field.key not in held or source.kind == "virtual" or source.is_drawn:
            return None
        number = column_of(columns or (), source)
        return None if number is None else 2 * number

    def mapped_slot(at: str, field: ResolvedField, source: Source) -> int | None:
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
        copied = {number for number, source in enumerate(field.sources) if _is_copied(field, source, held)}
        rest = tuple(number for number in range(len(field.sources)) if number not in copied)
        if rest:
            others.append((field, rest))
    needs_maps = any(not route.is_held for route in routes) or any(
        field.sources[number].kind != "virtual" and field.key not in held for field, rest in others for number in rest
    )
    is_plain = all(field.is_computed for field, _ in others) and [(route.at, route.is_held) for route in routes] == [
        ("anchor", False)
    ]
    return Routes(tuple(routes), tuple(others), held, needs_maps, is_plain)


def _is_held(field: ResolvedField, columns: Sequence[Reach]) -> bool:
    stored = [source for source in field.sources if source.kind != "virtual"]
    return field.is_held and bool(stored) and all(column_of(columns, source) is not None for source in stored)


def _is_copied(field: ResolvedField, source: Source, held: frozenset[str]) -> bool:
    if field.key in held:
        return source.kind != "virtual" and not source.is_drawn
    return source.kind == "raw"
