"""Messages of type ``tf.train.Example``: where the lists of chosen keys lie, and what is in them.

What is located is whole: each length was compared with what is left of the message it stands in, so that lists can be
read without looking again. A fault is a place in the data, never a read behind its end::

    Example     1: Features                      location of a list, int64 [5]
    Features    1: entry, entry, ...               KIND    0 absent, 1 bytes, 2 float, 3 int64
    entry       1: key  2: Feature                 START   of the list's message
    Feature     1: BytesList | 2: FloatList        STOP    one past its last byte
                   | 3: Int64List                  COUNT   values
    ...List     1: value, value, ... or packed     PACKED  first byte of all values, packed in one piece; else -1

Source:
    The encoding of Protocol Buffers; example.proto and feature.proto of TensorFlow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.kernels.kernel import kernel
from stepwell.kernels.memory import memcpy

__all__ = [
    "COUNT",
    "KIND",
    "NUM_LOCATION",
    "PACKED",
    "START",
    "STOP",
    "fill_bytes",
    "fill_floats",
    "fill_ints",
    "locate_lists",
    "varint_size",
    "write_varints",
]

KIND, START, STOP, COUNT, PACKED = range(5)
NUM_LOCATION = 5
IS_BYTES, IS_FLOAT, IS_INT = 1, 2, 3
BAD = -1
# wire types
VARINT, EIGHT, LENGTH, FOUR = 0, 1, 2, 5
LONGEST_VARINT = 10
MORE = 0x80


@kernel
def _varint(data: Any, place: Any, stop: Any) -> Any:
    """Return a number, its 64 bits as an int64, and the place behind it; BAD where there is none."""
    value = np.uint64(0)
    for index in range(LONGEST_VARINT):
        if place >= stop:
            return np.int64(0), BAD
        byte = np.uint64(data[place])
        place += 1
        value |= (byte & np.uint64(0x7F)) << np.uint64(7 * index)
        if byte < np.uint64(MORE):
            return np.int64(value), place
    return np.int64(0), BAD


@kernel
def _field(data: Any, place: Any, stop: Any) -> Any:
    """Return number, wire type, first byte and end of a field's value; an end of BAD where there is no whole one."""
    tag, start = _varint(data, place, stop)
    number, wire = tag >> 3, tag & 7
    if start == BAD or number <= 0:
        return number, wire, start, BAD
    if wire == VARINT:
        return number, wire, start, _varint(data, start, stop)[1]
    size = np.int64(-1)
    if wire == LENGTH:
        size, start = _varint(data, start, stop)
    elif wire == EIGHT:
        size = np.int64(8)
    elif wire == FOUR:
        size = np.int64(4)
    if start == BAD or size < 0 or size > stop - start:
        return number, wire, start, BAD
    return number, wire, start, start + size


@kernel
def _count_packed(data: Any, kind: Any, start: Any, stop: Any) -> Any:
    """Return the values of a packed piece; BAD where it ends within one."""
    if kind == IS_FLOAT:
        return (stop - start) // 4 if (stop - start) % 4 == 0 else BAD
    if stop > start and data[stop - 1] >= MORE:
        return BAD
    count = 0
    for place in range(np.uintp(start), np.uintp(stop)):
        count += data[place] < MORE
    return count


@kernel
def _locate_list(data: Any, kind: Any, start: Any, stop: Any, out: Any) -> Any:
    """Write the location of a list; return BAD, or the place of a fault plus 1."""
    count, packed, place = 0, BAD, start
    while place < stop:
        number, wire, first, end = _field(data, place, stop)
        if end == BAD:
            return place
        if number == 1 and wire == LENGTH and kind != IS_BYTES:
            more = _count_packed(data, kind, first, end)
            if more == BAD:
                return first
            packed = first if count == 0 else BAD
            count += more
        elif number == 1 and wire == (LENGTH if kind == IS_BYTES else (FOUR if kind == IS_FLOAT else VARINT)):
            packed = BAD
            count += 1
        place = end
    out[KIND], out[START], out[STOP], out[COUNT], out[PACKED] = kind, start, stop, count, packed
    return BAD


@kernel
def _locate_feature(data: Any, start: Any, stop: Any, out: Any) -> Any:
    """Write the location of a feature's list; return BAD, or the place of a fault. Of several lists the last counts."""
    for k in range(out.size):
        out[k] = 0
    place = start
    while place < stop:
        number, wire, first, end = _field(data, place, stop)
        if end == BAD:
            return place
        if IS_BYTES <= number <= IS_INT and wire == LENGTH:
            if out[KIND] == number:  # a list in two parts: nobody writes it, and half of it would be wrong
                return place
            fault = _locate_list(data, number, first, end, out)
            if fault != BAD:
                return fault
        place = end
    return BAD


@kernel
def _is_key(data: Any, start: Any, stop: Any, keys: Any, first: Any, end: Any) -> Any:  # noqa: PLR0917
    if stop - start != end - first:
        return False
    for byte in range(stop - start):  # noqa: SIM110  numba compiles no generator into all()
        if data[start + byte] != keys[first + byte]:
            return False
    return True


@kernel
def _find_key(data: Any, start: Any, stop: Any, keys: Any, edges: Any, guess: Any) -> Any:  # noqa: PLR0917
    """Return which key it is, or BAD; the guess is looked at first, and those after it."""
    num_keys = edges.size - 1
    for number in range(num_keys):
        key = guess + number if guess + number < num_keys else guess + number - num_keys
        if _is_key(data, start, stop, keys, edges[key], edges[key + 1]):
            return key
    return BAD


@kernel
def _entry(data: Any, start: Any, stop: Any) -> Any:
    """Return the fault of an entry or BAD, and where its key and its feature begin and end."""
    place = start
    key, key_end, value, value_end = start, start, start, start
    while place < stop:
        number, wire, first, end = _field(data, place, stop)
        if end == BAD:
            return place, key, key_end, value, value_end
        if number == 1 and wire == LENGTH:
            key, key_end = first, end
        elif number == 2 and wire == LENGTH:
            if value != start:
                return place, key, key_end, value, value_end
            value, value_end = first, end
        place = end
    return np.int64(BAD), key, key_end, value, value_end


@kernel
def _locate_features(data: Any, start: Any, stop: Any, keys: Any, edges: Any, guesses: Any, out: Any) -> Any:  # noqa: PLR0917
    """Write the locations of all lists of a message Features; return the place of a fault, or BAD."""
    place, guess = start, 0
    while place < stop:
        number, wire, first, end = _field(data, place, stop)
        if end == BAD:
            return place
        if number == 1 and wire == LENGTH:
            fault, key, key_end, value, value_end = _entry(data, first, end)
            if fault != BAD:
                return fault
            found = _find_key(data, key, key_end, keys, edges, guesses[guess])
            if found != BAD:
                # records of a file have their keys in one order, or nearly
                guesses[guess] = found
                guess = min(guess + 1, guesses.size - 1)
                fault = _locate_feature(data, value, value_end, out[found])
                if fault != BAD:
                    return fault
        place = end
    return BAD


@kernel
def locate_lists(data: Any, starts: Any, stops: Any, keys: Any, edges: Any, out: Any) -> Any:  # noqa: PLR0917
    """Write where the lists of keys lie in some examples; return the place of the first fault, or -1.

    Args:
        data: uint8 [size].
        starts: int64 [n], first byte of each example.
        stops: int64 [n], one past its last.
        keys: uint8, all keys one after the other.
        edges: int64 [k + 1], where each key begins in it.
        out: int64 [n, k, 5], written; all 0 for a key that is absent. Of a key that comes twice the last one counts.
    """
    guesses = np.empty(max(1, edges.size - 1), np.int64)
    for key in range(guesses.size):
        guesses[key] = key
    for example in range(starts.size):
        for key in range(out.shape[1]):
            for k in range(out.shape[2]):
                out[example, key, k] = 0
    for example in range(starts.size):
        place = starts[example]
        while place < stops[example]:
            number, wire, first, end = _field(data, place, stops[example])
            if end == BAD:
                return place
            if number == 1 and wire == LENGTH:
                fault = _locate_features(data, first, end, keys, edges, guesses, out[example])
                if fault != BAD:
                    return fault
            place = end
    return np.int64(BAD)


@kernel
def fill_bytes(data: Any, starts: Any, stops: Any, offsets: Any, sizes: Any) -> None:
    """Write where the values of lists of bytes lie: int64 [all values], of one list after the other."""
    at = 0
    for part in range(starts.size):
        place = starts[part]
        while place < stops[part]:
            number, wire, first, end = _field(data, place, stops[part])
            if number == 1 and wire == LENGTH:
                offsets[at], sizes[at] = first, end - first
                at += 1
            place = end


@kernel
def fill_floats(data: Any, starts: Any, stops: Any, out: Any) -> None:
    """Write the values of lists of floats: float32 [all values]."""
    at = 0
    for part in range(starts.size):
        place = starts[part]
        while place < stops[part]:
            number, wire, first, end = _field(data, place, stops[part])
            if number == 1 and wire in (LENGTH, FOUR):
                memcpy(out.ctypes.data + 4 * at, data.ctypes.data + first, end - first)
                at += (end - first) // 4
            place = end


@kernel
def _fill_packed(data: Any, start: Any, stop: Any, out: Any, at: Any, is_bool: Any) -> Any:  # noqa: PLR0917
    """Write the numbers of a piece; return where the next goes, or BAD and the place of one that does not fit."""
    place = start
    while place < stop:
        first = place
        byte, second = np.int64(data[np.uintp(place)]), np.int64(data[np.uintp(min(place + 1, stop - 1))])
        # one byte or two without a branch: which of them follows on which in pixels nobody can foretell
        is_two = byte >> 7
        value = (byte & 0x7F) | ((second & 0x7F) << 7) * is_two
        place += 1 + is_two
        if is_two & ((second >> 7) | np.int64(place > stop)):
            value, place = _varint(data, first, stop)
            if place == BAD:
                return np.int64(BAD), first
        if is_bool:
            value = np.int64(value != 0)
        out[at] = value
        if np.int64(out[at]) != value:
            return np.int64(BAD), first
        at += 1
    return at, start


@kernel
def fill_ints(data: Any, starts: Any, stops: Any, out: Any, is_bool: Any) -> Any:
    """Write the values of lists of int64; return the place of a number that does not fit the dtype, or -1.

    Args:
        data: uint8 [size].
        starts: int64 [n], of the lists' messages.
        stops: int64 [n].
        out: [all values] of any integers, written; uint64 takes the 64 bits as they are.
        is_bool: whether anything but 0 is written as 1.
    """
    at = np.int64(0)
    for part in range(starts.size):
        place = starts[part]
        while place < stops[part]:
            number, wire, first, end = _field(data, place, stops[part])
            if number == 1 and wire in (LENGTH, VARINT):
                at, fault = _fill_packed(data, first, end, out, at, is_bool)
                if at == BAD:
                    return fault
            place = end
    return np.int64(BAD)


@kernel
def varint_size(values: Any) -> Any:
    """Return how many bytes numbers take as varints; int64 [n]."""
    total = 0
    for value in values:
        rest = np.uint64(value) >> np.uint64(7)
        total += 1
        while rest != np.uint64(0):
            rest >>= np.uint64(7)
            total += 1
    return total


@kernel
def write_varints(values: Any, out: Any) -> None:
    """Write numbers as varints: int64 [n] to uint8 [`varint_size`]."""
    at = 0
    for value in values:
        rest = np.uint64(value)
        while rest >= np.uint64(MORE):
            out[at] = np.uint8(rest & np.uint64(0x7F)) | np.uint8(MORE)
            rest >>= np.uint64(7)
            at += 1
        out[at] = np.uint8(rest)
        at += 1
