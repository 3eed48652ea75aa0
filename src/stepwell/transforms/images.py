"""What image transforms have in common: where in an array the images are, and how many draws they get.

Images are the last axes of a window, [*window, height, width, channels] or, grey, [*window, height, width]: the last
axis is channels when there are three or more and it is at most 4, or at most 16 and less than the axis before::

    [84, 84, 3]     colour              [4, 84, 84]     4 steps, grey       [84, 84, 9]     3 stacked colour images
    [4, 84, 84, 3]  4 steps, colour     [84, 84]        grey                [10, 10, 7]     a grid of 7 planes

Channels come last for all of them; `ToCHW` is the end of a chain, but for what treats all values alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.transforms.transform import Shape, Transform

__all__ = ["ImageLayout", "ImageTransform", "Size", "sides_of"]

Size = int | Sequence[int]
FEW_CHANNELS, MOST_CHANNELS = 4, 16


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where in a window its images are.

    Args:
        window: sizes of the axes before, () without any.
        height: of an image.
        width: of an image.
        channels: 1 for a grey image.
        has_channels: whether there is an axis of them.
    """

    window: Shape
    height: int
    width: int
    channels: int
    has_channels: bool

    @classmethod
    def of(cls, shape: Shape) -> ImageLayout:
        """Return the layout of a window of images.

        Raises:
            WindowError: fewer than two axes, or an empty one.

        Example:
            >>> ImageLayout.of((4, 84, 84, 3)).window
            (4,)
        """
        if len(shape) < 2 or 0 in shape:
            advice = " Images of any size become such by a decoder: Field(..., decoder=Resize(224))." * (shape == ())
            raise WindowError(
                f"a window of shape {shape} holds no images. Allowed: [*window, height, width] or with channels after."
                f"{advice}"
            )
        has_channels = len(shape) >= 3 and (
            shape[-1] <= FEW_CHANNELS or (shape[-1] <= MOST_CHANNELS and shape[-1] < shape[-2])
        )
        if has_channels:
            return cls(shape[:-3], shape[-3], shape[-2], shape[-1], True)
        return cls(shape[:-2], shape[-2], shape[-1], 1, False)

    @property
    def steps(self) -> int:
        """Number of images of a window."""
        return math.prod(self.window)

    def images(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the images of a batch, [m, height, width, channels], C-contiguous; a view where that can be."""
        return np.ascontiguousarray(values).reshape(-1, self.height, self.width, self.channels)

    def windows(self, images: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return images [m, h, w, channels] as windows again, whatever their size is now."""
        _, height, width, channels = images.shape
        return images.reshape(-1, *self.shape(height, width, channels))

    def shape(self, height: int, width: int, channels: int | None = None) -> Shape:
        """Return the shape of a window of images of another size."""
        end = (self.channels if channels is None else channels,) if self.has_channels else ()
        return (*self.window, height, width, *end)


@dataclass(frozen=True, kw_only=True)
class ImageTransform(Transform):
    """A transform of images.

    Args:
        per_step: whether each step of a window has a draw of its own; else all are treated alike.
        key: transforms of the same key draw the same numbers, in whatever fields they stand.

    Attributes:
        mixes_channels: whether a value that comes out follows from the other channels of its pixel, or of all pixels.
    """

    mixes_channels: ClassVar[bool] = False
    per_step: bool = False
    key: str | None = None

    def draws_of(self, layout: ImageLayout) -> int:
        """Return how many draws a window gets: one, or one a step."""
        return layout.steps if self.per_step else 1


def of_images(drawn: npt.NDArray[Any], layout: ImageLayout) -> npt.NDArray[Any]:
    """Return what was drawn, [B, 1 or steps, ...], for each image, [B * steps, ...]."""
    if drawn.shape[1] != layout.steps:
        drawn = np.repeat(drawn, layout.steps, axis=1)
    return np.ascontiguousarray(drawn).reshape(-1, *drawn.shape[2:])


def sides_of(size: Size) -> tuple[int, int]:
    """Return a size as (height, width); one number is both.

    Raises:
        WindowError: it is not one or two numbers above 0.
    """
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    try:
        height, width = (index(side) for side in sides)
    except (TypeError, ValueError):
        height = width = 0
    if height < 1 or width < 1:
        raise WindowError(f"an image size of {size!r}. Allowed: a whole number above 0, or (height, width).")
    return height, width


def range_of(
    amount: float | tuple[float, float], name: str, center: float, least: float, most: float
) -> tuple[float, float]:
    """Return an amount as a range: one number is taken to both sides of ``center``.

    Raises:
        WindowError: it leaves [least, most], or ends before it begins.
    """
    if isinstance(amount, (int, float)):
        amount = (max(center - amount, least), center + amount)
    low, high = amount
    if not least <= low <= high <= most:
        raise WindowError(f"{name} of {low} to {high}. Allowed: a range within [{least}, {most}].")
    return float(low), float(high)


def check_dtype(dtype: np.dtype[Any], allowed: Collection[str], what: str) -> None:
    """Raise WindowError for images whose dtype is none of the names allowed."""
    if dtype.name not in allowed:
        raise WindowError(f"{what} of {dtype.name} images. Allowed: {', '.join(allowed)}.")


def check_layout(layout: ImageLayout, height: int, width: int, what: str) -> None:
    """Raise WindowError for a size at which whatever comes next would take other axes for those of the images."""
    shape = layout.shape(height, width)
    found = ImageLayout.of(shape)
    if (found.height, found.width, found.channels) != (height, width, layout.channels):
        raise WindowError(
            f"{what} to {height}x{width} makes windows of shape {shape}, which would be taken for images of "
            f"{found.height}x{found.width} with {found.channels} channels. Use a width of more than "
            f"{max(FEW_CHANNELS, layout.channels)}, or cut in the decoder: Field(decoder=...)."
        )


def check_probability(p: float) -> None:
    """Raise WindowError for what is no probability."""
    if not 0.0 <= p <= 1.0:
        raise WindowError(f"a probability of {p}. Allowed: 0 to 1.")
