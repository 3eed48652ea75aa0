"""The values of a feature, as the lists of examples have them: numbers, texts, strings, tensors packed into bytes."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.codecs.decoded_sizes import WHAT_TO_SET, most_bytes
from stepwell.codecs.image_files import read_image_head
from stepwell.errors import DecodeError, FormatError
from stepwell.schema import Image
from stepwell.tfds.examples import Examples
from stepwell.tfds.features import Leaf

__all__ = ["Values", "default_of", "item_size", "values_of"]

Values = npt.NDArray[Any] | list[Any]


def item_size(leaf: Leaf, shape: tuple[int, ...]) -> int:
    """Return how many numbers or strings of a list are one value of a shape."""
    is_string = leaf.dtype == "string" or leaf.encoding != "none" or leaf.kind == "image"
    return 1 if is_string else int(np.prod(shape, dtype=np.int64))


def values_of(leaf: Leaf, key: str, shape: tuple[int, ...], examples: Examples, *, is_text: bool) -> Values:
    """Return the values of a key, of all examples one after the other.

    Args:
        leaf: the feature.
        key: of the lists.
        shape: of a value: of numbers without what varies from row to row.
        examples: that were parsed.
        is_text: whether strings are UTF-8.

    Returns:
        [n, *shape] of the feature's dtype; a list of strings; or of tensors, where their shapes vary.

    Raises:
        FormatError: values that are not as the feature says.
    """
    if leaf.kind == "image":
        return _float_images(examples.strings(key), shape, key)
    if leaf.encoding != "none":
        tensors = [_tensor(blob, leaf, key) for blob in examples.strings(key)]
        return tensors if None in leaf.shape else np.array(tensors, leaf.dtype).reshape(len(tensors), *shape)
    if leaf.dtype == "string":
        return [_text(blob, key) for blob in examples.strings(key)] if is_text else examples.strings(key)
    is_float = np.dtype(leaf.dtype).kind == "f"
    found = examples.floats(key).astype(leaf.dtype, copy=False) if is_float else examples.ints(key, leaf.dtype)
    size = item_size(leaf, shape)
    if found.size % max(1, size):
        raise FormatError(f"{key!r}: {found.size} values, in groups of {size} by features.json.")
    return found.reshape(found.size // max(1, size), *shape)


def default_of(leaf: Leaf, shape: tuple[int, ...], *, is_text: bool) -> Any:
    """Return what TFDS gives for an optional value that is missing: the dtype's lowest number, False, or nothing."""
    if leaf.dtype == "string":
        return "" if is_text else b""
    dtype = np.dtype(leaf.dtype)
    if dtype.kind == "b":
        return np.zeros(shape, dtype)
    return np.full(shape, np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min, dtype)


def _float_images(blobs: list[bytes], shape: tuple[int, ...], key: str) -> npt.NDArray[np.float32]:
    """Return images whose float32 are the bytes of PNG files of four channels: [n, height, width, 1]."""
    codec = make_codec(Image((*shape[:2], 4), codec="png"))
    pixels = np.empty((len(blobs), *shape[:2], 4), np.uint8)
    try:
        for blob, out in zip(blobs, pixels, strict=True):
            head = read_image_head(blob)
            if head is not None and (head.channels, head.dtype) != (4, "uint8"):
                raise FormatError(f"{key!r}: a png file of {head.channels} channels of {head.dtype}, not 4 of uint8.")
            codec.decode_into(np.frombuffer(blob, np.uint8), out)
    except DecodeError as error:
        raise FormatError(f"{key!r}: {error}") from error
    return pixels.view("<f4").astype(np.float32, copy=False)


def _text(blob: bytes, key: str) -> str:
    try:
        return blob.decode()
    except UnicodeDecodeError as error:
        name = key.removeprefix("steps/").replace("/", ".")
        raise FormatError(
            f"{key!r}: bytes that are no text ({error}). Import them as they are, by as_bytes=[{name!r}], or leave "
            f"them out, by ignore=[{name!r}]."
        ) from error


def _tensor(blob: bytes, leaf: Leaf, key: str) -> npt.NDArray[Any]:
    """Return a tensor from its bytes, little-endian, compressed or not."""
    dtype = np.dtype(leaf.dtype).newbyteorder("<")
    size = int(np.prod([side for side in leaf.shape if side is not None], dtype=np.int64)) * dtype.itemsize
    is_fixed = None not in leaf.shape
    if leaf.encoding == "zlib":
        blob = _inflated(blob, size if is_fixed else None, key)
    if (len(blob) != size) if is_fixed else (not size or len(blob) % size):
        raise FormatError(f"{key!r}: a tensor of {len(blob)} bytes, by features.json of {leaf.shape} {leaf.dtype}.")
    return np.frombuffer(blob, dtype).astype(leaf.dtype, copy=False).reshape([side or -1 for side in leaf.shape])


def _inflated(blob: bytes, size: int | None, key: str) -> bytes:
    """Return what was compressed; one byte more than there should be is enough to know that it is wrong."""
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(blob, 1 + (most_bytes(len(blob)) if size is None else size))
    except zlib.error as error:
        raise FormatError(f"{key!r}: {error} in a compressed tensor. The record is damaged: write it again.") from error
    if size is None and len(found) > most_bytes(len(blob)):
        raise FormatError(f"{key!r}: a compressed tensor of {len(blob):,} bytes that is too large. {WHAT_TO_SET}")
    if not inflater.eof and (size is None or len(found) <= size):
        raise FormatError(f"{key!r}: a compressed tensor that is cut off. The record is damaged: write it again.")
    return found
