"""Rows that were drawn from a source: where they lie, and what is told of each."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.kernels.places import HI_STEP, LO, ROW
from stepwell.windows.chains import Chains, widened

__all__ = ["Rows", "clipped"]

Int64s = npt.NDArray[np.int64]


class Rows(NamedTuple):
    """Rows drawn from a source.

    Args:
        places: int64 [6, n]; [9, n] where windows are clipped that reach over pieces of an episode.
        keys: uint64 [n], `NO_KEY` where there is no item.
        probabilities: float64 [n], of being drawn.
        priorities: float64 [n].
        times_sampled: int32 [n].
        table_size: int64 [n], items or anchors there were to draw from.
    """

    places: Int64s
    keys: npt.NDArray[np.uint64]
    probabilities: npt.NDArray[np.float64]
    priorities: npt.NDArray[np.float64]
    times_sampled: npt.NDArray[np.int32]
    table_size: Int64s

    def pieces(self, number: int) -> list[Rows]:
        """Return the rows in equal pieces, one after the other."""
        size = len(self.keys) // number
        # kernels are compiled for places that are contiguous
        places = np.ascontiguousarray(self.places.reshape(len(self.places), number, size).transpose(1, 0, 2))
        columns = [column.reshape(number, size) for column in self[1:]]
        return [Rows(*each) for each in zip(places, *columns, strict=True)]

    def part(self, start: int, stop: int) -> Rows:
        """Return some of the rows."""
        return Rows(
            np.ascontiguousarray(self.places[:, start:stop]),
            self.keys[start:stop],
            self.probabilities[start:stop],
            self.priorities[start:stop],
            self.times_sampled[start:stop],
            self.table_size[start:stop],
        )


def clipped(places: Int64s, lengths: npt.NDArray[np.int32], chains: Chains | None) -> Int64s:
    """Return places that end with the steps of their items.

    Args:
        places: int64 [6, n]; changed.
        lengths: int32 [n].
        chains: of the history that they are places of.
    """
    stop = places[ROW] + lengths
    if chains is not None and (stop > places[HI_STEP]).any():
        places, _, _ = widened(places, 0, int(lengths.max()), chains)
    # in steps that are there, of the piece and of the whole episode
    for first in range(LO, len(places), 3):
        places[first] = places[ROW]
        np.minimum(places[first + 1 : first + 3], stop, out=places[first + 1 : first + 3])
    return places
