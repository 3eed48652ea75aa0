"""One feature of a new segment, written from decoded rows of old ones, and compared with them as it is written.

::

    old rows ── read_rows ──> values ── encode ──> blobs ──> NAME.npy, NAME.bin
                 a batch at a time │                 │
                                   └──> compare <── decode         row by row; of sequential codecs, run by run
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.errors import DecodeError
from stepwell.recorders.distortion import Distortion
from stepwell.recorders.row_sinks import BATCH_BYTES, make_sink
from stepwell.schema import Feature
from stepwell.store import Segment
from stepwell.store.column_file import Column, RawColumn, make_column

__all__ = ["EpisodeRows", "RecodedColumn", "column_bytes", "recode_column", "stored_bytes"]

MAX_BATCH_ROWS = 256
# of images of any size, whose decoded bytes their encoded ones do not tell
MAX_BATCH_IMAGES = 8


@dataclass(frozen=True, slots=True)
class EpisodeRows:
    """Where the rows of an episode are.

    Args:
        segment: that holds them.
        start: first row there.
        length: steps.
        rows: length, or one more with a final row.
        index: of the episode in the new store.
        source_index: of the episode in the old store.
    """

    segment: Segment
    start: int
    length: int
    rows: int
    index: int
    source_index: int


@dataclass(frozen=True, slots=True)
class RecodedColumn:
    """What became of one feature's rows: their bytes before and after, offsets included, and what was lost.

    ``distortion`` is None when they were copied; ``checksums`` are those of its files that are known.
    """

    bytes_before: int
    bytes_after: int
    distortion: Distortion | None
    checksums: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def recode_column(
    stem: str,
    old: Feature,
    new: Feature,
    episodes: Sequence[EpisodeRows],
    advance: Callable[[EpisodeRows, int], None] = lambda episode, rows: None,
) -> RecodedColumn:
    """Write the files of one feature of a new segment.

    Args:
        stem: their path, but for the suffix.
        old: the feature as the episodes' segments have it.
        new: as it shall be: the same dtype and shape, another codec or other options.
        episodes: whole episodes, in the new segment's order.
        advance: called with the episode that is being written and the rows of it that were, many times.

    Raises:
        DecodeError: an old row that its codec refuses, or a new one that does not come back; the message names steps.
        DiskFullError: no space.
    """
    directory, name = os.path.split(stem)
    num_rows = sum(episode.rows for episode in episodes)
    column = make_column(directory, name, new, num_rows)
    sink = make_sink(column, new)
    try:
        for episode in episodes:
            advance(episode, 0)
            kept = episode.rows if new.final else episode.length
            for start, stop in _batches(episode, name, old, kept):
                sink.put(_read(episode, name, start, stop), episode.index, start)
                advance(episode, stop - start)
            sink.end_episode(num_blank=episode.rows - kept)
        after = column_bytes(column, num_rows)
    finally:
        sink.close()
        column.close()
    return RecodedColumn(stored_bytes(episodes, name, old), after, sink.distortion)


def stored_bytes(episodes: Iterable[EpisodeRows], name: str, feature: Feature) -> int:
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


def _read(episode: EpisodeRows, name: str, start: int, stop: int) -> Any:
    try:
        return episode.segment.read_rows(name, episode.start + start, episode.start + stop)
    except DecodeError as error:
        raise DecodeError(f"feature {name!r}, steps {start} to {stop - 1}: {error}") from error


def _batches(episode: EpisodeRows, name: str, feature: Feature, stop: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of an episode's rows, small enough to be held; of a sequential codec whole runs where they fit."""
    row_bytes = stored_bytes([episode], name, feature) // episode.rows if feature.is_ragged else feature.row_bytes
    limit = MAX_BATCH_IMAGES if feature.is_image_of_any_size else MAX_BATCH_ROWS
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


def _sync_rows(episode: EpisodeRows, name: str, feature: Feature, stop: int) -> npt.NDArray[np.intp]:
    """Return the rows of an episode at which a run begins; none where rows do not need each other."""
    codec = make_codec(feature)
    if not isinstance(codec, SequentialCodec):
        return np.empty(0, np.intp)
    stored = episode.segment.stored_rows(name)
    begins = [stored.is_sync(row) for row in range(episode.start, episode.start + stop)]
    return np.flatnonzero(begins)
