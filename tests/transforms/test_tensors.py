"""What a policy puts out, torch tensors, goes through the inverse of a transform."""

import numpy as np
import pytest

from stepwell.errors import WindowError
from stepwell.transforms.actions import DeltaActions
from stepwell.transforms.normalising import Normalize
from stepwell.transforms.poses import RelativePoses
from stepwell.transforms.rotations import ConvertRotation

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
ACTIONS = RNG.normal(size=(2, 3, 7)).astype(np.float32)
STATES = RNG.normal(size=(2, 7)).astype(np.float32)


@pytest.mark.parametrize(
    "transform", [Normalize(np.ones(7), np.full(7, 2.0)).inverse(), ConvertRotation("quaternion_xyzw", "6d", start=3)]
)
def test_values_of_a_tensor_come_back_as_a_tensor_of_the_same_numbers(transform) -> None:
    found = transform(torch.from_numpy(ACTIONS).requires_grad_())
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float32
    assert not found.requires_grad
    assert np.array_equal(found.numpy(), transform(ACTIONS))


@pytest.mark.parametrize("relative", [DeltaActions("a", "s"), RelativePoses("a", "s", rotation="quaternion_xyzw")])
def test_predicted_actions_of_torch_become_absolute_beside_states_of_either_kind(relative) -> None:
    inverse = relative.inverse()
    expected = inverse({"a": ACTIONS.copy(), "s": STATES})["a"]
    predicted = torch.from_numpy(ACTIONS)
    for state in (STATES, torch.from_numpy(STATES)):
        found = inverse({"a": predicted, "s": state})["a"]
        assert isinstance(found, torch.Tensor)
        assert np.array_equal(found.numpy(), expected)
    assert isinstance(inverse({"a": ACTIONS, "s": torch.from_numpy(STATES)})["a"], np.ndarray)


def test_tensors_elsewhere_and_of_dtypes_that_numpy_lacks_are_refused_with_what_to_do() -> None:
    inverse = Normalize(0.0, 2.0).inverse()
    with pytest.raises(WindowError, match=r"on meta.*t\.cpu\(\)"):
        inverse(torch.empty(3, device="meta"))
    with pytest.raises(WindowError, match=r"bfloat16.*t\.float\(\)"):
        inverse(torch.ones(3, dtype=torch.bfloat16))
