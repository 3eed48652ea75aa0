"""Crops and resizing as decoders: the same as transforms of whole images, with less decoded."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Field, Loader, create, random
from stepwell.codecs import make_codec
from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.schema import Array, Image
from stepwell.transforms import (
    CenterCrop,
    CenterResizedCrop,
    PadShift,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
    Translate,
)

cv2 = pytest.importorskip("cv2")


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


EXACT = [
    RandomCrop((13, 20)),
    CenterCrop(16),
    CenterResizedCrop(16, part=0.9),
    Resize((20, 44), antialias=False),
    Resize(16),
    RandomResizedCrop(30),
]


def draws_of_decoders(number):
    return Draws.of(np.array([7, 1], np.uint64), np.arange(number))


def waves(number, height, width, *channels, stretch=1):
    y, x = np.mgrid[:height, :width] / stretch
    planes = [np.sin(x / (7 + i) + c) + np.cos(y / (9 + c)) for i in range(number) for c in range(*(channels or (1,)))]
    images = np.moveaxis(np.stack(planes).reshape(number, -1, height, width) * 60 + 127, 1, -1)
    return images.reshape(number, height, width, *channels).astype(np.uint8)


def decoded(decoder, feature, blobs):
    """What a reader does with a decoder: one draw a window, row by row."""
    codec = make_codec(feature)
    shape, dtype = decoder.output(feature)
    drawn = decoder.draw(feature, draws_of_decoders(len(blobs)))
    out = np.empty((len(blobs), *shape), dtype)
    for i, blob in enumerate(blobs):
        decoder.decode(codec, np.frombuffer(blob, np.uint8), out[i, ...], None if drawn is None else drawn[i])
    return out


def converted(decoder, feature, rows):
    shape, dtype = decoder.output(feature)
    drawn = decoder.draw(feature, draws_of_decoders(len(rows)))
    out = np.empty((len(rows), *shape), dtype)
    for i, row in enumerate(rows):
        decoder.convert(row, out[i, ...], None if drawn is None else drawn[i])
    return out


@pytest.mark.parametrize("channels", [(), (1,), (3,)])
@pytest.mark.parametrize("codec", ["png", "jpeg"])
@pytest.mark.parametrize("decoder", EXACT, ids=repr)
def test_a_decoder_makes_what_the_transform_makes(decoder, codec, channels):
    pytest.importorskip("imagecodecs")
    feature = Image((24, 32, *channels), codec=codec)
    coder = make_codec(feature)
    blobs = [coder.encode(image) for image in waves(6, 24, 32, *channels)]
    rows = np.stack([coder.decode(np.frombuffer(blob, np.uint8)) for blob in blobs])
    expected = decoder(rows.copy(), draws_of_decoders(6))
    np.testing.assert_array_equal(converted(decoder, feature, rows), expected)
    np.testing.assert_array_equal(decoded(decoder, feature, blobs), expected)


@pytest.mark.parametrize("interpolation", ["linear", "area", "nearest"])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("codec", ["jpeg", "png", "image-file"])
def test_a_box_that_shrinks_much_is_what_the_transform_makes(interpolation, antialias, codec):
    pytest.importorskip("imagecodecs")
    feature = Image((96, 128, 3), codec=codec)
    rng = np.random.default_rng(0)
    # noise, of which every way to resize makes something else
    images = [rng.integers(0, 256, (96, 128, 3)).astype(np.uint8) for _ in range(3)]
    encoder = make_codec(Image((96, 128, 3), codec="jpeg" if codec == "image-file" else codec))
    blobs = [encoder.encode(image) for image in images]
    rows = np.stack([make_codec(feature).decode(np.frombuffer(blob, np.uint8)) for blob in blobs])
    options = {"interpolation": interpolation, "antialias": antialias}
    for size in ((48, 64), (24, 32), (12, 16), (20, 24)):
        for decoder in (
            Resize(size, **options),
            CenterResizedCrop(size, **options),
            RandomResizedCrop(size, scale=(0.5, 1.0), **options),
        ):
            assert np.array_equal(decoded(decoder, feature, blobs), decoder(rows.copy(), draws_of_decoders(3))), (
                decoder,
                size,
            )


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_rows_of_other_dtypes_are_converted(dtype):
    feature = Image((24, 32, 3), dtype=np.dtype(dtype).name, codec="raw") if dtype == np.uint8 else None
    rows = waves(6, 24, 32, 3).astype(dtype)
    for decoder in EXACT:
        drawn = decoder.draw(Image((24, 32, 3)), draws_of_decoders(6))
        out = np.empty((6, *decoder.output((24, 32, 3), np.dtype(dtype))[0]), dtype)
        for i in range(6):
            decoder.convert(rows[i], out[i], drawn[i] if decoder.is_random else None)
        np.testing.assert_array_equal(out, decoder(rows.copy(), draws_of_decoders(6)))
    assert feature is None or EXACT[0].output(feature) == ((13, 20, 3), np.dtype("uint8"))


@pytest.mark.parametrize("decoder", EXACT, ids=repr)
def test_a_row_is_one_image_however_many_channels_it_has(decoder):
    rows = np.random.default_rng(0).integers(0, 256, (6, 24, 32, 40), dtype=np.uint8)
    result = converted(decoder, Array((24, 32, 40), "uint8"), rows)
    for first in range(0, 40, 4):
        part = np.ascontiguousarray(rows[..., first : first + 4])
        np.testing.assert_array_equal(result[..., first : first + 4], decoder(part, draws_of_decoders(6)))


def test_the_same_class_is_a_fields_decoder_and_its_transform(tmp_path):
    images = waves(12, 24, 32, 3)
    store = create(tmp_path / "store", {"image": Image((24, 32, 3), codec="png")})
    with store.writer() as writer:
        for image in images:
            writer.append(image=image)
        writer.end_episode()
    for crop in (RandomCrop((13, 20), key="crop"), RandomResizedCrop(18, key="crop"), CenterCrop(10), Resize(12)):
        fields = {
            "early": Field("image", [0, 1], decoder=crop),
            "late": Field("image", [0, 1], transform=crop),
        }
        batches = list(Loader(store, fields, batch_size=4, order=random(seed=3)))
        assert len(batches) == 3
        for batch in batches:
            np.testing.assert_array_equal(batch["early"], batch["late"])


@settings(max_examples=60)
@given(
    height=st.integers(13, 900),
    width=st.integers(20, 900),
    scale=st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(sorted).map(tuple),
    ratio=st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)).map(sorted).map(tuple),
)
def test_the_box_of_one_image_is_that_of_many_bit_for_bit(height, width, scale, ratio):
    for cut in (*EXACT[:2], CenterCrop(13), RandomResizedCrop(30, scale=scale, ratio=ratio)):
        if isinstance(cut, CenterCrop) and height < 16:
            continue
        numbers = cut.numbers(draws_of_decoders(8), 1)[:, 0].tolist()
        boxes = cut.boxes(height, width, draws_of_decoders(8), 1)[:, 0]
        assert [cut.box(height, width, each) for each in numbers] == [tuple(box) for box in boxes.tolist()]


@pytest.mark.parametrize("codec", ["raw", "png", "jpeg", "zstd"])
@pytest.mark.parametrize("decoder", EXACT, ids=repr)
def test_images_of_any_size_are_cut_as_those_of_one_size(decoder, codec):
    fixed, varying = Image((24, 32, 3), codec=codec), Image((None, None, 3), codec=codec)
    images = waves(6, 24, 32, 3)
    blobs = [make_codec(fixed).encode(image) for image in images]
    sized = [make_codec(varying).encode(image) for image in images]
    assert decoder.output(varying) == decoder.output(fixed)
    np.testing.assert_array_equal(decoded(decoder, varying, sized), decoded(decoder, fixed, blobs))


@pytest.mark.parametrize("codec", ["raw", "png", "jpeg", "lz4"])
@pytest.mark.parametrize("decoder", EXACT, ids=repr)
def test_each_image_of_any_size_is_cut_by_its_own_size(decoder, codec):
    feature = Image((None, None, 3), codec=codec)
    images = [waves(1, height, width, 3)[0] for height, width in ((24, 32), (60, 21), (33, 90), (16, 200), (200, 20))]
    coder = make_codec(feature)
    blobs = [coder.encode(image) for image in images]
    rows = [coder.decode(np.frombuffer(blob, np.uint8)) for blob in blobs]
    result = decoded(decoder, feature, blobs)
    for i, row in enumerate(rows):
        alone = decoder(np.stack([row] * 5), draws_of_decoders(5))[i]
        # a box that shrinks much comes from a smaller scale of a JPEG file
        limit = 3 if codec == "jpeg" else 0
        assert np.abs(result[i].astype(float) - alone).mean() <= limit


def test_a_random_resized_crop_of_any_size_is_torchvisions():
    crop = RandomResizedCrop(30, scale=(0.3, 1.0), ratio=(0.5, 3.0))
    numbers = crop.draw(Image((None, None, 3)), draws_of_decoders(300)).tolist()
    sizes = [(40, 300), (300, 40), (128, 128), (90, 120)] * 75
    fallbacks = 0
    for (height, width), each in zip(sizes, numbers, strict=True):
        box = crop.box(height, width, each)
        expected = None
        for part, ratio in zip(each[:10], each[10:20], strict=True):
            w, h = round(math.sqrt(height * width * part * ratio)), round(math.sqrt(height * width * part / ratio))
            if 0 < w <= width and 0 < h <= height:
                top, left = int(each[20] * (height - h + 1)), int(each[21] * (width - w + 1))
                expected = (top, left, h, w)
                break
        if expected is None:
            fallbacks += 1
            w, h = (round(40 * 3.0), 40) if width > height else (40, round(40 / 0.5))
            expected = ((height - h) // 2, (width - w) // 2, h, w)
        assert box == expected
    assert 0 < fallbacks < 200


@pytest.mark.parametrize(
    ("size", "box"),
    [((375, 500), (23, 86, 328, 328)), ((500, 375), (86, 23, 328, 328)), ((256, 256), (16, 16, 224, 224))],
)
def test_the_middle_is_cut_out_as_where_models_are_evaluated(size, box):
    assert CenterResizedCrop(224, part=224 / 256).box(*size, ()) == box


def test_the_middle_has_the_form_of_what_comes_out():
    assert CenterResizedCrop((10, 20)).box(100, 100, ()) == (25, 0, 50, 100)
    assert CenterResizedCrop((20, 10)).box(100, 100, ()) == (0, 25, 100, 50)
    assert CenterResizedCrop((10, 1000)).box(3, 50, ()) == (1, 0, 1, 50)
    with pytest.raises(WindowError, match=r"a part of 1\.5. Allowed: above 0 to 1"):
        CenterResizedCrop(10, part=1.5)


@pytest.mark.parametrize("crop", [CenterCrop(30), RandomCrop(30)])
def test_an_image_that_is_smaller_than_its_crop_is_refused_when_it_comes(crop):
    feature = Image((None, None, 3), codec="png")
    assert crop.output(feature) == ((30, 30, 3), np.dtype("uint8"))
    blobs = [make_codec(feature).encode(image) for image in (waves(1, 40, 40, 3)[0], waves(1, 40, 29, 3)[0])]
    with pytest.raises(WindowError, match=r"to 30x30 of images of 40x29\. Use a smaller size, or Resize"):
        decoded(crop, feature, blobs)


def test_a_decoder_of_images_of_any_size_has_one_draw_a_window():
    with pytest.raises(WindowError, match="as a decoder: it has one draw a window"):
        RandomCrop(30, per_step=True).output(Image((None, None, 3)))


FILTERS = ["bicubic", "lanczos", "tf_bicubic", "tf_lanczos3"]
SIZES = [((24, 40), (24, 40)), ((24, 40), (11, 13)), ((24, 40), (60, 50)), ((24, 40), (12, 80)), ((31, 17), (62, 5))]


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
@pytest.mark.parametrize(
    "how",
    [{"antialias": False}, {}, *({"interpolation": name} for name in ("area", "nearest", "tf_bicubic", "tf_lanczos3"))],
)
@pytest.mark.parametrize(("old", "new"), SIZES[1:4])
def test_other_dtypes_are_resized_as_bytes_are(dtype, how, old, new):
    values = smooth(2, *old, 3)
    as_bytes = Resize(new, **how)(values.copy(), draws(2))
    result = Resize(new, **how)(values.astype(dtype), draws(2))
    assert result.dtype == dtype
    # bytes are rounded, and uint16 as well
    assert levels_apart(result, as_bytes) <= {np.uint16: 1.0, np.float16: 0.8}.get(dtype, 0.7)


@pytest.mark.parametrize("interpolation", ["linear", "area", "nearest", *FILTERS])
@pytest.mark.parametrize("value", [0, 1, 137, 255])
def test_a_plain_image_stays_plain(interpolation, value):
    plain = np.full((1, 37, 41, 3), value, np.uint8)
    for size in (5, 37, 90):
        assert (Resize(size, interpolation)(plain, draws(1)) == value).all()


@pytest.mark.parametrize("interpolation", FILTERS)
def test_a_filter_makes_of_one_pixel_what_it_is(interpolation):
    image = np.array([[[[10, 20, 30]]]], np.uint8)
    assert (Resize((3, 5), interpolation)(image, draws(1)) == [10, 20, 30]).all()


@pytest.mark.parametrize("interpolation", ["bicubic", "lanczos"])
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("old", "new"), [*SIZES, ((3, 90), (24, 24)), ((1, 7), (9, 30))])
@pytest.mark.parametrize("edges", [False, True])
def test_filters_are_pillows_to_the_bit(interpolation, channels, old, new, edges):
    pillow = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(0).integers(0, 256, (3, *old, channels), dtype=np.uint8)
    noise = noise // 128 * 255 if edges else noise
    how = getattr(pillow.Resampling, interpolation.upper())
    result = Resize(new, interpolation)(noise.copy(), draws(3))
    for image, resized in zip(noise, result, strict=True):
        for channel in range(channels):
            plane = pillow.fromarray(image[..., channel])
            # columns first: Pillow 13 takes the rows first of some sizes
            expected = plane.resize((new[1], old[0]), how).resize(new[::-1], how)
            np.testing.assert_array_equal(resized[..., channel], np.asarray(expected))


@pytest.mark.parametrize("interpolation", ["tf_bicubic", "tf_lanczos3"])
@pytest.mark.parametrize("number", range(5))
def test_filters_are_tensorflows_within_a_level(interpolation, number):
    stored = np.load(Path(__file__).parents[1] / "golden" / "tf_resize.npz")
    image, expected = stored[f"image_{number}"], stored[f"{interpolation}_{number}"]
    result = Resize(expected.shape[:2], interpolation)(image[None].copy(), draws(1))[0]
    assert levels_apart(result, expected) <= 1
    assert (result != expected).mean() < 0.001


@pytest.mark.parametrize("interpolation", FILTERS)
def test_filters_of_crops_flips_and_decoders_are_those_of_the_parts(interpolation):
    pytest.importorskip("imagecodecs")
    noise = np.random.default_rng(0).integers(0, 256, (4, 30, 26, 3), dtype=np.uint8)
    crop = RandomResizedCrop((14, 33), interpolation)
    boxes = crop.boxes(30, 26, draws(4), 1)[:, 0]
    for image, (top, left, height, width), result in zip(noise, boxes, crop(noise.copy(), draws(4)), strict=True):
        part = np.ascontiguousarray(image[None, top : top + height, left : left + width])
        np.testing.assert_array_equal(Resize((14, 33), interpolation)(part, draws(1))[0], result)
    resized = crop.cut(noise, boxes, np.full(4, 3, np.uint8))
    np.testing.assert_array_equal(resized, crop(noise.copy(), draws(4))[:, ::-1, ::-1])
    feature = Image((30, 26, 3), codec="png")
    blobs = [make_codec(feature).encode(image) for image in noise]
    decoder = Resize((12, 40), interpolation)
    np.testing.assert_array_equal(decoded(decoder, feature, blobs), decoder(noise.copy(), draws(4)))
    with pytest.raises(WindowError, match="antialias=False"):
        Resize(8, interpolation, antialias=False)


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
