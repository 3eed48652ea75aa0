"""A store: a directory of segments, seen as a sequence of episodes."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import EpisodeNotFoundError, ReadOnlyError, SchemaError, StepError, StepwellError
from stepwell.json_text import seal_json
from stepwell.references.trusted_paths import Trust
from stepwell.schema import Feature, Schema
from stepwell.sizes import parse_bytes
from stepwell.store.beneath import final_error, system_errors
from stepwell.store.deletion import read_deleted
from stepwell.store.encoding import QUEUE_BYTES
from stepwell.store.episodes import Episode, EpisodeTable
from stepwell.store.layout import (
    DELETED,
    SEGMENTS,
    STORE_JSON,
    locked_store,
    name_of_key,
    replace_file,
    reserve_ordinals,
    without,
)
from stepwell.store.manifests import StoreManifest, shown_keys
from stepwell.store.memory import hold_memory
from stepwell.store.records import Capacity, StoreRecord, Sync, reaching, read_record
from stepwell.store.ring import Evictor, RingCut, SegmentLimit
from stepwell.store.sealing import remove_earlier
from stepwell.store.segments import Segment
from stepwell.store.snapshot import (
    TABLE,
    MetadataLines,
    SegmentList,
    SegmentTable,
    Snapshot,
    open_segment,
    read_table,
    replace_table,
)
from stepwell.store.writer import Writer
from stepwell.store.writer_keys import WriterKey, check_key

if TYPE_CHECKING:
    from types import TracebackType

    from stepwell.store.info import StoreTable
    from stepwell.store.statistics import FeatureStatistics
    from stepwell.store.verify import Report

__all__ = ["Mode", "Store"]

Mode = Literal["a", "r"]
MAX_LISTINGS = 100
# a directory's time stamp may stand still for one tick of the kernel's clock: one that young is not trusted
TICK_SECONDS = 0.05
_ALL: weakref.WeakSet[Store] = weakref.WeakSet()


class Store:
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

    def __init__(self, path: str, mode: Mode = "a", address: str | None = None, trust: Trust = None) -> None:
        self._path = os.path.abspath(path)
        self._mode: Mode = mode
        self._address = address
        self._trust = trust if trust is None or isinstance(trust, bool | str | os.PathLike) else tuple(trust)
        # the stamp first: what is replaced in between is found by the next refresh
        self._record_time = self._trusted_mtime(STORE_JSON)
        self._record = self._reaching(read_record(self._path))
        # read one by one: live ones, and those that the store's table does not know
        self._segments: dict[str, Segment] = {}
        self._sealed = SegmentTable.empty()
        self._table_time = 0
        self._made: dict[int, Segment] = {}
        self._gone: set[int] = set()
        # of the segments, in their order and ascending
        self._keys = self._ascending = np.empty(0, np.int64)
        self._manifest = StoreManifest()
        self._listed_time = -1
        self._deleted_time = -1
        self._deleted = np.empty(0, np.int64)
        self._metadata = MetadataLines()
        # the segments of the last snapshot, while none came or went
        self._listing: SegmentList | None = None
        self._live: list[Segment] = []
        self._ring: RingCut | None = None
        self._slots = np.empty(0, np.int64)
        self._evictor: Evictor | None = None
        self._changing = threading.RLock()
        _ALL.add(self)
        hold_memory(self, self._path)
        with system_errors(self._path):
            self._list_segments()
            self._read_deleted()
            self._take_snapshot()

    # what it is

    @property
    def path(self) -> Path:
        """Its directory."""
        return Path(self._path)

    @property
    def address(self) -> str | None:
        """What a data set of another system was opened by, if it stands for one: it lies in a cache then."""
        return self._address

    @property
    def name(self) -> str:
        """What people know it by: its address, or the name of its directory."""
        return self._address or self.path.name

    @property
    def mode(self) -> Mode:
        """Whether it is open for reading and writing ("a") or for reading only ("r")."""
        return self._mode

    @property
    def trust(self) -> Trust:
        """What its references may lead to, as it was opened with; see `stepwell.open`."""
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
            there = f"has {count}: {-count} to {count - 1}" if count else "has none yet"
            raise EpisodeNotFoundError(f"no episode {index}. {self._address or self._path} {there}.")
        return Episode(self, snapshot, index % count)

    def __repr__(self) -> str:
        return self.info().line

    def _repr_html_(self) -> str:
        return self.info()._repr_html_()

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
                return self._refresh()
        except OSError as error:
            found = final_error(error, self._path)
            if found is error:
                raise
            raise found from error

    def _refresh(self) -> bool:
        changed = False
        if self._mtime(STORE_JSON) != self._record_time:
            stamp, record = self._trusted_mtime(STORE_JSON), read_record(self._path)
            changed = record != self._record
            self._take_record(record, stamp)
        if self._listed_time < 0 or self._mtime(SEGMENTS) != self._listed_time:
            changed |= self._list_segments()
        for segment in self._live:
            changed |= self._refresh_segment(segment)
        if self._mtime(DELETED) != self._deleted_time:
            changed |= self._read_deleted()
        if changed:
            self._take_snapshot()
        return changed

    def _refresh_segment(self, segment: Segment) -> bool:
        try:
            return segment.refresh()
        except FileNotFoundError:
            return self._forget(segment.name)

    def _forget(self, name: str) -> bool:
        """Leave out a segment that is gone; the directory is looked at again at the next refresh."""
        self._listed_time, self._listing = -1, None
        return self._segments.pop(name, None) is not None

    def _list_segments(self) -> bool:
        """Look at the directory again; True when segments came, went or were sealed."""
        changed = False
        for _ in range(MAX_LISTINGS):
            changed |= self._list_once()
            if all(name in self._segments for name in self._listed):
                break
        return changed

    def _list_once(self) -> bool:
        """Look at the directory; a segment that goes before it is opened is left out, for another look."""
        self._listed_time, self._listing = self._trusted_mtime(SEGMENTS), None
        before, manifest = self._keys, self._manifest
        keys, opened, self._manifest = shown_keys(self._path)
        if self.schema is None:
            keys = opened = keys[:0]
        changed = not self._manifest.has_order_of(manifest)
        if len(self._sealed):
            # a name that comes again may be of another segment than the table's
            self._gone.update(without(self._ascending, keys).tolist())
        self._ascending = keys
        found, is_open = self._not_in_table(keys), set(opened.tolist())
        self._listed = list(found)
        for name in self._segments.keys() - found.keys():
            segment = self._segments.pop(name)
            if segment.is_sealed:
                # in the table by now, if it is there: whatever keeps maps of it goes on using them
                self._made[segment.key] = segment
        if not self._gone.isdisjoint(self._made):
            self._made = {key: segment for key, segment in self._made.items() if key not in self._gone}
        for name, key in found.items():
            if name not in self._segments and self.schema is not None:
                changed |= self._add_segment(name, key not in is_open, self.schema)
        self._keys = self._manifest.ordered(keys, self._sealed, self._written())
        return changed or not np.array_equal(self._keys, before)

    def _written(self) -> dict[int, str]:
        """Return the keys of writers that segments say themselves; the table has those of others."""
        return {segment.key: segment.note.key for segment in self._segments.values() if segment.note is not None}

    def segments_of(self, key: str) -> tuple[list[str], int]:
        """Return the names of a writer's segments, as of the last refresh, and how often they had been rearranged."""
        with self._changing:
            found = {*self._sealed.with_text(key).tolist(), *self._manifest.segments_of(key)}
            found.update(segment for segment, text in self._written().items() if text == key)
            gone = without(np.array(list(found), np.int64), self._ascending)
            return [name_of_key(segment) for segment in found.difference(gone.tolist())], self._manifest.sequence

    def _not_in_table(self, keys: npt.NDArray[np.int64]) -> dict[str, int]:
        """Return the segments that are read one by one, by name; the table is read again where that is worth it."""
        if self.capacity is not None:
            return {name_of_key(key): key for key in keys.tolist()}
        missing = keys[~self._in_table(keys)]
        stamp = self._mtime(TABLE)
        if stamp != self._table_time and self._sealed.is_behind(len(missing) - len(self._segments)):
            self._table_time, self._sealed = stamp, read_table(self._path)
            missing = keys[~self._in_table(keys)]
        return {name_of_key(key): key for key in missing.tolist()}

    def _in_table(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which segments are those of the table."""
        found = self._sealed.find(keys) >= 0
        return found & ~np.isin(keys, np.fromiter(self._gone, np.int64, len(self._gone))) if self._gone else found

    def _add_segment(self, name: str, is_sealed: bool, schema: Schema) -> bool:
        found = open_segment(f"{self._path}/{SEGMENTS}/{name}", schema, is_sealed=is_sealed)
        if found is None:
            self._listed_time = -1
            return False
        self._segments[name] = found
        return True

    def _read_deleted(self) -> bool:
        """Read the list of deleted episodes again; True when it is another one."""
        self._deleted_time = self._trusted_mtime(DELETED)
        before, found = self._deleted, read_deleted(self._path)
        if np.array_equal(before, found):
            return False
        self._deleted = found
        return True

    def _take_snapshot(self) -> None:
        """Take note of what there is now; all that is shown follows from it."""
        ring = self._followed_ring()
        segments = self._listing
        if segments is None:
            own = {segment.key: segment for segment in self._segments.values()}
            is_there = self._in_table(self._keys)
            if not is_there.all():
                is_there |= np.isin(self._keys, np.fromiter(own, np.int64, len(own)))
            segments = SegmentList(self._path, self.schema, self._keys[is_there], own, self._sealed, self._made)
            self._listing = segments
            if ring is not None:
                self._slots = ring.slots(own[key].name for key in segments.keys.tolist())
        first_rows = None if ring is None else ring.first_rows(self._slots)
        self._live = [segment for _, segment in segments.open if not segment.is_sealed]
        self._snapshot = Snapshot(segments, self._deleted, self._metadata, first_rows)

    def save_table(self) -> None:
        """Replace the table of sealed segments where enough came since; see `stepwell.store.snapshot`."""
        if self._mode != "r" and self.capacity is None:
            with self._changing:
                self._save_table()

    def _save_table(self) -> None:
        sealed = {segment.key: segment for segment in self._segments.values() if segment.is_sealed}
        if not self._sealed.is_behind(len(sealed)):
            return
        known = self._keys[self._in_table(self._keys)]
        keys = np.union1d(known, np.fromiter(sealed, np.int64, len(sealed)))
        records, counts = SegmentList(self._path, self.schema, keys, sealed, self._sealed, {}).records()
        written = {key: text for key, text in self._written().items() if key in sealed}
        self._sealed = replace_table(self._path, keys, counts, records, self._sealed.texts_of(known) | written)
        self._table_time = self._mtime(TABLE)
        self._made.update(sealed)
        self._gone.difference_update(sealed)
        for segment in sealed.values():
            del self._segments[segment.name]
        self._listing = None
        self._take_snapshot()

    def _followed_ring(self) -> RingCut | None:
        """Return what a ring shows of its segments; those that went meanwhile are left out."""
        if self.capacity is None or self.schema is None:
            return None
        ring = self._ring = self._ring or RingCut(self.capacity, self.schema)
        for segment in list(self._segments.values()) if self._listing is None else self._live:
            try:
                ring.follow(segment)
            except FileNotFoundError:
                self._forget(segment.name)
        if self._listing is None:
            ring.forget(ring.names - self._segments.keys())
        ring.move()
        return ring

    def _mtime(self, name: str) -> int:
        try:
            return os.stat(f"{self._path}/{name}").st_mtime_ns
        except FileNotFoundError:
            return 0

    def _trusted_mtime(self, name: str) -> int:
        stamp = self._mtime(name)
        return stamp if stamp == 0 or time.time_ns() - stamp > TICK_SECONDS * 1e9 else -1

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
                stamp = self._trusted_mtime(STORE_JSON)
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
            self._take_record(record, self._trusted_mtime(STORE_JSON))

    def _take_record(self, record: StoreRecord, stamp: int) -> None:
        if record.schema != self._record.schema:
            # segments know their features
            self._segments.clear()
            self._made = {}
            self._ring, self._evictor = None, None
            self._listed_time, self._listing = -1, None
        self._record_time, self._record = stamp, self._reaching(record)

    def _reaching(self, record: StoreRecord) -> StoreRecord:
        return reaching(record, self._path, self._trust)

    def check_schema(self, schema: Schema) -> None:
        """Raise StepError when the store has other features than ``schema`` by now; the caller holds its lock."""
        now = read_record(self._path).schema
        if now is not None and now != schema:
            added = [name for name in now if name not in schema]
            raise StepError(
                f"feature {', '.join(map(repr, added))} was added to {self._path} meanwhile. "
                "Call store.refresh(), and give it with every step."
            )

    @property
    def record(self) -> StoreRecord:
        """What ``store.json`` says."""
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
        """What removes the segments that a ring does not show any more; one for all its writers."""
        self._evictor = self._evictor or Evictor(self._path)
        return self._evictor

    # over all of it

    def statistics(self, episodes: Any = None, names: list[str] | None = None) -> dict[str, FeatureStatistics]:
        """Return count, min, max, mean, std and quantiles of its numeric features.

        Args:
            episodes: indices, a slice or a bool mask of episodes; default all. Whole segments are merged from what was
                computed when they were sealed, the rest is computed from the data; of a ring all is.
            names: of the features; default all that have statistics.
        """
        from stepwell.store.statistics import Selection, aggregate

        segments, table = self.listing
        chosen = table if episodes is None else table.take(episodes)
        return aggregate([Selection(self.schema, segments, chosen)], names)

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
        """Add a feature with its values for all steps, as new files; see `stepwell.store.column_adding.add_column`.

        Args:
            name: of the new feature.
            feature: raw or encoded.
            values: a callable from `Episode` to its column, a list or mapping with the column of each episode, or
                one array over all steps.
            final: whether it has a value in the final row; default ``feature.final``.
            progress: called with (episodes done, episodes in all).
        """
        from stepwell.store.column_adding import add_column

        with system_errors(self._path, is_writing=True):
            add_column(self, name, feature, values, final=final, progress=progress)

    def delete_episodes(self, episodes: Any) -> int:
        """Hide episodes (index, indices, slice or bool mask) for good; returns how many. `compact` frees space.

        In a ring they count as before until their time comes: what it has evicted does not come back.
        """
        from stepwell.store.deletion import delete_episodes

        with system_errors(self._path, is_writing=True):
            return delete_episodes(self, episodes)

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
            self._segments.clear()
            self._ring, self._evictor, self._listing = None, None, None
            self._live = []
            self._sealed, self._table_time, self._made = SegmentTable.empty(), 0, {}
            self._gone.clear()
            self._keys = self._ascending = np.empty(0, np.int64)
            self._take_snapshot()

    def renew_lock(self) -> None:
        """Reset in a child of a fork, where no thread continues what a thread of the parent had begun."""
        if not self._changing.acquire(blocking=False):
            self._listed_time = self._deleted_time = -1
            self._ring, self._listing = None, None
        self._changing = threading.RLock()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._path, self._mode, self._address, self._trust)


def _after_fork() -> None:
    for store in list(_ALL):
        store.renew_lock()


os.register_at_fork(after_in_child=_after_fork)
