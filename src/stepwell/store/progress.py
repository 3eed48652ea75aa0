"""The commit record of an open segment: 64 mapped bytes that say how much of it is there.

::

    0        8         12    16     24         32          40       48        56       64
    | magic  | version | pid | rows | episodes | opened_ns | sealed | carried | origin |

The writer stores rows first, then the record of an ended episode, then ``episodes``, then ``rows``; a reader loads
``rows``
before ``episodes``. So a reader never sees a final row as a step of an open episode, and never a row that is not there.
Both are aligned 8-byte words: one store, one load. (x86-64 keeps the order of stores; on other processors the system
calls between two appends do so in practice.)

Where a ring cut an episode and it goes on in row 0 of this segment, ``carried`` is how many of its steps lie in earlier
segments, and ``origin`` the id of its first step; else both are 0. Bit 32 of ``carried`` says that the segment is full:
nothing more comes, and it is about to be sealed.

The file is locked (flock) by its writer for as long as it lives: who can lock it knows that the writer is dead.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from stepwell.codecs.mapping import map_descriptor
from stepwell.errors import CorruptSegmentError
from stepwell.store.beneath import open_file
from stepwell.store.ids import MAX_ROWS

__all__ = ["Progress"]

MAGIC = b"stepwell"
VERSION = 1
NUM_BYTES = 64
ROWS_WORD = 2
EPISODES_WORD = 3
OPENED_WORD = 4
SEALED_WORD = 5
CARRIED_WORD = 6
ORIGIN_WORD = 7
FULL = 1 << 32


class Progress:
    """One commit record, mapped.

    Notes:
        `rows` and `episodes` are read by any number of processes; only the writer sets them. The writer's lock goes
        with the
        process, however it ends; a forked child must call `close`, else it keeps the lock of a dead
        parent.
    """

    __slots__ = ("_descriptor", "words")

    def __init__(self, descriptor: int, *, writable: bool) -> None:
        self._descriptor = descriptor if writable else -1
        self.words = map_descriptor(descriptor, NUM_BYTES, writable=writable).data.cast("q")

    @classmethod
    def create(cls, path: str) -> Progress:
        """Make the file, locked by this process."""
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            head = MAGIC + struct.pack("<IIqqq", VERSION, os.getpid() & 0xFFFFFFFF, 0, 0, time.time_ns())
            os.pwrite(descriptor, head.ljust(NUM_BYTES, b"\0"), 0)
            return cls(descriptor, writable=True)
        except BaseException:
            os.close(descriptor)
            raise

    @classmethod
    def open(cls, path: str) -> Progress:
        """Map an existing file for reading.

        Raises:
            FileNotFoundError: the segment was sealed meanwhile.
            CorruptSegmentError: not a commit record.
        """
        descriptor = open_file(path)
        try:
            _check(descriptor, path)
            return cls(descriptor, writable=False)
        finally:
            os.close(descriptor)

    @classmethod
    def take_over(cls, path: str) -> Progress | None:
        """Lock the record of a dead writer; None when its writer is alive.

        Raises:
            FileNotFoundError: the segment was sealed meanwhile.
            CorruptSegmentError: not a commit record.
        """
        descriptor = open_file(path, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            _check(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, writable=True)

    @property
    def rows(self) -> int:
        """Committed rows."""
        return self.words[ROWS_WORD]

    @property
    def episodes(self) -> int:
        """Ended episodes."""
        return self.words[EPISODES_WORD]

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

    def close(self) -> None:
        """Let go of the map and of the writer's lock."""
        # a map holds the open file, and with it the lock, as a descriptor does
        self.words = memoryview(b"").cast("q")
        # never twice, whatever comes in between: its number may be another file's by then
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _check(descriptor: int, path: str) -> None:
    head = os.pread(descriptor, NUM_BYTES, 0)
    if len(head) != NUM_BYTES or head[:8] != MAGIC:
        raise CorruptSegmentError(f'{path} is not the commit record of a segment. Run "stepwell verify PATH".')
    rows, episodes = struct.unpack_from("<qq", head, 16)
    if not 0 <= rows < MAX_ROWS or not 0 <= episodes < MAX_ROWS:
        raise CorruptSegmentError(f'{path}: {rows} rows and {episodes} episodes cannot be. Run "stepwell verify PATH".')
