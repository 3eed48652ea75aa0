"""The first row that a codec of one's own encodes, decoded again: a mistake shows before there is a store of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.codecs import Codec
from stepwell.errors import EncodeError

__all__ = ["check_first_row"]

OWN_PACKAGE = "stepwell.codecs."


def check_first_row(name: str, codec: Codec, value: Any) -> None:
    """Encode and decode a value, unless the codec is stepwell's own.

    Args:
        name: of the feature, for messages.
        codec: that encodes one row at a time.
        value: what is to be stored.

    Raises:
        EncodeError: what comes out is no bytes, or decodes to something else than a row of the feature.
    """
    if type(codec).__module__.startswith(OWN_PACKAGE):
        return
    feature, where = codec.feature, f"codec {codec.feature.codec!r} of feature {name!r}"
    blob: Any = codec.encode(value)
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise EncodeError(f"{where}: encode returned a {type(blob).__name__}. It must return bytes.")
    row = codec.decode(np.frombuffer(blob, np.uint8))
    if feature.kind in ("text", "bytes"):
        wanted, found = str(feature.kind), type(row).__name__
        is_right = isinstance(row, str if feature.kind == "text" else bytes)
    else:
        wanted, found = _shown(np.asarray(value)), _shown(row)
        is_right = wanted == found
    if not is_right:
        raise EncodeError(f"{where}: decode returned {found}, where {wanted} was encoded. Let it return that.")


def _shown(row: Any) -> str:
    is_array = isinstance(row, np.ndarray | np.generic)
    return f"{row.dtype} {row.shape}" if is_array else f"a {type(row).__name__}"
