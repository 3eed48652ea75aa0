"""Which feature the images of ``.beton`` files are: of one size or any, JPEG files, plain pixels, or both.

JPEG files are decoded by the "fast" transform, to the pixels that FFCV shows.

::

    modes in the rows     all of one size            of several sizes
    JPEG                  Image((H, W, 3), "jpeg")   Image((None, None, 3), "jpeg")
    raw                   Image((H, W, 3))           Image((None, None, 3)), in place "beton-image": rows know the sizes
    both                  "jpeg-or-raw"              "jpeg-or-raw", in place "beton-image" likewise
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from stepwell.beton.layout import JPEG_MODE, RAW_MODE
from stepwell.schema import Feature, Image

__all__ = ["ImageKind", "stays_as_image"]

MIXED_CODEC = "jpeg-or-raw"


@dataclass(frozen=True, slots=True)
class ImageKind:
    """What is true of some images.

    Args:
        modes: those that occur, 0 for JPEG and 1 for raw.
        shape: height and width; None where they differ, or there are no images.

    Example:
        >>> jpegs, pixels = ImageKind(frozenset({0}), (64, 64)), ImageKind(frozenset({1}), (64, 64))
        >>> print(jpegs.feature, "|", pixels.feature, "|", jpegs.merged(pixels).feature)
        jpeg 64x64x3 uint8 | raw 64x64x3 uint8 | jpeg-or-raw 64x64x3 uint8
    """

    modes: frozenset[int] = frozenset()
    shape: tuple[int, int] | None = None

    @classmethod
    def of(cls, rows: npt.NDArray[Any]) -> ImageKind:
        """Return the kind of images, by what the samples' rows hold of them, [n] of `IMAGE_ROW`."""
        if not len(rows):
            return cls()
        sides = {name: (int(rows[name].min()), int(rows[name].max())) for name in ("mode", "height", "width")}
        is_fixed = all(sides[name][0] == sides[name][1] for name in ("height", "width"))
        return cls(frozenset(sides["mode"]), (sides["height"][0], sides["width"][0]) if is_fixed else None)

    def merged(self, other: ImageKind) -> ImageKind:
        """Return the kind of both sets of images together."""
        if not self.modes or not other.modes:
            return other if not self.modes else self
        return ImageKind(self.modes | other.modes, self.shape if self.shape == other.shape else None)

    @property
    def feature(self) -> Feature:
        """The images as a store holds them."""
        shape = (*(self.shape or (None, None)), 3)
        if self.modes == {RAW_MODE}:
            return Image(shape)
        # as FFCV decodes them
        return Image(shape, codec="jpeg" if self.modes <= {JPEG_MODE} else MIXED_CODEC, dct="fast")


def stays_as_image(feature: Feature) -> bool:
    """Whether the bytes of images do not say what they are, so that the references have to: see "beton-image"."""
    return feature.codec == MIXED_CODEC or (feature.codec == "raw" and feature.is_ragged)
