"""The anchor index: which steps are anchors, numbered from 0, and where each lies.

An anchor is a step at which every field's window may be placed. The rule is the same for all steps of an episode, so
an episode's anchors are one contiguous range of its steps, and the index is a few numbers an episode, never a step::

    episode of 8 steps            | 0 1 2 3 4 5 6 7 |
    pad="edge" or "zero"            ^ ^ ^ ^ ^ ^ ^ ^        all of them
    pad="drop", offsets [-1..2]       ^ ^ ^ ^ ^            those whose windows fit
    the same, still being recorded    ^ ^ ^ ^ ^            and with "edge" too, windows must not reach
                                                           beyond what is committed (the past is padded as ever)

The sampling law: positions 0 .. num_anchors - 1 name each valid anchor exactly once, so an order that is uniform over
positions is uniform over valid anchors; long episodes own more of them, and no anchor near an edge stands in for
another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, WindowError
from stepwell.kernels.places import CHAIN_START, PLACE_ROWS
from stepwell.sizes import counted
from stepwell.store.layout import ordinals_of_keys, split_id, step_id
from stepwell.store.snapshot import keys_of
from stepwell.windows.blocks import Blocks, cut_blocks
from stepwell.windows.chains import pieces_of_view
from stepwell.windows.fields import ResolvedField
from stepwell.windows.plans import reaches, sync_rows_of
from stepwell.windows.views import Part, View

__all__ = ["AnchorIndex", "positions_array"]

Int64s = npt.NDArray[np.int64]


class AnchorIndex:
    """The anchors of a view's episodes under a set of fields.

    Args:
        view: the episodes.
        fields: the fields read around each anchor.

    Attributes:
        num_anchors: how many there are.
        anchor_starts: int64 [E + 1], anchors before each episode of the view.
        part_starts: int64 [P + 1], anchors before each store of the view.
        episode_starts: int64 [P + 1], episodes before each store of the view.
        records: int64 [E, 5], an episode's global segment, row of its first anchor, and the rows lo, hi_step, hi_final
            between which windows are taken: lo <= row < hi_step, or hi_final where a feature has a final row.
        segment_starts: int64 [P + 1], segments before each store: segments are numbered over all stores.
        stores: int64 [S], number of the store of each segment.
        ordinals: int64 [S], ordinal of each segment in its store.
        segment_keys: int64 [S], see `stepwell.store.layout`.
        episode_index: int64 [E], index of each episode in its store.
        pieces: the episodes that are pieces of longer ones, or None.

    Raises:
        CorruptSegmentError: an episode's rows cannot be.
        WindowError: no anchor is left by ``pad="drop"`` although there are episodes; the message names the longest.

    Notes:
        Immutable, safe to share between threads. Building it looks at episodes only.
    """

    def __init__(self, view: View, fields: Iterable[ResolvedField]) -> None:
        from stepwell.kernels.locate import guide_of, locate

        # bound once: an import statement in `places` would cost as much as a fifth of it
        self._locate, self._place_rows = locate, PLACE_ROWS
        self.view = view
        self.segment_starts = np.cumsum([0] + [len(part.segments) for part in view.parts], dtype=np.int64)
        lengths, rows, is_open = view.column("length"), view.column("rows"), view.column("is_open")
        fields = list(fields)
        starts = view.column("start")
        limits = np.stack([starts, starts + lengths, starts + rows], axis=1, dtype=np.int64, casting="unsafe")
        self.pieces = pieces_of_view(view, self.segment_starts.tolist())
        # the rows between which windows are taken, those of other pieces of the same episode among them
        self._outer = limits
        if self.pieces is not None:
            is_open = is_open.copy()
            self._outer = limits.copy()
            is_open[self.pieces.episodes], self._outer[self.pieces.episodes] = self.pieces.is_open, self.pieces.outer
        heads, tails = _trims(fields, self._outer[:, 2] > self._outer[:, 1])
        anchored = [field.max_offset for field in fields if field.field.at == "anchor"]
        tails = np.where(is_open, max(anchored, default=0), tails)
        if self.pieces is not None:
            # what other pieces have of a window need not be in this one
            heads = np.maximum(heads - (limits[:, 0] - self._outer[:, 0]), 0)
            tails = np.maximum(tails - (self._outer[:, 1] - limits[:, 1]), 0)
        counts = np.maximum(lengths - heads - np.maximum(tails, 0), 0)
        if self.pieces is not None:
            counts[self.pieces.episodes[self.pieces.waits]] = 0
        self.anchor_starts: Int64s = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.num_anchors = int(self.anchor_starts[-1])
        if self.num_anchors == 0 and lengths.any() and not is_open.any():
            raise _nothing_fits(view, fields, lengths)
        self.episode_starts: Int64s = np.cumsum([0] + [len(part.indices) for part in view.parts], dtype=np.int64)
        self.part_starts: Int64s = self.anchor_starts[self.episode_starts]
        segments = np.concatenate(
            [
                part.table.segment[part.indices] + first
                for part, first in zip(view.parts, self.segment_starts, strict=False)
            ]
        )
        self.records: Int64s = np.column_stack([segments, starts + heads, limits]).astype(np.int64)
        _check_records(self.records, int(self.segment_starts[-1]))
        self.stores: Int64s = np.repeat(np.arange(len(view.parts)), np.diff(self.segment_starts))
        self.episode_index: Int64s = view.episode_index
        self.segment_keys: Int64s = np.concatenate([keys_of(part.segments) for part in view.parts])
        self.ordinals: Int64s = ordinals_of_keys(self.segment_keys)
        # what `stepwell.kernels.locate.locate` looks positions up in
        self.tables = (self.anchor_starts, *guide_of(self.anchor_starts), self.records)
        self._reaches = reaches(fields)
        self._blocks: dict[int, Blocks] = {}

    def __len__(self) -> int:
        return self.num_anchors

    def places(self, positions: Int64s) -> Int64s:
        """Return the places of anchors as the kernels take them.

        Args:
            positions: int64 [n], each 0 .. num_anchors - 1.

        Returns:
            int64 [6, n]: episode of the view, global segment, row, lo, hi_step, hi_final.

        Raises:
            WindowError: a position that is no anchor.
        """
        places = np.empty((self._place_rows, len(positions)), dtype=np.int64)
        wrong = self._locate(positions, *self.tables, places)
        if wrong >= 0:
            raise WindowError(f"position {positions[wrong]} is not one of {self.num_anchors} anchors.")
        return places

    def locate(self, positions: npt.ArrayLike) -> tuple[Int64s, ...]:
        """Return where anchors lie.

        Args:
            positions: int64 [n], each 0 .. num_anchors - 1.

        Returns:
            Six int64 [n]: episode of the view, segment (numbered over all stores), row, and the rows lo, hi_step and
            hi_final.

        Raises:
            WindowError: a position that is no anchor.
        """
        return tuple(self.places(positions_array(positions)))

    def step_ids(self, positions: npt.ArrayLike) -> Int64s:
        """Return the ids of the anchors' steps, int64 [n]."""
        _, segments, rows, *_ = self.locate(positions)
        return step_id(self.ordinals[segments], rows)

    def positions_of(self, step_ids: npt.ArrayLike, *, store: int | None = None) -> Int64s:
        """Return the positions of steps.

        Args:
            step_ids: int64 [n].
            store: number of the store in the view that the ids belong to; needed when the view has several.

        Returns:
            int64 [n], -1 where a step is not an anchor of this index.

        Raises:
            WindowError: several stores, and none was named.
        """
        if store is None and len(self.view.parts) > 1:
            raise WindowError("ids of several stores mean different steps. Say which: positions_of(ids, store=0).")
        first, last = self.segment_starts[store or 0], self.segment_starts[(store or 0) + 1]
        ordinals, rows = split_id(np.asarray(step_ids, dtype=np.int64))
        by_ordinal = np.argsort(self.ordinals[first:last], kind="stable")
        known = self.ordinals[first:last][by_ordinal]
        at = np.minimum(np.searchsorted(known, ordinals), max(len(known) - 1, 0))
        if len(known) == 0 or len(self.records) == 0:
            return np.full(np.shape(rows), -1, dtype=np.int64)
        segments = np.where(known[at] == ordinals, by_ordinal[at] + first, -1)
        keys, order = self._episodes_by_row
        episodes = order[np.maximum(np.searchsorted(keys, step_id(segments, rows), side="right") - 1, 0)]
        records, starts = self.records[episodes], self.anchor_starts
        number = rows - records[:, 1]
        is_anchor = (records[:, 0] == segments) & (number >= 0) & (number < starts[episodes + 1] - starts[episodes])
        return np.where(is_anchor, starts[episodes] + number, -1)

    def blocks(self, max_bytes: int) -> Blocks:
        """Return the anchors cut into blocks, for a pool that holds some of them; see `stepwell.windows.blocks`.

        Args:
            max_bytes: memory that a block may take; more where one anchor needs more, or one run of a video does.

        Raises:
            LoaderError: a segment was removed since.

        Notes:
            The same object for the same ``max_bytes``; looks at episodes, and at one run of a video a block.
        """
        found = self._blocks.get(max_bytes)
        if found is None:
            sync_rows = sync_rows_of(self._reaches, self.view.parts)
            cut = cut_blocks(self.anchor_starts, self.records, self._reaches, max_bytes, sync_rows, self._outer)
            found = self._blocks.setdefault(max_bytes, cut)
        return found

    def read_steps(self, feature: str) -> npt.NDArray[np.float64]:
        """Return the value of a scalar feature at every anchor, for weights by step.

        Args:
            feature: name of a raw feature with one number a step.

        Returns:
            float64 [num_anchors].

        Raises:
            WindowError: not a raw scalar.
            FeatureNotFoundError: no such feature.
        """
        values = np.empty(self.num_anchors, dtype=np.float64)
        filled = np.flatnonzero(np.diff(self.anchor_starts) > 0)
        order = filled[np.argsort(self.records[filled, 0], kind="stable")]
        numbers, heads = np.unique(self.records[order, 0], return_index=True)
        owners = np.searchsorted(self.segment_starts, numbers, side="right") - 1
        dtypes = [_scalar_dtype(part, feature) for part in self.view.parts]
        for number, owner, episodes in zip(numbers.tolist(), owners.tolist(), np.split(order, heads[1:]), strict=False):
            segment = self.view.parts[owner].segments[number - int(self.segment_starts[owner])]
            dtype = dtypes[owner]
            column = segment.raw_map(feature)
            column = column[: len(column) // dtype.itemsize * dtype.itemsize].view(dtype)
            self._copy_steps(column, episodes, values)
        return values

    def stretches(self, segment: int, rows: tuple[int, int], first: int, stop: int) -> list[tuple[int, int, int]]:
        """Return where rows of whole episodes lie that are counted in the rows of one segment.

        Args:
            segment: numbered over all stores.
            rows: of the first and of the last anchor whose windows reach them, in that segment.
            first: row, below the first one of the first anchor's piece where windows reach into the piece before it.
            stop: row after the last, beyond the last anchor's piece where they reach into the piece after it.

        Returns:
            (segment, first row, row after the last) of runs of rows that follow each other.
        """
        found = [(segment, first, stop)]
        if self.pieces is None:
            return found
        chains, stops = self.pieces.chains, self.pieces.stops
        begin, end = self.pieces.holding(segment, rows)
        if begin >= 0 and first < chains.pieces[begin, CHAIN_START]:
            own = int(chains.pieces[begin, CHAIN_START])
            found = [*chains.runs(begin, first, own), (segment, own, stop)]
        if end >= 0 and stop > stops[end] and chains.last[end] != end:
            found[-1:] = [(segment, found[-1][1], int(stops[end])), *chains.runs(end, int(stops[end]), stop)]
        return found

    def where(self, segment: int, row: int) -> str:
        """Return the store's path, the episode's index in it and the step of a row, for people."""
        part = self.view.parts[int(np.searchsorted(self.segment_starts, segment, side="right")) - 1]
        episode = int(self._episodes_at(segment, np.array([row]))[0])
        step = row - self.records[episode, 2] + self.view.column("skipped")[episode]
        return f"{part.store.path}: episode {self.episode_index[episode]}, step {step}"

    def _episodes_at(self, segment: int, rows: Int64s) -> Int64s:
        keys, order = self._episodes_by_row
        wanted = (np.int64(segment) << 32) | rows
        found: Int64s = order[np.maximum(np.searchsorted(keys, wanted, side="right") - 1, 0)]
        return found

    def _copy_steps(self, column: npt.NDArray[Any], episodes: Int64s, values: npt.NDArray[np.float64]) -> None:
        """Copy the values of the episodes of one segment."""
        begins = self.anchor_starts[episodes]
        counts = self.anchor_starts[episodes + 1] - begins
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        values[within + np.repeat(begins, counts)] = column[within + np.repeat(self.records[episodes, 1], counts)]

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that change when the set of anchors does."""
        found = hashlib.blake2b(digest_size=8)
        for part in self.view.parts:
            found.update(part.store.uuid.encode())
        # by ordinal: a segment's number changes with segments that hold nothing of the view
        places = np.column_stack([self.ordinals[self.records[:, 0]], self.records[:, 1:]])
        for numbers in (self.part_starts, self.anchor_starts, places):
            found.update(numbers.tobytes())
        return found.hexdigest()

    @cached_property
    def _episodes_by_row(self) -> tuple[Int64s, Int64s]:
        """Sorted (segment, first row) keys of the episodes, and the episode of each."""
        keys = step_id(self.records[:, 0], self.records[:, 2])
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    def __repr__(self) -> str:
        return f"<AnchorIndex {counted(self.num_anchors, 'anchor')} in {counted(len(self.records), 'episode')}>"


def positions_array(positions: npt.ArrayLike) -> Int64s:
    """Return positions as the kernels take them, int64 [n]."""
    array = np.asarray(positions)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise WindowError(f"positions of dtype {array.dtype} and shape {array.shape}. Allowed: whole numbers, [n].")
    return np.ascontiguousarray(array, dtype=np.int64)


def _trims(fields: list[ResolvedField], has_final: npt.NDArray[np.bool_]) -> tuple[int, Int64s]:
    """Return how many steps at the start, and of each episode at the end, ``drop`` fields take from the anchors."""
    dropping = [field for field in fields if field.pad == "drop"]
    head = max((-field.min_offset for field in dropping), default=0)
    tail = max((field.max_offset for field in dropping if not all(s.is_final for s in field.sources)), default=0)
    final_tail = max((field.max_offset for field in dropping), default=0)
    # a window over features that have a final row may reach one row further where there is one
    tails = np.where(has_final, max(tail, final_tail - 1), max(tail, final_tail))
    return max(head, 0), np.maximum(tails, 0).astype(np.int64)


def _check_records(records: Int64s, num_segments: int) -> None:
    """Refuse episodes that reach outside their segment's rows; that they are there is checked by the maps."""
    segment, first, lo, hi_step, hi_final = records.T
    fits = (
        (segment >= 0) & (segment < num_segments) & (lo >= 0) & (first >= lo) & (hi_step >= lo) & (hi_final >= hi_step)
    )
    if not fits.all():
        raise CorruptSegmentError(
            f'episode {int(np.argmin(fits))} of the view has rows that cannot be. Run "stepwell verify PATH".'
        )


def _nothing_fits(view: View, fields: list[ResolvedField], lengths: Int64s) -> WindowError:
    dropping = [field for field in fields if field.pad == "drop"]
    size = max(0, *(field.max_offset for field in dropping)) - min(0, *(field.min_offset for field in dropping)) + 1
    longest = int(np.argmax(lengths))
    return WindowError(
        f"a window of {size} steps does not fit episode {longest} ({lengths[longest]} steps), the longest of "
        f'{view.num_episodes}. Use pad="edge", or a window of at most {lengths[longest]}.'
    )


def _scalar_dtype(part: Part, name: str) -> np.dtype[Any]:
    if part.store.schema is None:
        raise WindowError(f"{part.store.path} has no features yet.")
    feature = part.store.schema[name]
    dtype = feature.np_dtype
    if not feature.is_raw or feature.shape != () or dtype.kind not in "biuf":
        raise WindowError(f"feature {name!r} ({feature}) is not one raw number a step.")
    return dtype
