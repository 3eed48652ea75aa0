"""Actions as differences and back, and angles.

::

    relative to     delta of step t                        absolute again
    "anchor"        action[t] - state                      delta[t] + state
    "step"          action[t] - action[t - 1]              state + delta[0] + ... + delta[t]
                    (action[0] - state at the first)

``state`` is that of the anchor. Elements that a mask leaves out (a gripper, say) stay absolute; a difference of
angles is wrapped to [-pi, pi).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.base import BatchTransform, Samples, Shape, Transform, as_array, as_given, look_up

__all__ = ["AbsoluteActions", "DeltaActions", "WrapAngles", "state_at_anchor", "wrap_angles"]

Mask = Sequence[bool] | npt.NDArray[np.bool_]
RelativeTo = Literal["anchor", "step"]
Floats = npt.NDArray[np.float64]


class _Actions(BatchTransform):
    """The common part of both directions."""

    def __init__(
        self,
        action: str = "action",
        state: str = "observation.state",
        *,
        mask: Mask | None = None,
        angles: Mask | None = None,
        relative_to: RelativeTo = "anchor",
        columns: Sequence[int] | None = None,
        anchor: int = -1,
    ) -> None:
        if relative_to not in ("anchor", "step"):
            raise WindowError(f'relative_to={relative_to!r}. Allowed: "anchor" or "step".')
        self.action = action
        self.state = state
        self.mask = None if mask is None else np.asarray(mask, np.bool_)
        self.angles = None if angles is None else np.asarray(angles, np.bool_)
        self.relative_to = relative_to
        self.columns = None if columns is None else list(columns)
        self.anchor = anchor

    def outputs(self, samples: Samples) -> Samples:
        """Return samples as they are."""
        action, state = look_up(samples, self.action, self), look_up(samples, self.state, self)
        if action is None or state is None:
            return samples
        if len(action[0]) != 2 or action[1].kind != "f":
            raise WindowError(f"{self.action!r} is {action[1]} {action[0]}. Allowed: floats of shape (T, dimensions).")
        self._check(action[0][-1], state[0])
        return samples

    def _check(self, dims: int, state: Shape) -> None:
        for name, mask in (("mask", self.mask), ("angles", self.angles)):
            if mask is not None and mask.shape != (dims,):
                raise WindowError(f"{name} has shape {mask.shape}, and {self.action!r} has {dims} dimensions.")
        columns = range(dims) if self.columns is None else self.columns
        if len(columns) != dims or len(state) not in (1, 2) or max(columns) >= state[-1]:
            raise WindowError(
                f"{self.state!r} of shape {state} does not hold the {dims} dimensions of {self.action!r} in columns "
                f"{list(columns)}. Say columns=[...] where they differ, and mask what the state does not have."
            )

    def _parts(self, batch: dict[str, Any]) -> tuple[npt.NDArray[Any], Floats, npt.NDArray[np.bool_]]:
        """Return the actions [B, T, A], the anchor's state [B, 1, A], and the dimensions that are differences."""
        actions = as_array(look_up(batch, self.action, self))
        state = state_at_anchor(as_array(look_up(batch, self.state, self)), self.anchor)
        dims = actions.shape[-1]
        self._check(dims, state.shape[1:])
        chosen = np.ones(dims, np.bool_) if self.mask is None else self.mask
        columns = slice(dims) if self.columns is None else self.columns
        return actions, state[:, None, columns], chosen

    def _wrapped(self, values: Floats) -> Floats:
        return values if self.angles is None else np.where(self.angles, wrap_angles(values), values)

    def _options(self) -> dict[str, Any]:
        names = ("mask", "angles", "relative_to", "columns", "anchor")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.action!r}, {self.state!r}, relative_to={self.relative_to!r})"


class DeltaActions(_Actions):
    """Make differences of absolute actions.

    Args:
        action: key of [B, T, A], floats.
        state: key of the state in the units of the action: [B, S] at the anchor, or a window [B, W, S] with it.
        mask: bool [A], the dimensions that become differences; default all.
        angles: bool [A], those of them that are angles, radians: their differences are wrapped; default none.
        relative_to: "anchor" (default) or "step", see the head of this module.
        columns: int [A], where the state has each dimension of the action; default: the first A, in order.
        anchor: which of W states is the anchor's; default the last.

    Raises:
        WindowError: arguments that do not agree, or do not fit the batch.

    Example:
        >>> batch = {"action": np.array([[[1.0, 0.5], [2.0, 0.5]]]), "state": np.array([[0.5, 9.0]])}
        >>> deltas = DeltaActions("action", "state", mask=[True, False])
        >>> deltas(dict(batch))["action"].tolist()
        [[[0.5, 0.5], [1.5, 0.5]]]
        >>> deltas.inverse()(deltas(dict(batch)))["action"].tolist()
        [[[1.0, 0.5], [2.0, 0.5]]]

    Notes:
        Computed in float64, handed over in the action's dtype. Padding that repeats the last action stays a sensible
        action; with ``pad="zero"`` mind ``<action>_is_pad``. Immutable, and safe in any number of threads.
    """

    def __call__(self, batch: dict[str, Any], draws: Draws | None = None) -> dict[str, Any]:
        """Return the batch with differences."""
        actions, state, chosen = self._parts(batch)
        values = actions.astype(np.float64)
        before = state if self.relative_to == "anchor" else np.concatenate([state, values[:, :-1]], axis=1)
        deltas = self._wrapped(values - before)
        found = np.where(chosen, deltas, values).astype(actions.dtype)
        batch[self.action] = as_given(found, batch[self.action])
        return batch

    def inverse(self) -> AbsoluteActions:
        """Return the transform that undoes this one; also for a policy: ``{action: predicted, state: observed}``."""
        return AbsoluteActions(self.action, self.state, **self._options())


class AbsoluteActions(_Actions):
    """Undo `DeltaActions`: make absolute actions of differences.

    Args:
        action: key of [B, T, A], floats.
        state: as of `DeltaActions`.
        mask: as of `DeltaActions`.
        angles: as of `DeltaActions`; they come out in [-pi, pi).
        relative_to: as of `DeltaActions`.
        columns: as of `DeltaActions`.
        anchor: as of `DeltaActions`.

    Raises:
        WindowError: arguments that do not agree, or do not fit the batch.
    """

    def __call__(self, batch: dict[str, Any], draws: Draws | None = None) -> dict[str, Any]:
        """Return the batch with absolute actions; those of a policy may be a torch tensor on the CPU."""
        actions, state, chosen = self._parts(batch)
        deltas = actions.astype(np.float64)
        moved = deltas if self.relative_to == "anchor" else np.cumsum(deltas, axis=1)
        found = np.where(chosen, self._wrapped(moved + state), deltas).astype(actions.dtype)
        batch[self.action] = as_given(found, batch[self.action])
        return batch

    def inverse(self) -> DeltaActions:
        """Return the transform that undoes this one."""
        return DeltaActions(self.action, self.state, **self._options())


class WrapAngles(Transform):
    """Wrap angles to [-pi, pi).

    Args:
        mask: bool [D], the elements of the last axis that are angles, radians; default all.
    """

    def __init__(self, mask: Mask | None = None) -> None:
        self.mask = None if mask is None else np.asarray(mask, np.bool_)

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return shape and dtype as they are."""
        if dtype.kind != "f" or (self.mask is not None and shape[-1:] != self.mask.shape):
            raise WindowError(f"windows of shape {shape} and {dtype} do not hold angles as the mask {self.mask} says.")
        return shape, dtype

    def __call__(self, values: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[Any]:
        """Return the values with angles wrapped."""
        wrapped = wrap_angles(values).astype(values.dtype, copy=False)
        return wrapped if self.mask is None else np.where(self.mask, wrapped, values)


def wrap_angles(angles: npt.NDArray[Any]) -> Floats:
    """Return angles in [-pi, pi), float64, of the same directions; those that are there already as they are.

    Example:
        >>> wrap_angles(np.array([3.0, -np.pi, np.pi])).round(3).tolist()
        [3.0, -3.142, -3.142]
    """
    values = np.asarray(angles, np.float64)
    turned = values - 2 * np.pi * np.floor((values + np.pi) / (2 * np.pi))
    # rounding may leave an angle just below -pi at pi itself
    turned = np.where(turned >= np.pi, -np.pi, turned)
    return np.where((values >= -np.pi) & (values < np.pi), values, turned)


def state_at_anchor(state: npt.NDArray[Any], anchor: int) -> Floats:
    """Return the anchor's states, float64 [B, S], of states [B, S] or a window of them [B, W, S]."""
    values = np.asarray(state, np.float64)
    return values if values.ndim == 2 else values[:, anchor]
