"""Keys of writers: a task that is tried again replaces what it left, and its segments have a place of their own.

::

    pusht.well/
      segments/*/key.json     of each segment of the writer: its key, see key_notes.py
      keys/
        5d1f0a...             flock of the writer of the key with this SHA-256, while it is open
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from stepwell.errors import StoreBusyError
from stepwell.files.file_locks import FileLock
from stepwell.store.arrangement import read_arrangement
from stepwell.store.beneath import check_directory, open_file, system_errors
from stepwell.store.key_notes import KeyNote
from stepwell.store.layout import NEW_PREFIX, OPEN_SUFFIX, SEGMENTS, locked_store, sync_directory
from stepwell.store.maintenance import is_maintained
from stepwell.store.records import read_record
from stepwell.store.recovery import recover_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepwell.store.store import Store

__all__ = ["WriterKey"]

KEYS = "keys"
MAX_TRIES = 100


class WriterKey:
    """The key of one writer: no other writer has it until it is released, or the process ends.

    Args:
        store: path of the store.
        text: the key.

    Raises:
        StoreBusyError: a writer of this key is open.
    """

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
                raise self._busy() from None

    def _busy(self) -> StoreBusyError:
        return StoreBusyError(
            f"a writer with key={self.text!r} is recording into {self._store}. Wait until it is closed or dead, or "
            "give another key."
        )

    def go_on(self, num_kept: int) -> None:
        """Take note of the episodes of a segment after which the writer begins another."""
        self.note = KeyNote(self.text, self.note.num_before + num_kept)

    def discard_earlier(self, store: Store) -> None:
        """Remove what earlier writers of the key left.

        Args:
            store: the store, which is refreshed.

        Raises:
            StoreBusyError: a writer of this key that does not hold the lock may be alive, on another machine; or a
                column is being added, or the store is being compacted.
        """
        for _ in range(MAX_TRIES):
            store.refresh()
            names, sequence = store.segments_of(self.text)
            if not names:
                return
            # what is open after it is of a writer that may be alive
            recover_store(self._store, read_record(self._store).schema)
            self._discard(names, sequence)
        raise StoreBusyError(f"{self._store} was compacted {MAX_TRIES} times meanwhile. Try again.")

    def _discard(self, names: Sequence[str], sequence: int) -> None:
        """Remove segments; nothing when they are not those of the key any more, since the store was compacted."""
        directory = f"{self._store}/{SEGMENTS}"
        with locked_store(self._store):
            if any(os.path.lexists(f"{directory}/{name}{OPEN_SUFFIX}") for name in names):
                raise self._busy()
            if is_maintained(self._store):
                raise StoreBusyError(
                    f"a column is being added to {self._store}, or it is being compacted, so that what an earlier "
                    f"writer with key={self.text!r} left cannot be removed. Wait until that is done."
                )
            if read_arrangement(self._store).sequence != sequence:
                return
            there = [name for name in names if os.path.lexists(f"{directory}/{name}")]
            for name in there:
                check_directory(f"{directory}/{name}")
                os.rename(f"{directory}/{name}", f"{directory}/{NEW_PREFIX}{name}")
            # first their names: one that came back after a loss of power would lack files
            sync_directory(directory)
        for name in there:
            shutil.rmtree(f"{directory}/{NEW_PREFIX}{name}", ignore_errors=True)

    def release(self) -> None:
        """Let others have the key."""
        if self._lock.is_held:
            with suppress(OSError), locked_store(self._store):
                # under the store's lock nobody is about to lock the file whose name goes
                os.unlink(self._path)
            self._lock.release()

    def leave(self) -> None:
        """Let others have the key, and wait for nothing: when a writer is collected, at any moment."""
        self._lock.release()
