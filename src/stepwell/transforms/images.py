"""Images in windows: where they lie in an array, their axes, and what networks take.

Images are the last axes of a window, [*window, height, width, channels] or, grey, [*window, height, width]: the last
axis is channels when there are three or more and it is at most 4, or at most 16 and less than the axis before::

    [84, 84, 3]     colour              [4, 84, 84]     4 steps, grey       [84, 84, 9]     3 stacked colour images
    [4, 84, 84, 3]  4 steps, colour     [84, 84]        grey                [10, 10, 7]     a grid of 7 planes

Channels come last for all of them; `ToCHW` is the end of a chain, but for what treats all values alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.base import Shape, Transform
from stepwell.windows.plans import HeldArray

__all__ = ["ImageLayout", "ImageTransform", "Size", "ToCHW", "ToFloat", "ToHWC", "check_axes", "sides_of"]

Size = int | Sequence[int]
FEW_CHANNELS, MOST_CHANNELS = 4, 16


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where in a window its images are."""

    window: Shape
    height: int
    width: int
    channels: int
    has_channels: bool

    @classmethod
    def of(cls, shape: Shape) -> ImageLayout:
        """Return the layout of a window of images."""
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

    def images(self, values: Any) -> Any:
        """Return the images of a batch, [m, height, width, channels], C-contiguous; a view where that can be."""
        if isinstance(values, HeldArray):
            return values.parts((self.height, self.width, self.channels))
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
    """A transform of images."""

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
    """Return a size as (height, width); one number is both."""
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
    """Return an amount as a range: one number is taken to both sides of ``center``."""
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


@dataclass(frozen=True)
class ToFloat(Transform):
    """Make floats of 0 to 1 of bytes: ``values * scale``.

    Args:
        scale: factor; 1/255 by default.
        dtype: of what comes out, "float32" or "float16".

    Example:
        >>> ToFloat(scale=1 / 256)(np.array([[0, 64, 128]], np.uint8), Draws(np.zeros(1, np.uint64)))
        array([[0.  , 0.25, 0.5 ]], dtype=float32)
    """

    scale: float = 1 / 255
    dtype: Literal["float32", "float16"] = "float32"
    is_pointwise = True

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float16"):
            raise WindowError(f"ToFloat of dtype {self.dtype!r}. Allowed: 'float32', 'float16'.")

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape as it is, and the floats' dtype; see `Transform.output`."""
        return shape, np.dtype(self.dtype)

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the values as floats; see `Transform.__call__`."""
        scale = np.float32(self.scale)
        if values.dtype == np.uint8 and values.size:
            floats = _scaled(np.ascontiguousarray(values), scale)
        else:
            floats = np.multiply(values, scale, dtype=np.float32)
        return floats.astype(self.dtype, copy=False)


def _scaled(values: npt.NDArray[np.uint8], scale: np.float32) -> npt.NDArray[Any]:
    """Return values times a scale, float32, three times as fast as numpy."""
    from stepwell.transforms.cropping_kernels import crop_affine, whole

    out = np.empty(values.shape, np.float32)
    lines = np.array([[scale], [0], [0]], np.float32)
    grey = len(values), 1, -1, 1
    crop_affine(*whole(values.reshape(grey)), lines, False, out.reshape(grey))
    return out


@dataclass(frozen=True)
class ToCHW(Transform):
    """Put the channels of images before their height and width, in memory too; grey images get an axis of one.

    Example:
        >>> ToCHW().output((4, 84, 84, 3), np.dtype("uint8"))[0]
        (4, 3, 84, 84)
    """

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape with the channels first; see `Transform.output`."""
        layout = ImageLayout.of(shape)
        return (*layout.window, layout.channels, layout.height, layout.width), dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images with their channels first; see `Transform.__call__`."""
        layout = ImageLayout.of(values.shape[1:])
        if not layout.has_channels:
            return values[..., None, :, :]
        if values.dtype != np.uint8:
            return np.ascontiguousarray(np.moveaxis(values, -1, -3))
        from stepwell.transforms.cropping_kernels import crop_planes, whole

        images = layout.images(values)
        out = np.empty((len(images), layout.channels, 1, layout.height * layout.width), np.uint8)
        crop_planes(*whole(images), out)
        return out.reshape(len(values), *layout.window, layout.channels, layout.height, layout.width)


@dataclass(frozen=True)
class ToHWC(Transform):
    """Put the channels of images, [*window, channels, height, width], after their height and width."""

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape with the channels last; see `Transform.output`."""
        if len(shape) < 3:
            raise WindowError(f"ToHWC of a window of shape {shape}. Allowed: [*window, channels, height, width].")
        return (*shape[:-3], *shape[-2:], shape[-3]), dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images with their channels last; see `Transform.__call__`."""
        return np.ascontiguousarray(np.moveaxis(values, -3, -1))


def check_axes(transforms: Iterable[Callable[..., Any]]) -> None:
    """Look at the order of a field's transforms."""
    is_planar = False
    for transform in transforms:
        if isinstance(transform, ToCHW | ToHWC):
            is_planar = isinstance(transform, ToCHW)
        elif is_planar and isinstance(transform, ImageTransform) and (transform.mixes_channels or transform.per_step):
            raise WindowError(
                f"{type(transform).__name__} after ToCHW would take the channels for steps. Put it before ToCHW."
            )
