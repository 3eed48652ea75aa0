"""Steps that are not shown any more: ``deleted.npy`` holds ids of steps, and a checksum.

The id of an episode's first step hides all of it; that of a later one hides the steps before it: what a ring had
evicted when its segments were copied or linked into another store.
"""

from __future__ import annotations

import io
import re
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, EpisodeNotFoundError, StoreBusyError
from stepwell.store.beneath import read_file
from stepwell.store.episodes import GOES_ON
from stepwell.store.layout import DELETED, locked_store, name_of_key, replace_file, step_id
from stepwell.store.manifests import shown_segments
from stepwell.store.npy import read_again

if TYPE_CHECKING:
    from stepwell.store.episodes import EpisodeTable
    from stepwell.store.snapshot import SegmentList
    from stepwell.store.store import Store

__all__ = [
    "add_deleted",
    "delete_episodes",
    "episode_indices",
    "hidden_steps",
    "moved_ids",
    "read_deleted",
    "replace_deleted",
]

Ids = npt.NDArray[np.int64]
TAIL = re.compile(rb"\ncrc32 ([0-9a-f]{8})\n")
TAIL_BYTES = len(b"\ncrc32 00000000\n")


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
