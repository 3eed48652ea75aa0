"""Windows as row numbers, and windows of the columns that every store has without storing them.

A computed column is looked up once an anchor; a kernel writes the window and its padding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.draws import Draws
from stepwell.kernels.places import EPISODE, HI_STEP, LO, PLACE_ROWS, ROW, SEGMENT
from stepwell.store.layout import step_id
from stepwell.windows.chains import ViewPieces, cells_of, outer
from stepwell.windows.fields import At, ResolvedField
from stepwell.windows.views import View

if TYPE_CHECKING:
    from stepwell.windows.sources import JoinedSources

__all__ = ["ComputedWindows", "VirtualColumns", "moved_places", "window_rows"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# by how much a number grows from row to row; what is not here is true at the first or the last row of an episode
GROWTH = {"step_id": 1, "step_index": 1, "timestamp": 1, "episode_index": 0, "store_index": 0}


def window_rows(field: ResolvedField, is_final: bool, places: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the rows of all windows of a field; padding is clamped into the episode."""
    row, (lo, hi_step, hi_final) = places[ROW], places[-3:]
    shape = len(row), len(field.offsets)
    rows, is_pad = np.empty(shape, np.int64), np.empty(shape, np.bool_)
    _clamp_kernel()(field.offsets, row, lo, hi_final if is_final else hi_step, rows, is_pad)
    return rows, is_pad


@functools.cache
def _clamp_kernel() -> Any:
    """Return the kernel; looked up once, where an import for every batch would take as long as it does."""
    from stepwell.kernels.windows import clamp_windows

    return clamp_windows


def moved_places(at: At, is_final: bool, places: Int64s, draws: Draws) -> Int64s:
    """Return the places at which windows are put instead of the anchors, see ``Field(at=...)``."""
    row, (lo, hi_step, hi_final) = places[ROW], places[-3:]
    last = (hi_final if is_final else hi_step) - 1
    moved = places.copy()
    if at == "future":
        at = (1, None)
    if isinstance(at, tuple):
        least, most = at
        furthest = last if most is None else np.minimum(row + most, last)
        moved[ROW] = draws.integers(np.minimum(row + least, last), furthest + 1)
    else:
        moved[ROW] = last if at == "final" else draws.integers(lo, last + 1)
    return moved


class VirtualColumns:
    """Compute step ids, indices, times and episode flags of steps."""

    def __init__(self, view: View, ordinals: Int64s, pieces: ViewPieces | None = None) -> None:
        self._ordinals, self._pieces = ordinals, pieces
        self._episode_index = view.episode_index
        self._terminated, self._truncated = view.column("terminated"), view.column("truncated")
        self._is_ended = ~(view.column("is_open") | view.column("goes_on"))
        self._endings = {"terminated": self._terminated, "truncated": self._truncated, "is_ended": self._is_ended}
        if pieces is not None:
            # as of the whole episode, where windows leave a piece
            self._endings = {name: flags.copy() for name, flags in self._endings.items()}
            for name, flags in self._endings.items():
                flags[pieces.episodes] = pieces.endings[name]
        self._skipped = view.column("skipped")
        self._store_of = view.store_index
        self._fps = np.array([part.store.fps or np.nan for part in view.parts], dtype=np.float64)
        self._values: dict[str, Callable[[Int64s, Int64s], Any]] = {
            "step_id": self._step_id,
            "store_index": lambda places, rows: self._store_of[places[EPISODE]][:, None],
            "episode_index": lambda places, rows: self._episode_index[places[EPISODE]][:, None],
            "step_index": self._step_index,
            "timestamp": self._timestamp,
            "is_first": lambda places, rows: self._step_index(places, rows) == 0,
            "is_last": lambda places, rows: self._at_last(places, rows, "is_ended", self._is_ended),
            "terminated": lambda places, rows: self._at_last(places, rows, "terminated", self._terminated),
            "truncated": lambda places, rows: self._at_last(places, rows, "truncated", self._truncated),
        }

    def compute(self, name: str, places: Int64s, rows: Int64s) -> npt.NDArray[Any]:
        """Return a virtual column at the given rows."""
        values: npt.NDArray[Any] = self._values[name](places, rows)
        return values

    def _step_index(self, places: Int64s, rows: Int64s) -> Int64s:
        # lo may be a later step of the episode, where a ring evicted some, or cut it
        found: Int64s = rows - (places[LO] - self._skipped[places[EPISODE]])[:, None]
        return found

    def _timestamp(self, places: Int64s, rows: Int64s) -> npt.NDArray[np.float64]:
        seconds: npt.NDArray[np.float64] = (
            self._step_index(places, rows) / self._fps[self._store_of[places[EPISODE]]][:, None]
        )
        return seconds

    def _at_last(self, places: Int64s, rows: Int64s, name: str, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        found = flags[places[EPISODE]]
        if len(places) > PLACE_ROWS:
            # of windows that go on in another piece, how that one ends
            found = np.where(places[-2] > places[HI_STEP], self._endings[name][places[EPISODE]], found)
        is_last: npt.NDArray[np.bool_] = (rows == places[-2][:, None] - 1) & found[:, None]
        return is_last

    def _step_id(self, places: Int64s, rows: Int64s) -> Int64s:
        segments = places[SEGMENT][:, None]
        if len(places) > PLACE_ROWS and self._pieces is not None:
            segments, rows = cells_of(self._pieces.chains, places, rows)
        return step_id(self._ordinals[segments], rows)


class ComputedWindows:
    """Write windows of computed columns."""

    def __init__(self, sources: JoinedSources) -> None:
        from stepwell.kernels.windows import count_along, mark_rows

        # bound once: an import statement would cost as much as a kernel's call
        self._count_along, self._mark_rows = count_along, mark_rows
        self._sources = sources

    def write_steps(self, name: str, places: Int64s, parts: Sequence[Int64s], out: npt.NDArray[Any]) -> None:
        """Write one value of each anchor's step, which no padding concerns, to ``out`` [n]."""
        out[:] = self._sources.compute(name, parts, places[ROW][:, None])[:, 0]

    def write(  # noqa: PLR0917
        self,
        name: str,
        field: ResolvedField,
        places: Int64s,
        parts: Sequence[Int64s],
        out: npt.NDArray[Any],
        mask: Bools | None,
        adds: bool = False,
    ) -> None:
        """Write the windows of a column."""
        is_whole, places = len(places) > PLACE_ROWS, outer(places)
        shape = (places.shape[1], len(field.offsets))
        marks = np.empty((0, shape[1]), np.bool_) if mask is None else mask.reshape(shape)
        settings = (places, field.offsets, field.pad == "zero")
        if name not in GROWTH:
            # an episode's first or last row is the first or last that its windows may reach, or none of them
            marked = places[LO] if name == "is_first" else places[HI_STEP] - 1
            values = _contiguous(out, shape, np.bool_)
            self._mark_rows(marked, self._at_rows(name, parts, marked), *settings, values, marks, adds)
        else:
            values = _contiguous(out, shape, np.int64)
            starts = self._at_rows("step_index" if name == "timestamp" else name, parts, places[ROW])
            self._count_along(starts, GROWTH[name], *settings, values, marks, adds)
            if name == "step_id" and is_whole:
                # ids do not count on from one piece of an episode to the next
                rows, is_pad = window_rows(field, False, places)
                ids = self._sources.compute(name, parts, rows)
                values[:] = np.where(is_pad, 0, ids) if field.pad == "zero" else ids
            if name == "timestamp":
                values = values / self._rates(places[SEGMENT])[:, None]
        if values.base is None:
            out[...] = values.reshape(-1)

    def steps_of(self, places: Int64s, parts: Sequence[Int64s]) -> tuple[Int64s, npt.NDArray[np.float64]]:
        """Return the number of each place's step in its episode, int64 [n], and its steps a second, float64 [n]."""
        steps = np.ascontiguousarray(self._at_rows("step_index", parts, places[ROW]), np.int64)
        return steps, self._rates(places[SEGMENT])

    def _at_rows(self, name: str, parts: Sequence[Int64s], rows: Int64s) -> npt.NDArray[Any]:
        """Return a column at one row of each place, [n]."""
        return np.ascontiguousarray(self._sources.compute(name, parts, rows[:, None])[:, 0])

    def _rates(self, segments: Int64s) -> npt.NDArray[np.float64]:
        """Return the steps a second of each segment's store, [n]."""
        rates = np.array([store.fps or np.nan for store in self._sources.stores], np.float64)
        found: npt.NDArray[np.float64] = rates[self._sources.segment_stores[segments]]
        return found


def _contiguous(out: npt.NDArray[Any], shape: tuple[int, int], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return what a kernel that is compiled for one type writes: a view of the output, or memory of its own."""
    is_fit = out.flags.c_contiguous and out.dtype == dtype
    return out.reshape(shape) if is_fit else np.empty(shape, dtype)
