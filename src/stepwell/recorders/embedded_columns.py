"""One feature of a new segment whose rows lay in files of somebody else's: their bytes are taken in as they are.

::

    references of an episode ── FileCodec.embed ──> packets, PNG files ──> NAME.npy, NAME.bin        nothing is decoded
                                             └────> plain rows ──────────> NAME.npy
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.codecs.codec import codec_class
from stepwell.errors import DecodeError, StepError
from stepwell.recorders.recoded_columns import EpisodeRows, RecodedColumn, stored_bytes
from stepwell.references.file_codec import REFERENCE_DTYPE, FileCodec, ListedFileCodec
from stepwell.schema import Feature
from stepwell.store import Segment
from stepwell.store.column_file import Column, RawColumn, checksums_of, new_column

__all__ = ["embed_column", "embedded_feature", "embedded_row_bytes"]

# of what is in a file that is not looked at before its rows are taken
USUAL_RATIO = 16
# episodes and rows that are taken in at once, of which only the references are held; and bytes of rows
MOST_EPISODES, MOST_ROWS = 4096, 4096
PART_BYTES = 1 << 20


def embedded_feature(feature: Feature) -> Feature | None:
    """Return the feature that holds the rows of one as bytes of its own, None where it does already."""
    codec = None if feature.is_raw else make_codec(feature)
    return codec.embedded() if isinstance(codec, FileCodec) else None


def embed_column(
    stem: str, old: Feature, new: Feature, episodes: Sequence[EpisodeRows], advance: Callable[[EpisodeRows, int], None]
) -> RecodedColumn:
    """Write the files of one feature of a new segment.

    Args:
        stem: their path, but for the suffix.
        old: the feature as the episodes' segments have it, of references.
        new: its `embedded_feature`.
        episodes: whole episodes, in the new segment's order.
        advance: called with the episode that is being written and the rows of it that were, many times.

    Raises:
        DecodeError: a file that is missing or damaged, or a row that is not in it; names the feature.
        DiskFullError: no space.
    """
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
                _embed(column, codec, references, group, advance)
        column.finish()
        after = column.num_bytes_appended
    except (DecodeError, StepError) as error:
        raise DecodeError(f"feature {name!r}: {error}") from error
    finally:
        column.close()
    return RecodedColumn(stored_bytes(episodes, name, old), after, None, checksums_of([column]))


def _groups(episodes: Iterable[EpisodeRows], is_final: bool, most: int) -> Iterator[list[EpisodeRows]]:
    """Yield episodes of a segment whose references lie behind each other; a row without one ends a group."""
    group: list[EpisodeRows] = []
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
    offsets: npt.NDArray[np.uint64], blob: npt.NDArray[np.uint8], group: Sequence[EpisodeRows], is_final: bool
) -> Any:
    """Return the references of the rows of a group: uint8 [n, 16], or a list where they are of other sizes."""
    last = group[-1]
    stop = last.start + (last.rows if is_final else last.length)
    edges = offsets[group[0].start : stop + 1].astype(np.int64)
    if len(edges) > 1 and (np.diff(edges) == REFERENCE_DTYPE.itemsize).all() and edges[-1] <= len(blob):
        return blob[edges[0] : edges[-1]].reshape(-1, REFERENCE_DTYPE.itemsize)
    return [blob[begin:end] for begin, end in pairwise(edges.tolist())]


def _embed(
    column: Column,
    codec: FileCodec,
    references: Any,
    group: Sequence[EpisodeRows],
    advance: Callable[[EpisodeRows, int], None],
) -> None:
    """Append the rows of a group of episodes."""
    ends = np.cumsum([episode.rows for episode in group])
    num_rows, done = len(references), 0

    def count_rows(count: int) -> int:
        # by the last of the rows, so that an error names the episode of the next one
        advance(group[min(int(np.searchsorted(ends, done + count, "right")), len(group) - 1)], count)
        return done + count

    count_rows(0)
    if isinstance(column, RawColumn):
        for start in range(0, num_rows, MOST_ROWS):
            part = references[start : start + MOST_ROWS]
            column.append_rows(_plain_rows(codec, part), len(part))
            done = count_rows(len(part))
        if num_rows < ends[-1]:
            column.append_rows(np.zeros(column.row_bytes, np.uint8), 1)
        return
    parts: list[bytes] = []
    size = 0

    def store() -> None:
        nonlocal done, size
        data = np.frombuffer(b"".join(parts), np.uint8)
        column.append_rows(data, np.array([len(part) for part in parts], np.int64))
        done = count_rows(len(parts))
        parts.clear()
        size = 0

    try:
        for row in codec.embed(references).rows(column.feature):
            parts.append(row)
            size += len(row)
            if size >= PART_BYTES:
                store()
    except (DecodeError, StepError):
        store()
        raise
    if parts:
        store()
    if done != num_rows:
        raise DecodeError(f"its codec gave {done} rows for {num_rows} references.")
    if num_rows < ends[-1]:
        column.append_rows(np.empty(0, np.uint8), np.zeros(1, np.int64))


def embedded_row_bytes(segment: Segment, name: str, feature: Feature) -> float:
    """Return about how many bytes a row of references takes in a store that holds what they refer to.

    Args:
        segment: with the references.
        name: of the feature.
        feature: as the segment has it.
    """
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
