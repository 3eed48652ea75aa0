"""The statistical tests have fixed keys: a right generator fails one of their numbers with the p-value of `MAX_Z`."""

import threading
from math import factorial, sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.kernels.permutation import MAX_PERMUTATION, permute, uniforms

# P(z > 4.5) = 3.4e-6; below 1 % for all the numbers of this file together
MAX_Z = 4.5


def keys_of(seed: int, count: int) -> npt.NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)


def chi_square_z(counts: npt.NDArray[np.int64]) -> float:
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    # Wilson and Hilferty: the cube root of a chi-square is nearly normal
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom))


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 5000), key=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)))
@example(n=1, key=(0, 0))
@example(n=256, key=(0, 0))
@example(n=257, key=(0, 0))
@example(n=4097, key=(2**64 - 1, 0))
def test_every_value_comes_exactly_once(n: int, key: tuple[int, int]) -> None:
    values = permute(np.arange(n), n, np.array(key, np.uint64))
    assert np.array_equal(np.sort(values), np.arange(n))


def test_every_value_comes_exactly_once_at_100003() -> None:
    values = permute(np.arange(100003), 100003, keys_of(0, 1)[0])
    assert np.array_equal(np.sort(values), np.arange(100003))


@pytest.mark.parametrize("n", [2**30 + 1, 10**12, MAX_PERMUTATION - 1, MAX_PERMUTATION])
def test_large_sets_give_distinct_values_in_range(n: int) -> None:
    places = np.concatenate([np.arange(1000), np.arange(n - 1000, n)])
    values = permute(places, n, keys_of(1, 1)[0])
    assert len(np.unique(values)) == 2000
    assert values.min() >= 0
    assert values.max() < n
    # the mean of 2000 uniform numbers lies within 4.5 of its standard deviations (p < 1e-5)
    assert abs(values.mean() / n - 0.5) < MAX_Z / sqrt(12 * 2000)


@pytest.mark.parametrize("n", [10, 256, 257, 100003])
def test_a_position_has_the_same_value_alone_and_in_any_company(n: int) -> None:
    key = keys_of(2, 1)[0]
    whole = permute(np.arange(n), n, key)
    for place in (0, 1, n // 2, n - 1):
        assert permute(np.array([place]), n, key)[0] == whole[place]
    assert np.array_equal(permute(np.arange(n)[::-3], n, key), whole[::-3])


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_permutations_of_a_small_set_are_equally_likely(n: int) -> None:
    keys = keys_of(3, 200 * factorial(n))
    orders = np.array([permute(np.arange(n), n, key) for key in keys])
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == factorial(n)
    assert chi_square_z(counts) < MAX_Z


@pytest.mark.parametrize("n", [257, 512, 1000, 1024, 4096, 5000, 65536, 10**6, 2**40])
def test_values_of_any_two_positions_are_uniform_and_independent_over_keys(n: int) -> None:
    places = np.array([0, 1, 2, n // 4, n // 2, n - 1])
    values = np.array([permute(places, n, key) for key in keys_of(4, 4000)])
    high = values * 16 // n
    for column in range(len(places)):
        assert chi_square_z(np.bincount(high[:, column], minlength=16)) < MAX_Z
    for a, b in [(0, 1), (1, 2), (0, 3), (0, 4), (0, 5), (3, 4)]:
        assert chi_square_z(np.bincount(high[:, a] * 16 + high[:, b], minlength=256)) < MAX_Z


@pytest.mark.parametrize("n", [1024, 4096, 65536, 100003, 2**20, 2**30 + 1])
def test_neighbours_within_an_epoch_are_independent(n: int) -> None:
    num = min(n, 8192)
    for key in keys_of(5, 20):
        values = permute(np.arange(num), n, key)
        # a permutation of few values is negatively correlated by 1 / n, far below the bound
        assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < MAX_Z / sqrt(num)
        for lag in (1, 2, num // 4, num // 2):
            pairs = np.bincount((values[lag:] * 8 // n) * 8 + values[:-lag] * 8 // n, minlength=64)
            assert chi_square_z(pairs) < MAX_Z


@pytest.mark.parametrize("n", [10**6, 2**20])
def test_blocks_of_an_epoch_spread_over_the_whole_set(n: int) -> None:
    values = permute(np.arange(n), n, keys_of(6, 1)[0])
    # 100 blocks of positions by 100 blocks of values
    counts = np.bincount((np.arange(n) * 100 // n) * 100 + values * 100 // n, minlength=10_000)
    assert abs(chi_square_z(counts)) < MAX_Z


def test_other_keys_give_other_permutations() -> None:
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2**63, 0)]
    for n in (64, 1000):
        orders = {permute(np.arange(n), n, np.array(key, np.uint64)).tobytes() for key in keys}
        assert len(orders) == len(keys)


@pytest.mark.parametrize("n", [0, -1, MAX_PERMUTATION + 1])
def test_a_set_of_impossible_size_is_refused(n: int) -> None:
    with pytest.raises(OrderError, match="1 to 2"):
        permute(np.zeros(1, np.int64), n, keys_of(0, 1)[0])


@pytest.mark.parametrize("n", [10, 1000])
def test_a_position_outside_the_set_is_refused(n: int) -> None:
    for place in (-1, n):
        with pytest.raises(OrderError, match=f"0 to {n - 1}"):
            permute(np.array([0, place]), n, keys_of(0, 1)[0])


def test_no_positions_give_no_values() -> None:
    assert permute(np.zeros(0, np.int64), 7, keys_of(0, 1)[0]).shape == (0,)
    assert uniforms(np.zeros(0, np.int64), keys_of(0, 1)[0]).shape == (0,)


def test_values_do_not_change_between_versions() -> None:
    # resumed runs and published seeds depend on these numbers
    key = np.array([1, 2], np.uint64)
    assert permute(np.arange(6), 6, key).tolist() == [3, 4, 5, 0, 2, 1]
    assert permute(np.arange(4), 1000, key).tolist() == [709, 708, 868, 959]
    assert permute(np.arange(3), 10**12, key).tolist() == [127222575471, 406392124198, 122381407934]
    assert uniforms(np.arange(2), key).tolist() == [0.9343366688494422, 0.6499683476776822]


def test_uniform_numbers_are_uniform_and_independent() -> None:
    for key in keys_of(7, 10):
        values = uniforms(np.arange(100_000), key)
        assert values.min() >= 0
        assert values.max() < 1
        assert chi_square_z(np.bincount((values * 100).astype(int), minlength=100)) < MAX_Z
        cells = (values * 16).astype(int)
        assert chi_square_z(np.bincount(cells[1:] * 16 + cells[:-1], minlength=256)) < MAX_Z


def test_uniform_numbers_of_two_keys_are_independent() -> None:
    a, b = ((uniforms(np.arange(100_000), key) * 16).astype(int) for key in keys_of(8, 2))
    assert chi_square_z(np.bincount(a * 16 + b, minlength=256)) < MAX_Z


def test_threads_get_the_same_values() -> None:
    key = keys_of(9, 1)[0]
    expected = permute(np.arange(50_000), 50_000, key)
    results: list[npt.NDArray[np.int64]] = []
    threads = [
        threading.Thread(target=lambda: results.append(permute(np.arange(50_000), 50_000, key))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(np.array_equal(result, expected) for result in results)
