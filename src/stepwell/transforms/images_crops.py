"""Crops and shifts: parts of images in their own size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.images import Size, sides_of
from stepwell.transforms.images_cutting import Box, Color, Cut, CutDecoder

__all__ = ["CenterCrop", "PadShift", "RandomCrop", "Translate"]


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
