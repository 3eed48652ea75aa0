"""One feature of a new segment whose rows lay in files of somebody else's: their bytes are taken in as they are.

::

    references of an episode ── FileCodec.embed ──> packets, PNG files ──> NAME.npy, NAME.bin        nothing is decoded
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.codecs.files import FileCodec
from stepwell.errors import DecodeError, StepError
from stepwell.recorders.recoded_columns import EpisodeRows, RecodedColumn, stored_bytes
from stepwell.schema import Feature
from stepwell.store.columns import EncodedColumn

__all__ = ["embed_column", "embedded_feature"]


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
    name = Path(stem).name
    num_rows = sum(episode.rows for episode in episodes)
    column, row = EncodedColumn(stem, new, num_rows), 0
    codec = make_codec(old)
    if not isinstance(codec, FileCodec):
        raise DecodeError(f"feature {name!r}: {old} holds its rows itself.")
    try:
        for episode in episodes:
            advance(episode, 0)
            for blob in _embedded(codec, name, new, _blobs(episode, name, new.final)):
                column.write(row, blob)
                row += 1
                advance(episode, 1)
            if not new.final and episode.rows > episode.length:
                column.write(row, b"")
                row += 1
        after = 8 * num_rows + column.num_bytes(num_rows)
    finally:
        column.close()
    return RecodedColumn(sum(stored_bytes(episode, name, old) for episode in episodes), after, None)


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
