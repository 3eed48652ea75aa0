"""Which writer's key a segment has: ``key.json``, in each segment of a writer with a key.

::

    {"key": "task-17",
     "episodes": 12,           how many episodes that writer kept in segments before this one
     "crc32": "9a1f0c22"}

It is there before the segment is, and stays when that is sealed. With the key and its number among the episodes that
its writer kept, an episode has the same ``origin`` whenever its task runs, and however often.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepwellError
from stepwell.store.beneath import open_file, read_file
from stepwell.store.column_file import write_all
from stepwell.store.layout import OPEN_SUFFIX
from stepwell.store.manifests import RESTORE, open_json, seal_json

__all__ = ["KEY", "MAX_KEY", "KeyNote", "check_key", "find_note", "read_note", "write_note"]

Int64s = npt.NDArray[np.int64]
KEY = "key.json"
MAX_KEY = 200


@dataclass(frozen=True, slots=True)
class KeyNote:
    """What ``key.json`` says.

    Args:
        key: of the writer.
        num_before: episodes that it kept in segments before this one.
    """

    key: str
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
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        write_all(descriptor, seal_json({"key": note.key, "episodes": note.num_before}), 0, path)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
