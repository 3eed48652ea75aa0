"""What JSON holds."""

from __future__ import annotations

from stepwell.beton.encoding import Encoder, JsonEncoder
from stepwell.ffcv.fields.base import Field

__all__ = ["JSONField"]


class JSONField(Field):
    """A value that JSON holds, as a text."""

    @property
    def encoder(self) -> Encoder:
        """How its values are written."""
        return JsonEncoder()
