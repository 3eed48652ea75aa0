"""What a replay loader draws from: a table, or the anchors of a view in an order without end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepwell.errors import OrderError, WindowError
from stepwell.order.ranks import stream_spans
from stepwell.replay.reaching import check_reach
from stepwell.replay.rows import Rows, clipped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepwell.order import Order
    from stepwell.replay.tables import Table
    from stepwell.windows import AnchorIndex
    from stepwell.windows.resolved import ResolvedField

__all__ = ["NO_KEY", "RowSource", "Rows", "TableRows", "ViewRows", "joined"]

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

        Raises:
            RateLimitError: they did not come in time.
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
    """Items of a table.

    Args:
        table: to draw from.
        is_clipped: whether windows stay within the steps of their item, instead of its episode.
    """

    def __init__(self, table: Table, *, is_clipped: bool) -> None:
        self.table = table
        self._table = table
        self._is_clipped = is_clipped
        # how far fields reach, where there is no pattern that waits for it
        self._reach = 0

    def can_draw(self, count: int) -> bool:
        """Return whether so many rows may be drawn now: the limiter lets them, and items that go do not run out."""
        table = self._table
        if not table.can_sample(count):
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
        """Refuse fields whose windows would be padded with what comes only later.

        Raises:
            WindowError: such a field, or one that decides which steps are anchors.
        """
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
    """Anchors of a view, epoch after epoch.

    Args:
        index: of the anchors.
        order: in which they come; must have positions.

    Raises:
        OrderError: no anchors.
    """

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
