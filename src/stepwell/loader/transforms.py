"""Transforms: the user's functions on a batch's arrays, and the random numbers that they get."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stepwell.errors import LoaderError
from stepwell.order.keys import derive_key

__all__ = ["BatchKey", "Transform", "TransformChain"]

Transform = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What a batch's random numbers depend on, and nothing else: not on threads, ranks or what was drawn before.

    Args:
        seed: of the loader.
        epoch: of the batch.
        start: the batch's first position within the epoch, over all ranks.
    """

    seed: int
    epoch: int
    start: int

    def generator(self, purpose: str) -> np.random.Generator:
        """Return the generator of the random numbers that this batch has for one purpose."""
        return np.random.Generator(np.random.Philox(key=derive_key(self.seed, self.epoch, f"{purpose} {self.start}")))


class TransformChain:
    """The transforms of all fields, then the loader's own, in order.

    Args:
        fields: key to its transforms, each array -> array.
        whole: a function on the whole batch, dict -> dict, or None.

    Notes:
        A transform that has a parameter named ``rng`` gets a numpy Generator keyed by (seed, epoch, first position of
        the batch, key, number of the transform): each has random numbers of its own, which do not change when another
        field is added. For the same draws in several fields (a crop of obs and next_obs, say) use the loader's
        ``transform``. Runs in many threads at once; the callables must allow that.
    """

    __slots__ = ("_steps", "_whole")

    def __init__(self, fields: Mapping[str, Iterable[Transform]], whole: Transform | None = None) -> None:
        self._steps = tuple(
            (key, _Call(function, f"transform {number} of {key}"))
            for key, functions in fields.items()
            for number, function in enumerate(functions)
        )
        self._whole = None if whole is None else _Call(whole, "transform of the loader")

    def __bool__(self) -> bool:
        return bool(self._steps) or self._whole is not None

    def apply(self, values: dict[str, Any], key: BatchKey) -> dict[str, Any]:
        """Return the transformed batch.

        Args:
            values: key to array; changed in place by the fields' transforms.
            key: what random numbers depend on.

        Raises:
            LoaderError: a transform raised, a field's returned None, or the loader's returned no mapping; names the key
                and the transform.
        """
        for name, call in self._steps:
            result = call(values[name], key, f"of field {name!r}")
            if result is None:
                raise LoaderError(f"transform {call.name} of field {name!r} returned None. It must return the array.")
            values[name] = result
        if self._whole is None:
            return values
        batch = self._whole(values, key, "of the loader")
        if not isinstance(batch, Mapping):
            raise LoaderError(
                f"transform {self._whole.name} of the loader returned a {type(batch).__name__}. "
                "It must return the batch: a dict of key to array."
            )
        return dict(batch)


class _Call:
    """One transform, and whether it wants random numbers."""

    __slots__ = ("_function", "_purpose", "_wants_rng", "name")

    def __init__(self, function: Transform, purpose: str) -> None:
        self._function = function
        self._wants_rng = _has_rng(function)
        self._purpose = purpose
        self.name = getattr(function, "__qualname__", None) or type(function).__qualname__

    def __call__(self, value: Any, key: BatchKey, where: str) -> Any:
        try:
            if self._wants_rng:
                return self._function(value, rng=key.generator(self._purpose))
            return self._function(value)
        except Exception as error:
            raise LoaderError(
                f"transform {self.name} {where} raised {type(error).__name__}: {error} "
                f"(epoch {key.epoch}, batch that starts at position {key.start})."
            ) from error


def _has_rng(function: Transform) -> bool:
    if isinstance(function, partial) and "rng" in function.keywords:
        # one that the user has chosen already
        return False
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        # builtins written in C tell no signature; none of them takes an rng
        return False
