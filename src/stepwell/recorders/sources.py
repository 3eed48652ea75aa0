"""Sources of `write_episodes` and `write_samples`: episodes or samples, cut into chunks of consecutive ones.

::

    source    | 0 1 2 3 | 4 5 6 7 | 8 9 |        one chunk, one segment, written by any worker
    segment   | base    | base+1  | base+2

The cuts, and so the store, depend on the source alone, never on the number of workers. A source with edges, such as
shards, is cut at each of them, and a shard that is too large is cut evenly::

    shards    | 0 1 2 3 4 5 6 | 7 8 | 9 |
    segments  | 0 1 2 3|4 5 6 | 7 8 | 9 |        at most 4 items each
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, runtime_checkable

from stepwell.errors import StepError
from stepwell.schema import Schema, flatten, infer_columns, infer_schema
from stepwell.store.values import has_rows

__all__ = [
    "Chunk",
    "EpisodeData",
    "HasOneStepEpisodes",
    "HasSpans",
    "SourceItems",
    "chunk_length",
    "cut",
    "num_column_bytes",
    "take_chunks",
]

# arguments of `Writer.add_episode`
NO_METADATA = frozenset({"terminated", "truncated", "final"})
MAX_CARRIED_BYTES = 16 << 20
MAX_CARRIED_ITEMS = 4096
# enough chunks to keep that many workers busy, few enough not to litter the store with segments
NUM_CHUNKS = 64


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeData:
    """A whole episode, an item of a source of `write_episodes`.

    Args:
        columns: name to an array [T, ...] or a list of T values; nested mappings become dotted names. The ``final``
            features may have T + 1: the last one is the observation after the last action.
        terminated: the environment reached a terminal state.
        truncated: the episode was cut by something outside of it, such as a time limit.
        metadata: JSON values by name, but not "terminated", "truncated" or "final"; `View.select` finds episodes by it.
    """

    columns: Mapping[str, Any]
    terminated: bool = False
    truncated: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive items of a source and the ordinal of the segment that holds them."""

    start: int
    stop: int
    ordinal: int
    # the items themselves, of an iterator; None: a worker reads them from the source
    carried: tuple[Any, ...] | None = None
    # of the segment; None: a random one
    tag: str | None = None


@runtime_checkable
class HasSpans(Protocol):
    """A source with a length that fetches files before they are read and removes them afterwards.

    It may also have an ``identity``, a text by which a call that resumes a recording recognizes the source, and a
    ``state``, a text that is another one when its files changed: a call that resumes warns.
    """

    def prepare(self, spans: Sequence[tuple[int, int]], /) -> None:
        """Take note of the half-open ranges of items that will be read; called once, before workers have it."""

    def forget(self, start: int, stop: int, /) -> None:
        """Take note that these items are stored for good; called where they were read, by any worker."""


@runtime_checkable
class HasOneStepEpisodes(Protocol):
    """A source with a length whose episodes of one step can be read many at a time."""

    def one_step_episodes(self, start: int, stop: int, /) -> Mapping[str, Any] | None:
        """Return columns of items `start` to `stop`, or of as many of the first as are read at once.

        Returns:
            Name to an array [n, *shape], a list of n values, or `EncodedRows`; None: item `start` is to be read alone.
        """


@dataclass(frozen=True, slots=True)
class SourceItems:
    """How the items of a source become steps: whole episodes, or samples that are an episode of one step each."""

    are_samples: bool
    names: tuple[str, ...] | None = None

    def write(self, writer: Any, item: Any) -> tuple[int, int]:
        """Write one item; returns its number of steps and of bytes."""
        if self.are_samples:
            sample = self._sample(item)
            writer.append(sample)
            writer.end_episode()
            return 1, num_column_bytes(sample)
        episode = item if isinstance(item, EpisodeData) else EpisodeData(_mapping(item))
        ends = {"terminated": episode.terminated, "truncated": episode.truncated}
        taken = sorted(name for name in episode.metadata if name in NO_METADATA)
        if taken:
            raise StepError(f"metadata called {taken[0]!r}, which says how an episode ends. Give it another name.")
        writer.add_episode(episode.columns, **ends, **episode.metadata)
        lengths = [_length(name, values) for name, values in flatten(episode.columns)]
        return min(lengths), num_column_bytes(episode.columns)

    def write_one_step_episodes(self, writer: Any, columns: Mapping[str, Any]) -> tuple[int, int]:
        """Write items that are episodes of one step; returns their number and their bytes."""
        writer.add_one_step_episodes(columns)
        return min(_length(name, values) for name, values in flatten(columns)), num_column_bytes(columns)

    def num_bytes(self, item: Any) -> int:
        """Return about how many bytes an item has."""
        if item is None:
            return 1
        if self.are_samples:
            return num_column_bytes(self._sample(item))
        return num_column_bytes(item.columns if isinstance(item, EpisodeData) else _mapping(item))

    def infer_schema(self, item: Any) -> Schema:
        """Return the schema that an item suggests, an episode as `infer_columns`."""
        if self.are_samples:
            return infer_schema(self._sample(item), final=())
        columns = dict(flatten(item.columns if isinstance(item, EpisodeData) else _mapping(item)))
        lengths = {name: _length(name, values) for name, values in columns.items()}
        shortest = min(lengths.values(), default=0)
        if shortest == 0:
            raise StepError("the first episode has no steps, and no schema can be inferred from it. Give schema=.")
        encoded = [name for name, values in columns.items() if has_rows(values)]
        if encoded:
            raise StepError(f"feature {encoded[0]!r}: no schema can be inferred from encoded rows. Give schema=.")
        longer = [name for name, length in lengths.items() if length == shortest + 1]
        return infer_columns(columns, final=longer or None)

    def _sample(self, item: Any) -> Mapping[str, Any]:
        if self.names is None:
            return _mapping(item)
        parts = item if isinstance(item, Sequence) else (item,)
        if len(parts) != len(self.names):
            raise StepError(
                f"the sample has {len(parts)} parts, names= has {len(self.names)}: {', '.join(self.names)}."
            )
        return dict(zip(self.names, parts, strict=True))


def chunk_length(num_items: int | None, item_bytes: int, segment_bytes: int, *, has_edges: bool = False) -> int:
    """Return how many items a segment gets."""
    if has_edges:
        return max(1, segment_bytes // max(1, item_bytes))
    if num_items is None:
        return max(1, min(MAX_CARRIED_ITEMS, min(MAX_CARRIED_BYTES, segment_bytes) // max(1, item_bytes)))
    return max(1, min(-(-num_items // NUM_CHUNKS), segment_bytes // max(1, item_bytes)))


def cut(num_items: int, length: int, edges: Sequence[int] | None = None) -> list[tuple[int, int]]:
    """Return the half-open range of items of each chunk."""
    if edges is None:
        return [(start, min(start + length, num_items)) for start in range(0, num_items, length)]
    spans: list[tuple[int, int]] = []
    for start, stop in pairwise(sorted({0, num_items, *(edge for edge in edges if 0 <= edge <= num_items)})):
        count = -(-(stop - start) // length)
        places = [start + -(-(stop - start) * part // count) for part in range(count + 1)]
        spans += pairwise(places)
    return spans


def num_column_bytes(columns: Mapping[str, Any]) -> int:
    """Return the bytes of the values in a possibly nested mapping, as given."""
    return sum(_num_bytes(values) for _, values in flatten(columns))


def _num_bytes(value: Any) -> int:
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_num_bytes, value))
    return int(getattr(value, "nbytes", 8))


def _mapping(item: Any) -> Mapping[str, Any]:
    if not isinstance(item, Mapping):
        raise StepError(
            f"got a {type(item).__name__}. Give a mapping of name to value, or an EpisodeData; "
            "samples that are tuples need names=."
        )
    return item


def _length(name: str, values: Any) -> int:
    if has_rows(values):
        return values.num_rows
    try:
        return len(values)
    except TypeError as error:
        raise StepError(
            f"feature {name!r} is a {type(values).__name__}, not a column. "
            "Give an array [T, ...] or a list of T values."
        ) from error


def take_chunks(items: Iterator[Any], length: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield (index of the first, items) of consecutive runs of an iterator."""
    start, run = 0, []
    for item in items:
        run.append(item)
        if len(run) == length:
            yield start, tuple(run)
            start, run = start + length, []
    if run:
        yield start, tuple(run)
