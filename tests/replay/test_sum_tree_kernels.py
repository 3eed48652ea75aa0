import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.replay.sum_tree_kernels import (
    LARGEST_WEIGHT,
    clear_weights,
    draw_weighted,
    make_tree,
    set_weights,
    sum_all,
    total_weight,
)

Reals = npt.NDArray[np.float64]
WEIGHTS = [0.0, 0.0, 5e-324, 1e-300, 0.1, 1.0, 1 / 3, 1e16, LARGEST_WEIGHT]


def tree_of(weights: Reals) -> tuple[Reals, npt.NDArray[np.int64]]:
    sums, levels = make_tree(len(weights))
    sums.reshape(-1)[: len(weights)] = weights
    sum_all(sums, levels)
    return sums, levels


def draw(sums: Reals, levels: npt.NDArray[np.int64], count: int, first: int = 0) -> npt.NDArray[np.int64]:
    slots = np.empty(count, np.int64)
    assert draw_weighted(sums, levels, np.uint64(5), first, slots, np.empty(count))
    return slots


@pytest.mark.parametrize("num", [1, 8, 9, 64, 65, 513, 5000])
def test_sums_stay_those_of_the_weights_after_any_changes(num: int) -> None:
    rng, (sums, levels), weights = np.random.default_rng(num), make_tree(num), np.zeros(num)
    for size in (1, 3, 40, 300, 7000):
        slots, priorities = rng.integers(0, num, size), 10.0 ** rng.uniform(-9, 9, size)
        set_weights(slots, priorities, 1.0, sums, levels)
        gone = rng.integers(0, num, size // 3)
        clear_weights(gone, sums, levels)
        weights[slots] = priorities
        weights[gone] = 0
        assert np.array_equal(sums, tree_of(weights)[0])


def test_a_million_changes_leave_no_drift() -> None:
    rng, (sums, levels), weights = np.random.default_rng(1), make_tree(3000), np.zeros(3000)
    for _ in range(1000):
        slots, priorities = rng.integers(0, 3000, 1000), 10.0 ** rng.uniform(-12, 12, 1000)
        set_weights(slots, priorities, 1.0, sums, levels)
        weights[slots] = priorities
    assert np.array_equal(sums, tree_of(weights)[0])
    assert total_weight(sums) == pytest.approx(weights.sum(), rel=1e-14)


@settings(deadline=None, max_examples=60)
@given(weights=st.lists(st.sampled_from(WEIGHTS), min_size=1, max_size=90), first=st.integers(0, 2**40))
def test_rounding_never_leads_a_draw_to_a_weight_of_zero(weights: list[float], first: int) -> None:
    sums, levels = tree_of(np.array(weights))
    if not any(weights):
        assert not draw_weighted(sums, levels, np.uint64(5), first, np.empty(1, np.int64), np.empty(1))
        return
    slots = draw(sums, levels, 64, first)
    assert (np.append(weights, np.zeros(8))[slots] > 0).all()


def test_draws_are_where_the_running_sums_of_the_weights_say() -> None:
    weights = np.random.default_rng(4).integers(0, 9, 700).astype(float)
    sums, levels = tree_of(weights)
    slots = draw(sums, levels, 2000)
    # whole numbers add up without rounding, so both ways of looking are exact
    uniform = tree_of(np.ones(1 << 12))
    numbers = draw(*uniform, 2000) / 4096 * weights.sum()
    low = np.searchsorted(np.cumsum(weights), numbers, side="right")
    high = np.searchsorted(np.cumsum(weights), numbers + weights.sum() / 4096, side="left")
    assert ((low <= slots) & (slots <= high)).all()


def test_a_slot_beyond_the_tree_changes_nothing_and_tells_what_is_needed() -> None:
    sums, levels = make_tree(8)
    assert set_weights(np.array([0, 70]), np.ones(2), 1.0, sums, levels) == -71
    assert not sums.any()


def test_of_a_slot_that_comes_twice_the_last_weight_stays() -> None:
    sums, levels = make_tree(8)
    set_weights(np.array([3, 4, 3]), np.array([7.0, 1.0, 2.0]), 1.0, sums, levels)
    assert sums[0].tolist() == [0, 0, 0, 2, 1, 0, 0, 0]


def test_every_line_of_a_tree_is_a_line_of_the_cache() -> None:
    assert make_tree(1000)[0].ctypes.data % 64 == 0
