"""What a replay loader draws from: a table, or the anchors of a view in an order without end.

Items without a pattern do not wait until the steps that their windows reach are there, so that is checked::

    an episode that is still recorded    0 1 2 3 4 5 | not there yet
    item of 3 steps                        [---]             fields of 3 steps: all of them are its own
    item of 1 step                                 [-]       fields of 3 steps: two would be padding that becomes real
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError, WindowError
from stepwell.kernels.places import EPISODE, HI_STEP, LO, PLACE_ROWS, ROW, SEGMENT
from stepwell.order import Order, random
from stepwell.order.order import derive_seed
from stepwell.order.ranks import stream_spans
from stepwell.replay import episode_records as columns
from stepwell.replay.episode_records import FLAGS, IS_CUT, IS_OPEN
from stepwell.store import Store
from stepwell.windows import View
from stepwell.windows.chains import Chains, outer, widened
from stepwell.windows.fields import resolve_fields
from stepwell.windows.reader import PlaceReader
from stepwell.windows.sources import ViewSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepwell.order import Order
    from stepwell.replay.tables import Table
    from stepwell.windows import AnchorIndex
    from stepwell.windows.fields import ResolvedField

__all__ = ["NO_KEY", "RowSource", "Rows", "TableRows", "ViewRows", "check_reach", "clipped", "joined", "open_sources"]

Int64s = npt.NDArray[np.int64]
# the key of a row that comes from no table
NO_KEY = np.uint64(2**64 - 1)


class RowSource(ABC):
    """What rows of batches are drawn from.

    Notes:
        One thread at a time.
    """

    table: Table | None = None

    @abstractmethod
    def can_draw(self, count: int) -> bool:
        """Return whether rows may be drawn without waiting."""

    @abstractmethod
    def draw(self, start: int, count: int, timeout: float | None) -> Rows:
        """Draw rows.

        Args:
            start: rows that were drawn before, since the beginning.
            count: rows to draw.
            timeout: seconds to wait for them; None: without end.
        """

    @property
    @abstractmethod
    def size(self) -> int:
        """The items or anchors there are to draw from."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What a loader's state must agree on: the name of a table, or the digest of a view's anchors and order."""


class TableRows(RowSource):
    """Items of a table."""

    def __init__(self, table: Table, *, is_clipped: bool) -> None:
        self.table = table
        self._table = table
        self._is_clipped = is_clipped
        # how far fields reach, where there is no pattern that waits for it
        self._reach = 0

    @property
    def draws_in_one(self) -> bool:
        """Whether `Table.draw_batch` draws what `draw` does."""
        return self._table.draws_in_one and not self._reach and not self._is_clipped

    def can_draw(self, count: int) -> bool:
        """Return whether so many rows may be drawn now: the limiter lets them, and items that go do not run out."""
        if self._could_draw(count):
            # the draw follows the store
            return True
        self._table.follow()
        return self._could_draw(count)

    def _could_draw(self, count: int) -> bool:
        """Return `can_draw` of what was known of the store at the last look."""
        table = self._table
        if not table.could_sample(count):
            return False
        return not table.settings.max_times_sampled or count <= table.size - table.settings.limiter.min_size + 1

    def draw(self, start: int, count: int, timeout: float | None) -> Rows:
        """Draw items; ``start`` is the table's own business."""
        if count == 0:
            return _no_rows()
        sample, places = self._table.sample_placed(count, timeout)
        if self._reach:
            check_reach(self._table, places, sample.lengths, self._reach)
        if self._is_clipped:
            places = clipped(places, sample.lengths, self._table.history.chains)
        return Rows(
            places,
            sample.keys,
            sample.probabilities,
            sample.priorities,
            sample.times_sampled,
            sample.table_size,
        )

    @property
    def size(self) -> int:
        """Items in the table."""
        self._table.follow()
        return int(self._table.size)

    @property
    def identity(self) -> str:
        """The table's name."""
        return f"table {self._table.name}"

    def check_fields(self, fields: Mapping[str, ResolvedField]) -> None:
        """Refuse fields whose windows would be padded with what comes only later."""
        pattern = self._table.pattern
        for key, field in fields.items():
            if field.pad == "drop":
                raise WindowError(
                    f"field {key!r}: pad='drop' decides which steps are anchors, and in table {self._table.name!r} the "
                    "pattern does. Use pad='edge' or 'zero' (marked in the mask), and Pattern(ends='drop', ...)."
                )
            if self._is_clipped or field.field.at != "anchor":
                continue
            if pattern is None:
                self._reach = max(self._reach, field.max_offset)
                continue
            if pattern.at == "end":
                continue
            if field.max_offset > pattern.reach:
                raise WindowError(
                    f"field {key!r} reaches {field.max_offset} steps ahead, and items of table {self._table.name!r} "
                    f"are made when {pattern.reach} are there: what is not there yet would be padded. Use "
                    f"Pattern(length={pattern.length}, ahead={field.max_offset - pattern.length + 1})."
                )


class ViewRows(RowSource):
    """Anchors of a view, epoch after epoch."""

    def __init__(self, index: AnchorIndex, order: Order) -> None:
        self._index = index
        self._order = order.bind(index)
        self._name = repr(order)
        if self._order.num_positions == 0:
            raise OrderError("a source without anchors. Record episodes first, or give it no share.")

    def can_draw(self, count: int) -> bool:
        """Return True: anchors are always there."""
        return True

    def draw(self, start: int, count: int, timeout: float | None) -> Rows:
        """Draw the anchors at positions of the endless sequence of epochs."""
        spans = stream_spans(self._order.num_positions, start, count)
        parts = [self._order.positions(span.epoch, span.start, span.count) for span in spans]
        positions = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])
        size = self._order.num_positions
        return Rows(
            self._index.places(positions),
            np.full(count, NO_KEY),
            np.full(count, 1 / size),
            np.ones(count),
            np.zeros(count, np.int32),
            np.full(count, size),
        )

    @property
    def size(self) -> int:
        """Anchors that an epoch visits."""
        return self._order.num_positions

    @property
    def identity(self) -> str:
        """The digest of the anchors, and the order."""
        return f"anchors {self._index.digest} in {self._name}"


def _no_rows() -> Rows:
    return Rows(
        np.empty((6, 0), np.int64),
        np.empty(0, np.uint64),
        np.empty(0),
        np.empty(0),
        np.empty(0, np.int32),
        np.empty(0, np.int64),
    )


def joined(parts: list[Rows]) -> Rows:
    """Return the rows of several sources, one after the other; the places are those of the first."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part[1:] for part in parts), strict=True)
    return Rows(parts[0].places, *(np.concatenate(column) for column in columns))


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


def check_reach(table: Table, places: npt.NDArray[np.int64], lengths: npt.NDArray[Any], reach: int) -> None:
    """Refuse rows whose windows would be padded with what comes only later.

    Args:
        table: of the items.
        places: int64 [6, n], where the items were when they were drawn.
        lengths: int32 [n], steps of the items.
        reach: steps that fields reach beyond an item's first one.
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


def open_sources(
    given: Any, fields: Mapping[str, Any] | None, *, seed: int, is_clipped: bool
) -> tuple[list[RowSource], PlaceReader]:
    """Return what rows are drawn from, and what reads them."""
    each = [_parsed(one) for one in _listed(given)]
    stores = [store for source, _ in each for store in (source.stores if isinstance(source, View) else [source.store])]
    resolved = resolve_fields(fields, stores)
    rows: list[RowSource] = []
    places: list[Any] = []
    for number, (source, order) in enumerate(each):
        if isinstance(source, View):
            anchors = ViewSource(source, fields)
            chosen = random(derive_seed(seed, f"replay source {number}")) if order is None else order
            rows.append(ViewRows(anchors.index, chosen))
            places.append(anchors)
        else:
            table = TableRows(source, is_clipped=is_clipped)
            table.check_fields(resolved)
            rows.append(table)
            places.append(source.history)
    return rows, PlaceReader(places, fields)


def _listed(given: Any) -> Sequence[Any]:
    is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Order)
    if is_pair or not isinstance(given, list | tuple):
        return [given]
    if not given:
        raise OrderError("no sources. Give a table, a view, or a list of several.")
    return given


def _parsed(one: Any) -> tuple[Any, Order | None]:
    """Return a table or view, and the order of the view if it was given."""
    order: Order | None = None
    if isinstance(one, tuple) and len(one) == 2:
        one, order = one
        if not isinstance(order, Order) or hasattr(one, "sample"):
            raise OrderError(f"({one!r}, {order!r}) is no pair of a view and an order. A table has a sampler instead.")
    if isinstance(one, Store):
        one = View(one)
    if not isinstance(one, View) and not hasattr(one, "sample"):
        raise OrderError(f"a {type(one).__name__} is no source. Give a Table, a View, a store, or (view, order).")
    return one, order
