import math

import numpy as np
import pytest

from stepwell.recorders.conversion_reports import Distortion, mean_square_error


@pytest.mark.parametrize(
    "value", [np.float32([np.nan, 1]), np.uint8(3), np.bool_(True), "text", b"bytes", np.array([(1, 2.0)], "i4,f8")]
)
def test_what_is_equal_has_no_error(value):
    assert mean_square_error(value, value) == 0.0


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int8", "int16", "int32", "uint64"])
def test_the_greatest_difference_of_integers_is_an_error_of_one(dtype):
    limits = np.iinfo(dtype)
    before, after = np.full((3, 4), limits.max, dtype), np.full((3, 4), limits.min, dtype)
    assert mean_square_error(before, after) == mean_square_error(after, before) == pytest.approx(1.0)


def test_floats_are_measured_by_their_own_magnitude():
    before = np.float32([0.0, -4.0])
    assert mean_square_error(before, np.float32([2.0, -4.0])) == pytest.approx(2.0 / 16)
    assert mean_square_error(before * 1000, np.float32([2000.0, -4000.0])) == pytest.approx(2.0 / 16)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.float32([np.nan, 1]), np.float32([0, 1])),
        (np.float32([0, 0]), np.float32([0, 1])),
        (np.array([True]), np.array([False])),
        (np.uint8([1, 2]), np.uint8([1])),
        ("a", "b"),
        (b"a", b""),
    ],
)
def test_what_has_no_difference_is_wholly_wrong(before, after):
    assert mean_square_error(before, after) == 1.0


@pytest.mark.parametrize("scale", [5e-324, 1e-200, 1e-170, 1.0, 1e170, 1e300])
def test_floats_of_any_magnitude_are_measured(scale):
    before, after = np.array([4.0, 2.0]) * scale, np.array([4.0, 4.0]) * scale
    assert mean_square_error(before, after) == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (np.array([1e-200, 1.0]), np.array([0.0, 1.0])),
        (np.float32([0.0, 1.0]), np.float32([-0.0, 1.0])),
        (np.int64([2**62]), np.int64([2**62 + 1])),
    ],
)
def test_bytes_that_differ_are_never_lossless(before, after):
    assert 0.0 < mean_square_error(before, after) < 1e-100


def test_rows_are_summed_and_the_worst_is_named():
    found = Distortion().with_row(0.0, 0, 0).with_row(1e-4, 0, 1).with_row(1e-4, 7, 2).with_row(1e-6, 8, 3)
    assert (found.num_rows, found.episode, found.step) == (4, 0, 1)
    assert found.worst_db == pytest.approx(40)
    assert found.mean_db == pytest.approx(-10 * math.log10(2.01e-4 / 4))
    assert not found.is_lossless


def test_no_rows_and_equal_rows_lose_nothing():
    for found in (Distortion(), Distortion(3)):
        assert (found.is_lossless, found.mean_db, found.worst_db) == (True, math.inf, math.inf)
