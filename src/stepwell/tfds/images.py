"""What images of a dataset are: JPEG, PNG or WebP files, of one size or of many; their files tell it.

features.json may say ``(None, None, 3)`` of images that are all alike, and "png" of JPEG files that were put in as they
were. So the first ones are looked at; and all headers, where those agree in what features.json leaves open. Grey,
palettes, inks, alpha become the feature's channels when they are decoded, as TensorFlow does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.codecs.image_files import ImageHead
from stepwell.errors import DecodeError, FormatError, SchemaError
from stepwell.formats.images import MIXED_CODEC, ImageKinds, image_head
from stepwell.schema import Feature
from stepwell.tfds.columns import Column
from stepwell.tfds.examples import ExampleKeys, Examples
from stepwell.tfds.features import Leaf
from stepwell.tfds.record_files import Records

__all__ = ["Images", "images_of", "with_image_features"]

Images = Literal["alike", "any"]
CODECS = ("jpeg", "png")
# of an image whose number of channels is not said, and which is not grey
DEFAULT_CHANNELS = 3

Blob = npt.NDArray[np.uint8]
# records, and what messages call their file
Read = Callable[[], Iterable[tuple[Records, str]]]


def images_of(images: str) -> Images:
    """Return the option of that name."""
    for known in get_args(Images):
        if images == known:
            found: Images = known
            return found
    raise FormatError(f"images={images!r}. Allowed: {', '.join(get_args(Images))}.")


def with_image_features(
    columns: Iterable[Column], first: Read, everything: Read, images: Images = "alike"
) -> list[Column]:
    """Return columns whose images have features."""
    made = list(columns)
    pictures = [column for column in made if column.is_image]
    seen = _look(pictures, first)
    unsettled = [column for column in pictures if seen[column.name].formats and _may_change(column, seen[column.name])]
    if unsettled:
        # all at once: what is read may have to be fetched for it
        seen |= _look(unsettled, everything)
    return [
        replace(column, feature=_feature(column, seen[column.name], images)) if column.is_image else column
        for column in made
    ]


def _may_change(column: Column, kinds: ImageKinds) -> bool:
    """Whether images that nobody looked at may change what features.json leaves open."""
    *sides, channels = column.placed.leaf.shape
    has_one_size = None in sides and len(kinds.sizes) < 2
    return has_one_size or (channels is None and kinds.channels < DEFAULT_CHANNELS)


def _feature(column: Column, kinds: ImageKinds, images: Images) -> Feature:
    leaf = column.placed.leaf
    sides: tuple[int | None, ...] = leaf.shape[:2]
    if None in sides:
        sides = next(iter(kinds.sizes)) if len(kinds.sizes) == 1 else (None, None)
    told = leaf.image_format if leaf.image_format in CODECS else "png"
    codec = MIXED_CODEC if images == "any" else kinds.codec if kinds.formats else str(told)
    channels = leaf.shape[2] or (kinds.channels if kinds.formats else DEFAULT_CHANNELS)
    try:
        make_codec(feature := _image(leaf, (*sides, channels), codec))
    except SchemaError as error:
        raise FormatError(f"feature {column.name!r}: {error} {_way_out(column)}") from error
    return feature


def _image(leaf: Leaf, shape: tuple[int | None, ...], codec: str) -> Feature:
    return Feature("image", np.dtype(leaf.dtype).str, shape, codec)


def _look(columns: Sequence[Column], read: Read) -> dict[str, ImageKinds]:
    """Return what the images of columns are; no more are looked at than may tell something new.

    Holds the records of one reading, however long they are.
    """
    kinds = {column.name: ImageKinds() for column in columns}
    looked_for = list(columns)
    for records, path in read() if looked_for else ():
        where = f"{path}: record {records.first} or after"
        found = ExampleKeys([column.keys[0] for column in looked_for]).locate(
            records.data, records.starts, records.stops, where
        )
        for column in tuple(looked_for):
            for head in _heads(column, records, found, where):
                kinds[column.name].add([head])
                if not _may_change(column, kinds[column.name]):
                    looked_for.remove(column)
                    break
        del records, found
        if not looked_for:
            break
    return kinds


def _heads(column: Column, records: Records, found: Examples, where: str) -> Iterator[ImageHead]:
    """Yield sizes and kinds of the images of some records."""
    key = column.keys[0]
    spans = found.spans(key)
    for offset, size in zip(spans.offsets.tolist(), spans.sizes.tolist(), strict=True):
        yield _look_at(records.data[offset : offset + size], f"{where}, {key!r}", column)


def _look_at(blob: Blob, where: str, column: Column) -> ImageHead:
    """Return size and kind of an image, which is one that the feature can have."""
    *sides, channels = column.placed.leaf.shape
    try:
        head = image_head(blob, channels or DEFAULT_CHANNELS, column.placed.leaf.dtype)
    except (DecodeError, SchemaError) as error:
        raise FormatError(f"{where}: {error} {_way_out(column)}") from error
    if any(side is not None and side != own for side, own in zip(sides, (head.height, head.width), strict=True)):
        raise FormatError(
            f"{where}: an image of {head.height}x{head.width}, by features.json it is {sides[0]}x{sides[1]}. "
            f"{_way_out(column)}"
        )
    return head


def _way_out(column: Column) -> str:
    return f"Leave them out by ignore=[{column.name!r}], or write the dataset again."
