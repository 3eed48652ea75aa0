"""Images cropped, shifted, resized and flipped: as transforms, and most of them as decoders."""

from __future__ import annotations

import math
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, Decoder
from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.schema import Feature
from stepwell.transforms.base import Shape
from stepwell.transforms.images import (
    ImageLayout,
    ImageTransform,
    Size,
    check_dtype,
    check_layout,
    check_probability,
    of_images,
    sides_of,
)
from stepwell.windows.plans import HeldArray

__all__ = [
    "Box",
    "CenterCrop",
    "CenterResizedCrop",
    "Cut",
    "CutDecoder",
    "Interpolation",
    "PadShift",
    "RandomCrop",
    "RandomFlip",
    "RandomResizedCrop",
    "Resize",
    "Translate",
    "cut",
    "resize",
]

Interpolation = Literal["linear", "area", "nearest", "bicubic", "lanczos", "tf_bicubic", "tf_lanczos3"]
# the filters with negative lobes: always antialiased
FILTERS = ("bicubic", "lanczos", "tf_bicubic", "tf_lanczos3")
RESIZABLE = ("uint8", "uint16", "float16", "float32", "float64")
Color = float | Sequence[float]
# top, left, height and width
Box = tuple[int, int, int, int]
# an image of any size may be larger than whatever is cut out of it; one that is not is refused when it comes
UNBOUNDED = (sys.maxsize, sys.maxsize)
ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class Cut(ImageTransform):
    """A transform that makes an image of a box of it: cut out, or resized, or with a border where the box leaves it."""

    resampling: ClassVar[bool] = False
    is_random: ClassVar[bool] = False

    @abstractmethod
    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width that images get."""

    @abstractmethod
    def boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        """Return top, left, height and width of boxes, int64 [B, number, 4]; [B, 1, 4] where nothing is drawn."""

    @property
    def kind(self) -> int:
        """How the kernel resizes."""
        return 0

    @property
    def rounds_between(self) -> bool:
        """Whether a filter with negative weights makes bytes of columns before rows, as Pillow does."""
        return True

    @property
    def copies_pixels(self) -> bool:
        """Whether no pixel is made of several: then values may be of any dtype."""
        return not self.resampling

    @property
    def border(self) -> Color | None:
        """The colour outside of an image; None: its nearest pixel."""
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
        self, images: npt.NDArray[Any] | HeldArray, boxes: npt.NDArray[np.int64], flips: npt.NDArray[np.uint8]
    ) -> npt.NDArray[Any]:
        """Return the boxes of images [m, height, width, channels], flipped where ``flips`` (uint8 [m]) says so."""
        sides = self.sides(*images.shape[1:3])
        if self.resampling:
            return resize(images, boxes, flips, sides, self.kind, rounds_between=self.rounds_between)
        return cut(images, boxes, flips, sides, self.border)


@dataclass(frozen=True, kw_only=True)
class CutDecoder(Cut, Decoder):
    """A cut that can be made while an image is decoded, too: ``Field(..., decoder=RandomCrop(84))``."""

    def numbers(self, draws: Draws, number: int) -> npt.NDArray[np.float64]:
        """Return what is random about ``number`` boxes a window, float64 [B, number, n]; n is 0 without."""
        return np.empty((len(draws), number, 0))

    def boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        """Return the one box of a cut that draws nothing; see `Cut.boxes`. To be overridden by others."""
        return np.tile(np.array(self.box(height, width, ()), np.int64), (len(draws), 1, 1))

    @abstractmethod
    def box(self, height: int, width: int, numbers: Sequence[float]) -> Box:
        """Return the box that numbers are in an image of a size: that of `boxes`, for one."""

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
        # at full size: a codec's smaller scale is none of our ways to resize
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
        sides = out.shape[0], out.shape[1]
        out[...] = resize(image, whole, NO_FLIP, sides, self.kind, rounds_between=self.rounds_between).reshape(
            out.shape
        )


NO_FLIP = np.zeros(1, np.uint8)


def cut(
    images: npt.NDArray[Any] | HeldArray,
    boxes: npt.NDArray[np.int64],
    flips: npt.NDArray[np.uint8],
    sides: tuple[int, int],
    border: Color | None,
) -> npt.NDArray[Any]:
    """Return boxes of images as they are."""
    from stepwell.transforms.cropping_kernels import crop_rows, image_addresses

    number, height, width, channels = images.shape
    out = np.empty((number, *sides, channels), images.dtype)
    pixel = channels * images.dtype.itemsize
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
    images: npt.NDArray[Any] | HeldArray,
    boxes: npt.NDArray[np.int64],
    flips: npt.NDArray[np.uint8],
    sides: tuple[int, int],
    kind: int,
    *,
    rounds_between: bool = True,
) -> npt.NDArray[Any]:
    """Return boxes of images in another size."""
    from stepwell.transforms.cropping_kernels import (
        CUBIC,
        LANCZOS,
        NEAREST,
        image_addresses,
        resize_bytes,
        resize_floats,
        resize_signed,
    )

    if kind == NEAREST and images.dtype != np.uint8:
        pixels = np.ascontiguousarray(images).view(np.uint8)
        return resize(pixels, boxes, flips, sides, kind).view(images.dtype)
    number, height, width, channels = images.shape
    is_signed = kind in (CUBIC, LANCZOS)
    if images.dtype != np.uint8 or (is_signed and not rounds_between):
        floats = np.empty((number, *sides, channels), np.float32)
        resize_floats(np.ascontiguousarray(images, np.float32), boxes, flips, kind, floats)
        return _as_dtype(floats, images.dtype)
    out = np.empty((number, *sides, channels), np.uint8)
    line, row = images.strides[1], images.strides[2:]
    if row != (channels, 1) or line % channels or (number > 1 and images.strides[0] < 0):
        images = np.ascontiguousarray(images)
        line = width * channels
    resize_by = resize_signed if is_signed else resize_bytes
    resize_by(image_addresses(images), (height, line // channels, channels), boxes, flips, kind, out)
    return out


def _as_dtype(values: npt.NDArray[np.float32], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind == "u":
        # filters with negative weights leave the range
        values = np.clip(np.rint(values), 0, np.iinfo(dtype).max)
    return values.astype(dtype, copy=False)


@dataclass(frozen=True)
class CenterCrop(CutDecoder):
    """Cut out the middle of images: a transform, or a decoder.

    Args:
        size: height and width, or one number for both; at most the image's.

    Example:
        >>> images = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
        >>> CenterCrop(2)(images, Draws(np.zeros(2, np.uint64)))[0].tolist()
        [[5, 6], [9, 10]]
    """

    size: Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sides_of(self.size))

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the crop; see `Cut.sides`."""
        return _fitting(self, sides_of(self.size), height, width)

    def box(self, height: int, width: int, numbers: Sequence[float]) -> Box:
        """Return the box in the middle; see `CutDecoder.box`."""
        sides = self.sides(height, width)
        return (height - sides[0]) // 2, (width - sides[1]) // 2, *sides


@dataclass(frozen=True)
class RandomCrop(CutDecoder):
    """Cut out a part of images at a random place: a transform, or a decoder.

    Args:
        size: height and width, or one number for both; at most the image's.
        per_step: whether each step of a window is cut elsewhere.
        key: crops of the same key are at the same place; of images of different size, at the corresponding one.

    Example:
        >>> images = np.zeros((8, 2, 96, 96, 3), np.uint8)  # 8 windows of 2 steps
        >>> RandomCrop(84)(images, Draws(np.arange(8, dtype=np.uint64))).shape
        (8, 2, 84, 84, 3)
    """

    is_random: ClassVar[bool] = True
    size: Size

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sides_of(self.size))

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the crop; see `Cut.sides`."""
        return _fitting(self, sides_of(self.size), height, width)

    def numbers(self, draws: Draws, number: int) -> npt.NDArray[np.float64]:
        """Return the places of boxes, 0 to 1 of the room that there is; see `CutDecoder.numbers`."""
        return draws.uniform(size=(number, 2))

    def box(self, height: int, width: int, numbers: Sequence[float]) -> Box:
        """Return a box at a place; see `CutDecoder.box`."""
        return box_within(height, width, self.sides(height, width), numbers)

    def boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        """Return random boxes; see `Cut.boxes`."""
        sides = np.broadcast_to(np.array(self.sides(height, width)), (len(draws), number, 2))
        return boxes_within(height, width, sides, self.numbers(draws, number))


@dataclass(frozen=True)
class PadShift(Cut):
    """Shift images by a random number of pixels, filled up with the pixels of the border.

    The augmentation of DrQ: the same as to repeat the border ``padding`` times and to cut out a part of the old size.

    Args:
        padding: largest shift to each side, in pixels.

    Source:
        D. Yarats, I. Kostrikov, R. Fergus: Image augmentation is all you need, 2021. Whole pixels, as in DrQ; DrQ-v2
        interpolates between them.
    """

    is_random: ClassVar[bool] = True
    padding: int = 4

    def __post_init__(self) -> None:
        _check_padding(self, self.padding)

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return the size as it is; see `Cut.sides`."""
        return height, width

    def boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        """Return random boxes that may leave the image; see `Cut.boxes`."""
        return _shifted(height, width, self.padding, draws, number)


@dataclass(frozen=True)
class Translate(Cut):
    """Shift images by a random number of pixels, filled up with one colour.

    Args:
        padding: largest shift to each side, in pixels.
        fill: the colour, one number or one a channel.
    """

    is_random: ClassVar[bool] = True
    padding: int
    fill: Color = 0

    def __post_init__(self) -> None:
        _check_padding(self, self.padding)

    @property
    def border(self) -> Color | None:
        """The colour outside of an image; see `Cut.border`."""
        return self.fill

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return the size as it is; see `Cut.sides`."""
        return height, width

    def boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        """Return random boxes that may leave the image; see `Cut.boxes`."""
        return _shifted(height, width, self.padding, draws, number)


def box_within(height: int, width: int, sides: tuple[int, int], place: Sequence[float]) -> Box:
    """Return the box of a size at a place of an image: top and left, 0 to 1 of the room that there is."""
    rows, columns = height - sides[0] + 1, width - sides[1] + 1
    return min(int(place[0] * rows), rows - 1), min(int(place[1] * columns), columns - 1), *sides


def boxes_within(
    height: int, width: int, sides: npt.NDArray[np.int64], places: npt.NDArray[np.float64]
) -> npt.NDArray[np.int64]:
    """Return boxes of given sizes, int64 [B, number, 2], at places, float64 [B, number, 2]: int64 [B, number, 4]."""
    room = np.array([height, width]) - sides + 1
    corners = (places * room).astype(np.int64)
    return np.concatenate([np.minimum(corners, room - 1), sides], axis=2)


def _shifted(height: int, width: int, padding: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
    places = draws.integers(-padding, padding + 1, size=(number, 2))
    return np.concatenate([places, np.broadcast_to([height, width], places.shape)], axis=2)


def _fitting(crop: Cut, sides: tuple[int, int], height: int, width: int) -> tuple[int, int]:
    if sides[0] > height or sides[1] > width:
        raise WindowError(
            f"{type(crop).__name__} to {sides[0]}x{sides[1]} of images of {height}x{width}. "
            "Use a smaller size, or Resize."
        )
    return sides


def _check_padding(shift: Cut, padding: int) -> None:
    if not isinstance(padding, int) or padding < 0:
        raise WindowError(f"{type(shift).__name__} by {padding!r}. Allowed: a whole number of pixels, 0 or more.")


@dataclass(frozen=True)
class Resizing(CutDecoder):
    """The common part of the transforms that resize."""

    resampling: ClassVar[bool] = True
    size: Size
    interpolation: Interpolation = "linear"
    antialias: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sides_of(self.size))
        if self.interpolation not in get_args(Interpolation):
            raise WindowError(f"interpolation {self.interpolation!r}. Allowed: {', '.join(get_args(Interpolation))}.")
        if self.interpolation in FILTERS and not self.antialias:
            raise WindowError(
                f"interpolation {self.interpolation!r} with antialias=False. Leave antialias out: what Pillow and "
                "TensorFlow resize so is always filtered as wide as it shrinks."
            )

    @property
    def kind(self) -> int:
        """How the kernel resizes; see `Cut.kind`."""
        from stepwell.transforms.cropping_kernels import ANTIALIAS, AREA, CUBIC, LANCZOS, LINEAR, NEAREST

        linear = ANTIALIAS if self.antialias else LINEAR
        filters = {"bicubic": CUBIC, "lanczos": LANCZOS, "tf_bicubic": CUBIC, "tf_lanczos3": LANCZOS}
        return {"linear": linear, "area": AREA, "nearest": NEAREST, **filters}[self.interpolation]

    @property
    def rounds_between(self) -> bool:
        """Whether bytes are made between the two passes; see `Cut.rounds_between`."""
        return not self.interpolation.startswith("tf_")

    @property
    def copies_pixels(self) -> bool:
        """Whether no pixel is made of several; see `Cut.copies_pixels`."""
        return self.interpolation == "nearest"

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Return the new size; see `Cut.sides`."""
        return sides_of(self.size)


@dataclass(frozen=True)
class Resize(Resizing):
    """Resize images: a transform, or a decoder.

    Args:
        size: height and width, or one number for both.
        interpolation: "linear"; "area" (the mean of what a pixel covers; linear where an image grows); "nearest", for
            values of any dtype: labels, masks; "bicubic" and "lanczos" as in Pillow, torchvision and timm; "tf_bicubic"
            and "tf_lanczos3" as in TensorFlow with antialias, and so in Octo and OpenVLA.
        antialias: for "linear": whether an image that shrinks is filtered as wide as it shrinks. Without, it is as fast
            as can be, and aliases.

    Example:
        >>> Resize((48, 64))(np.zeros((8, 480, 640, 3), np.uint8), Draws(np.zeros(8, np.uint64))).shape
        (8, 48, 64, 3)

    Notes:
        As a decoder of video, "linear" with antialias is done in the step that makes RGB of the video's colours, by
        that library's bilinear filter; the others are done afterwards.

    Source:
        "linear" without antialias is OpenCV's INTER_LINEAR, "area" its INTER_AREA, "linear" with antialias that of
        torch and Pillow; bytes within one level. "bicubic" and "lanczos" of bytes are Pillow's to the bit: columns
        first, as Pillow up to 12 does always, and 13 mostly. TensorFlow has the same two filters, but rounds and clips
        once, where Pillow does so after columns and after rows: at hard edges the two differ by up to 40 levels, so
        each has its name here; bytes within one level of TensorFlow's.
    """

    @property
    def resizes_to(self) -> tuple[int, int] | None:  # type: ignore[override]
        """Height and width, where a library's filter may do it; see `Decoder`."""
        return sides_of(self.size) if self.interpolation == "linear" and self.antialias else None

    def box(self, height: int, width: int, numbers: Sequence[float]) -> Box:
        """Return the whole image; see `CutDecoder.box`."""
        return 0, 0, height, width


@dataclass(frozen=True)
class CenterResizedCrop(Resizing):
    """Cut out the middle of images, as large as it can be, and resize it: a transform, or a decoder.

    Args:
        size: height and width of what comes out, or one number for both.
        interpolation: as for `Resize`.
        antialias: as for `Resize`.
        part: of the sides of the largest box of that form; 224 / 256 is usual where models are evaluated.

    Example:
        >>> CenterResizedCrop(224, part=224 / 256).box(375, 500, ())
        (23, 86, 328, 328)

    Source:
        As FFCV's CenterCropRGBImageDecoder, whose ratio is ``part``; for a square as torchvision's Resize of the
        shorter side, and CenterCrop.
    """

    part: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.part <= 1:
            raise WindowError(f"a part of {self.part}. Allowed: above 0 to 1.")

    def box(self, height: int, width: int, numbers: Sequence[float]) -> Box:
        """Return the box in the middle; see `CutDecoder.box`."""
        rows, columns = self.sides(height, width)
        sides = (
            max(int(self.part * min(height, width * rows / columns)), 1),
            max(int(self.part * min(width, height * columns / rows)), 1),
        )
        return (height - sides[0]) // 2, (width - sides[1]) // 2, *sides


@dataclass(frozen=True)
class RandomResizedCrop(Resizing):
    """Cut out a random part of images and resize it: a transform, or a decoder.

    Args:
        size: height and width of what comes out, or one number for both.
        interpolation: as for `Resize`.
        antialias: as for `Resize`.
        scale: least and largest part of the image's area.
        ratio: least and largest width of the part for a height of 1; uniform in its logarithm.
        per_step: whether each step of a window is cut elsewhere.
        key: crops of the same key are the same.

    Source:
        C. Szegedy and others: Going deeper with convolutions, 2015; drawn as torchvision does: ten tries for a part
        that fits, else the largest one of an allowed ratio in the middle.
    """

    is_random: ClassVar[bool] = True
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise WindowError(f"a scale of {self.scale}. Allowed: (least, largest) part of the area, above 0 to 1.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise WindowError(f"a ratio of {self.ratio}. Allowed: (least, largest) width for a height of 1, above 0.")

    def numbers(self, draws: Draws, number: int) -> npt.NDArray[np.float64]:
        """Return parts of the area and ratios of the attempts, and a place; see `CutDecoder.numbers`."""
        parts = draws.uniform(*self.scale, size=(number, ATTEMPTS))
        low, high = np.log(self.ratio)
        ratios = np.exp(draws.uniform(low, high, size=(number, ATTEMPTS)))
        return np.concatenate([parts, ratios, draws.uniform(size=(number, 2))], axis=2)

    def box(self, height: int, width: int, numbers: Sequence[float]) -> Box:
        """Return the box of the first attempt that fits; see `CutDecoder.box`."""
        for part, ratio in zip(numbers[:ATTEMPTS], numbers[ATTEMPTS : 2 * ATTEMPTS], strict=True):
            area = height * width * part
            sides = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < sides[0] <= height and 0 < sides[1] <= width:
                return box_within(height, width, sides, numbers[2 * ATTEMPTS :])
        sides = self._largest(height, width)
        return (height - sides[0]) // 2, (width - sides[1]) // 2, *sides

    def boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        """Return random boxes; see `Cut.boxes`."""
        parts, ratios, places = np.split(self.numbers(draws, number), [ATTEMPTS, 2 * ATTEMPTS], axis=2)
        areas = height * width * parts
        sides = np.rint(np.stack([np.sqrt(areas / ratios), np.sqrt(areas * ratios)], axis=-1)).astype(np.int64)
        fits = ((sides > 0) & (sides <= [height, width])).all(axis=-1)
        first = np.take_along_axis(sides, fits.argmax(axis=-1)[..., None, None], axis=2)[:, :, 0]
        largest = self._largest(height, width)
        fits_any = fits.any(axis=-1)[..., None]
        found = boxes_within(height, width, np.where(fits_any, first, largest), places)
        middle = [(height - largest[0]) // 2, (width - largest[1]) // 2, *largest]
        return np.where(fits_any, found, np.array(middle, np.int64))

    def _largest(self, height: int, width: int) -> tuple[int, int]:
        """Return the sides of the largest part of an allowed ratio."""
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        sides: Any = (min(height, round(width / ratio)), min(width, round(height * ratio)))
        return max(sides[0], 1), max(sides[1], 1)


@dataclass(frozen=True)
class RandomFlip(ImageTransform):
    """Exchange left and right, or top and bottom, of some images.

    Args:
        p: probability.
        vertical: exchange top and bottom.
        per_step: whether it is drawn for each step of a window.
        key: flips of the same key are the same.

    Example:
        >>> RandomFlip(p=1.0)(np.array([[[1, 2, 3]]]), Draws(np.zeros(1, np.uint64)))
        array([[[3, 2, 1]]])

    Notes:
        An action in which left and right differ must be changed with the image: this does not do that.
    """

    p: float = 0.5
    vertical: bool = False

    def __post_init__(self) -> None:
        check_probability(self.p)

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return both as they are; see `Transform.output`."""
        ImageLayout.of(shape)
        return shape, dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images, some turned over; see `Transform.__call__`."""
        layout = ImageLayout.of(values.shape[1:])
        images = layout.images(values)
        box = np.array([[0, 0, layout.height, layout.width]], np.int64)
        boxes = np.repeat(box, len(images), axis=0)
        return layout.windows(cut(images, boxes, self.image_flips(layout, draws), (layout.height, layout.width), None))

    def image_flips(self, layout: ImageLayout, draws: Draws) -> npt.NDArray[np.uint8]:
        """Return how each image is turned, uint8 [m], bits of `stepwell.transforms.cropping_kernels`."""
        from stepwell.transforms.cropping_kernels import HORIZONTAL, VERTICAL

        drawn = draws.uniform(size=(self.draws_of(layout),)) < self.p
        return of_images(drawn, layout).astype(np.uint8) * np.uint8(VERTICAL if self.vertical else HORIZONTAL)
