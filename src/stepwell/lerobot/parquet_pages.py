"""The pages of a column chunk of a parquet file, and the byte strings in them, by their places in the file.

pyarrow reads a row group of byte strings as a whole. What is found here once lets a single one be read later::

    | header | dictionary page: length bytes length bytes ... | header | data page: numbers of entries | ...
    | header | data page: levels length bytes length bytes ... |

Source:
    Apache Parquet's format description: page headers (Thrift's compact protocol), plain encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Page", "entries_of", "pages_of"]

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY = 0, 2, 8
MAX_DEPTH = 8
LENGTH_BYTES = 4
# the types of Thrift's compact protocol
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 12


@dataclass(frozen=True, slots=True)
class Page:
    """A page that holds byte strings."""

    start: int  # of its compressed part, counted from the chunk's first byte
    stop: int  # the byte after it
    num_bytes: int  # of that part, decompressed
    is_compressed: bool  # whether it is at all
    has_levels: bool  # whether levels come before the byte strings


def pages_of(chunk: bytes, *, has_levels: bool, is_compressed: bool) -> list[Page]:
    """Return the pages of a column chunk that hold byte strings; those that refer to a dictionary are left out."""
    found, place = [], 0
    while place < len(chunk):
        header, start = _read_struct(chunk, place)
        kind, size, compressed = header[1], header[2], header[3]
        place = start + compressed
        if place > len(chunk) or compressed < 0 or size < 0:
            raise ValueError("a page that is longer than its column")
        if kind == DICTIONARY:
            found.append(Page(start, place, size, is_compressed, has_levels=False))
            continue
        about = header[5] if kind == DATA else header[8] if kind == DATA_V2 else {}
        encoding = about.get(2 if kind == DATA else 4)
        if encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY):
            continue
        if encoding != PLAIN:
            raise ValueError(f"a page of encoding {encoding}")
        if kind == DATA:
            found.append(Page(start, place, size, is_compressed, has_levels))
        else:
            levels = about.get(5, 0) + about.get(6, 0)
            own = is_compressed and about.get(7, True)
            found.append(Page(start + levels, place, size - levels, own, has_levels=False))
    return found


def entries_of(page: Page, data: npt.NDArray[np.uint8]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each byte string in a decompressed page."""
    view = data.data
    place = 0
    if page.has_levels:
        place = LENGTH_BYTES + int.from_bytes(view[:LENGTH_BYTES], "little")
    while place + LENGTH_BYTES <= len(view):
        begin = place + LENGTH_BYTES
        place = begin + int.from_bytes(view[place:begin], "little")
        if place > len(view):
            raise ValueError("a byte string that is longer than its page")
        yield begin, place
    if place != len(view):
        raise ValueError("bytes behind the last byte string of a page")


def _read_struct(data: bytes, place: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return a Thrift struct's fields by number, and where it ends; ValueError for what no page header has."""
    if depth > MAX_DEPTH:
        raise ValueError("structs within structs")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head, place = _byte(data, place)
        if head == 0:
            return fields, place
        if head >> 4:
            number += head >> 4
        else:
            coded, place = _varint(data, place)
            number = _signed(coded)
        fields[number], place = _read_value(data, place, head & 15, depth)


def _read_value(data: bytes, place: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):
        return kind == TRUE, place
    if kind == BYTE:
        return _byte(data, place)
    if kind in (I16, I32, I64):
        coded, place = _varint(data, place)
        return _signed(coded), place
    if kind == DOUBLE:
        return None, place + 8
    if kind == BINARY:
        count, place = _varint(data, place)
        return None, place + count
    if kind == STRUCT:
        return _read_struct(data, place, depth + 1)
    raise ValueError(f"a field of type {kind}")


def _byte(data: bytes, place: int) -> tuple[int, int]:
    if place >= len(data):
        raise ValueError("a header that breaks off")
    return data[place], place + 1


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, place = _byte(data, place)
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            return value, place
        if shift > 63:
            raise ValueError("a number that is too long")


def _signed(coded: int) -> int:
    """Return a number from its zigzag form."""
    return (coded >> 1) ^ -(coded & 1)
