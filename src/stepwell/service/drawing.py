"""Loaders of clients: what one stream of batches draws and reads, on behalf of its client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, RateLimitError, ServiceError
from stepwell.replay.drawing import POLL_SECONDS
from stepwell.replay.sampling import Rows, TableRows
from stepwell.replay.tables import Table
from stepwell.service.fields import fields_from_json, is_mapped, is_sent_stored, reach_of, resolve_remote
from stepwell.service.mapping import place_columns
from stepwell.service.messages import Kind, pack
from stepwell.service.sessions import ROWS, SIZES
from stepwell.windows.fields import ResolvedField
from stepwell.windows.reader import PlaceReader
from stepwell.windows.sources import JoinedSources

__all__ = ["CELLS", "MAX_ROWS", "Drawing", "waits"]

CELLS = ":cells"
MAX_REDRAWS = 8
MAX_ROWS = 1 << 20
# what a batch says of its items, and how `Rows` calls it
COLUMNS = {
    "key": "keys",
    "probability": "probabilities",
    "priority": "priorities",
    "times_sampled": "times_sampled",
    "size": "table_size",
}


class Drawing:
    """Draws batches of a table and reads them; one thread at a time.

    Args:
        table: to draw from.
        head: of the client's HELLO: fields, whether windows are clipped, whether it maps the store's files, which of
            `COLUMNS` it wants, whether it draws from other servers, too.

    Raises:
        ServiceError: fields that are none.
        WindowError: fields that do not fit the store or the table.
    """

    def __init__(self, table: Table, head: Mapping[str, Any]) -> None:
        self.table = table
        schema = table.store.schema
        if schema is None:
            raise ServiceError(f"table {table.name!r} is over a store without features yet. Write a step first.")
        fields = fields_from_json(head.get("fields"))
        resolved = resolve_remote(fields, schema, table.store.fps)
        self._rows = TableRows(table, is_clipped=bool(head.get("is_clipped")))
        self._rows.check_fields(resolved)
        self._places = None
        if head.get("maps"):
            mapped = [each for each in resolved.values() if is_mapped(each)]
            self._places = Places(table, mapped)
            resolved = {key: each for key, each in resolved.items() if each not in mapped}
        stored = {key: fields[key] for key, each in resolved.items() if is_sent_stored(each)}
        plain = {key: fields[key] for key in resolved if key not in stored}
        self._plain = PlaceReader([table.history], plain) if plain else None
        self._stored = PlaceReader([table.history], stored) if stored else None
        info = head.get("info", COLUMNS)
        self._info = [name for name in COLUMNS if name in info]
        self._is_shard = bool(head.get("is_shard"))
        self.num_rows = self.num_batches = 0
        # whether the last draw left a part of its rows with the table
        self.has_part = False

    def why_not(self, count: int) -> str:
        """Return what so many rows wait for."""
        return f"table {self.table.name!r}: {self.table.settings.limiter.name} does not let {count} rows be drawn yet"

    def draw(self, count: int, least: int) -> bytes | None:
        """Return rows as a message, as many as were asked for or the least; None where a limiter lets neither through.

        A client that draws from other servers, too, gets a message of no rows where nothing is there to draw from.

        Args:
            count: rows that were asked for.
            least: of them, a batch.
        """
        # where the limiter holds the other side, too, both would wait for ever: a part is drawn, and kept by the table
        asked, self.has_part = count, False
        if not self._rows.can_draw(count):
            if self._is_shard and not self._sums()[1]:
                count = 0
            elif (least == count or not self._rows.can_draw(least)) and self.table.can_insert():
                return None
            else:
                count = least
        if not count:
            return pack(Kind.BATCH, {"rows": 0, "sums": self._sums()})
        for number in range(MAX_REDRAWS + 1):
            try:
                rows = self._rows.draw(0, count, 0.0)
                head, columns = self._read(rows)
                break
            except RateLimitError:
                self.has_part = True
                return None
            except LoaderError as error:
                # a writer went round the ring, and a segment of the batch is gone
                if not isinstance(error.__cause__, FileNotFoundError) or number == MAX_REDRAWS:
                    raise
                self.table.follow()
        self.num_rows += count
        self.num_batches += count // least
        if count != asked:
            head["rows"] = count
        if self._is_shard:
            head["sums"] = self._sums()
        return pack(Kind.BATCH if self._places is None else Kind.PLACES, head, columns)

    def _sums(self) -> tuple[float, int]:
        """Return the sum of the weights of the items, and their number; none below the least that the limiter asks."""
        table = self.table
        return (table.total_weight, table.size) if table.size >= table.settings.limiter.min_size else (0.0, 0)

    def _read(self, rows: Rows) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        head: dict[str, Any] = {}
        columns = {} if self._plain is None else self._plain.read_places([rows.places])
        if self._stored is not None:
            columns.update(_as_columns(self._stored, rows))
        if self._places is not None:
            # last: what is new of segments is said once, and reading may fail
            head, found = self._places.of(rows.places)
            columns.update(found)
        for name in self._info:
            columns[f"table.{name}"] = getattr(rows, COLUMNS[name])
        return head, columns


class Places:
    """Says where rows lie, to a client that maps the files.

    Args:
        table: whose items they are.
        fields: that the client reads.
    """

    def __init__(self, table: Table, fields: Sequence[ResolvedField]) -> None:
        self._history = table.history
        self._sources = JoinedSources([table.history])
        self._reach = reach_of(fields)
        # which step of its episode a row is says when it was, too
        self._has_clues = any(
            each.feature is None or each.kind == "rated" for field in fields for each in field.sources
        )
        # the segments that the client knows of, and the ordinal of each
        self._known: dict[int, int] = {}
        self._revision = -1

    def of(self, places: npt.NDArray[np.int64]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return head and columns of a message about some rows."""
        chained = None
        if self._sources.has_chains:
            places, _, chained = self._sources.chained(places, (places,), *self._reach)
        history = self._history
        clues = history.clues(places) if self._has_clues else None
        return self._news(), place_columns(places, chained, history.ordinals, self._reach, clues)

    def _news(self) -> dict[str, Any]:
        """Return the segments that came and went since the last look."""
        history = self._history
        if history.revision == self._revision:
            return {}
        self._revision = history.revision
        segments, ordinals = list(history.segments), history.ordinals
        gone = [number for number in self._known if segments[number] is None]
        came = [number for number, each in enumerate(segments) if each is not None and number not in self._known]
        self._known.update((number, int(ordinals[number])) for number in came)
        head: dict[str, Any] = {}
        if came:
            head["segments"] = [[self._known[number], segments[number].name] for number in came]
        if gone:
            left = [self._known.pop(number) for number in gone]
            # an ordinal may be another segment's by now
            head["gone"] = [ordinal for ordinal in left if ordinal not in self._known.values()]
        return head


def _as_columns(reader: PlaceReader, rows: Rows) -> dict[str, npt.NDArray[Any]]:
    columns: dict[str, npt.NDArray[Any]] = {}
    cells, blobs = reader.read_stored([rows.places])
    for key, (places, is_pad) in cells.items():
        columns[key + CELLS] = places
        if is_pad is not None:
            columns[f"{key}_is_pad"] = is_pad
    for name, each in blobs.items():
        columns[name + SIZES] = np.array([len(blob) for blob in each], np.int64)
        columns[name + ROWS] = np.frombuffer(b"".join(each), np.uint8)
    return columns


def waits(seconds: float) -> float:
    """Return how long a draw waits before it looks again whether others wrote to the store or drew from the table."""
    return min(seconds, POLL_SECONDS)
