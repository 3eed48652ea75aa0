"""Reading several batches of a table at once before they are drawn: the same batches, at the cost of a group's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from stepwell.errors import LoaderError
from stepwell.loader.batch import Batch
from stepwell.loader.builder import BatchBuilder, Fetched
from stepwell.loader.transforms import BatchKey
from stepwell.replay.batches import Ahead, DrawnReader
from stepwell.replay.drawing import Drawer, Drawn, Progress
from stepwell.replay.sources import TableRows

__all__ = ["MOST_AHEAD", "Speculation"]

Built = tuple[Progress, Batch]
# batches that are read together while a table does not change
MOST_AHEAD = 16


class Speculation:
    """Draws and builds one batch after the other, of which the fields may have been read before.

    ::

        table ---- select ----> places of 8 batches ----> one read
        table ---- follow ----> nothing changed: draw, count, transform the next one of them
                           '--> something did: drop them, select one batch of the items that are there now

    Batches are those that would come without it: what is drawn and told of its items is found out when it is asked for.

    Args:
        source: a table that is `Table.is_foreseeable`.
        drawer: of the source.
        reader: of the fields, which are not decoded.
        builder: of batches, of groups of up to `MOST_AHEAD`.
        build: makes a batch of what was drawn the ordinary way.
        settings: seed and rows of a batch.

    Attributes:
        is_ready: False: every `take` draws.

    Notes:
        One thread at a time.
    """

    is_ready = False

    def __init__(  # noqa: PLR0917
        self,
        source: TableRows,
        drawer: Drawer,
        reader: DrawnReader,
        builder: BatchBuilder,
        build: Callable[[Drawn], Built],
        settings: tuple[int, int],
    ) -> None:
        self._source, self._drawer, self._reader, self._builder, self._build = source, drawer, reader, builder, build
        self._seed, self._batch_size = settings
        self._foreseen = source.foresee(self._batch_size, MOST_AHEAD)
        self._fetched: deque[Fetched] = deque()

    def take(self) -> Built:
        """Return the next batch, and the progress after it; it waits, and fails, as the drawer does."""
        foreseen = self._foreseen
        rows = self._source.draw_foreseen(foreseen)
        if rows is None:
            (drawn,) = self._drawer.draw((None,))
            return self._build(drawn)
        drawn = self._drawer.take(rows)
        if foreseen.is_first and not self._fetch(drawn.number):
            return self._build(drawn)
        values, key, pinned, is_done = self._fetched.popleft()
        self._reader.add_columns(drawn, values)
        return drawn.afters[0], Batch(self._builder.finish(values, key, pinned, is_done), 0, drawn.number)

    def interrupt(self) -> None:
        """Nothing: what waits is the drawer, which is stopped by itself."""

    def close(self) -> None:
        """Drop what was read ahead."""
        self._fetched.clear()
        self._foreseen.forget()

    def _fetch(self, first: int) -> bool:
        """Read what is foreseen from a batch on; False where a row cannot be read, maybe one of a later batch."""
        number = self._foreseen.number
        start, num_rows = first * self._batch_size, number * self._batch_size
        key = BatchKey(self._seed, ((0, range(start, start + num_rows)),), num_rows)
        self._fetched.clear()
        try:
            self._fetched.extend(self._builder.fetch(Ahead(self._foreseen.places), key, number))
        except LoaderError:
            self._foreseen.forget()
            return False
        return True
