"""Which splits a data set has and which of it was taken: what a store says of where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["TakenSplit", "taken_split"]

MAX_TOLD = 8


@dataclass(frozen=True, slots=True)
class TakenSplit:
    """What of a data set with several splits is in a store.

    Args:
        taken: as the reader was told: "train", "train[:10%]", "all".
        splits: name to number of examples; None where nobody knows it without reading.

    Example:
        >>> print(TakenSplit("train[:10%]", {"train": 1200, "val": None}))
        train[:10%] taken, of train (1,200), val; split=NAME takes another
    """

    taken: str
    splits: Mapping[str, int | None]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {"taken": self.taken, "splits": dict(self.splits)}

    def __str__(self) -> str:
        told = [name if count is None else f"{name} ({count:,})" for name, count in self.splits.items()]
        more = f" and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
        return f"{self.taken} taken, of {', '.join(told[:MAX_TOLD])}{more}; split=NAME takes another"


def taken_split(metadata: Mapping[str, Any]) -> TakenSplit | None:
    """Return which split a store is of, by its metadata; None where its data set had not several.

    Args:
        metadata: of the store. A reader of a format with splits puts ``{name: {"split": ..., "splits": {...}}}`` there.

    Example:
        >>> taken_split({"tfds": {"split": "val", "splits": {"train": 2, "val": 1}}})
        TakenSplit(taken='val', splits={'train': 2, 'val': 1})
    """
    for told in metadata.values():
        splits, taken = (told.get(key) for key in ("splits", "split")) if isinstance(told, Mapping) else (None, None)
        if isinstance(splits, Mapping) and isinstance(taken, str) and len(splits) > 1:
            return TakenSplit(taken, splits)
    return None
