"""Keys of writers: a task that is tried again replaces what it left, and its segments have a place of their own.

::

    pusht.well/
      segments/*/key.json     of each segment of a writer with a key: {"key": "task-17", "episodes": 12, "crc32": ...},
                              where episodes counts what that writer kept in segments before this one
      keys/
        5d1f0a...             flock of the writer of the key with this SHA-256, while it is open

``key.json`` is there before the segment is, and stays when that is sealed. With the key and its number among the
episodes that its writer kept, an episode has the same ``origin`` whenever its task runs, and however often.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepwellError, StoreBusyError
from stepwell.files.file_locks import FileLock
from stepwell.json_text import open_json, seal_json
from stepwell.store.beneath import check_directory, open_file, read_file, system_errors
from stepwell.store.column_file import ColumnFile
from stepwell.store.layout import OPEN_SUFFIX, RESTORE, locked_store

__all__ = ["KEY", "MAX_KEY", "KeyNote", "WriterKey", "check_key", "find_note", "read_note", "write_note"]

Int64s = npt.NDArray[np.int64]
KEY = "key.json"
KEYS = "keys"
MAX_KEY = 200


@dataclass(frozen=True, slots=True)
class KeyNote:
    """What ``key.json`` says."""

    # of the writer
    key: str
    # episodes that it kept in segments before this one
    num_before: int = 0

    def origin(self, number: int) -> int:
        """Return the origin of one of the episodes that are kept in this segment: negative, as no id of a step is."""
        text = f"{self.num_before + number} {self.key}".encode()
        return (int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") | 1 << 63) - (1 << 64)

    def origins(self, first: int, count: int) -> Int64s:
        """Return the origins of ``count`` of them that follow each other, int64 [count]."""
        return np.array([self.origin(number) for number in range(first, first + count)], np.int64)

    def next_origin(self, records: npt.NDArray[Any]) -> int:
        """Return the origin of the episode after all those of the segment's records."""
        return self.origin(len(records) - int(np.count_nonzero(records["discarded"])))


def check_key(key: object) -> str:
    """Return the key of a writer; StepwellError when it is none."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or any("\ud800" <= char <= "\udfff" for char in key):
        raise StepwellError(f"{key!r:.100} is no key of a writer. Give text of 1 to {MAX_KEY} characters.")
    return key


def write_note(directory: str, note: KeyNote) -> None:
    """Write the note of a segment that is being made, onto the disk."""
    path = f"{directory}/{KEY}"
    file = ColumnFile(path)
    try:
        file.write(seal_json({"key": note.key, "episodes": note.num_before}), 0)
        file.sync()
    finally:
        file.close()


def read_note(directory: str) -> KeyNote | None:
    """Return the note of the segment at ``directory``; None where there is none; CorruptSegmentError: damaged."""
    path = f"{directory}/{KEY}"
    try:
        record = open_json(read_file(path), name=path)
    except FileNotFoundError:
        return None
    num_before = record.get("episodes")
    with suppress(StepwellError):
        if isinstance(num_before, int) and 0 <= num_before < 1 << 63:
            return KeyNote(check_key(record.get("key")), num_before)
    raise CorruptSegmentError(f"{path} is no note of a key. {RESTORE}")


def find_note(directory: str) -> KeyNote | None:
    """Return the note of a segment, under its open name or its sealed one: it may be sealed meanwhile."""
    return read_note(directory) or (
        read_note(directory.removesuffix(OPEN_SUFFIX)) if directory.endswith(OPEN_SUFFIX) else None
    )


class WriterKey:
    """The key of one writer: no other writer has it until it is released, or the process ends."""

    def __init__(self, store: str, text: str) -> None:
        self._store, self.text = store, text
        # of the segment that comes next
        self.note = KeyNote(text)
        self._path = f"{store}/{KEYS}/{hashlib.sha256(text.encode()).hexdigest()}"
        with system_errors(store, is_writing=True), locked_store(store):
            with suppress(FileExistsError):
                os.mkdir(f"{store}/{KEYS}")
            check_directory(f"{store}/{KEYS}")
            try:
                self._lock = FileLock(open_file(self._path, os.O_RDWR | os.O_CREAT), is_waiting=False)
            except BlockingIOError:
                raise self.busy() from None

    def busy(self) -> StoreBusyError:
        """Return the error of a second writer."""
        return StoreBusyError(
            f"a writer with key={self.text!r} is recording into {self._store}. Wait until it is closed or dead, or "
            "give another key."
        )

    def go_on(self, num_kept: int) -> None:
        """Take note of the episodes of a segment after which the writer begins another."""
        self.note = KeyNote(self.text, self.note.num_before + num_kept)

    def release(self) -> None:
        """Let others have the key."""
        if self._lock.is_held:
            with suppress(OSError), locked_store(self._store):
                # under the store's lock no process is about to lock the file whose name goes
                os.unlink(self._path)
            self._lock.release()

    def leave(self) -> None:
        """Let others have the key, and wait for nothing: when a writer is collected, at any moment."""
        self._lock.release()
