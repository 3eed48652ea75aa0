"""What is wrong with a frame in LeRobot's words, for scripts that look for these, before our own.

Source: the messages of ``validate_frame`` of lerobot 0.4.4 and 0.6.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stepwell.errors import StepError
from stepwell.lerobot.info import INDEX_FEATURES, LANGUAGE

__all__ = ["as_lerobot_says", "check_single_values"]

CHANNELS = (1, 3, 4)


def as_lerobot_says(error: StepError, frame: Any, features: Mapping[str, Mapping[str, Any]]) -> StepError:
    """Return an error that begins with LeRobot's lines, where it has some for this frame."""
    lines = [*_names(frame, features), *_values(frame, features)] if isinstance(frame, Mapping) else []
    return StepError("\n".join([*lines, str(error)]))


def check_single_values(frame: Any, features: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a number where a feature has shape (1,), as LeRobot's class does."""
    for name, feature in features.items() if isinstance(frame, Mapping) else ():
        dtype = feature["dtype"]
        if tuple(feature["shape"]) != (1,) or dtype in ("string", LANGUAGE) or name not in frame:
            continue
        value = frame[name]
        if np.ndim(value):
            continue
        if hasattr(value, "dtype") and not isinstance(value, np.generic):
            said = f"The feature '{name}' of shape '()' does not have the expected shape '(1,)'."
        else:
            said = (
                f"The feature '{name}' is not a 'np.ndarray'. Expected type is '{dtype}', but type '{type(value)}' "
                "provided instead."
            )
        raise StepError(f"{said}\nfeature {name!r}: got a single value. Give an array of shape (1,), {dtype}.")


def _names(frame: Mapping[str, Any], features: Mapping[str, Any]) -> Iterator[str]:
    known = {name for name in features if name not in INDEX_FEATURES} | {"task"}
    missing, extra = known - set(frame), set(frame) - known
    if missing or extra:
        yield "Feature mismatch in `frame` dictionary:"
    for what, names in (("Missing", missing), ("Extra", extra)):
        if names:
            yield f"{what} features: {names}"


def _values(frame: Mapping[str, Any], features: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for name, feature in features.items():
        value: Any = frame.get(name)
        dtype = feature["dtype"]
        if not hasattr(value, "dtype") or dtype == "string":
            continue
        found, shape = tuple(value.shape), tuple(feature["shape"])
        if dtype in ("image", "video"):
            first = shape if shape[0] in CHANNELS and shape[-1] not in CHANNELS else (*shape[2:], *shape[:2])
            last = (*first[1:], first[0])
            if found not in (first, last):
                yield f"The feature '{name}' of shape '{found}' does not have the expected shape '{first}' or '{last}'."
            continue
        given = str(value.dtype).removeprefix("torch.")
        if given != dtype:
            yield f"The feature '{name}' of dtype '{given}' is not of the expected dtype '{dtype}'."
        if found != shape:
            yield f"The feature '{name}' of shape '{found}' does not have the expected shape '{shape}'."
