"""Colours against torchvision's formulae, written out in NumPy; it truncates where stepwell rounds."""

import colorsys

import numpy as np
import pytest

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms import (
    Brightness,
    ColorJitter,
    Contrast,
    Cutout,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    Hue,
    RandomErasing,
    Saturation,
    Solarize,
    colors,
)
from stepwell.transforms import colors_kernels as kernel
from stepwell.transforms.colors_kernels import fill_boxes, normal_table

cv2 = pytest.importorskip("cv2")


GREY = np.array([0.299, 0.587, 0.114])


def draws(number, purpose=0):
    return Draws.of(np.array([7, purpose], np.uint64), np.arange(number))


def pictures(number=6, dtype=np.uint8):
    values = np.random.default_rng(0).integers(0, 256, (number, 9, 11, 3), dtype=np.uint8)
    # some pixels without a hue, and some of pure colours
    values[:, 0] = values[:, 0, :, :1]
    values[:, 1, :8] = np.array([[r, g, b] for r in (0, 255) for g in (0, 255) for b in (0, 255)])
    return values if dtype == np.uint8 else (values / 255).astype(dtype)


def blend(image, other, factor, bound):
    return np.clip(factor * image + (1 - factor) * other, 0, bound)


def brightness(image, factor, bound):
    return blend(image, 0, factor, bound)


def contrast(image, factor, bound):
    return blend(image, (image @ GREY).mean(), factor, bound)


def saturation(image, factor, bound):
    return blend(image, (image @ GREY)[..., None], factor, bound)


def hue(image, turn, bound):
    def turned(pixel):
        h, s, v = colorsys.rgb_to_hsv(*(pixel / bound))
        return np.array(colorsys.hsv_to_rgb((h + turn) % 1.0, s, v)) * bound

    return np.apply_along_axis(turned, -1, image)


CHANGES = [(Brightness, brightness), (Contrast, contrast), (Saturation, saturation), (Hue, hue)]


@pytest.mark.parametrize(
    ("dtype", "bound", "near"), [(np.uint8, 255, 1.0), (np.float32, 1, 1e-5), (np.float64, 1, 1e-5)]
)
@pytest.mark.parametrize(("transform", "formula"), CHANGES)
@pytest.mark.parametrize("amount", [0.0, 0.3, 1.0, 1.7])
def test_colours_change_by_the_formula(transform, formula, amount, dtype, bound, near):
    amount = amount / 4 if transform is Hue else amount
    values = pictures(dtype=dtype)
    result = transform((amount, amount))(values.copy(), draws(6))
    expected = np.stack([formula(image.astype(np.float64), amount, bound) for image in values])
    assert np.abs(result - expected).max() <= near


def test_the_mean_of_a_large_float_image_is_not_rounded_on_the_way():
    values = np.random.default_rng(0).random((1, 400, 500, 3), dtype=np.float32)
    expected = contrast(values[0].astype(np.float64), 0.0, 1)
    np.testing.assert_allclose(Contrast((0.0, 0.0))(values.copy(), draws(1))[0], expected, rtol=1e-6)


def test_a_hue_can_be_turned_backwards():
    values = pictures()
    expected = np.stack([hue(image.astype(np.float64), -0.4, 255) for image in values])
    assert np.abs(Hue((-0.4, -0.4))(values.copy(), draws(6)) - expected).max() <= 1


@pytest.mark.parametrize(
    "nothing", [Brightness(0.0), Contrast(0.0), Saturation(0.0), Hue(0.0), ColorJitter(), Brightness(0.9, p=0.0)]
)
def test_an_amount_of_nothing_changes_nothing(nothing):
    values = pictures()
    np.testing.assert_array_equal(nothing(values.copy(), draws(6)), values)


def test_amounts_are_drawn_over_the_range():
    plain = np.full((4000, 2, 2, 3), 100, np.uint8)
    means = Brightness((0.5, 1.5))(plain, draws(4000)).mean(axis=(1, 2, 3)) / 100
    assert 0.5 <= means.min() < 0.51 and 1.49 < means.max() <= 1.5
    assert abs(means.mean() - 1) < 0.02


def test_the_jitter_does_all_four_in_an_order_of_each_window():
    values = pictures(40)
    jitter = ColorJitter((1.4, 1.4), (0.6, 0.6), (1.5, 1.5), (0.2, 0.2))
    result = jitter(values.copy(), draws(40))
    formulae = [(brightness, 1.4), (contrast, 0.6), (saturation, 1.5), (hue, 0.2)]
    orders = draws_orders(jitter, 40)
    assert len({tuple(order) for order in orders}) > 12
    for image, order, changed in zip(values, orders, result, strict=True):
        expected = image.astype(np.float64)
        for number in order:
            formula, amount = formulae[number]
            expected = np.rint(formula(expected, amount, 255))
        # a hue of nearly grey pixels follows the rounding
        assert np.abs(changed - expected).mean() < 0.2


def draws_orders(jitter, number):
    """Which change the jitter does first, second ... in each window, seen from the numbers that it draws."""
    numbers = draws(number)
    numbers.uniform(size=(1, 4))
    return numbers.uniform(size=(1, 4)).argsort(axis=2)[:, 0]


@pytest.mark.parametrize(("dtype", "near"), [(np.uint8, 0.51), (np.float32, 1e-6), (np.float16, 1e-3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_grey_is_the_weighted_mean_of_the_colours(channels, dtype, near):
    values = pictures(dtype=dtype)
    result = Grayscale(channels)(values.copy(), draws(6))
    expected = (values.astype(np.float64) @ GREY)[..., None]
    assert result.shape == (*values.shape[:-1], channels)
    assert np.abs(result - expected).max() <= near


def test_about_p_of_the_windows_become_grey():
    values = np.repeat(pictures(1), 400, axis=0)
    result = Grayscale(p=0.25)(values.copy(), draws(400))
    is_same = (result == values).all(axis=(1, 2, 3))
    assert 270 < is_same.sum() < 330


def test_images_without_colours_cannot_become_grey():
    with pytest.raises(WindowError, match="1 channels"):
        Grayscale().output((24, 28), np.dtype("uint8"))


@pytest.mark.parametrize(
    ("dtype", "threshold", "bound"), [(np.uint8, 100, 255), (np.float32, 0.41, 1), (np.float16, 0.41, 1)]
)
def test_solarising_turns_bright_values_round(dtype, threshold, bound):
    values = pictures(dtype=dtype)
    expected = np.where(values >= threshold, dtype(bound) - values, values)
    np.testing.assert_array_equal(Solarize(threshold)(values.copy(), draws(6)), expected)


@pytest.mark.parametrize("transform", [Saturation((2.0, 2.0)), Hue((0.3, 0.3))])
def test_grey_images_have_no_colours_to_change(transform):
    values = pictures()[..., 0]
    np.testing.assert_array_equal(transform(values.copy(), draws(6)), values)


@pytest.mark.parametrize(
    "change", [Brightness((1.5, 1.5)), Contrast((0.5, 0.5)), Saturation((0.2, 0.2)), Hue((0.3, 0.3))]
)
def test_a_fourth_channel_stays(change):
    values = np.random.default_rng(0).integers(0, 256, (2, 9, 11, 4), dtype=np.uint8)
    result = change(values.copy(), draws(2))
    np.testing.assert_array_equal(result[..., 3], values[..., 3])
    np.testing.assert_array_equal(result[..., :3], change(values[..., :3].copy(), draws(2)))


def test_transforms_and_kernel_number_changes_alike():
    for name in ("BRIGHTNESS", "CONTRAST", "SATURATION", "HUE", "SOLARIZE"):
        assert getattr(colors, name) == getattr(kernel, name)


def pictures_of_noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_noise_is_normal_and_of_its_deviation():
    flat = np.full((8, 64, 64, 3), 100.0, np.float32)
    noise = GaussianNoise(10.0, clip=False)(flat, draws(8)) - 100
    assert abs(noise.mean()) < 0.15
    assert abs(noise.std() - 10) < 0.15
    # of a normal distribution: within one deviation 68.3 %, two 95.4 %, three 99.7 %
    for deviations, part in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert abs((np.abs(noise) < 10 * deviations).mean() - part) < 0.006


def test_neighbours_and_channels_and_steps_have_noise_of_their_own():
    noise = GaussianNoise(10.0, clip=False)(np.zeros((4, 2, 48, 48, 3), np.float32), draws(4))
    pairs = [
        (noise[..., 1:, :], noise[..., :-1, :]),
        (noise[..., 1:], noise[..., :-1]),
        (noise[..., 1:, :, :], noise[..., :-1, :, :]),
        (noise[:, 1:], noise[:, :-1]),
        (noise[1:], noise[:-1]),
    ]
    for one, other in pairs:
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.03


def test_bytes_with_noise_are_rounded_and_clipped():
    values = np.repeat(np.array([0, 128, 255], np.uint8), 3 * 40 * 40).reshape(3, 40, 40, 3)
    result = GaussianNoise(20.0)(values.copy(), draws(3)).astype(float)
    assert result[0].min() == 0 and result[2].max() == 255
    assert abs(result[1].mean() - 128) < 1
    assert (result[0] == 0).mean() > 0.45 and (result[2] == 255).mean() > 0.45


def test_a_range_of_deviations_is_drawn_for_each_window():
    noise = GaussianNoise((1.0, 30.0), clip=False)(np.zeros((40, 32, 32), np.float32), draws(40))
    deviations = noise.std(axis=(1, 2))
    assert deviations.min() < 5 and deviations.max() > 25


def test_the_table_of_normal_values_has_their_moments():
    table = normal_table().astype(np.float64)
    assert abs(table.mean()) < 1e-9 and abs(table.std() - 1) < 1e-3
    assert (np.diff(table) > 0).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("size", "sigma"), [(1, 1.0), (3, 0.6), (5, 1.3), (9, 4.0)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_blur_is_as_opencv_has_it(size, sigma, channels, dtype):
    values = pictures_of_noise(3, 20, 23, channels).astype(dtype)
    result = GaussianBlur(size, sigma)(values.copy(), draws(3))
    for image, blurred in zip(values, result, strict=True):
        expected = cv2.GaussianBlur(image, (size, size), sigma, borderType=cv2.BORDER_REFLECT_101)
        assert np.abs(blurred.astype(float) - expected.reshape(blurred.shape)).max() <= 1


def test_a_blur_wider_than_the_image_mirrors_it_again_and_again():
    values = pictures_of_noise(1, 2, 3).astype(np.float32)
    result = GaussianBlur(11, 3.0)(values.copy(), draws(1))
    wide = np.pad(values[0], ((10, 10), (10, 10)), mode="reflect")
    weights = np.exp(-0.5 * (np.arange(-5, 6) / 3.0) ** 2)
    kernel = np.outer(weights, weights) / weights.sum() ** 2
    expected = [[(wide[y + 5 : y + 16, x + 5 : x + 16] * kernel).sum() for x in range(3)] for y in range(2)]
    np.testing.assert_allclose(result[0], expected, rtol=1e-5)


def test_about_p_of_the_windows_are_blurred_and_the_others_are_untouched():
    values = np.repeat(pictures_of_noise(1, 16, 16, 3), 300, axis=0)
    result = GaussianBlur(5, 1.5, p=0.3)(values.copy(), draws(300))
    is_same = (result == values).all(axis=(1, 2, 3))
    assert 180 < is_same.sum() < 240


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32])
def test_a_cutout_fills_its_square_and_nothing_else(dtype):
    values = pictures_of_noise(30, 2, 20, 24, 3).astype(dtype) // 2 + 1
    result = Cutout((6, 9), fill=(200, 201, 202))(values.copy(), draws(30))
    filled = (result == np.array([200, 201, 202], dtype)).all(axis=-1)
    assert (filled.sum(axis=(2, 3)) == 54).all()
    for marks in filled:
        ys, xs = np.nonzero(marks[0])
        assert (marks[0, ys.min() : ys.max() + 1, xs.min() : xs.max() + 1]).all()
        np.testing.assert_array_equal(marks[0], marks[1])
    np.testing.assert_array_equal(result[~filled], values[~filled])


def test_erased_parts_have_areas_of_their_range():
    values = np.ones((800, 50, 50), np.uint8)
    erased = (RandomErasing(0.5, scale=(0.1, 0.2))(values, draws(800)) == 0).mean(axis=(1, 2))
    assert 340 < (erased > 0).sum() < 460
    areas = erased[erased > 0]
    assert areas.min() > 0.09 and areas.max() < 0.215


def test_a_colour_that_is_spread_over_channels_compiles_nothing_more():
    images = np.zeros((2, 9, 9, 3), np.uint8)
    Cutout(3, fill=(1, 2, 3))(images, draws(2))
    compiled = len(fill_boxes.signatures)
    for channels in (1, 3):
        Cutout(3, fill=7)(images[..., :channels].copy(), draws(2))
    assert len(fill_boxes.signatures) == compiled
