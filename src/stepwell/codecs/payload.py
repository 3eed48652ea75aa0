"""The plain bytes of one row: what `raw` stores as they are and `zstd` compresses.

::

    fixed shape            C order, prod(shape) x itemsize bytes
    first dimension varies C order; the first dimension is the number of bytes / bytes of one entry
    text                   UTF-8
    bytes                  themselves
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.schema import Feature

__all__ = ["Payload", "bytes_of"]


def bytes_of(out: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the memory of a C-contiguous array as uint8 [n].

    Raises:
        TypeError: a numpy scalar, which is a copy: what is written to it goes nowhere.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(
            "decode_into got a numpy scalar, a copy. Give a view of the batch: out[i, ...] instead of out[i]."
        )
    return out.reshape(-1).view(np.uint8)


class Payload:
    """Turns one row of a feature into its plain bytes and back.

    Args:
        feature: of any kind.

    Raises:
        SchemaError: a ragged array whose entries have no bytes, so that their number could not be told.

    Notes:
        Keeps no state: safe for any number of threads.
    """

    def __init__(self, feature: Feature) -> None:
        self.kind = feature.kind
        self.dtype = feature.np_dtype
        self.is_ragged = feature.is_ragged
        self.shape = cast(tuple[int, ...], feature.shape[1:] if feature.is_ragged else feature.shape)
        self.entry_bytes = math.prod(self.shape) * self.dtype.itemsize
        if self.is_ragged and self.entry_bytes == 0:
            raise SchemaError(f"shape {feature.shape} has entries of no bytes. Allowed: inner sizes of 1 or more.")

    def check_size(self, num_bytes: int) -> None:
        """Raise DecodeError unless a row may have so many bytes."""
        if self.is_ragged and num_bytes % self.entry_bytes:
            raise DecodeError(
                f"a row of {num_bytes} bytes, which is no multiple of the {self.entry_bytes} of one entry."
            )
        if not self.is_ragged and num_bytes != self.entry_bytes:
            raise DecodeError(f"a row of {num_bytes} bytes, where the feature's shape has {self.entry_bytes}.")

    def pack(self, value: Any) -> bytes | npt.NDArray[np.uint8]:
        """Return a row's bytes, without a copy where the value is an array.

        Raises:
            StepError: a text that UTF-8 cannot hold.
        """
        if self.kind == "bytes":
            return bytes(value)
        if self.kind == "text":
            try:
                return str(value).encode("utf-8")
            except UnicodeEncodeError as error:
                raise StepError(
                    f"a text with a lone surrogate, U+{ord(value[error.start]):04X} at {error.start}, is not UTF-8. "
                    'Mend it first, e.g. text.encode("utf-8", "replace").decode().'
                ) from error
        return np.ascontiguousarray(value, dtype=self.dtype).reshape(-1).view(np.uint8)

    def unpack(self, owned: npt.NDArray[np.uint8]) -> Any:
        """Return the row of bytes that nobody else holds: arrays are views of them.

        Raises:
            DecodeError: the wrong number of bytes, or not UTF-8.
        """
        if self.kind == "bytes":
            return owned.tobytes()
        if self.kind == "text":
            try:
                return owned.tobytes().decode("utf-8")
            except UnicodeDecodeError as error:
                raise DecodeError(f"a text that is not UTF-8: {error}.") from error
        self.check_size(owned.size)
        shape = (owned.size // self.entry_bytes, *self.shape) if self.is_ragged else self.shape
        return np.ndarray(shape, self.dtype, buffer=owned)

    def unpack_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Copy the bytes of a row of fixed shape into an array.

        Raises:
            DecodeError: the wrong number of bytes; nothing was written.
        """
        self.check_size(blob.size)
        bytes_of(out)[:] = blob
