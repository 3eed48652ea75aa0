import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepwell.transforms.mixing_kernels import blend_bytes


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 5), st.integers(0, 70))), st.randoms(use_true_random=False))
def test_rows_are_blended_to_within_half_a_level(values: np.ndarray, random) -> None:
    partner = np.array([random.randrange(len(values)) for _ in values])
    weights = np.array([random.choice([0.0, 1.0, random.random()]) for _ in values], np.float32)
    out = np.empty_like(values)
    blend_bytes(values, partner, weights, out)
    exact = values * weights[:, None].astype("f8") + values[partner] * (1 - weights[:, None].astype("f8"))
    assert np.abs(out - exact).max(initial=0) <= 0.5 + 1e-4
    assert np.array_equal(out[weights == 1], values[weights == 1])
    assert np.array_equal(out[weights == 0], values[partner][weights == 0])
