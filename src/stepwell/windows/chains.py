"""Chains: the pieces of episodes that a ring cut, which windows take for one episode.

::

    store        piece 0 | 0 1 2 3 4 5 |  piece 1 | 6 7 8 9 |  piece 2 | 10 11 12 ...
    ring                   . . . 3 4 5              6 7 8 9              10 11 12      steps 0 to 2 were evicted
    anchor 7, offsets -5..1                3 3 4 5 6 7 8                               is_pad: x . . . . . .

An anchor's place says in which piece it lies. `widened` adds the bounds of the whole episode, in rows of that piece, to
the places of a batch of which any window may leave its piece: rows before the piece's first, or after its last, lie in
another piece, and `Chained` says where. Batches of other stores, and nearly all of a ring, pay a look at the bounds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.places import CHAIN, CHAIN_SEGMENT, CHAIN_START, CHAIN_STEP, OUTER_ROWS, PLACE_ROWS, ROW
from stepwell.store.layout import ordinals_of_keys
from stepwell.store.records import births_of
from stepwell.store.snapshot import keys_of

if TYPE_CHECKING:
    from stepwell.windows.views import View

__all__ = ["Chained", "Chains", "ViewPieces", "cells_of", "linked", "outer", "pieces_of_view", "waiting", "widened"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def linked(
    origins: Iterable[Hashable], firsts: Iterable[int], ends: Iterable[int], may_go_on: Iterable[bool]
) -> Int64s:
    """Return which pieces belong together."""
    known: dict[Hashable, tuple[int, int]] = {}
    chains: list[int] = []
    count = 0
    for origin, first, end, goes_on in zip(origins, firsts, ends, may_go_on, strict=True):
        before, chain = known.pop(origin, (-1, 0))
        if first == 0 or before != first:
            chain, count = count, count + 1
        chains.append(chain)
        if goes_on:
            known[origin] = end, chain
    return np.array(chains, np.int64)


class Chains:
    """The pieces of cut episodes of one source of places."""

    # Immutable, but for what ``bounds`` returns.

    def __init__(self, numbers: Int64s, pieces: Int64s, bounds: Callable[[], Int64s]) -> None:
        self.numbers, self.pieces, self.bounds = numbers, pieces, bounds
        # int64 [P] each: the numbers in order, and the piece of each
        self.order: Int64s = np.argsort(numbers, kind="stable")
        self.ascending: Int64s = numbers[self.order]
        self.keys: Int64s = (pieces[:, CHAIN] << 32) | pieces[:, CHAIN_STEP]
        is_last = np.append(np.diff(pieces[:, CHAIN]) != 0, True)
        # int64 [P], the last piece of each one's chain
        self.last: Int64s = np.flatnonzero(is_last)[np.cumsum(is_last) - is_last]

    def find(self, episodes: Int64s) -> Int64s:
        """Return the piece that each episode is (int64 [n]), -1 for one that is no piece."""
        found = np.minimum(self.ascending.searchsorted(episodes), len(self.ascending) - 1)
        return np.where(self.ascending[found] == episodes, self.order[found], -1)

    def piece_of(self, at: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the pieces that rows are in, and their rows there."""
        return located(self.pieces, self.keys, at, rows)

    def runs(self, at: int, first: int, stop: int) -> list[tuple[int, int, int]]:
        """Return where rows of one piece's episode lie: (segment, first row, row after the last) of each piece."""
        found, rows = self.piece_of(np.array([at, at]), np.array([first, stop - 1]))
        runs = []
        for piece in range(int(found[0]), int(found[1]) + 1):
            _, segment, begin, step = self.pieces[piece].tolist()
            end = int(rows[1]) + 1 if piece == found[1] else begin + int(self.pieces[piece + 1, CHAIN_STEP]) - step
            runs.append((segment, int(rows[0]) if piece == found[0] else begin, end))
        return runs


def located(pieces: Int64s, keys: Int64s, at: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Return what `Chains.piece_of` does, of any table of pieces and its keys."""
    own = pieces[at]
    shift, chain = own[:, CHAIN_STEP] - own[:, CHAIN_START], own[:, CHAIN] << 32
    if rows.ndim > 1:
        shift, chain = shift[:, None], chain[:, None]
    steps = rows + shift
    found = np.searchsorted(keys, chain | np.maximum(steps, 0), side="right") - 1
    return found, steps - pieces[found, CHAIN_STEP] + pieces[found, CHAIN_START]


def widened(places: Int64s, min_offset: int, max_offset: int, chains: Chains) -> tuple[Int64s, Int64s, Int64s]:
    """Return places with the bounds of whole episodes, and which of them may reach another piece."""
    wide, (chosen, at) = np.empty((OUTER_ROWS, places.shape[1]), np.int64), np.empty((2, places.shape[1]), np.int64)
    tables = chains.order, chains.pieces, chains.bounds()
    num = _widen_kernel()(places, min_offset, max_offset, chains.ascending, *tables, wide, chosen, at)
    return wide if len(places) == PLACE_ROWS else places, chosen[:num], at[:num]


@functools.cache
def _widen_kernel() -> Any:
    """Return the kernel; looked up once, where an import for every batch would take as long as it does."""
    from stepwell.kernels.chains import widen

    return widen


def cells_of(chains: Chains, places: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
    """Return where rows of places of one source lie: segments and rows, int64 [n, K] each; see `Chained.cells`."""
    at = chains.find(places[0])
    chosen = np.flatnonzero(at >= 0)
    return Chained(chosen, at[chosen], chains.pieces).cells(places[1], rows)


def outer(places: Int64s) -> Int64s:
    """Return places, int64 [6, n], with the bounds of whole episodes where they are known; the same array else."""
    return places if len(places) == PLACE_ROWS else places[[0, 1, ROW, -3, -2, -1]]


@dataclass(frozen=True, slots=True, eq=False)
class Chained:
    """The anchors of a batch whose windows may leave their piece."""

    chosen: Int64s  # int64 [m], which of the batch's
    at: Int64s  # int64 [m], the piece of each
    pieces: Int64s  # int64 [P, 4], as of `Chains`, with the segments' numbers in the batch

    @property
    def keys(self) -> Int64s:
        """Chain and step of each piece, int64 [P]."""
        return (self.pieces[:, CHAIN] << 32) | self.pieces[:, CHAIN_STEP]

    def cells(self, segments: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return where rows of all anchors lie that are counted in rows of their piece."""
        in_segments, in_rows = np.repeat(segments[:, None], rows.shape[1], axis=1), rows.copy()
        found, in_rows[self.chosen] = located(self.pieces, self.keys, self.at, rows[self.chosen])
        in_segments[self.chosen] = self.pieces[found, CHAIN_SEGMENT]
        return in_segments, in_rows

    def reached(self, places: Int64s, min_offset: int, max_offset: int) -> Int64s:
        """Return the segments that windows between two offsets reach, int64."""
        row, _, _, _, lo, _, hi = places[ROW:, self.chosen]
        ends = [
            located(self.pieces, self.keys, self.at, np.clip(row + offset, lo, hi - 1))[0].tolist()
            for offset in (min_offset, max_offset)
        ]
        pieces = {piece for first, last in set(zip(*ends, strict=True)) for piece in range(first, last + 1)}
        return self.pieces[sorted(pieces), CHAIN_SEGMENT]


@dataclass(frozen=True, slots=True, eq=False)
class ViewPieces:
    """The episodes of a view that are pieces of longer ones."""

    chains: Chains  # all pieces of these episodes, those that are not in the view among them
    episodes: Int64s  # int64 [q], numbers in the view
    at: Int64s  # int64 [q], the piece that each is
    stops: Int64s  # int64 [P], the row after the last step of each piece, and
    needs: Int64s  # after its last row
    outer: Int64s  # int64 [q, 3], the rows lo, hi_step and hi_final of the whole episode, counted in rows of the piece
    is_open: Bools  # bool [q], whether more of the whole episode may come
    waits: Bools  # bool [q], whether steps between it and the piece before may still come
    endings: dict[str, Bools]  # ``terminated``, ``truncated`` and ``is_ended`` to bool [q], of the whole episode

    def holding(self, segment: int, rows: Sequence[int]) -> list[int]:
        """Return the piece that each of some rows of a segment is in, -1 where it is in none."""
        table = self.chains.pieces
        own = np.flatnonzero(table[:, CHAIN_SEGMENT] == segment)
        found = []
        for row in rows:
            holds = own[(table[own, CHAIN_START] <= row) & (row < self.stops[own])]
            found.append(int(holds[0]) if len(holds) else -1)
        return found


def pieces_of_view(view: View, segment_starts: Sequence[int]) -> ViewPieces | None:
    """Return the pieces of cut episodes that windows of a view may reach; None where there are none."""
    names = ("length", "rows", "skipped", "start", "segment", "is_open", "goes_on", "terminated", "truncated")
    found: list[Int64s] = []
    num_chains = num_episodes = 0
    for part, first_segment in zip(view.parts, segment_starts, strict=False):
        table = part.table
        is_piece = table.goes_on | (table.skipped > 0)
        if is_piece.any():
            # a piece has no ending while the next one begins, nor where its writer died then
            may_go_on = table.goes_on | table.is_open | table.interrupted
            is_piece |= may_go_on & np.isin(table.origin, table.origin[is_piece])
            members = np.flatnonzero(is_piece)
            ends = (table.skipped + table.length)[members]
            ordinals = ordinals_of_keys(keys_of(part.segments))[table.segment[members]]
            _, births = births_of(part.store.record, ordinals, table.record[members])
            origins = list(zip(births.tolist(), table.origin[members].tolist(), strict=True))
            firsts = table.skipped[members].tolist()
            chains = linked(origins, firsts, ends.tolist(), may_go_on[members].tolist()) + num_chains
            numbers = np.searchsorted(part.indices, members)
            is_chosen = np.append(part.indices, -1)[numbers] == members
            numbers = np.where(is_chosen, numbers + num_episodes, -1)
            own = [getattr(table, name)[members].astype(np.int64) for name in names]
            own[4] += first_segment
            waits = waiting(origins, firsts, table.is_open[members].tolist(), chains.tolist())
            found.append(np.stack([chains, numbers, *own, np.array(waits)]))
            num_chains = int(chains.max(initial=num_chains - 1)) + 1
        num_episodes += len(part.indices)
    if not found:
        return None
    each = np.concatenate(found, axis=1)
    each = each[:, np.lexsort((each[4], each[0]))]
    # chains without an episode of the view are not needed
    each = each[:, np.isin(each[0], each[0, each[1] >= 0])]
    return _view_pieces(*each) if each.shape[1] else None


def _view_pieces(  # noqa: PLR0917
    chain: Int64s,
    numbers: Int64s,
    length: Int64s,
    rows: Int64s,
    skipped: Int64s,
    start: Int64s,
    segment: Int64s,
    is_open: Int64s,
    goes_on: Int64s,
    terminated: Int64s,
    truncated: Int64s,
    waits: Int64s,
) -> ViewPieces:
    pieces = np.ascontiguousarray(np.stack([chain, segment, start, skipped], axis=1))
    is_first = np.append(True, np.diff(chain) != 0)
    first = np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
    is_last = np.append(is_first[1:], True)
    last = np.flatnonzero(is_last)[np.cumsum(is_last) - is_last]
    ends = skipped + length
    bounds = np.stack([skipped[first], ends[last], (skipped + rows)[last]], axis=1)
    at = np.flatnonzero(numbers >= 0)
    final = last[at]
    may_come = (is_open | goes_on)[final] != 0
    endings = {"terminated": terminated[final] != 0, "truncated": truncated[final] != 0, "is_ended": ~may_come}
    limits = bounds[at] + (start - skipped)[at, None]
    chains = Chains(numbers, pieces, lambda: bounds)
    return ViewPieces(chains, numbers[at], at, start + length, start + rows, limits, may_come, waits[at] != 0, endings)


def waiting(
    origins: Sequence[Hashable], firsts: Sequence[int], is_open: Sequence[bool], chains: Sequence[int]
) -> list[bool]:
    """Return which pieces are of an episode of which an earlier piece, in another chain, is still open."""
    # A writer that encodes in the background may commit the next piece's first steps before the last ones of this.
    opened: dict[Hashable, tuple[int, int]] = {}
    for origin, first, is_so, chain in zip(origins, firsts, is_open, chains, strict=True):
        if is_so:
            opened.setdefault(origin, (first, chain))
    found = []
    for origin, first, chain in zip(origins, firsts, chains, strict=True):
        before, other = opened.get(origin, (first, chain))
        found.append(before < first and other != chain)
    return found
