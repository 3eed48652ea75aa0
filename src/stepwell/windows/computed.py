"""Windows of computed columns: a column is asked for once an anchor, and a kernel writes the window and its padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.places import HI_STEP, LO, ROW, SEGMENT
from stepwell.windows.chains import outer
from stepwell.windows.resolved import ResolvedField
from stepwell.windows.rows import window_rows
from stepwell.windows.sources import JoinedSources

__all__ = ["ComputedWindows"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# by how much a number grows from row to row; what is not here is true at the first or the last row of an episode
GROWTH = {"step_id": 1, "step_index": 1, "timestamp": 1, "episode_index": 0, "store_index": 0}


class ComputedWindows:
    """Write windows of computed columns.

    Args:
        sources: of the places.

    Notes:
        Thread-safe.
    """

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
        """Write the windows of a column.

        Args:
            name: of the column.
            field: whose windows they are.
            places: int64 [6, n], where they are put, or [9, n] with the bounds of whole episodes.
            parts: the anchors' places of each source, with its own numbers.
            out: [n * K], written.
            mask: bool [n, *window], written; None: nobody asks for it.
            adds: whether marks that are in the mask stay.
        """
        is_whole, places = len(places) > 6, outer(places)
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
