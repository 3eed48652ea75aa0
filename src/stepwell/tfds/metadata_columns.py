"""Metadata of episodes as features of ``episode_metadata``: one type for all episodes, found by looking at them all.

::

    {"task": "push", "seed": 3, "pose": [0.1, 0.2]}      each episode's, JSON
         Text         int64       float64 (2)            a feature each
    {"notes": {...} or missing in some}                  Text: JSON, empty where there is none
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from stepwell.errors import SchemaError
from stepwell.tfds.dataset_files import class_names
from stepwell.tfds.features import Leaf, Node, Repeated

__all__ = ["MetadataColumn", "metadata_columns"]

TEXT, BOOL, INTEGER, UNSIGNED, NUMBER, OTHER = "text", "bool", "integer", "unsigned", "number", "other"
DTYPES = {BOOL: "bool", INTEGER: "int64", UNSIGNED: "uint64", NUMBER: "float64"}
# up to here a float64 is every integer
MAX_EXACT = 1 << 53
Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """One entry of the metadata of episodes.

    Args:
        path: of the feature; "/" nests.
        kind: what all values are: "text", "bool", "integer", "unsigned" (64 bits), "number", else "other", which is
            written as JSON.
        shape: of lists of such values; (None,) of lists of texts.
        labels: names of classes, where the integers are such.
    """

    path: str
    kind: str
    shape: Shape = ()
    labels: tuple[str, ...] | None = None

    @property
    def node(self) -> Node:
        """The feature in features.json."""
        if self.labels is not None:
            return Leaf("label", "int64", num_classes=len(self.labels))
        if self.kind in (TEXT, OTHER):
            text = Leaf("text", "string")
            return Repeated(text) if self.shape else text
        # as a list of floats it would be rounded to float32
        return Leaf("tensor", DTYPES[self.kind], self.shape, "bytes" if self.kind == NUMBER else "none")

    @property
    def may_have_labels(self) -> bool:
        """Whether every episode has an integer, which may be that of a class."""
        return self.kind == INTEGER and not self.shape

    def with_labels(self, labels: Sequence[str]) -> MetadataColumn:
        """Return the column with names of classes."""
        return replace(self, labels=class_names(f"metadata {self.path!r}", labels))

    def lists(self, key: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the list of an Example for one episode's metadata."""
        value = _find(metadata, self.path)
        if self.kind == OTHER:
            return {key: [b"" if value is _MISSING else json.dumps(value, ensure_ascii=False).encode()]}
        if self.kind == TEXT:
            texts = [""] if value is _MISSING else value if self.shape else [value]
            return {key: [text.encode() for text in texts]}
        if self.kind == NUMBER:
            return {key: [np.asarray(value, "<f8").tobytes()]}
        return {key: np.asarray(value, DTYPES[self.kind]).reshape(-1)}


@dataclass(slots=True)
class _Seen:
    """What the values of one path are, of all episodes so far."""

    kinds: set[str] = field(default_factory=set)
    shapes: set[Shape | None] = field(default_factory=set)
    least: int = 0
    most: int = 0
    count: int = 0

    def add(self, value: Any) -> None:
        self.count += 1
        self.shapes.add(_shape_of(value))
        for item in _items_of(value):
            self.kinds.add(_kind_of(item))
            if type(item) is int:
                self.least, self.most = min(self.least, item), max(self.most, item)

    def column(self, path: str, num_episodes: int) -> MetadataColumn:
        kind, is_whole = self._kind(), self.count == num_episodes
        shape = next(iter(self.shapes)) if len(self.shapes) == 1 else None
        if kind == TEXT and shape == ():
            return MetadataColumn(path, kind)
        if kind == TEXT and is_whole and all(shape is not None and len(shape) == 1 for shape in self.shapes):
            return MetadataColumn(path, kind, (None,))
        if kind in DTYPES and is_whole and shape is not None and 0 not in shape:
            return MetadataColumn(path, kind, shape)
        return MetadataColumn(path, OTHER)

    def _kind(self) -> str:
        if self.kinds == {INTEGER}:
            if self.least >= -(1 << 63) and self.most < 1 << 63:
                return INTEGER
            return UNSIGNED if self.least >= 0 and self.most < 1 << 64 else OTHER
        is_exact = self.least >= -MAX_EXACT and self.most <= MAX_EXACT
        if self.kinds == {INTEGER, NUMBER} and is_exact:
            return NUMBER
        return next(iter(self.kinds)) if len(self.kinds) == 1 else OTHER


class _Missing:
    """Stands for a value that an episode does not have; JSON's null is a value."""


_MISSING = _Missing()


def metadata_columns(
    metadata: Iterable[Mapping[str, Any]],
    names: Collection[str] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> tuple[MetadataColumn, ...]:
    """Return how the metadata of episodes are written.

    Args:
        metadata: of every episode that will be written.
        names: which entries; default all.
        labels: path to names of classes, whose numbers the values are.

    Raises:
        SchemaError: a name with "/" or an entry that is not there.

    Example:
        >>> for column in metadata_columns([{"task": "push", "seed": 3}, {"task": "pull", "seed": 4}]):
        ...     print(column.path, column.kind)
        seed integer
        task text
    """
    seen: dict[str, _Seen] = {}
    count = 0
    for entries in metadata:
        count += 1
        for path, value in _leaves(entries, names):
            seen.setdefault(path, _Seen()).add(value)
    absent = [name for name in names or () if not any(path.split("/")[0] == name for path in seen)]
    if absent:
        raise SchemaError(f"metadata {absent[0]!r}: no episode has it. There are: {', '.join(sorted(seen)) or 'none'}.")
    _join_nested(seen)
    found = (seen[path].column(path, count) for path in sorted(seen))
    return tuple(_labelled(column, (labels or {}).get(column.path)) for column in found)


def _join_nested(seen: dict[str, _Seen]) -> None:
    """Let a path that is a mapping in some episodes and something else in others be one entry of any kind."""
    outer = [path for path in seen if any(other.startswith(f"{path}/") for other in seen)]
    for path in sorted(outer):
        if path not in seen:
            continue  # within another one that is such
        seen[path].kinds.add(OTHER)
        for inner in [other for other in seen if other.startswith(f"{path}/")]:
            del seen[inner]


def _labelled(column: MetadataColumn, labels: Sequence[str] | None) -> MetadataColumn:
    if labels is None:
        return column
    if not column.may_have_labels:
        raise SchemaError(f"metadata {column.path!r}: labels are names of classes, whose numbers every episode has.")
    return column.with_labels(labels)


def _leaves(entries: Mapping[str, Any], names: Collection[str] | None, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in entries.items():
        if names is not None and name not in names:
            continue
        if not isinstance(name, str) or not name or "/" in name:
            raise SchemaError(f"metadata {name!r}: TFDS nests at '/'. Leave it out: metadata= names what is written.")
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, None, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _find(metadata: Mapping[str, Any], path: str) -> Any:
    value: Any = metadata
    for name in path.split("/"):
        if not isinstance(value, Mapping) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _items_of(value: Any) -> Iterator[Any]:
    """Yield a value, or those of a list of any depth."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _items_of(item)
    else:
        yield value


def _shape_of(value: Any) -> Shape | None:
    """Return the shape of a list as an array has it; None where its parts differ in length."""
    if not isinstance(value, list | tuple):
        return ()
    shapes = {_shape_of(item) for item in value}
    inner = shapes.pop() if shapes else ()
    return None if shapes or inner is None else (len(value), *inner)


def _kind_of(value: Any) -> str:
    if isinstance(value, str):
        return TEXT
    if isinstance(value, bool):
        return BOOL
    return INTEGER if isinstance(value, int) else NUMBER if isinstance(value, float) else OTHER
