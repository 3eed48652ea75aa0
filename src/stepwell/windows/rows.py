"""Windows as numbers: the rows that a field takes around each anchor, and what every store knows without storing it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.draws import Draws
from stepwell.kernels.places import ROW
from stepwell.store.ids import step_id
from stepwell.windows.chains import ViewPieces, cells_of
from stepwell.windows.resolved import ResolvedField
from stepwell.windows.views import View

__all__ = ["VirtualColumns", "moved_places", "window_rows"]

Int64s = npt.NDArray[np.int64]


def window_rows(field: ResolvedField, is_final: bool, places: Int64s) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the rows of all windows of a field; padding is clamped into the episode.

    Args:
        field: what is read.
        is_final: whether its windows may reach the final row.
        places: int64 [6, n], of `AnchorIndex.places`, or [9, n] with the bounds of whole episodes.

    Returns:
        rows int64 [n, K], and whether each is padding, bool [n, K].
    """
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


def moved_places(at: str, is_final: bool, places: Int64s, draws: Draws) -> Int64s:
    """Return the places at which windows are put instead of the anchors, see ``Field(at=...)``.

    Args:
        at: "future", "final" or "episode".
        is_final: whether the final row may be one of them.
        places: int64 [6, n], of `AnchorIndex.places`, or [9, n] with the bounds of whole episodes: then rows may lie in
            other pieces.
        draws: of the n windows.
    """
    row, (lo, hi_step, hi_final) = places[ROW], places[-3:]
    last = (hi_final if is_final else hi_step) - 1
    moved = places.copy()
    if at == "future":
        moved[2] = draws.integers(np.minimum(row + 1, last), last + 1)
    else:
        moved[2] = last if at == "final" else draws.integers(lo, last + 1)
    return moved


class VirtualColumns:
    """Compute step ids, indices, times and episode flags of steps.

    Args:
        view: the episodes.
        ordinals: int64 [S], ordinal of each segment, numbered over all stores.
        pieces: the episodes that are pieces of longer ones.
    """

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
            "store_index": lambda places, rows: self._store_of[places[0]][:, None],
            "episode_index": lambda places, rows: self._episode_index[places[0]][:, None],
            "step_index": self._step_index,
            "timestamp": self._timestamp,
            "is_first": lambda places, rows: self._step_index(places, rows) == 0,
            "is_last": lambda places, rows: self._at_last(places, rows, "is_ended", self._is_ended),
            "terminated": lambda places, rows: self._at_last(places, rows, "terminated", self._terminated),
            "truncated": lambda places, rows: self._at_last(places, rows, "truncated", self._truncated),
        }

    def compute(self, name: str, places: Int64s, rows: Int64s) -> npt.NDArray[Any]:
        """Return a virtual column at the given rows.

        Args:
            name: one of `stepwell.windows.resolved.VIRTUAL_DTYPES`.
            places: int64 [6, n], or [9, n] with the bounds of whole episodes.
            rows: int64 [n, K], inside the episodes.

        Returns:
            array that broadcasts to [n, K].
        """
        values: npt.NDArray[Any] = self._values[name](places, rows)
        return values

    def _step_index(self, places: Int64s, rows: Int64s) -> Int64s:
        # lo may be a later step of the episode, where a ring evicted some, or cut it
        found: Int64s = rows - (places[3] - self._skipped[places[0]])[:, None]
        return found

    def _timestamp(self, places: Int64s, rows: Int64s) -> npt.NDArray[np.float64]:
        seconds: npt.NDArray[np.float64] = (
            self._step_index(places, rows) / self._fps[self._store_of[places[0]]][:, None]
        )
        return seconds

    def _at_last(self, places: Int64s, rows: Int64s, name: str, flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        found = flags[places[0]]
        if len(places) > 6:
            # of windows that go on in another piece, how that one ends
            found = np.where(places[-2] > places[4], self._endings[name][places[0]], found)
        is_last: npt.NDArray[np.bool_] = (rows == places[-2][:, None] - 1) & found[:, None]
        return is_last

    def _step_id(self, places: Int64s, rows: Int64s) -> Int64s:
        segments = places[1][:, None]
        if len(places) > 6 and self._pieces is not None:
            segments, rows = cells_of(self._pieces.chains, places, rows)
        return step_id(self._ordinals[segments], rows)
