"""A transform of a user's own: plain, or with a kernel of numba."""

import numpy as np
import pytest
from numba import njit

from stepwell.kernels.draws import Draws
from stepwell.transforms import RandomCrop, ToCHW, ToFloat, Transform
from stepwell.transforms.fusing import fuse


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
