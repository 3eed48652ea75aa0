"""Sealing: an open segment becomes an immutable one, in a thread of its writer or by the recovery of a dead writer's.

Order of things, so that a kill between any two of them is repaired by doing it all again::

    trim files to what is committed → statistics, checksums → segment.json → remove progress → rename NAME.open to NAME

Every file is on the disk before ``segment.json`` is, and that before ``progress`` goes, whatever ``sync`` says: sealed
files are not looked at again, so a loss of power must not find a manifest of bytes that never arrived.
"""

from __future__ import annotations

import os
import shutil
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import codec_class
from stepwell.errors import (
    CorruptSegmentError,
    DecodeError,
    LeftOutWarning,
    MissingDependencyError,
    SchemaError,
    StoreBusyError,
)
from stepwell.files.local_files import map_descriptor, sync_file
from stepwell.json_text import seal_json
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Schema
from stepwell.store.beneath import (
    check_directory,
    disk_error,
    header_bytes,
    header_size,
    list_directory,
    open_file,
    system_error,
)
from stepwell.store.column_file import begin_writeback, write_all
from stepwell.store.commit import CommitRecord, Recover, is_shared, is_silent
from stepwell.store.episodes import EPISODE_DTYPE, LANES_DTYPE, num_ended_rows
from stepwell.store.lanes import LANE_FILES, LANE_MARKS, LANE_STEPS, MARK
from stepwell.store.layout import (
    CLOCK,
    EPISODES,
    METADATA,
    NEW_PREFIX,
    OPEN_SUFFIX,
    PROGRESS,
    SEGMENT_JSON,
    SEGMENTS,
    hide_segments,
    locked_store,
    mend_ordinals,
    parse_segment_name,
    remove_segments,
    replace_file,
    step_id,
    sync_directory,
)
from stepwell.store.maintenance import is_maintained, recover_maintenance
from stepwell.store.manifests import has_listed_files, read_note, read_store_manifest
from stepwell.store.records import read_record
from stepwell.store.samples import sample_ends
from stepwell.store.segments import Segment
from stepwell.store.statistics import FeatureStatistics, segment_statistics, write_statistics
from stepwell.store.values import encode_metadata

if TYPE_CHECKING:
    from stepwell.store.manifests import WriterKey
    from stepwell.store.segment_writer import SegmentWriter
    from stepwell.store.store import Store

__all__ = [
    "Done",
    "SealQueue",
    "file_checksum",
    "recover_store",
    "remove_earlier",
    "seal_segment",
    "synced_files",
    "write_manifest",
]

# full segments that may wait to be sealed before the writer waits for them
MAX_SEALING = 4
# a wait that a Ctrl-C has ended costs others no more than this
LOOK_SECONDS = 0.05
MAX_TRIES = 100
CHUNK_BYTES = 4 << 20


def seal_segment(
    path: str,
    schema: Schema,
    *,
    rows: int,
    episodes: int,
    sync: bool,
    has_statistics: bool = True,
    checksums: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    lanes: tuple[int, int] = (0, 0),
    steps: int = 0,
) -> str | None:
    """Seal an open segment and return its new path; one without episodes is removed.

    One with lanes has committed ``steps`` vector steps; its files keep all rows, which readers may have mapped.
    """
    if episodes == 0:
        _remove(path)
        return None
    try:
        if lanes[0]:
            rows = lanes[0] * lanes[1]
            _trim_lanes(path, rows, steps)
        trim_segment(path, schema, rows=rows, episodes=episodes, dtype=LANES_DTYPE if lanes[0] else EPISODE_DTYPE)
        write_manifest(path, schema, has_statistics=has_statistics, checksums=checksums, lanes=lanes)
    except OSError as error:
        raise disk_error(error, 0, path) from error
    sealed = path.removesuffix(OPEN_SUFFIX)
    with suppress(FileNotFoundError):
        os.unlink(f"{path}/{PROGRESS}")
    try:
        os.rename(path, sealed)
    except FileNotFoundError:
        # without its commit record it looks as if killed here: another process that opened the store renamed it
        if not os.path.isdir(os.path.dirname(path)):
            raise
    if sync:
        sync_directory(os.path.dirname(sealed))
    return sealed


def _remove(path: str) -> bool:
    directory, name = os.path.split(path)
    return remove_segments(os.path.dirname(directory), [name])


def _trim_lanes(path: str, rows: int, steps: int) -> None:
    """Cut the files of a segment with lanes, and take back marks of rows that were not committed."""
    _trim_npy(f"{path}/{LANE_STEPS}", *_lane_file(LANE_STEPS), steps)
    _trim_npy(f"{path}/{LANE_MARKS}", *_lane_file(LANE_MARKS), rows)
    descriptor = open_file(f"{path}/{LANE_MARKS}", os.O_RDWR)
    try:
        header = header_size(*_lane_file(LANE_MARKS))
        marks = map_descriptor(descriptor, header + rows * MARK.itemsize, writable=True)[header:].view(MARK)
        marks[marks > steps] = 0
    finally:
        os.close(descriptor)


def _lane_file(name: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    dtype, shape = LANE_FILES[name]
    return np.dtype(dtype), shape


def trim_segment(path: str, schema: Schema, *, rows: int, episodes: int, dtype: np.dtype[Any] = EPISODE_DTYPE) -> None:
    """Cut every file to what is committed, give ``.npy`` files their true headers, remove what a killed seal left."""
    for entry in list_directory(path):
        if entry.endswith(".tmp"):
            os.unlink(f"{path}/{entry}")
    _trim_npy(f"{path}/{EPISODES}", dtype, (), episodes)
    trim_lines(f"{path}/{METADATA}", episodes)
    if os.path.lexists(f"{path}/{CLOCK}"):
        _trim_npy(f"{path}/{CLOCK}", np.dtype("<i8"), (), rows)
    for name, feature in schema.items():
        stem = f"{path}/{name}"
        if feature.is_raw:
            _trim_npy(f"{stem}.npy", feature.np_dtype, feature.fixed_shape, rows)
            continue
        _trim_npy(f"{stem}.npy", np.dtype("<u8"), (), rows + 1)
        with open(open_file(f"{stem}.npy"), "rb") as file:
            file.seek(-8, os.SEEK_END)
            end = int.from_bytes(file.read(8), "little")
        _cut(f"{stem}.bin", end)


def write_manifest(
    path: str,
    schema: Schema,
    *,
    has_statistics: bool = True,
    checksums: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    lanes: tuple[int, int] = (0, 0),
) -> None:
    """Compute statistics and checksums of a trimmed segment and write its ``segment.json``; see `seal_segment`."""
    segment = Segment(path, schema, is_trimmed=True)
    statistics = _statistics(segment, schema) if has_statistics else {}
    if has_statistics:
        write_statistics(path, statistics)
    manifest = {
        "name": segment.name,
        "ordinal": segment.ordinal,
        "rows": lanes[0] * lanes[1] if lanes[0] else segment.num_rows,
        "episodes": len(segment.records),
        **({"lanes": lanes[0], "lane_rows": lanes[1]} if lanes[0] else {}),
        "files": synced_files(path, checksums),
        "statistics": {name: found.to_json() for name, found in statistics.items()},
    }
    replace_file(f"{path}/{SEGMENT_JSON}", seal_json(manifest))


def synced_files(path: str, checksums: Mapping[str, tuple[int, int]] = MappingProxyType({})) -> dict[str, Any]:
    """Sync the files of a segment's directory and return their bytes and checksums, as a manifest has them."""
    names = sorted(set(list_directory(path)) - {SEGMENT_JSON, PROGRESS})
    # all are on their way before the first is waited for
    for name in names:
        _begin_writeback(f"{path}/{name}")
    files = {}
    for name in names:
        num_bytes, checksum = file_checksum(f"{path}/{name}", sync=True, known=checksums.get(name))
        files[name] = {"bytes": num_bytes, "crc32": f"{checksum:08x}"}
    return files


def _begin_writeback(path: str) -> None:
    descriptor = open_file(path)
    try:
        begin_writeback(descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _statistics(segment: Segment, schema: Schema) -> dict[str, FeatureStatistics]:
    """Return the statistics of every feature that can be decoded."""
    # A row that its codec refuses, or a codec that this process does not have, must not keep a store from opening: the
    # feature's statistics are computed on first use, and raise then. So are those of rows in files of other systems,
    # which are not read before a user does.
    found: dict[str, FeatureStatistics] = {}
    for name, feature in schema.items():
        with suppress(DecodeError, MissingDependencyError, SchemaError):
            if not issubclass(codec_class(feature), FileCodec):
                found |= segment_statistics(segment, schema, [name])
    return found


def file_checksum(path: str, *, sync: bool = False, known: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return (bytes, crc32) of a file, by reading it unless ``known`` has its length; syncs it first with ``sync``."""
    num_bytes = checksum = 0
    with open(open_file(path), "rb", buffering=0) as file:
        if sync:
            sync_file(file.fileno())
        size = os.fstat(file.fileno()).st_size
        if known is not None and known[0] == size:
            return known
        buffer = bytearray(max(1, min(CHUNK_BYTES, size)))
        view = memoryview(buffer)
        while got := file.readinto(buffer):
            checksum = zlib.crc32(view[:got], checksum)
            num_bytes += got
    return num_bytes, checksum


def _trim_npy(path: str, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int) -> None:
    row_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    _cut(path, header_size(dtype, shape) + rows * row_bytes)
    with open(open_file(path, os.O_RDWR), "r+b") as file:
        file.write(header_bytes(dtype, shape, rows))


def trim_lines(path: str, lines: int) -> None:
    """Cut a file after its first ``lines`` lines."""
    with open(open_file(path), "rb") as file:
        end = sum(len(file.readline()) for _ in range(lines))
    _cut(path, end)


def _cut(path: str, num_bytes: int) -> None:
    descriptor = open_file(path, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        if size < num_bytes:
            raise CorruptSegmentError(
                f'{path}: {num_bytes} bytes were committed, the file has {size}. Run "stepwell verify PATH".'
            )
        if size > num_bytes:
            os.ftruncate(descriptor, num_bytes)
    finally:
        os.close(descriptor)


class Done:
    """That a thread has done what it was begun for; wherever a Ctrl-C ends a wait for it, another one may follow."""

    # Not `Thread.join`: a Ctrl-C there makes Python 3.11 take a thread that runs for one that has ended. Not an Event,
    # of which a Ctrl-C may leave the lock with nobody: here that costs LOOK_SECONDS.

    def __init__(self) -> None:
        self._is_set, self._lock = False, threading.Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Say so, once."""
        self._is_set = True
        self._lock.release()

    def wait(self) -> None:
        """Wait until it was said."""
        while not self._is_set:
            if self._lock.acquire(timeout=LOOK_SECONDS):
                self._lock.release()


class SealQueue:
    """Seal segments in the background, one after the other."""

    def __init__(self, *, sync: bool, sealed: Callable[[], object], has_statistics: bool = True) -> None:
        self._sync, self._sealed, self._has_statistics = sync, sealed, has_statistics
        # given, and not on their way yet
        self._given: list[SegmentWriter] = []
        # of those on their way, in order
        self._sealing: list[Done] = []
        self._error: BaseException | None = None

    def add(self, segment: SegmentWriter) -> None:
        """Begin to seal a segment that has no open episode; waits when too many are on their way."""
        # first: what a Ctrl-C keeps from its way is on it with the next one, or when all are waited for
        self._given.append(segment)
        self._begin()

    def _begin(self) -> None:
        """Begin to seal what was given; of one that is begun twice, as after a Ctrl-C, the second finds it closed."""
        while self._given:
            segment = self._given[0]
            segment.mark_full()
            self._wait_until(MAX_SEALING - 1)
            before, done = self._sealing[-1] if self._sealing else None, Done()
            threading.Thread(target=self._seal, args=(segment, before, done), name="stepwell-seal").start()
            self._sealing.append(done)
            self._given.pop(0)

    def wait(self) -> None:
        """Wait until all are sealed."""
        self._begin()
        self._wait_until(0)

    def _wait_until(self, count: int) -> None:
        """Wait until at most ``count`` are on their way."""
        while len(self._sealing) > count:
            self._sealing[0].wait()
            # after it: a Ctrl-C that ends the wait leaves it for the next
            self._sealing.pop(0)

    def sync(self, directory: str) -> None:
        """Wait until all are sealed, and on the disk by their names in this directory."""
        if self._given or self._sealing:
            self.wait()
            self.check()
            if not self._sync:
                sync_directory(directory)

    def leave(self) -> None:
        """Let go of what is not on its way, of a writer that was never closed."""
        for segment in self._given:
            segment.leave()

    def fail(self, error: Exception) -> None:
        """Have an error raised by `check`."""
        self._error = error

    def check(self) -> None:
        """Raise what was raised in the background, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _seal(self, segment: SegmentWriter, before: Done | None, done: Done) -> None:
        try:
            if before is not None:
                before.wait()
            with segment.sealing:
                if segment.is_open:
                    self._seal_open(segment)
        finally:
            done.set()

    def _seal_open(self, segment: SegmentWriter) -> None:
        commit = segment.close()
        try:
            segment.check_synced()
            seal_segment(
                segment.path,
                segment.schema,
                rows=segment.row,
                episodes=segment.num_episodes,
                sync=self._sync,
                has_statistics=self._has_statistics,
                checksums=segment.checksums,
                lanes=segment.lanes,
                steps=commit.rows,
            )
            commit.mark_sealed()
            commit.close()
            self._sealed()
        except OSError as error:
            self._error = system_error(error, segment.path, is_writing=True)
        except BaseException as error:
            self._error = error
        finally:
            commit.close()


def recover_store(store: str, schema: Schema | None, *, recover: Recover = "dead") -> list[str]:
    """Seal every open segment whose writer is dead; those of live writers are left alone."""
    # Any number of processes may do so at once: the lock of the commit record decides which one does.
    recovered = []
    recover_maintenance(store)
    entries = list_directory(f"{store}/{SEGMENTS}")
    mend_ordinals(store, entries)
    if any(entry.startswith(NEW_PREFIX) for entry in entries):
        with locked_store(store):
            # under the lock no segment is being made, so the process that began this one is dead
            for entry in list_directory(f"{store}/{SEGMENTS}"):
                if entry.startswith(NEW_PREFIX):
                    shutil.rmtree(f"{store}/{SEGMENTS}/{entry}", ignore_errors=True)
    for path in _open_segments(store, entries):
        if schema is not None and _recover(path, schema, recover, has_statistics=read_record(store).capacity is None):
            recovered.append(os.path.basename(path).removesuffix(OPEN_SUFFIX))
    return recovered


def _open_segments(store: str, entries: list[str]) -> Iterator[str]:
    for entry in sorted(entry for entry in entries if entry.endswith(OPEN_SUFFIX)):
        parsed = parse_segment_name(entry)
        if parsed is not None and not parsed[2]:
            yield f"{store}/{SEGMENTS}/{entry}"


def _recover(path: str, schema: Schema, recover: Recover, *, has_statistics: bool) -> bool:
    """Recover one open segment; False when its writer lives or another process has done it."""
    try:
        check_directory(path)
        commit = CommitRecord.take_over(f"{path}/{PROGRESS}", recover)
    except FileNotFoundError:
        return _finish(path, recover)
    if commit is None:
        return False
    try:
        if not os.path.isdir(path):
            return False
        if commit.is_sealed and has_listed_files(path):
            # all of it is on the disk, but for its name: what the record says was synced before may be less
            return _finish(path, recover)
        rows, episodes, lanes = commit.rows, commit.episodes, commit.lanes
        if commit.num_unsure > 0:
            what = "vector steps" if lanes[0] else "rows"
            warnings.warn(
                f"{path}: {commit.num_unsure} {what} more were recorded; nothing says that they were on the disk when "
                "the machine stopped, or when the files were copied, so they are left out. Open a store where it was "
                "recorded before you copy it.",
                LeftOutWarning,
                stacklevel=5,
            )
        steps = rows
        if lanes[0] and steps:
            episodes = _close_open_lanes(path, schema, commit)
        elif not lanes[0] and (rows or episodes):
            rows, episodes = _close_open_episode(path, schema, rows, episodes, commit)
            commit.commit_episode(episodes, rows)
        seal_segment(
            path, schema, rows=rows, episodes=episodes, sync=True, has_statistics=has_statistics, lanes=lanes,
            steps=steps,
        )  # fmt: skip
        commit.mark_sealed()
        return True
    finally:
        commit.close()


def _finish(path: str, recover: Recover) -> bool:
    """Finish or remove a segment whose commit record is gone, or never reached the disk; False when it is not there."""
    # With a manifest, and all that it lists, it is sealed but for its name. Else a loss of power came before anything
    # of it was promised.
    if has_listed_files(path):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}/{PROGRESS}")
    elif not os.path.isdir(path) or (is_shared(path) and not (recover == "silent" and is_silent(path))):
        # there, a machine elsewhere may have written what has not come here yet
        return False
    else:
        return _remove(path)
    try:
        os.rename(path, path.removesuffix(OPEN_SUFFIX))
    except FileNotFoundError:
        return False
    return True


def _close_open_episode(path: str, schema: Schema, rows: int, episodes: int, commit: CommitRecord) -> tuple[int, int]:
    """Give the committed steps of an unended episode a record, marked interrupted; returns (rows, episodes)."""
    header, size = header_size(EPISODE_DTYPE, ()), EPISODE_DTYPE.itemsize
    descriptor = open_file(f"{path}/{EPISODES}", os.O_RDWR)
    try:
        last = os.pread(descriptor, size, header + (episodes - 1) * size) if episodes else b""
        if len(last) != (size if episodes else 0):
            raise CorruptSegmentError(
                f"{path}/{EPISODES}: {episodes} episodes were committed, the file ends before. "
                'Run "stepwell verify PATH".'
            )
        ended = num_ended_rows(np.frombuffer(last, EPISODE_DTYPE))
        if rows <= ended:
            return ended, episodes
        _cut_samples(path, schema, rows, is_first=rows == ended + 1)
        ordinal, _, _ = parse_segment_name(os.path.basename(path)) or (0, "", False)
        record = np.zeros((), EPISODE_DTYPE)
        record["start"], record["length"], record["rows"] = ended, rows - ended, rows - ended
        record["origin"], record["interrupted"] = step_id(ordinal, ended), True
        if ended == 0 and commit.carried[0]:
            record["cut"], record["origin"] = commit.carried
        # a file's time stamp is that of a slow clock, and stores into maps may leave none; episodes are in order
        before = int(np.frombuffer(last, EPISODE_DTYPE)["time_ns"].max(initial=commit.opened_ns))
        record["time_ns"] = max(os.stat(f"{path}/{PROGRESS}").st_mtime_ns, before)
        note = read_note(path)
        if note is not None:
            ended_records = os.pread(descriptor, episodes * size, header)
            record["origin"] = note.next_origin(np.frombuffer(ended_records, EPISODE_DTYPE))
        trim_lines(f"{path}/{METADATA}", episodes)
        with open(open_file(f"{path}/{METADATA}", os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(encode_metadata({}))
        write_all(descriptor, record.tobytes(), header + episodes * size, path)
    finally:
        os.close(descriptor)
    return rows, episodes + 1


def _cut_samples(path: str, schema: Schema, rows: int, *, is_first: bool) -> None:
    """Let the last row of columns with a rate end where its samples and their times are both there, and ascend."""
    # What came after an episode's last step is stored with its row before the episode's record is. A kill between the
    # two may leave samples without times; a loss of power, bytes that never reached the disk.
    for name, times in schema.rated.items():
        edges = {each: _last_edges(f"{path}/{each}.npy", rows) for each in (name, times)}
        data = {each: _read_part(f"{path}/{each}.bin", *edges[each]) for each in edges}
        ends = {name: sample_ends(schema[name], data[name]), times: list(range(8, len(data[times]) + 1, 8))}
        count = min(map(len, ends.values()))
        found = data[times][: 8 * count].view("<f8")
        # no sample but the first of an episode is at its begin
        falls = np.flatnonzero(~(np.diff(found, prepend=-1.0 if is_first else 0.0) > 0))
        count = int(falls[0]) if len(falls) else count
        for each, (begin, stop) in edges.items():
            end = begin + (ends[each][count - 1] if count else 0)
            if end < stop:
                header = header_size(np.dtype("<u8"), ())
                with open(open_file(f"{path}/{each}.npy", os.O_RDWR), "r+b") as file:
                    file.seek(header + 8 * rows)
                    file.write(end.to_bytes(8, "little"))


def _read_part(path: str, begin: int, end: int) -> npt.NDArray[np.uint8]:
    """Return bytes of a file, as far as there are any."""
    with open(open_file(path), "rb") as file:
        file.seek(begin)
        return np.frombuffer(file.read(max(end - begin, 0)), np.uint8)


def _last_edges(path: str, rows: int) -> tuple[int, int]:
    """Return where the last of so many encoded rows begins and ends."""
    with open(open_file(path), "rb") as file:
        file.seek(header_size(np.dtype("<u8"), ()) + 8 * (rows - 1))
        start, stop = np.frombuffer(file.read(16), "<u8").tolist()
    return start, stop


def _close_open_lanes(path: str, schema: Schema, commit: CommitRecord) -> int:
    """Give the open episodes of all lanes records, marked interrupted; returns how many records there are then."""
    # The commit record stays as it is: readers that follow it go on, and a kill here leaves it to be done again.
    segment = Segment(path, schema)
    ended, opened = segment.records, segment.open_records()
    opened["interrupted"] = True
    before = int(ended["time_ns"].max(initial=commit.opened_ns))
    opened["time_ns"] = max(os.stat(f"{path}/{PROGRESS}").st_mtime_ns, before)
    trim_lines(f"{path}/{METADATA}", len(ended))
    with open(open_file(f"{path}/{METADATA}", os.O_WRONLY | os.O_APPEND), "ab") as file:
        file.write(encode_metadata({}) * len(opened))
    header = header_size(LANES_DTYPE, ())
    descriptor = open_file(f"{path}/{EPISODES}", os.O_RDWR)
    try:
        write_all(descriptor, opened.tobytes(), header + ended.nbytes, path)
    finally:
        os.close(descriptor)
    return len(ended) + len(opened)


def remove_earlier(store: Store, key: WriterKey) -> None:
    """Remove what earlier writers of a key left; StoreBusyError when one may be alive, or the store is maintained."""
    path = str(store.path)
    for _ in range(MAX_TRIES):
        store.refresh()
        names, sequence = store.segments_of(key.text)
        if not names:
            return
        # what is open after it is of a writer that may be alive
        recover_store(path, read_record(path).schema)
        _remove_of_key(path, key, names, sequence)
    raise StoreBusyError(f"{path} was compacted {MAX_TRIES} times meanwhile. Try again.")


def _remove_of_key(store: str, key: WriterKey, names: Sequence[str], sequence: int) -> None:
    """Remove segments; nothing when they are not those of the key any more, since the store was compacted."""
    with locked_store(store):
        if any(os.path.lexists(f"{store}/{SEGMENTS}/{name}{OPEN_SUFFIX}") for name in names):
            raise key.busy()
        if is_maintained(store):
            raise StoreBusyError(
                f"a column is being added to {store}, or it is being compacted, so that what an earlier "
                f"writer with key={key.text!r} left cannot be removed. Wait until that is done."
            )
        hidden = [] if read_store_manifest(store).sequence != sequence else hide_segments(store, names)
    for path in hidden:
        shutil.rmtree(path, ignore_errors=True)
