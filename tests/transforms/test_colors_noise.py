import numpy as np
import pytest

from stepwell.kernels.draws import Draws
from stepwell.transforms import Cutout, GaussianBlur, GaussianNoise, RandomErasing
from stepwell.transforms.colors_kernels import fill_boxes, normal_table

cv2 = pytest.importorskip("cv2")


def draws(number, purpose=0):
    return Draws.of(np.array([7, purpose], np.uint64), np.arange(number))


def pictures(*shape):
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
    values = pictures(3, 20, 23, channels).astype(dtype)
    result = GaussianBlur(size, sigma)(values.copy(), draws(3))
    for image, blurred in zip(values, result, strict=True):
        expected = cv2.GaussianBlur(image, (size, size), sigma, borderType=cv2.BORDER_REFLECT_101)
        assert np.abs(blurred.astype(float) - expected.reshape(blurred.shape)).max() <= 1


def test_a_blur_wider_than_the_image_mirrors_it_again_and_again():
    values = pictures(1, 2, 3).astype(np.float32)
    result = GaussianBlur(11, 3.0)(values.copy(), draws(1))
    wide = np.pad(values[0], ((10, 10), (10, 10)), mode="reflect")
    weights = np.exp(-0.5 * (np.arange(-5, 6) / 3.0) ** 2)
    kernel = np.outer(weights, weights) / weights.sum() ** 2
    expected = [[(wide[y + 5 : y + 16, x + 5 : x + 16] * kernel).sum() for x in range(3)] for y in range(2)]
    np.testing.assert_allclose(result[0], expected, rtol=1e-5)


def test_about_p_of_the_windows_are_blurred_and_the_others_are_untouched():
    values = np.repeat(pictures(1, 16, 16, 3), 300, axis=0)
    result = GaussianBlur(5, 1.5, p=0.3)(values.copy(), draws(300))
    is_same = (result == values).all(axis=(1, 2, 3))
    assert 180 < is_same.sum() < 240


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32])
def test_a_cutout_fills_its_square_and_nothing_else(dtype):
    values = pictures(30, 2, 20, 24, 3).astype(dtype) // 2 + 1
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
