"""A schema: the features of a store by name, and how values become a step of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from stepwell.errors import FeatureNotFoundError, SchemaError
from stepwell.schema.features import Array, Bytes, Feature, Image, Text

__all__ = ["Schema", "infer_columns", "infer_feature", "infer_schema", "is_feature_name"]

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
MAX_NAME_BYTES = 200
RESERVED = frozenset({"episodes", "deleted", "segment", "store", "progress", "statistics"})
FINAL_NAMES = ("observation", "obs")
IMAGE_MIN_SIDE = 16


class Schema(Mapping[str, Feature]):
    """The features of a store, by name, in the order they were given.

    Args:
        features: name to `Feature`. A name is letters, digits, ``_ . -``, and is also the name of its file;
            dots nest it (``observation.image`` is ``batch["observation"]["image"]`` when nested keys are asked for).

    Raises:
        SchemaError: no features, a name that cannot be a file's, or two names that differ only in upper and lower case.

    Example:
        >>> schema = Schema({"action": Array(2), "observation.image": Image((96, 96, 3), codec="jpeg")})
        >>> list(schema)
        ['action', 'observation.image']

    Notes:
        Immutable and picklable; equal when the features and their order are equal.
    """

    __slots__ = ("_features",)

    def __init__(self, features: Mapping[str, Feature]) -> None:
        if not isinstance(features, Mapping):
            raise SchemaError(f"a schema of a {type(features).__name__}. Give a mapping of names to features.")
        if not features:
            raise SchemaError("a schema needs at least one feature.")
        seen: dict[str, str] = {}
        for name, feature in features.items():
            _check_name(name)
            if not isinstance(feature, Feature):
                raise SchemaError(
                    f"feature {name!r} is a {type(feature).__name__}. Use Array, Image, Video, Text or Bytes."
                )
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise SchemaError(
                    f"features {other!r} and {name!r} differ only in case, and would share a file on some disks."
                )
        self._features = dict(features)

    def __getitem__(self, name: str) -> Feature:
        try:
            return self._features[name]
        except KeyError:
            raise FeatureNotFoundError(f"no feature {name!r}. There are: {', '.join(self._features)}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        return len(self._features)

    def __contains__(self, name: object) -> bool:
        return name in self._features

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schema) and list(self.items()) == list(other.items())

    def __hash__(self) -> int:
        return hash(tuple(self._features.items()))

    def __repr__(self) -> str:
        return f"<Schema {', '.join(f'{name}: {feature}' for name, feature in self.items())}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema, (self._features,)

    @property
    def final_names(self) -> tuple[str, ...]:
        """Names of the features that have a value in an episode's final row."""
        return tuple(name for name, feature in self.items() if feature.final)

    def with_feature(self, name: str, feature: Feature) -> Schema:
        """Return this schema with one more feature at the end."""
        if name in self:
            raise SchemaError(f"there is a feature {name!r} already.")
        return Schema({**self._features, name: feature})

    def to_json(self) -> dict[str, Any]:
        """Return the schema as JSON types."""
        return {name: feature.to_json() for name, feature in self.items()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Schema:
        """Return the schema that `to_json` wrote."""
        if not isinstance(record, Mapping):
            raise SchemaError(f"not the record of a schema: {record!r}.")
        return cls({name: Feature.from_json(feature) for name, feature in record.items()})


def infer_feature(value: Any) -> Feature:
    """Return the feature that one value suggests.

    Strings become `Text`, bytes become `Bytes`; uint8 arrays of height x width x (1, 3 or 4) with sides of 16 and more
    become raw `Image`; everything else the `Array` of its dtype and shape. Python floats become float64, ints int64.

    Raises:
        SchemaError: a value that has no fixed-size dtype.
    """
    if isinstance(value, str):
        return Text()
    if isinstance(value, bytes | bytearray | memoryview):
        return Bytes()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise SchemaError(
            f"a {type(value).__name__} of uneven lengths is no array. Give the schema yourself."
        ) from error
    if array.dtype.hasobject:
        raise SchemaError(
            f"a {type(value).__name__} has no fixed-size dtype. Give an array, a number, a string or bytes."
        )
    if array.dtype.kind in "SU" and not isinstance(value, np.ndarray):
        raise SchemaError(
            f"a {type(value).__name__} of strings: the longest of the first step would bound all others. "
            'Give the schema yourself, e.g. Array(3, "U20"), or one Text() for each.'
        )
    if (
        array.dtype == np.uint8
        and array.ndim == 3
        and array.shape[2] in (1, 3, 4)
        and min(array.shape[:2]) >= IMAGE_MIN_SIDE
    ):
        return Image(array.shape)
    return Array(array.shape, array.dtype)


def infer_schema(step: Mapping[str, Any], *, final: Iterable[str] | None = None) -> Schema:
    """Return the schema that a first step suggests.

    Args:
        step: name to value of one step; nested mappings become dotted names.
        final: names of the features that also have a value in an episode's final row. Default: those named
            ``observation`` or ``obs``, or whose dotted name begins so.

    Raises:
        SchemaError: a value or a name that cannot be stored; the message names it.
    """
    pairs = list(flatten(step))
    flat = dict(pairs)
    if len(flat) < len(pairs):
        twice = sorted({name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1})
        raise SchemaError(f"the step has {', '.join(twice)} twice, nested and with dots in its name.")
    finals = {name for name in flat if name.split(".")[0] in FINAL_NAMES} if final is None else set(final)
    unknown = finals - set(flat)
    if unknown:
        raise SchemaError(f"final names {sorted(unknown)}, which the step does not have. It has: {', '.join(flat)}.")
    features = {}
    for name, value in flat.items():
        try:
            features[name] = infer_feature(value).with_final(name in finals)
        except SchemaError as error:
            raise SchemaError(f"feature {name!r}: {error}") from error
    return Schema(features)


def infer_columns(columns: Mapping[str, Any], *, final: Iterable[str] | None = None) -> Schema:
    """Return the schema that the whole columns of an episode suggest.

    Lists of arrays of different lengths become ragged features, lists of images of different sizes
    ``Image((None, None, channels))``.

    Args:
        columns: dotted name to an array [T, ...] or a list of T values, at least one.
        final: as for `infer_schema`.

    Raises:
        SchemaError: as `infer_schema`.

    Example:
        >>> infer_columns({"image": [np.zeros((20, 30, 3), np.uint8), np.zeros((40, 30, 3), np.uint8)]})
        <Schema image: raw ?x?x3 uint8>
    """
    schema = infer_schema({name: values[0] for name, values in columns.items()}, final=final)
    return Schema({name: _varying(feature, columns[name]) for name, feature in schema.items()})


def _varying(feature: Feature, values: Any) -> Feature:
    """Return a feature that takes a list of arrays whose shapes differ."""
    if not isinstance(values, list | tuple) or not all(isinstance(v, np.ndarray) and v.ndim for v in values):
        return feature
    if feature.kind == "image":
        is_alike = len({value.shape for value in values}) == 1
        return feature if is_alike else Image((None, None, feature.shape[2]), final=feature.final)
    if len({len(value) for value in values}) == 1:
        return feature
    return Array((None, *values[0].shape[1:]), feature.dtype, final=feature.final)


def flatten(step: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of a possibly nested step."""
    for name, value in step.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def is_feature_name(name: object) -> bool:
    """Whether a feature may be called so: what is no name may be a path that leads out of a store."""
    try:
        _check_name(name)
    except SchemaError:
        return False
    return True


def _check_name(name: object) -> None:
    if (
        not isinstance(name, str)
        or not NAME.fullmatch(name)
        or name.endswith(".")
        or ".." in name
        or len(name) > MAX_NAME_BYTES
    ):
        raise SchemaError(
            f"feature name {name!r} cannot be a file's name. Allowed: letters, digits, '_', '.' and '-', "
            f"at most {MAX_NAME_BYTES}, not beginning with '.' or '-', no '..', not ending with '.'."
        )
    if name in RESERVED:
        raise SchemaError(f"feature name {name!r} is the name of one of the store's own files. Choose another.")
