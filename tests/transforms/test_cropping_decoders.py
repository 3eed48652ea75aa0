"""Crops and resizing as decoders: the same as transforms of whole images, with less decoded."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Field, Loader, create, random
from stepwell.codecs import make_codec
from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.schema import Array, Image
from stepwell.transforms import CenterCrop, CenterResizedCrop, RandomCrop, RandomResizedCrop, Resize

EXACT = [
    RandomCrop((13, 20)),
    CenterCrop(16),
    CenterResizedCrop(16, part=0.9),
    Resize((20, 44), antialias=False),
    Resize(16),
    RandomResizedCrop(30),
]


def draws(number):
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
    drawn = decoder.draw(feature, draws(len(blobs)))
    out = np.empty((len(blobs), *shape), dtype)
    for i, blob in enumerate(blobs):
        decoder.decode(codec, np.frombuffer(blob, np.uint8), out[i, ...], None if drawn is None else drawn[i])
    return out


def converted(decoder, feature, rows):
    shape, dtype = decoder.output(feature)
    drawn = decoder.draw(feature, draws(len(rows)))
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
    expected = decoder(rows.copy(), draws(6))
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
            assert np.array_equal(decoded(decoder, feature, blobs), decoder(rows.copy(), draws(3))), (decoder, size)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_rows_of_other_dtypes_are_converted(dtype):
    feature = Image((24, 32, 3), dtype=np.dtype(dtype).name, codec="raw") if dtype == np.uint8 else None
    rows = waves(6, 24, 32, 3).astype(dtype)
    for decoder in EXACT:
        drawn = decoder.draw(Image((24, 32, 3)), draws(6))
        out = np.empty((6, *decoder.output((24, 32, 3), np.dtype(dtype))[0]), dtype)
        for i in range(6):
            decoder.convert(rows[i], out[i], drawn[i] if decoder.is_random else None)
        np.testing.assert_array_equal(out, decoder(rows.copy(), draws(6)))
    assert feature is None or EXACT[0].output(feature) == ((13, 20, 3), np.dtype("uint8"))


@pytest.mark.parametrize("decoder", EXACT, ids=repr)
def test_a_row_is_one_image_however_many_channels_it_has(decoder):
    rows = np.random.default_rng(0).integers(0, 256, (6, 24, 32, 40), dtype=np.uint8)
    result = converted(decoder, Array((24, 32, 40), "uint8"), rows)
    for first in range(0, 40, 4):
        part = np.ascontiguousarray(rows[..., first : first + 4])
        np.testing.assert_array_equal(result[..., first : first + 4], decoder(part, draws(6)))


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
        numbers = cut.numbers(draws(8), 1)[:, 0].tolist()
        boxes = cut.boxes(height, width, draws(8), 1)[:, 0]
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
        alone = decoder(np.stack([row] * 5), draws(5))[i]
        # a box that shrinks much comes from a smaller scale of a JPEG file
        limit = 3 if codec == "jpeg" else 0
        assert np.abs(result[i].astype(float) - alone).mean() <= limit


def test_a_random_resized_crop_of_any_size_is_torchvisions():
    crop = RandomResizedCrop(30, scale=(0.3, 1.0), ratio=(0.5, 3.0))
    numbers = crop.draw(Image((None, None, 3)), draws(300)).tolist()
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
