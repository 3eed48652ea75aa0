"""Bytes."""

from __future__ import annotations

from stepwell.beton.encoding import BytesEncoder, Encoder
from stepwell.ffcv.fields.base import Field

__all__ = ["BytesField"]


class BytesField(Field):
    """Bytes of any length: a uint8 array of one axis, a bytes object, or a text (UTF-8). Empty ones do no harm."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return BytesEncoder()
