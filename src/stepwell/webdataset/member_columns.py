"""Columns of shards: features that members of an ending become, found by a look at members, and their values.

::

    jpg jpeg png webp           Image, the files as they are
    cls cls2 index inx id count int64
    txt text transcript         Text            json jsn    Text, or columns of its numbers and texts
    npy                         Array           npz         an Array each, "npz.NAME"
    pyd pickle pkl pth          refused: unpickling runs whatever is in them
    all others                  Bytes

The heads of all images and arrays are read, a few hundred bytes each, so that a fixed size is a promise; of JSON and
``.npz`` files the first ones of each shard, whole.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.codecs.image_files import HEAD_BYTES, ImageHead, read_image_head
from stepwell.errors import FormatError, LeftOutWarning, SchemaError
from stepwell.files.local_files import OpenFile
from stepwell.formats.arrays import npy_array, npy_head, npz_arrays
from stepwell.formats.images import ImageKinds
from stepwell.formats.options import names_of
from stepwell.json_text import parse_json
from stepwell.schema import Array, Bytes, Feature, Schema, Text
from stepwell.webdataset.samples import Shard

__all__ = [
    "IMAGES",
    "Decoders",
    "Findings",
    "MemberColumn",
    "Settings",
    "list_of",
    "schema_of",
]

Decoders = Mapping[str, tuple[Feature, Callable[[bytes], Any]]]
"""Ending to the feature of its members, and the function that makes a value of a member's bytes."""

IMAGES = ("jpg", "jpeg", "png", "webp")
"""Last parts of the endings of images."""
NUMBERS = ("cls", "cls2", "index", "inx", "id", "count")
TEXTS = ("txt", "text", "transcript")
JSONS = ("json", "jsn")
PICKLES = ("pyd", "pickle", "pkl", "pth", "pt")
# of each shard, of what has to be read whole
NUM_LOOKED_AT = 16
NPY_HEAD_BYTES = 512
NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of a reader of shards, see `WebDatasetReader`."""

    # empty: all
    endings: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    # ending, or name of a column, to the name of the feature
    rename: Mapping[str, str] = field(default_factory=dict)
    # "text" or "columns"
    json: str = "text"
    decoders: Decoders = field(default_factory=dict)
    # of all images; None: as many as one of them has
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.json not in ("text", "columns"):
            raise FormatError(f'json={self.json!r}. Allowed: "text", "columns".')

    def wants(self, ending: str) -> bool:
        """Whether members of an ending are taken."""
        return ending not in self.ignore and (not self.endings or ending in self.endings)

    def name_of(self, column: str) -> str:
        """Return the name of the feature of an ending, or of a column in such members."""
        return self.rename.get(column, self.rename.get(column.partition("|")[0], column))

    def column_of(self, ending: str) -> str:
        """Return which column members of an ending are of: their own, or that of all images of one new name."""
        name = self.rename.get(ending)
        if name is None or not self._is_image(ending):
            return ending
        return "|".join(other for other, new in self.rename.items() if new == name and self._is_image(other))

    def _is_image(self, ending: str) -> bool:
        kind = ending.rpartition(".")[2]
        return kind in IMAGES and self.wants(ending) and not {ending, kind} & set(self.decoders)


def list_of(names: Collection[str] | str) -> frozenset[str]:
    """Return endings that are given as a collection or joined by commas, as members have them: without dot."""
    return frozenset(name.lstrip(".").lower() for name in names_of(names))


@dataclass(frozen=True)
class MemberColumn:
    """The members of one ending; picklable where a decoder of the user's is."""

    features: Mapping[str, Feature]
    # a value of each feature from the bytes of a member; ValueError, LookupError, TypeError: they are no such file
    values: Callable[[bytes], tuple[Any, ...]]
    # whether the bytes can be read where they are, as rows of the only feature
    stays: bool = False
    kind: Literal["image", "npy", "other"] = "other"


def _stored(data: bytes) -> tuple[bytes]:
    return (data,)


def _text(data: bytes) -> tuple[bytes]:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}. Leave the ending out with ignore=, or give decoders=") from error
    return (data,)


def _number(data: bytes) -> tuple[int]:
    return (_int64(int(data)),)


def _decoded(decode: Callable[[bytes], Any], data: bytes) -> tuple[Any]:
    return (decode(data),)


def _array(data: bytes) -> tuple[npt.NDArray[Any]]:
    return (npy_array(data),)


def _several(ending: str, features: Mapping[str, Feature], left_out: frozenset[str], data: bytes) -> tuple[Any, ...]:
    """Return the values of features by their names in ``.npz`` or JSON files; ``left_out`` were warned of before."""
    found = _values_in(ending, data)
    warn_left_out(ending, found.keys() - features.keys() - left_out, "which files that were looked at lack")
    return tuple(_checked(name, found[name], feature) for name, feature in features.items())


def _values_in(ending: str, data: bytes) -> dict[str, Any]:
    return dict(npz_arrays(io.BytesIO(data))) if _is_npz(ending) else json_values(data)


def _is_npz(ending: str) -> bool:
    return ending.rpartition(".")[2] == "npz"


def warn_left_out(ending: str, names: Collection[str], why: str) -> None:
    """Say which values of members are left out, if there are any."""
    if names:
        warnings.warn(
            f".{ending} files: {', '.join(sorted(names))} left out, {why}. Give decoders= to read the files as you "
            "like, or ignore the warning.",
            LeftOutWarning,
            stacklevel=3,
        )


def json_values(data: bytes) -> dict[str, Any]:
    """Return what a JSON object holds, nested ones with dotted names."""
    found = parse_json(data)
    if not isinstance(found, dict):
        raise ValueError(f"JSON of a {type(found).__name__}, where an object is wanted")
    flat: dict[str, Any] = {}
    stack = [("", found)]
    while stack:
        prefix, values = stack.pop()
        for name, value in values.items():
            if isinstance(value, dict):
                stack.append((f"{prefix}{name}.", value))
            else:
                flat[f"{prefix}{name}"] = value
    return flat


def json_feature(values: list[Any]) -> Feature | None:
    """Return the feature of some values of JSON; None where they are no numbers or texts of one kind."""
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return Text()
    if kinds == {bool}:
        return Array((), "bool")
    if kinds == {int}:
        return Array((), "int64")
    return Array((), "float64") if kinds and kinds <= {int, float} else None


def _checked(name: str, value: Any, feature: Feature) -> Any:
    if isinstance(value, np.ndarray):
        return value
    kind = "text" if feature.kind == "text" else feature.np_dtype.kind
    allowed = {"text": (str,), "b": (bool,), "i": (int,)}.get(kind, (int, float))
    if type(value) not in allowed:
        raise ValueError(f"{name!r} is {value!r}, where {feature} is wanted")
    if kind == "f" and type(value) is int and int(float(value)) != value:
        raise ValueError(f"{name!r} is {value}, which is no float64; others are floats. Write all in one kind")
    return _int64(value) if kind == "i" else value


def _int64(value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{value} is no int64")
    return value


class Findings:
    """What is found of the members of all endings, a shard after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._found: dict[str, _Finding] = {}
        self._paths: list[str] = []

    def add(self, shard: Shard, file: OpenFile) -> None:
        """Look at the members of a shard."""
        self._paths.append(shard.path)
        for ending in shard.members:
            if ending not in self._found:
                self._found[ending] = _finding_of(ending, self._settings)
            self._found[ending].add(_Members(shard, ending, file))

    def columns(self) -> dict[str, MemberColumn]:
        """Return what members of each ending become."""
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
        feature = self._kinds.feature(self._name, self._channels)
        return MemberColumn({self._name: feature}, _stored, True, "image")


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
        feature = _array_feature(self._name, list(self._shapes), self._dtypes)
        return MemberColumn({self._name: feature}, _array, self._in_c_order and feature.is_raw, "npy")


class _Several(_Finding):
    """Members with several values: ``.npz`` and JSON files, of which the first ones of each shard are looked at."""

    def __init__(self, ending: str, settings: Settings) -> None:
        self._ending, self._settings = ending, settings
        self._is_npz = _is_npz(ending)
        self._values: dict[str, list[Any]] = {}
        self._count = 0

    def add(self, members: _Members) -> None:
        for sample, data in members.first():
            try:
                found = _values_in(self._ending, data)
            except (ValueError, LookupError, TypeError) as error:
                raise FormatError(f"{members.where(sample)}: {error}.") from error
            self._count += 1
            for name, value in found.items():
                self._values.setdefault(name, []).append(value)

    def column(self) -> MemberColumn:
        features: dict[str, Feature] = {}
        read: dict[str, Feature] = {}
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
            elif told in features:
                raise FormatError(
                    f"{told!r}, of .{self._ending} files, is there twice. Give one another name: rename=."
                )
            else:
                features[told] = read[name] = feature
        for why, those in left_out.items():
            warn_left_out(self._ending, those, why)
        known = frozenset(name for those in left_out.values() for name in those)
        return MemberColumn(features, partial(_several, self._ending, read, known))


def _finding_of(ending: str, settings: Settings) -> _Finding:
    name, kind = settings.name_of(ending), ending.rpartition("|")[2].rpartition(".")[2]
    if ending in settings.decoders or kind in settings.decoders:
        feature, decode = settings.decoders.get(ending) or settings.decoders[kind]
        return _Known(MemberColumn({name: feature}, partial(_decoded, decode)))
    if kind in PICKLES:
        return _Refused(ending)
    if kind in IMAGES:
        return _Images(name, settings.channels)
    if kind == "npy":
        return _Arrays(name)
    if kind == "npz" or (kind in JSONS and settings.json == "columns"):
        return _Several(ending, settings)
    return _Known(_plain_column(name, kind))


def _plain_column(name: str, kind: str) -> MemberColumn:
    """Return the column of members that are one value, by the last part of their ending."""
    if kind in NUMBERS:
        return MemberColumn({name: Array((), "int64")}, _number)
    if kind in (*TEXTS, *JSONS):
        return MemberColumn({name: Text()}, _text, stays=True)
    return MemberColumn({name: Bytes()}, _stored, stays=True)


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
    """Return the schema of columns, behind other features."""
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
