"""Pixels: any dtype as RGB, smaller by the mean, and PNG files that Pillow reads."""

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.display.pixels import displayable, to_png, within

sides = st.integers(1, 60)


@given(sides, sides, st.integers(0, 2**32 - 1))
def test_a_png_has_the_pixels_that_it_was_given(height: int, width: int, seed: int) -> None:
    image_module = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(image_module.open(io.BytesIO(to_png(pixels)))), pixels)


@given(sides, sides, st.integers(1, 70))
def test_a_smaller_image_keeps_its_shape_and_its_mean(height: int, width: int, side: int) -> None:
    pixels = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    found = within(pixels, side)
    assert max(found.shape[:2]) <= max(side, 1)
    assert found.shape[0] <= height
    assert found.shape[1] <= width
    assert within(np.full_like(pixels, 77), side).tolist() == np.full_like(found, 77).tolist()


def test_each_pixel_is_the_mean_of_those_that_it_covers() -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4, 1).repeat(3, axis=2)
    means = pixels.reshape(2, 2, 2, 2, 3).mean(axis=(1, 3)).astype(np.uint8)
    assert np.array_equal(within(pixels, 2), means)


@pytest.mark.parametrize(
    "image",
    [
        np.full((5, 6), 9, np.uint8),
        np.full((5, 6, 1), 900, np.uint16),
        np.full((5, 6, 4), 0.5, np.float32),
        np.full((5, 6, 3), np.nan, np.float16),
        np.zeros((5, 6, 3), np.bool_),
    ],
)
def test_any_image_can_be_displayed(image: Any) -> None:
    found = displayable(image)
    assert found.shape == (5, 6, 3)
    assert found.dtype == np.uint8
