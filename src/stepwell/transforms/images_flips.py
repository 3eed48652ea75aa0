"""Images turned over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.draws import Draws
from stepwell.transforms.images import ImageLayout, ImageTransform, check_probability, of_images
from stepwell.transforms.images_cutting import cut
from stepwell.transforms.transform import Shape

__all__ = ["RandomFlip"]


@dataclass(frozen=True)
class RandomFlip(ImageTransform):
    """Exchange left and right, or top and bottom, of some images.

    Args:
        p: probability.
        vertical: exchange top and bottom.
        per_step: whether it is drawn for each step of a window.
        key: flips of the same key are the same.

    Example:
        >>> RandomFlip(p=1.0)(np.array([[[1, 2, 3]]]), Draws(np.zeros(1, np.uint64)))
        array([[[3, 2, 1]]])

    Notes:
        An action that tells left from right must be changed with the image: this does not do that.
    """

    p: float = 0.5
    vertical: bool = False

    def __post_init__(self) -> None:
        check_probability(self.p)

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return both as they are; see `Transform.output`."""
        ImageLayout.of(shape)
        return shape, dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the images, some turned over; see `Transform.__call__`."""
        layout = ImageLayout.of(values.shape[1:])
        images = layout.images(values)
        box = np.array([[0, 0, layout.height, layout.width]], np.int64)
        boxes = np.repeat(box, len(images), axis=0)
        return layout.windows(cut(images, boxes, self.image_flips(layout, draws), (layout.height, layout.width), None))

    def image_flips(self, layout: ImageLayout, draws: Draws) -> npt.NDArray[np.uint8]:
        """Return how each image is turned, uint8 [m], bits of `stepwell.transforms.images_crops_kernels`."""
        from stepwell.transforms.images_crops_kernels import HORIZONTAL, VERTICAL

        drawn = draws.uniform(size=(self.draws_of(layout),)) < self.p
        return of_images(drawn, layout).astype(np.uint8) * np.uint8(VERTICAL if self.vertical else HORIZONTAL)
