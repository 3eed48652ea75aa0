import numpy as np
import pytest

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.schema import Image
from stepwell.transforms import RandomResizedCrop, Resize

cv2 = pytest.importorskip("cv2")

SIZES = [((24, 40), (24, 40)), ((24, 40), (11, 13)), ((24, 40), (60, 50)), ((24, 40), (12, 80)), ((31, 17), (62, 5))]


def draws(number, purpose=0):
    return Draws.of(np.array([7, purpose], np.uint64), np.arange(number))


def smooth(number, height, width, channels):
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (7 + i) + c) + np.cos(y / (9 + c)) for i in range(number) for c in range(channels)]
    planes = np.stack(waves).reshape(number, channels, height, width)
    return np.moveaxis((planes * 60 + 127).astype(np.uint8), 1, -1).copy()


def levels_apart(one, other):
    return np.abs(one.astype(np.float64) - other).max()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_linear_is_as_opencv_has_it(old, new, channels):
    noise = np.random.default_rng(0).integers(0, 256, (3, *old, channels), dtype=np.uint8)
    result = Resize(new, antialias=False)(noise.copy(), draws(3))
    for image, resized in zip(noise, result, strict=True):
        expected = cv2.resize(image, new[::-1], interpolation=cv2.INTER_LINEAR).reshape(resized.shape)
        assert levels_apart(resized, expected) <= 1


@pytest.mark.parametrize(("old", "new"), [((24, 40), (11, 13)), ((24, 40), (12, 20)), ((31, 17), (3, 5))])
def test_area_is_as_opencv_has_it_where_images_shrink(old, new):
    noise = np.random.default_rng(0).integers(0, 256, (3, *old, 3), dtype=np.uint8)
    result = Resize(new, "area")(noise.copy(), draws(3))
    for image, resized in zip(noise, result, strict=True):
        assert levels_apart(resized, cv2.resize(image, new[::-1], interpolation=cv2.INTER_AREA)) <= 1


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("old", "new"), SIZES)
def test_antialiased_is_as_torch_has_it(old, new, channels):
    torch = pytest.importorskip("torch")
    noise = np.random.default_rng(0).integers(0, 256, (3, *old, channels), dtype=np.uint8)
    planes = torch.from_numpy(noise).permute(0, 3, 1, 2).float()
    expected = torch.nn.functional.interpolate(planes, new, mode="bilinear", antialias=True)
    result = Resize(new)(noise.copy(), draws(3))
    assert levels_apart(result, expected.permute(0, 2, 3, 1).numpy()) <= 1


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_nearest_takes_the_pixel_under_the_middle(old, new):
    noise = np.random.default_rng(0).integers(0, 256, (2, *old, 3), dtype=np.uint8)
    ys = ((np.arange(new[0]) + 0.5) * old[0] / new[0]).astype(int)
    xs = ((np.arange(new[1]) + 0.5) * old[1] / new[1]).astype(int)
    np.testing.assert_array_equal(Resize(new, "nearest")(noise.copy(), draws(2)), noise[:, ys][:, :, xs])


@pytest.mark.parametrize("dtype", [np.bool_, np.int32, np.int64, np.float64])
def test_nearest_takes_labels_of_any_dtype_as_it_takes_bytes(dtype):
    labels = np.random.default_rng(0).integers(0, 2, (6, 2, 24, 40), dtype=np.uint8)
    for transform in (Resize((11, 50), "nearest"), RandomResizedCrop(16, "nearest")):
        expected = transform(labels.copy(), draws(6)).astype(dtype)
        assert transform.output((2, 24, 40), np.dtype(dtype)) == (expected.shape[1:], expected.dtype)
        np.testing.assert_array_equal(transform(labels.astype(dtype), draws(6)), expected)


@pytest.mark.parametrize("dtype", [np.uint16, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("how", [{"antialias": False}, {}, {"interpolation": "area"}, {"interpolation": "nearest"}])
@pytest.mark.parametrize(("old", "new"), SIZES[1:4])
def test_other_dtypes_are_resized_as_bytes_are(dtype, how, old, new):
    values = smooth(2, *old, 3)
    as_bytes = Resize(new, **how)(values.copy(), draws(2))
    result = Resize(new, **how)(values.astype(dtype), draws(2))
    assert result.dtype == dtype
    # bytes are rounded, and uint16 as well
    assert levels_apart(result, as_bytes) <= {np.uint16: 1.0, np.float16: 0.8}.get(dtype, 0.7)


@pytest.mark.parametrize("interpolation", ["linear", "area", "nearest"])
@pytest.mark.parametrize("value", [0, 1, 137, 255])
def test_a_plain_image_stays_plain(interpolation, value):
    plain = np.full((1, 37, 41, 3), value, np.uint8)
    for size in (5, 37, 90):
        assert (Resize(size, interpolation)(plain, draws(1)) == value).all()


def test_images_of_one_pixel_are_resized():
    image = np.array([[[[10, 20, 30]]]], np.uint8)
    for interpolation in ("linear", "area", "nearest"):
        for antialias in (False, True):
            result = Resize((3, 4), interpolation, antialias)(image, draws(1))
            assert (result == [10, 20, 30]).all()


@pytest.mark.parametrize("antialias", [False, True])
def test_a_resized_crop_is_its_crop_resized(antialias):
    noise = np.random.default_rng(0).integers(0, 256, (12, 2, 30, 26, 3), dtype=np.uint8)
    crop = RandomResizedCrop((14, 33), antialias=antialias)
    boxes = crop.boxes(30, 26, draws(12), 1)[:, 0]
    assert len(np.unique(boxes, axis=0)) > 6
    for window, (top, left, height, width), result in zip(noise, boxes, crop(noise.copy(), draws(12)), strict=True):
        part = np.ascontiguousarray(window[None, :, top : top + height, left : left + width])
        np.testing.assert_array_equal(Resize((14, 33), antialias=antialias)(part, draws(1))[0], result)


def test_boxes_have_areas_and_ratios_of_their_ranges():
    boxes = RandomResizedCrop(8, scale=(0.2, 0.6), ratio=(0.5, 2.0)).boxes(200, 200, draws(3000), 1)[:, 0]
    areas, ratios = boxes[:, 2] * boxes[:, 3] / 40000, boxes[:, 3] / boxes[:, 2]
    assert areas.min() > 0.19 and areas.max() < 0.61 and ratios.min() > 0.48 and ratios.max() < 2.06
    # what does not fit is drawn again, which favours small parts
    assert 0.36 < areas.mean() < 0.4
    assert abs(np.log(ratios).mean()) < 0.05
    assert (boxes[:, :2] >= 0).all() and (boxes[:, :2] + boxes[:, 2:] <= 200).all()


def test_where_no_part_fits_it_is_the_largest_one_in_the_middle():
    boxes = RandomResizedCrop(8, scale=(1.0, 1.0), ratio=(0.75, 4 / 3)).boxes(10, 100, draws(20), 1)
    np.testing.assert_array_equal(boxes, np.broadcast_to([0, 43, 10, 13], (20, 1, 4)))
    boxes = RandomResizedCrop(8, scale=(1.0, 1.0), ratio=(0.75, 4 / 3)).boxes(100, 12, draws(20), 1)
    np.testing.assert_array_equal(boxes, np.broadcast_to([42, 0, 16, 12], (20, 1, 4)))


def test_resize_tells_a_video_decoder_the_size():
    assert Resize((48, 64)).resizes_to == (48, 64)
    assert RandomResizedCrop(48).resizes_to is None


def test_a_decoder_has_no_draws_for_steps():
    with pytest.raises(WindowError, match="one draw a window"):
        RandomResizedCrop(8, per_step=True).output(Image((24, 28, 3)))
