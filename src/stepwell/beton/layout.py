"""The bytes of a ``.beton`` file, version 2, both ways: parsed with every number checked, and built.

::

    0            header             24
    24           descriptors        1041 a field: type, name, arguments
    M0           rows               one a sample, laid out as C lays out a struct of the fields
                 zeros              up to a multiple of page_size, where there are pages
    D0           pages              regions: images, arrays, texts; in any place, of any alignment
    table_ptr    allocation table   24 a region: sample, ptr, size; to the end of the file

Everything is little-endian; a ptr counts from the beginning of the file. Source: FFCV 1.0.2 (libffcv/ffcv).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.json_text import parse_json

__all__ = [
    "ALLOCATION_DTYPE",
    "DESCRIPTOR_BYTES",
    "HEADER_BYTES",
    "IMAGE_ROW",
    "JPEG_MODE",
    "MAX_NAME_BYTES",
    "PTR_ROW",
    "RAW_MODE",
    "ROW_TYPES",
    "SIZED_ROW",
    "VERSION",
    "BetonLayout",
    "FieldDescriptor",
    "FieldType",
    "Header",
    "row_dtype",
]

VERSION = 2
HEADER_BYTES = 24
DESCRIPTOR_BYTES = 1041
MAX_NAME_BYTES = 16
ARGUMENT_BYTES = 1024
MAX_DIMENSIONS = 32
MAX_TYPE_BYTES = 760
JPEG_MODE, RAW_MODE = 0, 1

HEADER = struct.Struct("<HHIQQ")
ALLOCATION_DTYPE = np.dtype([("sample", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
"""A row of the allocation table: a sample uses a region."""

PTR_ROW = np.dtype("<u8")
"""What a sample's row holds of an ndarray or a tensor."""
SIZED_ROW = np.dtype([("ptr", "<u8"), ("size", "<u8")])
"""What it holds of bytes and of json."""
IMAGE_ROW = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("ptr", "<u8")])
"""What it holds of an image: 13 bytes, mode 0 is JPEG, 1 is raw."""


class FieldType(IntEnum):
    """The types of fields that FFCV has built in, by the ids that files hold."""

    FLOAT = 0
    INT = 1
    IMAGE = 2
    BYTES = 3
    NDARRAY = 4
    JSON = 5
    TENSOR = 6
    CUSTOM = 255


ROW_TYPES: dict[int, np.dtype[Any]] = {
    FieldType.FLOAT: np.dtype("<f8"),
    FieldType.INT: np.dtype("<i8"),
    FieldType.IMAGE: IMAGE_ROW,
    FieldType.BYTES: SIZED_ROW,
    FieldType.NDARRAY: PTR_ROW,
    FieldType.JSON: SIZED_ROW,
    FieldType.TENSOR: PTR_ROW,
}
"""What a sample's row holds of each built-in type of field."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first 24 bytes.

    Args:
        num_fields: descriptors that follow.
        page_size: a power of two, in bytes; no region crosses a multiple of it.
        num_samples: rows.
        table_ptr: where the allocation table begins; 0 while the file is being written.

    Example:
        >>> header = Header(num_fields=2, page_size=1 << 21, num_samples=64, table_ptr=3130)
        >>> Header.parse(header.to_bytes(), "some.beton") == header
        True
    """

    num_fields: int
    page_size: int
    num_samples: int
    table_ptr: int

    def to_bytes(self) -> bytes:
        """Return the header as a file has it."""
        return HEADER.pack(VERSION, self.num_fields, self.page_size, self.num_samples, self.table_ptr)

    @classmethod
    def parse(cls, data: bytes, path: str) -> Header:
        """Return the header of a file.

        Args:
            data: how the file begins; what comes after the header is not looked at.
            path: said by errors.

        Raises:
            FormatError: too short, another version, no page size, or a file that was never finished.
        """
        if len(data) < HEADER_BYTES:
            raise FormatError(f"{path}: {len(data)} bytes, where the header of a .beton file has {HEADER_BYTES}.")
        version, num_fields, page_size, num_samples, table_ptr = HEADER.unpack(data[:HEADER_BYTES])
        if version != VERSION:
            raise FormatError(f"{path}: version {version} at byte 0. Allowed: {VERSION}, which FFCV writes.")
        if num_fields == 0:
            raise FormatError(f"{path}: no fields at byte 2. Allowed: 1 to 65535.")
        if page_size == 0 or page_size & (page_size - 1):
            raise FormatError(f"{path}: pages of {page_size} bytes at byte 4. Allowed: a power of two.")
        if table_ptr == 0:
            raise FormatError(
                f"{path}: no allocation table at byte 16: who wrote the file did not finish it. Write it anew."
            )
        return cls(num_fields, page_size, num_samples, table_ptr)


@dataclass(frozen=True, slots=True)
class FieldDescriptor:
    """What a file says of a field.

    Args:
        type_id: a `FieldType`, or another number of a custom field.
        name: ASCII, 1 to 16 characters: FFCV cuts longer names off.
        arguments: at most 1024 bytes, what they mean depends on the type.

    Example:
        >>> described = FieldDescriptor.of_array("action", (16, 10), "float32")
        >>> described.array_type()
        ((16, 10), dtype('float32'))
    """

    type_id: int
    name: str
    arguments: bytes = field(default=b"", repr=False)

    def to_bytes(self) -> bytes:
        """Return the descriptor as a file has it.

        Raises:
            FormatError: a name or arguments that do not fit.
        """
        name = self.name.encode("ascii", "replace")
        if not self.name.isascii() or not 1 <= len(name) <= MAX_NAME_BYTES or "\0" in self.name:
            raise FormatError(
                f"field name {self.name!r} does not fit a .beton file. Allowed: 1 to {MAX_NAME_BYTES} ASCII characters."
            )
        if len(self.arguments) > ARGUMENT_BYTES:
            raise FormatError(
                f"field {self.name!r}: {len(self.arguments)} bytes of arguments. Allowed: {ARGUMENT_BYTES}."
            )
        return struct.pack(f"<B{MAX_NAME_BYTES}s{ARGUMENT_BYTES}s", self.type_id, name, self.arguments)

    @classmethod
    def parse(cls, data: bytes, path: str, place: int) -> FieldDescriptor:
        """Return the descriptor in 1041 bytes.

        Args:
            data: the bytes.
            path: said by errors.
            place: of the bytes in the file, said by errors.

        Raises:
            FormatError: a name that is empty or not ASCII.
        """
        name = data[1 : 1 + MAX_NAME_BYTES].split(b"\0", 1)[0]
        if not name or not name.isascii():
            raise FormatError(f"{path}: field name {name!r} at byte {place + 1}. Allowed: 1 to 16 ASCII characters.")
        return cls(data[0], name.decode("ascii"), data[1 + MAX_NAME_BYTES : DESCRIPTOR_BYTES])

    @classmethod
    def of_array(
        cls, name: str, shape: Sequence[int], dtype: npt.DTypeLike, type_id: int = FieldType.NDARRAY
    ) -> FieldDescriptor:
        """Return the descriptor of an ndarray or tensor field.

        Args:
            name: of the field.
            shape: 1 to 32 sizes; the last one is not 0, which a file cannot say.
            dtype: of the elements; not a structured one.
            type_id: ``FieldType.NDARRAY`` or ``FieldType.TENSOR``.

        Raises:
            FormatError: a shape or dtype that a file cannot say.
        """
        found = np.dtype(dtype)
        text = json.dumps(found.descr).encode("ascii")
        if found.fields is not None or found.subdtype is not None or found.hasobject or len(text) > MAX_TYPE_BYTES:
            raise FormatError(f"field {name!r}: dtype {found} does not fit a .beton file. Allowed: plain numpy dtypes.")
        if not 1 <= len(shape) <= MAX_DIMENSIONS or shape[-1] == 0:
            raise FormatError(
                f"field {name!r}: shape {tuple(shape)} does not fit a .beton file. "
                f"Allowed: 1 to {MAX_DIMENSIONS} sizes, the last of them 1 or more."
            )
        sizes = struct.pack(f"<{MAX_DIMENSIONS}Q", *shape, *[0] * (MAX_DIMENSIONS - len(shape)))
        return cls(type_id, name, sizes + struct.pack("<Q", len(text)) + text)

    def array_type(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of an ndarray or tensor field.

        Raises:
            FormatError: the arguments say none; the message does not name the file.
        """
        arguments = self.arguments.ljust(ARGUMENT_BYTES, b"\0")
        sizes = struct.unpack_from(f"<{MAX_DIMENSIONS}Q", arguments)
        rank = max((axis + 1 for axis, size in enumerate(sizes) if size), default=0)
        (length,) = struct.unpack_from("<Q", arguments, 8 * MAX_DIMENSIONS)
        if length > MAX_TYPE_BYTES:
            raise FormatError(f"a dtype of {length} characters. Allowed: {MAX_TYPE_BYTES}.")
        start = 8 * MAX_DIMENSIONS + 8
        return sizes[:rank], _parsed_dtype(arguments[start : start + length])


@dataclass(frozen=True, slots=True)
class BetonLayout:
    """Where everything lies in a file, and what a row is.

    Args:
        header: of the file.
        fields: in the file's order; names are unique.
        rows: what a sample's row is, see `row_dtype`.

    Example:
        >>> fields = [FieldDescriptor(2, "image"), FieldDescriptor(1, "label")]
        >>> layout = BetonLayout(Header(2, 1 << 21, 64, 1 << 22), tuple(fields), row_dtype(fields))
        >>> layout.rows_start, layout.rows.itemsize, layout.rows_stop, layout.pages_start
        (2106, 24, 3642, 2097152)
    """

    header: Header
    fields: tuple[FieldDescriptor, ...]
    rows: np.dtype[Any]

    @property
    def rows_start(self) -> int:
        """Where the first sample's row begins."""
        return HEADER_BYTES + DESCRIPTOR_BYTES * len(self.fields)

    @property
    def rows_stop(self) -> int:
        """Where the last sample's row ends; no region is before that."""
        return self.rows_start + self.header.num_samples * self.rows.itemsize

    @property
    def pages_start(self) -> int:
        """Where a writer begins the first data page."""
        return -(-self.rows_stop // self.header.page_size) * self.header.page_size

    def to_bytes(self) -> bytes:
        """Return header and descriptors as a file has them.

        Raises:
            FormatError: a field that does not fit, see `FieldDescriptor.to_bytes`.
        """
        return self.header.to_bytes() + b"".join(each.to_bytes() for each in self.fields)

    @staticmethod
    def parse_fields(data: bytes, header: Header, path: str) -> tuple[FieldDescriptor, ...]:
        """Return the descriptors of a file.

        Args:
            data: how the file begins, header and all descriptors at least.
            header: of the file.
            path: said by errors.

        Raises:
            FormatError: cut off, a name that is none, or one that is there twice.
        """
        stop = HEADER_BYTES + DESCRIPTOR_BYTES * header.num_fields
        if len(data) < stop:
            raise FormatError(
                f"{path}: cut off at byte {len(data)}; its {header.num_fields} fields (byte 2) end at byte {stop}."
            )
        places = range(HEADER_BYTES, stop, DESCRIPTOR_BYTES)
        fields = tuple(FieldDescriptor.parse(data[at : at + DESCRIPTOR_BYTES], path, at) for at in places)
        seen: dict[str, int] = {}
        for at, each in zip(places, fields, strict=True):
            first = seen.setdefault(each.name, at)
            if first != at:
                raise FormatError(
                    f"{path}: two fields are called {each.name!r}, at bytes {first + 1} and {at + 1}. FFCV cuts names "
                    f"off after {MAX_NAME_BYTES} characters: write the file anew, with names that differ before."
                )
        return fields

    def check_size(self, num_bytes: int, path: str) -> None:
        """Raise FormatError unless rows and allocation table fit into a file of ``num_bytes`` bytes."""
        table_ptr = self.header.table_ptr
        if self.rows_stop > min(table_ptr, num_bytes):
            raise FormatError(
                f"{path}: {self.header.num_samples} samples (byte 8) of {self.rows.itemsize} bytes end at byte "
                f"{self.rows_stop}, behind the allocation table at {table_ptr} or the file's end at {num_bytes}."
            )
        if table_ptr > num_bytes or (num_bytes - table_ptr) % ALLOCATION_DTYPE.itemsize:
            raise FormatError(
                f"{path}: the allocation table at byte {table_ptr} (byte 16) and the file's end at {num_bytes} are not "
                f"a multiple of {ALLOCATION_DTYPE.itemsize} bytes apart: the file was cut off. Copy it again."
            )


def row_dtype(fields: Sequence[FieldDescriptor], custom: Mapping[str, npt.DTypeLike] | None = None) -> np.dtype[Any]:
    """Return what a sample's row is: a struct of the fields, each at a multiple of its alignment.

    Args:
        fields: with unique names.
        custom: what a row holds of fields that are not built in, or are read as something else, by name.

    Raises:
        FormatError: a custom field that is not among them.

    Example:
        >>> fields = [FieldDescriptor(2, "image"), FieldDescriptor(3, "text"), FieldDescriptor(0, "weight")]
        >>> found = row_dtype(fields)
        >>> [found.fields[name][1] for name in found.names], found.itemsize
        ([0, 13, 32], 40)
    """
    custom = custom or {}
    formats, offsets, alignments, stop = [], [], [1], 0
    for each in fields:
        given = custom.get(each.name, ROW_TYPES.get(each.type_id))
        if given is None:
            raise FormatError(f"field {each.name!r} is of type {each.type_id}: what a row holds of it is not known.")
        found = np.dtype(given)
        alignment = _alignment(found)
        offset = -(-stop // alignment) * alignment
        formats.append(found)
        offsets.append(offset)
        alignments.append(alignment)
        stop = offset + found.itemsize
    itemsize = -(-stop // max(alignments)) * max(alignments)
    return np.dtype(
        {"names": [each.name for each in fields], "formats": formats, "offsets": offsets, "itemsize": itemsize}
    )


def _alignment(dtype: np.dtype[Any]) -> int:
    # 8-byte numbers are aligned to 4 by some 32-bit compilers, and numpy follows them; FFCV's files are of 64-bit ones
    return dtype.itemsize if dtype.fields is None and dtype.kind in "iuf" else dtype.alignment


def _parsed_dtype(text: bytes) -> np.dtype[Any]:
    """Return the dtype that the JSON of a numpy ``dtype.descr`` names."""
    try:
        ((name, code),) = parse_json(text.decode("ascii"))
        if name != "" or not isinstance(code, str) or "," in code:
            raise ValueError("not one unnamed entry")
        found = np.dtype(code)
    except (ValueError, TypeError, SyntaxError, OverflowError) as error:
        raise FormatError(f'dtype {text[:80]!r} is not one of numpy, such as [["", "<f4"]].') from error
    if found.hasobject or found.fields is not None or found.itemsize == 0:
        raise FormatError(f"dtype {text[:80]!r} has no fixed size. Allowed: plain numpy dtypes.")
    return found
