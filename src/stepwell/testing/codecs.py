"""Codecs for tests: one fails at chosen rows, one takes its time, two store differences.

Importing this module registers them as "failing", "delayed", "running" and "slow-running".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import (
    Codec,
    RowEncoder,
    SequentialCodec,
    check_option_names,
    choice_option,
    int_option,
    register_codec,
)
from stepwell.codecs.raw import Payload
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Feature

__all__ = ["DelayedCodec", "FailingCodec", "RunningCodec", "SlowRunningCodec"]

SYNC_ROW, LATER_ROW = 0x81, 0x80


@register_codec
class FailingCodec(Codec):
    """Stores rows as they are, and fails at the rows whose first element has a chosen value.

    Args:
        feature: an integer array of fixed shape. Options: ``at`` the value to fail at; ``on`` "decode" (default, raises
            DecodeError) or "encode" (raises RuntimeError).

    Example:
        >>> from stepwell.schema import Array
        >>> codec = FailingCodec(Array(2, "int64", codec="failing", at=7))
        >>> codec.decode(np.frombuffer(codec.encode(np.array([7, 0])), np.uint8))
        Traceback (most recent call last):
        stepwell.errors.DecodeError: told to fail at 7.

    Notes:
        Safe for any number of threads. A store decodes rows when it seals a segment, for its statistics: record within
        ``with FailingCodec.disarmed():``, as `tiny_store` does.
    """

    name: ClassVar[str] = "failing"
    _is_armed: ClassVar[bool] = True

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "at", "on")
        if feature.is_ragged or feature.np_dtype.kind not in "iu":
            raise SchemaError(f'codec "failing" cannot store {feature}. Allowed: integer arrays of fixed shape.')
        self._at = int_option(feature, "at", -1, least=-(2**63), most=2**63 - 1)
        self._on = choice_option(feature, "on", "decode", ("decode", "encode"))
        self._payload = Payload(feature)

    @classmethod
    @contextmanager
    def disarmed(cls) -> Iterator[None]:
        """Let all instances of this process, in all threads, decode every row while the context lasts."""
        cls._is_armed = False
        try:
            yield
        finally:
            cls._is_armed = True

    def encode(self, value: Any) -> bytes:
        """Return the row's bytes, or raise RuntimeError."""
        if self._on == "encode" and np.asarray(value).flat[0] == self._at:
            raise RuntimeError(f"told to fail at {self._at}.")
        return bytes(self._payload.pack(value))

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return a copy of the row, or raise DecodeError."""
        out = np.empty(self.feature.fixed_shape, self.feature.np_dtype)
        self.decode_into(blob, out)
        return out

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Copy the row into `out`, or raise DecodeError."""
        self._payload.unpack_into(blob, out)
        if self._is_armed and self._on == "decode" and out.flat[0] == self._at:
            raise DecodeError(f"told to fail at {self._at}.")


@register_codec
class DelayedCodec(Codec):
    """Stores rows as they are, and sleeps before it decodes one.

    Args:
        feature: of any kind. Options: ``milliseconds`` to sleep, 0 to 60,000, default 10.

    Example:
        >>> from stepwell.schema import Array
        >>> codec = DelayedCodec(Array(2, "int64", codec="delayed", milliseconds=1))
        >>> codec.decode(np.frombuffer(codec.encode(np.array([7, 0])), np.uint8)).tolist()
        [7, 0]

    Notes:
        Keeps no state: safe for any number of threads; sleeping releases the GIL, as decoding would.
    """

    name: ClassVar[str] = "delayed"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, "milliseconds")
        self._delay_seconds = int_option(feature, "milliseconds", 10, least=0, most=60_000) / 1000
        self._payload = Payload(feature)

    def encode(self, value: Any) -> bytes:
        """Return the row's bytes."""
        return bytes(self._payload.pack(value))

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return a copy of the row, later."""
        time.sleep(self._delay_seconds)
        return self._payload.unpack(blob.copy())

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Copy the row into `out`, later."""
        time.sleep(self._delay_seconds)
        self._payload.unpack_into(blob, out)


@register_codec
class RunningCodec(SequentialCodec):
    """Stores the difference to the row before, and every few rows, and where an episode begins, the row itself.

    Args:
        feature: an integer array of fixed shape. Options: ``run`` rows of a run at most, 1 to 1,000, default 4; ``lag``
            rows that the encoder keeps back until later ones come, 0 to 1,000, default 0; ``at`` the first element of a
            row that cannot be encoded (RuntimeError), default -1.

    Example:
        >>> from stepwell.schema import Array
        >>> encoder = RunningCodec(Array(2, "uint8", codec="running")).encoder()
        >>> [blob.hex() for blob in encoder.put(np.array([7, 5], "uint8")) + encoder.put(np.array([8, 4], "uint8"))]
        ['810705', '8001ff']

    Notes:
        Safe for any number of threads. A row is a byte, 0x81 where a run begins and else 0x80, and the elements.
    """

    name: ClassVar[str] = "running"
    option_names: ClassVar[tuple[str, ...]] = ("run", "lag", "at")
    resizes: ClassVar[bool] = True
    sync_mark = (0, 1)

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_option_names(feature, *self.option_names)
        if feature.is_ragged or feature.np_dtype.kind not in "iu":
            raise SchemaError(f"codec {self.name!r} cannot store {feature}. Allowed: integer arrays of fixed shape.")
        self.run = int_option(feature, "run", 4, least=1, most=1000)
        self.lag = int_option(feature, "lag", 0, least=0, most=1000)
        self.at = int_option(feature, "at", -1, least=-(2**63), most=2**63 - 1)
        self.delay_seconds = 0.0

    def encoder(self) -> RowEncoder:
        """Return the encoder of a new column."""
        return _RunningEncoder(self)

    def decode_run(
        self,
        blobs: Sequence[npt.NDArray[np.uint8]],
        wanted: Sequence[int],
        outs: Sequence[npt.NDArray[Any]],
        size: tuple[int, int] | None = None,
    ) -> None:
        """Add up the rows of a run; to another size by taking the nearest pixel; see `SequentialCodec.decode_run`."""
        feature = self.feature
        row = np.zeros(feature.fixed_shape, feature.np_dtype)
        places = dict(zip(wanted, outs, strict=True))
        for place in range(max(wanted, default=-1) + 1):
            blob = blobs[place]
            if blob.size != 1 + feature.row_bytes or blob[0] != (SYNC_ROW if place == 0 else LATER_ROW):
                raise DecodeError(f"row {place} of a run: {blob.size} bytes that are no row of {feature}.")
            np.add(row, np.ndarray(feature.fixed_shape, feature.np_dtype, buffer=blob[1:].tobytes()), out=row)
            if place in places:
                places[place][...] = row if size is None else _nearest(row, size)


@register_codec
class SlowRunningCodec(RunningCodec):
    """A `RunningCodec` that writers use in a thread of its own, since encoding a row takes its time.

    Args:
        feature: as for `RunningCodec`. Option: ``milliseconds`` to sleep at each row, 0 to 60,000, default 10.

    Example:
        >>> from stepwell.schema import Array
        >>> codec = SlowRunningCodec(Array(2, "uint8", codec="slow_running", milliseconds=1))
        >>> codec.is_slow, codec.decode(np.frombuffer(codec.encode(np.array([7, 5], "uint8")), np.uint8)).tolist()
        (True, [7, 5])

    Notes:
        Safe for any number of threads; sleeping releases the GIL, as encoding would.
    """

    name: ClassVar[str] = "slow-running"
    is_slow: ClassVar[bool] = True
    option_names: ClassVar[tuple[str, ...]] = (*RunningCodec.option_names, "milliseconds")

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self.delay_seconds = int_option(feature, "milliseconds", 10, least=0, most=60_000) / 1000


class _RunningEncoder(RowEncoder):
    """The row before, and the rows kept back."""

    def __init__(self, codec: RunningCodec) -> None:
        self._codec = codec
        self._kept: list[bytes] = []
        self._count = 0
        self._before: npt.NDArray[Any] = np.zeros(codec.feature.fixed_shape, codec.feature.np_dtype)

    def put(self, value: Any) -> list[bytes]:
        """Take a row; return one of those kept back when there are enough of them."""
        codec = self._codec
        if codec.delay_seconds:
            time.sleep(codec.delay_seconds)
        row = np.array(value, codec.feature.np_dtype)
        if row.flat[0] == codec.at:
            raise RuntimeError(f"told to fail at {codec.at}.")
        if self._count % codec.run == 0:
            blob = bytes([SYNC_ROW]) + row.tobytes()
        else:
            blob = bytes([LATER_ROW]) + np.subtract(row, self._before).tobytes()
        self._before = row
        self._count += 1
        self._kept.append(blob)
        return [self._kept.pop(0)] if len(self._kept) > codec.lag else []

    def end(self) -> list[bytes]:
        """Return all rows kept back; the next one begins a run."""
        kept, self._kept, self._count = self._kept, [], 0
        return kept


def _nearest(row: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    rows, columns = (np.arange(n) * had // n for n, had in zip(size, row.shape, strict=False))
    return np.ascontiguousarray(row[rows[:, None], columns])
