"""What changes sealed segments: one process at a time; what a killed one began is undone or finished by the next.

::

    pusht.well/
      maintenance             flock of who is adding a column or compacting
      staging/                there while one of them runs; who finds it without a live owner cleans up
        undo.json             {"feature": NAME} while a column is being added
        undo/SEGMENT/...      links of the segment's files that are replaced
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stepwell.codecs.file_locks import FileLock, lock_file
from stepwell.errors import StepwellError, StoreBusyError
from stepwell.store.arrangement import read_arrangement, replace_arrangement
from stepwell.store.columns import disk_error
from stepwell.store.layout import SEGMENTS, locked_store, replace_file
from stepwell.store.linking import link_file
from stepwell.store.manifests import open_json, seal_json
from stepwell.store.records import read_record

__all__ = ["is_maintained", "keep_for_undo", "maintained_store", "plan_undo", "recover_maintenance"]

MAINTENANCE = "maintenance"
STAGING = "staging"
UNDO_JSON = "undo.json"
UNDO = "undo"


@contextmanager
def maintained_store(store: str) -> Iterator[str]:
    """Be the only one to change sealed segments; yields the path of an empty staging directory.

    What an earlier owner left unfinished is cleaned up first, and what this one leaves, however it ends, last.

    Raises:
        StoreBusyError: somebody else is at it.
        DiskFullError: no space, whatever the caller was about to write.
    """
    try:
        with _held(store):
            _clean_up(store)
            os.mkdir(f"{store}/{STAGING}")
            try:
                yield f"{store}/{STAGING}"
            finally:
                _clean_up(store)
    except OSError as error:
        if isinstance(error, StepwellError):
            raise
        raise disk_error(error, 0, store) from error


def is_maintained(store: str) -> bool:
    """Whether somebody is adding a column or compacting; ask under the store's lock."""
    if not os.path.isdir(f"{store}/{STAGING}"):
        return False
    try:
        with _held(store):
            return False
    except StoreBusyError:
        return True


def _held(store: str) -> FileLock:
    try:
        return lock_file(f"{store}/{MAINTENANCE}", is_waiting=False)
    except BlockingIOError:
        raise StoreBusyError(
            f"a column is being added to {store}, or it is being compacted. Wait until that is done."
        ) from None


def recover_maintenance(store: str) -> None:
    """Undo or finish what a killed process had begun; nothing when there is nothing, or its owner lives."""
    if not os.path.isdir(f"{store}/{STAGING}"):
        return
    try:
        with maintained_store(store):
            pass
    except StoreBusyError:
        return


def plan_undo(staging: str, feature: str) -> None:
    """Take note that a column is being added: until the schema has it, its files are removed by whoever cleans up."""
    os.mkdir(f"{staging}/{UNDO}")
    replace_file(f"{staging}/{UNDO_JSON}", seal_json({"feature": feature}))


def keep_for_undo(staging: str, segment: str, files: tuple[str, ...]) -> None:
    """Keep a segment's files as they are, to be put back by whoever cleans up; some may be missing."""
    kept = f"{staging}/{UNDO}/{Path(segment).name}"
    os.mkdir(kept)
    for file in files:
        if os.path.exists(f"{segment}/{file}"):
            link_file(f"{segment}/{file}", f"{kept}/{file}")


def _clean_up(store: str) -> None:
    staging = f"{store}/{STAGING}"
    if not os.path.isdir(staging):
        return
    with locked_store(store):
        # whoever replaces one of the store's own files holds the lock: these are of a killed one
        for left in Path(store).glob("*.tmp"):
            left.unlink()
        _undo_column(store, staging)
    hidden = read_arrangement(store).hidden
    for name in hidden:
        _remove_segment(store, staging, name)
    if hidden:
        with locked_store(store):
            replace_arrangement(store, read_arrangement(store).positions, ())
    # last, since its being there is what calls for cleaning up
    shutil.rmtree(staging)


def _undo_column(store: str, staging: str) -> None:
    """Put back the segments' files of a column that did not get into the schema; may be done again."""
    try:
        feature = open_json(Path(staging, UNDO_JSON).read_bytes())["feature"]
    except FileNotFoundError:
        return
    if feature in (read_record(store).schema or ()):
        return
    for kept in sorted(Path(staging, UNDO).iterdir()):
        segment = Path(store, SEGMENTS, kept.name)
        for file in kept.iterdir():
            file.replace(segment / file.name)
        for suffix in (".npy", ".bin"):
            (segment / f"{feature}{suffix}").unlink(missing_ok=True)


def _remove_segment(store: str, staging: str, name: str) -> None:
    """Remove a segment's directory, first from where it is seen, then its files."""
    gone = f"{staging}/{name}.gone"
    try:
        os.rename(f"{store}/{SEGMENTS}/{name}", gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone)
