"""Values of samples as a ``.beton`` file has them: a number in the sample's row, or a region that the row points to.

::

    value ──> Encoder.encode ──> cell, what stands in the row beside a ptr: a number, an image's mode and sides
                            └──> region, bytes; None where the row has it all
    cells, ptrs, sizes ──> Encoder.fill ──> the field's part of the rows
"""

from __future__ import annotations

import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.beton.layout import MAX_NAME_BYTES, FieldDescriptor, FieldType
from stepwell.errors import FormatError, SchemaError, StepError

__all__ = [
    "ArrayEncoder",
    "BytesEncoder",
    "Encoder",
    "FloatEncoder",
    "IntEncoder",
    "JsonEncoder",
    "Region",
    "check_names",
    "encode_named",
]

Region = bytes | memoryview
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class Encoder(ABC):
    """How the values of a field are written.

    Attributes:
        has_region: whether a value is a region of its own.

    Notes:
        An immutable value that is sent to workers.
    """

    has_region: ClassVar[bool] = True

    @abstractmethod
    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of a field of this kind."""

    @abstractmethod
    def encode(self, value: Any, sample: int) -> tuple[Any, Region | None]:
        """Return cell and region of a value.

        Args:
            value: as the dataset gives it.
            sample: number of the sample in the file.

        Raises:
            StepError: a value that the field cannot hold.
        """

    @abstractmethod
    def fill(
        self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """Write the field's part of rows.

        Args:
            rows: [n], of the field's type in a row; written.
            cells: n of them, from `encode`.
            ptrs: int64 [n], where the regions went.
            sizes: int64 [n], of the regions.
        """


@dataclass(frozen=True, slots=True)
class IntEncoder(Encoder):
    """An int64 in the row.

    Example:
        >>> IntEncoder().encode(np.uint8(7), 0)
        (7, None)
    """

    has_region: ClassVar[bool] = False

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor(FieldType.INT, name)

    def encode(self, value: Any, sample: int) -> tuple[int, None]:
        """Return the number; see `Encoder.encode`."""
        try:
            number = operator.index(value)
        except TypeError:
            number = _whole(value)
        if not INT64_MIN <= number <= INT64_MAX:
            raise StepError(f"got {number}, which int64 cannot hold.")
        return number, None

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write the numbers; see `Encoder.fill`."""
        rows[:] = cells


@dataclass(frozen=True, slots=True)
class FloatEncoder(Encoder):
    """A float64 in the row."""

    has_region: ClassVar[bool] = False

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor(FieldType.FLOAT, name)

    def encode(self, value: Any, sample: int) -> tuple[float, None]:
        """Return the number; see `Encoder.encode`."""
        if type(value) is float:
            return value, None
        return float(_number(value, "a number")), None

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write the numbers; see `Encoder.fill`."""
        rows[:] = cells


@dataclass(frozen=True, slots=True)
class BytesEncoder(Encoder):
    """Bytes of any length: an array [n] of whole numbers from 0 to 255, bytes, or a text, which becomes UTF-8."""

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor(FieldType.BYTES, name)

    def encode(self, value: Any, sample: int) -> tuple[None, Region]:
        """Return the bytes; see `Encoder.encode`."""
        if isinstance(value, bytes | bytearray | memoryview):
            return None, memoryview(value).cast("B")
        if isinstance(value, str):
            return None, value.encode()
        found = np.asarray(_on_host(value))
        # FFCV casts whatever it gets; what is cast here is the same number afterwards
        is_whole = found.ndim == 1 and found.dtype.kind in "biuf" and bool(((found >= 0) & (found <= 255)).all())
        if not is_whole or (found.dtype.kind == "f" and bool((found % 1).any())):
            raise StepError(
                f"got {_brief(value)}. Allowed: bytes, a text, or an array of one axis of whole numbers from 0 to 255."
            )
        return None, np.ascontiguousarray(found, np.uint8).data

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write ptrs and sizes; see `Encoder.fill`."""
        rows["ptr"], rows["size"] = ptrs, sizes


@dataclass(frozen=True, slots=True)
class JsonEncoder(Encoder):
    r"""What JSON holds, as a text that ends with a NUL.

    Example:
        >>> JsonEncoder().encode({"a": [1, None]}, 0)
        (None, b'{"a": [1, null]}\x00')
    """

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor(FieldType.JSON, name)

    def encode(self, value: Any, sample: int) -> tuple[None, Region]:
        """Return the text; see `Encoder.encode`."""
        try:
            return None, json.dumps(value).encode() + b"\0"
        except (TypeError, ValueError) as error:
            raise StepError(f"got what JSON does not hold: {error}.") from error

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write ptrs and sizes; see `Encoder.fill`."""
        rows["ptr"], rows["size"] = ptrs, sizes


class ArrayEncoder(Encoder):
    """Arrays of one shape and dtype.

    Args:
        shape: of an array, at least one axis; sizes of 1 or more.
        dtype: plain numpy dtype; stored little-endian.
        type_id: ``FieldType.NDARRAY`` or ``FieldType.TENSOR``: what FFCV calls the field.

    Raises:
        SchemaError: a shape or dtype that a file cannot hold.

    Example:
        >>> cell, region = ArrayEncoder((2,), "float32").encode(np.ones(2, "float32"), 0)
        >>> len(region)
        8
    """

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike, type_id: FieldType = FieldType.NDARRAY) -> None:
        self.shape = tuple(operator.index(size) for size in shape)
        self.dtype = np.dtype(dtype).newbyteorder("<")
        self.type_id = type_id
        self.num_bytes = math.prod(self.shape) * self.dtype.itemsize
        if not self.shape or min(self.shape) < 1:
            raise SchemaError(f"shape {self.shape} does not fit a .beton file. Allowed: one axis or more, none of 0.")
        try:
            self.descriptor("array").array_type()
        except FormatError as error:
            raise SchemaError(f"{self.dtype} {self.shape}: {error}") from error

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of it."""
        return FieldDescriptor.of_array(name, self.shape, self.dtype, self.type_id)

    def encode(self, value: Any, sample: int) -> tuple[None, Region]:
        """Return the elements; see `Encoder.encode`. As many in another shape are taken, as FFCV does."""
        found = np.asarray(_on_host(value))
        if found.size != math.prod(self.shape):
            raise StepError(f"got shape {found.shape}, the field has {self.shape}.")
        if found.dtype != self.dtype and not np.can_cast(found.dtype, self.dtype, "safe"):
            raise StepError(f"got dtype {found.dtype}, the field has {self.dtype}. Convert it, or change the field.")
        return None, np.ascontiguousarray(found, self.dtype).reshape(-1).view(np.uint8).data

    def fill(self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: Any, sizes: Any) -> None:
        """Write the ptrs; see `Encoder.fill`."""
        rows[:] = ptrs


def check_names(names: Iterable[str], cure: str) -> None:
    """Refuse names of fields that a file would not keep apart: FFCV cuts them off, without a word.

    Args:
        names: of all fields.
        cure: how the caller gives other names, for the message.

    Raises:
        SchemaError: a name that is not ASCII, empty or longer than 16 characters, or two that are equal.

    Example:
        >>> check_names(["image", "observation.state"], "rename={...}")
        Traceback (most recent call last):
        stepwell.errors.SchemaError: field name 'observation.state' has 17 characters, FFCV would cut it to \
'observation.stat'. Allowed: 1 to 16 ASCII characters. Give another name: rename={...}.
    """
    found = list(names)
    if not found:
        raise SchemaError("no fields to write. A .beton file has at least one.")
    for name in found:
        if not isinstance(name, str) or not name.isascii() or not name or not name.isprintable():
            raise SchemaError(
                f"field name {name!r}. Allowed: 1 to {MAX_NAME_BYTES} ASCII characters. Give another name: {cure}."
            )
        if len(name) > MAX_NAME_BYTES:
            raise SchemaError(
                f"field name {name!r} has {len(name)} characters, FFCV would cut it to {name[:MAX_NAME_BYTES]!r}. "
                f"Allowed: 1 to {MAX_NAME_BYTES} ASCII characters. Give another name: {cure}."
            )
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(f"two fields are called {twice!r}. Give one of them another name: {cure}.")


def encode_named(encoders: Mapping[str, Encoder], values: Sequence[Any], sample: int) -> list[tuple[Any, Any]]:
    """Return cell and region of each field of a sample.

    Raises:
        StepError: a value that its field cannot hold; names it.
    """
    found = []
    for (name, encoder), value in zip(encoders.items(), values, strict=True):
        try:
            found.append(encoder.encode(value, sample))
        except StepError as error:
            raise StepError(f"field {name!r}: {error}") from error
    return found


def _whole(value: Any) -> int:
    """Return a whole number that comes as a float, or as an array of one."""
    number = _number(value, "a whole number")
    if not float(number).is_integer():
        raise StepError(f"got {_brief(value)}. Allowed: a whole number.")
    return int(number)


def _number(value: Any, allowed: str) -> Any:
    """Return the number in an array of one element, or in a tensor; a number itself is one, too."""
    found = np.asarray(_on_host(value))
    if found.size != 1 or found.dtype.kind not in "biuf":
        raise StepError(f"got {_brief(value)}. Allowed: {allowed}.")
    return found.reshape(()).item()


def _on_host(value: Any) -> Any:
    """Return a tensor as an array; anything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") and hasattr(value, "cpu") else value


def _brief(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of dtype {getattr(value, 'dtype', '?')} and shape {tuple(shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"
