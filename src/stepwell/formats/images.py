"""Images of data sets: which kind files are, by their headers, and the feature that holds all of a column.

::

    JPEG files alone, or PNG files alone     codec "jpeg", "png"
    WebP, or files of several formats        codec "image-file"
    grey, RGB, RGBA among each other         the most channels that one of them has; JPEG has 3 at most
    all of one size                          of that size, else of any

A number of channels that is given decides: decoding leaves alpha out, and makes grey of colours.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import repeat

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, make_codec
from stepwell.codecs.image_files import ImageHead, look_at_image
from stepwell.errors import DecodeError, FormatError
from stepwell.schema import Feature, Image

__all__ = [
    "IMAGE_CODECS",
    "MIXED_CODEC",
    "SIGNATURES",
    "ImageKinds",
    "channels_of",
    "check_image",
    "holds",
    "image_feature",
    "image_format",
    "image_head",
]

MIXED_CODEC = "image-file"
"""Of files of several formats, and of WebP."""

CODECS = ("jpeg", "png")
IMAGE_CODECS = (*CODECS, MIXED_CODEC)
"""Of features whose rows are image files."""

SIGNATURES = {"jpeg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n", "webp": b"RIFF"}
"""First bytes of image files, by format."""

CHANNELS = (1, 3, 4)
COLORS = 3

Blob = npt.NDArray[np.uint8]


def image_format(head: bytes) -> str | None:
    """Return "jpeg", "png" or "webp" by a file's first bytes; None for anything else."""
    for name, signature in SIGNATURES.items():
        if head.startswith(signature):
            return name
    return None


@dataclass(slots=True)
class ImageKinds:
    """Kinds and sizes of some images."""

    # "jpeg", "png", "webp"
    formats: set[str] = field(default_factory=set)
    # the most channels of one image
    channels: int = 1
    # "uint8" and "uint16", each with the name of the first such image
    dtypes: dict[str, str] = field(default_factory=dict)
    # heights and widths; no more than two are kept
    sizes: set[tuple[int, int]] = field(default_factory=set)

    def add(self, heads: Iterable[ImageHead], names: Iterable[object] = repeat("")) -> None:
        """Take in more images, with the names of their files for messages."""
        for head, name in zip(heads, names, strict=False):
            self.formats.add(head.format)
            self.channels = max(self.channels, head.channels)
            if head.dtype not in self.dtypes:
                self.dtypes[head.dtype] = str(name)
            if len(self.sizes) < 2:
                self.sizes.add((head.height, head.width))

    @property
    def codec(self) -> str:
        """The codec that reads them all."""
        return next((codec for codec in CODECS if self.formats == {codec}), MIXED_CODEC)

    def feature(self, name: str, channels: int | None = None) -> Feature:
        """Return the feature that holds them all."""
        if len(self.dtypes) > 1:
            first = ", ".join(f"{file} has {dtype.removeprefix('uint')}" for dtype, file in self.dtypes.items() if file)
            told = f" ({first})" if first else ""
            raise FormatError(f"{name}: images of 8 and of 16 bits in one column{told}. Leave it out, or convert them.")
        height, width = next(iter(self.sizes)) if len(self.sizes) == 1 else (None, None)
        # JPEG has no alpha
        codec = MIXED_CODEC if channels == 4 and self.codec == "jpeg" else self.codec
        return Image((height, width, channels or self.channels), next(iter(self.dtypes)), codec=codec)


def channels_of(given: int | str | None) -> int | None:
    """Return the channels that images are to have, which may be given as text; None: as many as they have."""
    if given is None:
        return None
    found = next((channels for channels in CHANNELS if str(given).strip() == str(channels)), None)
    if found is None:
        raise FormatError(f"channels={given!r}. Allowed: {', '.join(map(str, CHANNELS))}: grey, RGB, RGBA.")
    return found


def holds(feature: Feature, head: ImageHead) -> bool:
    """Whether an image is a row of a feature as it is, of whatever size, and loses nothing."""
    is_read = feature.codec in (head.format, MIXED_CODEC)
    channels = next(iter(feature.shape[2:]), 1) or 1  # grey ones may be [H, W]
    return is_read and head.channels <= channels and head.dtype == feature.np_dtype.name


def image_head(blob: Blob, channels: int = COLORS, dtype: str | None = None) -> ImageHead:
    """Return size and kind of an image file."""
    head = look_at_image(blob)
    if head is None:
        raise DecodeError(f"no JPEG, PNG or WebP file, or cut off: it begins with {blob[:8].tobytes()!r}.")
    _codec_of(head.format, channels, dtype or head.dtype).image_size(blob)
    return head


def image_feature(
    heads: Iterable[ImageHead],
    name: str,
    *,
    files: Iterable[object] = repeat(""),
    is_varying: bool = False,
    channels: int | None = None,
) -> Feature:
    """Return the feature that holds some images, with ``is_varying`` others of other sizes and formats, too."""
    kinds = ImageKinds()
    kinds.add(heads, files)
    # grey JPEG files are read as colours, as they may lie among others
    found = kinds.feature(name, channels)
    needed = kinds.channels if found.codec == "png" else max(COLORS, kinds.channels)
    codec = MIXED_CODEC if is_varying and found.np_dtype == np.uint8 else found.codec
    sides = (None, None) if is_varying else found.shape[:2]
    return Image((*sides, channels or needed), found.np_dtype, codec=codec)


def check_image(blob: Blob, feature: Feature, *, is_converted: bool = False) -> None:
    """Raise DecodeError for an image file that a feature does not hold, or that would lose colours or depth unasked."""
    head = image_head(blob)
    loses_alpha = feature.codec == MIXED_CODEC and feature.shape[2] == COLORS < head.channels
    kept = replace(head, channels=feature.shape[2] or 1) if is_converted or loses_alpha else head
    if not holds(feature, kept):
        raise DecodeError(
            f"a {head.format} file of {head.channels} channels of {head.dtype}, the feature is {feature}."
        )
    size = head.height, head.width
    if not feature.is_ragged and size != feature.shape[:2]:
        raise DecodeError(f"an image of {size}, the feature is {feature}.")


@functools.cache
def _codec_of(name: str, channels: int, dtype: str) -> Codec:
    return make_codec(Image((None, None, channels), dtype, codec=name if name in IMAGE_CODECS else MIXED_CODEC))
