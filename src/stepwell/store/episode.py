"""One episode of a store, for people and converters; training reads windows instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepwell.store.episodes import EpisodeTable
from stepwell.store.ids import step_id

if TYPE_CHECKING:
    from stepwell.store.store import Store

__all__ = ["Episode"]


class Episode(Mapping[str, Any]):
    """An episode as a mapping from feature name to its column, read when it is asked for.

    ``episode["action"]`` is an array [length, ...]; a feature with ``final=True`` gives one more row when the final
    observation was recorded; text, bytes and arrays of varying size come as lists.

    Notes:
        Reads from the store's files at every access; raw columns are read-only views of the file.
    """

    __slots__ = ("_index", "_segment", "_store", "_table")

    def __init__(self, store: Store, table: EpisodeTable, index: int) -> None:
        self._store = store
        self._table = table
        self._index = index
        # taken now: after a compaction the table's numbers mean other segments of the store
        self._segment = store.segments[int(table.segment[index])]

    @property
    def index(self) -> int:
        """Its place in the store, as of the refresh before it was taken."""
        return self._index

    @property
    def length(self) -> int:
        """Steps."""
        return int(self._table.length[self._index])

    @property
    def has_final(self) -> bool:
        """Whether the observation after the last action was recorded."""
        return int(self._table.rows[self._index]) > self.length

    @property
    def terminated(self) -> bool:
        """Whether the environment reached a terminal state."""
        return bool(self._table.terminated[self._index])

    @property
    def truncated(self) -> bool:
        """Whether it was cut."""
        return bool(self._table.truncated[self._index])

    @property
    def interrupted(self) -> bool:
        """Whether its writer died or was closed in mid-episode."""
        return bool(self._table.interrupted[self._index])

    @property
    def is_open(self) -> bool:
        """Whether it was still being recorded."""
        return bool(self._table.is_open[self._index])

    @property
    def metadata(self) -> dict[str, Any]:
        """What was given to ``end_episode``."""
        return self._table.metadata(self._index)

    @property
    def first_step_id(self) -> int:
        """Id of its first step; the others follow."""
        return step_id(self._segment.ordinal, int(self._table.start[self._index]))

    def __getitem__(self, name: str) -> Any:
        schema = self._store.schema
        if schema is None:
            raise KeyError(name)
        start = int(self._table.start[self._index])
        rows = int(self._table.rows[self._index]) if schema[name].final else self.length
        return self._segment.read_rows(name, start, start + rows)

    def __contains__(self, name: object) -> bool:
        # the one of Mapping would read the column
        return name in (self._store.schema or ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.schema or ())

    def __len__(self) -> int:
        return len(self._store.schema or ())

    def __repr__(self) -> str:
        flags = [flag for flag in ("terminated", "truncated", "interrupted", "is_open") if getattr(self, flag)]
        return (
            f"<Episode {self._index} of {self._store.path.name}  {self.length:,} steps  {' '.join(flags) or 'ended'}>"
        )
