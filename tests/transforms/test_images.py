"""Images in windows: their axes, floats, and channels first."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.loader.transforms import TransformChain
from stepwell.transforms import (
    Brightness,
    CenterCrop,
    ColorJitter,
    Contrast,
    Cutout,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    Hue,
    PadShift,
    RandomCrop,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    Saturation,
    Solarize,
    ToCHW,
    ToFloat,
    ToHWC,
    Transform,
    Translate,
)
from stepwell.transforms.images import ImageLayout

RANDOM = [
    RandomCrop(20),
    PadShift(4),
    Translate(5, fill=9),
    RandomResizedCrop(16),
    RandomFlip(),
    Brightness(0.5),
    Contrast(0.5),
    Saturation(0.5),
    Hue(0.2),
    ColorJitter(0.4, 0.4, 0.4, 0.1),
    Grayscale(p=0.5),
    Solarize(p=0.5),
    GaussianNoise((1.0, 8.0), per_step=False),
    GaussianBlur(p=0.5),
    Cutout(8, p=0.5),
    RandomErasing(),
]
ALL = [*RANDOM, CenterCrop((20, 18)), Resize((12, 40)), Grayscale(1), ToFloat(), ToCHW()]


def draws(number, first=0):
    return Draws.of(np.array([7, 1], np.uint64), np.arange(first, first + number))


def pictures(*shape, dtype=np.uint8):
    values = np.random.default_rng(0).integers(0, 256, shape)
    return values.astype(dtype) if dtype == np.uint8 else (values / 255).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84, 3), ((), 84, 84, 3, True)),
        ((4, 84, 84), ((4,), 84, 84, 1, False)),
        ((84, 84), ((), 84, 84, 1, False)),
        ((2, 4, 96, 64, 1), ((2, 4), 96, 64, 1, True)),
        ((84, 84, 9), ((), 84, 84, 9, True)),
        ((10, 10, 7), ((), 10, 10, 7, True)),
        ((10, 10, 10), ((10,), 10, 10, 1, False)),
    ],
)
def test_images_are_the_last_axes_of_a_window(shape, expected):
    layout = ImageLayout.of(shape)
    assert (layout.window, layout.height, layout.width, layout.channels, layout.has_channels) == expected


@pytest.mark.parametrize("shape", [(), (7,), (0, 4, 3), (84, 0)])
def test_a_window_without_images_is_refused(shape):
    with pytest.raises(WindowError, match="holds no images"):
        ImageLayout.of(shape)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float16, np.float64])
@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_what_comes_out_is_what_output_says(transform, dtype):
    values = pictures(5, 2, 24, 28, 3, dtype=dtype)
    result = transform(values.copy(), draws(5))
    assert (result.shape[1:], result.dtype) == transform.output(values.shape[1:], values.dtype)


@pytest.mark.parametrize("transform", [t for t in ALL if not isinstance(t, Grayscale)], ids=repr)
def test_grey_windows_go_through_without_an_axis_of_channels(transform):
    values = pictures(5, 2, 24, 28)
    result = transform(values.copy(), draws(5))
    assert (result.shape[1:], result.dtype) == transform.output(values.shape[1:], values.dtype)


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_all_steps_of_a_window_are_treated_alike(transform):
    alike = np.repeat(pictures(6, 1, 24, 28, 3), 3, axis=1)
    result = transform(alike.copy(), draws(6))
    np.testing.assert_array_equal(result[:, 0], result[:, 1])
    np.testing.assert_array_equal(result[:, 0], result[:, 2])


@pytest.mark.parametrize("transform", RANDOM, ids=repr)
def test_each_step_has_its_own_draw_when_asked(transform):
    own = type(transform)(**{**vars(transform), "per_step": True})
    alike = np.repeat(pictures(1, 1, 24, 28, 3), 8, axis=1)
    result = own(alike.copy(), draws(1))[0]
    assert any((result[0] != step).any() for step in result[1:])


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_a_window_does_not_depend_on_the_batch_it_comes_in(transform):
    values = pictures(7, 2, 24, 28, 3)
    whole = transform(values.copy(), draws(7))
    for first, last in ((0, 3), (3, 4), (4, 7)):
        part = transform(values[first:last].copy(), draws(last - first, first))
        np.testing.assert_array_equal(part, whole[first:last])


@pytest.mark.parametrize("transform", RANDOM, ids=repr)
def test_windows_have_draws_of_their_own(transform):
    alike = np.repeat(pictures(1, 24, 28, 3), 16, axis=0)
    result = transform(alike.copy(), draws(16))
    assert any((result[0] != window).any() for window in result[1:])


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_values_with_gaps_between_them_are_right(transform):
    wide = pictures(4, 2, 24, 56, 3)
    expected = transform(np.ascontiguousarray(wide[:, :, :, ::2]), draws(4))
    np.testing.assert_array_equal(transform(wide[:, :, :, ::2], draws(4)), expected)


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_a_transform_is_pickled_and_compared_by_what_it_does(transform):
    assert pickle.loads(pickle.dumps(transform)) == transform
    assert hash(transform) == hash(pickle.loads(pickle.dumps(transform)))


def test_sizes_are_the_same_however_they_are_given():
    assert Resize(8) == Resize((8, 8)) == Resize([8, 8]) == Resize(np.int64(8))
    assert hash(CenterCrop([8, 9])) == hash(CenterCrop((8, 9)))


@pytest.mark.parametrize("transform", ALL, ids=repr)
def test_an_empty_batch_stays_empty(transform):
    result = transform(pictures(0, 2, 24, 28, 3), draws(0))
    assert result.shape == (0, *transform.output((2, 24, 28, 3), np.dtype("uint8"))[0])


@pytest.mark.parametrize("transform", [Brightness(), Hue(), GaussianBlur(), GaussianNoise(1.0), Resize(8), Solarize()])
def test_integers_without_a_largest_value_are_refused(transform):
    with pytest.raises(WindowError, match="int32 images"):
        transform.output((24, 28, 3), np.dtype("int32"))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RandomCrop(0),
        lambda: CenterCrop((1, 2, 3)),
        lambda: CenterCrop(8.5),
        lambda: PadShift(-1),
        lambda: Translate(1.5),
        lambda: Resize(8, "cubic"),
        lambda: RandomResizedCrop(8, scale=(0.0, 1.0)),
        lambda: RandomResizedCrop(8, ratio=(2.0, 1.0)),
        lambda: RandomFlip(1.5),
        lambda: Brightness((2.0, 1.0)),
        lambda: Hue(0.6),
        lambda: ColorJitter(hue=0.7),
        lambda: Grayscale(2),
        lambda: Grayscale(1, p=0.5),
        lambda: GaussianNoise(-1.0),
        lambda: GaussianBlur(4),
        lambda: GaussianBlur(3, sigma=0.0),
        lambda: Cutout(-2),
        lambda: RandomErasing(scale=(0.5, 0.1)),
        lambda: ToFloat(dtype="int8"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_when_it_is_given(wrong):
    with pytest.raises(WindowError, match="Allowed"):
        wrong()


@pytest.mark.parametrize("transform", [RandomCrop(25), CenterCrop((10, 29)), Cutout(30)])
def test_what_does_not_fit_the_images_is_refused_with_both_sizes(transform):
    with pytest.raises(WindowError, match="24x28"):
        transform.output((24, 28, 3), np.dtype("uint8"))


@pytest.mark.parametrize("fill", [(1, 2), (0, 0, 0, 255), 300, -1, 0.5])
@pytest.mark.parametrize(
    "transform", [lambda f: Translate(2, f), lambda f: Cutout(3, fill=f), lambda f: RandomErasing(fill=f)]
)
def test_a_colour_that_images_cannot_have_is_refused_before_any_is_filled(transform, fill):
    with pytest.raises(WindowError, match=r"fill=.* Allowed"):
        transform(fill).output((24, 28, 3), np.dtype("uint8"))


@pytest.mark.parametrize(
    ("cut", "shape"),
    [(Resize((5, 9)), (20, 30, 9)), (RandomResizedCrop(6), (2, 24, 24, 6)), (RandomCrop(4), (3, 9, 9))],
)
def test_a_size_at_which_other_axes_would_be_taken_for_the_image_is_refused(cut, shape):
    with pytest.raises(WindowError, match="would be taken for"):
        cut.output(shape, np.dtype("uint8"))


def test_importing_the_transforms_loads_no_compiler():
    code = "import sys, stepwell.transforms; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


DRAWS = Draws(np.zeros(2, np.uint64))


def pictures_of_axes(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 9])
def test_channels_come_first_and_back(dtype, channels):
    values = pictures_of_axes(2, 3, 11, 13, channels, dtype=dtype)
    result = ToCHW()(values, DRAWS)
    np.testing.assert_array_equal(result, np.moveaxis(values, -1, -3))
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(ToHWC()(result, DRAWS), values)


def test_grey_images_get_an_axis_of_one():
    values = pictures_of_axes(2, 3, 11, 13)
    assert ToCHW().output((3, 11, 13), values.dtype)[0] == (3, 1, 11, 13)
    np.testing.assert_array_equal(ToCHW()(values, DRAWS), values[:, :, None])


def test_two_axes_cannot_get_channels_last():
    with pytest.raises(WindowError, match="channels, height, width"):
        ToHWC().output((11, 13), np.dtype("uint8"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_are_values_times_the_scale(dtype):
    values = np.arange(256, dtype=np.uint8).reshape(2, 128)
    expected = (values.astype(np.float64) / 255).astype(dtype)
    np.testing.assert_allclose(ToFloat(dtype=dtype)(values, DRAWS), expected, rtol=1e-3 if dtype == "float16" else 1e-6)
    np.testing.assert_array_equal(ToFloat(2.0, dtype=dtype)(values, DRAWS), (2.0 * values).astype(dtype))


@pytest.mark.parametrize(
    "late", [Saturation(0.9), ColorJitter(0.2), Contrast(0.3), Hue(0.1), Brightness(per_step=True)]
)
def test_what_would_take_channels_for_steps_is_refused_after_tochw(late: Transform) -> None:
    with pytest.raises(WindowError, match=rf"{type(late).__name__} after ToCHW .* Put it before ToCHW"):
        TransformChain({"image": (ToCHW(), late)})
    for chain in ((late, ToCHW()), (ToCHW(), ToHWC(), late), (ToCHW(), Brightness(0.3), RandomCrop(8))):
        TransformChain({"image": chain})
