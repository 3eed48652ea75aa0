"""Sealing: an open segment becomes an immutable one. Used by a writer that is done and by the recovery of a dead one's.

Order of things, so that a kill between any two of them is repaired by doing it all again::

    trim files to what is committed → statistics, checksums → segment.json → remove progress → rename NAME.open to NAME

Every file is on the disk before ``segment.json`` is, and that before ``progress`` goes, whatever ``sync`` says: nobody
looks again at what is sealed, so a loss of power must not find a manifest of bytes that never arrived.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from stepwell.codecs import codec_class
from stepwell.errors import CorruptSegmentError, DecodeError, MissingDependencyError, SchemaError
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Schema
from stepwell.store.beneath import list_directory, open_file
from stepwell.store.column_file import begin_writeback, disk_error
from stepwell.store.episodes import EPISODE_DTYPE
from stepwell.store.layout import (
    CLOCK,
    EPISODES,
    METADATA,
    NEW_PREFIX,
    OPEN_SUFFIX,
    PROGRESS,
    SEGMENT_JSON,
    replace_file,
    sync_directory,
)
from stepwell.store.manifests import seal_json
from stepwell.store.npy import header_bytes, header_size
from stepwell.store.segments import Segment
from stepwell.store.statistics import FeatureStatistics, segment_statistics, statistics_json, write_statistics

__all__ = ["file_checksum", "remove_segment", "seal_segment", "trim_lines", "write_manifest"]

CHUNK_BYTES = 4 << 20


def seal_segment(
    path: str,
    schema: Schema,
    *,
    rows: int,
    episodes: int,
    sync: bool,
    has_statistics: bool = True,
    checksums: Mapping[str, tuple[int, int]] | None = None,
) -> str | None:
    """Seal the open segment at ``path``, whose writer has let go of it.

    Args:
        path: its directory, with the ``.open`` suffix.
        schema: the store's features.
        rows: committed rows.
        episodes: ended episodes, which hold all the rows.
        sync: whether to wait until its new name is on the disk, too.
        has_statistics: False leaves its statistics to who asks for them: those of a ring would go with it unread.
        checksums: bytes and CRC-32 of files, by name, that were computed as they were written; others are read.

    Returns:
        Its new path, or None when there was nothing in it and it was removed.

    Raises:
        CorruptSegmentError: a file is shorter than what was committed.
        DiskFullError: no space for the manifest; the segment stays open and can be sealed later.
    """
    if episodes == 0:
        remove_segment(path)
        return None
    try:
        trim_segment(path, schema, rows=rows, episodes=episodes)
        write_manifest(path, schema, sync=True, has_statistics=has_statistics, checksums=checksums)
    except OSError as error:
        raise disk_error(error, 0, path) from error
    sealed = path.removesuffix(OPEN_SUFFIX)
    with suppress(FileNotFoundError):
        os.unlink(f"{path}/{PROGRESS}")
    try:
        os.rename(path, sealed)
    except FileNotFoundError:
        # without its commit record it looks as if killed here: whoever opened the store just now has renamed it
        if not os.path.isdir(os.path.dirname(path)):
            raise
    if sync:
        sync_directory(os.path.dirname(sealed))
    return sealed


def remove_segment(path: str) -> None:
    """Remove a segment, first from where it is seen: half of one, left by a kill, could not be opened."""
    directory, name = os.path.split(path)
    gone = f"{directory}/{NEW_PREFIX}{name}"
    os.rename(path, gone)
    sync_directory(directory)
    # whoever recovers the store may be removing it as well
    shutil.rmtree(gone, ignore_errors=True)


def trim_segment(path: str, schema: Schema, *, rows: int, episodes: int) -> None:
    """Cut every file to what is committed, give ``.npy`` files their true headers, remove what a killed seal left."""
    for entry in list_directory(path):
        if entry.endswith(".tmp"):
            os.unlink(f"{path}/{entry}")
    _trim_npy(f"{path}/{EPISODES}", EPISODE_DTYPE, (), episodes)
    trim_lines(f"{path}/{METADATA}", episodes)
    if os.path.lexists(f"{path}/{CLOCK}"):
        _trim_npy(f"{path}/{CLOCK}", np.dtype("<i8"), (), rows)
    for name, feature in schema.items():
        stem = f"{path}/{name}"
        if feature.is_raw:
            _trim_npy(f"{stem}.npy", feature.np_dtype, feature.fixed_shape, rows)
            continue
        _trim_npy(f"{stem}.npy", np.dtype("<u8"), (), rows + 1)
        with open(open_file(f"{stem}.npy"), "rb") as file:
            file.seek(-8, os.SEEK_END)
            end = int.from_bytes(file.read(8), "little")
        _cut(f"{stem}.bin", end)


def write_manifest(
    path: str,
    schema: Schema,
    *,
    sync: bool,
    has_statistics: bool = True,
    checksums: Mapping[str, tuple[int, int]] | None = None,
) -> None:
    """Compute statistics and checksums of a trimmed segment and write its ``segment.json``; see `seal_segment`."""
    segment = Segment(path, schema, is_trimmed=True)
    statistics = _statistics(segment, schema) if has_statistics else {}
    if has_statistics:
        write_statistics(path, statistics)
    files: dict[str, Any] = {}
    names = sorted(set(list_directory(path)) - {SEGMENT_JSON, PROGRESS})
    if sync:
        # all are on their way before the first is waited for
        for name in names:
            _begin_writeback(f"{path}/{name}")
    for name in names:
        num_bytes, checksum = file_checksum(f"{path}/{name}", sync=sync, known=(checksums or {}).get(name))
        files[name] = {"bytes": num_bytes, "crc32": f"{checksum:08x}"}
    manifest = {
        "name": segment.name,
        "ordinal": segment.ordinal,
        "rows": segment.num_rows,
        "episodes": len(segment.records),
        "files": files,
        "statistics": statistics_json(statistics),
    }
    replace_file(f"{path}/{SEGMENT_JSON}", seal_json(manifest), sync=sync)


def _begin_writeback(path: str) -> None:
    descriptor = open_file(path)
    try:
        begin_writeback(descriptor, 0, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def _statistics(segment: Segment, schema: Schema) -> dict[str, FeatureStatistics]:
    """Return the statistics of every feature that can be decoded.

    A row that its codec refuses, or a codec that this process does not have, must not keep a store from opening: the
    feature's statistics are computed when they are asked for, and raise then. So are those of rows that lie in files of
    somebody else's, which nobody has asked to read yet.
    """
    found: dict[str, FeatureStatistics] = {}
    for name, feature in schema.items():
        with suppress(DecodeError, MissingDependencyError, SchemaError):
            if not issubclass(codec_class(feature), FileCodec):
                found |= segment_statistics(segment, schema, [name])
    return found


def file_checksum(path: str, *, sync: bool = False, known: tuple[int, int] | None = None) -> tuple[int, int]:
    """Return (bytes, crc32) of a file, read in pieces without the GIL; waits for the disk first when ``sync``.

    Args:
        path: of the file.
        sync: whether to wait until it is on the disk.
        known: what it has if it is as long as that; it is not read then.
    """
    num_bytes = checksum = 0
    with open(open_file(path), "rb", buffering=0) as file:
        if sync:
            os.fsync(file.fileno())
        size = os.fstat(file.fileno()).st_size
        if known is not None and known[0] == size:
            return known
        buffer = bytearray(max(1, min(CHUNK_BYTES, size)))
        view = memoryview(buffer)
        while got := file.readinto(buffer):
            checksum = zlib.crc32(view[:got], checksum)
            num_bytes += got
    return num_bytes, checksum


def _trim_npy(path: str, dtype: np.dtype[Any], shape: tuple[int, ...], rows: int) -> None:
    row_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    _cut(path, header_size(dtype, shape) + rows * row_bytes)
    with open(open_file(path, os.O_RDWR), "r+b") as file:
        file.write(header_bytes(dtype, shape, rows))


def trim_lines(path: str, lines: int) -> None:
    """Cut a file after its first ``lines`` lines."""
    with open(open_file(path), "rb") as file:
        end = sum(len(file.readline()) for _ in range(lines))
    _cut(path, end)


def _cut(path: str, num_bytes: int) -> None:
    descriptor = open_file(path, os.O_RDWR)
    try:
        size = os.fstat(descriptor).st_size
        if size < num_bytes:
            raise CorruptSegmentError(
                f'{path}: {num_bytes} bytes were committed, the file has {size}. Run "stepwell verify PATH".'
            )
        if size > num_bytes:
            os.ftruncate(descriptor, num_bytes)
    finally:
        os.close(descriptor)
