"""Conversions: the dtype and the shape of windows, and labels as one-hot vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.base import Shape, Transform

__all__ = ["Convert", "OneHot", "Reshape", "Squeeze", "ViewAs", "one_hot"]


class Convert(Transform):
    """Convert values to another dtype, as ``numpy.astype`` does.

    Args:
        dtype: to convert to.

    Example:
        >>> Convert("float32")(np.arange(3)).dtype
        dtype('float32')
    """

    is_pointwise = True

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape as it is, and the dtype chosen."""
        return shape, self.dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[Any]:
        """Return the values converted; themselves where they are of that dtype."""
        return values.astype(self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"Convert({self.dtype.name!r})"


class ViewAs(Transform):
    """Read the bytes of values as another dtype, as ``numpy.view`` does: no byte changes.

    Args:
        dtype: to read as. Where its size is another, the last axis grows or shrinks.

    Example:
        >>> ViewAs("uint8")(np.ones((2, 3), "<u2")).tolist()
        [[1, 0, 1, 0, 1, 0], [1, 0, 1, 0, 1, 0]]
    """

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.dtype = np.dtype(dtype)

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape with its last axis in units of the dtype chosen."""
        if dtype.itemsize == self.dtype.itemsize:
            return shape, self.dtype
        if not shape or shape[-1] * dtype.itemsize % self.dtype.itemsize:
            raise WindowError(f"windows of shape {shape} and {dtype} cannot be read as {self.dtype}.")
        return (*shape[:-1], shape[-1] * dtype.itemsize // self.dtype.itemsize), self.dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[Any]:
        """Return a view of the values."""
        return np.ascontiguousarray(values).view(self.dtype)

    def __repr__(self) -> str:
        return f"ViewAs({self.dtype.name!r})"


class Reshape(Transform):
    """Give windows another shape of the same number of values.

    Args:
        shape: of a window, [*window, *step] together: the batch is not counted. One size may be -1.

    Example:
        A window of three frames of four channels as one of twelve:

        >>> Reshape(8, 8, -1).output((8, 8, 3, 4), np.dtype("uint8"))
        ((8, 8, 12), dtype('uint8'))
    """

    def __init__(self, *shape: int) -> None:
        if sum(size < 0 for size in shape) > 1 or min(shape, default=0) < -1:
            raise WindowError(f"shape {shape} has more than one unknown size, or one below -1.")
        self.shape = shape

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape chosen."""
        number, known = math.prod(shape), math.prod(size for size in self.shape if size >= 0)
        if -1 in self.shape and known and number % known == 0:
            return tuple(number // known if size < 0 else size for size in self.shape), dtype
        if number != known or -1 in self.shape:
            raise WindowError(f"windows of shape {shape} cannot get shape {self.shape}.")
        return self.shape, dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[Any]:
        """Return the values in the shape chosen, a view where that can be."""
        shape, _ = self.output(values.shape[1:], values.dtype)
        return values.reshape(len(values), *shape)

    def __repr__(self) -> str:
        return f"Reshape({', '.join(map(str, self.shape))})"


class Squeeze(Transform):
    """Remove axes of size 1.

    Args:
        axes: of a window, [*window, *step]: the batch is not counted; negative ones count from the end. Default: all
            that have size 1.

    Example:
        >>> Squeeze().output((1, 8, 1), np.dtype("float32"))[0], Squeeze(-1).output((1, 8, 1), np.dtype("float32"))[0]
        ((8,), (1, 8))
    """

    def __init__(self, *axes: int) -> None:
        self.axes = axes

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape without the axes."""
        wanted = [i for i, size in enumerate(shape) if size == 1] if not self.axes else list(self.axes)
        for axis in wanted:
            if not -len(shape) <= axis < len(shape) or shape[axis] != 1:
                raise WindowError(f"windows of shape {shape} have no axis {axis} of size 1.")
        gone = {axis % len(shape) for axis in wanted}
        return tuple(size for i, size in enumerate(shape) if i not in gone), dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[Any]:
        """Return a view of the values without the axes."""
        shape, _ = self.output(values.shape[1:], values.dtype)
        return values.reshape(len(values), *shape)

    def __repr__(self) -> str:
        return f"Squeeze({', '.join(map(str, self.axes))})"


class OneHot(Transform):
    """Make one-hot vectors of numbers of classes.

    Args:
        num_classes: size of the new last axis.
        dtype: of the vectors, default float32.

    Raises:
        WindowError: fewer than one class.

    Example:
        >>> OneHot(3)(np.array([2, 0])).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """

    def __init__(self, num_classes: int, dtype: npt.DTypeLike = np.float32) -> None:
        if num_classes < 1:
            raise WindowError(f"OneHot of {num_classes} classes. Allowed: 1 or more.")
        self.num_classes = num_classes
        self.dtype = np.dtype(dtype)

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape with an axis of classes."""
        if dtype.kind not in "iub":
            raise WindowError(f"classes are integers, and these are {dtype}.")
        return (*shape, self.num_classes), self.dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[Any]:
        """Return the vectors."""
        return one_hot(values, self.num_classes, self.dtype)

    def __repr__(self) -> str:
        return f"OneHot({self.num_classes})"


def one_hot(classes: npt.NDArray[Any], num_classes: int, dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    """Return one-hot vectors [..., num_classes] of classes [...]."""
    numbers = np.asarray(classes).astype(np.int64, copy=False)
    outside = (numbers < 0) | (numbers >= num_classes)
    if outside.any():
        raise WindowError(f"class {numbers[outside].flat[0]} is not one of {num_classes}. Classes count from 0.")
    vectors = np.zeros((*numbers.shape, num_classes), dtype)
    np.put_along_axis(vectors, numbers[..., None], 1, axis=-1)
    return vectors
