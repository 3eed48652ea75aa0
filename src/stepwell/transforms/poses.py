"""Poses relative to that of the anchor, and back: as seen from where the gripper is at the anchor.

::

    absolute            position p, rotation R                    in the world
    of the anchor       position p0, rotation R0                  in the world
    relative            position R0^-1 (p - p0), rotation R0^-1 R   in the anchor's frame
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.actions import state_at_anchor
from stepwell.transforms.batch import BatchTransform, Samples, look_up
from stepwell.transforms.rotations import (
    RotationForm,
    convert_rotation,
    multiply_quaternions,
    rotate_vectors,
    rotation_size,
    to_quaternion,
)
from stepwell.transforms.tensors import as_array, as_given

__all__ = ["AbsolutePoses", "RelativePoses"]

Floats = npt.NDArray[np.float64]


class _Poses(BatchTransform):
    """What both directions do alike.

    Args:
        action: key of [B, T, A], floats: at each of ``starts`` a position, 3 numbers, and then a rotation.
        state: key of [B, S] or [B, W, S], with the same.
        rotation: the form of the action's rotations.
        state_rotation: that of the state's; default the same.
        starts: where poses begin in the last axis, several for several arms.
        state_starts: where they begin in the state; default the same.
        anchor: which of W states is the anchor's; default the last.

    Raises:
        WindowError: an unknown form, or arguments that do not agree.
    """

    def __init__(
        self,
        action: str = "action",
        state: str = "observation.state",
        *,
        rotation: RotationForm,
        state_rotation: RotationForm | None = None,
        starts: Sequence[int] = (0,),
        state_starts: Sequence[int] | None = None,
        anchor: int = -1,
    ) -> None:
        self.action = action
        self.state = state
        self.rotation: RotationForm = rotation
        self.state_rotation: RotationForm = state_rotation or rotation
        self.starts = tuple(starts)
        self.state_starts = self.starts if state_starts is None else tuple(state_starts)
        self.anchor = anchor
        self._size, self._state_size = rotation_size(self.rotation), rotation_size(self.state_rotation)
        if len(self.starts) != len(self.state_starts):
            raise WindowError(f"starts {self.starts} and state_starts {self.state_starts} must be of as many poses.")

    def outputs(self, samples: Samples) -> Samples:
        """Return samples as they are.

        Raises:
            WindowError: vectors that are too short, actions that are no floats or have no window.
        """
        action, state = look_up(samples, self.action, self), look_up(samples, self.state, self)
        if action is None or state is None:
            return samples
        if len(action[0]) != 2 or action[1].kind != "f" or len(state[0]) not in (1, 2):
            raise WindowError(
                f"{self.action!r} is {action[1]} {action[0]}, {self.state!r} {state[0]}. Allowed: floats of shape "
                "(T, A) and a state of shape (S,) or (W, S)."
            )
        ends = max(self.starts) + 3 + self._size, max(self.state_starts) + 3 + self._state_size
        if ends[0] > action[0][-1] or ends[1] > state[0][-1]:
            raise WindowError(
                f"poses take {ends[0]} numbers of {self.action!r} {action[0]} and {ends[1]} of {self.state!r} "
                f"{state[0]}. Say starts=..., rotation=... and state_rotation=... as they are."
            )
        return samples

    def __call__(self, batch: dict[str, Any], draws: Draws | None = None) -> dict[str, Any]:
        """Return the batch with the poses changed; what is no pose (a gripper) stays. Takes CPU tensors, too."""
        actions = as_array(look_up(batch, self.action, self))
        state = state_at_anchor(as_array(look_up(batch, self.state, self)), self.anchor)[:, None]
        found = actions.astype(np.float64)
        for start, own in zip(self.starts, self.state_starts, strict=True):
            origin = state[..., own : own + 3]
            turn = to_quaternion(state[..., own + 3 : own + 3 + self._state_size], self.state_rotation)
            pose = found[..., start : start + 3 + self._size]
            position, rotation = self._moved(pose[..., :3], to_quaternion(pose[..., 3:], self.rotation), origin, turn)
            pose[..., :3] = position
            pose[..., 3:] = convert_rotation(rotation, "quaternion_xyzw", self.rotation)
        batch[self.action] = as_given(found.astype(actions.dtype), batch[self.action])
        return batch

    @abstractmethod
    def _moved(self, position: Floats, rotation: Floats, origin: Floats, turn: Floats) -> tuple[Floats, Floats]:
        """Return position and quaternion of poses, given those of the anchor."""

    def _options(self) -> dict[str, Any]:
        names = ("rotation", "state_rotation", "starts", "state_starts", "anchor")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.action!r}, {self.state!r}, rotation={self.rotation!r})"


class RelativePoses(_Poses):
    """Make poses relative to the anchor's, as SE(3) has it.

    Args:
        action: key of [B, T, A], floats: at each of ``starts`` a position, 3 numbers, and then a rotation.
        state: key of [B, S] or [B, W, S], with the pose that the action's are made relative to.
        rotation: the form of the action's rotations, see `stepwell.transforms.rotations`; they keep it.
        state_rotation: that of the state's; default the same.
        starts: where poses begin in the last axis, several for several arms.
        state_starts: where they begin in the state; default the same.
        anchor: which of W states is the anchor's; default the last.

    Raises:
        WindowError: an unknown form, or arguments that do not agree or do not fit the batch.

    Notes:
        Computed in float64, handed over in the action's dtype. Past poses are made relative as well: name their key as
        ``action``, before the state that they are relative to is changed itself. Immutable, and safe in any number of
        threads.

    Source:
        The relative trajectory of C. Chi et al., Universal manipulation interface, 2024.
    """

    def inverse(self) -> AbsolutePoses:
        """Return the transform that undoes this one; also for a policy: ``{action: predicted, state: observed}``."""
        return AbsolutePoses(self.action, self.state, **self._options())

    def _moved(self, position: Floats, rotation: Floats, origin: Floats, turn: Floats) -> tuple[Floats, Floats]:
        back = turn * [-1.0, -1.0, -1.0, 1.0]
        return rotate_vectors(back, position - origin), multiply_quaternions(back, rotation)


class AbsolutePoses(_Poses):
    """Undo `RelativePoses`: make poses in the world of those in the anchor's frame.

    Args:
        action: as of `RelativePoses`.
        state: as of `RelativePoses`.
        rotation: as of `RelativePoses`.
        state_rotation: as of `RelativePoses`.
        starts: as of `RelativePoses`.
        state_starts: as of `RelativePoses`.
        anchor: as of `RelativePoses`.

    Raises:
        WindowError: an unknown form, or arguments that do not agree or do not fit the batch.
    """

    def inverse(self) -> RelativePoses:
        """Return the transform that undoes this one."""
        return RelativePoses(self.action, self.state, **self._options())

    def _moved(self, position: Floats, rotation: Floats, origin: Floats, turn: Floats) -> tuple[Floats, Floats]:
        return origin + rotate_vectors(turn, position), multiply_quaternions(turn, rotation)
