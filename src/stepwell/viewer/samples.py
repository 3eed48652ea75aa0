"""The window around a step as a training sample has it."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import numpy as np

from stepwell.errors import StepwellError
from stepwell.loader import WindowDataset
from stepwell.store import Store
from stepwell.windows.fields import Field, parse_offsets
from stepwell.windows.views import View

__all__ = ["sample_of"]

MAX_OFFSETS = 64


def sample_of(store: Store, index: int, step: int, text: str, allowed: list[str]) -> list[dict[str, Any]]:
    """Return of each field its ``name``, ``offsets``, ``is_pad`` and ``values``: a list an offset, NaN as text.

    Args:
        store: open for reading.
        index: of the episode.
        step: the anchor.
        text: fields with spaces between them, such as ``state=-1,0 action=0:16``; without offsets the anchor itself.
        allowed: features of numbers.

    Raises:
        StepwellError: a field that is no feature of numbers, too many offsets, a step beyond the episode.
    """
    offsets = {}
    for part in text.split():
        name, given = parse_offsets(part)
        # a range may be longer than memory
        steps = tuple(islice(given, MAX_OFFSETS + 1))
        if name not in allowed or len(steps) > MAX_OFFSETS:
            raise StepwellError(
                f"field {part!r}. Allowed: {', '.join(allowed) or 'no feature here'}; {MAX_OFFSETS} offsets at most."
            )
        offsets[name] = steps or (0,)
    length = store[index].length
    if not offsets or not 0 <= step < length:
        raise StepwellError(f"fields {text!r} at step {step}. Allowed: one field or more, step 0 to {length - 1}.")
    fields = {f"field{number}": Field(name, steps) for number, (name, steps) in enumerate(offsets.items())}
    sample = WindowDataset(View(store, [index]), fields)[step]
    return [
        {
            "name": name,
            "offsets": steps,
            "values": [[_as_json(value) for value in row] for row in _rows(sample[key], len(steps))],
            "is_pad": np.asarray(sample[f"{key}_is_pad"]).tolist(),
        }
        for key, (name, steps) in zip(fields, offsets.items(), strict=True)
    ]


def _rows(values: Any, count: int) -> list[list[float]]:
    rows: list[list[float]] = np.asarray(values, np.float64).reshape(count, -1).tolist()
    return rows


def _as_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
