"""The interfaces of transforms, `Together`, and torch tensors where arrays are taken."""

import numpy as np
import pytest
from numba import njit

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms import RandomCrop, ToCHW, ToFloat, Transform
from stepwell.transforms.actions import DeltaActions
from stepwell.transforms.base import Together
from stepwell.transforms.conversion import Convert
from stepwell.transforms.fusing import fuse
from stepwell.transforms.normalising import Normalize
from stepwell.transforms.poses import ConvertRotation, RelativePoses

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
ACTIONS = RNG.normal(size=(2, 3, 7)).astype(np.float32)
STATES = RNG.normal(size=(2, 7)).astype(np.float32)


@njit(nogil=True)
def _drop_rows(images, first, number):
    for i in range(images.shape[0]):
        images[i, ..., first[i] : first[i] + number, :] = 0


class DroppedRows(Transform):
    """Black out some rows of grey images."""

    def __init__(self, number, key=None):
        self.number, self.key = number, key

    def __call__(self, values, draws):
        _drop_rows(values, draws.integers(0, values.shape[-2] - self.number + 1), self.number)
        return values


class Gamma(Transform):
    is_pointwise = True

    def __call__(self, values, draws):
        return np.rint((values / 255) ** 0.5 * 255).astype(np.uint8)


def draws(number):
    return Draws.of(np.array([7, 1], np.uint64), np.arange(number))


def test_a_kernel_of_ones_own_gets_draws_for_each_window():
    result = DroppedRows(3)(np.ones((50, 2, 16, 12), np.uint8), draws(50))
    rows = (result == 0).all(axis=-1)
    assert (rows.sum(axis=-1) == 3).all() and (rows[:, 0] == rows[:, 1]).all()
    assert len(np.unique(rows[:, 0].argmax(axis=-1))) > 8


def test_a_transform_says_that_nothing_changes_unless_it_is_told():
    assert DroppedRows(3).output((2, 16, 12), np.dtype("uint8")) == ((2, 16, 12), np.dtype("uint8"))
    assert DroppedRows(3).key is None and not DroppedRows(3).is_pointwise


def test_a_transform_needs_a_call():
    class Nothing(Transform):
        pass

    with pytest.raises(TypeError, match="__call__"):
        Nothing()


def test_a_pointwise_transform_of_ones_own_is_done_in_the_pass_of_a_crop():
    chain = [RandomCrop(9), Gamma(), ToFloat(), ToCHW()]
    values = np.random.default_rng(0).integers(0, 256, (6, 12, 14, 3), dtype=np.uint8)
    (stage,) = fuse(chain, values.shape[1:], values.dtype)
    expected = values
    for transform in chain:
        expected = transform(expected, draws(6))
    np.testing.assert_allclose(stage(values, [draws(6)] * 4), expected, rtol=1e-6)


class Noise(Transform):
    """Add numbers of which two are drawn one after the other."""

    key = "noise"

    def __call__(self, values: np.ndarray, draws: Draws) -> np.ndarray:
        return values + draws.uniform() + 10 * draws.uniform()


def test_every_key_gets_the_same_numbers_from_the_beginning() -> None:
    draws = Draws.of(np.array([1, 2], np.uint64), np.arange(4))
    found = Together(["a", "b", "c"], Noise())({key: np.zeros(4) for key in "abc"}, draws)
    assert found["a"].tolist() == found["b"].tolist() == found["c"].tolist()
    assert len(set(found["a"])) == 4


def test_it_has_the_key_of_what_it_does() -> None:
    assert Together("a", Noise()).key == "noise"


def test_samples_of_its_keys_are_what_the_transform_says() -> None:
    samples = {"a": ((2,), np.dtype("u1")), "b": None, "c": ((2,), np.dtype("u1"))}
    found = Together(("a", "b"), Convert("f4")).outputs(samples)
    assert found == {"a": ((2,), np.dtype("f4")), "b": None, "c": ((2,), np.dtype("u1"))}


def test_a_missing_key_is_named() -> None:
    with pytest.raises(WindowError, match=r"Together wants key 'z'\. The batch has: a"):
        Together("z", Noise()).outputs({"a": None})


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
