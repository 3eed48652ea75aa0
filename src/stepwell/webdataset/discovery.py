"""Which features shards have: found by a look at their members.

The heads of all images and arrays are read, a few hundred bytes each, so that a fixed size is a promise; of JSON and
``.npz`` files the first ones of each shard, whole.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stepwell.codecs.open_files import OpenFile
from stepwell.codecs.remote_files import local_path
from stepwell.errors import FormatError, SchemaError
from stepwell.schema import Array, Bytes, Feature, Schema, Text
from stepwell.webdataset.image_columns import ImageFacts
from stepwell.webdataset.image_heads import HEAD_BYTES, ImageHead, read_image_head
from stepwell.webdataset.member_columns import (
    DecodedColumn,
    JsonColumns,
    MemberColumn,
    NpyColumn,
    NpzColumns,
    NumberColumn,
    PlainColumn,
    json_feature,
    json_values,
    npy_head,
    npz_arrays,
)
from stepwell.webdataset.samples import Shard
from stepwell.webdataset.settings import Settings

__all__ = ["find_columns", "schema_of"]

IMAGES = ("jpg", "jpeg", "png", "webp")
NUMBERS = ("cls", "cls2", "index", "inx", "id", "count")
TEXTS = ("txt", "text", "transcript")
JSONS = ("json", "jsn")
PICKLES = ("pyd", "pickle", "pkl", "pth", "pt")
# of each shard, of what has to be read whole
NUM_LOOKED_AT = 16
NPY_HEAD_BYTES = 512
NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


def find_columns(shards: Sequence[Shard], settings: Settings) -> dict[str, MemberColumn]:
    """Return what members of each ending become.

    Args:
        shards: of a data set.
        settings: what is asked for.

    Raises:
        FormatError: members that are not what their ending says, or that have no feature: names archive and sample.
    """
    endings = dict.fromkeys(ending for shard in shards for ending in shard.members)
    if not endings:
        names = ", ".join(shard.path for shard in shards[:3])
        raise FormatError(f"no samples in {names}: members are called KEY.ENDING, such as 00017.jpg.")
    return {ending: _column_of(ending, _Members(shards, ending), settings) for ending in endings}


class _Members:
    """The members of one ending in all shards."""

    def __init__(self, shards: Sequence[Shard], ending: str) -> None:
        self._shards, self._ending = shards, ending

    def heads(self, num_bytes: int) -> Iterator[tuple[Shard, int, bytes]]:
        """Yield shard, sample and first bytes of every member."""
        return self._read(num_bytes, None)

    def first(self) -> Iterator[tuple[Shard, int, bytes]]:
        """Yield shard, sample and all bytes of the first members of each shard."""
        return self._read(None, NUM_LOOKED_AT)

    def where(self, shard: Shard, sample: int) -> str:
        """Return what messages call one of them."""
        return shard.where(sample, self._ending)

    def size(self, shard: Shard, sample: int) -> int:
        """Return the bytes of a member."""
        return int(shard.members[self._ending].sizes[sample])

    def _read(self, num_bytes: int | None, count: int | None) -> Iterator[tuple[Shard, int, bytes]]:
        for shard in self._shards:
            members = shard.members.get(self._ending)
            if members is None:
                continue
            file = OpenFile(local_path(shard.path))
            samples = np.flatnonzero(members.is_there)[:count]
            offsets, sizes = members.offsets[samples].tolist(), members.sizes[samples].tolist()
            for sample, offset, size in zip(samples.tolist(), offsets, sizes, strict=True):
                yield shard, sample, file.read(offset, size if num_bytes is None else min(size, num_bytes))

    def whole(self, shard: Shard, sample: int) -> bytes:
        """Return all bytes of a member."""
        members = shard.members[self._ending]
        return OpenFile(local_path(shard.path)).read(int(members.offsets[sample]), int(members.sizes[sample]))


def _column_of(ending: str, members: _Members, settings: Settings) -> MemberColumn:
    name = settings.name_of(ending)
    kind = ending.rpartition(".")[2]
    if ending in settings.decoders or kind in settings.decoders:
        feature, decode = settings.decoders.get(ending) or settings.decoders[kind]
        return DecodedColumn({name: feature}, decode)
    if kind in PICKLES:
        shard, sample, _ = next(members.heads(0))
        raise FormatError(
            f"{members.where(shard, sample)}: {kind} files are pickles, which run whatever is in them when they are "
            f'read. Leave them out, ignore="{ending}"; or say what reads those you trust: decoders={{"{ending}": ...}}.'
        )
    if kind in IMAGES:
        return _images(name, members)
    if kind == "npy":
        return _arrays(name, members)
    if kind == "npz" or (kind in JSONS and settings.json == "columns"):
        return _several(ending, members, settings)
    if kind in NUMBERS:
        return NumberColumn({name: Array((), "int64")})
    return PlainColumn({name: Text() if kind in (*TEXTS, *JSONS) else Bytes()})


def _images(name: str, members: _Members) -> MemberColumn:
    facts = ImageFacts()
    facts.add(_head(members, shard, sample, data) for shard, sample, data in members.heads(HEAD_BYTES))
    return facts.column(name)


def _head(members: _Members, shard: Shard, sample: int, data: bytes) -> ImageHead:
    head = read_image_head(data)
    if head is None and len(data) == HEAD_BYTES:
        head = read_image_head(members.whole(shard, sample))
    if head is None or not head.height or not head.width:
        raise FormatError(
            f"{members.where(shard, sample)}: not a JPEG, PNG or WebP file. Leave the ending out with ignore=, or say "
            "what reads it with decoders=."
        )
    return head


def _arrays(name: str, members: _Members) -> MemberColumn:
    """Return the column of ``.npy`` files, by a look at all headers."""
    shapes: dict[tuple[int, ...], None] = {}
    dtypes: set[np.dtype[Any]] = set()
    in_c_order, known, known_bytes = True, b"", 0
    for shard, sample, data in members.heads(NPY_HEAD_BYTES):
        size = members.size(shard, sample)
        if known and size == known_bytes and data.startswith(known):
            continue  # as the one before
        stream = io.BytesIO(data)
        try:
            shape, is_fortran, dtype = npy_head(stream)
        except ValueError as error:
            raise FormatError(f"{members.where(shard, sample)}: not a .npy file: {error}.") from error
        known = data[: stream.tell()]
        known_bytes = len(known) + math.prod(shape) * dtype.itemsize
        if size != known_bytes and not dtype.hasobject:
            raise FormatError(f"{members.where(shard, sample)}: {size} bytes, where {shape} {dtype} has {known_bytes}.")
        shapes[shape], in_c_order = None, in_c_order and not (is_fortran and len(shape) > 1)
        dtypes.add(dtype)
    return NpyColumn({name: _array_feature(name, list(shapes), dtypes)}, in_c_order)


def _array_feature(name: str, shapes: Sequence[tuple[int, ...]], dtypes: set[np.dtype[Any]]) -> Feature:
    """Return the feature of arrays: of a fixed shape, or of one whose first dimension varies."""
    ranks = {len(shape) for shape in shapes}
    inner = {shape[1:] for shape in shapes}
    if len(dtypes) > 1 or len(inner) > 1 or len(ranks) > 1:
        raise FormatError(
            f"{name}: arrays of {', '.join(map(str, dtypes))} and shapes {', '.join(map(str, list(shapes)[:4]))}. A "
            "feature has one dtype, and shapes that differ in the first dimension alone: ignore= or decoders=."
        )
    shape: tuple[int | None, ...] = shapes[0] if len(shapes) == 1 else (None, *shapes[0][1:])
    try:
        return Array(shape, dtypes.copy().pop())
    except SchemaError as error:
        raise FormatError(f"{name}: {error} Leave it out with ignore=.") from error


def _several(ending: str, members: _Members, settings: Settings) -> MemberColumn:
    """Return the columns of ``.npz`` or JSON files, by a look at the first ones of each shard."""
    is_npz = ending.rpartition(".")[2] == "npz"
    values: dict[str, list[Any]] = {}
    count = 0
    for shard, sample, data in members.first():
        try:
            found = npz_arrays(data) if is_npz else json_values(data)
        except (ValueError, LookupError, TypeError) as error:
            raise FormatError(f"{members.where(shard, sample)}: {error}.") from error
        count += 1
        for name, value in found.items():
            values.setdefault(name, []).append(value)
    features: dict[str, Feature] = {}
    names: list[str] = []
    for name, column in values.items():
        told = settings.name_of(f"{ending}.{name}" if is_npz else name)
        feature = _npz_feature(told, column) if is_npz else json_feature(column)
        if feature is not None and len(column) == count and not NO_NAME.search(told):
            features[told], names = feature, [*names, name]
    return (NpzColumns if is_npz else JsonColumns)(features, tuple(names))


def _npz_feature(name: str, arrays: Sequence[Any]) -> Feature:
    return _array_feature(name, list(dict.fromkeys(array.shape for array in arrays)), {array.dtype for array in arrays})


def schema_of(columns: dict[str, MemberColumn], first: dict[str, Feature]) -> Schema:
    """Return the schema of columns, behind other features.

    Args:
        columns: ending to column.
        first: name to feature.

    Raises:
        FormatError: a name that a feature cannot have, or that two have.
    """
    features = dict(first)
    for ending, column in columns.items():
        for name, feature in column.features.items():
            if name in features:
                raise FormatError(f"{name!r}, of .{ending} files, is there twice. Give one another name with rename=.")
            features[name] = feature
    try:
        return Schema(features)
    except SchemaError as error:
        raise FormatError(f'{error} Give the ending another name with rename="{next(iter(columns))}=NAME".') from error
