"""The commit record of an open segment: 256 mapped bytes that say how much of it is there, and which process writes it.

::

    0        8         12    16     24         32          40       48        56       64
    | magic  | version | pid | rows | episodes | opened_ns | sealed | carried | origin |

    64             72                 80        96      104         112    176     184     192              200  256
    | durable rows | durable episodes | boot id | start | namespace | host | inode | lanes | rows of a lane | zeros |

The writer stores rows first, then the record of an ended episode, then ``episodes``, then ``rows``; a reader loads
``rows`` before ``episodes``. So a reader never sees a final row as a step of an open episode, and never a row that is
not there. Both are aligned 8-byte words: one store, one load. (x86-64 keeps the order of stores; on other processors
the system calls between two appends do so in practice.)

Where a ring cut an episode and it goes on in row 0 of this segment, ``carried`` is how many of its steps lie in earlier
segments, and ``origin`` the id of its first step; else both are 0. Bit 32 of ``carried`` says that the segment is full:
nothing more comes, and it is about to be sealed.

``rows`` and ``episodes`` hold for the boot in which they were stored: the pages of a killed writer are in memory. After
a loss of power, and in a copy of the file (of another inode), which may have been taken from a disk that lost power,
only the ``durable`` words count: they are set when what they cover is on the disk, and reach it last.
Records of earlier versions have 64 bytes; what is missing is 0, and they count as before.

Of a segment with lanes (see lanes.py) the magic is another one, ``rows`` counts committed vector steps, from which all
else follows, and ``episodes`` is not used.

The file is locked (flock) by its writer for as long as it lives: a process that can lock it knows that the
writer is dead, where locks reach the writer's machine.

A boot id names one run of one machine's kernel. Steps stored by a writer of this boot are in this machine's memory,
however its process ended. Steps of another boot are there as far as they reached the disk; and on a file system that
several machines mount, that writer may live.

A thread visits the open segments of this process every few seconds. It touches their commit records, where a file
system that several machines mount shows no locks, and syncs committed rows: a loss of power costs a writer that waits
for no disk a few seconds of steps, and none of its calls waits. It ends when there are no writers.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import socket
import struct
import threading
import time
import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from stepwell.errors import CorruptSegmentError, SharedFileSystemWarning
from stepwell.files.local_files import map_descriptor, sync_file
from stepwell.store.beneath import open_file
from stepwell.store.layout import MAX_ROWS, sync_directory

if TYPE_CHECKING:
    from stepwell.store.column_file import SegmentFiles

__all__ = [
    "NOBODY",
    "CommitRecord",
    "Committer",
    "Owner",
    "Recover",
    "attend",
    "boot_id",
    "forget",
    "is_shared",
    "is_silent",
    "locks_exclude",
    "may_take_over",
    "this_process",
    "warn_if_shared",
]

Recover = Literal["dead", "silent", "none"]

SILENCE_NS = 60 * 10**9
NO_BOOT = bytes(16)
# file systems that several machines may mount at once
SHARED = {"9p", "afs", "beegfs", "ceph", "cifs", "fuse", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"}
SHARED |= {"orangefs", "pvfs2", "smb3", "smbfs", "vboxsf", "virtiofs", "wekafs"}
_WARNED: set[int] = set()
# seconds between two rounds of the thread
PERIOD = 5.0
_lock = threading.Lock()
MAGIC = b"stepwell"
# of segments with lanes: earlier releases stop here
LANES_MAGIC = b"steplane"
VERSION = 1
NUM_BYTES = 256
OLD_NUM_BYTES = 64
ROWS_WORD = 2
EPISODES_WORD = 3
OPENED_WORD = 4
SEALED_WORD = 5
CARRIED_WORD = 6
ORIGIN_WORD = 7
DURABLE_ROWS_WORD = 8
DURABLE_EPISODES_WORD = 9
LANES_WORD = 23
LANE_ROWS_WORD = 24
OWNER = struct.Struct("<16sqq64sQ")
OWNER_START = 80
FULL = 1 << 32


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that writes a segment."""

    # the boot id of its machine, 16 bytes; zeros: not known
    boot: bytes = NO_BOOT
    # its number
    pid: int = 0
    # when it started, in ticks since the boot; 0: not known
    start: int = 0
    # inode of its namespace of process numbers; 0: not known
    namespace: int = 0
    # name of its machine
    host: str = ""
    # of its commit record; 0: not known. A copy of the file has another one
    inode: int = 0

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is, or was, of another boot: of this machine before it started, or of another one."""
        mine = boot_id()
        return NO_BOOT not in (self.boot, mine) and self.boot != mine

    @property
    def is_alive(self) -> bool | None:
        """Whether the process is there, for one of this boot; None where this process cannot say."""
        if not self.start or self.namespace != _namespace():
            return None
        return start_of(self.pid) == self.start


NOBODY = Owner()


def this_process() -> Owner:
    """Return this process as an owner."""
    return _owner_of(os.getpid())


@functools.lru_cache(maxsize=1)
def _owner_of(pid: int) -> Owner:
    return Owner(boot_id(), pid, start_of(pid), _namespace(), socket.gethostname())


@functools.cache
def boot_id() -> bytes:
    """Return the boot id of this machine, 16 bytes; zeros where the system has none."""
    with suppress(OSError, ValueError):
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    return NO_BOOT


def start_of(pid: int) -> int:
    """Return when a process started, in ticks since the boot; 0 where there is none, or it waits to be reaped."""
    try:
        # the name, in brackets, may hold spaces and brackets
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def is_shared(path: str) -> bool:
    """Return whether other machines may mount the file system of a path that is there."""
    return type_of_device(os.stat(path).st_dev).partition(".")[0] in SHARED


@functools.lru_cache(maxsize=64)
def type_of_device(device: int) -> str:
    """Return the type of the file system of a device number, such as ``nfs4``; empty where the system does not say."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            mount, _, rest = line.partition(" - ")
            if mount.split(" ", 3)[2] == wanted:
                return rest.split(" ", 1)[0]
    return ""


def warn_if_shared(path: str) -> None:
    """Say once a file system what does not hold on one that several machines mount."""
    device = os.stat(path).st_dev
    if device in _WARNED or not is_shared(path):
        return
    _WARNED.add(device)
    warnings.warn(
        f"{path} is on a file system of the network ({type_of_device(device)}). Steps that another machine records are "
        "shown when their segment is sealed. What a machine that died has left is recovered on that machine, or by "
        'stepwell.open(path, recover="silent") after a minute.',
        SharedFileSystemWarning,
        stacklevel=3,
    )


def locks_exclude(path: str) -> bool:
    """Return whether a lock (flock) on a file that this process has locked keeps others out."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


def may_take_over(owner: Owner, path: str, recover: Recover) -> bool:
    """Return whether a segment may be recovered whose commit record this process has locked."""
    if recover == "none":
        return False
    if owner.is_elsewhere:
        is_dead = None if is_shared(path) else True
    elif owner.boot == NO_BOOT or boot_id() == NO_BOOT or locks_exclude(path):
        is_dead = True
    else:
        is_dead = None if owner.is_alive is None else not owner.is_alive
    if is_dead is None:
        return recover == "silent" and is_silent(path)
    return is_dead


def is_silent(path: str) -> bool:
    """Return whether a commit record was not touched for a minute; its writer touches it every ten seconds."""
    return time.time_ns() - os.stat(path).st_mtime_ns > SILENCE_NS


class Attended(Protocol):
    """A segment that is being written."""

    def attend(self) -> None:
        """Say that its writer lives, and sync what it committed."""


_attended: weakref.WeakSet[Attended] = weakref.WeakSet()
_thread: threading.Thread | None = None


def attend(segment: Attended) -> None:
    """Let the thread attend to a segment, too, until it is forgotten or collected."""
    global _thread
    with _lock:
        _attended.add(segment)
        if _thread is None:
            _thread = threading.Thread(target=_run, name="stepwell-heartbeat", daemon=True)
            _thread.start()


def forget(segment: Attended) -> None:
    """Attend to a segment no more."""
    with _lock:
        _attended.discard(segment)


def beat() -> bool:
    """Attend to all segments once; False when there are none left."""
    with _lock:
        segments = list(_attended)
    for segment in segments:
        # the next time will do: a server may be away
        with suppress(OSError):
            segment.attend()
    return bool(segments)


def _run() -> None:
    global _thread
    while True:
        time.sleep(PERIOD)
        is_needed = beat()
        with _lock:
            if not is_needed and not _attended:
                _thread = None
                return


def _leave_all() -> None:
    global _thread, _lock
    _lock, _thread = threading.Lock(), None
    _attended.clear()


os.register_at_fork(after_in_child=_leave_all)


class CommitRecord:
    """One commit record, mapped: any process may read it, and its writer holds the lock until it ends."""

    # A forked child must call `close`, else it keeps the lock of a dead parent.

    __slots__ = ("_descriptor", "_episodes_word", "_rows_word", "is_hidden", "words")

    def __init__(self, words: memoryview[int], descriptor: int = -1, *, is_cut: bool = False) -> None:
        self._descriptor = descriptor
        self.words = words
        # whether nothing of the segment is to be shown or known
        self.is_hidden = False
        self._rows_word, self._episodes_word = ROWS_WORD, EPISODES_WORD
        if is_cut:
            self._rows_word, self._episodes_word = DURABLE_ROWS_WORD, DURABLE_EPISODES_WORD

    @classmethod
    def hidden(cls) -> CommitRecord:
        """Return the record of a segment of which nothing is shown: nothing is there, or it is written elsewhere."""
        record = cls(memoryview(bytes(NUM_BYTES)).cast("q"))
        record.is_hidden = True
        return record

    @classmethod
    def create(cls, path: str, *, is_owned: bool = True, lanes: tuple[int, int] = (0, 0)) -> CommitRecord:
        """Make the file, locked by this process; without ``is_owned`` as a dead writer leaves it."""
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            head = (LANES_MAGIC if lanes[0] else MAGIC) + struct.pack(
                "<IIqqq", VERSION, os.getpid() & 0xFFFFFFFF, 0, 0, time.time_ns()
            )
            owner = this_process() if is_owned else NOBODY
            host = owner.host.encode()[:64]
            inode = os.fstat(descriptor).st_ino if is_owned else 0
            rest = OWNER.pack(owner.boot, owner.start, owner.namespace, host, inode)
            rest += struct.pack("<qq", *lanes)
            os.pwrite(descriptor, (head.ljust(OWNER_START, b"\0") + rest).ljust(NUM_BYTES, b"\0"), 0)
            return cls(_mapped(descriptor, writable=True), descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, path: str) -> CommitRecord:
        """Map an existing file for reading; FileNotFoundError where nothing of it has reached the disk."""
        descriptor = open_file(path)
        try:
            owner = _read_owner(descriptor, path)
            if owner.is_elsewhere and is_shared(path):
                return cls.hidden()
            return cls(_mapped(descriptor), is_cut=_is_cut(owner, descriptor))
        finally:
            os.close(descriptor)

    @classmethod
    def take_over(cls, path: str, recover: Recover = "dead") -> CommitRecord | None:
        """Lock the record of a dead writer; None when its writer is alive, or may be, see `may_take_over`."""
        descriptor = open_file(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            owner = _read_owner(descriptor, path)
            if may_take_over(owner, path, recover):
                return cls(_mapped(descriptor, writable=True), descriptor, is_cut=_is_cut(owner, descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    @property
    def rows(self) -> int:
        """Committed rows that count."""
        return self.words[self._rows_word]

    @property
    def episodes(self) -> int:
        """Ended episodes that count."""
        return self.words[self._episodes_word]

    @property
    def lanes(self) -> tuple[int, int]:
        """How many lanes the segment has, and the rows of each; zeros where it has none."""
        return self.words[LANES_WORD], self.words[LANE_ROWS_WORD]

    @property
    def is_cut(self) -> bool:
        """Whether only what was on the disk counts: the machine was started since, or the file is a copy."""
        return self._rows_word != ROWS_WORD

    @property
    def num_unsure(self) -> int:
        """Rows that were committed and do not count."""
        return self.words[ROWS_WORD] - self.rows

    @property
    def is_full(self) -> bool:
        """Whether nothing more comes."""
        return self.words[CARRIED_WORD] >= FULL

    def mark_full(self) -> None:
        """Say that nothing more comes."""
        self.words[CARRIED_WORD] |= FULL

    @property
    def is_sealed(self) -> bool:
        """Whether the segment was sealed since this record was mapped."""
        return self.words[SEALED_WORD] != 0

    def mark_sealed(self) -> None:
        """Tell readers that hold this record that the segment is sealed under its own name."""
        self.words[SEALED_WORD] = 1

    @property
    def opened_ns(self) -> int:
        """When it was made, nanoseconds since 1970."""
        return self.words[OPENED_WORD]

    @property
    def carried(self) -> tuple[int, int]:
        """Steps that the episode of row 0 has in earlier segments, and its origin; (0, 0) when it begins here."""
        return self.words[CARRIED_WORD] & (FULL - 1), self.words[ORIGIN_WORD]

    def carry(self, steps: int, origin: int) -> None:
        """Say that the episode of row 0 began in an earlier segment; before anything is committed."""
        self.words[ORIGIN_WORD] = origin
        self.words[CARRIED_WORD] = steps

    def commit_rows(self, rows: int) -> None:
        """Publish rows of the open episode."""
        self.words[ROWS_WORD] = rows

    def commit_episode(self, episodes: int, rows: int) -> None:
        """Publish an ended episode, whose record is in place, and all its rows."""
        self.words[EPISODES_WORD] = episodes
        self.words[ROWS_WORD] = rows

    def commit_durable(self, rows: int, episodes: int) -> None:
        """Say that so many rows and ended episodes are on the disk, and wait until this is there, too."""
        # in this order: an episode's rows are those that its record says
        self.words[DURABLE_EPISODES_WORD] = episodes
        self.words[DURABLE_ROWS_WORD] = rows
        self.sync()

    @property
    def durable(self) -> tuple[int, int]:
        """Rows and ended episodes that are on the disk."""
        return self.words[DURABLE_ROWS_WORD], self.words[DURABLE_EPISODES_WORD]

    def sync(self) -> None:
        """Wait until the record is on the disk."""
        sync_file(self._descriptor)

    def close(self) -> None:
        """Let go of the map and of the writer's lock."""
        # a map holds the open file, and with it the lock, as a descriptor does
        self.words = memoryview(b"").cast("q")
        # never twice, whatever comes in between: its number may be another file's by then
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Committer:
    """Commits rows and episodes of a segment while its files are written."""

    # The order of what is to survive a loss of power is decided here and nowhere else: the files are synced, then the
    # counters that readers see are advanced, then those that count after a loss of power, then the record is synced.
    # Where that fails, a writer may advance the counters that readers see alone.

    def __init__(self, record: CommitRecord, files: SegmentFiles, path: str) -> None:
        self._record, self._files, self._path = record, files, path
        # held while files are synced, by the writer's thread or by the one that goes round all segments
        self._lock = threading.Lock()
        self._has_synced_names = False
        self._error: OSError | None = None
        self.is_open = True

    def commit(self, rows: int, episodes: int, *, is_synced: bool) -> None:
        """Publish rows and ended episodes, whose records are in place; with ``is_synced`` once they are on the disk."""
        if not is_synced:
            self._record.commit_episode(episodes, rows)
            return
        with self._lock:
            self._sync_files()
            self._record.commit_episode(episodes, rows)
            self._record.commit_durable(rows, episodes)

    def sync(self) -> None:
        """Wait until what is committed now is on the disk, and the record says so."""
        with self._lock:
            # rows before episodes, as readers do: a thread may commit more meanwhile
            rows, episodes = self._record.rows, self._record.episodes
            self._sync_files()
            self._record.commit_durable(rows, episodes)

    def sync_in_background(self) -> None:
        """Do as `sync` when anything was committed since; the next sync, and `check`, raise what goes wrong."""
        with self._lock:
            # of a segment that was closed meanwhile, there is no record any more
            if not self.is_open or self._error is not None:
                return
            committed = self._record.rows, self._record.episodes
            if committed == self._record.durable:
                return
            try:
                self._sync_files()
                self._record.commit_durable(*committed)
            except OSError as error:
                # the system says so once: the next sync would find nothing wrong
                self._error = error

    def sync_names(self) -> None:
        """Wait until the record, and the names of the segment and of its files, are on the disk."""
        self._record.sync()
        sync_directory(self._path)
        sync_directory(os.path.dirname(self._path))
        self._has_synced_names = True

    def check(self) -> None:
        """Raise what the disk said when the files were synced in the background: rows may be lost."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Let go of the files; the record stays open."""
        with self._lock:
            self.is_open = False
            self._files.close()

    def _sync_files(self) -> None:
        self.check()
        self._files.sync()
        if not self._has_synced_names:
            self.sync_names()


def _mapped(descriptor: int, *, writable: bool = False) -> memoryview[int]:
    # of a short one, of an earlier version, the rest of the page is mapped, and is zeros
    return map_descriptor(descriptor, NUM_BYTES, writable=writable).data.cast("q")


def _is_cut(owner: Owner, descriptor: int) -> bool:
    return owner.is_elsewhere or owner.inode not in (0, os.fstat(descriptor).st_ino)


def _read_owner(descriptor: int, path: str) -> Owner:
    """Check a record and return the owner of the segment."""
    record = os.pread(descriptor, NUM_BYTES, 0)
    if not record.strip(b"\0"):
        raise FileNotFoundError(f"nothing of {path} has reached the disk")
    if len(record) < OLD_NUM_BYTES or record[:8] not in (MAGIC, LANES_MAGIC):
        raise CorruptSegmentError(f'{path} is not the commit record of a segment. Run "stepwell verify PATH".')
    record = record.ljust(NUM_BYTES, b"\0")
    for rows, episodes in (struct.unpack_from("<qq", record, 16), struct.unpack_from("<qq", record, 64)):
        if not 0 <= rows < MAX_ROWS or not 0 <= episodes < MAX_ROWS:
            raise CorruptSegmentError(
                f'{path}: {rows} rows and {episodes} episodes cannot be. Run "stepwell verify PATH".'
            )
    lanes = struct.unpack_from("<qq", record, 8 * LANES_WORD)
    if (record[:8] == LANES_MAGIC) != (lanes[0] > 0) or min(lanes) < 0 or lanes[0] * lanes[1] >= MAX_ROWS:
        raise CorruptSegmentError(f'{path}: {lanes[0]} lanes of {lanes[1]} rows cannot be. Run "stepwell verify PATH".')
    (pid,) = struct.unpack_from("<I", record, 12)
    boot, start, namespace, host, inode = OWNER.unpack_from(record, OWNER_START)
    return Owner(boot, pid, start, namespace, host.rstrip(b"\0").decode(errors="replace"), inode)
