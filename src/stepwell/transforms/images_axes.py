"""What networks want of images: floats, and channels first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.images import ImageLayout, ImageTransform
from stepwell.transforms.transform import Shape, Transform

__all__ = ["ToCHW", "ToFloat", "ToHWC", "check_axes"]


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
    from stepwell.transforms.images_crops_kernels import crop_affine, image_addresses

    out = np.empty(values.shape, np.float32)
    number, size = len(values), values.size // len(values)
    boxes, flips, border = np.zeros((number, 4), np.int64), np.zeros(number, np.uint8), np.empty(0, np.uint8)
    lines = np.array([[scale], [0]], np.float32)
    rows = out.reshape(number, 1, size, 1)
    crop_affine(image_addresses(values.reshape(number, size)), (1, size, 1), boxes, flips, border, lines, False, rows)
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
        from stepwell.transforms.images_crops_kernels import crop_planes, image_addresses

        images = layout.images(values)
        sides = layout.height, layout.width
        out = np.empty((len(images), layout.channels, *sides), np.uint8)
        nothing = np.zeros((len(images), 4), np.int64), np.zeros(len(images), np.uint8), np.empty(0, np.uint8)
        crop_planes(image_addresses(images), (*sides, layout.channels), *nothing, out)
        return out.reshape(len(values), *layout.window, layout.channels, *sides)


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
    """Look at the order of a field's transforms.

    Raises:
        WindowError: one that would take channels for steps, because they come first by then.
    """
    is_planar = False
    for transform in transforms:
        if isinstance(transform, ToCHW | ToHWC):
            is_planar = isinstance(transform, ToCHW)
        elif is_planar and isinstance(transform, ImageTransform) and (transform.mixes_channels or transform.per_step):
            raise WindowError(
                f"{type(transform).__name__} after ToCHW would take the channels for steps. Put it before ToCHW."
            )
