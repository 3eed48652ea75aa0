"""Boxes of images, cut and resized: what crops, shifts and resizing are made of, as transforms and as decoders."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec
from stepwell.codecs.decoders import Decoder
from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.schema import Feature
from stepwell.transforms.images import ImageLayout, ImageTransform, check_dtype, check_layout, of_images
from stepwell.transforms.transform import Shape

__all__ = ["Box", "Cut", "CutDecoder", "Interpolation", "cut", "resize"]

Interpolation = Literal["linear", "area", "nearest"]
RESIZABLE = ("uint8", "uint16", "float16", "float32", "float64")
Color = float | Sequence[float]
# top, left, height and width
Box = tuple[int, int, int, int]
# an image of any size may be larger than whatever is cut out of it; one that is not is refused when it comes
UNBOUNDED = (sys.maxsize, sys.maxsize)


@dataclass(frozen=True, kw_only=True)
class Cut(ImageTransform):
    """A transform that makes an image of a box of it: cut out, or resized, or with a border where the box leaves it.

    Subclasses say which boxes, and of what size the images become.
    """

    resampling: ClassVar[bool] = False
    is_random: ClassVar[bool] = False

    @abstractmethod
    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that images get.

        Raises:
            WindowError: images of such a size cannot be cut.
        """

    @abstractmethod
    def boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        """Return top, left, height and width of boxes, int64 [B, number, 4]; [B, 1, 4] where nothing is drawn."""

    @property
    def kind(self) -> int:
        """How the kernel resizes."""
        return 0

    @property
    def copies_pixels(self) -> bool:
        """Whether no pixel is made of several: then values may be of any dtype."""
        return not self.resampling

    @property
    def border(self) -> Color | None:
        """What is outside of an image; None: its nearest pixel."""
        return None

    def output(self, shape: Any, dtype: Any = None) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and dtype afterwards; see `Transform.output`, and for a feature `Decoder.output`."""
        if isinstance(shape, Feature):
            return self._decoded(shape)
        layout = ImageLayout.of(shape)
        self._check_dtype(dtype)
        if self.border is not None:
            check_color(self.border, layout.channels, dtype, type(self).__name__)
        sides = self.sides(layout.height, layout.width)
        check_layout(layout, *sides, f"{type(self).__name__}")
        return layout.shape(*sides), dtype

    def _decoded(self, feature: Feature) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and dtype of a decoded step: a row is one image, however many channels it has."""
        if self.per_step:
            raise WindowError(
                f"{self!r} as a decoder: it has one draw a window. Use it as a transform, or per_step=False."
            )
        self._check_dtype(feature.np_dtype)
        if feature.is_image_of_any_size:
            sides = self.sides(*UNBOUNDED)
        else:
            ImageLayout.of(feature.fixed_shape)
            sides = self.sides(*feature.fixed_shape[:2])
        return (*sides, *(int(size or 0) for size in feature.shape[2:])), feature.np_dtype

    def _check_dtype(self, dtype: np.dtype[Any]) -> None:
        if not self.copies_pixels:
            check_dtype(dtype, RESIZABLE, f"{type(self).__name__}")

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images cut; see `Transform.__call__`."""
        layout = ImageLayout.of(values.shape[1:])
        images = layout.images(values)
        boxes = self.image_boxes(layout, draws)
        return layout.windows(self.cut(images, boxes, np.zeros(len(images), np.uint8)))

    def image_boxes(self, layout: ImageLayout, draws: Draws) -> npt.NDArray[np.int64]:
        """Return the box of each image, int64 [m, 4]."""
        return of_images(self.boxes(layout.height, layout.width, draws, self.draws_of(layout)), layout)

    def cut(
        self, images: npt.NDArray[Any], boxes: npt.NDArray[np.int64], flips: npt.NDArray[np.uint8]
    ) -> npt.NDArray[Any]:
        """Return the boxes of images [m, height, width, channels], flipped where ``flips`` (uint8 [m]) says so."""
        sides = self.sides(*images.shape[1:3])
        if self.resampling:
            return resize(images, boxes, flips, sides, self.kind)
        return cut(images, boxes, flips, sides, self.border)


@dataclass(frozen=True, kw_only=True)
class CutDecoder(Cut, Decoder):
    """A cut that can be made while an image is decoded, too: ``Field(..., decoder=RandomCrop(84))``.

    What is random is drawn as numbers that know nothing of an image's size: each row's box follows from its own.

    Notes:
        Both ways draw the same boxes, and give the same pixels. Of video see `stepwell.transforms.Resize`.
    """

    def numbers(self, draws: Draws, number: int) -> npt.NDArray[np.float64]:
        """Return what is random about ``number`` boxes a window, float64 [B, number, n]; n is 0 without."""
        return np.empty((len(draws), number, 0))

    def boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        """Return the one box of a cut that draws nothing; see `Cut.boxes`. To be overridden by others."""
        return np.tile(np.array(self.box(height, width, ()), np.int64), (len(draws), 1, 1))

    @abstractmethod
    def box(self, height: int, width: int, numbers: Sequence[float]) -> Box:
        """Return the box that numbers are in an image of a size: that of `boxes`, for one.

        Raises:
            WindowError: images of such a size cannot be cut.
        """

    def draw(self, feature: Feature, draws: Draws) -> npt.NDArray[Any] | None:
        """Return what is random about each window's box, float64 [B, n]; see `Decoder.draw`."""
        return self.numbers(draws, 1)[:, 0] if self.is_random else None

    def convert(self, pixels: npt.NDArray[Any], out: npt.NDArray[Any], draw: Any) -> None:
        """Make a step of a whole decoded image; see `Decoder.convert`."""
        height, width = pixels.shape[:2]
        box = self.box(height, width, () if draw is None else draw.tolist())
        if self.resampling:
            self._resize_into(pixels, box, out)
        else:
            top, left = box[:2]
            out[...] = pixels[top : top + out.shape[0], left : left + out.shape[1]]

    def decode(self, codec: Codec, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any], draw: Any) -> None:
        """Decode no more of an image than its box; see `Decoder.decode`."""
        size = codec.image_size(blob)
        if size is None:
            self.convert(codec.decode(blob), out, draw)
            return
        box = self.box(*size, () if draw is None else draw.tolist())
        # at full size: what a codec makes of a smaller scale is none of our ways to resize
        part = codec.decode_crop(blob, box, (box[2], box[3]))
        if self.resampling:
            self._resize_into(part, (0, 0, part.shape[0], part.shape[1]), out)
        else:
            out[...] = part

    def _resize_into(self, pixels: npt.NDArray[Any], box: Box, out: npt.NDArray[Any]) -> None:
        top, left, height, width = box
        part = pixels[top : top + height, left : left + width]
        whole = np.array([[0, 0, height, width]])
        image = part.reshape(1, *part.shape[:2], -1)
        out[...] = resize(image, whole, NO_FLIP, (out.shape[0], out.shape[1]), self.kind).reshape(out.shape)


NO_FLIP = np.zeros(1, np.uint8)


def cut(
    images: npt.NDArray[Any],
    boxes: npt.NDArray[np.int64],
    flips: npt.NDArray[np.uint8],
    sides: tuple[int, int],
    border: Color | None,
) -> npt.NDArray[Any]:
    """Return boxes of images as they are.

    Args:
        images: [m, height, width, channels] of any dtype, C-contiguous.
        boxes: int64 [m, 4]; may leave the image.
        flips: uint8 [m]; see `stepwell.transforms.images_crops_kernels`.
        sides: height and width of what comes out.
        border: outside of the image: a number, one a channel, or None for the nearest pixel.
    """
    from stepwell.transforms.images_crops_kernels import crop_rows, image_addresses

    number, height, width, channels = images.shape
    out = np.empty((number, *sides, channels), images.dtype)
    pixel = channels * images.itemsize
    rows = out.reshape(-1).view(np.uint8).reshape(number, sides[0], sides[1] * pixel)
    fill = border_pixel(border, channels, images.dtype)
    crop_rows(image_addresses(images), (height, width, pixel), boxes, flips, fill, rows)
    return out


def check_color(color: Color, channels: int, dtype: np.dtype[Any], what: str) -> None:
    """Raise WindowError for a colour that images of so many channels and such values cannot have."""
    numbers = np.asarray(color, np.float64)
    if numbers.shape not in ((), (1,), (channels,)):
        raise WindowError(
            f"{what} with fill={color!r} of images of {channels} channels. Allowed: one number, or one a channel."
        )
    if dtype.kind in "iu":
        bounds = np.iinfo(dtype)
        if not ((numbers == np.rint(numbers)) & (numbers >= bounds.min) & (numbers <= bounds.max)).all():
            raise WindowError(
                f"{what} with fill={color!r} of {dtype.name} images. Allowed: whole numbers from {bounds.min} to "
                f"{bounds.max}."
            )


def border_pixel(border: Color | None, channels: int, dtype: np.dtype[Any]) -> npt.NDArray[np.uint8]:
    """Return the bytes of the pixel outside of images; none for the nearest."""
    if border is None:
        return np.empty(0, np.uint8)
    # a copy: a kernel is compiled once more for what cannot be written
    return np.array(np.broadcast_to(np.asarray(border, dtype), (channels,))).view(np.uint8)


def resize(
    images: npt.NDArray[Any],
    boxes: npt.NDArray[np.int64],
    flips: npt.NDArray[np.uint8],
    sides: tuple[int, int],
    kind: int,
) -> npt.NDArray[Any]:
    """Return boxes of images in another size.

    Args:
        images: [m, height, width, channels]; uint8, whose rows of pixels may have gaps between them, or another dtype.
        boxes: int64 [m, 4], inside of the image.
        flips: uint8 [m].
        sides: height and width of what comes out.
        kind: of `stepwell.transforms.images_resizing_kernels`.
    """
    from stepwell.transforms.images_crops_kernels import image_addresses
    from stepwell.transforms.images_resizing_kernels import NEAREST, resize_bytes, resize_floats

    if kind == NEAREST and images.dtype != np.uint8:
        pixels = np.ascontiguousarray(images).view(np.uint8)
        return resize(pixels, boxes, flips, sides, kind).view(images.dtype)
    number, height, width, channels = images.shape
    out = np.empty((number, *sides, channels), images.dtype if images.dtype == np.uint8 else np.float32)
    if images.dtype != np.uint8:
        resize_floats(np.ascontiguousarray(images, np.float32), boxes, flips, kind, out)
        return _as_dtype(out, images.dtype)
    line, row = images.strides[1], images.strides[2:]
    if row != (channels, 1) or line % channels or (number > 1 and images.strides[0] < 0):
        images = np.ascontiguousarray(images)
        line = width * channels
    resize_bytes(image_addresses(images), (height, line // channels, channels), boxes, flips, kind, out)
    return out


def _as_dtype(values: npt.NDArray[np.float32], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    return (np.rint(values) if dtype.kind == "u" else values).astype(dtype, copy=False)
