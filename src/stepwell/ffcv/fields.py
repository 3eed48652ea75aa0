"""The fields of a sample, by FFCV's names; FFCV's own modules of fields are names of this one."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import (
    ArrayEncoder,
    BytesEncoder,
    Encoder,
    FloatEncoder,
    ImageEncoder,
    IntEncoder,
    JsonEncoder,
    WriteMode,
)
from stepwell.beton.layout import FieldDescriptor, FieldType
from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.json_text import parse_json

__all__ = [
    "BytesField",
    "Field",
    "FloatField",
    "IntField",
    "JSONField",
    "NDArrayField",
    "RGBImageField",
    "TorchTensorField",
    "encoder_of",
]

# modules of ffcv.fields, which scripts import by these names
for _module in ("base", "basics", "bytes", "json", "ndarray", "rgb_image"):
    sys.modules[f"{__name__}.{_module}"] = sys.modules[__name__]

# the methods of an FFCV field that has a format of its own
OWN_FORMAT = ("metadata_type", "to_binary", "from_binary", "get_decoder_class")
ALLOWED = "It must call super().encode(destination, value, malloc) once: what writes bytes itself, only FFCV can call."


class Field(ABC):
    """A field of a sample; use one of its subclasses.

    A subclass of one's own may make another value of each, in `encode`. One that has a format of its own (FFCV's
    ``metadata_type``, ``to_binary``, ``from_binary``, ``get_decoder_class``) is refused: such fields are written by
    FFCV, and read by stepwell (`stepwell.beton.register_beton_field`).

    Notes:
        A value that is sent to workers.
    """

    @property
    @abstractmethod
    def encoder(self) -> Encoder:
        """How its values are written."""

    def encode(self, destination: Any, field: Any, malloc: Any) -> None:
        """Write a value: to be called by a subclass's own, ``super().encode(destination, value, malloc)``.

        Args:
            destination: as the subclass got it.
            field: the value, such as the field takes.
            malloc: as the subclass got it.
        """
        destination.values.append(field)


class IntField(Field):
    """A whole number, int64. A float that is none, such as 1.5, is refused, not cut off."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return IntEncoder()


class FloatField(Field):
    """A number, float64."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return FloatEncoder()


class BytesField(Field):
    """Bytes of any length: a uint8 array of one axis, a bytes object, or a text (UTF-8). Empty ones do no harm."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return BytesEncoder()


class JSONField(Field):
    """A value that JSON holds, as a text."""

    @staticmethod
    def unpack(batch: Any) -> Any:
        r"""Return the values of texts that FFCV's loader gave, as its own ``unpack`` does.

        Args:
            batch: uint8 [n] or [B, n], an array or a tensor: texts that end with a NUL.

        Returns:
            A value, or a list of B.

        Raises:
            DecodeError: a text that is no JSON.

        Example:
            >>> JSONField.unpack(np.frombuffer(b'{"a": 1}\x00??', np.uint8))
            {'a': 1}
        """
        texts = np.asarray(batch, np.uint8)
        found = [_unpacked(text) for text in texts.reshape(-1, texts.shape[-1])]
        return found if texts.ndim > 1 else found[0]

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return JsonEncoder()


class NDArrayField(Field):
    """Arrays of one dtype and shape.

    Args:
        dtype: of numpy. FFCV cannot decode float16.
        shape: one axis or more.

    Raises:
        SchemaError: a dtype or shape that a file cannot hold.

    Example:
        >>> NDArrayField("float32", (16, 10)).encoder.num_bytes
        640
    """

    def __init__(self, dtype: npt.DTypeLike, shape: Sequence[int]) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        self._encoder = ArrayEncoder(self.shape, dtype)

    @property
    def encoder(self) -> ArrayEncoder:
        """How its values are written."""
        return self._encoder


class TorchTensorField(Field):
    """Tensors of one dtype and shape.

    Args:
        dtype: of torch.
        shape: one axis or more.

    Raises:
        SchemaError: a dtype or shape that a file cannot hold.
    """

    def __init__(self, dtype: Any, shape: Sequence[int]) -> None:
        import torch

        try:
            plain = torch.zeros(0, dtype=dtype).numpy().dtype
        except TypeError as error:
            raise SchemaError(f"dtype {dtype} is none of numpy. Allowed: those that tensor.numpy() takes.") from error
        self.dtype, self.shape = dtype, tuple(shape)
        self._encoder = ArrayEncoder(self.shape, plain, FieldType.TENSOR)

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return self._encoder


class RGBImageField(Field):
    """RGB images: uint8 [height, width, 3], PIL images, or the bytes of JPEG files.

    Args:
        write_mode: "raw" (default), "jpg", "smart" or "proportion"; see `stepwell.beton.encoding.ImageEncoder`.
        max_resolution: the longest side; larger images become smaller.
        smart_threshold: bytes of pixels above which "smart" writes JPEG; None: it never does, as in FFCV.
        jpeg_quality: 1 to 100, default 90.
        compress_probability: of JPEG with "proportion"; drawn by the number of the sample, the same in every run.

    Raises:
        SchemaError: an option that is not allowed.
        MissingDependencyError: simplejpeg is not installed, and JPEG is asked for.
    """

    def __init__(
        self,
        write_mode: WriteMode = "raw",
        max_resolution: int | None = None,
        smart_threshold: int | None = None,
        jpeg_quality: int = 90,
        compress_probability: float | None = 0.5,
    ) -> None:
        # scripts pass None where the mode does not ask for it
        probability = 0.5 if compress_probability is None else float(compress_probability)
        options: dict[str, Any] = {"smart_threshold": smart_threshold, "compress_probability": probability}
        self._encoder = ImageEncoder(write_mode, max_resolution, jpeg_quality=int(jpeg_quality), **options)

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return self._encoder


def encoder_of(name: str, field: Any) -> Encoder:
    """Return how the values of a field are written."""
    if not isinstance(field, Field):
        raise SchemaError(
            f"field {name!r} is a {type(field).__module__}.{type(field).__qualname__}. Allowed: those of "
            "stepwell.ffcv.fields; custom fields are written by FFCV itself."
        )
    own = [method for method in OWN_FORMAT if hasattr(type(field), method)]
    if own:
        raise SchemaError(
            f"field {name!r}: {type(field).__qualname__} defines {', '.join(own)}: a format of its own, "
            "which only FFCV writes. Allowed: subclasses that define encode(), and call "
            "super().encode(destination, value, malloc)."
        )
    return field.encoder if type(field).encode is Field.encode else _OwnEncoder(field)


class _Destination:
    """Stands for the row that FFCV gives to ``encode``: takes the values that `Field.encode` is called with."""

    def __init__(self) -> None:
        self.values: list[Any] = []


class _OwnEncoder(Encoder):
    """The values that a subclass's ``encode`` makes, as the field writes them."""

    def __init__(self, field: Field) -> None:
        self._field, self._encoder = field, field.encoder
        self.has_region = self._encoder.has_region  # type: ignore[misc]  # of each field

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of the field; see `Encoder.descriptor`."""
        return self._encoder.descriptor(name)

    def encode(self, value: Any, sample: int) -> tuple[Any, Any]:
        """Return cell and region of what the subclass makes of a value; see `Encoder.encode`."""
        destination = _Destination()
        try:
            self._field.encode(destination, value, _no_memory)
        except (AttributeError, TypeError) as error:
            raise StepError(f"{self._name}.encode: {error}. {ALLOWED}") from error
        if len(destination.values) != 1:
            raise StepError(f"{self._name}.encode gave {len(destination.values)} values. {ALLOWED}")
        return self._encoder.encode(destination.values[0], sample)

    def fill(
        self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """Write the field's part of rows; see `Encoder.fill`."""
        self._encoder.fill(rows, cells, ptrs, sizes)

    @property
    def _name(self) -> str:
        return type(self._field).__qualname__


def _no_memory(size: int) -> Any:
    raise StepError(ALLOWED)


def _unpacked(text: npt.NDArray[np.uint8]) -> Any:
    data = text.tobytes().partition(b"\0")[0]
    try:
        return parse_json(data)
    except ValueError as error:
        raise DecodeError(f"{data[:40]!r} is no JSON: {error}.") from error
