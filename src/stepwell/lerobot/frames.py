"""What a recorder takes as a frame: every feature by name, checked, and pictures made height x width x channels.

Source: what ``add_frame`` of lerobot 0.4.4 takes: arrays of exactly a feature's dtype and shape, tensors, pictures
channels first or last, uint8 or floats of 0 to 1, and PIL's. Here grey pictures of a camera with colours, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepError
from stepwell.lerobot.info import INDEX_FEATURES
from stepwell.schema import Feature, Schema, Text
from stepwell.store.values import acceptor

__all__ = ["FrameReader"]

Accept = Callable[[Any], Any]
Pixels = npt.NDArray[np.uint8]


class FrameReader:
    """Turn frames into the values of a step, or say by name what is wrong with them.

    Args:
        schema: of the store that is recorded into. What LeRobot computes (`INDEX_FEATURES`) is not read from a frame.

    Notes:
        Keeps nothing of a frame: safe to share between threads. Values may be those of the frame, not copies.
    """

    def __init__(self, schema: Schema) -> None:
        self._accept = {
            name: _accept_of(name, feature) for name, feature in schema.items() if name not in INDEX_FEATURES
        }
        self._accept_task = acceptor("task", Text())
        self._names = frozenset((*self._accept, "task"))

    def read(self, frame: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the values of a step by name, and the text of its task.

        Args:
            frame: every feature of the dataset, and "task".

        Raises:
            StepError: a feature is missing, unknown, computed, or of another dtype, shape or range; names it.
        """
        if not isinstance(frame, Mapping):
            raise StepError(f'got a {type(frame).__name__}. Give a dict of every feature, and "task".')
        if frame.keys() != self._names:
            raise self._names_error(frame)
        task: str = self._accept_task(frame["task"])
        return {name: accept(frame[name]) for name, accept in self._accept.items()}, task

    def _names_error(self, frame: Mapping[str, Any]) -> StepError:
        known = (*self._accept, "task")
        missing = [name for name in known if name not in frame]
        computed = [name for name in frame if name in INDEX_FEATURES]
        unknown = [name for name in frame if name not in (*known, *INDEX_FEATURES)]
        found = ((missing, "missing"), (unknown, "no feature of the dataset"), (computed, "computed: leave it out"))
        told = "; ".join(f"{', '.join(map(repr, names))} {what}" for names, what in found if names)
        return StepError(f"the frame does not fit: {told}. It needs: {', '.join(known)}.")


def _accept_of(name: str, feature: Feature) -> Accept:
    accept = acceptor(name, feature)
    if feature.kind == "image":
        return lambda value: _pixels(name, feature.fixed_shape, accept, value)
    if feature.shape == () and feature.kind == "array":
        return lambda value: accept(value[0] if _is_single(value) else value)
    return accept


def _is_single(value: Any) -> bool:
    """Return whether a value is of what LeRobot calls shape (1,)."""
    return len(value) == 1 if isinstance(value, (list, tuple)) else getattr(value, "shape", None) == (1,)


def _pixels(name: str, shape: tuple[int, ...], accept: Accept, value: Any) -> Pixels:
    """Return a picture as uint8 [height, width, channels]."""
    if not hasattr(value, "__array__") and not hasattr(value, "__array_interface__"):
        # says what is wrong with it
        return cast(Pixels, accept(value))
    try:
        found: npt.NDArray[Any] = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return cast(Pixels, accept(value))
    if found.shape in ((*shape[:-1], 1), (1, *shape[:-1])) and shape[2:] == (3,):
        # an export makes colours of a grey camera, and whoever resumes goes on with what the dataset has
        found = np.broadcast_to(found.reshape(*shape[:-1], 1), shape)
    elif found.shape != shape and found.shape == (shape[-1], *shape[:-1]):
        # four times as fast as a copy of the transposed array
        found = np.stack(tuple(found), axis=-1)
    if found.shape == shape and found.dtype.kind == "f":
        found = _bytes_of_units(name, found)
    return cast(Pixels, accept(found))


def _bytes_of_units(name: str, pixels: npt.NDArray[np.floating[Any]]) -> Pixels:
    """Return pixels of 0 to 1 as the nearest bytes; LeRobot takes the next lower ones."""
    low, high = pixels.min(initial=1), pixels.max(initial=0)
    # written so that NaN is refused, too
    if not (low >= 0 and high <= 1):
        raise StepError(
            f"feature {name!r}: got floats of {low:g} to {high:g}. Give floats of 0 to 1, or uint8 of 0 to 255."
        )
    scaled = pixels * pixels.dtype.type(255)
    scaled += pixels.dtype.type(0.5)
    rounded: Pixels = scaled.astype(np.uint8)
    return rounded
