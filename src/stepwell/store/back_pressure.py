"""Back-pressure: limiters of tables that hold the writers of a ring, whichever process of the machine they are in.

::

    clock    word 1       bit i: table i holds writers. While it is 0, a writer reads it before each step, and no more

    limits   table i      limit 5,120    a step counts 1, an end 0     stored by the table whenever its counts change
             writer 0     2,000 steps, 40 ends                         stored by the writer, before each step
             writer 1     3,119 steps, 61 ends
                          5,119 < 5,120: one more step may go in, and then writers wait, drop steps or are refused

``limits`` is made by the first table that holds writers: int64 words, little-endian::

    0 "stepwell"    1 version    2 writers' places that were ever taken
    32 + 48 i       of table i < 32: limit, weight of a step, weight of an end, mode, process, thread that drew last;
                    8 words on: names of the table and of its limiter (320 bytes, UTF-8, between them a zero)
    1568 + j        of writer j < 1,024: steps; 1,024 words on: ends; 2,048 words on: steps that were dropped

What a table stores is what the writers had counted before it followed the store, and the room that its limiter leaves
now: so whatever a killed or failed writer has counted in vain changes nothing. Counts only grow, and outlive their
writers. A writer counts a call before it writes it: of each writer one call may come beyond the limit.

A table has byte i of the file locked, a writer byte 32 + j, for as long as it lives: no process number that another
process may have by now, and nothing that a copy of the file or another boot has. So a table that was killed holds
nobody: a writer that is held looks at the lock before each of its short sleeps, and clears the bit of a table that is
gone. Places are taken, and bits of the clock changed, under the store's lock.

Source: Reverb's rate limiters block inserting likewise, in a server (Cassirer et al., 2021).
"""

from __future__ import annotations

import logging
import math
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal

from stepwell.errors import RateLimitError, StoreVersionError, TableError
from stepwell.files.file_locks import ByteLock, is_byte_locked, lock_byte
from stepwell.files.local_files import map_descriptor
from stepwell.store.beneath import open_file
from stepwell.store.column_file import reserve
from stepwell.store.commit import is_shared
from stepwell.store.layout import LIMITS, locked_store
from stepwell.store.ring import map_clock

__all__ = ["FIRST_SECONDS", "LONGEST_SECONDS", "NO_FLAGS", "BackPressure", "LongWait", "TableGate", "WriterGate"]

BackPressure = Literal["wait", "drop", "refuse"]
"""What a step of a writer does that a table's limiter does not let in; of several tables the last one here counts."""

MODES: tuple[BackPressure, ...] = ("wait", "drop", "refuse")
MAGIC = b"stepwell"
VERSION = 1
MAX_TABLES, MAX_WRITERS = 32, 1024
# words of the page
VERSION_WORD, NUM_WRITERS = 1, 2
TABLES, TABLE_WORDS = 32, 48
LIMIT, STEP_WEIGHT, END_WEIGHT, MODE, PROCESS, THREAD = range(6)
TEXT, TEXT_BYTES = 8, 320
STEPS = TABLES + MAX_TABLES * TABLE_WORDS
ENDS, DROPPED = STEPS + MAX_WRITERS, STEPS + 2 * MAX_WRITERS
NUM_BYTES = 8 * (STEPS + 3 * MAX_WRITERS)
ALL_TABLES = (1 << MAX_TABLES) - 1
# the limit of a table that was closed, or has just begun
OPEN = 1 << 62
NO_FLAGS = memoryview(bytes(8)).cast("q")
"""The word of writers that no table can hold: those of stores that are no rings."""

# a wait looks again after so long at first, and so long in the end
FIRST_SECONDS, LONGEST_SECONDS = 0.0002, 0.005
# a wait without a time-out that lasts longer may be one for ever: its reader should know what for
SILENT_SECONDS = 10.0
LOGGER = logging.getLogger("stepwell.replay")


class LongWait:
    """Says once, in the log ``stepwell.replay``, what a wait without a time-out is for."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        self._due = time.monotonic() + SILENT_SECONDS

    def look(self, why: Callable[[], str]) -> None:
        """Log a warning if it lasts long by now, and was not logged yet."""
        if time.monotonic() >= self._due:
            self._due = math.inf
            LOGGER.warning("a wait without a time-out lasts %g s by now: %s", SILENT_SECONDS, why())


class WriterGate:
    """A writer's way through the limits of tables."""

    # One thread at a time, as writers are.

    def __init__(self, store: str, flags: memoryview[int]) -> None:
        self._store, self._flags = store, flags
        self._words = NO_FLAGS
        self._lock: ByteLock | None = None
        self._place = 0
        self.num_dropped = 0

    def admits(self, steps: int, ends: int = 0) -> bool:
        """Count steps that are about to be written, once all tables let them in; False where they are to be dropped.

        Raises:
            RateLimitError: a table refuses them, or waits for the thread that would wait for it.
        """
        if self._lock is None and not self._join():
            return True
        if (table := self._full_table()) >= 0 and not self._waits_for(table, steps):
            return False
        self._words[STEPS + self._place] += steps
        if ends:
            self._words[ENDS + self._place] += ends
        return True

    def count_ends(self, ends: int) -> None:
        """Count episodes that ended, which wait for nothing."""
        if self._lock is not None:
            self._words[ENDS + self._place] += ends

    def close(self) -> None:
        """Give the place back; nothing where none was taken, or in a child of a fork."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            self.close()

    def _join(self) -> bool:
        """Take a place, once there is a table; False where there is none that could hold anybody."""
        with locked_store(self._store):
            words = _map_page(self._store)
            if words is None:
                # of a store that was copied
                self._flags[0] = 0
                return False
            if words[VERSION_WORD] != VERSION:
                return False
            self._lock, self._place = _take_byte(self._store, MAX_TABLES, MAX_WRITERS)
            words[NUM_WRITERS] = max(words[NUM_WRITERS], self._place + 1)
            self._words = words
        return True

    def _full_table(self) -> int:
        """Return the first word of a table that lets nothing in, of several the one that is strictest; -1 for none."""
        words, flags, found = self._words, self._flags[0] & ALL_TABLES, -1
        num = words[NUM_WRITERS]
        steps = sum(words[STEPS : STEPS + num])
        while flags:
            lowest = flags & -flags
            flags ^= lowest
            at = TABLES + TABLE_WORDS * (lowest.bit_length() - 1)
            if words[at + LIMIT] == OPEN and not self._is_held(at):
                self._forget(at)
                continue
            count = words[at + STEP_WEIGHT] * steps
            if words[at + END_WEIGHT]:
                count += words[at + END_WEIGHT] * sum(words[ENDS : ENDS + num])
            if count >= words[at + LIMIT] and (found < 0 or words[at + MODE] > words[found + MODE]):
                found = at
        return found

    def _waits_for(self, table: int, steps: int) -> bool:
        """Wait until all tables let a step in; False where it is to be dropped."""
        words, delay, waiting = self._words, FIRST_SECONDS, LongWait()
        while table >= 0:
            if not self._is_held(table):
                self._forget(table)
            elif words[table + MODE] == MODES.index("drop"):
                words[DROPPED + self._place] += steps
                self.num_dropped += steps
                return False
            elif words[table + MODE] == MODES.index("refuse"):
                raise RateLimitError(f"{self._name(table)} lets no step in now: it waits for samples. {NOT_WRITTEN}")
            elif words[table + PROCESS] == os.getpid() and _can_nobody_else_draw(words[table + THREAD]):
                raise RateLimitError(
                    f"{self._name(table)} lets no step in before more is drawn, and the thread that draws is the one "
                    f"that writes: it would wait for itself for ever. {NOT_WRITTEN} Draw before the next step, raise "
                    'the limiter\'s buffer, or use back_pressure="drop".'
                )
            else:
                waiting.look(partial(self._why_waiting, table))
                time.sleep(delay)
                delay = min(2 * delay, LONGEST_SECONDS)
            table = self._full_table()
        return True

    def _why_waiting(self, table: int) -> str:
        return f"{self._name(table)} lets no step in: it waits for samples."

    def _name(self, table: int) -> str:
        text = self._words[table + TEXT : table + TABLE_WORDS].tobytes()
        name, limiter = [part.decode(errors="replace") for part in (text + b"\0\0").split(b"\0")[:2]]
        return f"{self._store}: {limiter} of table {name!r}, in process {self._words[table + PROCESS]},"

    def _is_held(self, table: int) -> bool:
        """Whether the process that has a table is there."""
        assert self._lock is not None
        return is_byte_locked(self._lock.descriptor, f"{self._store}/{LIMITS}", (table - TABLES) // TABLE_WORDS)

    def _forget(self, table: int) -> None:
        """Let no writer look at a table whose process is gone."""
        with locked_store(self._store):
            if not self._is_held(table):
                self._flags[0] &= ~(1 << ((table - TABLES) // TABLE_WORDS))


NOT_WRITTEN = "Nothing was written."


class TableGate:
    """A table's hold on the writers of a ring.

    Args:
        store: path of the ring.
        mode: what writers do whose steps the limiter does not let in.
        names: of the table and of its limiter, for messages.
        step_weight: what a step counts, 0 or 1.
        end_weight: what an end of an episode counts.

    Notes:
        Used under its table's lock. In a child of a fork it holds nobody.
    """

    def __init__(
        self, store: str, mode: BackPressure, names: tuple[str, str], *, step_weight: int, end_weight: int
    ) -> None:
        self._store = store
        if is_shared(store):
            raise TableError(
                f"{store} is on a file system that several machines may mount, where processes do not share memory: "
                "back_pressure= is among processes of one machine. Put the ring on a disk of this machine, or into "
                "memory."
            )
        with locked_store(store):
            self._flags = map_clock(store)[1:]
            words = _map_page(store, is_new=True)
            assert words is not None
            self._lock, number = _take_byte(store, 0, MAX_TABLES)
            at = self._at = TABLES + TABLE_WORDS * number
            # whatever a table before left; its bit may be set
            words[at + LIMIT] = OPEN
            words[at + STEP_WEIGHT], words[at + END_WEIGHT] = step_weight, end_weight
            words[at + MODE], words[at + PROCESS], words[at + THREAD] = MODES.index(mode), os.getpid(), 0
            text = b"\0".join(name.encode()[: TEXT_BYTES // 2 - 1] for name in names)
            words[at + TEXT : at + TABLE_WORDS] = memoryview(text.ljust(TEXT_BYTES, b"\0")).cast("q")
            self._words = words
            self._flags[0] |= 1 << number
        self._weights = step_weight, end_weight
        self._seen = 0
        _GATES.add(self)

    def look(self) -> None:
        """Take note of what writers have counted: before the store is followed, so that all of it is seen then."""
        words, (step_weight, end_weight) = self._words, self._weights
        num = words[NUM_WRITERS]
        self._seen = step_weight * sum(words[STEPS : STEPS + num])
        if end_weight:
            self._seen += end_weight * sum(words[ENDS : ENDS + num])

    def publish(self, room: int) -> None:
        """Let writers go on for so many items beyond those that were there at the last `look`."""
        per_item = max(self._weights)
        self._words[self._at + LIMIT] = min(self._seen + per_item * room, OPEN - 1)

    def note_draw(self) -> None:
        """Say which thread draws: it cannot wait for itself."""
        self._words[self._at + THREAD] = threading.get_native_id()

    @property
    def num_dropped(self) -> int:
        """Steps that writers of the ring have dropped, for whichever table."""
        return sum(self._words[DROPPED : DROPPED + self._words[NUM_WRITERS]])

    def close(self) -> None:
        """Hold nobody any more. May be called twice, in a child of a fork, and by the garbage collector."""
        # without the store's lock, which the thread may hold that collects: writers clear the bit
        if self._lock.is_held:
            self._words[self._at + LIMIT] = OPEN
            self._lock.release()

    def leave_after_fork(self) -> None:
        """Say nothing to the parent's writers from a forked child, which has let go of the lock."""
        self._words = memoryview(bytearray(self._words.tobytes())).cast("q")


def _can_nobody_else_draw(drawer: int) -> bool:
    """Whether the calling thread would wait for itself, where the table is of its process."""
    if drawer:
        return drawer == threading.get_native_id()
    # nobody has drawn yet: of several threads any may do so
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    return all(thread.name.startswith("stepwell-") for thread in others)


_GATES: weakref.WeakSet[TableGate] = weakref.WeakSet()


def _leave_all() -> None:
    for gate in list(_GATES):
        gate.leave_after_fork()
    _GATES.clear()


os.register_at_fork(after_in_child=_leave_all)


def _map_page(store: str, *, is_new: bool = False) -> memoryview[int] | None:
    """Return the words of the page; the caller holds the store's lock. None where there is no page."""
    path = f"{store}/{LIMITS}"
    try:
        descriptor = open_file(path, os.O_RDWR | (os.O_CREAT if is_new else 0))
    except FileNotFoundError:
        return None
    try:
        if is_new:
            reserve(descriptor, NUM_BYTES, path)
        elif os.fstat(descriptor).st_size < NUM_BYTES:
            return None
        words = map_descriptor(descriptor, NUM_BYTES, writable=True).data.cast("q")
    finally:
        os.close(descriptor)
    magic = struct.unpack("q", MAGIC)[0]
    if is_new and words[0] != magic:
        words[VERSION_WORD], words[NUM_WRITERS] = VERSION, 0
        words[0] = magic
    if is_new and words[VERSION_WORD] != VERSION:
        raise StoreVersionError(
            f"{path} has version {words[VERSION_WORD]}, and this release writes version {VERSION}. Use one release for "
            "all processes of this ring, or remove the file while none has it open."
        )
    return words if words[0] == magic else None


def _take_byte(store: str, first: int, count: int) -> tuple[ByteLock, int]:
    """Lock the first of some bytes of the page that is free; returns the lock and its place among them."""
    # in two openings: a map holds the file that it was made of, and a lock lasts as long as that
    path = f"{store}/{LIMITS}"
    for place in range(count):
        with suppress(BlockingIOError):
            return lock_byte(path, first + place, open_file), place
    kind = "writers" if first else "tables that hold writers"
    raise TableError(f"{store}: {count} {kind} are open. Close some: more cannot wait for each other.")
