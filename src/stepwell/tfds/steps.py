"""The steps of some records at once: rows of columns, metadata of episodes, how they ended.

::

    Records ──ExampleKeys──> Examples ──Column.rows──> arrays, texts ─┬─> Steps
                                 └── spans ──────> ImageRows ─────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import FormatError
from stepwell.formats.images import SIGNATURES
from stepwell.json_text import parse_json
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_spans import SPAN_DTYPE, FileSpanCodec, FileSpans, make_spans, rows_of
from stepwell.schema import Feature, Schema, flatten, infer_feature
from stepwell.store.bulk_writing import Blobs, EpisodeBlock
from stepwell.store.values import EncodedRows, HasRows
from stepwell.tfds.columns import Column
from stepwell.tfds.examples import ExampleKeys, Examples
from stepwell.tfds.record_files import Records

__all__ = [
    "HeldSpans",
    "ImageRows",
    "StepDecoder",
    "Steps",
    "Transform",
    "block_of",
    "transform_of",
    "transformed_schema",
]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
MetadataKeys = Sequence[tuple[tuple[str, ...], Column]]


@dataclass(frozen=True, slots=True, eq=False)
class HeldSpans:
    """Rows of a file that were read already: for a store that copies them no file is read again.

    Args:
        spans: where they lie.
        offsets: int64 [n], first byte of each in the data.
        data: uint8, what was read.
    """

    spans: FileSpans
    offsets: Int64s
    data: npt.NDArray[np.uint8]

    @property
    def feature(self) -> Feature:
        """What the rows are."""
        return self.spans.feature

    @property
    def num_rows(self) -> int:
        """Rows that there are."""
        return self.spans.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.spans.nbytes

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, rows: slice | npt.ArrayLike) -> HeldSpans:
        """Return some of the rows; see `FileSpans`."""
        chosen = rows_of(rows)
        return HeldSpans(self.spans[chosen], self.offsets[chosen], self.data)

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Return the rows as a feature has them; see `FileSpans`."""
        if feature.codec == FileSpanCodec.name:
            return self.spans.rows(feature)
        return iter(self._held)

    def encoded(self, feature: Feature) -> EncodedRows | None:
        """Return the rows in memory; None where references to the file are asked for; see `encoded_of`."""
        return None if feature.codec == FileSpanCodec.name else self._held

    @property
    def _held(self) -> EncodedRows:
        return EncodedRows.in_memory(self.data, self.offsets, np.asarray(self.spans.sizes))


@dataclass(frozen=True, slots=True, eq=False)
class ImageRows:
    """Rows that stay as the bytes they are.

    Args:
        offsets: int64 [n], first byte of each in the data.
        sizes: int64 [n].
        data: uint8, what was read.
        base: place of the data in the file; None where it lies in none as it is.
    """

    offsets: Int64s
    sizes: Int64s
    data: npt.NDArray[np.uint8]
    base: int | None

    def __len__(self) -> int:
        return len(self.sizes)

    def in_memory(self, start: int, stop: int, feature: Feature) -> EncodedRows | npt.NDArray[Any]:
        """Return some rows: the files of images where they were read, or plain rows copied into an array."""
        rows = EncodedRows.in_memory(self.data, self.offsets[start:stop], self.sizes[start:stop])
        if not feature.is_raw:
            return rows
        return np.frombuffer(b"".join(rows.buffers), feature.np_dtype).reshape(len(rows), *feature.fixed_shape)

    def part(self, start: int, stop: int, feature: Feature, paths: Sequence[str], file: int) -> Any:
        """Return some rows as a store takes them, which may leave them in the file where they lie in one."""
        if self.base is None:
            return self.in_memory(start, stop, feature)
        spans = FileSpans(feature, paths, file, *self.in_file(start, stop))
        if feature.is_raw or not len(self.data):
            return spans
        return HeldSpans(spans, self.offsets[start:stop], self.data)

    def in_file(self, start: int, stop: int) -> tuple[Int64s, Int64s]:
        """Return offsets and sizes of some rows in the file."""
        return self.offsets[start:stop] + (self.base or 0), self.sizes[start:stop]

    def without_data(self) -> ImageRows:
        """Return the same rows, of the file only."""
        return replace(self, data=np.empty(0, np.uint8))


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The steps of some records.

    Args:
        edges: int64 [n + 1], first step of each record among all.
        rows: by column: of all steps.
        metadata: of each record.
        terminated: bool [n].
        truncated: bool [n].
    """

    edges: Int64s
    rows: Mapping[str, Any]
    metadata: Sequence[Mapping[str, Any]]
    terminated: Bools
    truncated: Bools

    def __len__(self) -> int:
        return len(self.terminated)

    def without_data(self) -> Steps:
        """Return the same steps, with images that are read from the file again."""
        rows = {name: part.without_data() if isinstance(part, ImageRows) else part for name, part in self.rows.items()}
        return replace(self, rows=rows)


class StepDecoder:
    """Decode records of one dataset.

    Notes:
        An immutable value; thread-safe and picklable.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        metadata: MetadataKeys = (),
        *,
        is_last: str | None = None,
        is_terminal: str | None = None,
    ) -> None:
        self.columns, self._metadata = columns, metadata
        self._is_last, self._is_terminal = is_last, is_terminal
        asked = [*columns, *(column for _, column in metadata)]
        flags = [key for key in (is_last, is_terminal) if key is not None]
        self._keys = ExampleKeys(list(dict.fromkeys([*(key for column in asked for key in column.keys), *flags])))

    def decode(self, records: Records, path: str) -> Steps:
        """Return the steps of records."""
        try:
            return self._decode(records)
        except FormatError as error:
            if len(records.starts) == 1:
                raise FormatError(f"{_where(records, path)}: {error}") from error
        for place in range(len(records.starts)):
            self.decode(_one(records, place), path)
        raise FormatError(f"{_where(records, path)}: {len(records.starts)} records that cannot be read together.")

    def _decode(self, records: Records) -> Steps:
        found = self._keys.locate(records.data, records.starts, records.stops, "the record")
        lengths = self._lengths(found)
        if not lengths.all():
            raise FormatError("an episode without steps, which no store can hold. Import the others, by episodes=.")
        rows = {column.name: self._rows(column, found, lengths, records) for column in self.columns}
        terminated, truncated = self._ends(found, lengths)
        edges = np.concatenate([[0], np.cumsum(lengths)])
        return Steps(edges, rows, self._metadata_of(found), terminated, truncated)

    def _lengths(self, found: Examples) -> Int64s:
        """Return how many steps each record has, int64 [n]: what all columns agree on."""
        ones = np.ones(len(found), np.int64)
        known: tuple[str, Int64s] | None = None
        for column in self.columns:
            counts = column.row_counts(found)
            if not column.in_steps:
                counts, known = ones if counts is None else counts, known or ("the example", ones)
            if counts is None:
                continue
            known = known or (column.name, counts)
            if not np.array_equal(counts, known[1]):
                place = int(np.argmax(counts != known[1]))
                raise FormatError(
                    f"{column.name!r} has {counts[place]} rows, {known[0]!r} {known[1][place]}. All features of steps "
                    "must have as many."
                )
        if known is None:
            raise FormatError("no feature that tells how many steps there are. Keep one of fixed shape.")
        return known[1]

    def _rows(self, column: Column, found: Examples, lengths: Int64s, records: Records) -> Any:
        if not column.is_left:
            return column.rows(found, lengths)
        spans = found.spans(column.keys[0])
        _check_spans(column, spans.offsets, spans.sizes, records.data)
        return ImageRows(spans.offsets, spans.sizes, records.data, records.offset)

    def _ends(self, found: Examples, lengths: Int64s) -> tuple[Bools, Bools]:
        """Return which episodes terminated, and which were truncated, bool [n] each."""
        is_terminal, is_last = (self._at_end(found, key, lengths) for key in (self._is_terminal, self._is_last))
        return is_terminal, is_last & ~is_terminal

    @staticmethod
    def _at_end(found: Examples, key: str | None, lengths: Int64s) -> Bools:
        if key is None or not np.array_equal(found.counts(key), lengths):
            return np.zeros(len(lengths), np.bool_)
        flags: Bools = found.ints(key, np.bool_)
        return flags[np.cumsum(lengths) - 1]

    def _metadata_of(self, found: Examples) -> list[dict[str, Any]]:
        ones = np.ones(len(found), np.int64)
        made: list[dict[str, Any]] = [{} for _ in range(len(found))]
        for names, column in self._metadata:
            for told, value in zip(made, column.rows(found, ones), strict=True):
                entry = told
                for name in names[:-1]:
                    entry = entry.setdefault(name, {})
                entry[names[-1]] = _as_json(value, column)
        return made


def _as_json(value: Any, column: Column) -> Any:
    if isinstance(value, str) and column.is_sequence:
        return parse_json(value)
    return np.asarray(value).tolist() if isinstance(value, np.ndarray | np.generic) else value


def _check_spans(column: Column, offsets: Int64s, sizes: Int64s, data: npt.NDArray[np.uint8]) -> None:
    """Refuse rows of another size, and images of another format than the others."""
    key, feature = column.placed.key, column.feature
    if feature is not None and feature.is_raw:
        other = sizes[sizes != feature.row_bytes]
        if len(other):
            raise FormatError(f"{key!r}: a tensor of {other[0]} bytes, by features.json of {feature.row_bytes}.")
        return
    allowed = [feature.codec] if feature is not None and feature.codec in SIGNATURES else list(SIGNATURES)
    is_file = [_begins(data, offsets, sizes, SIGNATURES[name]) for name in allowed]
    if not np.logical_or.reduce(is_file).all():
        more = ', read files of several formats by images="any"' if len(allowed) == 1 else ""
        raise FormatError(
            f"{key!r}: an image that is no file of {', '.join(allowed)}. Leave such images out by "
            f"ignore=[{column.name!r}]{more}, or write the dataset again."
        )


def _begins(data: npt.NDArray[np.uint8], offsets: Int64s, sizes: Int64s, magic: bytes) -> Bools:
    """Return which spans begin with some bytes, bool [n]."""
    begins: Bools = sizes >= len(magic)
    for place, byte in enumerate(magic):
        begins = begins & (data[np.where(begins, offsets + place, 0)] == byte)
    return begins


def _where(records: Records, path: str) -> str:
    place = "" if records.offset is None else f", byte {records.offset + int(records.starts[0])}"
    return f"{path}: record {records.first}{place}"


def _one(records: Records, place: int) -> Records:
    """Return one of some records."""
    part = slice(place, place + 1)
    return Records(records.first + place, records.data, records.starts[part], records.stops[part], records.offset)


def block_of(
    steps: Steps, first: int, columns: Sequence[Column], told: Sequence[Mapping[str, Any]], shard: int | None
) -> EpisodeBlock:
    """Return a block of episodes."""
    end = first + len(told)
    start, stop = int(steps.edges[first]), int(steps.edges[end])
    return EpisodeBlock(
        np.diff(steps.edges[first : end + 1]),
        {column.name: _column(steps.rows[column.name], start, stop, column.feature, shard) for column in columns},
        told,
        steps.terminated[first:end],
        steps.truncated[first:end],
    )


def _column(rows: Any, start: int, stop: int, feature: Feature | None, shard: int | None) -> npt.NDArray[Any] | Blobs:
    assert feature is not None
    if isinstance(rows, ImageRows):
        if shard is not None:
            spans = make_spans(shard, *rows.in_file(start, stop))
            return Blobs(spans.reshape(-1), np.full(len(spans), SPAN_DTYPE.itemsize, np.int64))
        found = rows.in_memory(start, stop, feature)
        return found if isinstance(found, np.ndarray) else _blobs(list(found))
    if feature.is_raw:
        return np.ascontiguousarray(rows[start:stop], feature.np_dtype)
    encode = make_codec(feature).encode
    return _blobs([encode(row) for row in rows[start:stop]])


def _blobs(rows: Sequence[bytes]) -> Blobs:
    return Blobs(np.frombuffer(b"".join(rows), np.uint8), np.array(list(map(len, rows)), np.int64))


Transform = Callable[[EpisodeData], EpisodeData | None]


def transform_of(given: Transform | str | None) -> Transform | None:
    """Return a function that may be given as ``"module:function"``."""
    if not isinstance(given, str):
        return given
    module, _, name = given.partition(":")
    try:
        found: Transform = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise FormatError(
            f'transform={given!r}: {error}. Give "module:function" of a module on sys.path; on the command line, '
            "--import MODULE finds one in the current directory."
        ) from error
    return found


def transformed_schema(episode: EpisodeData, before: Schema) -> Schema:
    """Return the features of an episode that was transformed."""
    return Schema({name: _feature(name, values, before) for name, values in flatten(episode.columns)})


def _feature(name: str, values: Any, before: Schema) -> Feature:
    if isinstance(values, HasRows):
        own = getattr(values, "feature", before.get(name))
        if not isinstance(own, Feature):
            raise FormatError(f"transform= gives {name!r} as encoded rows. Keep their name, or give arrays.")
        return own
    if len(values) == 0:
        raise FormatError(f"transform= gives no steps of {name!r}, of the first episode.")
    found = infer_feature(values[0])
    known = before.get(name)
    is_same = known is not None and (known.kind, known.np_dtype) == (found.kind, found.np_dtype)
    return known if is_same and known is not None and known.shape in (found.shape, (None, *found.shape[1:])) else found
