import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell.errors import WindowError
from stepwell.testing import tiny_store
from stepwell.transforms.poses import RelativePoses
from stepwell.transforms.rotations import ROTATION_SIZES, convert_rotation


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
