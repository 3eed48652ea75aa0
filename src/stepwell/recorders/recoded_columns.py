"""One feature of a new segment: decoded rows of old ones, encoded and compared, or bytes of other files as they are.

::

    old rows ── read_rows ──> values ── encode ──> blobs ──> NAME.npy, NAME.bin
                 a batch at a time │                 │
                                   └──> compare <── decode         row by row; of sequential codecs, run by run

    references of an episode ── FileCodec.embed ──> packets, PNG files ──> NAME.npy, NAME.bin        nothing is decoded
                                             └────> plain rows ──────────> NAME.npy
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, SequentialCodec, make_codec
from stepwell.codecs.codec import codec_class
from stepwell.errors import DecodeError, StepError
from stepwell.recorders.conversion_reports import Distortion, mean_square_error
from stepwell.references.file_codec import REFERENCE_DTYPE, FileCodec, ListedFileCodec
from stepwell.schema import Feature
from stepwell.store import Segment
from stepwell.store.column_file import (
    Column,
    EncodedColumn,
    RawColumn,
    checksums_of,
    make_column,
    new_column,
    parts_of,
)

__all__ = [
    "BATCH_BYTES",
    "Distortion",
    "EpisodeInSegment",
    "RecodedColumn",
    "RowSink",
    "column_bytes",
    "embed_column",
    "embedded_feature",
    "embedded_row_bytes",
    "make_sink",
    "mean_square_error",
    "recode_column",
    "stored_bytes",
]

MAX_BATCH_ROWS = 256
# of images of any size and encoded samples, whose decoded bytes their encoded ones do not tell
MAX_BATCH_IMAGES = 8


@dataclass(frozen=True, slots=True)
class EpisodeInSegment:
    """Where the rows of an episode are."""

    segment: Segment
    start: int
    length: int
    rows: int
    index: int
    source_index: int


@dataclass(frozen=True, slots=True)
class RecodedColumn:
    """What became of one feature's rows: their bytes before and after, offsets included, and what was lost."""

    bytes_before: int
    bytes_after: int
    distortion: Distortion | None
    checksums: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def recode_column(
    stem: str,
    old: Feature,
    new: Feature,
    episodes: Sequence[EpisodeInSegment],
    advance: Callable[[EpisodeInSegment, int], None] = lambda episode, rows: None,
) -> RecodedColumn:
    """Write the files of one feature of a new segment."""
    directory, name = os.path.split(stem)
    num_rows = sum(episode.rows for episode in episodes)
    column = make_column(directory, name, new, num_rows)
    sink = make_sink(column, new)
    try:
        for episode in episodes:
            advance(episode, 0)
            # the final row may hold samples, too
            kept = episode.rows if new.final or new.rate is not None else episode.length
            for start, stop in _batches(episode, name, old, kept):
                sink.put(_read(episode, name, start, stop), episode.index, start)
                advance(episode, stop - start)
            sink.end_episode(num_blank=episode.rows - kept)
        after = column_bytes(column, num_rows)
    finally:
        sink.close()
        column.close()
    return RecodedColumn(stored_bytes(episodes, name, old), after, sink.distortion)


def stored_bytes(episodes: Iterable[EpisodeInSegment], name: str, feature: Feature) -> int:
    """Return the bytes that rows of a feature take on the disk, those of their offsets included."""
    total = 0
    for segment, group in groupby(episodes, lambda episode: episode.segment):
        bounds = np.array([(episode.start, episode.start + episode.rows) for episode in group])
        num_rows = int((bounds[:, 1] - bounds[:, 0]).sum())
        if feature.is_raw:
            total += num_rows * feature.row_bytes
        else:
            offsets = segment.offsets_map(name)[bounds].astype(np.int64)
            total += 8 * num_rows + int((offsets[:, 1] - offsets[:, 0]).sum())
    return total


def column_bytes(column: Column, rows: int) -> int:
    """Return the bytes of the first rows of a column that was written, those of their offsets included."""
    if isinstance(column, RawColumn):
        return rows * column.row_bytes
    return 8 * rows + column.num_bytes(rows)


def _read(episode: EpisodeInSegment, name: str, start: int, stop: int) -> Any:
    try:
        return episode.segment.read_rows(name, episode.start + start, episode.start + stop)
    except DecodeError as error:
        raise DecodeError(f"feature {name!r}, steps {start} to {stop - 1}: {error}") from error


def _batches(episode: EpisodeInSegment, name: str, feature: Feature, stop: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of an episode's rows, small enough to be held; of a sequential codec whole runs where they fit."""
    row_bytes = stored_bytes([episode], name, feature) // episode.rows if feature.is_ragged else feature.row_bytes
    is_unknown = feature.is_image_of_any_size or (feature.rate is not None and feature.codec != "raw")
    limit = MAX_BATCH_IMAGES if is_unknown else MAX_BATCH_ROWS
    most = max(1, min(limit, BATCH_BYTES // max(1, row_bytes)))
    cuts = _sync_rows(episode, name, feature, stop)
    start = 0
    while start < stop:
        end = min(start + most, stop)
        inside = cuts[(cuts > start) & (cuts <= end)]
        if end < stop and len(inside):
            end = int(inside[-1])
        yield start, end
        start = end


def _sync_rows(episode: EpisodeInSegment, name: str, feature: Feature, stop: int) -> npt.NDArray[np.intp]:
    """Return the rows of an episode at which a run begins; none where rows do not need each other."""
    codec = make_codec(feature)
    if not isinstance(codec, SequentialCodec):
        return np.empty(0, np.intp)
    stored = episode.segment.stored_rows(name)
    begins = [stored.is_sync(row) for row in range(episode.start, episode.start + stop)]
    return np.flatnonzero(begins)


# of what is in a file that is not looked at before its rows are taken
USUAL_RATIO = 16
# episodes and plain rows that are taken in at once; of others only the references are held
MOST_EPISODES, MOST_ROWS = 4096, 4096


def embedded_feature(feature: Feature) -> Feature | None:
    """Return the feature that holds the rows of one as bytes of its own, None where it does already."""
    codec = None if feature.is_raw else make_codec(feature)
    return codec.embedded() if isinstance(codec, FileCodec) else None


def embed_column(
    stem: str,
    old: Feature,
    new: Feature,
    episodes: Sequence[EpisodeInSegment],
    advance: Callable[[EpisodeInSegment, int], None],
) -> RecodedColumn:
    """Write the files of one feature of a new segment."""
    directory, name = os.path.split(stem)
    codec = make_codec(old)
    if not isinstance(codec, FileCodec):
        raise DecodeError(f"feature {name!r}: {old} holds its rows itself.")
    # rows of a sequential codec need those before them in their episode, and no others
    most = 1 if isinstance(make_codec(new), SequentialCodec) else MOST_EPISODES
    column = new_column(directory, name, new, sum(episode.rows for episode in episodes))
    try:
        for segment, of_segment in groupby(episodes, lambda episode: episode.segment):
            offsets, blob = segment.offsets_map(name), segment.blob_map(name)
            for group in _groups(of_segment, new.final, most):
                references = _references(offsets, blob, group, new.final)
                _embed(column, new, codec, references, group, advance)
        column.finish()
        after = column.num_bytes_appended
    except (DecodeError, StepError) as error:
        raise DecodeError(f"feature {name!r}: {error}") from error
    finally:
        column.close()
    return RecodedColumn(stored_bytes(episodes, name, old), after, None, checksums_of([column]))


def _groups(episodes: Iterable[EpisodeInSegment], is_final: bool, most: int) -> Iterator[list[EpisodeInSegment]]:
    """Yield episodes of a segment whose references lie behind each other; a row without one ends a group."""
    group: list[EpisodeInSegment] = []
    for episode in episodes:
        if group and (len(group) == most or group[-1].start + group[-1].rows != episode.start):
            yield group
            group = []
        group.append(episode)
        if not is_final and episode.rows > episode.length:
            yield group
            group = []
    if group:
        yield group


def _references(
    offsets: npt.NDArray[np.uint64], blob: npt.NDArray[np.uint8], group: Sequence[EpisodeInSegment], is_final: bool
) -> Any:
    """Return the references of the rows of a group: uint8 [n, 16], or a list where they are of other sizes."""
    last = group[-1]
    stop = last.start + (last.rows if is_final else last.length)
    edges = offsets[group[0].start : stop + 1].astype(np.int64)
    if len(edges) > 1 and (np.diff(edges) == REFERENCE_DTYPE.itemsize).all() and edges[-1] <= len(blob):
        return blob[edges[0] : edges[-1]].reshape(-1, REFERENCE_DTYPE.itemsize)
    return [blob[begin:end] for begin, end in pairwise(edges.tolist())]


def _embed(  # noqa: PLR0917
    column: Column,
    new: Feature,
    codec: FileCodec,
    references: Any,
    group: Sequence[EpisodeInSegment],
    advance: Callable[[EpisodeInSegment, int], None],
) -> None:
    """Append the rows of a group of episodes."""
    ends = np.cumsum([episode.rows for episode in group])
    num_rows, num_read, num_stored = len(references), 0, 0

    def note_rows() -> None:
        # by the last row that was read, so that an error names the episode of the next one
        nonlocal num_stored
        episode = group[min(int(np.searchsorted(ends, num_read, "right")), len(group) - 1)]
        advance(episode, num_read - num_stored)
        num_stored = num_read

    def rows() -> Iterator[bytes]:
        nonlocal num_read
        for row in codec.embed(references).rows(new):
            yield row
            num_read += 1

    note_rows()
    try:
        if isinstance(column, RawColumn):
            for start in range(0, num_rows, MOST_ROWS):
                part = references[start : start + MOST_ROWS]
                try:
                    plain = _plain_rows(codec, part)
                except DecodeError:
                    for blob in part:
                        codec.decode(blob)
                        num_read += 1
                    raise
                column.append_rows(plain, len(part))
                num_read += len(part)
                note_rows()
        else:
            for blobs in parts_of(rows()):
                data = np.frombuffer(b"".join(blobs), np.uint8)
                column.append_rows(data, np.array([len(blob) for blob in blobs], np.int64))
                note_rows()
    except (DecodeError, StepError):
        note_rows()
        raise
    if num_read != num_rows:
        raise DecodeError(f"its codec gave {num_read} rows for {num_rows} references.")
    if num_rows < ends[-1]:
        if isinstance(column, RawColumn):
            column.append_rows(np.zeros(column.row_bytes, np.uint8), 1)
        else:
            column.append_rows(np.empty(0, np.uint8), np.zeros(1, np.int64))


def embedded_row_bytes(segment: Segment, name: str, feature: Feature) -> float:
    """Return about how many bytes a row of references takes in a store that holds what they refer to."""
    kind = codec_class(feature)
    if issubclass(kind, ListedFileCodec):
        return 8 + kind.bytes_in_files(segment.blob_map(name)) / max(1, segment.num_rows)
    return feature.row_bytes / USUAL_RATIO


def _plain_rows(codec: FileCodec, references: Any) -> npt.NDArray[Any]:
    """Return the rows of references as an array."""
    rows = np.empty((len(references), *codec.feature.fixed_shape), codec.feature.np_dtype)
    if codec.only_copies and isinstance(references, np.ndarray):
        codec.decode_rows(references, rows)
        return rows
    for place, blob in enumerate(references):
        codec.decode_into(blob, rows[place, ...])
    return rows


# decoded rows that are read at once, about; those of a run that have not been compared come on top, as many again
BATCH_BYTES = 32 << 20


class RowSink(ABC):
    """Takes the rows of a new column, in order, encodes and stores them, and compares what it stored with them."""

    def __init__(self) -> None:
        self.distortion = Distortion()
        self.row = 0

    @abstractmethod
    def put(self, values: Any, episode: int, step: int) -> None:
        """Store rows of an episode from ``step`` on: an array [n, *shape], or a list."""

    @abstractmethod
    def end_episode(self, num_blank: int) -> None:
        """Store what is left of the episode, and rows that have no value."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is held; the column is the caller's to close."""


class _RawSink(RowSink):
    """Rows as they are: nothing can be lost, and nothing is compared."""

    def __init__(self, column: RawColumn) -> None:
        super().__init__()
        self._column = column

    def put(self, values: Any, episode: int, step: int) -> None:
        self._column.write_rows(self.row, values)
        self.row += len(values)
        self.distortion = Distortion.joined([self.distortion, Distortion(len(values))])

    def end_episode(self, num_blank: int) -> None:
        # what is not written is zeros
        self.row += num_blank

    def close(self) -> None:
        pass


class _EncodedSink(RowSink):
    """Rows that need no other."""

    def __init__(self, column: EncodedColumn, codec: Codec) -> None:
        super().__init__()
        self._column, self._codec = column, codec
        feature = codec.feature
        self._out = None if feature.is_ragged else np.empty(feature.fixed_shape, feature.np_dtype)

    def put(self, values: Any, episode: int, step: int) -> None:
        for i in range(len(values)):
            # a scalar's row is an array, too: the dots keep it one
            value = values[i] if self._out is None else values[i, ...]
            blob = self._codec.encode(value)
            self._column.write(self.row, blob)
            self.row += 1
            error = mean_square_error(value, self._decoded(np.frombuffer(blob, np.uint8)))
            self.distortion = self.distortion.with_row(error, episode, step + i)

    def _decoded(self, blob: npt.NDArray[np.uint8]) -> Any:
        if self._out is None:
            return self._codec.decode(blob)
        self._codec.decode_into(blob, self._out)
        return self._out

    def end_episode(self, num_blank: int) -> None:
        for _ in range(num_blank):
            self._column.write(self.row, b"")
            self.row += 1

    def close(self) -> None:
        pass


class _RunSink(RowSink):
    """Rows of a sequential codec: compared when their run is whole, or when those that wait would take too much."""

    def __init__(self, column: EncodedColumn, codec: SequentialCodec) -> None:
        super().__init__()
        self._column, self._codec, self._encoder = column, codec, codec.encoder()
        self._waiting: deque[tuple[npt.NDArray[Any], int, int]] = deque()
        self._run: list[npt.NDArray[np.uint8]] = []
        self._num_compared = 0  # of the run's rows

    def put(self, values: Any, episode: int, step: int) -> None:
        for i in range(len(values)):
            self._waiting.append((values[i, ...], episode, step + i))
            self._store(self._encoder.put(values[i, ...]))
        if len(self._waiting) * self._codec.feature.row_bytes >= BATCH_BYTES:
            self._compare()

    def end_episode(self, num_blank: int) -> None:
        self._store(self._encoder.end())
        self._compare()
        for _ in range(num_blank):
            self._column.write(self.row, b"")
            self.row += 1

    def close(self) -> None:
        self._encoder.close()

    def _store(self, blobs: Sequence[bytes]) -> None:
        for blob in blobs:
            if self._codec.is_sync(blob):
                self._compare()
                self._run, self._num_compared = [], 0
            self._column.write(self.row, blob)
            self.row += 1
            self._run.append(np.frombuffer(blob, np.uint8))

    def _compare(self) -> None:
        places = range(self._num_compared, len(self._run))
        if not places:
            return
        feature = self._codec.feature
        outs = np.empty((len(places), *feature.fixed_shape), feature.np_dtype)
        self._codec.decode_run(self._run, places, [outs[i, ...] for i in range(len(places))])
        self._num_compared = len(self._run)
        for i in range(len(places)):
            value, episode, step = self._waiting.popleft()
            self.distortion = self.distortion.with_row(mean_square_error(value, outs[i, ...]), episode, step)


def make_sink(column: RawColumn | EncodedColumn, feature: Feature) -> RowSink:
    """Return what fills a new column of a feature."""
    if isinstance(column, RawColumn):
        return _RawSink(column)
    codec = make_codec(feature)
    if codec.is_sequential:
        return _RunSink(column, cast(SequentialCodec, codec))
    return _EncodedSink(column, codec)
