"""Tiles in a JPEG file: restart marks, by which a crop can be decoded without what lies around it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from stepwell.codecs.jpeg_headers import BASELINE, Header

__all__ = ["with_tiles"]

HUFFMAN_TABLES = 0xC4
MAX_TABLES = 4


def with_tiles(image: bytes, columns: int) -> bytes:
    """Return a JPEG file with restart marks between tiles of one row of blocks.

    Args:
        image: a baseline file without marks, of one scan.
        columns: of pixels that a tile has at most; at least one block, and so many that all tiles are alike.

    Returns:
        The same pixels in a few more bytes; the file as it is where it cannot be coded so.
    """
    from stepwell.codecs.jpeg_kernels import NOT_CODED, mark_scan

    header = Header.of(image)
    if not header.size_place or header.interval:
        return image
    tables = _tables_of(header.head)
    height, width = (int.from_bytes(image[header.size_place + k : header.size_place + k + 2], "big") for k in (0, 2))
    rows, units = -(-height // header.unit[0]), -(-width // header.unit[1])
    most = max(1, columns // header.unit[1])
    interval = max(number for number in range(1, min(most, units) + 1) if units % number == 0)
    scan = np.frombuffer(image, np.uint8)[len(header.head) :]
    # behind each mark first coefficients take a little more; and bytes of ones, with what is stuffed, may be others
    out = np.empty(2 * scan.size + 64 * rows * units // interval + 2048, np.uint8)
    size = mark_scan(scan, tables.blocks, tables.lookups, tables.codes, interval, rows * units, out)
    if size == NOT_CODED:
        return image
    start_of_scan = header.head.rindex(b"\xff\xda")
    head, scan_header = header.head[:start_of_scan], header.head[start_of_scan:]
    marks = b"\xff\xdd\x00\x04" + interval.to_bytes(2, "big")
    return head + marks + scan_header + out[:size].tobytes() + b"\xff\xd9"


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    """The Huffman tables of a file, and which of them each block of a unit is coded with; see `mark_scan`."""

    blocks: npt.NDArray[np.int64]
    lookups: npt.NDArray[np.uint16]
    codes: npt.NDArray[np.int64]


@lru_cache(maxsize=4)
def _tables_of(head: bytes) -> _Tables:
    """Return the tables of a head that ends with the header of a scan; rows of a feature have the same."""
    lookups, codes = np.zeros((2 * MAX_TABLES, 1 << 16), np.uint16), np.zeros((2 * MAX_TABLES, 256), np.int64)
    blocks: list[tuple[int, int, int]] = []
    factors: dict[int, tuple[int, int]] = {}
    *segments, (_, scan) = _segments(head)
    for marker, body in segments:
        if marker == HUFFMAN_TABLES:
            for number, counts, symbols in _huffman_tables(body):
                _fill(lookups[number], codes[number], counts, symbols)
        elif marker in BASELINE:
            factors = {body[6 + 3 * k]: divmod(body[7 + 3 * k], 16) for k in range(body[5])}
    for component in range(scan[0]):
        name, tables = scan[1 + 2 * component : 3 + 2 * component]
        number = 1 if len(factors) == 1 else factors[name][0] * factors[name][1]
        blocks += [(component, tables >> 4, MAX_TABLES + (tables & 15))] * number
    return _Tables(np.array(blocks, np.int64), lookups, codes)


def _segments(head: bytes) -> list[tuple[int, bytes]]:
    found, place = [], 2
    while place < len(head):
        size = int.from_bytes(head[place + 2 : place + 4], "big")
        found.append((head[place + 1], head[place + 4 : place + 2 + size]))
        place += 2 + size
    return found


def _huffman_tables(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return number, counts of codes by length, and symbols, of each table of a segment."""
    found, place = [], 0
    while place < len(body):
        kind, counts = body[place], body[place + 1 : place + 17]
        stop = place + 17 + sum(counts)
        found.append(((kind >> 4) * MAX_TABLES + (kind & 15), counts, body[place + 17 : stop]))
        place = stop
    return found


def _fill(lookup: npt.NDArray[np.uint16], codes: npt.NDArray[np.int64], counts: bytes, symbols: bytes) -> None:
    """Write the codes of one table, which are numbered in order of their lengths."""
    code, place = 0, 0
    for length, count in enumerate(counts, start=1):
        for symbol in symbols[place : place + count]:
            first = code << (16 - length)
            lookup[first : first + (1 << (16 - length))] = length << 8 | symbol
            codes[symbol] = code << 8 | length
            code += 1
        place += count
        code <<= 1
