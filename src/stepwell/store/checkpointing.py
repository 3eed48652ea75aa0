"""Checkpoints: a store as it is now, in another directory, at the cost of links and a copy of what is recorded now."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.schema import Schema
from stepwell.store.beneath import list_directory, system_errors
from stepwell.store.building import built_store
from stepwell.store.column_file import SegmentFiles
from stepwell.store.commit import CommitRecord
from stepwell.store.layout import (
    DELETED,
    LOCK,
    OPEN_SUFFIX,
    PROGRESS,
    SEGMENTS,
    STORE_JSON,
    copy_file,
    link_file,
    locked_store,
)
from stepwell.store.manifests import StoreManifest, ordered_segments, replace_store_manifest
from stepwell.store.records import read_record
from stepwell.store.sealing import recover_store
from stepwell.store.segments import Segment
from stepwell.store.writer_keys import write_note

if TYPE_CHECKING:
    from stepwell.store.store import Store

__all__ = ["checkpoint_store"]


def checkpoint_store(store: Store, path: str | os.PathLike[str], *, add: Callable[[str], None] | None = None) -> Path:
    """Make a store at ``path`` that is this one as it is on the disk now, with the same uuid and the same step ids.

    Sealed segments are hard links (copies on another file system). Of segments that are being recorded the committed
    rows are copied and sealed; an open episode ends there, marked ``interrupted``, as if its writer had died now.

    Args:
        store: open for writing; its writers may go on.
        path: where; nothing may be there. It appears whole or not at all.
        add: called with the directory before it appears, to put files of other layers beside the store's own.

    Returns:
        The absolute path.

    Raises:
        StoreExistsError: something is at the path.
        DiskFullError: no space; nothing is left at the path.
    """
    store.check_writable("checkpoint it")
    source = str(store.path)
    with built_store(path) as target, system_errors(target, is_writing=True):
        # under the lock no column is added, no segment begun and none compacted away
        with locked_store(source):
            for file in (STORE_JSON, DELETED):
                with suppress(FileNotFoundError):
                    link_file(f"{source}/{file}", f"{target}/{file}")
            copy_file(f"{source}/{LOCK}", f"{target}/{LOCK}")
            schema = read_record(source).schema
            if schema is not None:
                _take_segments(source, target, schema)
        recover_store(target, schema)
        if add is not None:
            add(target)
    return Path(path).absolute()


def _take_segments(source: str, target: str, schema: Schema) -> None:
    shown, manifest = ordered_segments(source)
    for name in shown:
        _take_segment(f"{source}/{SEGMENTS}/{name}", f"{target}/{SEGMENTS}/{name}", schema)
    if manifest.sequence or manifest.positions:
        replace_store_manifest(target, manifest.positions, (), new_keys=_keys_of(manifest, shown))


def _keys_of(manifest: StoreManifest, shown: Iterable[str]) -> dict[str, str]:
    return {name: manifest.keys[name] for name in shown if name in manifest.keys}


def _take_segment(base: str, target: str, schema: Schema) -> None:
    """Take a segment, under its open name or its sealed one; an empty one vanishes when its writer is closed."""
    try:
        segment = Segment(base + OPEN_SUFFIX, schema)
        if segment.is_sealed:
            _link_sealed(str(segment.path), target)
        else:
            _copy_committed(segment, target + OPEN_SUFFIX, schema)
    except FileNotFoundError:
        # sealed and renamed before, or meanwhile
        for half in (target, target + OPEN_SUFFIX):
            shutil.rmtree(half, ignore_errors=True)
        if os.path.isdir(base):
            _link_sealed(base, target)


def _link_sealed(directory: str, target: str) -> None:
    os.mkdir(target)
    for name in sorted(list_directory(directory)):
        if name != PROGRESS and not name.endswith(".tmp"):
            link_file(f"{directory}/{name}", f"{target}/{name}")


def _copy_committed(segment: Segment, target: str, schema: Schema) -> None:
    """Copy what an open segment has committed, as the segment of a dead writer."""
    os.mkdir(target)
    rows, records, clock = segment.num_rows, segment.records, segment.clock_map()
    with SegmentFiles(target, schema, has_clock=clock is not None) as files:
        for name in schema:
            files.append_from(segment, name, [(0, rows)])
        if files.stamps is not None and clock is not None:
            files.stamps.append_rows(clock[:rows], rows)
        files.append_episodes(records, b"".join(segment.metadata_bytes().splitlines(keepends=True)[: len(records)]))
        files.finish()
    if segment.note is not None:
        write_note(target, segment.note)
    progress = CommitRecord.create(f"{target}/{PROGRESS}", is_owned=False)
    progress.carry(*segment.carried)
    progress.commit_episode(len(records), rows)
    progress.close()
