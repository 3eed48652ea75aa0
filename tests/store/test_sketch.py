import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.store.sketch import MAX_EXACT_VALUES, RANK_ERROR, merge_sketches, sketch_counts, sketch_sorted

FRACTIONS = np.array([0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.77, 0.9, 0.99, 0.999, 1.0])


def rank_error(values, found, fraction):
    """Return by how many ranks `found` misses the fraction of the sorted values."""
    rank = fraction * (len(values) - 1)
    first, last = np.searchsorted(values, found, "left") - 1, np.searchsorted(values, found, "right")
    return max(first - rank, rank - last, 0.0)


def adversarial(kind, size, rng):
    made = {
        "constant": lambda: np.full(size, 0.1),
        "normal": lambda: rng.normal(size=size),
        "heavy": lambda: rng.standard_cauchy(size) ** 3,
        "two-valued": lambda: rng.choice([-1.0, 7.0], size, p=[0.9, 0.1]),
        "mostly zero": lambda: np.where(rng.random(size) < 0.8, 0.0, rng.normal(size=size)),
        "zero in the middle of noise": lambda: np.where(rng.random(size) < 0.5, 0.0, rng.normal(1e-3, 1, size)),
        "powers": lambda: 2.0 ** rng.integers(-500, 500, size),
        "steps": lambda: rng.integers(0, 400, size).astype(float),
        "extreme": lambda: rng.choice([-1e308, 1e308], size) * rng.random(size),
        "arithmetic": lambda: np.arange(size, dtype=float),
    }
    return np.sort(made[kind]())


KINDS = ("constant", "normal", "heavy", "two-valued", "mostly zero", "zero in the middle of noise", "powers", "steps")
KINDS += ("extreme", "arithmetic")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [257, 1000, 30_011])
def test_column_quantiles_are_within_the_stated_rank_error(kind, size):
    values = adversarial(kind, size, np.random.default_rng(size))
    found = sketch_sorted(values).quantile(FRACTIONS)
    assert max(rank_error(values, *pair) for pair in zip(found, FRACTIONS, strict=True)) <= RANK_ERROR * size + 1


@pytest.mark.parametrize("kind", KINDS)
def test_merged_quantiles_are_within_the_stated_rank_error(kind):
    rng = np.random.default_rng(3)
    parts = [
        adversarial(kind, size, rng) + shift for size, shift in [(400, 0), (9000, 3), (1, -50), (3000, 1), (300, 0)]
    ]
    whole = np.sort(np.concatenate(parts))
    found = merge_sketches([sketch_sorted(part) for part in parts]).quantile(FRACTIONS)
    worst = max(rank_error(whole, *pair) for pair in zip(found, FRACTIONS, strict=True))
    assert worst <= 1.5 * RANK_ERROR * len(whole) + 1


def test_a_chain_of_merges_stays_within_its_bound():
    rng = np.random.default_rng(0)
    parts = [np.sort(rng.normal(i % 5, 1 + i % 3, 500)) for i in range(40)]
    sketch = sketch_sorted(parts[0])
    for part in parts[1:]:
        sketch = merge_sketches([sketch, sketch_sorted(part)])
    whole = np.sort(np.concatenate(parts))
    errors = [rank_error(whole, *pair) for pair in zip(sketch.quantile(FRACTIONS), FRACTIONS, strict=True)]
    assert max(errors) <= RANK_ERROR * len(whole) * (1 + len(parts)) / 2 + 1
    # the bound is for the worst case; random data does far better
    assert max(errors) <= 0.01 * len(whole)


def test_smooth_data_are_read_far_better_than_the_bound():
    rng = np.random.default_rng(4)
    fractions = np.linspace(0, 1, 501)
    parts = [np.sort(rng.random(20_000)) for _ in range(3)]
    merged = merge_sketches([sketch_sorted(part) for part in parts])
    whole = np.sort(np.concatenate(parts))
    for values, sketch, allowed in [(parts[0], sketch_sorted(parts[0]), 0.001), (whole, merged, 0.003)]:
        found = sketch.quantile(fractions)
        assert max(rank_error(values, *pair) for pair in zip(found, fractions, strict=True)) <= allowed * len(values)


def test_tails_of_a_column_are_dense():
    values = np.sort(np.random.default_rng(1).normal(size=100_000))
    low, high = sketch_sorted(values).quantile([0.01, 0.99])
    assert rank_error(values, low, 0.01) <= 0.0013 * len(values)
    assert rank_error(values, high, 0.99) <= 0.0013 * len(values)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=MAX_EXACT_VALUES), st.integers(1, 4))
def test_up_to_256_values_are_exact_and_stay_so_when_merged(values, num_parts):
    parts = [np.sort(part) for part in np.array_split(np.array(values), num_parts)]
    found = merge_sketches([sketch_sorted(part) for part in parts]).quantile(FRACTIONS)
    # np.quantile overflows beyond half the range of float64
    expected = np.quantile(values, FRACTIONS)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * np.abs(values).max())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 256), st.integers(1, 5000))
def test_up_to_256_distinct_values_are_exact_whatever_their_number(seed, distinct, size):
    rng = np.random.default_rng(seed)
    values = np.sort(rng.normal(size=distinct)[rng.integers(0, distinct, size)])
    np.testing.assert_allclose(sketch_sorted(values).quantile(FRACTIONS), np.quantile(values, FRACTIONS), atol=1e-12)


def test_counted_pixels_are_the_sketch_of_the_pixels():
    pixels = np.sort(np.random.default_rng(0).integers(3, 200, 5000).astype(np.uint8))
    sketch = sketch_counts(np.bincount(pixels, minlength=256))
    np.testing.assert_array_equal(sketch.quantile(FRACTIONS), sketch_sorted(pixels).quantile(FRACTIONS))
    assert sketch.count == 5000


def test_merge_of_few_distinct_values_is_associative_and_commutative():
    rng = np.random.default_rng(5)
    a, b, c = (sketch_sorted(np.sort(rng.integers(0, 80, size))) for size in (30, 500, 2))
    left = merge_sketches([merge_sketches([a, b]), c])
    right = merge_sketches([merge_sketches([c, b]), a])
    np.testing.assert_array_equal(left.values, right.values)
    np.testing.assert_array_equal(left.weights, right.weights)
    assert left.is_exact.all()


def test_a_sketch_keeps_count_minimum_and_maximum_and_stays_small():
    rng = np.random.default_rng(2)
    parts = [np.sort(rng.standard_cauchy(2000)) for _ in range(30)]
    sketch = merge_sketches([sketch_sorted(part) for part in parts])
    whole = np.concatenate(parts)
    assert sketch.count == len(whole)
    assert sketch.quantile([0, 1]).tolist() == [whole.min(), whole.max()]
    assert len(sketch.values) <= 2 * MAX_EXACT_VALUES + 2


def test_no_values_have_nan_quantiles():
    empty = sketch_sorted(np.empty(0))
    assert np.isnan(empty.quantile(FRACTIONS)).all()
    assert np.isnan(merge_sketches([empty, empty]).quantile(0.5)).all()
    assert merge_sketches([empty, sketch_sorted(np.array([4.0]))]).quantile(0.3).tolist() == [4.0]


def test_a_sketch_can_be_pickled():
    sketch = sketch_sorted(np.arange(1000.0))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(sketch)).quantile(FRACTIONS), sketch.quantile(FRACTIONS))
