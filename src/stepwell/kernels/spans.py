"""Rows of one size copied, and pages of maps announced to the system before they are read.

Notes:
    Cold pages must never fault one by one (1,200 rows/s measured): announcing all windows of a batch first lets the
    disk work on them at once (20,700 rows/s).
"""

from __future__ import annotations

from typing import Any

from numba import types

from stepwell.kernels.kernel import inlined, kernel
from stepwell.kernels.memory import load_u64, memcpy, memset, prefetch

__all__ = ["announce", "copy_spans", "take_rows"]

LINE_BYTES = 64
# see stepwell.kernels.gather, which asks for cache lines in the same way
LINES_AHEAD = 32
LINES_UNDER_WAY = 144
MAX_AHEAD = 48

PAGE_BYTES = 4096
MADV_WILLNEED = 3
_madvise = types.ExternalFunction("madvise", types.int32(types.int64, types.int64, types.int32))


@kernel
def take_rows(  # noqa: PLR0917
    offset_bases: Any, blob_bases: Any, blob_sizes: Any, segments: Any, rows: Any, out: Any
) -> Any:
    """Copy encoded rows that are all of one size; return -1, or the index of the first that is not, or is elsewhere.

    Args:
        offset_bases: int64 [S], addresses of the uint64 offsets of each segment.
        blob_bases: int64 [S], addresses of the encoded rows of each segment.
        blob_sizes: int64 [S], bytes of the mapped file of each segment.
        segments: int64 [m].
        rows: int64 [m], -1 for no row at all: its bytes are zeros.
        out: uint8 [m, size], C-contiguous; written.
    """
    target, size = out.ctypes.data, out.shape[1]
    # rows of one size lie, but for those that have no value, where their number says
    for i in range(rows.size):
        prefetch(offset_bases[segments[i]] + 8 * rows[i])
        prefetch(blob_bases[segments[i]] + size * rows[i])
    for i in range(rows.size):
        if rows[i] < 0:
            memset(target, 0, size)
        else:
            segment = segments[i]
            offsets = offset_bases[segment] + 8 * rows[i]
            begin, end = load_u64(offsets), load_u64(offsets + 8)
            if begin < 0 or end - begin != size or end > blob_sizes[segment]:
                return i
            memcpy(target, blob_bases[segment] + begin, size)
        target += size
    return -1


@inlined
def fetch_lines(first: Any, num_bytes: Any) -> None:
    """Ask for the cache lines of a row."""
    for line in range(first & -LINE_BYTES, first + num_bytes, LINE_BYTES):
        prefetch(line)


@kernel
def copy_spans(files: Any, sizes: Any, offsets: Any, bases: Any, file_sizes: Any, out: Any) -> Any:  # noqa: PLR0917
    """Copy spans of mapped files that are all of one size; return -1, or the index of the first that cannot be.

    Args:
        files: uint32 [m], numbers in ``bases``.
        sizes: uint32 [m], bytes.
        offsets: int64 [m].
        bases: int64 [F], addresses of the files; 0 where one is not mapped.
        file_sizes: int64 [F], bytes.
        out: uint8 [m, size], C-contiguous; written.
    """
    target, size = out.ctypes.data, out.shape[1]
    for i in range(files.size):
        if (
            files[i] >= bases.size
            or sizes[i] != size
            or bases[files[i]] == 0
            or offsets[i] < 0
            or offsets[i] > file_sizes[files[i]] - size
        ):
            return i
    ahead_bytes = min(size, LINES_AHEAD * LINE_BYTES)
    ahead = min(MAX_AHEAD, LINES_UNDER_WAY // (ahead_bytes // LINE_BYTES + 1))
    for i in range(min(ahead, files.size)):
        fetch_lines(bases[files[i]] + offsets[i], ahead_bytes)
    i = 0
    while i < files.size:
        # rows that follow each other are one copy, which the processor reads ahead of by itself
        stop = i + 1
        while stop < files.size and files[stop] == files[i] and offsets[stop] == offsets[stop - 1] + size:
            stop += 1
        if stop == i + 1 and i + ahead < files.size:
            fetch_lines(bases[files[i + ahead]] + offsets[i + ahead], ahead_bytes)
        num_bytes = size * (stop - i)
        memcpy(target, bases[files[i]] + offsets[i], num_bytes)
        target += num_bytes
        i = stop
    return -1


@kernel
def announce(addresses: Any, sizes: Any) -> None:
    """Tell the operating system that these bytes are about to be read (MADV_WILLNEED), without waiting for them."""
    for i in range(addresses.size):
        if sizes[i] > 0:
            first = addresses[i] & -PAGE_BYTES
            _madvise(first, addresses[i] + sizes[i] - first, MADV_WILLNEED)
