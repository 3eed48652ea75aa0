"""Which picture files a store keeps as they are: what the first one is, all must be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, make_codec
from stepwell.codecs.parquet_images import picture_format
from stepwell.errors import DecodeError
from stepwell.schema import Image

__all__ = ["picture_codec"]

# channels and type of the pixels, those seen most first
PIXELS = {"png": [(3, "uint8"), (1, "uint8"), (4, "uint8"), (1, "uint16"), (3, "uint16")], "jpeg": [(3, "uint8")]}


def picture_codec(head: npt.NDArray[np.uint8]) -> Codec:
    """Return the codec that reads a picture, and others of its format, channels and depth, of any size.

    Args:
        head: uint8 [n], the file, or as much of it as has its header.

    Raises:
        DecodeError: it is neither PNG nor JPEG, of a kind that no store keeps, or cut off.
        MissingDependencyError: the library of the format is not installed.

    Notes:
        Grey JPEG files are read as colours, as they may lie among others.
    """
    name = picture_format(head[:8].tobytes())
    if name is None:
        raise DecodeError(f"neither PNG nor JPEG: it begins with {head[:8].tobytes()!r}.")
    reasons = []
    for channels, dtype in PIXELS[name]:
        codec = make_codec(Image((None, None, channels), dtype, codec=name))
        try:
            codec.image_size(head)
        except DecodeError as error:
            reasons.append(error)
            continue
        return codec
    raise reasons[0]
