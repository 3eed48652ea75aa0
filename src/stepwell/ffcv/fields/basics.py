"""Numbers."""

from __future__ import annotations

from stepwell.beton.encoding import Encoder, FloatEncoder, IntEncoder
from stepwell.ffcv.fields.base import Field

__all__ = ["FloatField", "IntField"]


class IntField(Field):
    """A whole number, int64. A float that is none, such as 1.5, is refused, not cut off."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return IntEncoder()


class FloatField(Field):
    """A number, float64."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return FloatEncoder()
