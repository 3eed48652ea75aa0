"""Crops and resizing as decoders: the same as transforms of whole images, with less decoded."""

import numpy as np
import pytest

from stepwell import Field, Loader, create, random
from stepwell.codecs import make_codec
from stepwell.kernels.draws import Draws
from stepwell.schema import Array, Image
from stepwell.transforms import CenterCrop, RandomCrop, RandomResizedCrop, Resize

EXACT = [RandomCrop((13, 20)), CenterCrop(16), Resize((20, 44), antialias=False), Resize(16), RandomResizedCrop(30)]


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


def test_a_box_that_shrinks_much_is_near_the_same_from_a_smaller_scale():
    feature = Image((96, 128, 3), codec="jpeg")
    coder = make_codec(feature)
    blobs = [coder.encode(image) for image in waves(12, 96, 128, 3, stretch=3)]
    rows = np.stack([coder.decode(np.frombuffer(blob, np.uint8)) for blob in blobs])
    for decoder in (Resize((20, 24)), RandomResizedCrop(20, scale=(0.5, 1.0))):
        difference = decoded(decoder, feature, blobs).astype(float) - decoder(rows.copy(), draws(12))
        assert np.abs(difference).mean() < 3


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
