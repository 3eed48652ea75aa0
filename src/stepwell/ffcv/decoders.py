"""FFCV's seven decoders: each reads by stepwell's loader where the file allows it, and by FFCV's protocol elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.layout import JPEG_MODE
from stepwell.codecs import Codec, Decoder, make_codec
from stepwell.errors import FormatError, WindowError
from stepwell.ffcv.pipeline import Allocation, AllocationQuery, Compiler, Operation, State, as_python, memcpy
from stepwell.ffcv.transforms import AsOpencv, OpencvRandomResizedCrop, OpencvResize, random_draws
from stepwell.schema import Image
from stepwell.transforms.cropping import Box, Resizing

__all__ = [
    "BasicDecoder",
    "BytesDecoder",
    "CenterCropRGBImageDecoder",
    "FloatDecoder",
    "IntDecoder",
    "NDArrayDecoder",
    "RandomResizedCropRGBImageDecoder",
    "ResizedCropRGBImageDecoder",
    "SimpleRGBImageDecoder",
    "get_center_crop",
    "get_random_crop",
    "imdecode",
    "resize_crop",
]


class FieldDecoder(Operation):
    """A decoder that stepwell's loader can stand for."""

    @property
    def field_decoder(self) -> Decoder | None:
        """The decoder of a `stepwell.Field` that reads the same."""
        return None

    def finished(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return what the field reads as FFCV has it."""
        return values


class BasicDecoder(FieldDecoder):
    """Numbers that stand in the samples' rows, [B, 1]; a subclass sets ``dtype``.

    Example:
        >>> class ByteDecoder(BasicDecoder):
        ...     dtype = np.dtype("u1")
        >>> out, metadata = np.empty((2, 1), "u1"), np.array([5, 6, 7], "u1")
        >>> ByteDecoder().generate_code()(np.array([2, 0]), out, metadata, None).tolist()
        [[7], [5]]
    """

    dtype: np.dtype[Any]

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return a number of the dtype; see `Operation.declare_state_and_memory`."""
        state = replace(previous_state, jit_mode=True, shape=(1,), dtype=self.dtype)
        return state, AllocationQuery((1,), self.dtype)

    def generate_code(self) -> Callable[..., Any]:
        """Return what copies the numbers; see `Operation.generate_code`."""

        def decode(indices: Any, destination: Any, metadata: Any, storage_state: Any) -> Any:
            destination[:, 0] = metadata[indices]
            return destination

        return as_python(decode)

    def finished(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the numbers as [B, 1]; see `FieldDecoder.finished`."""
        return values.astype(self.dtype, copy=False)[:, None]


class IntDecoder(BasicDecoder):
    """Whole numbers, int64 [B, 1]."""

    dtype = np.dtype("<i8")


class FloatDecoder(BasicDecoder):
    """Numbers, float64 [B, 1]."""

    dtype = np.dtype("<f8")


class NDArrayDecoder(FieldDecoder):
    """Arrays of the field's shape and dtype, tensors as well."""

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the field's shape and dtype; see `Operation.declare_state_and_memory`."""
        shape, dtype = tuple(self.field.shape), np.dtype(getattr(self.field, "np_dtype", self.field.dtype))
        return replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), AllocationQuery(shape, dtype)

    def generate_code(self) -> Callable[..., Any]:
        """Return what copies the arrays; see `Operation.generate_code`."""
        read = self.memory_read

        def decode(indices: Any, destination: Any, metadata: Any, storage_state: Any) -> Any:
            flat = destination.reshape(len(indices), -1).view(np.uint8)
            for row, ptr in zip(flat, metadata[indices], strict=True):
                data = read(ptr, storage_state)
                if data.size != row.size:
                    raise FormatError(f"an array of {data.size} bytes at {ptr}, where the field has {row.size}.")
                memcpy(data, row)
            return destination

        return as_python(decode)


class BytesDecoder(Operation):
    """Bytes, uint8 [B, n]: n is the length of the file's longest value, shorter ones end with zeros."""

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return as many bytes as the longest value has; see `Operation.declare_state_and_memory`."""
        shape = (int(self.metadata["size"].max()),)
        dtype = np.dtype(np.uint8)
        return replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), AllocationQuery(shape, dtype)

    def generate_code(self) -> Callable[..., Any]:
        """Return what copies the bytes; see `Operation.generate_code`."""
        read = self.memory_read

        def decode(indices: Any, destination: Any, metadata: Any, storage_state: Any) -> Any:
            destination[:] = 0
            rows = metadata[indices]
            for out, ptr, size in zip(destination, rows["ptr"], rows["size"], strict=True):
                if size:
                    memcpy(read(ptr, storage_state)[:size], out)
            return destination

        return as_python(decode)


class SimpleRGBImageDecoder(FieldDecoder):
    """Images of one size, as they are: uint8 [B, height, width, 3].

    Raises:
        TypeError: images of several sizes.
    """

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the images' size; see `Operation.declare_state_and_memory`."""
        sides = [(int(self.metadata[name].min()), int(self.metadata[name].max())) for name in ("height", "width")]
        if any(least != most for least, most in sides):
            raise TypeError(
                f"SimpleRGBImageDecoder of images of {sides[0][0]} to {sides[0][1]} rows and {sides[1][0]} to "
                f"{sides[1][1]} columns: it takes one size. Use RandomResizedCropRGBImageDecoder or "
                "CenterCropRGBImageDecoder."
            )
        return self._declared(previous_state, (sides[0][0], sides[1][0]))

    def generate_code(self) -> Callable[..., Any]:
        """Return what decodes the images; see `Operation.generate_code`."""
        return self._generated(lambda pixels, out: np.copyto(out, pixels))

    @staticmethod
    def _declared(previous_state: State, sides: tuple[int, int]) -> tuple[State, Allocation]:
        shape, dtype = (*sides, 3), np.dtype(np.uint8)
        return replace(previous_state, jit_mode=True, shape=shape, dtype=dtype), AllocationQuery(shape, dtype)

    def _generated(self, make: Callable[[npt.NDArray[np.uint8], npt.NDArray[np.uint8]], None]) -> Callable[..., Any]:
        """Return what decodes the images of a batch and lets ``make`` write what it makes of each."""
        read, threads, codec = self.memory_read, Compiler.num_threads, _jpeg_codec()
        pool = ThreadPoolExecutor(threads) if threads > 1 else None

        def decode_one(row: Any, out: Any, storage_state: Any) -> None:
            data = read(row["data_ptr"], storage_state)
            shape = (int(row["height"]), int(row["width"]), 3)
            make(codec.decode(data) if row["mode"] == JPEG_MODE else data.reshape(shape), out)

        def decode(indices: Any, destination: Any, metadata: Any, storage_state: Any) -> Any:
            each = map if pool is None else pool.map
            list(each(decode_one, metadata[indices], destination, [storage_state] * len(indices)))
            return destination

        return as_python(decode)


class ResizedCropRGBImageDecoder(SimpleRGBImageDecoder):
    """Images of any sizes: a part of each, resized by the mean of what a pixel covers.

    A subclass of one's own sets ``scale`` and ``ratio``, and has a property ``get_crop_generator``: a function of
    (height, width, scale, ratio) that returns top, left, height and width of the part.

    Args:
        output_size: height and width of what comes out.
    """

    scale: Any = None
    ratio: Any = None

    def __init__(self, output_size: Sequence[int]) -> None:
        super().__init__()
        self.output_size = output_size

    @property
    def get_crop_generator(self) -> Callable[..., Any]:
        """The function that says what part is taken."""
        crop = self.crop

        def of_size(height: int, width: int, scale: Any, ratio: Any) -> Box:
            draw = crop.draw(Image((None, None, 3)), random_draws(1))
            return crop.box(height, width, () if draw is None else draw[0].tolist())

        return of_size

    @property
    def crop(self) -> Resizing:
        """What stepwell calls the decoder."""
        return OpencvResize(self._size)

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return the size that comes out; see `Operation.declare_state_and_memory`."""
        return self._declared(previous_state, self._size)

    @property
    def _size(self) -> tuple[int, int]:
        height, width = self.output_size
        return int(height), int(width)

    def generate_code(self) -> Callable[..., Any]:
        """Return what decodes, cuts and resizes the images; see `Operation.generate_code`."""
        crop_of, scale, ratio = self.get_crop_generator, self.scale, self.ratio
        whole = OpencvResize(self._size)

        def make(pixels: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
            top, left, height, width = map(int, crop_of(*pixels.shape[:2], scale, ratio))
            whole.convert(np.ascontiguousarray(pixels[top : top + height, left : left + width]), out, None)

        return self._generated(make)

    @property
    def field_decoder(self) -> Decoder | None:
        """The crop; see `FieldDecoder.field_decoder`."""
        return self.crop


class RandomResizedCropRGBImageDecoder(ResizedCropRGBImageDecoder):
    """Images of any sizes: a random part of each, resized.

    Args:
        output_size: height and width of what comes out.
        scale: least and largest part of the area.
        ratio: least and largest width for a height of 1.
    """

    def __init__(
        self,
        output_size: Sequence[int],
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (0.75, 4 / 3),
    ) -> None:
        super().__init__(output_size)
        self.scale, self.ratio = scale, ratio

    @property
    def crop(self) -> Resizing:
        """What stepwell calls the decoder."""
        options: dict[str, Any] = {"scale": tuple(self.scale), "ratio": tuple(self.ratio)}
        return OpencvRandomResizedCrop(self._size, **options)


class CenterCropRGBImageDecoder(ResizedCropRGBImageDecoder):
    """Images of any sizes: a square in the middle, resized.

    Args:
        output_size: height and width of what comes out.
        ratio: side of the square, for a shorter side of 1: above 0 to 1. It has a pixel at least.

    Raises:
        WindowError: another ratio.
    """

    def __init__(self, output_size: Sequence[int], ratio: float) -> None:
        super().__init__(output_size)
        if not 0 < ratio <= 1:
            raise WindowError(f"CenterCropRGBImageDecoder with ratio={ratio}. Allowed: above 0 to 1.")
        self.ratio = ratio

    @property
    def crop(self) -> Resizing:
        """What stepwell calls the decoder."""
        return CenterSquare(self._size, part=self.ratio)


@dataclass(frozen=True)
class CenterSquare(AsOpencv, Resizing):
    """A square in the middle, whatever form comes out, resized as by OpenCV's INTER_AREA."""

    part: float = 1.0

    def box(self, height: int, width: int, numbers: Sequence[float]) -> Box:
        """Return the square; see `CutDecoder.box`."""
        side = max(int(self.part * min(height, width)), 1)
        return (height - side) // 2, (width - side) // 2, side, side


@cache
def _jpeg_codec() -> Codec:
    return make_codec(Image((None, None, 3), codec="jpeg", dct="fast"))


def get_random_crop(height: int, width: int, scale: Sequence[float], ratio: Sequence[float]) -> Box:
    """Return top, left, height and width of a random part, by FFCV's law and numpy's global generator.

    Example:
        >>> top, left, height, width = get_random_crop(480, 640, (0.08, 1.0), (3 / 4, 4 / 3))
        >>> 0 <= top <= 480 - height and 0 <= left <= 640 - width
        True
    """
    options: dict[str, Any] = {"scale": tuple(map(float, scale)), "ratio": tuple(map(float, ratio))}
    crop = OpencvRandomResizedCrop(1, **options)
    return crop.box(int(height), int(width), crop.numbers(random_draws(1), 1)[0, 0].tolist())


def get_center_crop(height: int, width: int, _: Any, ratio: float) -> Box:
    """Return top, left, height and width of the square in the middle whose side is so much of the shorter one.

    Example:
        >>> get_center_crop(480, 640, None, 0.875)
        (30, 110, 420, 420)
    """
    return CenterSquare(1, part=float(ratio)).box(int(height), int(width), ())


def resize_crop(  # noqa: PLR0917  FFCV's order
    source: npt.NDArray[Any], start_row: int, end_row: int, start_col: int, end_col: int, destination: npt.NDArray[Any]
) -> None:
    """Resize a part of an image [height, width, 3] to that of ``destination``, as OpenCV's INTER_AREA does."""
    part = np.ascontiguousarray(source[int(start_row) : int(end_row), int(start_col) : int(end_col)])
    height, width = destination.shape[:2]
    OpencvResize((height, width)).convert(part, destination, None)


# FFCV's further arguments of imdecode
DECODING = (
    "crop_height",
    "crop_width",
    "offset_x",
    "offset_y",
    "scale_factor_num",
    "scale_factor_denom",
    "enable_crop",
    "do_flip",
)


def imdecode(
    source: npt.NDArray[np.uint8],
    dst: npt.NDArray[np.uint8],
    source_height: int,
    source_width: int,
    *parts: Any,
    **more: Any,
) -> int:
    """Decode a JPEG file to RGB, as FFCV does.

    Args:
        source: the file.
        dst: contiguous; its first bytes are written.
        source_height: of the image.
        source_width: of the image.
        parts: FFCV's further arguments: height and width of a part, where it begins, numerator and denominator of a
            scale, whether to cut and to flip.
        more: the same by name.

    Raises:
        WindowError: a part, a scale or a flip, which are left to numpy here.
    """
    given = {"scale_factor_num": 1, "scale_factor_denom": 1, **dict(zip(DECODING, parts, strict=False)), **more}
    if given["scale_factor_num"] != given["scale_factor_denom"] or given.get("enable_crop") or given.get("do_flip"):
        raise WindowError("imdecode with a scale, enable_crop or do_flip. Decode it whole, then cut or flip the array.")
    pixels = _jpeg_codec().decode(np.ascontiguousarray(source))
    if pixels.shape[:2] != (source_height, source_width):
        raise FormatError(f"an image of {pixels.shape[:2]}, where its row says {(source_height, source_width)}.")
    dst.reshape(-1).view(np.uint8)[: pixels.size] = pixels.reshape(-1)
    return 0


as_python(get_random_crop)
as_python(get_center_crop)
as_python(resize_crop)
as_python(imdecode)
