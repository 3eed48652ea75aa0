"""The interface of a transform: what a field does to its windows before they are handed over."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.draws import Draws

__all__ = ["Shape", "Transform"]

Shape = tuple[int, ...]


class Transform(ABC):
    """What is done to the windows of one field of a batch: ``Field(transform=RandomCrop(84))``.

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
        """Return the transformed windows.

        Args:
            values: [B, *window, *step], this call's own: may be written.
            draws: the random numbers of the B windows.

        Returns:
            A new array, or ``values`` itself.
        """
