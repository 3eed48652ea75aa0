"""Segments as numbers: the ordinal and the tag of a name in one int64, so that a directory of 10^5 is listed at once.

::

    00000012-7f3a  ->  0x0000000c_7f3a        ordinal << 16 | tag: keys sort as names of one store do
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from stepwell.store.beneath import check_directory, raise_from, system_error
from stepwell.store.layout import SEGMENTS, parse_segment_name

__all__ = ["TAG_BITS", "key_of_name", "list_keys", "name_of_key", "ordinals_of_keys", "without"]

Int64s = npt.NDArray[np.int64]
TAG_BITS = 16
ORDINAL_DIGITS, TAG_DIGITS = 8, 4
NAME_BYTES = ORDINAL_DIGITS + 1 + TAG_DIGITS
# value of each hexadecimal digit, by its byte; 16 for any other byte
_HEX = np.full(256, 16, np.uint8)
_HEX[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def key_of_name(name: str) -> int | None:
    """Return the key of a segment's name without suffix; None for anything else."""
    parsed = parse_segment_name(name)
    if parsed is None or not parsed[2]:
        return None
    key = parsed[0] << TAG_BITS | int(name[-TAG_DIGITS:], 16)
    return key if name_of_key(key) == name else None


def name_of_key(key: int) -> str:
    """Return the name of a segment, without suffix."""
    return f"{key >> TAG_BITS:0{ORDINAL_DIGITS}d}-{key & 0xFFFF:0{TAG_DIGITS}x}"


def ordinals_of_keys(keys: Int64s) -> Int64s:
    """Return the ordinals of segments, int64 [n]."""
    return keys >> TAG_BITS


def list_keys(store: str) -> tuple[Int64s, Int64s]:
    """List the segments of a store.

    Returns:
        The keys of all segments, ascending, int64 [n], and those of segments that are seen under their open name only,
        int64 [m]. Where both names are seen, the sealed one counts.
    """
    directory = f"{store}/{SEGMENTS}"
    check_directory(directory)
    try:
        entries = os.listdir(os.fsencode(directory))
    except OSError as error:
        raise_from(system_error(error, directory), error)
    if not entries:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    chars = np.array(entries, "S").view(np.uint8).reshape(len(entries), -1)
    is_plain = np.zeros(len(entries), np.bool_)
    keys = np.zeros(len(entries), np.int64)
    if chars.shape[1] >= NAME_BYTES:
        # a column at a time: numpy takes long over short axes
        columns = np.ascontiguousarray(chars[:, : NAME_BYTES + 1].T)
        is_plain = columns[ORDINAL_DIGITS] == ord("-")
        if len(columns) > NAME_BYTES:
            is_plain &= columns[NAME_BYTES] == 0
        for column in columns[:ORDINAL_DIGITS]:
            digits = column - np.uint8(ord("0"))
            is_plain &= digits < 10
            keys = keys * 10 + digits
        for column in columns[ORDINAL_DIGITS + 1 : NAME_BYTES]:
            digits = _HEX[column]
            is_plain &= digits < 16
            keys = keys << 4 | digits
    sealed = keys[is_plain]
    others, opened = _parsed(entries[number] for number in np.flatnonzero(~is_plain).tolist())
    found = np.concatenate([sealed, others])
    found.sort()
    opened = without(opened, found)
    if len(opened):
        found = np.concatenate([found, opened])
        found.sort()
    return found, opened


def without(keys: Int64s, others: Int64s) -> Int64s:
    """Return the keys that are not among others, which ascend; numpy's own first finds what is unique."""
    if len(others) == 0:
        return keys
    left: Int64s = keys[others[np.minimum(np.searchsorted(others, keys), len(others) - 1)] != keys]
    return left


def _parsed(names: Iterable[bytes]) -> tuple[Int64s, Int64s]:
    """Return the keys of sealed segments, and those of open ones, among names of any form."""
    sealed: list[int] = []
    opened: list[int] = []
    for entry in names:
        parsed = parse_segment_name(os.fsdecode(entry))
        if parsed is not None:
            _, name, is_sealed = parsed
            key = key_of_name(name)
            if key is not None:
                (sealed if is_sealed else opened).append(key)
    return np.array(sealed, np.int64), np.unique(np.array(opened, np.int64))
