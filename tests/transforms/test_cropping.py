import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.kernels.draws import Draws
from stepwell.transforms import CenterCrop, PadShift, RandomCrop, RandomFlip, Translate

DTYPES = [np.uint8, np.uint16, np.float32]


def draws(number, purpose=0):
    return Draws.of(np.array([7, purpose], np.uint64), np.arange(number))


def pictures(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [(), (1,), (2,), (3,), (4,)])
def test_a_random_crop_is_the_part_of_the_image_at_its_box(dtype, channels):
    values = pictures(9, 2, 13, 17, *channels, dtype=dtype)
    crop = RandomCrop((6, 5))
    result = crop(values.copy(), draws(9))
    boxes = crop.boxes(13, 17, draws(9), 1)[:, 0]
    assert len(np.unique(boxes[:, :2], axis=0)) > 4
    for window, box, cut in zip(values, boxes, result, strict=True):
        top, left, height, width = box
        np.testing.assert_array_equal(cut, window[:, top : top + height, left : left + width])


def test_random_crops_reach_every_place_about_equally_often():
    boxes = RandomCrop((8, 7)).boxes(9, 9, draws(6000), 1)[:, 0]
    _, counts = np.unique(boxes[:, :2], axis=0, return_counts=True)
    assert len(counts) == 6
    # chi square with 5 degrees of freedom: 20.5 is exceeded once in 1000
    assert ((counts - 1000) ** 2 / 1000).sum() < 20.5


def test_crops_of_two_fields_with_the_same_draws_are_at_corresponding_places():
    colour = RandomCrop(84).boxes(96, 96, draws(50), 1)
    depth = RandomCrop(42).boxes(48, 48, draws(50), 1)
    assert (np.abs(colour[..., :2] / 12 - depth[..., :2] / 6) <= 1 / 6).all()


def test_a_center_crop_is_the_middle():
    values = pictures(2, 9, 12, 3)
    np.testing.assert_array_equal(CenterCrop((5, 6))(values, draws(2)), values[:, 2:7, 3:9])


def test_a_crop_of_the_whole_image_is_the_image():
    values = pictures(2, 9, 12, 3)
    np.testing.assert_array_equal(RandomCrop((9, 12))(values, draws(2)), values)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [(), (1,), (2,), (3,)])
def test_a_shift_is_a_crop_of_the_image_with_its_border_repeated(dtype, channels):
    values = pictures(40, 11, 9, *channels, dtype=dtype)
    shift = PadShift(4)
    result = shift(values.copy(), draws(40))
    boxes = shift.boxes(11, 9, draws(40), 1)[:, 0]
    assert boxes[:, :2].min() == -4 and boxes[:, :2].max() == 4
    pad = [(4, 4), (4, 4)] + [(0, 0)] * len(channels)
    for image, (top, left, *_), cut in zip(values, boxes, result, strict=True):
        np.testing.assert_array_equal(cut, np.pad(image, pad, mode="edge")[top + 4 : top + 15, left + 4 : left + 13])


@pytest.mark.parametrize("fill", [0, 7, (1, 2, 3)])
def test_a_translation_fills_with_its_colour(fill):
    values = pictures(40, 11, 9, 3)
    move = Translate(5, fill)
    result = move(values.copy(), draws(40))
    boxes = move.boxes(11, 9, draws(40), 1)[:, 0]
    for image, (top, left, *_), cut in zip(values, boxes, result, strict=True):
        canvas = np.empty((21, 19, 3), np.uint8)
        canvas[:] = fill
        canvas[5:16, 5:14] = image
        np.testing.assert_array_equal(cut, canvas[top + 5 : top + 16, left + 5 : left + 14])


def test_a_shift_larger_than_the_image_shows_its_border_alone():
    image = pictures(1, 3, 4, 3)
    result = Translate(9, 5)(np.repeat(image, 60, axis=0), draws(60))
    boxes = Translate(9, 5).boxes(3, 4, draws(60), 1)[:, 0]
    away = (np.abs(boxes[:, 0]) >= 3) | (np.abs(boxes[:, 1]) >= 4)
    assert away.any() and not away.all()
    assert (result[away] == 5).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [(), (1,), (2,), (3,)])
@pytest.mark.parametrize("vertical", [False, True])
def test_a_flip_turns_about_half_of_the_windows(dtype, channels, vertical):
    values = pictures(64, 2, 5, 6, *channels, dtype=dtype)
    result = RandomFlip(vertical=vertical)(values.copy(), draws(64))
    turned = values[:, :, ::-1] if vertical else values[:, :, :, ::-1]
    is_turned = np.array([(window == other).all() for window, other in zip(result, turned, strict=True)])
    assert 15 < is_turned.sum() < 49
    np.testing.assert_array_equal(result[is_turned], turned[is_turned])
    np.testing.assert_array_equal(result[~is_turned], values[~is_turned])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_boxes_lie_within_images_of_any_size(data):
    height, width = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    size = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    boxes = RandomCrop(size).boxes(height, width, draws(200, data.draw(st.integers(0, 9))), 2)
    assert boxes.shape == (200, 2, 4)
    assert (boxes[..., :2] >= 0).all() and (boxes[..., :2] + boxes[..., 2:] <= [height, width]).all()
