"""What the fields together take of each column around an anchor: the rows that must be there before it is visited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.windows.resolved import ResolvedField

__all__ = ["FIRST_ANCHOR", "FIRST_ROW", "HI_FINAL", "HI_STEP", "LAST_ROW", "LO", "PIECE_COLUMNS", "SEGMENT"]
__all__ += ["Reach", "reaches"]

Int64s = npt.NDArray[np.int64]

# columns of a table of pieces, see stepwell.windows.blocks
FIRST_ANCHOR, SEGMENT, FIRST_ROW, LAST_ROW, LO, HI_STEP, HI_FINAL = range(7)
PIECE_COLUMNS = 7


@dataclass(frozen=True, slots=True)
class Reach:
    """The offsets between which all fields of a view read one column.

    Args:
        name: of the column.
        first: the earliest offset from the anchor.
        last: the latest.
        is_final: whether it has a value in an episode's final row.
        row_bytes: bytes of a decoded row, as the pool holds it.
        is_sequential: whether rows must be decoded from a sync row on.
    """

    name: str
    first: int
    last: int
    is_final: bool
    row_bytes: int
    is_sequential: bool

    def rows(self, pieces: Int64s) -> tuple[Int64s, Int64s]:
        """Return the rows that the windows of pieces reach in this column.

        Args:
            pieces: int64 [..., 7].

        Returns:
            First row and row after the last, int64 [...] each. The anchors' own rows are always among them: a window
            that lies beside its anchor is clamped into its episode, and a piece may hold several.
        """
        hi = pieces[..., HI_FINAL] if self.is_final else pieces[..., HI_STEP]
        first = np.maximum(pieces[..., LO], pieces[..., FIRST_ROW] + min(self.first, 0))
        return first, np.minimum(hi, pieces[..., LAST_ROW] + max(self.last, 0) + 1)


def reaches(fields: Iterable[ResolvedField]) -> tuple[Reach, ...]:
    """Return the reach of every raw or encoded column of fixed shape; ragged and computed ones are not held."""
    found: dict[str, Reach] = {}
    for field in fields:
        if not field.is_held:
            continue
        for source in field.sources:
            if source.kind not in ("raw", "encoded"):
                continue
            known = found.get(source.name)
            first, last = field.min_offset, field.max_offset
            if known is not None:
                first, last = min(first, known.first), max(last, known.last)
            found[source.name] = Reach(
                source.name, first, last, source.is_final, source.row_bytes, source.is_sequential
            )
    return tuple(found.values())
