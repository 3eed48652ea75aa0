"""What a batch of a replay loader holds beside its fields: which items its rows are, and how they were drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import TableError
from stepwell.replay.drawing import Drawn
from stepwell.replay.sources import joined

if TYPE_CHECKING:
    from stepwell.windows.held import HeldRows
    from stepwell.windows.reader import Drawing, PlaceReader

__all__ = ["DrawnReader", "look_up", "to_numpy"]


class DrawnReader:
    """Reads what was drawn: the fields, then the columns of the table.

    Args:
        reader: of the sources' places.
    """

    def __init__(self, reader: PlaceReader) -> None:
        self._reader = reader
        self.fields = reader.fields
        self._sources: dict[tuple[int, ...], npt.NDArray[np.int64]] = {}

    def num_bytes(self, num_rows: int, /) -> int:
        """Return the bytes of memory that the fields of a batch take."""
        return self._reader.num_bytes(num_rows)

    def read(
        self,
        drawn: Drawn,
        memory: npt.NDArray[np.uint8] | None = None,
        /,
        *,
        held: HeldRows | None = None,
        draws: Drawing | None = None,
    ) -> dict[str, Any]:
        """Return the arrays of a batch by key, those of the fields views of ``memory``, and how its rows were drawn.

        Args:
            drawn: of which rows.
            memory: as of `PlaceReader.read_places`, and ``draws`` likewise.
            held: not used.
        """
        parts = drawn.parts
        if len(parts) == 1:
            rows, places = parts[0], [parts[0].places]
        else:
            rows, places = joined(parts), [part.places for part in parts]
        values: dict[str, Any] = self._reader.read_places(places, memory, draws=draws)
        values["table.key"] = rows.keys
        values["table.probability"] = rows.probabilities
        values["table.weight"] = drawn.weights
        values["table.priority"] = rows.priorities
        values["table.times_sampled"] = rows.times_sampled
        values["table.size"] = rows.table_size
        sources = self._sources.get(drawn.counts)
        values["table.source"] = self._source_of(drawn.counts) if sources is None else sources
        return values

    def _source_of(self, counts: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Return which source each row is of; the same array for the same counts."""
        found = self._sources[counts] = np.repeat(np.arange(len(counts)), counts)
        found.flags.writeable = False
        return found


def look_up(batch: Mapping[str, Any], name: str) -> Any:
    """Return a column of the table from a batch, nested or not.

    Raises:
        TableError: it is not there.
    """
    if f"table.{name}" in batch:
        return batch[f"table.{name}"]
    nested = batch.get("table")
    if isinstance(nested, Mapping) and name in nested:
        return nested[name]
    raise TableError(f"the batch has no 'table.{name}'. Give the batch as the loader returned it.")


def to_numpy(values: Any) -> npt.NDArray[Any]:
    """Return an array of what may be a torch tensor, on any device, with a gradient or without."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)
