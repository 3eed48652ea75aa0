"""Steps of records as a block of episodes, for a store that refers to the files of a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.references.file_spans import SPAN_DTYPE, make_spans
from stepwell.schema import Feature
from stepwell.store.bulk_writing import Blobs, EpisodeBlock
from stepwell.tfds.columns import Column
from stepwell.tfds.steps import ImageRows, Steps

__all__ = ["block_of"]


def block_of(
    steps: Steps, first: int, columns: Sequence[Column], told: Sequence[Mapping[str, Any]], shard: int | None
) -> EpisodeBlock:
    """Return a block of episodes.

    Args:
        steps: of records.
        first: record that the block begins with.
        columns: of them.
        told: metadata of each record of the block.
        shard: number of the file where images are left; None: they are copied.
    """
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
