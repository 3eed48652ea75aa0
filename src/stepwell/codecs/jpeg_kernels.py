"""Restart marks put into the scan of a JPEG file, its coefficients left as they are.

Between two marks, blocks are coded without those before: what a crop does not need can be left out. All codes are
copied but for the first coefficient of each component behind a mark, which is counted from zero there::

    ... block block block | FF D0 | block block block | FF D1 | ...        interval = 3

Source:
    ITU-T T.81, annex F.2 (Huffman decoding), B.1.1.3 (restart markers).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel

__all__ = ["NOT_CODED", "mark_scan"]

NOT_CODED = -1
LOOKUP_BITS = 16
COEFFICIENTS = 64
RUN_OF_ZEROS = 15
# a code and the bits behind it; and what fits into a word of 64 bits with a sign
LONGEST_CODE = 27
MOST_BITS = 56
# more than the codes of a block and a mark can take, each byte followed by a stuffed one
BLOCK_BYTES = 1024


@kernel
def _refill(data: Any, place: Any, word: Any, bits: Any) -> Any:
    """Take in bytes; zeros follow the data."""
    while bits <= MOST_BITS - 8:
        byte = np.int64(data[place]) if place < data.size else np.int64(0)
        # a zero is stuffed behind each byte of ones
        place += 2 if byte == 255 else 1
        word = (word << 8) | byte
        bits += 8
    return place, word, bits


@kernel
def _write(out: Any, size: Any, word: Any, bits: Any) -> Any:
    """Write the whole bytes of a word; return size, word and bits of what is left."""
    while bits >= 8:
        bits -= 8
        byte = word >> bits
        word &= (1 << bits) - 1
        out[size] = byte
        size += 1
        if byte == 255:
            out[size] = 0
            size += 1
    return size, word, bits


@kernel
def _padded(word: Any, bits: Any) -> Any:
    """Fill up the last byte with ones."""
    padding = -bits % 8
    return (word << padding) | ((1 << padding) - 1), bits + padding


@kernel
def _change_of(taken: Any, number: Any) -> Any:
    """Return the difference that the lowest `number` bits stand for."""
    value = taken & ((1 << number) - 1)
    return value if number == 0 or value >> (number - 1) else value - (1 << number) + 1


@kernel
def _coded(change: Any, codes: Any) -> Any:
    """Return code and bits of a difference, and how many they are; none where there is no such code."""
    rest, number = abs(change), 0
    while rest:
        rest >>= 1
        number += 1
    code = codes[number]
    value = change if change >= 0 else change + (1 << number) - 1
    return (code >> 8) << number | value, (code & 0xFF) + number if code else 0


@kernel
def mark_scan(data: Any, blocks: Any, lookups: Any, codes: Any, interval: Any, num_units: Any, out: Any) -> Any:  # noqa: PLR0917
    """Copy a scan, with a restart mark every so many units.

    Args:
        data: uint8, the scan behind its header.
        blocks: int64 [b, 3], of the blocks of a unit in order: component (0 to 3), number of its table of first
            coefficients and of its table of others.
        lookups: uint16 [tables, 65536], by the next 16 bits: length of the code << 8 | symbol; 0 where there is none.
        codes: int64 [tables, 256], by symbol: code << 8 | its length; 0 where there is none.
        interval: units between marks.
        num_units: units of the scan.
        out: uint8; written.

    Returns:
        The number of bytes written, or `NOT_CODED` where the scan is damaged, a code is lacking or `out` too small.
    """
    place, word, bits = np.int64(0), np.int64(0), np.int64(0)
    size, rest, rest_bits = np.int64(0), np.int64(0), np.int64(0)
    levels, bases = np.zeros(4, np.int64), np.zeros(4, np.int64)
    for unit in range(num_units):
        if unit and unit % interval == 0:
            rest, rest_bits = _padded(rest, rest_bits)
            size, rest, rest_bits = _write(out, size, rest, rest_bits)
            out[size], out[size + 1] = 0xFF, 0xD0 + (unit // interval - 1) % 8
            size += 2
            bases[:] = 0
        for b in range(blocks.shape[0]):
            if size + BLOCK_BYTES > out.size:
                return NOT_CODED
            component = blocks[b, 0]
            k: Any = 0
            while k < COEFFICIENTS:
                if bits < LONGEST_CODE:
                    place, word, bits = _refill(data, place, word, bits)
                entry = np.int64(lookups[blocks[b, 2 if k else 1], (word >> (bits - LOOKUP_BITS)) & 0xFFFF])
                number, run = entry & 15, (entry >> 4) & 15
                length = (entry >> 8) + number
                bits -= length
                taken = word >> bits
                word &= (1 << bits) - 1
                if k:
                    k += run + 1 if number or run == RUN_OF_ZEROS else COEFFICIENTS
                else:
                    k = 1
                    before = levels[component]
                    levels[component] += _change_of(taken, number)
                    if bases[component] != before:
                        taken, length = _coded(levels[component] - bases[component], codes[blocks[b, 1]])
                    bases[component] = levels[component]
                if entry == 0 or length == 0:
                    return NOT_CODED
                rest, rest_bits = (rest << length) | taken, rest_bits + length
                if rest_bits > MOST_BITS - LONGEST_CODE:
                    size, rest, rest_bits = _write(out, size, rest, rest_bits)
    rest, rest_bits = _padded(rest, rest_bits)
    size, _, _ = _write(out, size, rest, rest_bits)
    return size
