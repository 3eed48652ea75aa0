"""Rotations in all forms, and poses relative to the anchor's."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell.errors import WindowError
from stepwell.testing import tiny_store
from stepwell.transforms.poses import (
    ROTATION_SIZES,
    ConvertRotation,
    RelativePoses,
    convert_rotation,
    multiply_quaternions,
    rotate_vectors,
)

PAIRS = list(itertools.permutations(ROTATION_SIZES, 2))
axes = st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda v: math.hypot(*v) > 1e-3)
angles = st.one_of(st.floats(0, math.pi), st.sampled_from([0.0, 1e-12, 1e-8, 1e-4, math.pi - 1e-9, math.pi]))


def rodrigues(axis: tuple[float, ...], angle: float) -> np.ndarray:
    """Return the matrix of a rotation by the formula of Rodrigues."""
    x, y, z = np.array(axis) / math.hypot(*axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def turn(axis: int, angle: float) -> np.ndarray:
    return rodrigues(tuple(np.eye(3)[axis]), angle)


def in_form(matrix: np.ndarray, form: str) -> np.ndarray:
    return convert_rotation(matrix.reshape(9), "matrix", form)


@given(axis=axes, angle=angles)
def test_forms_say_the_rotation_that_they_are_of(axis: tuple[float, ...], angle: float) -> None:
    matrix, unit = rodrigues(axis, angle), np.array(axis) / math.hypot(*axis)
    x, y, z, w = [*(unit * math.sin(angle / 2)), math.cos(angle / 2)]
    given_forms = {
        "quaternion_xyzw": [x, y, z, w],
        "quaternion_wxyz": [-w, -x, -y, -z],
        "axis_angle": unit * angle,
        "6d": [*matrix[:, 0], *matrix[:, 1]],
        "6d_rows": [*matrix[0], *matrix[1]],
        "matrix": matrix.ravel(),
    }
    for form, values in given_forms.items():
        assert np.abs(convert_rotation(values, form, "matrix").reshape(3, 3) - matrix).max() < 1e-9, form
    assert in_form(matrix, "6d") == pytest.approx(np.concatenate([matrix[:, 0], matrix[:, 1]]), abs=1e-9)
    assert in_form(matrix, "6d_rows") == pytest.approx(np.concatenate([matrix[0], matrix[1]]), abs=1e-9)
    quaternion = in_form(matrix, "quaternion_xyzw")
    assert abs(quaternion @ [x, y, z, w]) == pytest.approx(1, abs=1e-9)
    assert quaternion[3] >= 0


@given(roll=st.floats(-3.1, 3.1), pitch=st.floats(-1.5, 1.5), yaw=st.floats(-3.1, 3.1))
def test_euler_angles_turn_about_x_then_y_then_z(roll: float, pitch: float, yaw: float) -> None:
    matrix = turn(2, yaw) @ turn(1, pitch) @ turn(0, roll)
    assert np.abs(convert_rotation([roll, pitch, yaw], "euler_xyz", "matrix").reshape(3, 3) - matrix).max() < 1e-12
    assert in_form(matrix, "euler_xyz") == pytest.approx([roll, pitch, yaw], abs=1e-9)


@pytest.mark.parametrize("pitch", [math.pi / 2, -math.pi / 2])
def test_a_pitch_of_a_right_angle_keeps_the_rotation_and_has_no_yaw(pitch: float) -> None:
    found = convert_rotation([0.3, pitch, 0.8], "euler_xyz", "euler_xyz")
    assert found[2] == 0
    before, after = (convert_rotation(each, "euler_xyz", "matrix") for each in ([0.3, pitch, 0.8], found))
    assert np.abs(before - after).max() < 1e-7


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_form_comes_back_from_every_other(source: str, target: str) -> None:
    rng = np.random.default_rng(1)
    values = convert_rotation(rng.normal(size=(50, 4)), "quaternion_xyzw", source)
    there = convert_rotation(values, source, target)
    assert there.shape == (50, ROTATION_SIZES[target])
    assert np.abs(convert_rotation(there, target, source) - values).max() < 1e-7


def test_matrices_are_orthonormal_whatever_six_numbers_they_come_from() -> None:
    matrices = convert_rotation(np.random.default_rng(0).normal(size=(100, 6)), "6d", "matrix").reshape(-1, 3, 3)
    assert np.abs(matrices @ matrices.transpose(0, 2, 1) - np.eye(3)).max() < 1e-12
    assert np.allclose(np.linalg.det(matrices), 1)


@pytest.mark.parametrize("form", ROTATION_SIZES)
def test_zero_padding_is_no_rotation(form: str) -> None:
    zeros = np.zeros((2, ROTATION_SIZES[form]))
    assert convert_rotation(zeros, form, "axis_angle").tolist() == np.zeros((2, 3)).tolist()


@given(a=axes, b=axes, angle=angles, vector=axes)
def test_quaternions_multiply_and_turn_vectors_as_matrices_do(a, b, angle, vector) -> None:
    first, second = rodrigues(a, angle), rodrigues(b, 1.0)
    product = multiply_quaternions(in_form(first, "quaternion_xyzw"), in_form(second, "quaternion_xyzw"))
    assert np.abs(convert_rotation(product, "quaternion_xyzw", "matrix").reshape(3, 3) - first @ second).max() < 1e-8
    turned = rotate_vectors(in_form(first, "quaternion_xyzw"), np.array(vector))
    assert np.abs(turned - first @ vector).max() < 1e-8


def test_a_rotation_within_a_vector_is_converted_in_its_place() -> None:
    poses = np.float32([[[1, 2, 3, 0, 0, math.sqrt(0.5), math.sqrt(0.5), 9]]])
    found = ConvertRotation("quaternion_xyzw", "axis_angle", start=3)(poses)
    assert found.dtype == np.float32
    assert found[0, 0] == pytest.approx([1, 2, 3, 0, 0, math.pi / 2, 9], abs=1e-6)
    assert ConvertRotation("axis_angle", "quaternion_xyzw", start=3)(found) == pytest.approx(poses, abs=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(WindowError, match=r"'quat' is no form of rotations\. Allowed: quaternion_xyzw"):
        ConvertRotation("quat", "6d")
    with pytest.raises(WindowError, match="do not hold 'matrix' at 3 to 12"):
        ConvertRotation("matrix", "6d", start=3).output((11,), np.dtype("f4"))
    with pytest.raises(WindowError, match="'6d' has 6 numbers"):
        convert_rotation(np.zeros(5), "6d", "matrix")


def random_poses(seed: int, shape: tuple[int, ...], form: str) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rotation = convert_rotation(rng.normal(size=(*shape, 4)), "quaternion_xyzw", form)
    return np.concatenate([rng.normal(size=(*shape, 3)), rotation], axis=-1)


def as_matrices(poses: np.ndarray, form: str) -> np.ndarray:
    """Return poses as 4 x 4 matrices."""
    found = np.zeros((*poses.shape[:-1], 4, 4))
    found[..., :3, :3] = convert_rotation(poses[..., 3:], form, "matrix").reshape(*poses.shape[:-1], 3, 3)
    found[..., :3, 3] = poses[..., :3]
    found[..., 3, 3] = 1
    return found


@pytest.mark.parametrize("form", ROTATION_SIZES)
@pytest.mark.parametrize("state_form", ["quaternion_wxyz", "6d"])
def test_relative_poses_are_those_of_the_matrices(form: str, state_form: str) -> None:
    actions, state = random_poses(0, (3, 5), form), random_poses(1, (3,), state_form)
    expected = np.linalg.inv(as_matrices(state, state_form))[:, None] @ as_matrices(actions, form)
    relative = RelativePoses("a", "s", rotation=form, state_rotation=state_form)
    found = relative({"a": actions.copy(), "s": state})
    assert np.abs(as_matrices(found["a"], form) - expected).max() < 1e-9
    back = relative.inverse()(found)["a"]
    assert np.abs(as_matrices(back, form) - as_matrices(actions, form)).max() < 1e-9


@given(seed=st.integers(0, 1000))
def test_several_arms_are_relative_each_to_its_own_and_grippers_stay(seed: int) -> None:
    left, right = random_poses(seed, (2, 4), "6d"), random_poses(seed + 1, (2, 4), "6d")
    gripper = np.full((2, 4, 1), 0.5)
    states = [random_poses(seed + 2 + i, (2, 3), "axis_angle") for i in range(2)]
    batch = {"a": np.concatenate([left, gripper, right], -1), "s": np.concatenate(states, -1)}
    both = RelativePoses("a", "s", rotation="6d", state_rotation="axis_angle", starts=(0, 10), state_starts=(0, 6))
    found = both(dict(batch))["a"]
    for arm, start, state in ((left, 0, states[0]), (right, 10, states[1])):
        one = RelativePoses("a", "s", rotation="6d", state_rotation="axis_angle")({"a": arm, "s": state[:, -1]})
        assert np.allclose(found[..., start : start + 9], one["a"])
    assert (found[..., 9] == 0.5).all()
    assert np.allclose(both.inverse()(both(dict(batch)))["a"], batch["a"])
    assert both.inverse().inverse()(dict(batch))["a"].tolist() == found.tolist()


def test_the_pose_of_the_anchor_itself_is_no_motion() -> None:
    pose = random_poses(4, (1, 1), "quaternion_xyzw").astype(np.float32)
    found = RelativePoses("a", "s", rotation="quaternion_xyzw")({"a": pose, "s": pose[:, 0]})["a"]
    assert found.dtype == np.float32
    assert found.ravel() == pytest.approx([0, 0, 0, 0, 0, 0, 1], abs=1e-6)


def test_what_does_not_fit_is_refused_when_the_loader_is_made(tmp_path) -> None:
    store = tiny_store(tmp_path / "t.well", schema={"action": stepwell.Array(9), "state": stepwell.Array(7)})
    fields = {"action": range(3), "state": "state", "now": stepwell.Field("action")}
    good = RelativePoses("action", "state", rotation="6d", state_rotation="quaternion_xyzw")
    assert len(list(stepwell.Loader(store, fields, transform=good))) > 0
    for transform, message in (
        (RelativePoses("action", "state", rotation="6d"), "take 9 numbers of 'action'"),
        (RelativePoses("action", "state", rotation="axis_angle", starts=(4,)), "take 10 numbers"),
        (RelativePoses("now", "state", rotation="axis_angle"), "Allowed: floats of shape"),
    ):
        with pytest.raises(WindowError, match=message):
            stepwell.Loader(store, fields, transform=transform)
    with pytest.raises(WindowError, match="of as many poses"):
        RelativePoses(rotation="6d", starts=(0, 9), state_starts=(0,))
