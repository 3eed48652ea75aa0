"""The process that writes a segment, and whether another one may take it over.

A boot id names one run of one machine's kernel. What a writer of this boot stored is in this machine's memory, however
its process ended. What a writer of another boot stored is there as far as it reached the disk; and on a file system
that several machines mount, that writer may live.

A thread goes round the open segments of this process every few seconds. It touches their commit records, where a file
system that several machines mount shows no locks, and syncs what was committed: a loss of power costs a writer that
waits for no disk a few seconds of steps, and none of its calls waits. It ends when there are no writers.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import socket
import threading
import time
import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from stepwell.errors import SharedFileSystemWarning

__all__ = [
    "NOBODY",
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
_lock = threading.Lock()
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
