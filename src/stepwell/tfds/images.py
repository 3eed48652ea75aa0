"""What images of a dataset are: JPEG or PNG files, of one size or of many; their files tell it.

features.json may say ``(None, None, 3)`` of images that are all alike, and "png" of JPEG files that were put in as they
were. So the first ones are looked at; and all headers, where those agree in a size that features.json leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, FormatError
from stepwell.schema import Feature
from stepwell.tfds.columns import Column
from stepwell.tfds.examples import ExampleKeys
from stepwell.tfds.features import Leaf
from stepwell.tfds.record_files import Records

__all__ = ["with_image_features"]

CODECS = {b"\xff\xd8\xff": "jpeg", b"\x89PN": "png"}
# of an image whose number of channels is not said
DEFAULT_CHANNELS = 3

Blob = npt.NDArray[np.uint8]
# records, and what messages call their file
Read = Callable[[], Iterable[tuple[Records, str]]]


@dataclass(frozen=True, slots=True)
class _Looks:
    """What was seen of a column's images.

    Args:
        codec: "jpeg" or "png".
        sizes: heights and widths, of two of them at most.
    """

    codec: str
    sizes: frozenset[tuple[int, int]]


def with_image_features(columns: Iterable[Column], first: Read, everything: Read) -> list[Column]:
    """Return columns whose images have features.

    Args:
        columns: of a dataset.
        first: reads some records, from several files.
        everything: reads all records.

    Raises:
        FormatError: an image that is neither a JPEG nor a PNG file, or whose header is damaged.
    """
    made = list(columns)
    images = [column for column in made if column.is_image]
    looks = {column.name: _look(column, first) for column in images}
    for place, column in enumerate(made):
        if column.is_image:
            seen = looks[column.name]
            is_open = None in column.placed.leaf.shape[:2]
            if is_open and len(seen.sizes) == 1:
                seen = _look(column, everything)
            made[place] = replace(column, feature=_feature(column, seen))
    return made


def _feature(column: Column, seen: _Looks) -> Feature:
    leaf = column.placed.leaf
    sides: tuple[int | None, ...] = leaf.shape[:2]
    if None in sides:
        sides = next(iter(seen.sizes)) if len(seen.sizes) == 1 else (None, None)
    return _image(leaf, sides, seen.codec)


def _image(leaf: Leaf, sides: tuple[int | None, ...], codec: str) -> Feature:
    return Feature("image", np.dtype(leaf.dtype).str, (*sides, leaf.shape[2] or DEFAULT_CHANNELS), codec)


def _look(column: Column, read: Read) -> _Looks:
    """Return what the images of a column are; of those of several sizes no more are looked at."""
    codec, sizes = "", set[tuple[int, int]]()
    for blob, where in _blobs(column, read):
        found = CODECS.get(blob[:3].tobytes())
        if found is None or (codec and found != codec):
            raise FormatError(
                f"{where}: images that are not all JPEG or all PNG files. Leave them out by ignore=[{column.name!r}]."
            )
        codec = found
        sizes.add(_size(blob, column, codec, where))
        if len(sizes) > 1:
            break
    return _Looks(codec or column.placed.leaf.image_format or "png", frozenset(sizes))


def _size(blob: Blob, column: Column, codec: str, where: str) -> tuple[int, int]:
    try:
        size = make_codec(_image(column.placed.leaf, (None, None), codec)).image_size(blob)
    except DecodeError as error:
        raise FormatError(f"{where}: {error}") from error
    assert size is not None
    return size


def _blobs(column: Column, read: Read) -> Iterator[tuple[Blob, str]]:
    """Yield images, and the names that messages have for them."""
    key = column.keys[0]
    keys = ExampleKeys([key])
    for records, path in read():
        where = f"{path}: records {records.first} to {records.first + len(records.starts) - 1}"
        spans = keys.locate(records.data, records.starts, records.stops, where).spans(key)
        for offset, size in zip(spans.offsets.tolist(), spans.sizes.tolist(), strict=True):
            yield records.data[offset : offset + size], f"{where}, {key!r}"
