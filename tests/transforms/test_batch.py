import numpy as np
import pytest

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms.batch import Together
from stepwell.transforms.conversion import Convert
from stepwell.transforms.transform import Transform


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
