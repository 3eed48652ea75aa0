"""Arrays to test with, seeded: any bits of any dtype, and images smooth enough for a lossy codec."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.schema import Feature

__all__ = ["random_array", "smooth_image"]


def random_array(feature: Feature, seed: int, *, size: int = 3, finite: bool = False) -> npt.NDArray[Any]:
    """Return an array of a feature's dtype and shape.

    Args:
        feature: an array or an image.
        seed: equal seeds give equal arrays.
        size: the first dimension, where it varies from step to step. Images of any size have sides of 1 to 9.
        finite: keep floats finite and small. Default: any bits, NaN and infinities among them, so compare bytes.

    Example:
        >>> from stepwell.schema import Array
        >>> random_array(Array((None, 2)), seed=0, size=4).shape
        (4, 2)
    """
    rng, dtype = np.random.default_rng(seed), feature.np_dtype
    shape = _shape(feature, size, rng)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "U":
        return rng.integers(0, 10**6, shape).astype(dtype)
    if finite and dtype.kind in "fc":
        return rng.normal(size=shape).astype(dtype)
    return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()


def smooth_image(feature: Feature, seed: int) -> npt.NDArray[Any]:
    """Return an image of slow waves and a little noise, of an integer or float feature; of any size, sides of 1 to 63.

    Args:
        feature: height x width or height x width x channels.
        seed: equal seeds give equal images.
    """
    rng = np.random.default_rng(seed)
    shape = _shape(feature, 0, rng, most=63)
    y, x = np.mgrid[: shape[0], : shape[1]]
    phases = rng.uniform(0, 2 * math.pi, 2)
    wave = (np.sin(x / 17 + phases[0]) + np.cos(y / 13 + phases[1]) + 2) / 4
    image = np.broadcast_to(wave.reshape(*wave.shape, *[1] * (len(shape) - 2)), shape) * 0.9
    image = image + rng.uniform(0, 0.01, shape)
    most = np.iinfo(feature.np_dtype).max if feature.np_dtype.kind in "iu" else 1
    return (image * most).astype(feature.np_dtype)


def _shape(feature: Feature, size: int, rng: np.random.Generator, most: int = 9) -> tuple[int, ...]:
    """Return a shape that a step may have: sides of images of any size are drawn, other first dimensions are given."""
    if feature.is_image_of_any_size:
        height, width = rng.integers(1, most + 1, 2).tolist()
        return height, width, *(int(axis or 0) for axis in feature.shape[2:])
    return tuple(size if axis is None else axis for axis in feature.shape)
