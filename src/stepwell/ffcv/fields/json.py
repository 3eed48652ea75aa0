"""What JSON holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import Encoder, JsonEncoder
from stepwell.errors import DecodeError
from stepwell.ffcv.fields.base import Field
from stepwell.json_text import parse_json

__all__ = ["JSONField"]


class JSONField(Field):
    """A value that JSON holds, as a text."""

    @staticmethod
    def unpack(batch: Any) -> Any:
        r"""Return the values of texts that FFCV's loader gave, as its own ``unpack`` does.

        Args:
            batch: uint8 [n] or [B, n], an array or a tensor: texts that end with a NUL.

        Returns:
            A value, or a list of B.

        Raises:
            DecodeError: a text that is no JSON.

        Example:
            >>> JSONField.unpack(np.frombuffer(b'{"a": 1}\x00??', np.uint8))
            {'a': 1}
        """
        texts = np.asarray(batch, np.uint8)
        found = [_unpacked(text) for text in texts.reshape(-1, texts.shape[-1])]
        return found if texts.ndim > 1 else found[0]

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return JsonEncoder()


def _unpacked(text: npt.NDArray[np.uint8]) -> Any:
    data = text.tobytes().partition(b"\0")[0]
    try:
        return parse_json(data)
    except ValueError as error:
        raise DecodeError(f"{data[:40]!r} is no JSON: {error}.") from error
