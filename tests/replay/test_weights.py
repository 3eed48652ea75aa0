"""Importance weights and their exponent."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import TableError
from stepwell.replay.drawing import BetaSchedule, importance_weights


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=20),
    st.integers(1, 10**7),
    st.floats(0, 1),
    st.booleans(),
)
def test_weights_equal_the_formula(probabilities: list[float], size: int, beta: float, normalize: bool) -> None:
    wanted = (size * np.array(probabilities)) ** -beta
    if normalize:
        wanted /= wanted.max()
    found = importance_weights(probabilities, size, beta, normalize=normalize)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_the_kernel_weighs_each_of_several_batches_alone() -> None:
    from stepwell.replay.batch_kernels import importance_weights as kernel

    probabilities, sizes = np.random.default_rng(0).uniform(0.01, 1, 12), np.full(12, 50)
    for normalize in (False, True):
        weights = np.empty(12, np.float32)
        kernel(probabilities, sizes, np.array([0.0, 0.4, 1.0]), normalize, weights)
        wanted = [
            importance_weights(part, 50, beta, normalize=normalize)
            for part, beta in zip(probabilities.reshape(3, 4), (0.0, 0.4, 1.0), strict=True)
        ]
        assert weights.tolist() == np.concatenate(wanted).tolist()


def test_rows_of_tables_of_several_sizes_are_weighed_by_their_own() -> None:
    found = importance_weights([0.5, 0.1], [2, 100], 1.0, normalize=False)
    assert found.tolist() == pytest.approx([1.0, 0.1])


def test_beta_is_a_number_a_line_or_a_function() -> None:
    assert BetaSchedule(0.4)(10**9) == 0.4
    line = BetaSchedule((0.4, 1.0, 100))
    assert [line(n) for n in (0, 50, 100, 10**6)] == pytest.approx([0.4, 0.7, 1.0, 1.0])
    assert BetaSchedule(lambda n: n / 100)(50) == 0.5


@pytest.mark.parametrize("beta", [-0.1, float("nan"), "0.4", None, (0.4, 1.0), (0.4, 1.0, 0), (0.4, -1.0, 10)])
def test_a_beta_that_cannot_be_is_refused(beta: object) -> None:
    with pytest.raises(TableError, match="beta"):
        BetaSchedule(beta)  # type: ignore[arg-type]


def test_a_function_that_returns_what_beta_cannot_be_is_told_so() -> None:
    with pytest.raises(TableError, match="nan"):
        BetaSchedule(lambda n: float("nan"))(0)
