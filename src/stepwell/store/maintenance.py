"""Changes of sealed segments: by one process at a time; the next one undoes or finishes the work of a killed one.

::

    pusht.well/
      maintenance             flock of the process that adds a column or compacts
      staging/                there while one of them runs; without a live owner it is cleaned up
        undo.json             {"feature": NAME} while a column is being added
        undo/SEGMENT/...      links of the segment's files that are replaced

``deleted.npy`` holds ids of steps, and a checksum: the id of an episode's first step hides all of it; that of a later
one hides the steps before it, which a ring had evicted when its segments were copied or linked into another store.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, EpisodeNotFoundError, StoreBusyError
from stepwell.files.file_locks import FileLock
from stepwell.json_text import open_json, seal_json
from stepwell.schema import is_feature_name
from stepwell.store.beneath import (
    check_directory,
    list_directory,
    open_file,
    read_again,
    read_file,
    remove_directory,
    system_errors,
)
from stepwell.store.episodes import GOES_ON
from stepwell.store.layout import (
    DELETED,
    SEGMENT_JSON,
    SEGMENTS,
    is_sealed_name,
    link_file,
    locked_store,
    name_of_key,
    remove_segments,
    replace_file,
    step_id,
)
from stepwell.store.manifests import read_store_manifest, replace_store_manifest, shown_segments
from stepwell.store.records import read_record
from stepwell.store.statistics import STATISTICS

if TYPE_CHECKING:
    from stepwell.store.episodes import EpisodeTable
    from stepwell.store.snapshot import SegmentList
    from stepwell.store.store import Store

__all__ = [
    "add_deleted",
    "delete_episodes",
    "episode_indices",
    "hidden_steps",
    "is_maintained",
    "keep_for_undo",
    "maintained_store",
    "moved_ids",
    "plan_undo",
    "read_deleted",
    "recover_maintenance",
    "replace_deleted",
]

Ids = npt.NDArray[np.int64]
TAIL = re.compile(rb"\ncrc32 ([0-9a-f]{8})\n")
TAIL_BYTES = len(b"\ncrc32 00000000\n")
MAINTENANCE = "maintenance"
STAGING = "staging"
UNDO_JSON = "undo.json"
UNDO = "undo"
# files of a segment that a new column replaces
KEPT = (STATISTICS, SEGMENT_JSON)


def delete_episodes(store: Store, episodes: Any) -> int:
    """Hide episodes of a store, in every process that refreshes."""
    store.check_writable("delete episodes")
    segments, everything = store.listing
    table = everything.take(episode_indices(store, everything, episodes))
    if table.is_open.any():
        raise StoreBusyError("an episode that is still being recorded cannot be deleted. End or discard it first.")
    names = {name_of_key(key) for key in segments.keys[np.unique(table.segment)].tolist()}
    ids = _first_ids(segments, table)
    if store.capacity is not None:
        shown = _first_ids(segments, everything)
        ids = np.append(ids, np.setdiff1d(_pieces_before(segments, table), shown))
    path = str(store.path)
    with locked_store(path):
        gone = names - shown_segments(path)[0].keys()
        if gone:
            raise StoreBusyError(
                f"{path} was compacted since it was refreshed, or evicted steps: {', '.join(sorted(gone))} is gone, "
                "and indices may mean other episodes. Call store.refresh() and find them again."
            )
        if len(table):
            replace_deleted(path, np.union1d(read_deleted(path), ids))
    store.refresh()
    return len(table)


def add_deleted(store: str, ids: Ids) -> None:
    """Hide the episodes that began at these steps, too."""
    with locked_store(store):
        replace_deleted(store, np.union1d(read_deleted(store), ids))


def _first_ids(segments: SegmentList, table: EpisodeTable) -> Ids:
    """Return the ids of the rows at which ended episodes were begun; a ring may show only a later part of them."""
    table = table.take(~table.is_open)
    ids = np.empty(len(table), np.int64)
    order = np.argsort(table.segment, kind="stable")
    numbers, heads = np.unique(table.segment[order], return_index=True)
    for number, mine in zip(numbers.tolist(), np.split(order, heads[1:]), strict=False):
        segment = segments[number]
        ids[mine] = step_id(segment.ordinal, 0) | segment.records["start"][table.record[mine]]
    return ids


def _pieces_before(segments: SegmentList, table: EpisodeTable) -> Ids:
    """Return the ids of pieces of episodes that go on in later pieces, of episodes that lack steps in a ring."""
    origins = table.origin[table.skipped > 0]
    found = [np.empty(0, np.int64)]
    for segment in segments if len(origins) else ():
        records = segment.records
        starts = records["start"][np.isin(records["origin"], origins) & (records["cut"] >= GOES_ON)]
        found.append(step_id(segment.ordinal, 0) | starts)
    return np.concatenate(found)


def hidden_steps(ids: Ids, lengths: Ids, deleted: Ids) -> tuple[npt.NDArray[np.bool_], Ids]:
    """Return which episodes are deleted, bool [E], and how many steps at the beginning of the others are hidden."""
    is_deleted, hidden = np.isin(ids, deleted), np.zeros(len(ids), np.int64)
    owners, steps = _owners(ids, lengths, deleted)
    np.maximum.at(hidden, owners, steps)
    return is_deleted, hidden


def moved_ids(deleted: Ids, before: Ids, lengths: Ids, after: Ids) -> Ids:
    """Return those of ``deleted`` (int64 [n]) that lie in some episodes, as ids of where these are now."""
    owners, steps = _owners(before, lengths, deleted)
    found: Ids = after[owners] + steps
    return found


def _owners(ids: Ids, lengths: Ids, steps: Ids) -> tuple[Ids, Ids]:
    """Return the episode that each step lies in, and how many of its steps come before; without steps in none."""
    if not len(ids):
        return np.empty((2, 0), np.int64)[0], np.empty(0, np.int64)
    order = np.argsort(ids, kind="stable")
    owners = order[np.searchsorted(ids[order], steps, side="right") - 1]
    before = steps - ids[owners]
    is_in = (before >= 0) & (before < lengths[owners])
    return owners[is_in], before[is_in]


def read_deleted(store: str) -> Ids:
    """Return the ids of the first steps of a store's deleted episodes, and those that hide an episode's first steps."""
    path = f"{store}/{DELETED}"
    try:
        data = read_file(path)
    except FileNotFoundError:
        return np.empty(0, np.int64)
    tail = TAIL.fullmatch(data[-TAIL_BYTES:])
    if tail is not None:
        data = data[:-TAIL_BYTES]
        stored, computed = tail[1].decode(), f"{zlib.crc32(data):08x}"
        if stored != computed:
            raise CorruptSegmentError(
                f'{path} is damaged: crc32 {stored} stored, {computed} computed. Run "stepwell verify PATH".'
            )
    buffer = io.BytesIO(data)

    def read_header() -> tuple[tuple[int, int], tuple[int, ...], np.dtype[Any]]:
        buffer.seek(0)
        version = np.lib.format.read_magic(buffer)
        shape, _, dtype = np.lib.format.read_array_header_1_0(buffer)
        return version, shape, dtype

    try:
        version, shape, dtype = read_again(read_header)
    except Exception as error:  # numpy's parser of headers raises errors of many kinds
        raise CorruptSegmentError(f'{path} is damaged: {error}. Run "stepwell verify PATH".') from error
    num_bytes = len(data) - buffer.tell()
    if version != (1, 0) or dtype != np.int64 or len(shape) != 1 or shape[0] * dtype.itemsize != num_bytes:
        raise CorruptSegmentError(
            f"{path} is damaged: {len(data)} bytes are not one array of step ids ({dtype} {shape}). "
            'Run "stepwell verify PATH".'
        )
    return np.frombuffer(data, np.int64, offset=buffer.tell()).copy()


def replace_deleted(store: str, ids: Ids) -> None:
    """Replace ``deleted.npy``; the caller holds the store's lock."""
    buffer = io.BytesIO()
    np.save(buffer, np.unique(ids).astype(np.int64))
    data = buffer.getvalue()
    # np.load reads the array and leaves what follows it alone
    replace_file(f"{store}/{DELETED}", data + b"\ncrc32 %08x\n" % zlib.crc32(data))


def episode_indices(store: Store, table: EpisodeTable, episodes: Any) -> Ids:
    """Return which episodes an index, indices, a slice or a bool mask means: distinct, each 0 .. len(table) - 1."""
    count = len(table)
    if isinstance(episodes, slice):
        return np.arange(count)[episodes]
    chosen = np.atleast_1d(np.asarray(episodes))
    if chosen.dtype == bool and chosen.shape == (count,):
        return np.flatnonzero(chosen)
    if chosen.size == 0:
        return np.empty(0, np.int64)
    if chosen.dtype.kind not in "iu" or chosen.ndim != 1:
        raise EpisodeNotFoundError(
            f"episodes {episodes!r} are no indices. Give integers, a slice, or a bool mask of {count}."
        )
    wrong = chosen[(chosen < -count) | (chosen >= count)]
    if len(wrong):
        raise EpisodeNotFoundError(f"no episode {wrong[0]}. {store.path} has {count}: {-count} to {count - 1}.")
    found: Ids = np.unique(chosen.astype(np.int64) % count)
    return found


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
