"""The writing end of a conversion: rows are encoded and stored, and what was stored is decoded and compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, make_codec
from stepwell.codecs.codec import SequentialCodec
from stepwell.recorders.distortion import Distortion, mean_square_error
from stepwell.schema import Feature
from stepwell.store.column_file import EncodedColumn, RawColumn

__all__ = ["BATCH_BYTES", "RowSink", "make_sink"]

# decoded rows that are read at once, about; those of a run that have not been compared come on top, as many again
BATCH_BYTES = 32 << 20


class RowSink(ABC):
    """Takes the rows of a new column, in order, encodes and stores them, and compares what it stored with them.

    Attributes:
        row: the next one.
        distortion: of the rows compared so far; of all of them after `end_episode`.

    Notes:
        One thread at a time.
    """

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
