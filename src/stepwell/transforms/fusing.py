"""Chains of transforms as few passes over memory: crop, flip, to float, normalise and HWC -> CHW in one.

What is done in one pass is a run of transforms of images, in this order::

    cuts and flips                one Cut (crop, shift, resize ...) and any RandomFlip; a Cut that resizes before them
    values and axes               any transforms that are `is_pointwise`, and one ToCHW

Transforms of values become a line or a table of 256 entries for each channel, by being asked what they make of each
byte: so they need not know of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.images import ImageLayout
from stepwell.transforms.images_axes import ToCHW
from stepwell.transforms.images_cutting import Cut
from stepwell.transforms.images_flips import RandomFlip
from stepwell.transforms.images_passes import ImagePass, Memory, new_memory
from stepwell.transforms.transform import Shape, Transform

__all__ = ["Stage", "fuse"]

# how far from a straight line a table may be, of its largest value, that is done as one: float32 has no more
LINE_TOLERANCE = 3e-7


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass over a batch, which does one or several transforms that follow each other.

    Args:
        first: number of its first transform in the chain.
        transforms: what it does; a plain callable is always alone.
        image_pass: how several are done at once.
    """

    first: int
    transforms: tuple[Callable[..., Any], ...]
    image_pass: ImagePass | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of a window that it asks of ``memory``; 0: what it makes, it makes elsewhere."""
        return 0 if self.image_pass is None else self.image_pass.num_bytes

    def __call__(
        self, values: npt.NDArray[Any], draws: Sequence[Draws], memory: Memory = new_memory
    ) -> npt.NDArray[Any]:
        """Return the transformed windows.

        Args:
            values: [B, *window, *step]; may be written.
            draws: of each of ``transforms``, as each alone would get them.
            memory: for what comes out of one pass of several.
        """
        if self.image_pass is not None:
            return self.image_pass(values, self.transforms, draws, memory)
        for transform, own in zip(self.transforms, draws, strict=True):
            values = transform(values, own)
        return values


def fuse(transforms: Sequence[Callable[..., Any]], shape: Shape, dtype: np.dtype[Any]) -> list[Stage]:
    """Return a field's chain of transforms as stages, each one pass over memory.

    Args:
        transforms: in order; those that are no `Transform` stay alone in their stage, and their caller calls them.
        shape: of a window as it comes from the reader, [*window, *step].
        dtype: of its values.

    Returns:
        Stages that together do what the transforms do one by one with the same draws: bytes equal, floats within 1e-6,
        or equal where a transform `is_exact`.
    """
    stages: list[Stage] = []
    place = 0
    while place < len(transforms):
        known = _known(transforms[place:])
        number, image_pass = _image_pass(known, shape, dtype) if known else (1, None)
        stages.append(Stage(place, tuple(transforms[place : place + number]), image_pass))
        place += number
        if not known:
            # nobody knows what came out of it
            return stages + [Stage(at, (transforms[at],)) for at in range(place, len(transforms))]
        for transform in known[:number]:
            shape, dtype = transform.output(shape, dtype)
    return stages


def _known(transforms: Sequence[Callable[..., Any]]) -> list[Transform]:
    """Return those at the beginning that are transforms."""
    known: list[Transform] = []
    for transform in transforms:
        if not isinstance(transform, Transform):
            break
        known.append(transform)
    return known


def _image_pass(transforms: list[Transform], shape: Shape, dtype: np.dtype[Any]) -> tuple[int, ImagePass | None]:
    """Return how many transforms can be done in one pass, and how; (1, None) when one alone does it best by itself."""
    try:
        layout = ImageLayout.of(shape)
    except WindowError:
        return 1, None
    num_cuts = _num_cuts(transforms)
    end = num_cuts if dtype != np.uint8 else num_cuts + _num_of_values(transforms[num_cuts:])
    # alone, a transform of values is faster by its table: one pass, into memory that was used before
    least = 1 if transforms[0].is_pointwise else 2
    for number in range(end, least - 1, -1):
        run, tables = transforms[:number], _tables(transforms[num_cuts:number], layout)
        if tables is not None:
            for transform in run:
                shape, dtype = transform.output(shape, dtype)
            return number, _pass_of(run, tables, shape)
    return 1, None


def _pass_of(transforms: list[Transform], tables: npt.NDArray[Any], shape: Shape) -> ImagePass:
    cuts = [place for place, transform in enumerate(transforms) if isinstance(transform, Cut)]
    flips = tuple(place for place, transform in enumerate(transforms) if isinstance(transform, RandomFlip))
    is_planar = any(isinstance(transform, ToCHW) for transform in transforms)
    stays = tables.dtype == np.uint8 and bool((tables == np.arange(256)).all())
    lines = None if any(transform.is_exact for transform in transforms) else _lines(tables)
    return ImagePass(cuts[0] if cuts else -1, flips, None if stays else tables, lines, is_planar, shape)


def _num_cuts(transforms: list[Transform]) -> int:
    """Return how many at the beginning are a cut and flips that can be done at once."""
    has_cut = False
    for number, transform in enumerate(transforms):
        if isinstance(transform, RandomFlip):
            continue
        # pixels that are made of several are not the same when the image is turned before: sums round otherwise
        if not isinstance(transform, Cut) or has_cut or (transform.resampling and number):
            return number
        has_cut = True
    return len(transforms)


def _num_of_values(transforms: list[Transform]) -> int:
    """Return how many at the beginning are pointwise, or the first ToCHW."""
    is_planar = False
    for number, transform in enumerate(transforms):
        if isinstance(transform, ToCHW) and not is_planar:
            is_planar = True
        elif not transform.is_pointwise:
            return number
    return len(transforms)


def _tables(transforms: list[Transform], layout: ImageLayout) -> npt.NDArray[Any] | None:
    """Return what transforms make of each byte of each channel, [channels, 256]; None when that cannot be known."""
    values: npt.NDArray[Any] = np.arange(256, dtype=np.uint8)[None, :, None, None].repeat(layout.channels, 3)
    shape, axis = values.shape, 3
    if not layout.has_channels:
        values, shape = values[..., 0], values.shape[:3]
    for transform in transforms:
        if isinstance(transform, ToCHW):
            values = np.moveaxis(values, -1, 1) if layout.has_channels else values[:, None]
            shape, axis = values.shape, 1
            continue
        try:
            values = transform(values, Draws(np.zeros(1, np.uint64)))
        except ValueError:
            return None
        if values.shape != shape or values.dtype not in (np.uint8, np.float32):
            return None
    if values.ndim < 4:
        return np.ascontiguousarray(values.reshape(1, 256))
    return np.ascontiguousarray(np.moveaxis(values, axis, 0).reshape(layout.channels, 256))


def _lines(tables: npt.NDArray[Any]) -> npt.NDArray[np.float32] | None:
    """Return scale and offset of each channel, float32 [2, channels], when float tables are straight lines."""
    if tables.dtype != np.float32:
        return None
    first, last = tables[:, 0].astype(np.float64), tables[:, 255].astype(np.float64)
    lines = np.stack([(last - first) / 255, first]).astype(np.float32)
    made = np.arange(256, dtype=np.float32) * lines[0, :, None] + lines[1, :, None]
    largest = np.maximum(np.abs(tables).max(), 1.0)
    return lines if np.abs(made - tables).max() <= LINE_TOLERANCE * largest else None
