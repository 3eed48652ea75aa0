"""What members of an ending become: features, and a value of each from its bytes.

::

    jpg jpeg png webp           Image, the files as they are
    cls cls2 index inx id count int64
    txt text transcript         Text            json jsn    Text, or columns of its numbers and texts
    npy                         Array           npz         an Array each, "npz.NAME"
    pyd pickle pkl pth          refused: unpickling runs whatever is in them
    all others                  Bytes
"""

from __future__ import annotations

import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stepwell.errors import LeftOutWarning
from stepwell.formats.arrays import npy_array, npz_arrays
from stepwell.json_text import parse_json
from stepwell.schema import Array, Feature, Text

__all__ = [
    "DecodedColumn",
    "ImageColumn",
    "JsonColumns",
    "MemberColumn",
    "NpyColumn",
    "NpzColumns",
    "NumberColumn",
    "PlainColumn",
    "json_feature",
    "json_values",
    "warn_left_out",
]


class MemberColumn(ABC):
    """The members of one ending: abstract; a value, picklable.

    Attributes:
        features: name to what the members become.
    """

    features: Mapping[str, Feature]

    @abstractmethod
    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return a value of each feature from the bytes of a member.

        Raises:
            ValueError: they are not what the ending says; LookupError, TypeError likewise.
        """

    @property
    def stays(self) -> bool:
        """Whether the bytes can be read where they are, as rows of the only feature."""
        return False


@dataclass(frozen=True)
class PlainColumn(MemberColumn):
    """Members that are rows as they are: texts, bytes."""

    features: Mapping[str, Feature]

    @property
    def stays(self) -> bool:
        """True."""
        return True

    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return the bytes; of texts those that are UTF-8."""
        if next(iter(self.features.values())).kind == "text":
            try:
                data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"not UTF-8: {error}. Leave the ending out with ignore=, or give decoders=") from error
        return (data,)


@dataclass(frozen=True)
class ImageColumn(PlainColumn):
    """Members that are files of images."""


@dataclass(frozen=True)
class NumberColumn(MemberColumn):
    """Members that are an integer in digits."""

    features: Mapping[str, Feature]

    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return the integer."""
        return (_int64(int(data)),)


@dataclass(frozen=True)
class DecodedColumn(MemberColumn):
    """Members that a function decodes."""

    features: Mapping[str, Feature]
    decode: Callable[[bytes], Any]

    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return what the function returns."""
        return (self.decode(data),)


@dataclass(frozen=True)
class NpyColumn(MemberColumn):
    """Members that are ``.npy`` files; of one dtype and shape and in C order they can stay where they are.

    Args:
        features: the one feature.
        in_c_order: whether all are.
    """

    features: Mapping[str, Feature]
    in_c_order: bool = True

    @property
    def stays(self) -> bool:
        """Whether rows are plain bytes behind the header."""
        return self.in_c_order and next(iter(self.features.values())).is_raw

    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return the array."""
        return (npy_array(data),)


@dataclass(frozen=True)
class NpzColumns(MemberColumn):
    """Members that are ``.npz`` files; an array each is a feature.

    Args:
        features: in the order of ``names``.
        names: of the arrays in the files.
        ending: of the members.
        left_out: names of other arrays, of which that was said.
    """

    features: Mapping[str, Feature]
    names: tuple[str, ...]
    ending: str = "npz"
    left_out: frozenset[str] = frozenset()

    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return the arrays."""
        found = npz_arrays(io.BytesIO(data))
        warn_left_out(self.ending, found.keys() - self.names - self.left_out, "which files that were looked at lack")
        return tuple(found[name] for name in self.names)


@dataclass(frozen=True)
class JsonColumns(MemberColumn):
    """Members that are JSON objects; a number or text in each is a feature.

    Args:
        features: in the order of ``names``.
        names: of the values in the objects, dotted where they are nested.
        ending: of the members.
        left_out: names of other values, of which that was said.
    """

    features: Mapping[str, Feature]
    names: tuple[str, ...]
    ending: str = "json"
    left_out: frozenset[str] = frozenset()

    def values(self, data: bytes) -> tuple[Any, ...]:
        """Return the numbers and texts."""
        found = json_values(data)
        warn_left_out(self.ending, found.keys() - self.names - self.left_out, "which files that were looked at lack")
        return tuple(
            _checked(name, found[name], feature)
            for name, feature in zip(self.names, self.features.values(), strict=True)
        )


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
    """Return what a JSON object holds, nested ones with dotted names.

    Raises:
        ValueError: it is no JSON, or no object.
    """
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
    """Return the feature of some values of JSON; None where they are no numbers or texts of one kind.

    Example:
        >>> print(json_feature([1, 2.5]), json_feature(["a"]), json_feature([[1]]))
        raw scalar float64 raw ? text None
    """
    kinds = {type(value) for value in values}
    if kinds == {str}:
        return Text()
    if kinds == {bool}:
        return Array((), "bool")
    if kinds == {int}:
        return Array((), "int64")
    return Array((), "float64") if kinds and kinds <= {int, float} else None


def _checked(name: str, value: Any, feature: Feature) -> Any:
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
