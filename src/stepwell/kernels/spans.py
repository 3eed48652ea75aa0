"""Where encoded rows lie in their file, and a word to the kernel about pages that will be read.

Notes:
    Cold pages must never fault one by one (1,200 rows/s measured): announcing all windows of a batch first lets the
    disk work on them at once (20,700 rows/s).
"""

from __future__ import annotations

from typing import Any

from numba import njit, types

from stepwell.kernels.memory import load_u64

__all__ = ["announce", "spans"]

PAGE_BYTES = 4096
MADV_WILLNEED = 3
_madvise = types.ExternalFunction("madvise", types.int32(types.int64, types.int64, types.int32))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def spans(offset_bases: Any, blob_sizes: Any, segments: Any, rows: Any, begins: Any, ends: Any) -> Any:  # noqa: PLR0917
    """Write where each encoded row begins and ends in its file; return -1, or the index of the first bad row.

    Args:
        offset_bases: int64 [S], addresses of the uint64 offsets of each segment; 0 where rows have a fixed size.
        blob_sizes: int64 [S], bytes of the mapped file of each segment.
        segments: int64 [m].
        rows: int64 [m], -1 for no row at all: its span is empty.
        begins: int64 [m], written.
        ends: int64 [m], written.
    """
    for i in range(rows.size):
        begins[i] = 0
        ends[i] = 0
        if rows[i] < 0:
            continue
        offsets = offset_bases[segments[i]]
        begin = load_u64(offsets + 8 * rows[i])
        end = load_u64(offsets + 8 * rows[i] + 8)
        if begin < 0 or end < begin or end > blob_sizes[segments[i]]:
            return i
        begins[i] = begin
        ends[i] = end
    return -1


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def announce(addresses: Any, sizes: Any) -> None:
    """Tell the operating system that these bytes are about to be read (MADV_WILLNEED), without waiting for them.

    Args:
        addresses: int64 [m], inside maps of files.
        sizes: int64 [m], bytes.
    """
    for i in range(addresses.size):
        if sizes[i] > 0:
            first = addresses[i] & -PAGE_BYTES
            _madvise(first, addresses[i] + sizes[i] - first, MADV_WILLNEED)
