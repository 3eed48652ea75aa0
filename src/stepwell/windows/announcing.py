"""Which bytes of files a batch is about to read, told to the system, so that it fetches them all at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepwell.kernels.places import SEGMENT
from stepwell.windows.decoding import RowError
from stepwell.windows.maps import MapTable
from stepwell.windows.resolved import ResolvedField, Source
from stepwell.windows.rows import window_rows

if TYPE_CHECKING:
    from stepwell.windows.filling import Filler
    from stepwell.windows.reader import PlaceBatch

__all__ = ["announce_batch"]

Int64s = npt.NDArray[np.int64]


def announce_batch(
    batch: PlaceBatch, fields: Iterable[ResolvedField], filler: Filler, slots: Mapping[str, int]
) -> None:
    """Announce what a batch reads through maps.

    Args:
        batch: whose segments are mapped.
        fields: that are read through maps.
        filler: whose decoders know where encoded rows lie, and what an error of theirs says.
        slots: name of a column to its row in the table of maps.

    Raises:
        LoaderError: encoded rows that lie outside their file.
    """
    for each in fields:
        # of windows that leave a piece of an episode, what lies in the anchors' own
        places = batch.at(each.field.at)[:6]
        for source in each.sources:
            if source.kind == "raw":
                _announce_raw(each, source, places, batch.table, slots[source.name])
            elif source.kind != "virtual":
                _announce_encoded(each, source, places, batch.table, filler)


def _announce_raw(field: ResolvedField, source: Source, places: Int64s, table: MapTable, slot: int) -> None:
    from stepwell.kernels.gather import runs_of
    from stepwell.kernels.spans import announce

    rows, _ = window_rows(field, source.is_final, places)
    bases = table.addresses[slot, places[SEGMENT]]
    for _, number, start in runs_of(field.offsets.tolist()):
        first, last = rows[:, start], rows[:, start + number - 1]
        announce(bases + first * source.row_bytes, (last - first + 1) * source.row_bytes)


def _announce_encoded(field: ResolvedField, source: Source, places: Int64s, table: MapTable, filler: Filler) -> None:
    from stepwell.kernels.spans import announce

    rows, _ = window_rows(field, source.is_final, places)
    segments = np.repeat(places[SEGMENT], rows.shape[1])
    try:
        announce(*filler.decoders[source.name].addresses(table, segments, rows.reshape(-1)))
    except RowError as error:
        raise filler.error(field, source, segments, error, rows) from error.cause
