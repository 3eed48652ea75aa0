"""The headers of a tar archive: where its members lie, and what they are called."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel

__all__ = ["BAD_CHECKSUM", "BAD_NUMBER", "BAD_RECORD", "COMPLETE", "MORE", "SPARSE", "TAR_BLOCK", "walk_headers"]

TAR_BLOCK = 512
# what stopped it: the window's end, the mark of the archive's end, or a header that cannot be
MORE, COMPLETE, BAD_CHECKSUM, BAD_NUMBER, BAD_RECORD, SPARSE = range(6)
MAX_LONG_BYTES = 1 << 20
MAX_SIZE = 1 << 62

# typeflags: what names the next member; what has no data, whatever its size field says; plain files
LONG_NAME, LONG_LINK, PAX, SOLARIS_PAX, GLOBAL_PAX = 76, 75, 120, 88, 103
FIRST_WITHOUT_DATA, LAST_WITHOUT_DATA = 49, 54
OLD_FILE, FILE, CONTIGUOUS, GNU_SPARSE = 0, 48, 55, 83
SPACE, SLASH, NEWLINE, EQUALS = 32, 47, 10, 61
NAME, SIZE, CHECKSUM, KIND, MAGIC, PREFIX = 0, 124, 148, 156, 257, 345


@kernel
def _number(window: Any, place: int, length: int) -> Any:
    """Return a number of a header's field, octal digits or GNU's binary form; -1 where it is none."""
    value = 0
    if window[place] & 0x80:
        if window[place] != 0x80:
            return -1
        for k in range(1, length):
            if value >= MAX_SIZE >> 8:
                return -1
            value = (value << 8) | int(window[place + k])
        return value
    k = 0
    while k < length and window[place + k] == SPACE:
        k += 1
    while k < length and window[place + k] not in (SPACE, 0):
        digit = int(window[place + k]) - 48
        if not 0 <= digit <= 7:
            return -1
        value = value * 8 + digit
        k += 1
    return value


@kernel
def _is_checksum_right(window: Any, place: int) -> Any:
    unsigned, signed = 0, 0
    for k in range(TAR_BLOCK):
        byte = SPACE if CHECKSUM <= k < CHECKSUM + 8 else int(window[place + k])
        unsigned += byte
        # some archivers of old add them up as signed
        signed += byte - 256 if byte > 127 else byte
    return _number(window, place + CHECKSUM, 8) in (unsigned, signed)


@kernel
def _is_empty(window: Any, place: int) -> Any:
    for k in range(TAR_BLOCK):  # noqa: SIM110  numba compiles no generators
        if window[place + k]:
            return False
    return True


@kernel
def _is_key(window: Any, place: int, length: int, key: Any) -> Any:
    if length != len(key):
        return False
    for k in range(length):  # noqa: SIM110  numba compiles no generators
        if window[place + k] != key[k]:
            return False
    return True


PATH_KEY = np.frombuffer(b"path", np.uint8)
SIZE_KEY = np.frombuffer(b"size", np.uint8)
SPARSE_KEY = np.frombuffer(b"GNU.sparse", np.uint8)


@kernel
def _read_pax(window: Any, place: int, stop: int, found: Any) -> Any:
    """Take name and size from the records of a PAX header: ``LENGTH KEY=VALUE`` and a line feed each.

    Args:
        window: bytes.
        place: of the first record.
        stop: one past the last.
        found: int64 [3], place and length of the name, size; written where there are records of them.

    Returns:
        MORE, or what is wrong.
    """
    while place < stop and window[place] != 0:
        length, digit = 0, place
        while digit < stop and 48 <= window[digit] <= 57 and length < MAX_LONG_BYTES:
            length = length * 10 + int(window[digit]) - 48
            digit += 1
        end = place + length
        if digit >= stop or window[digit] != SPACE or end > stop or end <= digit + 2 or window[end - 1] != NEWLINE:
            return BAD_RECORD
        key = digit + 1
        value = key
        while value < end - 1 and window[value] != EQUALS:
            value += 1
        if value == end - 1:
            return BAD_RECORD
        if _is_key(window, key, min(value - key, len(SPARSE_KEY)), SPARSE_KEY):
            return SPARSE
        if _is_key(window, key, value - key, PATH_KEY):
            found[0], found[1] = value + 1, end - value - 2
        if _is_key(window, key, value - key, SIZE_KEY):
            size = 0
            for k in range(value + 1, end - 1):
                if not 48 <= window[k] <= 57 or size >= MAX_SIZE // 10:
                    return BAD_NUMBER
                size = size * 10 + int(window[k]) - 48
            found[2] = size
        place = end
    return MORE


@kernel
def _copy_text(window: Any, place: int, length: int, names: Any, end: int) -> Any:
    """Append a text up to its first zero to `names`; returns where that ends."""
    for k in range(length):
        if window[place + k] == 0:
            break
        names[end] = window[place + k]
        end += 1
    return end


@kernel
def _copy_name(window: Any, header: int, long: Any, names: Any, end: int) -> Any:
    """Append the name of a member to `names`; returns where it ends."""
    if long[0] >= 0:
        return _copy_text(window, long[0], long[1], names, end)
    # POSIX has a zero behind "ustar", and a prefix; GNU has a space, and other fields in its place
    is_posix = window[header + MAGIC] == 117 and window[header + MAGIC + 5] == 0
    if is_posix and window[header + PREFIX] != 0:
        end = _copy_text(window, header + PREFIX, 155, names, end)
        names[end] = SLASH
        end += 1
    return _copy_text(window, header + NAME, 100, names, end)


@kernel
def _find_header(window: Any, place: int, long: Any) -> Any:  # noqa: PLR0911  one for each reason to stop
    """Read what goes before a member's header: long names and PAX records.

    Args:
        window: bytes.
        place: of the first header.
        long: int64 [3], see `_read_pax`; written.

    Returns:
        Where the member's own header is, and what stopped it: -1 for nothing.
    """
    first = place
    long[0], long[1], long[2] = -1, -1, -1
    while True:
        if place + TAR_BLOCK > len(window):
            return first, MORE
        if window[place] == 0 and _is_empty(window, place):
            return place, COMPLETE if place == first else BAD_RECORD
        if not _is_checksum_right(window, place):
            return place, BAD_CHECKSUM
        kind, size = window[place + KIND], _number(window, place + SIZE, 12)
        if kind not in (LONG_NAME, LONG_LINK, PAX, SOLARIS_PAX, GLOBAL_PAX):
            return place, SPARSE if kind == GNU_SPARSE else -1
        if not 0 <= size <= MAX_LONG_BYTES:
            return place, BAD_NUMBER
        data = place + TAR_BLOCK
        if data + size > len(window):
            return first, MORE
        if kind == LONG_NAME:
            long[0], long[1] = data, size
        elif kind in (PAX, SOLARIS_PAX):
            status = _read_pax(window, data, data + size, long)
            if status != MORE:
                return place, status
        place = data + (size + TAR_BLOCK - 1) // TAR_BLOCK * TAR_BLOCK


@kernel
def walk_headers(window: Any, table: Any, names: Any) -> Any:
    """List the plain files of an archive whose headers lie in a window of it.

    Args:
        window: uint8 [n], from a header on.
        table: int64 [n // 512 + 1, 4], written: places of header and data in the window, size, where its name ends.
        names: uint8 [2 * n + 512], written: names back to back.

    Returns:
        What stopped it, how many files there are, and where the next header is: it may be behind the window.

    Source:
        POSIX.1-2017, pax: "ustar Interchange Format" and "pax Interchange Format"; the manual of GNU tar, "Basic Tar
        Format".
    """
    count, end, place = 0, 0, 0
    long = np.empty(3, np.int64)
    while True:
        header, status = _find_header(window, place, long)
        if status >= 0:
            return status, count, header
        kind = window[header + KIND]
        size = long[2] if long[2] >= 0 else _number(window, header + SIZE, 12)
        if FIRST_WITHOUT_DATA <= kind <= LAST_WITHOUT_DATA:
            size = 0
        if size < 0:
            return BAD_NUMBER, count, header
        if kind in (OLD_FILE, FILE, CONTIGUOUS):
            start = end
            end = _copy_name(window, header, long, names, end)
            # of old, a directory was a file whose name ends so
            if end > start and names[end - 1] != SLASH:
                table[count, 0], table[count, 1], table[count, 2], table[count, 3] = header, header + 512, size, end
                count += 1
            else:
                end = start
        place = header + TAR_BLOCK + (size + TAR_BLOCK - 1) // TAR_BLOCK * TAR_BLOCK
        if place >= len(window):
            return MORE, count, place
