"""Picture files that a store keeps as they are: JPEG, PNG and WebP, of any kind."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, make_codec
from stepwell.codecs.image_files import ImageHead, look_at_image
from stepwell.errors import DecodeError
from stepwell.formats.image_kinds import MIXED_CODEC, ImageKinds, holds
from stepwell.schema import Feature, Image

__all__ = ["PICTURE_CODECS", "check_picture", "picture_feature", "picture_head"]

PICTURE_CODECS = ("jpeg", "png", MIXED_CODEC)
"""Of features whose rows are files of pictures."""

COLORS = 3

Blob = npt.NDArray[np.uint8]


def picture_head(blob: Blob) -> ImageHead:
    """Return what a picture says of itself.

    Args:
        blob: uint8 [n], the file, or as much of it as has its header.

    Raises:
        DecodeError: it is no JPEG, PNG or WebP file, is cut off, or its header is damaged.
        MissingDependencyError: the library of the format is not installed.
    """
    head = look_at_image(blob)
    if head is None:
        raise DecodeError(f"no JPEG, PNG or WebP file, or cut off: it begins with {blob[:8].tobytes()!r}.")
    _codec_of(head.format, head.dtype).image_size(blob)
    return head


def picture_feature(
    heads: Iterable[ImageHead],
    name: str,
    *,
    files: Iterable[object] = repeat(""),
    is_varying: bool = False,
    channels: int | None = None,
) -> Feature:
    """Return the feature that holds some pictures, and others like them.

    Args:
        heads: of one at least.
        name: for messages.
        files: their names, for messages.
        is_varying: whether others are of other sizes and formats.
        channels: that they are to have: 1, 3 or 4; default: as many as one has.

    Raises:
        FormatError: pictures of 8 and of 16 bits.

    Notes:
        Grey JPEG files are read as colours, as they may lie among others.
    """
    kinds = ImageKinds()
    kinds.add(heads, files)
    found = kinds.feature(name, channels)
    needed = kinds.channels if found.codec == "png" else max(COLORS, kinds.channels)
    codec = MIXED_CODEC if is_varying and found.np_dtype == np.uint8 else found.codec
    sides = (None, None) if is_varying else found.shape[:2]
    return Image((*sides, channels or needed), found.np_dtype, codec=codec)


def check_picture(blob: Blob, feature: Feature, *, is_converted: bool = False) -> None:
    """Refuse a picture that a feature does not hold.

    Args:
        blob: uint8 [n], the file.
        feature: of one of the `PICTURE_CODECS`.
        is_converted: whether somebody asked for its channels: nothing is lost unasked.

    Raises:
        DecodeError: it is none, of another format or size, or would lose colours or depth; alpha, too, where all are of
            one format.
    """
    head = picture_head(blob)
    loses_alpha = feature.codec == MIXED_CODEC and feature.shape[2] == COLORS < head.channels
    kept = replace(head, channels=feature.shape[2] or 1) if is_converted or loses_alpha else head
    if not holds(feature, kept):
        raise DecodeError(
            f"a {head.format} file of {head.channels} channels of {head.dtype}, the feature is {feature}."
        )
    size = head.height, head.width
    if not feature.is_ragged and size != feature.shape[:2]:
        raise DecodeError(f"a picture of {size}, the feature is {feature}.")


@functools.cache
def _codec_of(name: str, dtype: str) -> Codec:
    return make_codec(Image((None, None, COLORS), dtype, codec=name if name in PICTURE_CODECS else MIXED_CODEC))
