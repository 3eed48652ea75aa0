"""Chains of transforms as few passes over memory: crop, flip, to float, normalise and HWC -> CHW in one.

One pass does a run of transforms of images, in this order::

    cuts and flips                one Cut (crop, shift, resize ...) and any RandomFlip; a Cut that resizes before them
    values and axes               any transforms that are `is_pointwise`, and one ToCHW

Transforms of values become a line or a table of 256 entries for each channel: they are called with each byte once, and
need no code for fusing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.base import Shape, Transform
from stepwell.transforms.cropping import Cut, RandomFlip, border_pixel
from stepwell.transforms.images import ImageLayout, ToCHW
from stepwell.windows.plans import HeldArray

__all__ = ["ImageStage", "Memory", "Stage", "fuse", "new_memory"]

# how far from a straight line a table may be, of its largest value, that is done as one: float32 has no more
LINE_TOLERANCE = 3e-7
# of a factor's first part: a byte times that is a float32 to the last bit
SCALE_BITS = 16
# number of bytes -> uint8 [bytes] of the caller's own, aligned for any dtype, of undefined content
Memory = Callable[[int], npt.NDArray[np.uint8]]
# bytes of resized images that are still in the cache when their values are made
RESIZED_BYTES = 512 << 10


def new_memory(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return memory of the system's, which is slow to touch where there is much of it."""
    return np.empty(num_bytes, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One pass over a batch, which does one or several transforms that follow each other."""

    first: int
    transforms: tuple[Callable[..., Any], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of ``memory`` used for a window; 0: none."""
        return 0

    @property
    def takes_held(self) -> bool:
        """Whether windows may come as a `HeldArray`."""
        return False

    def __call__(self, values: Any, draws: Sequence[Draws], memory: Memory = new_memory) -> Any:
        """Return the transformed windows."""
        for transform, own in zip(self.transforms, draws, strict=True):
            values = transform(values, own)
        return values


@dataclass(frozen=True, slots=True, eq=False)
class ImageStage(Stage):
    """Transforms of images that are done in one pass."""

    cutting: int
    flips: tuple[int, ...]
    tables: npt.NDArray[Any] | None
    lines: npt.NDArray[np.float32] | None
    is_planar: bool
    shape: Shape

    @property
    def num_bytes(self) -> int:
        """Bytes of ``memory`` used for a window; 0: none."""
        is_cut_only = self.tables is None and not self.is_planar
        return 0 if is_cut_only else math.prod(self.shape) * self._dtype.itemsize

    @property
    def takes_held(self) -> bool:
        """Whether windows may come as a `HeldArray`: kernels take addresses, but those that make floats first."""
        return self._cutter.rounds_between

    @property
    def _cutter(self) -> Cut:
        return cast(Cut, self.transforms[self.cutting]) if self.cutting >= 0 else WHOLE

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8) if self.tables is None else self.tables.dtype

    def __call__(self, values: Any, draws: Sequence[Draws], memory: Memory = new_memory) -> npt.NDArray[Any]:
        """Return the transformed windows."""
        layout = ImageLayout.of(values.shape[1:])
        images = layout.images(values)
        transforms: Sequence[Any] = self.transforms
        cutter = self._cutter
        boxes = cutter.image_boxes(layout, draws[max(self.cutting, 0)])
        flips = np.zeros(len(images), np.uint8)
        for place in self.flips:
            turned = transforms[place].image_flips(layout, draws[place])
            flips ^= turned
            if place < self.cutting:
                boxes = _mirrored(boxes, turned, layout)
        if not self.num_bytes:
            return cutter.cut(images, boxes, flips).reshape(len(values), *self.shape)
        out = memory(len(values) * self.num_bytes).view(self._dtype).reshape(len(values), *self.shape)
        self._run(cutter, images, boxes, flips, out)
        return out

    def _run(
        self,
        cutter: Cut,
        images: npt.NDArray[Any] | HeldArray,
        boxes: npt.NDArray[np.int64],
        flips: npt.NDArray[np.uint8],
        windows: npt.NDArray[Any],
    ) -> None:
        """Write what becomes of images to ``windows``, [B, *shape]."""
        number, *image = images.shape
        sides = cutter.sides(*image[:2])
        out = windows.reshape(number, *((image[2], *sides) if self.is_planar else (*sides, image[2])))
        if not cutter.resampling:
            self._make(images, boxes, flips, border_pixel(cutter.border, image[2], images.dtype), out)
            return
        step = max(1, RESIZED_BYTES // (sides[0] * sides[1] * image[2]))
        for start in range(0, number, step):
            part = slice(start, start + step)
            resized = cutter.cut(images[part], boxes[part], flips[part])
            # of a box, kernels that copy look at its top and left
            corners, no_flips = np.zeros((len(resized), 4), np.int64), np.zeros(len(resized), np.uint8)
            self._make(resized, corners, no_flips, border_pixel(None, image[2], resized.dtype), out[part])

    def _make(
        self,
        images: npt.NDArray[Any] | HeldArray,
        boxes: npt.NDArray[np.int64],
        flips: npt.NDArray[np.uint8],
        border: npt.NDArray[np.uint8],
        out: npt.NDArray[Any],
    ) -> None:
        """Write the values of boxes of images."""
        from stepwell.transforms.cropping_kernels import crop_affine, crop_planes, crop_tables, image_addresses, whole

        number, height, width, channels = images.shape
        if self.cutting < 0 and not self.flips:
            cuts = whole(images)
            out = out.reshape((number, channels, 1, -1) if self.is_planar else (number, 1, -1, channels))
        else:
            cuts = image_addresses(images), (height, width, channels), boxes, flips, border
        if self.lines is not None:
            crop_affine(*cuts, self.lines, self.is_planar, out)
        elif self.tables is not None:
            crop_tables(*cuts, self.tables, self.is_planar, out)
        else:
            crop_planes(*cuts, out)


@dataclass(frozen=True)
class _Whole(Cut):
    """Images as they are."""

    def sides(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def boxes(self, height: int, width: int, draws: Draws, number: int) -> npt.NDArray[np.int64]:
        return np.tile(np.array([0, 0, height, width], np.int64), (len(draws), 1, 1))


WHOLE = _Whole()


def _mirrored(boxes: npt.NDArray[np.int64], flips: npt.NDArray[np.uint8], layout: ImageLayout) -> npt.NDArray[np.int64]:
    """Return where boxes of flipped images are in the images."""
    from stepwell.transforms.cropping_kernels import HORIZONTAL, VERTICAL

    top, left, height, width = boxes.T
    top = np.where(flips & VERTICAL, layout.height - top - height, top)
    left = np.where(flips & HORIZONTAL, layout.width - left - width, left)
    return np.stack([top, left, height, width], axis=1)


def fuse(transforms: Sequence[Callable[..., Any]], shape: Shape, dtype: np.dtype[Any]) -> list[Stage]:
    """Return a field's chain of transforms as stages, each one pass over memory."""
    stages: list[Stage] = []
    place = 0
    while place < len(transforms):
        known = _known(transforms[place:])
        stage = _image_stage(place, known, shape, dtype) or Stage(place, (transforms[place],))
        stages.append(stage)
        number = len(stage.transforms)
        place += number
        if not known:
            # its output is not known
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


def _image_stage(first: int, transforms: list[Transform], shape: Shape, dtype: np.dtype[Any]) -> ImageStage | None:
    """Return the longest beginning that can be done in one pass; None when the first alone does it best by itself."""
    if not transforms:
        return None
    try:
        layout = ImageLayout.of(shape)
    except WindowError:
        return None
    num_cuts = _num_cuts(transforms)
    end = num_cuts if dtype != np.uint8 else num_cuts + _num_of_values(transforms[num_cuts:])
    # alone, too: into memory that was used before, by a table, or of rows that are left where they are
    for number in range(end, 0, -1):
        run, tables = transforms[:number], _tables(transforms[num_cuts:number], layout)
        if tables is not None:
            for transform in run:
                shape, dtype = transform.output(shape, dtype)
            return _stage_of(first, run, tables, shape)
    return None


def _stage_of(first: int, transforms: list[Transform], tables: npt.NDArray[Any], shape: Shape) -> ImageStage:
    cuts = [place for place, transform in enumerate(transforms) if isinstance(transform, Cut)]
    flips = tuple(place for place, transform in enumerate(transforms) if isinstance(transform, RandomFlip))
    is_planar = any(isinstance(transform, ToCHW) for transform in transforms)
    stays = tables.dtype == np.uint8 and bool((tables == np.arange(256)).all())
    lines = _lines(tables, is_exact=any(transform.is_exact for transform in transforms))
    cutting = cuts[0] if cuts else -1
    return ImageStage(first, tuple(transforms), cutting, flips, None if stays else tables, lines, is_planar, shape)


def _num_cuts(transforms: list[Any]) -> int:
    """Return how many at the beginning are a cut and flips that can be done at once."""
    has_cut = False
    for number, transform in enumerate(transforms):
        if _is_own(transform, RandomFlip):
            continue
        # pixels that are made of several are not the same when the image is turned before: sums round otherwise
        if has_cut or not _is_own(transform, Cut) or (transform.resampling and number):
            return number
        has_cut = True
    return len(transforms)


def _is_own(transform: Transform, kind: Any) -> bool:
    """Return whether a transform does what its kind does: a user's class may be called in another way."""
    own = type(transform)
    return isinstance(transform, kind) and all(
        getattr(own, name, None) is getattr(kind, name, None) for name in ("__call__", "cut")
    )


def _num_of_values(transforms: list[Transform]) -> int:
    """Return how many at the beginning are pointwise, or the first ToCHW."""
    is_planar = False
    for number, transform in enumerate(transforms):
        if _is_own(transform, ToCHW) and not is_planar:
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
        if values.shape != shape or values.dtype not in (np.uint8, np.int16, np.float32):
            return None
    if values.ndim < 4:
        return np.ascontiguousarray(values.reshape(1, 256))
    return np.ascontiguousarray(np.moveaxis(values, axis, 0).reshape(layout.channels, 256))


def _lines(tables: npt.NDArray[Any], *, is_exact: bool) -> npt.NDArray[np.float32] | None:
    """Return scale, rest and offset of each channel, float32 [3, channels], when float tables are straight lines."""
    if tables.dtype != np.float32:
        return None
    first, last = tables[:, 0].astype(np.float64), tables[:, 255].astype(np.float64)
    slopes = (last - first) / 255
    mantissas, exponents = np.frexp(slopes)
    scales = np.ldexp(np.round(np.ldexp(mantissas, SCALE_BITS)), exponents - SCALE_BITS)
    lines = np.stack([scales, slopes - scales, first]).astype(np.float32)
    values = np.arange(256, dtype=np.float32)
    made = values * lines[0, :, None] + values * lines[1, :, None] + lines[2, :, None]
    if is_exact:
        return lines if np.array_equal(made, tables) else None
    largest = np.maximum(np.abs(tables).max(), 1.0)
    return lines if np.abs(made - tables).max() <= LINE_TOLERANCE * largest else None
