"""Messages between a server and its clients: a head in JSON and columns of numbers, and nothing that is code.

::

    16 bytes      u8 kind, u8 flags (0), u16 (0), u32 bytes of the head, u64 bytes of the columns; little-endian
    head          a JSON object; its "columns" are [name, dtype, shape] in the order in which they follow
    0 to 63       zeros, so that the columns begin at a multiple of 64 bytes
    columns       C-contiguous, each one begins at a multiple of 64 bytes after the first

A message of this kind is one message of gRPC, which knows its size before it takes memory for it. Whatever is read here
comes from somebody else: sizes are summed up and compared before an array is made, and arrays are views of the message.
"""

from __future__ import annotations

import enum
import json
import math
import re
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from stepwell import errors
from stepwell.errors import ServiceError, StepwellError
from stepwell.json_text import parse_json

__all__ = ["PROTOCOL", "Kind", "Message", "error_message", "pack", "raise_error", "unpack"]

PROTOCOL = 1
HEAD = struct.Struct("<BBHIQ")
ALIGNMENT = 64
MAX_COLUMNS = 4096
MAX_DIMENSIONS = 32
ZEROS = bytes(ALIGNMENT)
# numbers and bools, little-endian
DTYPE = re.compile(r"[<|](b1|[iu][1248]|f[248]|c8|c16)")
# of heads that are kept, so that they are parsed once
MAX_KEPT_TEXT = 4096


Parsed = tuple[dict[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...], int]], int]


class Kind(enum.IntEnum):
    """The kinds of messages; a client begins a stream with HELLO, and a server answers with WELCOME."""

    HELLO = 1
    WELCOME = 2
    STEPS = 3  # of a writer: steps, ends of episodes, items, in order
    ACK = 4  # all until here is in the server's files
    ASK = 5  # of a loader: new priorities, then so many rows, as soon as a limiter lets them be drawn
    BATCH = 6
    PLACES = 7  # a batch as places in files that the client has mapped
    WAIT = 8  # what a limiter waits for, every second
    ERROR = 9
    CALL = 10
    ANSWER = 11
    BYE = 12  # of a writer: its open episode ends, and nothing follows


class Columns(dict[str, npt.NDArray[Any]]):
    """The columns of a message; one that is missing is an error of who sent it."""

    def __missing__(self, name: str) -> NoReturn:
        raise ServiceError(
            f"a message without column {name!r:.100}. Its columns are: {', '.join(self) or 'none'}."[:500]
        )


class Message(NamedTuple):
    """One message.

    Args:
        kind: what it is.
        head: its JSON object, without the columns.
        columns: name to array; views of the message.
    """

    kind: Kind
    head: dict[str, Any]
    columns: dict[str, npt.NDArray[Any]]


def pack(
    kind: Kind, head: Mapping[str, Any] | None = None, columns: Mapping[str, npt.NDArray[Any]] | None = None
) -> bytes:
    """Return the bytes of a message; columns are numbers or bools, and copied once."""
    specs: list[tuple[str, str, tuple[int, ...]]] = []
    parts: list[Any] = []
    size = 0
    for name, column in (columns or {}).items():
        array, shape = np.asarray(column, order="C"), np.shape(column)
        specs.append((name, array.dtype.str, shape))
        if num_bytes := array.nbytes:
            if gap := -size % ALIGNMENT:
                parts.append(ZEROS[:gap])
            # the buffer of an array without axes has none, and that of most others is taken as it is
            parts.append(array if shape else array.reshape(1))
            size += gap + num_bytes
    # batches of one stream have equal heads
    text = _text(tuple(specs)) if not head else json.dumps({**head, "columns": specs} if specs else head).encode()
    gap = -(HEAD.size + len(text)) % ALIGNMENT if specs else 0
    return b"".join([HEAD.pack(kind, 0, 0, len(text), size), text, ZEROS[:gap], *parts])


@lru_cache(256)
def _text(specs: tuple[tuple[str, str, tuple[int, ...]], ...]) -> bytes:
    return json.dumps({"columns": specs} if specs else {}).encode()


def unpack(data: bytes | memoryview, *kinds: Kind) -> Message:
    """Return a message of one of the kinds; ServiceError: anything else. An ERROR is raised as the error that it is."""
    if len(data) < HEAD.size:
        raise ServiceError(f"a message of {len(data)} bytes. The least are {HEAD.size}.")
    number, flags, rest, text_bytes, num_bytes = HEAD.unpack_from(data)
    try:
        kind = Kind(number)
    except ValueError:
        raise ServiceError(f"a message of kind {number}, which protocol {PROTOCOL} does not have.") from None
    if flags or rest:
        raise ServiceError(f"a message with flags {flags} and {rest}. Protocol {PROTOCOL} has none.")
    if HEAD.size + text_bytes > len(data):
        raise ServiceError(f"a head of {text_bytes} bytes in a message of {len(data)}.")
    text = bytes(data[HEAD.size : HEAD.size + text_bytes])
    # batches of one stream have equal heads
    head, layout, total = _parsed(text) if len(text) <= MAX_KEPT_TEXT else _parse(text)
    start = HEAD.size + text_bytes
    start += -start % ALIGNMENT if layout else 0
    if total != num_bytes or start + num_bytes != len(data):
        raise ServiceError(
            f"a message of {len(data)} bytes, of which its head says {start + num_bytes}, and its columns have {total}."
        )
    columns = Columns((name, np.ndarray(shape, dtype, data, start + offset)) for name, dtype, shape, offset in layout)
    head = dict(head)
    if kind is Kind.ERROR:
        raise_error(head)
    if kind not in kinds:
        raise ServiceError(f"got {kind.name} where {' or '.join(each.name for each in kinds)} was due.")
    return Message(kind, head, columns)


def _parse(text: bytes) -> Parsed:
    """Return the head of a message without its columns, where each of these lies, and their bytes in all."""
    try:
        head = parse_json(text)
    except ValueError as error:
        raise ServiceError(f"a head that is not JSON ({error}).") from None
    if not isinstance(head, dict):
        raise ServiceError(f"a head that is a {type(head).__name__}, not an object.")
    specs = head.pop("columns", [])
    if not isinstance(specs, list) or len(specs) > MAX_COLUMNS:
        raise ServiceError(f"columns that are no list of at most {MAX_COLUMNS}.")
    layout: dict[str, tuple[str, np.dtype[Any], tuple[int, ...], int]] = {}
    offset = 0
    for spec in specs:
        name, dtype, shape = _checked(spec)
        size = math.prod(shape) * dtype.itemsize
        offset += -offset % ALIGNMENT if size else 0
        if name in layout:
            raise ServiceError(f"column {name!r:.100} comes twice.")
        layout[name] = name, dtype, shape, offset if size else 0
        offset += size
    return head, list(layout.values()), offset


_parsed = lru_cache(256)(_parse)


def _checked(spec: Any) -> tuple[str, np.dtype[Any], tuple[int, ...]]:
    try:
        name, code, shape = spec
        if not (isinstance(name, str) and isinstance(code, str) and DTYPE.fullmatch(code)):
            raise ValueError
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
            raise ValueError
        dtype = np.dtype(code)
        # 2**63 elements need no memory where another dimension is 0, and numpy refuses them
        is_whole = all(type(size) is int and 0 <= size < 1 << 48 for size in shape)
        if not is_whole or math.prod(max(size, 1) for size in shape) >= 1 << 48:
            raise ValueError
    except (TypeError, ValueError):
        raise ServiceError(
            f"{spec!r:.200} is no column. It is a name, the dtype of numbers or bools, a shape."
        ) from None
    return name, dtype, tuple(shape)


def error_message(error: BaseException) -> bytes:
    """Return an error as a message: its class where it is one of stepwell's, and what it says."""
    if isinstance(error, StepwellError):
        # what str() of a KeyError adds are quotes
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return pack(Kind.ERROR, {"error": type(error).__name__, "text": text})
    return pack(Kind.ERROR, {"error": "ServiceError", "text": f"{type(error).__name__} at the server: {error}"})


def raise_error(head: Mapping[str, Any]) -> None:
    """Raise the error of a message, by its class."""
    name, text = head.get("error"), head.get("text")
    found = getattr(errors, name, None) if isinstance(name, str) and name in errors.__all__ else None
    kind = found if isinstance(found, type) and issubclass(found, StepwellError) else ServiceError
    raise kind(text if isinstance(text, str) else f"an error without a text: {head!r}")
