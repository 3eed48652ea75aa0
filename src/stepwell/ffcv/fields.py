"""The fields of a sample, by FFCV's names: how values are written, what a file says of them, and what decodes them."""

from __future__ import annotations

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
from stepwell.beton.layout import IMAGE_ROW, SIZED_ROW, FieldDescriptor, FieldType
from stepwell.errors import DecodeError, SchemaError
from stepwell.ffcv.decoders import (
    BasicDecoder,
    BytesDecoder,
    CenterCropRGBImageDecoder,
    FloatDecoder,
    IntDecoder,
    NDArrayDecoder,
    RandomResizedCropRGBImageDecoder,
    ResizedCropRGBImageDecoder,
    SimpleRGBImageDecoder,
    get_center_crop,
    get_random_crop,
)
from stepwell.ffcv.pipeline import Operation
from stepwell.json_text import parse_json

__all__ = [
    "ARG_TYPE",
    "FIELD_OF_TYPE",
    "BasicDecoder",
    "BytesDecoder",
    "BytesField",
    "CenterCropRGBImageDecoder",
    "Field",
    "FloatDecoder",
    "FloatField",
    "IntDecoder",
    "IntField",
    "JSONField",
    "NDArrayDecoder",
    "NDArrayField",
    "RGBImageField",
    "RandomResizedCropRGBImageDecoder",
    "ResizedCropRGBImageDecoder",
    "SimpleRGBImageDecoder",
    "TorchTensorField",
    "get_center_crop",
    "get_random_crop",
]

ARG_TYPE = np.dtype([("", "u1", 1024)])
"""What a file holds of a field's arguments."""


class Field:
    """A field of a sample; use one of its subclasses, or write one of your own as with FFCV.

    A class of one's own has `metadata_type`, `to_binary`, `from_binary`, `encode` and `get_decoder_class`; or extends
    one of these, and overrides what differs.

    Notes:
        A value that is sent to workers.
    """

    @property
    def encoder(self) -> Encoder:
        """How stepwell writes its values.

        Raises:
            SchemaError: a class of one's own, which has to say so itself, by `encode`.
        """
        raise SchemaError(f"{type(self).__qualname__} has no encode(destination, field, malloc). Define it.")

    @property
    def metadata_type(self) -> Any:
        """The numpy dtype of what a sample's row holds of the field."""
        raise SchemaError(f"{type(self).__qualname__} has no metadata_type. Define it: a numpy dtype.")

    @staticmethod
    def from_binary(binary: npt.NDArray[np.uint8]) -> Field:
        """Return the field that a file's arguments, uint8 [1024], describe.

        Raises:
            SchemaError: a class of one's own that does not define it.
        """
        raise SchemaError("a custom field without from_binary(binary). Define it: return the field.")

    def to_binary(self) -> Any:
        """Return the arguments that a file holds, of dtype `ARG_TYPE`."""
        result = np.zeros(1, ARG_TYPE)[0]
        arguments = np.frombuffer(self.encoder.descriptor("x").arguments, np.uint8)
        result[0][: len(arguments)] = arguments
        return result

    def encode(self, destination: Any, field: Any, malloc: Any) -> None:
        """Write a value.

        Args:
            destination: the field's part of the sample's row, [1] of `metadata_type`; written.
            field: the value.
            malloc: number of bytes to (ptr, uint8 [n] to write to): a region of the file.
        """
        # what is drawn for a sample follows from its number, which the writer's allocator knows
        sample = getattr(getattr(malloc, "__self__", None), "current_sample_id", 0)
        cell, region = self.encoder.encode(field, sample)
        ptr, size = 0, 0
        if region is not None:
            size = len(region)
            ptr, data = malloc(size)
            data[:] = np.frombuffer(region, np.uint8)
        self.encoder.fill(destination, [cell], np.array([ptr], np.int64), np.array([size], np.int64))

    def get_decoder_class(self) -> type[Operation]:
        """Return what decodes its values, unless a pipeline begins with something else."""
        raise SchemaError(f"{type(self).__qualname__} has no get_decoder_class(). Define it: a class of operations.")


class IntField(Field):
    """A whole number, int64. A float that is none, such as 1.5, is refused, not cut off."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return IntEncoder()

    @property
    def metadata_type(self) -> Any:
        """The row's part; see `Field.metadata_type`."""
        return np.dtype("<i8")

    @staticmethod
    def from_binary(binary: npt.NDArray[np.uint8]) -> Field:
        """Return the field; see `Field.from_binary`."""
        return IntField()

    def get_decoder_class(self) -> type[Operation]:
        """Return its decoder; see `Field.get_decoder_class`."""
        return IntDecoder


class FloatField(Field):
    """A number, float64."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return FloatEncoder()

    @property
    def metadata_type(self) -> Any:
        """The row's part; see `Field.metadata_type`."""
        return np.dtype("<f8")

    @staticmethod
    def from_binary(binary: npt.NDArray[np.uint8]) -> Field:
        """Return the field; see `Field.from_binary`."""
        return FloatField()

    def get_decoder_class(self) -> type[Operation]:
        """Return its decoder; see `Field.get_decoder_class`."""
        return FloatDecoder


class BytesField(Field):
    """Bytes of any length: a uint8 array of one axis, a bytes object, or a text (UTF-8). Empty ones do no harm."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return BytesEncoder()

    @property
    def metadata_type(self) -> Any:
        """The row's part; see `Field.metadata_type`."""
        return np.dtype(SIZED_ROW)

    @staticmethod
    def from_binary(binary: npt.NDArray[np.uint8]) -> Field:
        """Return the field; see `Field.from_binary`."""
        return BytesField()

    def get_decoder_class(self) -> type[Operation]:
        """Return its decoder; see `Field.get_decoder_class`."""
        return BytesDecoder


class JSONField(BytesField):
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

    @staticmethod
    def from_binary(binary: npt.NDArray[np.uint8]) -> Field:
        """Return the field; see `Field.from_binary`."""
        return JSONField()


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
    def element_size(self) -> int:
        """Bytes of a value."""
        return self._encoder.num_bytes

    @property
    def encoder(self) -> ArrayEncoder:
        """How its values are written."""
        return self._encoder

    @property
    def np_dtype(self) -> np.dtype[Any]:
        """Numpy's dtype of the elements."""
        return self._encoder.dtype

    @property
    def metadata_type(self) -> Any:
        """The row's part, a ptr; see `Field.metadata_type`."""
        return np.dtype("<u8")

    @staticmethod
    def from_binary(binary: npt.NDArray[np.uint8]) -> Field:
        """Return the field; see `Field.from_binary`."""
        shape, dtype = _array_type(binary)
        return NDArrayField(dtype, shape)

    def get_decoder_class(self) -> type[Operation]:
        """Return its decoder; see `Field.get_decoder_class`."""
        return NDArrayDecoder


class TorchTensorField(NDArrayField):
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

    @staticmethod
    def from_binary(binary: npt.NDArray[np.uint8]) -> Field:
        """Return the field, as an array's: torch is not needed; see `Field.from_binary`."""
        shape, dtype = _array_type(binary)
        return NDArrayField(dtype, shape)


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
        self.write_mode, self.max_resolution, self.smart_threshold = write_mode, max_resolution, smart_threshold
        self.jpeg_quality, self.proportion = int(jpeg_quality), probability
        # what is not allowed is refused now
        _ = self.encoder

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return ImageEncoder(
            self.write_mode, self.max_resolution, self.smart_threshold, self.jpeg_quality, self.proportion
        )

    @property
    def metadata_type(self) -> Any:
        """The row's part: mode, width, height, data_ptr; see `Field.metadata_type`."""
        return IMAGE_TYPE

    @staticmethod
    def from_binary(binary: npt.NDArray[np.uint8]) -> Field:
        """Return the field; see `Field.from_binary`."""
        return RGBImageField()

    def get_decoder_class(self) -> type[Operation]:
        """Return its decoder; see `Field.get_decoder_class`."""
        return SimpleRGBImageDecoder

    def encode(self, destination: Any, field: Any, malloc: Any) -> None:
        """Write an image; see `Field.encode`."""
        super().encode(destination.view(IMAGE_ROW), field, malloc)


IMAGE_TYPE = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])
"""The row's part of an image, by FFCV's names."""

FIELD_OF_TYPE: dict[int, type[Field]] = {
    FieldType.FLOAT: FloatField,
    FieldType.INT: IntField,
    FieldType.IMAGE: RGBImageField,
    FieldType.BYTES: BytesField,
    FieldType.NDARRAY: NDArrayField,
    FieldType.JSON: JSONField,
    FieldType.TENSOR: TorchTensorField,
}
"""The fields that are built in, by their types in a file."""


def _array_type(binary: npt.NDArray[np.uint8]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype that a file's arguments say."""
    return FieldDescriptor(FieldType.NDARRAY, "array", np.asarray(binary).tobytes()).array_type()


def _unpacked(text: npt.NDArray[np.uint8]) -> Any:
    data = text.tobytes().partition(b"\0")[0]
    try:
        return parse_json(data)
    except ValueError as error:
        raise DecodeError(f"{data[:40]!r} is no JSON: {error}.") from error
