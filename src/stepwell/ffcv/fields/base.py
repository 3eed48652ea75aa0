"""What all fields are: a name of FFCV's for how values are written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import Encoder
from stepwell.beton.layout import FieldDescriptor
from stepwell.errors import SchemaError, StepError

__all__ = ["Field", "encoder_of"]

# what FFCV asks fields of one's own for, to write and read a format of their own
OWN_FORMAT = ("metadata_type", "to_binary", "from_binary", "get_decoder_class")


class Field(ABC):
    """A field of a sample; use one of its subclasses.

    A subclass of one's own may make another value of each, in `encode`. One that has a format of its own (FFCV's
    ``metadata_type``, ``to_binary``, ``from_binary``, ``get_decoder_class``) is refused: such fields are written by
    FFCV, and read by stepwell (`stepwell.beton.register_beton_field`).

    Notes:
        A value that is sent to workers.
    """

    @property
    @abstractmethod
    def encoder(self) -> Encoder:
        """How its values are written."""

    def encode(self, destination: Any, field: Any, malloc: Any) -> None:
        """Write a value: to be called by a subclass's own, ``super().encode(destination, value, malloc)``.

        Args:
            destination: as the subclass got it.
            field: the value, such as the field takes.
            malloc: as the subclass got it.
        """
        destination.values.append(field)


def encoder_of(name: str, field: Any) -> Encoder:
    """Return how the values of a field are written.

    Args:
        name: of the field.
        field: as it is given.

    Raises:
        SchemaError: none of ours, or a subclass with a format of its own; names it.
    """
    if not isinstance(field, Field):
        raise SchemaError(
            f"field {name!r} is a {type(field).__module__}.{type(field).__qualname__}. Allowed: those of "
            "stepwell.ffcv.fields; custom fields are written by FFCV itself."
        )
    own = [method for method in OWN_FORMAT if hasattr(type(field), method)]
    if own:
        raise SchemaError(
            f"field {name!r}: {type(field).__qualname__} defines {', '.join(own)}: a format of its own, "
            "which only FFCV writes. Allowed: subclasses that define encode(), and call "
            "super().encode(destination, value, malloc)."
        )
    return field.encoder if type(field).encode is Field.encode else _OwnEncoder(field)


class _Destination:
    """Stands for the row that FFCV gives to ``encode``: takes the values that `Field.encode` is called with."""

    def __init__(self) -> None:
        self.values: list[Any] = []


class _OwnEncoder(Encoder):
    """The values that a subclass's ``encode`` makes, as the field writes them."""

    def __init__(self, field: Field) -> None:
        self._field, self._encoder = field, field.encoder
        self.has_region = self._encoder.has_region  # type: ignore[misc]  # of each field

    def descriptor(self, name: str) -> FieldDescriptor:
        """Return what a file says of the field; see `Encoder.descriptor`."""
        return self._encoder.descriptor(name)

    def encode(self, value: Any, sample: int) -> tuple[Any, Any]:
        """Return cell and region of what the subclass makes of a value; see `Encoder.encode`."""
        destination = _Destination()
        try:
            self._field.encode(destination, value, _no_memory)
        except (AttributeError, TypeError) as error:
            raise StepError(f"{self._name}.encode: {error}. {_ALLOWED}") from error
        if len(destination.values) != 1:
            raise StepError(f"{self._name}.encode gave {len(destination.values)} values. {_ALLOWED}")
        return self._encoder.encode(destination.values[0], sample)

    def fill(
        self, rows: npt.NDArray[Any], cells: Sequence[Any], ptrs: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
    ) -> None:
        """Write the field's part of rows; see `Encoder.fill`."""
        self._encoder.fill(rows, cells, ptrs, sizes)

    @property
    def _name(self) -> str:
        return type(self._field).__qualname__


_ALLOWED = "It must call super().encode(destination, value, malloc) once: what writes bytes itself, only FFCV can call."


def _no_memory(size: int) -> Any:
    raise StepError(_ALLOWED)
