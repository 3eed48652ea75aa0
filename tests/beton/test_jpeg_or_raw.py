"""JPEG files and plain pixels in one column."""

import numpy as np
import pytest

from stepwell.beton.jpeg_or_raw import raw_row
from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.schema import Array, Image
from stepwell.testing import CodecConformance

pytest.importorskip("simplejpeg")


class TestOfOneSize(CodecConformance):
    feature = Image((20, 30, 3), codec="jpeg-or-raw")


class TestOfAnySize(CodecConformance):
    feature = Image((None, None, 3), codec="jpeg-or-raw")


def as_blob(data):
    return np.frombuffer(data, np.uint8)


@pytest.fixture
def image():
    ramp = np.add.outer(np.arange(20) * 4, np.arange(30) * 5)[..., None] + np.array([0, 30, 60])
    return (ramp % 256).astype(np.uint8)


@pytest.mark.parametrize("shape", [(20, 30, 3), (None, None, 3)])
@pytest.mark.parametrize("dct", ["exact", "fast"])
def test_a_jpeg_file_is_decoded_as_by_its_own_codec(image, shape, dct):
    jpeg = make_codec(Image((20, 30, 3), codec="jpeg", dct=dct))
    codec, blob = make_codec(Image(shape, codec="jpeg-or-raw", dct=dct)), as_blob(jpeg.encode(image))
    assert np.array_equal(codec.decode(blob), jpeg.decode(blob))
    assert codec.image_size(blob) == (20, 30)
    box = (3, 4, 8, 12)
    assert np.array_equal(codec.decode_crop(blob, box, (8, 12)), jpeg.decode_crop(blob, box, (8, 12)))


def test_the_fast_transform_is_not_the_exact_one(image):
    noisy = np.random.default_rng(0).integers(0, 256, image.shape, dtype=np.uint8)
    exact, fast = (make_codec(Image((20, 30, 3), codec="jpeg", dct=dct)) for dct in ("exact", "fast"))
    blob = as_blob(exact.encode(noisy))
    assert not np.array_equal(exact.decode(blob), fast.decode(blob))
    assert np.abs(exact.decode(blob).astype(int) - fast.decode(blob)).max() < 16


@pytest.mark.parametrize("shape", [(20, 30, 3), (None, None, 3)])
def test_plain_pixels_come_back(image, shape):
    codec = make_codec(Image(shape, codec="jpeg-or-raw"))
    blob = as_blob(codec.encode(image))
    assert blob.tobytes() == raw_row(image.tobytes(), 20, 30) == b"\0\x14\0\x1e\0" + image.tobytes()
    assert codec.image_size(blob) == (20, 30)
    assert np.array_equal(codec.decode_crop(blob, (3, 4, 8, 12), (8, 12)), image[3:11, 4:16])


@pytest.mark.parametrize(
    "blob", [b"", b"\0", b"\0\x14\0\x1e\0", b"\0\0\0\x1e\0", b"\0\2\0\2\0" + bytes(11), b"\1234567"]
)
def test_a_row_that_is_none_is_refused(blob):
    for shape in ((20, 30, 3), (None, None, 3)):
        with pytest.raises(DecodeError):
            make_codec(Image(shape, codec="jpeg-or-raw")).decode(as_blob(blob))


def test_an_image_of_another_size_is_refused(image):
    blob = as_blob(raw_row(bytes(2 * 2 * 3), 2, 2))
    with pytest.raises(DecodeError, match="an image of 2x2"):
        make_codec(Image((20, 30, 3), codec="jpeg-or-raw")).decode(blob)
    with pytest.raises(DecodeError, match=r"shape \(2, 2, 3\)"):
        make_codec(Image((None, None, 3), codec="jpeg-or-raw")).decode_into(blob, image)


@pytest.mark.parametrize(
    "feature", [Image((4, 4), codec="jpeg-or-raw"), Array((4, 4, 3), "uint8", codec="jpeg-or-raw")]
)
def test_what_is_no_image_of_colours_is_refused(feature):
    with pytest.raises(SchemaError, match="RGB images"):
        make_codec(feature)


def test_a_side_that_a_row_cannot_tell_is_refused():
    codec = make_codec(Image((None, None, 3), codec="jpeg-or-raw"))
    with pytest.raises(StepError, match="65536x1"):
        codec.encode(np.zeros((65536, 1, 3), np.uint8))
