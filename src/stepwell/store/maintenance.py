"""What changes sealed segments: one process at a time; what a killed one began is undone or finished by the next.

::

    pusht.well/
      maintenance             flock of the process that adds a column or compacts
      staging/                there while one of them runs; without a live owner it is cleaned up
        undo.json             {"feature": NAME} while a column is being added
        undo/SEGMENT/...      links of the segment's files that are replaced
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepwell.errors import CorruptSegmentError, StoreBusyError
from stepwell.files.file_locks import FileLock
from stepwell.json_text import open_json, seal_json
from stepwell.schema import is_feature_name
from stepwell.store.beneath import (
    check_directory,
    list_directory,
    open_file,
    read_file,
    remove_directory,
    system_errors,
)
from stepwell.store.layout import (
    SEGMENT_JSON,
    SEGMENTS,
    is_sealed_name,
    link_file,
    locked_store,
    remove_segments,
    replace_file,
)
from stepwell.store.manifests import read_store_manifest, replace_store_manifest
from stepwell.store.records import read_record
from stepwell.store.statistics import STATISTICS

__all__ = ["is_maintained", "keep_for_undo", "maintained_store", "plan_undo", "recover_maintenance"]

MAINTENANCE = "maintenance"
STAGING = "staging"
UNDO_JSON = "undo.json"
UNDO = "undo"
# files of a segment that a new column replaces
KEPT = (STATISTICS, SEGMENT_JSON)


@contextmanager
def maintained_store(store: str) -> Iterator[str]:
    """Hold the right to change sealed segments; yields the path of an empty staging directory."""
    with system_errors(store, is_writing=True), _held(store):
        _clean_up(store)
        os.mkdir(f"{store}/{STAGING}")
        try:
            yield f"{store}/{STAGING}"
        finally:
            _clean_up(store)


def is_maintained(store: str) -> bool:
    """Whether a column is being added or the store compacted; call it under the store's lock."""
    if not _is_staged(store):
        return False
    try:
        with _held(store):
            return False
    except StoreBusyError:
        return True


def _held(store: str) -> FileLock:
    try:
        return FileLock(open_file(f"{store}/{MAINTENANCE}", os.O_RDWR | os.O_CREAT), is_waiting=False)
    except BlockingIOError:
        raise StoreBusyError(
            f"a column is being added to {store}, or it is being compacted. Wait until that is done."
        ) from None


def _is_staged(store: str) -> bool:
    """Whether there is a staging directory; CorruptSegmentError when something else is in its place."""
    try:
        check_directory(f"{store}/{STAGING}")
    except FileNotFoundError:
        return False
    return True


def recover_maintenance(store: str) -> None:
    """Undo or finish what a killed process had begun; nothing when there is nothing, or its owner lives."""
    if not _is_staged(store):
        return
    try:
        with maintained_store(store):
            pass
    except StoreBusyError:
        return


def plan_undo(staging: str, feature: str) -> None:
    """Record that a column is being added: until the schema has it, a clean-up removes its files."""
    os.mkdir(f"{staging}/{UNDO}")
    replace_file(f"{staging}/{UNDO_JSON}", seal_json({"feature": feature}))


def keep_for_undo(staging: str, segment: str, files: tuple[str, ...]) -> None:
    """Keep a segment's files as they are, for a clean-up to put back; some may be missing."""
    kept = f"{staging}/{UNDO}/{Path(segment).name}"
    os.mkdir(kept)
    for file in files:
        with suppress(FileNotFoundError):
            link_file(f"{segment}/{file}", f"{kept}/{file}")


def _clean_up(store: str) -> None:
    staging = f"{store}/{STAGING}"
    if not _is_staged(store):
        return
    with locked_store(store):
        # one of the store's own files is replaced under the lock: these are of a killed process
        for left in os.listdir(store):
            if left.endswith(".tmp"):
                os.unlink(f"{store}/{left}")
        _undo_column(store, staging)
    hidden = read_store_manifest(store).hidden
    remove_segments(store, hidden)
    if hidden:
        with locked_store(store):
            replace_store_manifest(store, read_store_manifest(store).positions, ())
    # last, since a clean-up happens where it is there
    remove_directory(staging)


def _undo_column(store: str, staging: str) -> None:
    """Put back the segments' files of a column that did not get into the schema; may be done again."""
    path = f"{staging}/{UNDO_JSON}"
    try:
        feature = open_json(read_file(path), name=path).get("feature")
    except FileNotFoundError:
        return
    if not is_feature_name(feature):
        raise CorruptSegmentError(f"{path}: {feature!r:.100} is no name of a feature, so nothing was undone.")
    if feature in (read_record(store).schema or ()):
        return
    try:
        kept_segments = sorted(list_directory(f"{staging}/{UNDO}"))
    except FileNotFoundError:
        # power was lost before it was on the disk, and nothing is replaced before it is
        return
    for name in kept_segments:
        if not is_sealed_name(name):
            raise CorruptSegmentError(f"{staging}/{UNDO}/{name} is not named as a segment is, so it was not put back.")
        segment, kept = f"{store}/{SEGMENTS}/{name}", f"{staging}/{UNDO}/{name}"
        check_directory(segment)
        for file in list_directory(kept):
            if file not in KEPT:
                raise CorruptSegmentError(f"{kept}/{file} is none of {', '.join(KEPT)}, so it was not put back.")
            os.close(open_file(f"{kept}/{file}"))
            os.replace(f"{kept}/{file}", f"{segment}/{file}")
        for ending in (".npy", ".bin"):
            with suppress(FileNotFoundError):
                os.unlink(f"{segment}/{feature}{ending}")
