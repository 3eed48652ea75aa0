"""Random numbers by counter depend on the window and on nothing that it was drawn with."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.kernels.draws import Draws

KEY = np.array([3, 5], np.uint64)


@settings(deadline=None, max_examples=50)
@given(positions=st.lists(st.integers(0, 2**62), min_size=1, max_size=30), data=st.data())
def test_a_window_draws_the_same_whatever_it_is_drawn_with(positions: list[int], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(len(positions))), min_size=1))
    whole, part = Draws.of(KEY, np.array(positions)), Draws.of(KEY, np.array(positions)[chosen])
    for draw in ("uniform", "normal"):
        np.testing.assert_array_equal(getattr(whole, draw)(size=(2, 3))[chosen], getattr(part, draw)(size=(2, 3)))
    np.testing.assert_array_equal(whole.integers(-5, 5)[chosen], part.integers(-5, 5))
    np.testing.assert_array_equal(whole.keys[chosen], part.keys)


def test_calls_go_on_and_keys_differ() -> None:
    draws = Draws.of(KEY, np.arange(1000))
    first, second = draws.uniform(), draws.uniform()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.1
    other = Draws.of(KEY[::-1].copy(), np.arange(1000)).uniform()
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.1
    np.testing.assert_array_equal(Draws.of(KEY, np.arange(1000)).uniform(size=2), np.stack([first, second], 1))
    assert len(draws) == 1000


def test_numbers_are_spread_as_they_should_be() -> None:
    draws = Draws.of(KEY, np.arange(200_000))
    uniform = draws.uniform(2.0, 4.0)
    assert uniform.min() >= 2 and uniform.max() < 4
    counts = np.histogram(uniform, 50, (2, 4))[0]
    # chi-square of 49 degrees of freedom: 5.5 standard deviations
    assert ((counts - 4000.0) ** 2 / 4000).sum() < 49 + 5.5 * np.sqrt(2 * 49)
    normal = draws.normal()
    assert abs(normal.mean()) < 0.01 and abs(normal.std() - 1) < 0.01 and abs((normal**3).mean()) < 0.05
    whole = draws.integers(np.zeros(200_000, np.int64), np.arange(200_000) % 7 + 1)
    assert (whole >= 0).all() and (whole <= np.arange(200_000) % 7).all()
    assert np.ptp(np.bincount(whole[np.arange(200_000) % 7 == 6])) < 500
