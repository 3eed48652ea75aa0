"""Recovery: what a killed writer left is trimmed to what it had committed, and sealed."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from stepwell.errors import CorruptSegmentError, LeftOutWarning
from stepwell.schema import Schema
from stepwell.store.beneath import check_directory, list_directory, open_file
from stepwell.store.column_file import write_all
from stepwell.store.commit import CommitRecord
from stepwell.store.episodes import EPISODE_DTYPE, num_ended_rows
from stepwell.store.ids import step_id
from stepwell.store.key_notes import read_note
from stepwell.store.layout import (
    EPISODES,
    METADATA,
    NEW_PREFIX,
    OPEN_SUFFIX,
    PROGRESS,
    SEGMENTS,
    locked_store,
    mend_ordinals,
    parse_segment_name,
)
from stepwell.store.maintenance import recover_maintenance
from stepwell.store.manifests import has_listed_files
from stepwell.store.npy import header_size
from stepwell.store.owners import Recover, is_shared, is_silent
from stepwell.store.records import read_record
from stepwell.store.sealing import remove_segment, seal_segment, trim_lines
from stepwell.store.segment_writer import encode_metadata

__all__ = ["recover_store"]


def recover_store(store: str, schema: Schema | None, *, recover: Recover = "dead") -> list[str]:
    """Seal every open segment whose writer is dead; those of live writers are left alone.

    Any number of processes may do so at once: the commit record's lock says who does.

    Args:
        store: path of the store.
        schema: its features; None for a store that has no steps yet.
        recover: what of which writers, see `stepwell.store.owners.may_take_over`.

    Returns:
        The names of the segments that were sealed or removed.

    Raises:
        CorruptSegmentError: a file lost bytes that were committed.
        DiskFullError: no space to seal; nothing is lost, the next open tries again.
    """
    recovered = []
    recover_maintenance(store)
    entries = list_directory(f"{store}/{SEGMENTS}")
    mend_ordinals(store, entries)
    if any(entry.startswith(NEW_PREFIX) for entry in entries):
        with locked_store(store):
            # under the lock nobody is making a segment, so whoever began this one is dead
            for entry in list_directory(f"{store}/{SEGMENTS}"):
                if entry.startswith(NEW_PREFIX):
                    shutil.rmtree(f"{store}/{SEGMENTS}/{entry}", ignore_errors=True)
    for path in _open_segments(store, entries):
        if schema is not None and _recover(path, schema, recover, has_statistics=read_record(store).capacity is None):
            recovered.append(os.path.basename(path).removesuffix(OPEN_SUFFIX))
    return recovered


def _open_segments(store: str, entries: list[str]) -> Iterator[str]:
    for entry in sorted(entry for entry in entries if entry.endswith(OPEN_SUFFIX)):
        parsed = parse_segment_name(entry)
        if parsed is not None and not parsed[2]:
            yield f"{store}/{SEGMENTS}/{entry}"


def _recover(path: str, schema: Schema, recover: Recover, *, has_statistics: bool) -> bool:
    """Recover one open segment; False when its writer lives or somebody else has done it."""
    try:
        check_directory(path)
        progress = CommitRecord.take_over(f"{path}/{PROGRESS}", recover)
    except FileNotFoundError:
        return _finish(path, recover)
    if progress is None:
        return False
    try:
        if not os.path.isdir(path):
            return False
        rows, episodes = progress.rows, progress.episodes
        if progress.num_unsure > 0:
            warnings.warn(
                f"{path}: {progress.num_unsure} rows more were recorded; nothing says that they were on the disk when "
                "the machine stopped, or when the files were copied, so they are left out. Open a store where it was "
                "recorded before you copy it.",
                LeftOutWarning,
                stacklevel=5,
            )
        if rows or episodes:
            rows, episodes = _close_open_episode(path, rows, episodes, progress)
            progress.commit_episode(episodes, rows)
        seal_segment(path, schema, rows=rows, episodes=episodes, sync=True, has_statistics=has_statistics)
        progress.mark_sealed()
        return True
    finally:
        progress.close()


def _finish(path: str, recover: Recover) -> bool:
    """Finish or remove a segment whose commit record is gone, or never reached the disk; False when it is not there.

    With a manifest, and all that it lists, it is sealed but for its name. Else a loss of power came before anything
    of it was promised.
    """
    if has_listed_files(path):
        with suppress(FileNotFoundError):
            os.unlink(f"{path}/{PROGRESS}")
    elif not os.path.isdir(path) or (is_shared(path) and not (recover == "silent" and is_silent(path))):
        # there, a machine elsewhere may have written what has not come here yet
        return False
    else:
        return _removed(path)
    try:
        os.rename(path, path.removesuffix(OPEN_SUFFIX))
    except FileNotFoundError:
        return False
    return True


def _removed(path: str) -> bool:
    try:
        remove_segment(path)
    except FileNotFoundError:
        return False
    return True


def _close_open_episode(path: str, rows: int, episodes: int, progress: CommitRecord) -> tuple[int, int]:
    """Give the committed steps of an unended episode a record, marked interrupted; returns (rows, episodes)."""
    header, size = header_size(EPISODE_DTYPE, ()), EPISODE_DTYPE.itemsize
    descriptor = open_file(f"{path}/{EPISODES}", os.O_RDWR)
    try:
        last = os.pread(descriptor, size, header + (episodes - 1) * size) if episodes else b""
        if len(last) != (size if episodes else 0):
            raise CorruptSegmentError(
                f"{path}/{EPISODES}: {episodes} episodes were committed, the file ends before. "
                'Run "stepwell verify PATH".'
            )
        ended = num_ended_rows(np.frombuffer(last, EPISODE_DTYPE))
        if rows <= ended:
            return ended, episodes
        ordinal, _, _ = parse_segment_name(os.path.basename(path)) or (0, "", False)
        record = np.zeros((), EPISODE_DTYPE)
        record["start"], record["length"], record["rows"] = ended, rows - ended, rows - ended
        record["origin"], record["interrupted"] = step_id(ordinal, ended), True
        if ended == 0 and progress.carried[0]:
            record["cut"], record["origin"] = progress.carried
        # a file's time stamp is that of a slow clock, and stores into maps may leave none; episodes are in order
        before = int(np.frombuffer(last, EPISODE_DTYPE)["time_ns"].max(initial=progress.opened_ns))
        record["time_ns"] = max(os.stat(f"{path}/{PROGRESS}").st_mtime_ns, before)
        note = read_note(path)
        if note is not None:
            ended_records = os.pread(descriptor, episodes * size, header)
            record["origin"] = note.next_origin(np.frombuffer(ended_records, EPISODE_DTYPE))
        trim_lines(f"{path}/{METADATA}", episodes)
        with open(open_file(f"{path}/{METADATA}", os.O_WRONLY | os.O_APPEND), "ab") as file:
            file.write(encode_metadata({}))
        write_all(descriptor, record.tobytes(), header + episodes * size, path)
    finally:
        os.close(descriptor)
    return rows, episodes + 1
