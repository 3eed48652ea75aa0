"""A store: a directory of segments, seen as a sequence of episodes."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stepwell.display.completion import Completed
from stepwell.display.html import never_raising
from stepwell.errors import EpisodeNotFoundError, ReadOnlyError, SchemaError, StepError, StepwellError
from stepwell.json_text import seal_json
from stepwell.references.trusted_paths import Trust
from stepwell.schema import Feature, Schema
from stepwell.sizes import parse_bytes
from stepwell.store.beneath import final_error, mtime, raise_from, system_errors, trusted_mtime
from stepwell.store.encoding import QUEUE_BYTES
from stepwell.store.episodes import Episode, EpisodeTable
from stepwell.store.following import Follower
from stepwell.store.layout import (
    STORE_JSON,
    locked_store,
    replace_file,
    reserve_ordinals,
)
from stepwell.store.manifests import WriterKey, check_key
from stepwell.store.marks import Marks
from stepwell.store.memory import hold_memory
from stepwell.store.records import Capacity, StoreRecord, Sync, reaching, read_record
from stepwell.store.ring import Evictor, SegmentLimit
from stepwell.store.sealing import remove_earlier
from stepwell.store.snapshot import SegmentList
from stepwell.store.vector_writer import VectorWriter
from stepwell.store.writer import Writer

if TYPE_CHECKING:
    from types import TracebackType

    from stepwell.store.info import StoreTable
    from stepwell.store.statistics_table import StatisticsTable
    from stepwell.store.verify import Report

__all__ = ["Mode", "Store"]

if TYPE_CHECKING:
    Mode = Literal["a", "r"]
else:
    # Jedi 0.20 fails at a property that is a Literal, and IPython completes nothing of a store then
    Mode = str
MAX_ENVS = 1 << 16
_ALL: weakref.WeakSet[Store] = weakref.WeakSet()


class Store(Completed):
    """Episodes on disk. Made by `stepwell.create` and `stepwell.open`.

    A store is a sequence of its episodes: ``len(store)``, ``store[3]``, ``store[-1]``, iteration. What it shows is
    what was there at the last `refresh` (closing a writer made by this store is one): a length never changes by itself.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well", fps=10)
        >>> with store.writer() as writer:
        ...     episode = writer.add_episode({"action": [0, 1, 2]}, task="walk")
        >>> len(store), store.num_steps, store[0].metadata
        (1, 3, {'task': 'walk'})

    Notes:
        Safe to read from many threads. Pickles as its path, so that another process opens it itself; after a fork both
        go on. Maps belong to their callers, the store itself holds no open file but those of live segments' commit
        records.
    """

    _INTERNAL = frozenset(
        {
            "check_schema",
            "check_writable",
            "ensure_lanes",
            "ensure_schema",
            "evictor",
            "listing",
            "place",
            "record",
            "renew_lock",
            "replace_record",
            "reserve_ordinals",
            "save_table",
            "segments",
            "segments_of",
        }
    )

    def __init__(
        self,
        path: str,
        mode: Mode = "a",
        address: str | None = None,
        trust: Trust = None,
        place: tuple[str, str] | None = None,  # of a data set in place: its reader, and where it is
    ) -> None:
        self._path = os.path.abspath(path)
        self._mode: Mode = mode
        self._address, self._place = address, place
        self._trust = trust if trust is None or isinstance(trust, bool | str | os.PathLike) else tuple(trust)
        # the stamp first: what is replaced in between is found by the next refresh
        self._record_time = trusted_mtime(f"{self._path}/{STORE_JSON}")
        self._record = reaching(read_record(self._path), self._path, self._trust)
        self._follower = self._new_follower()
        self._evictor: Evictor | None = None
        self._changing = threading.RLock()
        self._is_closed = False
        _ALL.add(self)
        hold_memory(self, self._path)
        try:
            self._follower.refresh()
            self._snapshot = self._follower.snapshot()
        except OSError as error:
            raise_from(final_error(error, self._path), error)

    # what it is

    @property
    def path(self) -> Path:
        """Its directory."""
        return Path(self._path)

    @property
    def address(self) -> str | None:
        """The address of the data set of another system that it stands for, if any: it lies in a cache then."""
        return self._address

    @property
    def name(self) -> str:
        """A name for people: its address, or the name of its directory."""
        return self._address or self.path.name

    @property
    def mode(self) -> Mode:
        """Whether it is open for reading and writing ("a") or for reading only ("r")."""
        return self._mode

    @property
    def place(self) -> tuple[str, str] | None:
        """Of a data set of another system: its reader and where it is, whatever it was opened with."""
        return self._place

    @property
    def trust(self) -> Trust:
        """The files that its references may lead to, as given to `stepwell.open`."""
        return self._trust

    @property
    def uuid(self) -> str:
        """Its identity; checkpoints keep it."""
        return self._record.uuid

    @property
    def schema(self) -> Schema | None:
        """Its features; None until the first step of a store that was created without a schema."""
        return self._record.schema

    @property
    def fps(self) -> float | None:
        """Steps a second, if they are evenly spaced."""
        return self._record.fps

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Free metadata of the store, read-only."""
        return MappingProxyType(self._record.metadata)

    @property
    def capacity(self) -> Capacity | None:
        """How much it keeps, if it is a ring: the oldest steps beyond that are not shown, and go."""
        return self._record.capacity

    @property
    def segments(self) -> SegmentList:
        """Its segments by ordinal, as of the last refresh: a sequence whose members are made when first used."""
        return self._snapshot.segments

    @property
    def episodes(self) -> EpisodeTable:
        """The table of its episodes, as of the last refresh; made when it is first used."""
        return self._snapshot.table

    @property
    def listing(self) -> tuple[SegmentList, EpisodeTable]:
        """Its `segments` and the table of their `episodes`, both of one moment: another thread may refresh it."""
        snapshot = self._snapshot
        return snapshot.segments, snapshot.table

    @property
    def num_episodes(self) -> int:
        """Episodes, those still being recorded included."""
        return len(self.episodes)

    @property
    def num_steps(self) -> int:
        """Steps; final rows do not count."""
        return int(self.episodes.length.sum())

    def __len__(self) -> int:
        return len(self.episodes)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Episode]:
        # all of one moment: another thread may refresh it
        snapshot = self._snapshot
        return (Episode(self, snapshot, index) for index in range(len(snapshot.table)))

    def __getitem__(self, index: int) -> Episode:
        """Return an episode; a negative index counts from the end."""
        if not isinstance(index, int | np.integer):
            raise TypeError(
                f"store[{index!r}]: the key is an episode's number. For a feature of an episode: store[0][name]; "
                "for some of the episodes: View(store).select(...)."
            )
        snapshot = self._snapshot
        count = len(snapshot.table)
        if not -count <= index < count:
            none = "was closed: open it again" if self._is_closed else "has none yet"
            there = f"has {count}: {-count} to {count - 1}" if count else none
            raise EpisodeNotFoundError(f"no episode {index}. {self._address or self._path} {there}.")
        return Episode(self, snapshot, index % count)

    def __repr__(self) -> str:
        return self.info().line

    @never_raising
    def _repr_html_(self) -> str:
        from stepwell.store.notebook import store_html

        return store_html(self)

    def info(self) -> StoreTable:
        """Return the table of its features, sizes and episode lengths; ``print`` shows it."""
        from stepwell.store.info import make_table

        return make_table(self)

    # following

    def refresh(self) -> bool:
        """Take in what was written, sealed, added or deleted since, by any process.

        Returns:
            Whether anything changed.

        Raises:
            CorruptSegmentError: a segment that came is damaged.
        """
        try:
            with self._changing:
                self._is_closed = False
                return self._refresh()
        except OSError as error:
            found = final_error(error, self._path)
            if found is error:
                raise
            raise found from error

    def _refresh(self) -> bool:
        changed = False
        if mtime(f"{self._path}/{STORE_JSON}") != self._record_time:
            stamp, record = trusted_mtime(f"{self._path}/{STORE_JSON}"), read_record(self._path)
            changed = record != self._record
            self._take_record(record, stamp)
        changed |= self._follower.refresh()
        if changed:
            self._snapshot = self._follower.snapshot()
        return changed

    def segments_of(self, key: str) -> tuple[list[str], int]:
        """Return the names of a writer's segments, as of the last refresh, and how often they had been rearranged."""
        with self._changing:
            return self._follower.segments_of(key)

    def save_table(self) -> None:
        """Replace the table of sealed segments where enough came since; see `stepwell.store.snapshot`."""
        if self._mode != "r":
            with self._changing:
                if self._follower.save_table():
                    self._snapshot = self._follower.snapshot()

    # writing

    def writer(
        self,
        *,
        sync: Sync | None = None,
        queue_bytes: int | str = QUEUE_BYTES,
        ordinal: int | None = None,
        tag: str | None = None,
        key: str | None = None,
    ) -> Writer:
        """Return a writer that records episodes into segments of its own.

        Args:
            sync: when to wait for the disk: "none" (default: the store's), "episode" or "step".
            queue_bytes: values that may wait to be encoded where a codec is slow (video): when there are so many,
                `Writer.append` waits. An int, or a size such as "64 MiB"; default 256 MiB. Two steps always may.
            ordinal: write one segment with this ordinal, from `reserve_ordinals`; for parallel writers of a fixed
                order.
            tag: the segment's four hexadecimal digits; default random.
            key: text of 1 to 200 characters that names a task which may be tried again. What earlier writers of this
                key recorded is removed now, and this store refreshed. Episodes with a key are shown after those
                without one, in the order of the keys (of their code points), whenever they were recorded. Not for
                rings, and not together with ``ordinal`` or ``tag``.

        Raises:
            ReadOnlyError: the store was opened for reading only.
            StoreBusyError: another writer of this key is open; or there is something to remove while a column is
                being added or the store is compacted.
        """
        self.check_writable("write to it")
        sync = self._record.sync if sync is None else sync
        if sync not in ("none", "episode", "step"):
            raise StepwellError(f'sync={sync!r} is not one of "none", "episode", "step".')
        num_bytes = parse_bytes("queue_bytes", queue_bytes, least=0)
        return Writer(
            self,
            sync=sync,
            limit=SegmentLimit(self._record.segment_bytes, self._record.capacity),
            queue_bytes=num_bytes,
            ordinal=ordinal,
            tag=tag,
            key=None if key is None else self._take_key(key, is_placed=ordinal is not None or tag is not None),
        )

    def vector_writer(self, num_envs: int, *, sync: Sync | None = None, writers: int | None = None) -> VectorWriter:
        """Return a writer that records steps of ``num_envs`` environments at once.

        Args:
            num_envs: how many environments, 1 to 65,536.
            sync: when to wait for the disk: "none" (default: the store's), "episode" or "step".
            writers: with how many segments that are open. Default: in a ring whose features are all raw, one for all
                environments; elsewhere one an environment, so that a kill loses a vector step at most. With fewer, the
                running episode of each is kept in memory, and written when it ends.

        Raises:
            ReadOnlyError: the store was opened for reading only.
            SchemaError: not 1 to ``num_envs`` writers.
        """
        self.check_writable("write to it")
        sync = self._record.sync if sync is None else sync
        if sync not in ("none", "episode", "step"):
            raise StepwellError(f'sync={sync!r} is not one of "none", "episode", "step".')
        if not isinstance(num_envs, int | np.integer) or not 1 <= num_envs <= MAX_ENVS:
            raise StepwellError(f"{num_envs!r} environments. Allowed: 1 to {MAX_ENVS}.")
        if writers is not None and not (isinstance(writers, int | np.integer) and 1 <= writers <= num_envs):
            raise SchemaError(f"writers={writers!r}: allowed is 1 to the number of environments, {num_envs}.")
        return VectorWriter(self, int(num_envs), sync=sync, num_writers=writers)

    def ensure_lanes(self) -> None:
        """Let the store's record say that segments may have lanes."""
        if self._record.has_lanes:
            return
        with locked_store(self._path):
            record = read_record(self._path)
            if not record.has_lanes:
                self.replace_record(replace(record, has_lanes=True))
            else:
                self._take_record(record, trusted_mtime(f"{self._path}/{STORE_JSON}"))

    def _take_key(self, text: str, *, is_placed: bool) -> WriterKey:
        if self.capacity is not None:
            raise StepwellError("key= is not for rings, which keep what is newest, whatever its key. Leave it out.")
        if is_placed:
            raise StepwellError("key= places segments itself. Leave ordinal and tag out, or key.")
        key = WriterKey(self._path, check_key(text))
        try:
            with system_errors(self._path, is_writing=True):
                remove_earlier(self, key)
        except BaseException:
            key.release()
            raise
        return key

    def reserve_ordinals(self, count: int) -> int:
        """Take ``count`` segment ordinals that follow each other and were never given before; returns the first."""
        self.check_writable("reserve ordinals")
        with system_errors(self._path, is_writing=True), locked_store(self._path) as lock:
            return reserve_ordinals(self._path, lock, count)

    def ensure_schema(self, infer: Callable[[], Schema]) -> Schema:
        """Return the schema; the first to call it on a store without one stores what ``infer`` returns."""
        if self.schema is None:
            inferred = infer()
            with locked_store(self._path):
                stamp = trusted_mtime(f"{self._path}/{STORE_JSON}")
                self._take_record(read_record(self._path), stamp)
                if self.schema is None:
                    if self.capacity is not None:
                        self.capacity.check(inferred)
                    self.replace_record(self._record.with_schema(inferred))
        schema = self.schema
        if schema is None:
            raise SchemaError(f"{self._path} has no schema.")
        return schema

    def replace_record(self, record: StoreRecord) -> None:
        """Replace ``store.json``; the caller holds the store's lock."""
        with self._changing:
            replace_file(f"{self._path}/{STORE_JSON}", seal_json(record.to_json()))
            self._take_record(record, trusted_mtime(f"{self._path}/{STORE_JSON}"))

    def _take_record(self, record: StoreRecord, stamp: int) -> None:
        is_other = record.schema != self._record.schema
        self._record_time, self._record = stamp, reaching(record, self._path, self._trust)
        if is_other:
            # segments know their features
            self._follower, self._evictor = self._new_follower(), None
        else:
            self._follower.take_record(self._record)

    def check_schema(self, schema: Schema) -> None:
        """Raise StepError when the store has other features than ``schema`` by now; the caller holds its lock."""
        now = read_record(self._path).schema
        if now is not None and now != schema:
            added = [name for name in now if name not in schema]
            raise StepError(
                f"feature {', '.join(map(repr, added))} was added to {self._path} meanwhile. "
                "Call store.refresh(), and give it with every step."
            )

    def _new_follower(self) -> Follower:
        marks = Marks(self._path, None if self._address is not None else self._record, self._place)
        return Follower(self._path, self._record, marks)

    @property
    def marks(self) -> Marks:
        """The marks of its episodes, as of the last refresh; they are part of each one's metadata."""
        return self._follower.marks

    @property
    def record(self) -> StoreRecord:
        """The content of ``store.json``."""
        return self._record

    def check_writable(self, what: str) -> None:
        """Raise ReadOnlyError when the store was opened for reading only."""
        if self._mode == "r":
            raise ReadOnlyError(f'{self._path} was opened with mode="r". Open it with mode="a" to {what}.')
        if not os.access(self._path, os.W_OK) and os.path.isdir(self._path):
            raise ReadOnlyError(
                f"{self._path} may not be changed by this user, or lies on a file system that is read-only. Get the "
                f"right to write there to {what}."
            )

    @property
    def evictor(self) -> Evictor:
        """The evictor of segments that a ring does not show any more; one for all its writers."""
        self._evictor = self._evictor or Evictor(self._path)
        return self._evictor

    # over all of it

    def statistics(self, episodes: Any = None, names: list[str] | None = None) -> StatisticsTable:
        """Return count, min, max, mean, std and quantiles of its numeric features.

        Args:
            episodes: indices, a slice or a bool mask of episodes; default all. Whole segments are merged from what was
                computed when they were sealed, the rest is computed from the data; of a ring all is.
            names: of the features; default all that have statistics.

        Returns:
            A dict of feature name to `stepwell.store.statistics.FeatureStatistics`. ``print`` shows its numbers,
            ``plot()`` draws them.
        """
        from stepwell.store.maintenance import episode_indices
        from stepwell.store.statistics import EpisodeSelection, aggregate

        segments, table = self.listing
        chosen = table if episodes is None else table.take(episode_indices(self, table, episodes))
        return aggregate([EpisodeSelection(self.schema, segments, chosen)], names)

    def verify(self, *, deep: bool = False, progress: Callable[[int, int], None] | None = None) -> Report:
        """Compare every byte with its checksum, every table with its rules; ``deep`` also decodes every encoded row."""
        from stepwell.store.verify import verify_store

        return verify_store(self, deep=deep, progress=progress)

    # changes of what is sealed

    def add_column(
        self,
        name: str,
        feature: Feature,
        values: Any,
        *,
        final: bool | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Add a feature with its values for all steps, as new files; see `stepwell.store.rewrite.add_column`.

        Args:
            name: of the new feature.
            feature: raw or encoded.
            values: a callable from `Episode` to its column, a list or mapping with the column of each episode, or
                one array over all steps.
            final: whether it has a value in the final row; default ``feature.final``.
            progress: called with (episodes done, episodes in all).
        """
        from stepwell.store.rewrite import add_column

        with system_errors(self._path, is_writing=True):
            add_column(self, name, feature, values, final=final, progress=progress)

    def delete_episodes(self, episodes: Any) -> int:
        """Hide episodes (index, indices, slice or bool mask) for good; returns how many. `compact` frees space.

        In a ring they count as before until their time comes: what it has evicted does not come back.
        """
        from stepwell.store.maintenance import delete_episodes

        with system_errors(self._path, is_writing=True):
            return delete_episodes(self, episodes)

    def mark_episodes(self, episodes: Any, mark: str | None = None, *, note: str | None = None) -> int:
        """Say of episodes that they are good or bad, or what is to be known of them; returns how many.

        Both become part of the episodes' metadata, as ``mark`` and ``note``, in every process that refreshes, and of
        what is made of the store: ``view.select(where={"mark": "good"})``. Nothing that was recorded changes. They lie
        in ``marks.json`` of the store; of a data set that is read in place, which may not be written, among the user's
        files, see `stepwell.store.marks`.

        Args:
            episodes: an index, indices, a slice or a bool mask.
            mark: "good", "bad", or "" to take it back; None: as it is.
            note: a text of 2,000 characters at most, "" to take it back; None: as it is.

        Raises:
            StepwellError: another mark, or a longer note.
            EpisodeNotFoundError: an index beyond the episodes there are.
            ReadOnlyError: the store was opened for reading only, and is not a data set in place.

        Example:
            >>> import tempfile, stepwell
            >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well")
            >>> with store.writer() as writer:
            ...     episode = writer.add_episode({"action": [0, 1, 2]}, task="walk")
            >>> store.mark_episodes(0, "bad", note="stumbles")
            1
            >>> store[0].metadata
            {'task': 'walk', 'mark': 'bad', 'note': 'stumbles'}
        """
        from stepwell.store.maintenance import episode_indices
        from stepwell.store.marks import mark_episodes

        if self._address is None:
            self.check_writable("mark episodes")
        listing = self.listing
        chosen = episode_indices(self, listing[1], episodes)
        with system_errors(self._path, is_writing=True):
            mark_episodes(self, listing, chosen, mark, note)
        self.refresh()
        return len(chosen)

    def compact(self, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Free the space of deleted and discarded episodes and merge small segments; returns the bytes freed.

        Of a ring it removes what lies wholly beyond its capacity: its space is that of the capacity.
        """
        from stepwell.store.rewrite import compact_store

        with system_errors(self._path, is_writing=True):
            return compact_store(self, progress=progress)

    def checkpoint(self, path: str | os.PathLike[str]) -> Path:
        """Make a store at ``path`` that is this one as it is now, of hard links, while its writers go on."""
        from stepwell.store.rewrite import checkpoint_store

        with system_errors(self._path):
            return checkpoint_store(self, path)

    # lifetime

    def close(self) -> None:
        """Let go of the commit records of live segments; maps that were handed out stay valid."""
        with self._changing:
            self._follower, self._evictor = self._new_follower(), None
            self._snapshot, self._is_closed = self._follower.snapshot(), True

    def renew_lock(self) -> None:
        """Reset in a child of a fork, where no thread continues what a thread of the parent had begun."""
        if not self._changing.acquire(blocking=False):
            self._follower = self._new_follower()
        self._changing = threading.RLock()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._path, self._mode, self._address, self._trust, self._place)


def _after_fork() -> None:
    for store in list(_ALL):
        store.renew_lock()


os.register_at_fork(after_in_child=_after_fork)
