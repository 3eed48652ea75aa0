"""Rows of a store's features on their way into a ``.beton`` file: plain ones as they lie, JPEG files as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.pictures import JPEG_START
from stepwell.codecs import SequentialCodec, make_codec
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature
from stepwell.store import Segment

__all__ = ["JPEG_CODECS", "plain_rows", "row_values"]

# whose rows are JPEG files, or are so where they begin like one
JPEG_CODECS = ("jpeg", "jpeg-or-raw", "image-file")
BATCH_BYTES = 32 << 20
UNKNOWN_ROW_BYTES = 1 << 20
Int64s = npt.NDArray[np.int64]


def plain_rows(segment: Segment, name: str, rows: Int64s, dtype: np.dtype[Any]) -> npt.NDArray[np.uint8]:
    """Return rows of a feature of fixed size as bytes.

    Args:
        segment: that holds them.
        name: of the feature.
        rows: int64 [n], in any order, repeated or not; near each other.
        dtype: that they are to have.

    Returns:
        uint8 [n, bytes of a row].
    """
    first, stop = int(rows.min()), int(rows.max()) + 1
    found = segment.read_rows(name, first, stop)
    number, row_bytes = len(found), found.dtype.itemsize * int(np.prod(found.shape[1:], dtype=np.int64))
    as_bytes = np.ascontiguousarray(found).reshape(-1).view(np.uint8).reshape(number, row_bytes)
    if len(rows) != number or not np.array_equal(rows, np.arange(first, stop)):
        as_bytes = np.take(as_bytes, rows - first, axis=0)
    if found.dtype == dtype:
        return as_bytes
    converted: npt.NDArray[Any] = as_bytes.reshape(-1).view(found.dtype).astype(dtype)
    return converted.view(np.uint8).reshape(len(rows), -1)


def row_values(segment: Segment, name: str, feature: Feature, rows: Int64s) -> Iterator[Any]:
    """Yield what an encoder takes of each row: the bytes of a JPEG file that is stored as such, else the value.

    Args:
        segment: that holds them.
        name: of the feature.
        feature: it.
        rows: int64 [n], ascending.
    """
    codec = None if feature.is_raw else make_codec(feature)
    if codec is None or isinstance(codec, SequentialCodec):
        yield from _read_values(segment, name, feature, rows)
        return
    offsets, blobs = segment.offsets_map(name), segment.blob_map(name)
    first, stop = offsets[rows].astype(np.int64), offsets[rows + 1].astype(np.int64)
    stored = [blobs[begin:end] for begin, end in zip(first.tolist(), stop.tolist(), strict=True)]
    if isinstance(codec, FileCodec) and feature.kind == "image" and codec.embedded().codec in JPEG_CODECS:
        embedded = codec.embedded()
        inner = make_codec(embedded)
        for row in codec.embed(stored).rows(embedded):
            blob = np.frombuffer(row, np.uint8)
            yield row if row[:2] == JPEG_START else inner.decode(blob)
        return
    for blob in stored:
        is_file = feature.codec in JPEG_CODECS and blob[:2].tobytes() == JPEG_START
        yield blob.data if is_file else codec.decode(blob)


def _read_values(segment: Segment, name: str, feature: Feature, rows: Int64s) -> Iterator[Any]:
    """Yield decoded rows, a batch of them in memory."""
    size = UNKNOWN_ROW_BYTES if feature.is_ragged else max(1, feature.row_bytes)
    most = max(1, BATCH_BYTES // size)
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        for begin in range(0, len(run), most):
            few = run[begin : begin + most]
            yield from segment.read_rows(name, int(few[0]), int(few[-1]) + 1)
