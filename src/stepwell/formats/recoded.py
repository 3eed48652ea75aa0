"""An episode's rows by another codec than a data set has them: decoded and encoded as they are stored.

::

    given.rows(before) ──> blobs ── decode ──> a few rows ── encode ──> blobs of the new codec     `Recoded.rows`
                             one run or piece at a time └──────────────> raw pieces                `Recoded.pieces`
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.errors import DecodeError
from stepwell.schema import Feature
from stepwell.sizes import counted
from stepwell.store.values import HasRows

__all__ = ["Recoded"]

# decoded rows that are held at once; a run that is longer is decoded from its beginning for each piece
PIECE_BYTES = 64 << 20

Blobs = list[npt.NDArray[np.uint8]]


class Recoded:
    """The rows of an episode, stored by another codec than they come in.

    Example:
        >>> import numpy as np
        >>> from stepwell.schema import Image
        >>> from stepwell.store import EncodedRows
        >>> pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
        >>> before = Image((4, 4, 3), codec="zstd")
        >>> recoded = Recoded(EncodedRows([make_codec(before).encode(pixels)] * 3), before)
        >>> [piece.shape for piece in recoded.pieces(Image((4, 4, 3)))]
        [(3, 4, 4, 3)]

    Notes:
        An iterator holds 64 MiB of decoded rows (at least one row), however long the episode is. For one thread.
    """

    def __init__(self, given: HasRows, before: Feature, where: str = "encoded rows") -> None:
        self._given, self._before, self._where = given, before, where
        self._codec = make_codec(before)

    @property
    def num_rows(self) -> int:
        """Rows that there are."""
        return self._given.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, decoded; of rows of any size as they come."""
        if self._before.is_ragged:
            return int(getattr(self._given, "nbytes", 0))
        return self.num_rows * self._before.row_bytes

    def pieces(self, feature: Feature) -> Iterator[npt.NDArray[Any]]:
        """Yield decoded rows [n, *shape], for a raw feature of the same dtype and shape."""
        shape, dtype = feature.fixed_shape, feature.np_dtype
        most = max(1, PIECE_BYTES // max(1, feature.row_bytes))
        step = 0
        for blobs, places in self._parts(most):
            piece = np.empty((len(places), *shape), dtype)
            try:
                self._decode(blobs, places, [piece[i, ...] for i in range(len(piece))])
            except DecodeError as error:
                raise DecodeError(f"{self._where}, steps {step} to {step + len(piece) - 1}: {error}") from error
            step += len(piece)
            yield piece

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the rows as the codec of a feature has them."""
        codec = make_codec(feature)
        if self._before.is_ragged:
            yield from map(codec.encode, self._values())
            return
        values = (piece[i, ...] for piece in self.pieces(feature) for i in range(len(piece)))
        yield from _encoded_runs(codec, values) if isinstance(codec, SequentialCodec) else map(codec.encode, values)

    def _values(self) -> Iterator[Any]:
        """Yield decoded rows of any size, one by one."""
        for step, blob in enumerate(self._given.rows(self._before)):
            try:
                yield self._codec.decode(np.frombuffer(blob, np.uint8))
            except DecodeError as error:
                raise DecodeError(f"{self._where}, step {step}: {error}") from error

    def _parts(self, most: int) -> Iterator[tuple[Blobs, range]]:
        """Yield (blobs, places in them) of at most ``most`` consecutive rows; of sequential codecs the run's blobs."""
        blobs = (np.frombuffer(blob, np.uint8) for blob in self._given.rows(self._before))
        mark = self._codec.sync_mark if isinstance(self._codec, SequentialCodec) else None
        if mark is None:
            while part := list(islice(blobs, most)):
                yield part, range(len(part))
            return
        for run in _runs(mark, blobs):
            for start in range(0, len(run), most):
                yield run, range(start, min(start + most, len(run)))

    def _decode(self, blobs: Blobs, places: range, outs: list[npt.NDArray[Any]]) -> None:
        if isinstance(self._codec, SequentialCodec):
            self._codec.decode_run(blobs, places, outs)
            return
        for place, out in zip(places, outs, strict=True):
            self._codec.decode_into(blobs[place], out)

    def __repr__(self) -> str:
        return f"<Recoded {counted(self.num_rows, 'row')} of {self._before.codec}: {self._given!r}>"


def _runs(mark: tuple[int, int], blobs: Iterator[npt.NDArray[np.uint8]]) -> Iterator[Blobs]:
    """Yield the rows of each run."""
    position, mask = mark
    run: Blobs = []
    for blob in blobs:
        if run and len(blob) > position and blob[position] & mask:
            yield run
            run = []
        run.append(blob)
    if run:
        yield run


def _encoded_runs(codec: SequentialCodec, values: Iterator[Any]) -> Iterator[bytes]:
    encoder = codec.encoder()
    try:
        for value in values:
            yield from encoder.put(value)
        yield from encoder.end()
    finally:
        encoder.close()
