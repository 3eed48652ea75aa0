"""What all fields are: a name of FFCV's for how values are written."""

from __future__ import annotations

from abc import ABC, abstractmethod

from stepwell.beton.encoding import Encoder

__all__ = ["Field"]


class Field(ABC):
    """A field of a sample; use one of its subclasses.

    Notes:
        A value that is sent to workers. FFCV's methods ``encode``, ``to_binary`` and ``get_decoder_class`` are not
        here: custom fields are written by FFCV, and read by stepwell (`stepwell.beton.register_beton_field`).
    """

    @property
    @abstractmethod
    def encoder(self) -> Encoder:
        """How its values are written."""
