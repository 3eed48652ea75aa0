"""How much a store keeps: a number of steps, or of bytes, beyond which the oldest steps go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stepwell.errors import SchemaError
from stepwell.schema import Schema
from stepwell.sizes import parse_bytes
from stepwell.store.counting import counted

__all__ = ["Capacity", "fixed_row_bytes"]

Unit = Literal["steps", "bytes"]
OFFSET_BYTES = 8
ALLOWED = 'Give a number of steps, such as 100_000, or a size, such as "20 GB"; None keeps everything.'


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a ring keeps.

    Args:
        amount: how many, at least 1.
        unit: "steps" or "bytes".

    Example:
        >>> str(Capacity.parse(100_000)), str(Capacity.parse("20 GB"))
        ('100,000 steps', '20,000,000,000 bytes')
    """

    amount: int
    unit: Unit

    @classmethod
    def parse(cls, capacity: int | str | Capacity) -> Capacity:
        """Return the capacity that a user means: an int is a number of steps, a text a size in bytes.

        Raises:
            SchemaError: it is neither, or less than 1.
        """
        if isinstance(capacity, Capacity):
            return capacity
        if isinstance(capacity, str):
            try:
                return cls(parse_bytes("capacity", capacity, error=SchemaError), "bytes")
            except SchemaError:
                raise SchemaError(f"capacity={capacity!r} is no size. {ALLOWED}") from None
        if not isinstance(capacity, int | np.integer) or isinstance(capacity, bool) or capacity < 1:
            raise SchemaError(f"capacity={capacity!r} cannot be. {ALLOWED}")
        return cls(int(capacity), "steps")

    def check(self, schema: Schema) -> None:
        """Raise SchemaError when not even one step of ``schema`` fits."""
        least = fixed_row_bytes(schema)
        if self.unit == "bytes" and self.amount < least:
            raise SchemaError(
                f"capacity of {counted(self.amount, 'byte')}: a step takes at least {counted(least, 'byte')} "
                f"({', '.join(schema)}). Give more, or a number of steps."
            )

    def to_json(self) -> dict[str, int]:
        """Return it as ``store.json`` has it: ``{"steps": n}`` or ``{"bytes": n}``."""
        return {self.unit: self.amount}

    @classmethod
    def from_json(cls, record: Mapping[str, Any] | None) -> Capacity | None:
        """Return what `to_json` made; TypeError or ValueError when it is something else."""
        if record is None:
            return None
        ((name, amount),) = record.items()
        unit: Unit = "steps" if name == "steps" else "bytes"
        if name != unit or not isinstance(amount, int) or amount < 1:
            raise TypeError(f"capacity {record!r}")
        return cls(amount, unit)

    def __str__(self) -> str:
        return counted(self.amount, self.unit.removesuffix("s"))


def fixed_row_bytes(schema: Schema) -> int:
    """Return the bytes of a row but for its encoded values: raw features, and an offset for each encoded one."""
    return sum(feature.row_bytes if feature.is_raw else OFFSET_BYTES for feature in schema.values())
