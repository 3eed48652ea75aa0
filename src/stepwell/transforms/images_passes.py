"""Several transforms of images in one pass: cut, turn, resize, make floats, put channels first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.draws import Draws
from stepwell.transforms.images import ImageLayout
from stepwell.transforms.images_cutting import Cut, border_pixel
from stepwell.transforms.transform import Shape

__all__ = ["ImagePass", "Memory", "new_memory"]

# bytes wanted -> uint8 [bytes] that nobody else has, aligned for any dtype, of undefined content
Memory = Callable[[int], npt.NDArray[np.uint8]]

# bytes of resized images that are still in the cache when their values are made
RESIZED_BYTES = 512 << 10


def new_memory(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return memory of the system's, which is slow to touch where there is much of it."""
    return np.empty(num_bytes, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class ImagePass:
    """How several transforms of images are done in one pass.

    Args:
        cutting: place of the Cut among them, or -1.
        flips: places of the flips.
        tables: [channels, 256], what becomes of each byte; None: it stays as it is.
        lines: float32 [2, channels], scale and offset, where the tables are straight lines.
        is_planar: whether channels come first.
        shape: of a window afterwards.
    """

    cutting: int
    flips: tuple[int, ...]
    tables: npt.NDArray[Any] | None
    lines: npt.NDArray[np.float32] | None
    is_planar: bool
    shape: Shape

    @property
    def num_bytes(self) -> int:
        """Bytes of a window that are asked of ``memory``; 0: it is not used."""
        is_cut_only = self.tables is None and not self.is_planar
        return 0 if is_cut_only else math.prod(self.shape) * self._dtype.itemsize

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8) if self.tables is None else self.tables.dtype

    def __call__(
        self,
        values: npt.NDArray[Any],
        transforms: Sequence[Any],
        draws: Sequence[Draws],
        memory: Memory = new_memory,
    ) -> npt.NDArray[Any]:
        """Return the transformed windows.

        Args:
            values: [B, *window, *image].
            transforms: what is done.
            draws: of each of them.
            memory: for what comes out, where it is not a mere cut.
        """
        layout = ImageLayout.of(values.shape[1:])
        images = layout.images(values)
        cutter = transforms[self.cutting] if self.cutting >= 0 else WHOLE
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
        images: npt.NDArray[Any],
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
        images: npt.NDArray[np.uint8],
        boxes: npt.NDArray[np.int64],
        flips: npt.NDArray[np.uint8],
        border: npt.NDArray[np.uint8],
        out: npt.NDArray[Any],
    ) -> None:
        """Write the values of boxes of images."""
        from stepwell.transforms.images_crops_kernels import crop_affine, crop_planes, crop_tables, image_addresses

        _, height, width, channels = images.shape
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
    from stepwell.transforms.images_crops_kernels import HORIZONTAL, VERTICAL

    top, left, height, width = boxes.T
    top = np.where(flips & VERTICAL, layout.height - top - height, top)
    left = np.where(flips & HORIZONTAL, layout.width - left - width, left)
    return np.stack([top, left, height, width], axis=1)
