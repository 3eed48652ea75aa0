"""What images of a dataset are: JPEG or PNG files, of one size or of many; their files tell it.

features.json may say ``(None, None, 3)`` of images that are all alike, and "png" of JPEG files that were put in as they
were. So the first ones are looked at; and all headers, where those agree in a size that features.json leaves open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, make_codec
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
    is_open = None in column.placed.leaf.shape[:2]
    for found, size in _seen(column, read):
        if codec and found != codec:
            raise FormatError(f"feature {column.name!r} has {codec} and {found} files. {_way_out(column)}")
        codec = found
        sizes.add(size)
        if len(sizes) > 1 or not is_open:
            break
    told = column.placed.leaf.image_format
    return _Looks(codec or (told if told in CODECS.values() else "png"), frozenset(sizes))


def _seen(column: Column, read: Read) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield codec and size of images; holds the records of one reading, however long they are."""
    key = column.keys[0]
    keys = ExampleKeys([key])
    codecs: dict[str, Codec] = {}
    for records, path in read():
        where = f"{path}: record {records.first} or after"
        spans = keys.locate(records.data, records.starts, records.stops, where).spans(key)
        for offset, size in zip(spans.offsets.tolist(), spans.sizes.tolist(), strict=True):
            yield _look_at(records.data[offset : offset + size], codecs, f"{where}, {key!r}", column)
        del records, spans


def _look_at(blob: Blob, codecs: dict[str, Codec], where: str, column: Column) -> tuple[str, tuple[int, int]]:
    name = CODECS.get(blob[:3].tobytes())
    if name is None:
        raise FormatError(f"{where}: an image that is no JPEG and no PNG file. {_way_out(column)}")
    if name not in codecs:
        codecs[name] = make_codec(_image(column.placed.leaf, (None, None), name))
    try:
        size = codecs[name].image_size(blob)
    except DecodeError as error:
        raise FormatError(f"{where}: {error} {_way_out(column)}") from error
    assert size is not None
    return name, size


def _way_out(column: Column) -> str:
    return f"Leave them out by ignore=[{column.name!r}], or write the dataset again."
