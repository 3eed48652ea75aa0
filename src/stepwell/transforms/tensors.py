"""Torch tensors on the CPU where a transform takes arrays: what a policy puts out goes through an inverse as it is.

torch is never imported here: who hands over a tensor has done so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError

__all__ = ["as_array", "as_given", "takes_tensors"]


def takes_tensors(call: Callable[..., npt.NDArray[Any]]) -> Callable[..., Any]:
    """Let the ``__call__`` of a transform take a tensor instead of an array, and return one then."""

    @wraps(call)
    def taking(self: Any, values: Any, draws: Any = None) -> Any:
        if isinstance(values, np.ndarray):
            return call(self, values, draws)
        return as_given(call(self, as_array(values), draws), values)

    return taking


def as_array(values: Any) -> npt.NDArray[Any]:
    """Return an array of the same values: a tensor's own memory, without its gradient.

    Raises:
        WindowError: a tensor that is not on the CPU, or of a dtype that numpy does not have.
    """
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
