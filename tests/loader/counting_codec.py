"""A codec that stores rows as they are and counts which it decodes."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, register_codec
from stepwell.codecs.raw import Payload
from stepwell.schema import Feature

__all__ = ["CountingCodec"]


@register_codec
class CountingCodec(Codec):
    """Counts decoded rows by the value of their first element."""

    name: ClassVar[str] = "counting"
    counts: ClassVar[Counter[int]] = Counter()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self._payload = Payload(feature)

    def encode(self, value: Any) -> bytes:
        """Return the row's bytes."""
        return bytes(self._payload.pack(value))

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return a copy of the row."""
        out = np.empty(self.feature.fixed_shape, self.feature.np_dtype)
        self.decode_into(blob, out)
        return out

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Copy the row."""
        self._payload.unpack_into(blob, out)
        with self._lock:
            self.counts[int(out.flat[0])] += 1
