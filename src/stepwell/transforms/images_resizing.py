"""Images in another size: whole, or random parts of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.images import Size, sides_of
from stepwell.transforms.images_crops import box_within, boxes_within
from stepwell.transforms.images_cutting import Box, CutDecoder, Interpolation

__all__ = ["CenterResizedCrop", "RandomResizedCrop", "Resize"]

ATTEMPTS = 10


@dataclass(frozen=True)
class Resizing(CutDecoder):
    """What the transforms that resize have in common."""

    resampling: ClassVar[bool] = True
    size: Size
    interpolation: Interpolation = "linear"
    antialias: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", sides_of(self.size))
        if self.interpolation not in get_args(Interpolation):
            raise WindowError(f"interpolation {self.interpolation!r}. Allowed: {', '.join(get_args(Interpolation))}.")

    @property
    def kind(self) -> int:
        """How the kernel resizes; see `Cut.kind`."""
        from stepwell.transforms.images_resizing_kernels import ANTIALIAS, AREA, LINEAR, NEAREST

        linear = ANTIALIAS if self.antialias else LINEAR
        return {"linear": linear, "area": AREA, "nearest": NEAREST}[self.interpolation]

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
            values of any dtype: labels, masks.
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
        torch and Pillow; bytes within one level.
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
