"""Chains of transforms as few passes over memory: crop, flip, to float, normalise and HWC -> CHW in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.kernels.draws import Draws
from stepwell.transforms.transform import Shape

__all__ = ["Stage", "fuse"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One pass over a batch, which does one or several transforms that follow each other.

    Args:
        first: number of its first transform in the chain.
        transforms: what it does; a plain callable is always alone.
    """

    first: int
    transforms: tuple[Callable[..., Any], ...]

    def __call__(self, values: npt.NDArray[Any], draws: Sequence[Draws]) -> npt.NDArray[Any]:
        """Return the transformed windows.

        Args:
            values: [B, *window, *step]; may be written.
            draws: of each of ``transforms``, as each alone would get them.
        """
        for transform, own in zip(self.transforms, draws, strict=True):
            values = transform(values, own)
        return values


def fuse(transforms: Sequence[Callable[..., Any]], shape: Shape, dtype: np.dtype[Any]) -> list[Stage]:
    """Return a field's chain of transforms as stages, each one pass over memory.

    Args:
        transforms: in order; those that are no `Transform` stay alone in their stage, and their caller calls them.
        shape: of a window as it comes from the reader, [*window, *step].
        dtype: of its values.
    """
    return [Stage(number, (transform,)) for number, transform in enumerate(transforms)]
