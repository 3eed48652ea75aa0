"""Which features shards have: found by a look at their members.

The heads of all images and arrays are read, a few hundred bytes each, so that a fixed size is a promise; of JSON and
``.npz`` files the first ones of each shard, whole.
"""

from __future__ import annotations

import io
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from stepwell.codecs.image_files import HEAD_BYTES, ImageHead, read_image_head
from stepwell.errors import FormatError, SchemaError
from stepwell.files.local_files import OpenFile
from stepwell.formats.arrays import npy_head, npz_arrays
from stepwell.formats.images import ImageKinds
from stepwell.schema import Array, Bytes, Feature, Schema, Text
from stepwell.webdataset.member_columns import (
    DecodedColumn,
    ImageColumn,
    JsonColumns,
    MemberColumn,
    NpyColumn,
    NpzColumns,
    NumberColumn,
    PlainColumn,
    json_feature,
    json_values,
    warn_left_out,
)
from stepwell.webdataset.samples import Shard
from stepwell.webdataset.settings import IMAGES, Settings

__all__ = ["Findings", "schema_of"]

NUMBERS = ("cls", "cls2", "index", "inx", "id", "count")
TEXTS = ("txt", "text", "transcript")
JSONS = ("json", "jsn")
PICKLES = ("pyd", "pickle", "pkl", "pth", "pt")
# of each shard, of what has to be read whole
NUM_LOOKED_AT = 16
NPY_HEAD_BYTES = 512
NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


class Findings:
    """What is found of the members of all endings, a shard after the other.

    Args:
        settings: what is asked for.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: dict[str, _Finding] = {}
        self._paths: list[str] = []

    def add(self, shard: Shard, file: OpenFile) -> None:
        """Look at the members of a shard.

        Raises:
            FormatError: members that are not what their ending says: names archive and sample.
        """
        self._paths.append(shard.path)
        for ending in shard.members:
            if ending not in self._found:
                self._found[ending] = _finding_of(ending, self._settings)
            self._found[ending].add(_Members(shard, ending, file))

    def columns(self) -> dict[str, MemberColumn]:
        """Return what members of each ending become.

        Raises:
            FormatError: no samples, or members that have no one feature.
        """
        if not self._found:
            names = ", ".join(self._paths[:3])
            raise FormatError(f"no samples in {names}: members are called KEY.ENDING, such as 00017.jpg.")
        return {ending: finding.column() for ending, finding in self._found.items()}


@dataclass(frozen=True, slots=True)
class _Members:
    """The members of one ending in a shard, whose archive is open."""

    shard: Shard
    ending: str
    file: OpenFile

    def heads(self, num_bytes: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield sample, size and first bytes of every member."""
        members = self.shard.members[self.ending]
        samples = np.flatnonzero(members.is_there)
        places = zip(samples.tolist(), members.offsets[samples].tolist(), members.sizes[samples].tolist(), strict=True)
        return ((sample, size, self.file.read(offset, min(size, num_bytes))) for sample, offset, size in places)

    def first(self) -> Iterator[tuple[int, bytes]]:
        """Yield sample and all bytes of the first members."""
        return ((sample, self.whole(sample)) for sample, _, _ in islice(self.heads(0), NUM_LOOKED_AT))

    def whole(self, sample: int) -> bytes:
        """Return all bytes of a member."""
        members = self.shard.members[self.ending]
        return self.file.read(int(members.offsets[sample]), int(members.sizes[sample]))

    def where(self, sample: int) -> str:
        """Return what messages call one of them."""
        return self.shard.where(sample, self.ending)


class _Finding(ABC):
    """What is found of one ending."""

    @abstractmethod
    def add(self, members: _Members) -> None:
        """Look at those of a shard."""

    @abstractmethod
    def column(self) -> MemberColumn:
        """Return what they become."""


@dataclass(frozen=True)
class _Known(_Finding):
    """Members whose ending says it all."""

    known: MemberColumn

    def add(self, members: _Members) -> None:
        pass

    def column(self) -> MemberColumn:
        return self.known


class _Images(_Finding):
    def __init__(self, name: str, channels: int | None) -> None:
        self._name, self._channels, self._kinds = name, channels, ImageKinds()

    def add(self, members: _Members) -> None:
        for sample, _, data in members.heads(HEAD_BYTES):
            head = self._head(members, sample, data)
            self._kinds.add([head], [members.where(sample) if head.dtype not in self._kinds.dtypes else ""])

    @staticmethod
    def _head(members: _Members, sample: int, data: bytes) -> ImageHead:
        head = read_image_head(data)
        if head is None and len(data) == HEAD_BYTES:
            head = read_image_head(members.whole(sample))
        if head is None or not head.height or not head.width:
            raise FormatError(
                f"{members.where(sample)}: not a JPEG, PNG or WebP file. Leave the ending out with ignore=, or say "
                "what reads it with decoders=."
            )
        return head

    def column(self) -> MemberColumn:
        return ImageColumn({self._name: self._kinds.feature(self._name, self._channels)})


class _Arrays(_Finding):
    """Members that are ``.npy`` files; all headers are looked at."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._shapes: dict[tuple[int, ...], None] = {}
        self._dtypes: set[np.dtype[Any]] = set()
        self._in_c_order = True
        # header and size of the last one
        self._known: tuple[bytes, int] = b"", -1

    def add(self, members: _Members) -> None:
        for sample, size, data in members.heads(NPY_HEAD_BYTES):
            if size != self._known[1] or not data.startswith(self._known[0]):
                self._take(members, sample, size, data)

    def _take(self, members: _Members, sample: int, size: int, data: bytes) -> None:
        stream = io.BytesIO(data)
        try:
            shape, is_fortran, dtype = npy_head(stream)
        except ValueError as error:
            raise FormatError(f"{members.where(sample)}: not a .npy file: {error}.") from error
        wanted = stream.tell() + math.prod(shape) * dtype.itemsize
        if size != wanted and not dtype.hasobject:
            raise FormatError(f"{members.where(sample)}: {size} bytes, where {shape} {dtype} has {wanted}.")
        self._known = data[: stream.tell()], size
        self._shapes[shape] = None
        self._in_c_order &= not (is_fortran and len(shape) > 1)
        self._dtypes.add(dtype)

    def column(self) -> MemberColumn:
        return NpyColumn({self._name: _array_feature(self._name, list(self._shapes), self._dtypes)}, self._in_c_order)


class _Several(_Finding):
    """Members with several values: ``.npz`` and JSON files, of which the first ones of each shard are looked at."""

    def __init__(self, ending: str, settings: Settings) -> None:
        self._ending, self._settings = ending, settings
        self._is_npz = ending.rpartition(".")[2] == "npz"
        self._values: dict[str, list[Any]] = {}
        self._count = 0

    def add(self, members: _Members) -> None:
        for sample, data in members.first():
            try:
                found = npz_arrays(io.BytesIO(data)) if self._is_npz else json_values(data)
            except (ValueError, LookupError, TypeError) as error:
                raise FormatError(f"{members.where(sample)}: {error}.") from error
            self._count += 1
            for name, value in found.items():
                self._values.setdefault(name, []).append(value)

    def column(self) -> MemberColumn:
        features: dict[str, Feature] = {}
        names: list[str] = []
        left_out: dict[str, list[str]] = {}
        for name, values in self._values.items():
            told = self._settings.name_of(f"{self._ending}.{name}" if self._is_npz else name)
            feature = _npz_feature(told, values) if self._is_npz else json_feature(values)
            if len(values) < self._count:
                left_out.setdefault("which not all files have", []).append(name)
            elif feature is None:
                left_out.setdefault("which are no numbers or texts of one kind", []).append(name)
            elif NO_NAME.search(told):
                left_out.setdefault("which are no names of features: give others with rename=", []).append(name)
            else:
                features[told] = feature
                names.append(name)
        for why, those in left_out.items():
            warn_left_out(self._ending, those, why)
        known = frozenset(name for those in left_out.values() for name in those)
        return (NpzColumns if self._is_npz else JsonColumns)(features, tuple(names), self._ending, known)


def _finding_of(ending: str, settings: Settings) -> _Finding:
    name, kind = settings.name_of(ending), ending.rpartition("|")[2].rpartition(".")[2]
    if ending in settings.decoders or kind in settings.decoders:
        feature, decode = settings.decoders.get(ending) or settings.decoders[kind]
        return _Known(DecodedColumn({name: feature}, decode))
    if kind in PICKLES:
        return _Refused(ending)
    if kind in IMAGES:
        return _Images(name, settings.channels)
    if kind == "npy":
        return _Arrays(name)
    if kind == "npz" or (kind in JSONS and settings.json == "columns"):
        return _Several(ending, settings)
    plain = PlainColumn({name: Text() if kind in (*TEXTS, *JSONS) else Bytes()})
    return _Known(NumberColumn({name: Array((), "int64")}) if kind in NUMBERS else plain)


@dataclass(frozen=True)
class _Refused(_Finding):
    """Pickles."""

    ending: str

    def add(self, members: _Members) -> None:
        sample, _, _ = next(members.heads(0))
        raise FormatError(
            f"{members.where(sample)}: {self.ending} files are pickles, which run whatever is in them when they are "
            f'read. Leave them out, ignore="{self.ending}"; or say what reads those you trust: '
            f'decoders={{"{self.ending}": ...}}.'
        )

    def column(self) -> MemberColumn:
        raise FormatError(f"{self.ending} files are pickles.")


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
