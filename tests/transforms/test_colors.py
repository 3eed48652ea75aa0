"""Colours against torchvision's formulae, written out in NumPy; it truncates where stepwell rounds."""

import colorsys

import numpy as np
import pytest

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.transforms import Brightness, ColorJitter, Contrast, Grayscale, Hue, Saturation, Solarize, colors
from stepwell.transforms import colors_kernels as kernel

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
