"""One feature of a new segment whose rows lay in files of somebody else's: their bytes are taken in as they are.

::

    references of an episode ── FileCodec.embed ──> packets, PNG files ──> NAME.npy, NAME.bin        nothing is decoded
                                             └────> plain rows ──────────> NAME.npy
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.codecs.codec import codec_class
from stepwell.errors import DecodeError, StepError
from stepwell.recorders.recoded_columns import EpisodeRows, RecodedColumn, column_bytes, stored_bytes
from stepwell.references.file_codec import FileCodec, ListedFileCodec
from stepwell.schema import Feature
from stepwell.store import Segment
from stepwell.store.column_file import RawColumn, make_column

__all__ = ["embed_column", "embedded_feature", "embedded_row_bytes"]

# of what is in a file that is not looked at before its rows are taken
USUAL_RATIO = 16


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
    num_rows = sum(episode.rows for episode in episodes)
    codec = make_codec(old)
    if not isinstance(codec, FileCodec):
        raise DecodeError(f"feature {name!r}: {old} holds its rows itself.")
    column, row = make_column(directory, name, new, num_rows), 0
    try:
        for episode in episodes:
            advance(episode, 0)
            blobs = _blobs(episode, name, new.final)
            if isinstance(column, RawColumn):
                column.write_rows(row, _plain_rows(codec, name, blobs))
                advance(episode, len(blobs))
            else:
                for place, blob in enumerate(_embedded(codec, name, new, blobs)):
                    column.write(row + place, blob)
                    advance(episode, 1)
                if episode.rows > len(blobs):
                    column.write(row + len(blobs), b"")
            row += episode.rows
        after = column_bytes(column, num_rows)
    finally:
        column.close()
    return RecodedColumn(sum(stored_bytes(episode, name, old) for episode in episodes), after, None)


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


def _plain_rows(codec: FileCodec, name: str, blobs: list[npt.NDArray[np.uint8]]) -> npt.NDArray[Any]:
    """Return the rows of an episode as an array."""
    rows = np.empty((len(blobs), *codec.feature.fixed_shape), codec.feature.np_dtype)
    try:
        for place, blob in enumerate(blobs):
            codec.decode_into(blob, rows[place, ...])
    except DecodeError as error:
        raise DecodeError(f"feature {name!r}: {error}") from error
    return rows


def _embedded(codec: FileCodec, name: str, new: Feature, blobs: list[npt.NDArray[np.uint8]]) -> Iterator[bytes]:
    """Yield the rows of an episode as the new feature has them."""
    count = 0
    try:
        for blob in codec.embed(blobs).rows(new):
            yield blob
            count += 1
    except (DecodeError, StepError) as error:
        raise DecodeError(f"feature {name!r}: {error}") from error
    if count != len(blobs):
        raise DecodeError(f"feature {name!r}: its codec gave {count} rows for {len(blobs)} references.")


def _blobs(episode: EpisodeRows, name: str, is_final: bool) -> list[npt.NDArray[np.uint8]]:
    count = episode.rows if is_final else episode.length
    offsets, blob = episode.segment.offsets_map(name), episode.segment.blob_map(name)
    edges = offsets[episode.start : episode.start + count + 1].astype(np.int64).tolist()
    return [blob[begin:end] for begin, end in pairwise(edges)]
