from functools import partial

import numpy as np
import pytest

from stepwell.errors import LoaderError
from stepwell.loader.transforms import BatchKey, TransformChain

KEY = BatchKey(seed=3, epoch=1, start=64)


def add_noise(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return array + rng.random(array.shape)


def test_field_transforms_run_in_order_before_the_loaders() -> None:
    chain = TransformChain({"a": (lambda x: x + 1, lambda x: x * 10)}, lambda batch: {"b": batch["a"] - 1})
    assert chain.apply({"a": np.array([1.0])}, KEY)["b"].tolist() == [19.0]


def test_numbers_depend_on_seed_epoch_and_start_only() -> None:
    chain = TransformChain({"a": (add_noise,)})

    def drawn(key: BatchKey) -> float:
        return float(chain.apply({"a": np.zeros(1)}, key)["a"][0])

    assert drawn(KEY) == drawn(BatchKey(3, 1, 64))
    keys = [KEY, BatchKey(4, 1, 64), BatchKey(3, 2, 64), BatchKey(3, 1, 65), BatchKey(1, 3, 64)]
    assert len({drawn(key) for key in keys}) == len(keys)


def test_each_transform_has_numbers_of_its_own_whatever_others_there_are() -> None:
    one = TransformChain({"a": (add_noise,)}).apply({"a": np.zeros(2)}, KEY)
    more = TransformChain({"b": (add_noise, add_noise), "a": (add_noise,)})
    two = more.apply({"a": np.zeros(2), "b": np.zeros(2)}, KEY)
    assert one["a"].tolist() == two["a"].tolist()
    assert one["a"].tolist() != two["b"].tolist()


def test_an_exception_names_the_key_and_the_transform() -> None:
    def crop(array: np.ndarray) -> np.ndarray:
        raise ValueError("too small")

    with pytest.raises(LoaderError, match=r"crop of field 'image' raised ValueError: too small") as caught:
        TransformChain({"image": (crop,)}).apply({"image": np.zeros(1)}, KEY)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(LoaderError, match=r"crop of the loader"):
        TransformChain({}, crop).apply({}, KEY)


def test_a_field_transform_that_returns_nothing_is_told_so() -> None:
    def in_place(array: np.ndarray) -> None:
        array += 1

    with pytest.raises(LoaderError, match=r"in_place of field 'a' returned None"):
        TransformChain({"a": (in_place,)}).apply({"a": np.zeros(1)}, KEY)


def test_a_loader_transform_that_returns_nothing_is_told_so() -> None:
    with pytest.raises(LoaderError, match="returned a NoneType"):
        TransformChain({}, lambda batch: None).apply({}, KEY)


def test_numba_compiled_and_builtin_functions_are_simply_called() -> None:
    numba = pytest.importorskip("numba")

    @numba.njit(nogil=True)
    def double(array):
        return array * 2

    @numba.njit(nogil=True)
    def jitter(array, rng):
        return array + rng.random()

    chain = TransformChain({"a": (double, np.negative), "b": (jitter,)})
    found = chain.apply({"a": np.arange(3.0), "b": np.zeros(2)}, KEY)
    assert found["a"].tolist() == [0.0, -2.0, -4.0]
    assert 0 < found["b"][0] == found["b"][1]


def test_an_rng_of_the_users_own_is_left_alone() -> None:
    own = np.random.Generator(np.random.Philox(1))
    found = TransformChain({"a": (partial(add_noise, rng=own),)}).apply({"a": np.zeros(2)}, KEY)
    assert found["a"].tolist() == np.random.Generator(np.random.Philox(1)).random(2).tolist()


def test_a_callable_object_may_want_numbers_too() -> None:
    class Jitter:
        def __call__(self, array: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
            return array + rng.random()

    assert TransformChain({"a": (Jitter(),)}).apply({"a": np.zeros(1)}, KEY)["a"][0] > 0
