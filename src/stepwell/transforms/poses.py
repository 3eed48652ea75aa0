"""Rotations in the forms of common data sets, and poses relative to that of the anchor.

::

    "quaternion_xyzw"  4   x, y, z, w (ROS, SciPy)             comes out with w >= 0
    "quaternion_wxyz"  4   w, x, y, z (MuJoCo, Eigen's order of arguments)
    "axis_angle"       3   the axis times the angle, radians   comes out with an angle of 0 to pi
    "euler_xyz"        3   roll, pitch, yaw about the fixed axes x, y, z in turn: R = Rz(yaw) Ry(pitch) Rx(roll)
    "matrix"           9   row by row
    "6d"               6   the first two columns of the matrix, one after the other
    "6d_rows"          6   the first two rows, as PyTorch3D has them

Everything goes by way of unit quaternions, in float64. A rotation of a norm other than 1 is made one; six numbers that
are no two orthonormal vectors are made so by Gram and Schmidt.

::

    absolute            position p, rotation R                    in the world
    of the anchor       position p0, rotation R0                  in the world
    relative            position R0^-1 (p - p0), rotation R0^-1 R   in the anchor's frame

Source:
    Y. Zhou et al., On the continuity of rotation representations in neural networks, 2019, for the six numbers;
    S. Shepperd, Quaternion from rotation matrix, 1978.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.actions import state_at_anchor
from stepwell.transforms.base import (
    BatchTransform,
    Samples,
    Shape,
    Transform,
    as_array,
    as_given,
    look_up,
    takes_tensors,
)

__all__ = [
    "ROTATION_SIZES",
    "AbsolutePoses",
    "ConvertRotation",
    "RelativePoses",
    "RotationForm",
    "convert_rotation",
    "multiply_quaternions",
    "rotate_vectors",
    "rotation_size",
    "to_quaternion",
]

RotationForm = Literal["quaternion_xyzw", "quaternion_wxyz", "axis_angle", "euler_xyz", "matrix", "6d", "6d_rows"]
ROTATION_SIZES: dict[str, int] = {
    "quaternion_xyzw": 4,
    "quaternion_wxyz": 4,
    "axis_angle": 3,
    "euler_xyz": 3,
    "matrix": 9,
    "6d": 6,
    "6d_rows": 6,
}
Floats = npt.NDArray[np.float64]
# below this angle sin(angle / 2) / angle is 1 / 2 to the last bit
SMALL_ANGLE = 1e-8
NO_ROTATION = (0.0, 0.0, 0.0, 1.0)


class ConvertRotation(Transform):
    """Convert the rotation in a vector to another form; what stands before and behind it moves up.

    Args:
        source: the form that it has, see the head of this module.
        target: the form that it gets.
        start: where it begins in the last axis.

    Raises:
        WindowError: an unknown form.

    Example:
        A pose of position, quaternion and gripper:

        >>> ConvertRotation("quaternion_xyzw", "6d", start=3).output((16, 8), np.dtype("float32"))
        ((16, 10), dtype('float32'))

    Notes:
        Computed in float64, handed over in the dtype that came. Immutable, and safe in any number of threads.
    """

    def __init__(self, source: RotationForm, target: RotationForm, start: int = 0) -> None:
        self.source = source
        self.target = target
        self.start = start
        self._stop = start + rotation_size(source)
        self._growth = rotation_size(target) - rotation_size(source)

    def output(self, shape: Shape, dtype: np.dtype[Any]) -> tuple[Shape, np.dtype[Any]]:
        """Return the shape with the last axis as long as it becomes."""
        if not shape or shape[-1] < self._stop or dtype.kind != "f":
            raise WindowError(
                f"windows of shape {shape} and {dtype} do not hold {self.source!r} at {self.start} to {self._stop}."
            )
        return (*shape[:-1], shape[-1] + self._growth), dtype

    @takes_tensors
    def __call__(self, values: npt.NDArray[Any], draws: Draws | None = None) -> npt.NDArray[Any]:
        """Return the values, an array or a torch tensor on the CPU, with the rotation converted."""
        found = convert_rotation(values[..., self.start : self._stop], self.source, self.target)
        parts = (values[..., : self.start], found.astype(values.dtype), values[..., self._stop :])
        return np.concatenate(parts, axis=-1)

    def __repr__(self) -> str:
        return f"ConvertRotation({self.source!r}, {self.target!r}, start={self.start})"


def rotation_size(form: str) -> int:
    """Return how many numbers a form has."""
    if form not in ROTATION_SIZES:
        raise WindowError(f"{form!r} is no form of rotations. Allowed: {', '.join(ROTATION_SIZES)}.")
    return ROTATION_SIZES[form]


def convert_rotation(values: npt.ArrayLike, source: RotationForm, target: RotationForm) -> Floats:
    """Return rotations in another form.

    Args:
        values: [..., numbers of ``source``].
        source: the form that they have, see the head of this module.
        target: the form that they get.

    Returns:
        float64 [..., numbers of ``target``].

    Raises:
        WindowError: an unknown form, or values of another size.

    Example:
        >>> convert_rotation([0.0, 0.0, np.pi / 2], "axis_angle", "6d").round(9).tolist()
        [0.0, 1.0, 0.0, -1.0, 0.0, 0.0]
    """
    rotation_size(target)
    return _FROM_QUATERNION[target](to_quaternion(values, source))


def to_quaternion(values: npt.ArrayLike, source: RotationForm) -> Floats:
    """Return rotations as unit quaternions x, y, z, w, with w >= 0."""
    found = np.asarray(values, np.float64)
    if found.shape[-1:] != (rotation_size(source),):
        raise WindowError(f"{source!r} has {rotation_size(source)} numbers, got an array of {found.shape}.")
    quaternion = _unit(_TO_QUATERNION[source](found), NO_ROTATION)
    return np.where(quaternion[..., 3:] < 0, -quaternion, quaternion)


def multiply_quaternions(a: Floats, b: Floats) -> Floats:
    """Return the rotations b, then a: quaternions x, y, z, w [..., 4]."""
    av, aw, bv, bw = a[..., :3], a[..., 3:], b[..., :3], b[..., 3:]
    vector = aw * bv + bw * av + np.cross(av, bv)
    return np.concatenate([vector, aw * bw - (av * bv).sum(-1, keepdims=True)], axis=-1)


def rotate_vectors(quaternion: Floats, vectors: Floats) -> Floats:
    """Return vectors [..., 3] rotated by unit quaternions x, y, z, w [..., 4]."""
    axis, w = quaternion[..., :3], quaternion[..., 3:]
    twice = 2.0 * np.cross(axis, vectors)
    return vectors + w * twice + np.cross(axis, twice)


def _unit(vectors: Floats, instead: Sequence[float]) -> Floats:
    """Return vectors of length 1, and another instead of zeros: zero padding is no rotation."""
    norm = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.where(norm > 0, vectors / np.where(norm > 0, norm, 1.0), instead)


def _of_axis_angle(values: Floats) -> Floats:
    angle = np.linalg.norm(values, axis=-1, keepdims=True)
    scale = np.where(angle < SMALL_ANGLE, 0.5, np.sin(angle / 2) / np.where(angle < SMALL_ANGLE, 1.0, angle))
    return np.concatenate([values * scale, np.cos(angle / 2)], axis=-1)


def _to_axis_angle(quaternion: Floats) -> Floats:
    sine = np.linalg.norm(quaternion[..., :3], axis=-1, keepdims=True)
    angle = 2.0 * np.arctan2(sine, quaternion[..., 3:])
    return quaternion[..., :3] * np.where(sine < SMALL_ANGLE, 2.0, angle / np.where(sine < SMALL_ANGLE, 1.0, sine))


def _of_euler(values: Floats) -> Floats:
    (sr, sp, sy), (cr, cp, cy) = np.moveaxis(np.sin(values / 2), -1, 0), np.moveaxis(np.cos(values / 2), -1, 0)
    x, y = sr * cp * cy - cr * sp * sy, cr * sp * cy + sr * cp * sy
    return np.stack([x, y, cr * cp * sy - sr * sp * cy, cr * cp * cy + sr * sp * sy], axis=-1)


def _to_euler(quaternion: Floats) -> Floats:
    """Return roll, pitch and yaw; where pitch is a right angle only one of the others counts, and yaw is 0."""
    matrix = _to_matrix(quaternion)
    cosine = np.hypot(matrix[..., 0, 0], matrix[..., 1, 0])
    is_free = cosine > SMALL_ANGLE
    pitch = np.arctan2(-matrix[..., 2, 0], cosine)
    roll = np.arctan2(matrix[..., 2, 1], matrix[..., 2, 2])
    locked = np.arctan2(-matrix[..., 1, 2], matrix[..., 1, 1])
    yaw = np.where(is_free, np.arctan2(matrix[..., 1, 0], matrix[..., 0, 0]), 0.0)
    return np.stack([np.where(is_free, roll, locked), pitch, yaw], axis=-1)


def _to_matrix(quaternion: Floats) -> Floats:
    """Return matrices [..., 3, 3]."""
    x, y, z, w = np.moveaxis(quaternion, -1, 0)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.stack([np.stack(row, axis=-1) for row in rows], axis=-2)


def _of_matrix(matrix: Floats) -> Floats:
    """Return quaternions of matrices [..., 3, 3]: of four formulas the one that divides by the largest number."""
    (a, b, c), (d, e, f), (g, h, i) = np.moveaxis(matrix, (-2, -1), (0, 1))
    candidates = np.stack(
        [
            np.stack([h - f, c - g, d - b, 1 + a + e + i], axis=-1),
            np.stack([1 + a - e - i, b + d, c + g, h - f], axis=-1),
            np.stack([b + d, 1 - a + e - i, f + h, c - g], axis=-1),
            np.stack([c + g, f + h, 1 - a - e + i, d - b], axis=-1),
        ],
        axis=-2,
    )
    best = np.argmax(np.stack([1 + a + e + i, 1 + a - e - i, 1 - a + e - i, 1 - a - e + i], axis=-1), axis=-1)
    return np.take_along_axis(candidates, best[..., None, None], axis=-2)[..., 0, :]


def _of_6d(values: Floats) -> Floats:
    """Return matrices [..., 3, 3] of their first two columns."""
    first = _unit(values[..., :3], (1.0, 0.0, 0.0))
    second = values[..., 3:]
    second = _unit(second - (first * second).sum(-1, keepdims=True) * first, (0.0, 1.0, 0.0))
    return np.stack([first, second, np.cross(first, second)], axis=-1)


def _two_columns(matrix: Floats) -> Floats:
    return np.concatenate([matrix[..., 0], matrix[..., 1]], axis=-1)


def _transposed(matrix: Floats) -> Floats:
    return np.swapaxes(matrix, -2, -1)


_TO_QUATERNION: dict[str, Callable[[Floats], Floats]] = {
    "quaternion_xyzw": lambda values: values,
    "quaternion_wxyz": lambda values: np.roll(values, -1, axis=-1),
    "axis_angle": _of_axis_angle,
    "euler_xyz": _of_euler,
    "matrix": lambda values: _of_matrix(values.reshape(*values.shape[:-1], 3, 3)),
    "6d": lambda values: _of_matrix(_of_6d(values)),
    "6d_rows": lambda values: _of_matrix(_transposed(_of_6d(values))),
}


_FROM_QUATERNION: dict[str, Callable[[Floats], Floats]] = {
    "quaternion_xyzw": lambda quaternion: quaternion,
    "quaternion_wxyz": lambda quaternion: np.roll(quaternion, 1, axis=-1),
    "axis_angle": _to_axis_angle,
    "euler_xyz": _to_euler,
    "matrix": lambda quaternion: _to_matrix(quaternion).reshape(*quaternion.shape[:-1], 9),
    "6d": lambda quaternion: _two_columns(_to_matrix(quaternion)),
    "6d_rows": lambda quaternion: _two_columns(_transposed(_to_matrix(quaternion))),
}


class _Poses(BatchTransform):
    """The common part of both directions."""

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
        """Return samples as they are."""
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
        rotation: the form of the action's rotations, see `stepwell.transforms.poses`; they keep it.
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
