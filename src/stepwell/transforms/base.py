"""The interfaces of transforms: of one field's windows, and of whole batches; torch tensors taken as arrays."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws

__all__ = [
    "BatchTransform",
    "Sample",
    "Samples",
    "Shape",
    "Together",
    "Transform",
    "as_array",
    "as_given",
    "as_keys",
    "look_up",
    "takes_tensors",
]

Shape = tuple[int, ...]
T = TypeVar("T")
# shape [*window, *step] and dtype of one key's windows
Sample = tuple[Shape, np.dtype[Any]]
# by key; None where they are not known before the batch is there
Samples = dict[str, Sample | None]


class Transform(ABC):
    """A change of the windows of one field of a batch: ``Field(transform=RandomCrop(84))``.

    Subclass it and implement `__call__`, and `output` where shape or dtype change. Random numbers come from ``draws``
    and from nowhere else: one number for each window keeps its steps alike, and a batch is then the same for any number
    of threads, ranks and batch size.

    Attributes:
        key: transforms of the same key draw the same numbers, in whatever fields they stand; None: each its own.
        is_pointwise: whether every value that comes out follows from the value at its place and from its channel (the
            last axis) alone: no draws, the shape unchanged. A chain then does it in the same pass as a crop.
        is_exact: of one that is pointwise: whether such a pass must make its floats to the last bit.

    Example:
        >>> class Gain(Transform):  # plain numpy; a loop over `values` may as well be a function of numba
        ...     def __call__(self, values, draws):
        ...         gains = draws.uniform(0.5, 2.0)  # [B], one a window
        ...         return values * gains.reshape(-1, *[1] * (values.ndim - 1)).astype(values.dtype)
        >>> draws = Draws.of(np.array([1, 2], np.uint64), np.arange(4))
        >>> Gain()(np.ones((4, 16, 2), np.float32), draws).dtype
        dtype('float32')

    Notes:
        One instance serves many threads at once: keep no state that a call changes. An instance is pickled with its
        field.
    """

    key: str | None = None
    is_pointwise: bool = False
    is_exact: bool = False

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return what shape and dtype a window has afterwards; the same, unless overridden.

        Args:
            shape: of a window, [*window, *step]: without the batch.
            dtype: of its values.

        Raises:
            WindowError: no such window can be transformed.
        """
        return shape, dtype

    @abstractmethod
    def __call__(self, values: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        """Return the transformed windows."""


class BatchTransform(ABC):
    """A change of whole batches: ``Loader(transform=Mixup("image"))``, or a list of several.

    Subclass it and implement `__call__`, and `outputs` where keys, shapes or dtypes change or matter. Random
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
        """Return the transformed batch."""


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
    """Return what a transform wants of a batch, or of the samples that it will have."""
    if key not in values:
        raise WindowError(f"{type(transform).__name__} wants key {key!r}. The batch has: {', '.join(values)}.")
    return values[key]


def takes_tensors(call: Callable[..., npt.NDArray[Any]]) -> Callable[..., Any]:
    """Let the ``__call__`` of a transform take a tensor instead of an array, and return one then."""

    @wraps(call)
    def taking(self: Any, values: Any, draws: Any = None) -> Any:
        if isinstance(values, np.ndarray):
            return call(self, values, draws)
        return as_given(call(self, as_array(values), draws), values)

    return taking


def as_array(values: Any) -> npt.NDArray[Any]:
    """Return an array of the same values: a tensor's own memory, without its gradient."""
    if not hasattr(values, "detach"):
        return np.asarray(values)
    if values.device.type != "cpu":
        raise WindowError(f"a tensor on {values.device}. Allowed: numpy arrays and tensors on the CPU. Give t.cpu().")
    try:
        return np.asarray(values.detach().numpy())
    except TypeError as error:
        raise WindowError(f"a tensor of {values.dtype}, which numpy does not have. Give t.float().") from error


def as_given(found: npt.NDArray[Any], given: Any) -> Any:
    """Return an array as a tensor over its memory when what was given is one, else as it is."""
    if not hasattr(given, "detach"):
        return found
    return sys.modules["torch"].from_numpy(np.ascontiguousarray(found))
