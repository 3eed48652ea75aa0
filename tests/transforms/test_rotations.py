import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import WindowError
from stepwell.transforms.rotations import (
    ROTATION_SIZES,
    ConvertRotation,
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
