"""Episodes as Examples: a step each, or all steps of an episode in one, as RLDS has them.

::

    actions       0 1 2 3         an episode of the store: T steps, and the observation after them
    observations  0 1 2 3 4
                  |       |
    RLDS          0 1 2 3 4       T + 1 steps: the last one has zeros for what it lacks
    is_first      1 0 0 0 0
    is_last       0 0 0 0 1
    is_terminal   0 0 0 0 t       where the episode was terminated

Metadata of episodes becomes features of ``episode_metadata``, one type for all, found by looking at all episodes:

::

    {"task": "push", "seed": 3, "pose": [0.1, 0.2]}      each episode's, JSON
         Text         int64       float64 (2)            a feature each
    {"notes": {...} or missing in some}                  Text: JSON, empty where there is none
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np

from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.formats.source_episodes import SourceEpisode
from stepwell.tfds.dataset_files import class_names
from stepwell.tfds.examples import encode_example
from stepwell.tfds.features import Fields, Leaf, Node, Repeated
from stepwell.tfds.step_forms import Labels, StepColumn

__all__ = ["EpisodeExamples", "MetadataColumn", "StepExamples", "encode_all", "metadata_columns", "nested", "runs_of"]

TEXT, BOOL, INTEGER, UNSIGNED, NUMBER, OTHER = "text", "bool", "integer", "unsigned", "number", "other"
DTYPES = {BOOL: "bool", INTEGER: "int64", UNSIGNED: "uint64", NUMBER: "float64"}
# up to here a float64 is every integer
MAX_EXACT = 1 << 53
Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class MetadataColumn:
    """One entry of the metadata of episodes."""

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


FLAGS = ("is_first", "is_last", "is_terminal")
# what a message of Protocol Buffers may have; TensorFlow reads no larger ones
MAX_EXAMPLE_BYTES = (1 << 31) - 1
# that are read at once of several episodes
MAX_RUN_ROWS = 64
# of each column, those of an episode
Rows = Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class StepExamples:
    """Writes an Example for each step: datasets that are not of episodes.

    Notes:
        An immutable value; picklable.
    """

    columns: tuple[StepColumn, ...]

    @property
    def tree(self) -> Fields:
        """The features, as features.json has them."""
        return nested((column.path, column.form.node) for column in self.columns)

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Names of classes by the path of their feature."""
        return {column.path: column.form.names for column in self.columns if isinstance(column.form, Labels)}

    def encode(self, episode: SourceEpisode, rows: Rows | None = None) -> Iterator[bytes]:
        """Yield the Examples of an episode."""
        if rows is None:
            rows = [column.form.read(episode, column.source, episode.length) for column in self.columns]
        for step in range(episode.length):
            lists: dict[str, Any] = {}
            for column, values in zip(self.columns, rows, strict=True):
                lists |= column.form.step_lists(column.path, values[step : step + 1])
            yield _checked(encode_example(lists), episode)


@dataclass(frozen=True, slots=True)
class EpisodeExamples:
    """Writes an Example for each episode, as RLDS has them.

    Notes:
        An immutable value; picklable. `encode` holds the rows of an episode and the Example.
    """

    columns: tuple[StepColumn, ...]
    metadata: tuple[MetadataColumn, ...] = ()

    def __post_init__(self) -> None:
        for column in self.columns:
            feature = column.form.feature
            if column.path in FLAGS and (feature.np_dtype != np.bool_ or feature.shape):
                raise SchemaError(
                    f"feature {column.source!r} as {column.path!r}: in RLDS it is a bool of each step. Give it another "
                    "name by rename=."
                )

    @property
    def tree(self) -> Fields:
        """The features, as features.json has them."""
        steps = [(column.path, column.form.node) for column in self.columns]
        own = {path for path, _ in steps}
        steps += [(name, Leaf("tensor", "bool")) for name in FLAGS if name not in own]
        entries = [(f"episode_metadata/{column.path}", column.node) for column in self.metadata]
        return nested([*entries, ("steps", Repeated(nested(steps), is_dataset=True))])

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Names of classes by the path of their feature."""
        forms = {f"steps/{column.path}": column.form for column in self.columns}
        steps = {path: form.names for path, form in forms.items() if isinstance(form, Labels)}
        entries = {f"episode_metadata/{column.path}": column.labels for column in self.metadata if column.labels}
        return {**steps, **entries}

    def encode(self, episode: SourceEpisode, rows: Rows | None = None) -> Iterator[bytes]:
        """Yield the Example of an episode."""
        count = episode.length + episode.has_final
        lists: dict[str, Any] = dict(self._flags(episode, count))
        for place, column in enumerate(self.columns):
            if episode.has_final and column.path in FLAGS:
                continue  # the step that was the last one is not the last of these
            found = self._rows(episode, column, count) if rows is None else rows[place]
            lists |= column.form.lists(f"steps/{column.path}", found)
        for entry in self.metadata:
            lists |= entry.lists(f"episode_metadata/{entry.path}", episode.metadata)
        yield _checked(encode_example(lists), episode)

    def _rows(self, episode: SourceEpisode, column: StepColumn, count: int) -> Sequence[Any]:
        """Return the rows of all steps; of the final one zeros where the store has none."""
        is_short = count > episode.length and not column.form.feature.final
        rows = column.form.read(episode, column.source, episode.length if is_short else count)
        if not is_short:
            return rows
        if isinstance(rows, np.ndarray):
            return np.concatenate([rows, column.form.blank[None]])
        return list(chain(rows, [column.form.blank]))

    def _flags(self, episode: SourceEpisode, count: int) -> Iterator[tuple[str, Any]]:
        ends = {"is_first": (0, True), "is_last": (-1, True), "is_terminal": (-1, episode.terminated)}
        for name, (place, value) in ends.items():
            flags = np.zeros(count, np.bool_)
            flags[place] = value
            yield f"steps/{name}", flags


def encode_all(examples: EpisodeExamples | StepExamples, run: Sequence[SourceEpisode]) -> Iterator[list[bytes]]:
    """Yield the Examples of each episode of a run from `runs_of`, whose rows are read at once."""
    rows: list[Rows] | None = None
    if len(run) > 1:
        stops = np.cumsum([episode.length for episode in run]).tolist()
        whole = replace(run[0], length=stops[-1])
        # what cannot be read is read again, episode by episode, so that the error names the right one
        with suppress(DecodeError):
            read = [column.form.read(whole, column.source, whole.length) for column in examples.columns]
            rows = [[values[start:stop] for values in read] for start, stop in pairwise([0, *stops])]
    for place, episode in enumerate(run):
        yield list(examples.encode(episode, None if rows is None else rows[place]))


def runs_of(episodes: Iterable[SourceEpisode]) -> Iterator[list[SourceEpisode]]:
    """Yield episodes in order, short ones that lie back to back in a segment together: reading costs by the call."""
    run: list[SourceEpisode] = []
    end = num_rows = 0
    for episode in episodes:
        is_next = bool(run) and episode.segment is run[-1].segment and episode.start == end
        num_rows = num_rows + episode.length if is_next else episode.length
        if run and not (is_next and num_rows <= MAX_RUN_ROWS and not episode.has_final and not run[-1].has_final):
            yield run
            run, num_rows = [], episode.length
        run.append(episode)
        end = episode.start + episode.length
    if run:
        yield run


def nested(leaves: Iterable[tuple[str, Node]]) -> Fields:
    """Return the tree of features by their paths.

    Example:
        >>> nested([("observation/task", Leaf("text", "string")), ("reward", Leaf("tensor", "float32"))])
        Fields(features={'observation': Fields(features={'task': Leaf(text string ())}), 'reward': ...})
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves:
        *parents, last = path.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise SchemaError(f"{path!r} lies in {parent!r}, which is a feature itself. Rename one of them.")
        if last in place:
            raise SchemaError(f"{path!r} is there twice, or has features below it. Rename one of them.")
        place[last] = leaf
    return _fields(tree)


def _fields(tree: Mapping[str, Any]) -> Fields:
    return Fields({name: _fields(part) if isinstance(part, dict) else part for name, part in tree.items()})


def _checked(example: bytes, episode: SourceEpisode) -> bytes:
    if len(example) > MAX_EXAMPLE_BYTES:
        raise StepError(
            f"{episode.store.path}: episode {episode.index} makes an Example of {len(example)} bytes. TensorFlow reads "
            f"at most {MAX_EXAMPLE_BYTES}. Leave features out, store images as JPEG, or cut the episode."
        )
    return example
