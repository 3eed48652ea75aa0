"""Codecs that misbehave on purpose: one fails at chosen rows, one takes its time.

Importing this module registers them as "failing" and "delayed".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, register_codec
from stepwell.codecs.options import check_option_names, choice_option, int_option
from stepwell.codecs.payload import Payload
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Feature

__all__ = ["DelayedCodec", "FailingCodec"]


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
