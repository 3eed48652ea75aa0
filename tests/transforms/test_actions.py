import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import stepwell
from stepwell.errors import WindowError
from stepwell.testing import tiny_store
from stepwell.transforms.actions import AbsoluteActions, DeltaActions, WrapAngles, wrap_angles

ACTIONS = np.array([[[1.0, 3.0, 0.5], [2.0, -3.0, 0.25], [4.0, 0.0, 0.125]]])
STATE = np.array([[0.5, 2.0, 9.0]])


def make_batch() -> dict[str, np.ndarray]:
    return {"action": ACTIONS.copy(), "observation.state": STATE.copy()}


def test_deltas_to_the_anchor_are_the_action_less_the_state() -> None:
    found = DeltaActions(mask=[True, True, False])(make_batch())
    assert found["action"].tolist() == [[[0.5, 1.0, 0.5], [1.5, -5.0, 0.25], [3.5, -2.0, 0.125]]]
    assert found["observation.state"].tolist() == STATE.tolist()


def test_deltas_from_step_to_step_begin_at_the_state() -> None:
    found = DeltaActions(mask=[True, True, False], relative_to="step")(make_batch())
    assert found["action"].tolist() == [[[0.5, 1.0, 0.5], [1.0, -6.0, 0.25], [2.0, 3.0, 0.125]]]


def test_differences_of_angles_take_the_short_way() -> None:
    found = DeltaActions(mask=[True, True, False], angles=[False, True, False])(make_batch())
    assert found["action"][0, :, 1] == pytest.approx([1.0, 2 * np.pi - 5.0, -2.0])


def test_the_anchors_state_is_picked_from_a_window_of_states() -> None:
    states = np.stack([STATE - 7, STATE, STATE + 9], axis=1)
    expected = DeltaActions()(make_batch())["action"]
    for batch_states, anchor in ((states, 1), (states[:, :2], -1)):
        batch = make_batch() | {"observation.state": batch_states}
        assert DeltaActions(anchor=anchor)(batch)["action"].tolist() == expected.tolist()


def test_columns_say_where_the_state_has_a_dimension() -> None:
    batch = make_batch() | {"observation.state": np.array([[9.0, 7.0, 2.0, 0.5]])}
    assert DeltaActions(columns=[3, 2, 0])(batch)["action"].tolist() == DeltaActions()(make_batch())["action"].tolist()


@pytest.mark.parametrize("relative_to", ["anchor", "step"])
@given(
    actions=hnp.arrays(np.float64, (2, 5, 3), elements=st.floats(-3, 3)),
    state=hnp.arrays(np.float64, (2, 3), elements=st.floats(-3, 3)),
    mask=hnp.arrays(np.bool_, 3),
    angles=hnp.arrays(np.bool_, 3),
)
def test_the_inverse_undoes_it(relative_to, actions, state, mask, angles) -> None:
    deltas = DeltaActions(mask=mask, angles=angles, relative_to=relative_to)
    batch = deltas({"action": actions.copy(), "observation.state": state})
    found = deltas.inverse()(batch)["action"]
    apart = np.where(angles, wrap_angles(found - actions), found - actions)
    assert np.abs(apart).max() < 1e-9
    again = deltas.inverse().inverse()({"action": actions.copy(), "observation.state": state})
    assert again["action"].tolist() == deltas({"action": actions, "observation.state": state})["action"].tolist()


def test_the_dtype_stays_and_sums_are_exact_inside() -> None:
    batch = {"action": np.float32([[[1e4 + 0.5]], [[0.25]]]), "observation.state": np.float64([[1e4], [0]])}
    found = DeltaActions()(batch)["action"]
    assert found.dtype == np.float32
    assert found.ravel().tolist() == [0.5, 0.25]


def test_what_does_not_fit_is_refused_when_the_loader_is_made(tmp_path) -> None:
    store = tiny_store(tmp_path / "t.well")
    fields = {"action": range(3), "observation.state": "observation.state", "reward": range(3)}
    stepwell.Loader(store, fields, transform=DeltaActions())
    cases = [
        (DeltaActions(mask=[True] * 3), "mask has shape"),
        (AbsoluteActions(angles=[True]), "angles has shape"),
        (DeltaActions(columns=[0, 2]), "does not hold the 2 dimensions"),
        (DeltaActions("reward"), "Allowed: floats of shape"),
        (DeltaActions(state="state"), "wants key 'state'"),
    ]
    for transform, message in cases:
        with pytest.raises(WindowError, match=message):
            stepwell.Loader(store, fields, transform=transform)
    with pytest.raises(WindowError, match='Allowed: "anchor" or "step"'):
        DeltaActions(relative_to="state")


@given(st.floats(-1e6, 1e6))
def test_wrapped_angles_have_the_same_direction_and_are_in_range(angle: float) -> None:
    found = float(wrap_angles(np.array(angle)))
    assert -np.pi <= found < np.pi
    assert abs(np.exp(1j * found) - np.exp(1j * angle)) < 1e-9
    if -np.pi <= angle < np.pi:
        assert found == angle


def test_an_angle_just_below_minus_pi_is_in_range() -> None:
    assert -np.pi <= wrap_angles(np.array(np.nextafter(-np.pi, -4))) < np.pi


def test_wrap_angles_changes_the_elements_of_its_mask() -> None:
    found = WrapAngles([True, False])(np.array([[4.0, 4.0]]))
    assert found.tolist() == [[4.0 - 2 * np.pi, 4.0]]
    assert WrapAngles()(np.float32([4])).dtype == np.float32
    with pytest.raises(WindowError, match="do not hold angles"):
        WrapAngles([True]).output((2,), np.dtype("f4"))
