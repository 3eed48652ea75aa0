import numpy as np
import pytest

from stepwell.transforms.images_colors_kernels import (
    BRIGHTNESS,
    HUE,
    NONE,
    SATURATION,
    SOLARIZE,
    change_colors,
    make_gray,
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
