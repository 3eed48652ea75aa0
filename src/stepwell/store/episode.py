"""One episode of a store, for people and converters; training reads windows instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import EpisodeNotFoundError
from stepwell.store.counting import counted
from stepwell.store.ids import step_id

if TYPE_CHECKING:
    from stepwell.store.snapshot import Snapshot
    from stepwell.store.store import Store

__all__ = ["Episode"]


class Episode(Mapping[str, Any]):
    """An episode as a mapping from feature name to its column, read when it is asked for.

    ``episode["action"]`` is an array [length, ...]; a feature with ``final=True`` gives one more row when the final
    observation was recorded; text, bytes and arrays of varying size come as lists.

    Notes:
        Reads from the store's files at every access; raw columns are read-only views of the file. Pickles as the
        store's path and its first step: another process opens the store anew, and finds it there.
    """

    __slots__ = ("_index", "_segment", "_store", "_table")

    def __init__(self, store: Store, snapshot: Snapshot, index: int) -> None:
        self._store = store
        self._table = snapshot.table
        self._index = index
        # taken now: after a compaction the table's numbers mean other segments of the store
        self._segment = snapshot.segments[int(self._table.segment[index])]

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
    def skipped(self) -> int:
        """Steps of it that lie before its first one here: a ring evicted them, or has them in an earlier episode."""
        return int(self._table.skipped[self._index])

    @property
    def goes_on(self) -> bool:
        """Whether a ring cut it, since it is long, and the rest is a later episode of the store."""
        return bool(self._table.goes_on[self._index])

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
        return self.read_rows(name, 0, int(self._table.rows[self._index]) if schema[name].final else self.length)

    def read_rows(self, name: str, start: int, stop: int) -> Any:
        """Return the rows of a feature from step ``start`` to before step ``stop``, decoding no others than they need.

        Args:
            name: of the feature.
            start: first step, 0 or more.
            stop: at most `length`, one more where a final row is.

        Raises:
            DecodeError: a row that its codec refuses; names the store, the episode and the steps.
        """
        begin = int(self._table.start[self._index])
        zero = begin - self.skipped
        file = f"feature {name!r} ({name}.bin of segment {self._segment.name})"

        def name_rows(first: int, last: int) -> str:
            steps = f"step {first - zero}" if first == last else f"steps {first - zero} to {last - zero}"
            return f"{self._store.path}: episode {self._index}, {steps}, {file}"

        return self._segment.read_rows(name, begin + start, begin + stop, name_rows=name_rows)

    def __contains__(self, name: object) -> bool:
        # the one of Mapping would read the column
        return name in (self._store.schema or ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.schema or ())

    def __len__(self) -> int:
        return len(self._store.schema or ())

    def __reduce__(self) -> tuple[Any, ...]:
        return _find, (self._store, self._index, int(self._table.origin[self._index]), self.skipped)

    def __repr__(self) -> str:
        flags = [
            flag for flag in ("terminated", "truncated", "interrupted", "goes_on", "is_open") if getattr(self, flag)
        ]
        ending = " ".join(flags) or "ended"
        return f"<Episode {self._index} of {self._store.name}  {counted(self.length, 'step')}  {ending}>"


def _find(store: Store, index: int, origin: int, skipped: int) -> Episode:
    """Return the episode that began as the step ``origin``; it was number ``index`` when it was pickled."""
    table = store.episodes
    # the piece that holds its first step, or what is left of it
    is_found = (table.origin == origin) & (table.skipped + table.length > skipped)
    # first by its number: what was concatenated twice has two of the same origin
    places = [index] if index < len(is_found) and is_found[index] else np.flatnonzero(is_found)
    if len(places) == 0:
        raise EpisodeNotFoundError(f"episode {index}, pickled before, is no more in {store.path}. Was it deleted?")
    return store[int(places[0])]
