"""The kernels of colours, filters, boxes and blends, against plain NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepwell.transforms.colors_kernels import (
    BRIGHTNESS,
    HUE,
    NONE,
    SATURATION,
    SOLARIZE,
    add_noise,
    blend_bytes,
    blur,
    change_colors,
    fill_boxes,
    make_gray,
    normal_table,
)

BYTES, FLOATS = np.float32(255), np.float32(1)


def pictures(number, channels):
    return np.random.default_rng(0).integers(0, 256, (number, 35 * channels), dtype=np.uint8)


def changed(images, channels, kinds, amounts):
    result = images.copy()
    change_colors(result, channels, np.array(kinds), np.array(amounts, np.float32), BYTES)
    return result


def test_each_image_has_changes_of_its_own():
    images = pictures(3, 3)
    result = changed(images, 3, [[BRIGHTNESS], [NONE], [SOLARIZE]], [[0.5], [0.5], [100]])
    np.testing.assert_array_equal(result[0], (images[0] * 0.5 + 0.5).astype(np.uint8))
    np.testing.assert_array_equal(result[1], images[1])
    np.testing.assert_array_equal(result[2], np.where(images[2] >= 100, 255 - images[2], images[2]))


def test_changes_follow_each_other_in_the_order_given():
    images = pictures(1, 3)
    both = changed(images, 3, [[SATURATION, BRIGHTNESS]], [[1.8, 0.4]])
    one_by_one = changed(changed(images, 3, [[SATURATION]], [[1.8]]), 3, [[BRIGHTNESS]], [[0.4]])
    np.testing.assert_array_equal(both, one_by_one)
    assert (both != changed(images, 3, [[BRIGHTNESS, SATURATION]], [[0.4, 1.8]])).any()


@pytest.mark.parametrize("kind", [SATURATION, HUE])
@pytest.mark.parametrize("channels", [4, 5])
def test_further_channels_do_not_matter(kind, channels):
    images = pictures(2, channels)
    colors = np.ascontiguousarray(images.reshape(2, 35, channels)[:, :, :3]).reshape(2, -1)
    result = changed(images, channels, [[kind]] * 2, [[0.3]] * 2).reshape(2, 35, channels)
    expected = changed(colors, 3, [[kind]] * 2, [[0.3]] * 2).reshape(2, 35, 3)
    np.testing.assert_array_equal(result[:, :, :3], expected)
    np.testing.assert_array_equal(result[:, :, 3:], images.reshape(2, 35, channels)[:, :, 3:])


def test_a_hue_goes_round_the_circle():
    images = pictures(2, 3).astype(np.float32) / 255
    once = images.copy()
    for _ in range(3):
        change_colors(once, 3, np.full((2, 1), HUE), np.full((2, 1), 1 / 3, np.float32), FLOATS)
    np.testing.assert_allclose(once, images, atol=1e-5)


def test_grey_is_written_for_the_images_chosen():
    images = pictures(3, 3)
    chosen = np.array([True, False, True])
    one, three = np.full((3, 35), 7, np.uint8), images.copy()
    make_gray(images, chosen, one)
    make_gray(images, chosen, three)
    grey = images.reshape(3, 35, 3) @ np.array([0.299, 0.587, 0.114])
    assert np.abs(one[chosen] - grey[chosen]).max() <= 0.51
    assert (one[1] == 7).all() and (three[1] == images[1]).all()
    np.testing.assert_array_equal(three[chosen].reshape(2, 35, 3), np.repeat(one[chosen][..., None], 3, axis=2))


UNBOUND = np.float32(0)


def test_equal_keys_add_equal_noise_of_their_deviation():
    images = np.zeros((3, 1001), np.float32)
    add_noise(images, np.array([5, 6, 5], np.uint64), np.array([1, 1, 2], np.float32), normal_table(), UNBOUND)
    np.testing.assert_array_equal(images[0] * 2, images[2])
    assert (images[0] != images[1]).mean() > 0.99


def test_keys_that_follow_each_other_do_not_add_the_same_noise_shifted():
    golden = 0x9E3779B97F4A7C15
    images = np.zeros((2, 1000), np.float32)
    keys = np.array([9, (9 + golden) % 2**64], np.uint64)
    add_noise(images, keys, np.ones(2, np.float32), normal_table(), UNBOUND)
    assert abs(np.corrcoef(images[0, 4:], images[1, :-4])[0, 1]) < 0.1


def test_a_blur_keeps_the_sum_of_what_is_far_from_the_border():
    image = np.zeros((1, 31, 33, 1), np.float32)
    image[0, 15, 16] = 100
    out = np.empty_like(image)
    blur(image, 9, np.array([1.7], np.float32), out)
    assert abs(out.sum() - 100) < 1e-3
    np.testing.assert_allclose(out[0, ::-1, ::-1], out[0], rtol=1e-5)
    assert out[0, 15, 16] == out.max()


def test_boxes_are_filled_and_those_without_height_are_not():
    images = np.zeros((2, 6, 7, 2), np.uint16)
    fill_boxes(images, np.array([[1, 2, 3, 4], [1, 2, 0, 4]]), np.array([5, 600], np.uint16))
    expected = np.zeros((6, 7, 2))
    expected[1:4, 2:6] = [5, 600]
    np.testing.assert_array_equal(images[0], expected)
    assert (images[1] == 0).all()


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
