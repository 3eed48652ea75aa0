"""Messages of ROS 1 and ROS 2, read by the definitions that lie beside them.

::

    uint32 seq                      definition: a line a field, "#" before comments, NAME=VALUE a constant
    geometry_msgs/Point[] points
    ================                others follow, each under its name
    MSG: geometry_msgs/Point
    float64 x

    ROS 1   little-endian, packed; arrays and texts begin with their length, uint32
    ROS 2   CDR: 4 bytes that tell the byte order, numbers aligned to their size, texts end with a zero

The definitions come with the data, and so from strangers: they are interpreted, no code is made of them.

Source: wiki.ros.org/msg and "Bags/Format/2.0"; docs.ros.org "Interfaces"; OMG "DDS-XTypes" 1.3, section 7.4 (XCDR1).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from stepwell.errors import DecodeError, FormatError

__all__ = ["MessageReader", "parse_definitions", "type_name"]

NUMBERS = {
    **{name: np.dtype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")},
    **{name: np.dtype(name) for name in ("float32", "float64", "bool")},
    "byte": np.dtype("uint8"),
    "char": np.dtype("uint8"),
    "octet": np.dtype("uint8"),
}
TIMES = ("time", "duration")
TEXTS = ("string", "wstring")
STAMP = (("sec", "int32", None), ("nanosec", "uint32", None))
KNOWN = {"builtin_interfaces/Time": STAMP, "builtin_interfaces/Duration": STAMP}
FIELD = re.compile(
    r"\s*(?P<type>[A-Za-z][\w/]*)(?:<=\d+)?(?P<array>\[(?:<=)?\d{0,9}\])?\s+(?P<name>[A-Za-z]\w*)\s*(?P<rest>.*)"
)
SEPARATOR = re.compile(r"^=+\s*$", re.MULTILINE)
IGNORED = re.compile(r"\s*(?:#.*|@.*)?")
MAX_DEPTH = 32
MAX_FIELDS = 10_000
MAX_DEFINITION = 1 << 20
# fields of a message for each of its bytes: those of messages within messages that hold nothing take none
MOST_FIELDS_A_BYTE = 16

Field = tuple[str, str, int | None]
"""Name, type, and length: None of one value, -1 of a sequence."""


def type_name(name: str) -> str:
    """Return a type's name as ROS 1 has it: "sensor_msgs/msg/Image" is "sensor_msgs/Image"."""
    parts = name.split("/")
    return f"{parts[0]}/{parts[-1]}" if len(parts) > 1 else name


def parse_definitions(name: str, text: str) -> dict[str, tuple[Field, ...]]:
    r"""Return the fields of a type, and of those that it is made of.

    Args:
        name: of the type that the text begins with.
        text: its definition, and those of others, as bags and MCAP files hold them.

    Raises:
        FormatError: a line that is no field, or a type that has no definition or holds itself.

    Example:
        >>> parse_definitions("demo/Pair", "float64 left 1.5\nint8 NO=3\nint32[] right")["demo/Pair"]
        (('left', 'float64', None), ('right', 'int32', -1))
    """
    if len(text) > MAX_DEFINITION:
        raise FormatError(f"{name}: a definition of {len(text):,} characters. Allowed: {MAX_DEFINITION:,}.")
    first, *others = SEPARATOR.split(text)
    texts = {type_name(name): first}
    for other in others:
        head, _, body = other.strip().partition("\n")
        if not head.startswith("MSG:"):
            raise FormatError(f"{name}: {head[:80]!r} in its definition. Allowed: MSG: and the name of a type.")
        texts[type_name(head[4:].strip())] = body
    raw = {each: _fields(each, body) for each, body in texts.items()}
    found = dict(KNOWN) | {each: _resolved(each, fields, raw) for each, fields in raw.items()}
    _check_ends(type_name(name), found, (), {})
    return found


def _fields(name: str, text: str) -> tuple[Field, ...]:
    found: list[Field] = []
    for line in text.splitlines():
        if IGNORED.fullmatch(line):
            continue
        match = FIELD.match(line)
        if match is None:
            raise FormatError(f"{name}: {line.strip()[:80]!r} in its definition. Allowed: TYPE NAME, TYPE NAME=VALUE.")
        if match["rest"].startswith("="):
            continue
        array = match["array"]
        size = None if array is None else int(array[1:-1]) if array[1:-1].isdecimal() else -1
        found.append((match["name"], match["type"], size))
    if len(found) > MAX_FIELDS:
        raise FormatError(f"{name}: {len(found)} fields. Allowed: {MAX_FIELDS}.")
    return tuple(found)


def _resolved(name: str, fields: tuple[Field, ...], known: Mapping[str, Any]) -> tuple[Field, ...]:
    return tuple((field, _full(kind, name, known), size) for field, kind, size in fields)


def _full(kind: str, owner: str, known: Mapping[str, Any]) -> str:
    """Return the full name of a field's type."""
    if kind in NUMBERS or kind in TEXTS or kind in TIMES:
        return kind
    full = type_name(kind)
    if "/" in full:
        return full
    package = owner.partition("/")[0]
    return "std_msgs/Header" if kind == "Header" and f"{package}/Header" not in known else f"{package}/{kind}"


def _check_ends(
    name: str, found: Mapping[str, tuple[Field, ...]], above: tuple[str, ...], depths: dict[str, int]
) -> int:
    """Refuse types without a definition, and those that hold themselves or lie too deep; return how deep one goes."""
    if name not in found:
        raise FormatError(f"{' > '.join((*above, name))}: the definition of this type is missing.")
    if name in above or len(above) + depths.get(name, 0) > MAX_DEPTH:
        raise FormatError(f"{' > '.join((*above, name))}: a type that holds itself, or lies {MAX_DEPTH} deep.")
    # each type is looked into once, however many hold it
    if name not in depths:
        kinds = {kind for _, kind, _ in found[name] if kind not in NUMBERS and kind not in TEXTS and kind not in TIMES}
        inner = [_check_ends(kind, found, (*above, name), depths) for kind in sorted(kinds)]
        depths[name] = 1 + max(inner, default=-1)
    return depths[name]


@dataclass(slots=True)
class Cursor:
    """A place in a message."""

    data: bytes
    place: int
    # where alignment counts from; -1 where nothing is aligned
    origin: int
    order: Literal["<", ">"]
    # fields that were read
    fields: int = 0

    def take(self, count: int) -> int:
        """Return where so many bytes begin, and go past them."""
        begin = self.place
        if count > len(self.data) - begin:
            raise DecodeError(f"a message of {len(self.data)} bytes, which needs {count} from byte {begin} on.")
        self.place = begin + count
        return begin

    def align(self, size: int) -> None:
        """Go to the next place where a number of that size may lie."""
        if self.origin >= 0:
            self.place += -(self.place - self.origin) % size

    def enter(self, number: int) -> None:
        """Refuse a message that has more fields than its bytes can be: a definition may hold any number of them."""
        self.fields += number + 1
        if self.fields > MAX_FIELDS + MOST_FIELDS_A_BYTE * len(self.data):
            raise DecodeError(f"a message of {len(self.data)} bytes, which has more than {self.fields} fields.")

    def count(self) -> int:
        """Return the length that comes next."""
        self.align(4)
        found: int = struct.unpack_from(f"{self.order}I", self.data, self.take(4))[0]
        return found


Read = Callable[[Cursor], Any]


class MessageReader:
    r"""Reads messages of one type.

    Args:
        name: of the type.
        text: see `parse_definitions`.
        is_cdr: whether messages are ROS 2's.

    Raises:
        FormatError: as `parse_definitions`.

    Example:
        >>> MessageReader("demo/Pair", "uint8 left\nstring right", is_cdr=False).read(b"\x07\x02\0\0\0hi")
        {'left': np.uint8(7), 'right': 'hi'}
    """

    def __init__(self, name: str, text: str, *, is_cdr: bool) -> None:
        self.name, self._is_cdr = type_name(name), is_cdr
        self._known = parse_definitions(name, text)
        self._plans: dict[str, tuple[tuple[str, Read], ...]] = {}
        for each in self._known:
            self._plans[each] = tuple((field, self._read_of(kind, size)) for field, kind, size in self._known[each])

    def read(self, data: bytes) -> dict[str, Any]:
        """Return a message: numbers, texts, arrays of numbers, lists, and messages within it as dicts.

        Raises:
            DecodeError: it ends too early, or is of another encoding.
        """
        cursor = self._begun(data)
        try:
            return self._message(self.name, cursor)
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise DecodeError(f"a message of {self.name} that is damaged: {error}") from error

    def _begun(self, data: bytes) -> Cursor:
        if not self._is_cdr:
            return Cursor(data, 0, -1, "<")
        if len(data) < 4 or data[0] != 0 or data[1] > 1:
            raise DecodeError(f"a message of {self.name} that begins with {data[:4]!r}. Allowed: CDR, as ROS 2 has it.")
        return Cursor(data, 4, 4, "<" if data[1] else ">")

    def _message(self, name: str, cursor: Cursor) -> dict[str, Any]:
        plan = self._plans[name]
        if not plan and self._is_cdr:
            cursor.take(1)
        cursor.enter(len(plan))
        return {field: read(cursor) for field, read in plan}

    def _read_of(self, kind: str, size: int | None) -> Read:
        if kind in NUMBERS:
            dtype = NUMBERS[kind]
            return partial(_number, dtype) if size is None else partial(_array, dtype, size)
        one: Read
        if kind in TEXTS:
            one = partial(_text, self._is_cdr, kind == "wstring")
        elif kind in TIMES:
            one = partial(_stamp, kind == "duration")
        else:
            one = partial(self._message, kind)
        return one if size is None else partial(_list, one, size)


def _number(dtype: np.dtype[Any], cursor: Cursor) -> Any:
    cursor.align(dtype.itemsize)
    stored = dtype.newbyteorder(cursor.order) if dtype.itemsize > 1 else dtype
    return np.frombuffer(cursor.data, stored, 1, cursor.take(dtype.itemsize)).astype(dtype, copy=False)[0]


def _array(dtype: np.dtype[Any], size: int, cursor: Cursor) -> Any:
    count = cursor.count() if size < 0 else size
    if count:
        cursor.align(dtype.itemsize)
    begin = cursor.take(count * dtype.itemsize)
    stored = dtype.newbyteorder(cursor.order) if dtype.itemsize > 1 else dtype
    return np.frombuffer(cursor.data, stored, count, begin).astype(dtype, copy=False)


def _list(one: Read, size: int, cursor: Cursor) -> list[Any]:
    count = cursor.count() if size < 0 else size
    # an element takes a byte at least, but for empty messages of ROS 1
    if count > len(cursor.data) - cursor.place and count > MAX_FIELDS:
        raise DecodeError(f"a message of {len(cursor.data)} bytes, which says that it has {count} elements.")
    return [one(cursor) for _ in range(count)]


def _text(is_cdr: bool, is_wide: bool, cursor: Cursor) -> str:
    count = cursor.count()
    if is_wide:
        begin = cursor.take(2 * count)
        return cursor.data[begin : begin + 2 * count].decode("utf-16-le" if cursor.order == "<" else "utf-16-be")
    begin = cursor.take(count)
    end = begin + count - 1 if is_cdr and count else begin + count
    return cursor.data[begin:end].decode("utf-8", "replace")


def _stamp(is_signed: bool, cursor: Cursor) -> dict[str, int]:
    sec, nanosec = struct.unpack_from(f"<{'ii' if is_signed else 'II'}", cursor.data, cursor.take(8))
    return {"sec": sec, "nanosec": nanosec}
