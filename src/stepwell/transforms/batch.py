"""The interface of a transform of whole batches: several keys in, several keys out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.transform import Shape, Transform

__all__ = ["BatchTransform", "Sample", "Samples", "Together", "as_keys", "look_up"]

T = TypeVar("T")

# shape [*window, *step] and dtype of one key's windows
Sample = tuple[Shape, np.dtype[Any]]
# by key; None where they are not known before the batch is there
Samples = dict[str, Sample | None]


class BatchTransform(ABC):
    """What is done to whole batches: ``Loader(transform=Mixup("image"))``, or a list of several.

    Subclass it and implement `__call__`, and `outputs` where keys, shapes or dtypes change or are asked for. Random
    numbers come from ``draws`` and from nowhere else.

    Attributes:
        key: transforms of the same key draw the same numbers; None: each its own.

    Example:
        >>> class Difference(BatchTransform):
        ...     def __call__(self, batch, draws):
        ...         return batch | {"change": batch["next_state"] - batch["state"]}

    Notes:
        One instance serves many threads at once: keep no state that a call changes.
    """

    key: str | None = None

    def outputs(self, samples: Samples) -> Samples:
        """Return what keys a batch has afterwards, with their shapes and dtypes; the same, unless overridden.

        Args:
            samples: by key; None where shape and dtype are not known beforehand. This call's own: may be changed.

        Raises:
            WindowError: no such batch can be transformed; raised when the loader is made.
        """
        return samples

    @abstractmethod
    def __call__(self, batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the transformed batch.

        Args:
            batch: key to array [B, ...], this call's own: dict and arrays may be written.
            draws: the random numbers of the B windows.
        """


class Together(BatchTransform):
    """Do the same to several keys, with the same random numbers.

    Args:
        keys: of the batch.
        transform: of one field.

    Example:
        The same crop of an observation and of the next one::

            Loader(store, fields, transform=Together(("obs", "next_obs"), RandomCrop(84)))

    Notes:
        Transforms of fields with equal ``key`` draw the same numbers, too, and are fused with their neighbours; this
        one is for where fields do not know of each other.
    """

    def __init__(self, keys: Iterable[str], transform: Transform) -> None:
        self.keys = as_keys(keys)
        self.transform = transform
        self.key = transform.key

    def outputs(self, samples: Samples) -> Samples:
        """Return samples with those of the keys as the transform makes them."""
        for key in self.keys:
            sample = look_up(samples, key, self)
            samples[key] = None if sample is None else self.transform.output(*sample)
        return samples

    def __call__(self, batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the batch with the keys transformed."""
        start = draws.keys
        for key in self.keys:
            batch[key] = self.transform(look_up(batch, key, self), Draws(start))
        return batch

    def __repr__(self) -> str:
        return f"Together({self.keys!r}, {self.transform!r})"


def as_keys(keys: str | Iterable[str]) -> tuple[str, ...]:
    """Return one or several keys as a tuple."""
    return (keys,) if isinstance(keys, str) else tuple(keys)


def look_up(values: Mapping[str, T], key: str, transform: object) -> T:
    """Return what a transform wants of a batch, or of the samples that it will have.

    Raises:
        WindowError: no such key.
    """
    if key not in values:
        raise WindowError(f"{type(transform).__name__} wants key {key!r}. The batch has: {', '.join(values)}.")
    return values[key]
