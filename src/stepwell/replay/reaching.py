"""Items without a pattern: nothing waits until the steps that their windows reach are there, so it is looked at.

::

    an episode that is still recorded    0 1 2 3 4 5 | not there yet
    item of 3 steps                        [---]             fields of 3 steps: all of them are its own
    item of 1 step                                 [-]       fields of 3 steps: two would be padding that becomes real
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.places import EPISODE, HI_STEP, PLACE_ROWS, ROW, SEGMENT
from stepwell.replay import records as columns
from stepwell.replay.records import FLAGS, IS_CUT, IS_OPEN
from stepwell.windows.chains import outer, widened

if TYPE_CHECKING:
    from stepwell.replay.tables import Table

__all__ = ["check_reach"]


def check_reach(table: Table, places: npt.NDArray[np.int64], lengths: npt.NDArray[Any], reach: int) -> None:
    """Refuse rows whose windows would be padded with what comes only later.

    Args:
        table: of the items.
        places: int64 [6, n], where the items were when they were drawn.
        lengths: int32 [n], steps of the items.
        reach: steps that fields reach beyond an item's first one.

    Raises:
        WindowError: one reaches beyond its item and beyond what its episode, which is still recorded, has.
    """
    beyond = np.flatnonzero((places[ROW] + reach >= places[HI_STEP]) & (lengths <= reach))
    if not len(beyond):
        return
    with table.lock:
        history = table.history
        if history.chains is not None:
            # what a piece does not have the next one may
            places, _, _ = widened(places[:PLACE_ROWS], 0, reach, history.chains)
            beyond = beyond[places[ROW, beyond] + reach >= places[-2, beyond]]
            places = outer(places)
            places[EPISODE] = history.last_episodes(places[EPISODE])
        beyond = beyond[places[EPISODE, beyond] >= history.base]
        records = history.records[places[EPISODE, beyond] - history.base]
        # also one that has gone on, and perhaps ended, since it was drawn
        is_other = places[SEGMENT, beyond] != records[:, columns.SEGMENT]
        has_grown = ~is_other & (records[:, columns.HI_STEP] > places[HI_STEP, beyond])
        was_open = (records[:, FLAGS] & (IS_OPEN | IS_CUT) != 0) | has_grown
    if was_open.any():
        length = int(lengths[beyond[was_open]][0])
        raise WindowError(
            f"fields reach {reach} steps beyond an item's first one, and table {table.name!r} has an item of {length} "
            "near the end of an episode that is still recorded: what is not there yet would be padded. Create items "
            f"once the {reach} steps after their first one are there, or the episode has ended; or items of "
            f'{reach + 1} steps; or read no further than they go: ReplayLoader(..., clip="item").'
        )
