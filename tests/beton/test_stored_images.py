import os
from pathlib import Path

import numpy as np
import pytest

from stepwell.beton.stored_images import (
    BetonImageCodec,
    BetonImages,
    beton_image_feature,
    make_image_references,
    raw_row,
)
from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, EncodeError, SchemaError, StepError
from stepwell.references.file_codec import noting_states
from stepwell.references.span_files import noted_states
from stepwell.schema import Array, Image
from stepwell.testing import CodecConformance

"""Images of .beton files, by reference: plain or JPEG, as the reference says."""


pytest.importorskip("simplejpeg")

ROW = np.dtype([("mode", "u1"), ("width", "<u2"), ("height", "<u2")])
ANY = Image((None, None, 3), codec="jpeg-or-raw")


@pytest.fixture
def kept(tmp_path):
    """Return a path, references to a plain image of 6x9 and to a JPEG file of 16x20, and both as arrays."""
    rng = np.random.default_rng(0)
    plain, source = rng.integers(0, 256, (6, 9, 3), dtype=np.uint8), rng.integers(0, 256, (16, 20, 3), dtype=np.uint8)
    jpeg = make_codec(Image((16, 20, 3), codec="jpeg"))
    data = jpeg.encode(source)
    path = tmp_path / "a.beton"
    path.write_bytes(b"head!" + plain.tobytes() + data)
    rows = np.array([(1, 9, 6), (0, 20, 16)], ROW)
    offsets, sizes = np.array([5, 5 + plain.nbytes]), np.array([plain.nbytes, len(data)])
    decoded = jpeg.decode(np.frombuffer(data, np.uint8))
    return str(path), make_image_references(0, rows, offsets, sizes), [plain, decoded]


def test_images_are_read_where_they_lie(kept):
    path, references, images = kept
    codec = make_codec(beton_image_feature(ANY, [path]))
    for blob, image in zip(references, images, strict=True):
        assert codec.image_size(blob) == image.shape[:2]
        assert np.array_equal(codec.decode(blob), image)
        out = np.empty_like(image)
        codec.decode_into(blob, out)
        assert np.array_equal(out, image)
        assert np.array_equal(codec.decode_crop(blob, (1, 2, 4, 5), (4, 5)), image[1:5, 2:7])


def test_a_crop_is_memory_of_its_own(kept):
    path, references, images = kept
    codec = make_codec(beton_image_feature(ANY, [path]))
    first, second = (codec.decode_crop(references[0], (top, 0, 2, 9), (2, 9)) for top in (0, 3))
    assert np.array_equal(first, images[0][:2])
    assert np.array_equal(second, images[0][3:5])


def test_what_is_embedded_is_the_same(kept):
    path, references, images = kept
    codec = make_codec(beton_image_feature(ANY, [path]))
    own = codec.embedded()
    assert own == ANY
    rows = list(codec.embed(list(references)).rows(own))
    assert all(np.array_equal(make_codec(own).decode(np.frombuffer(row, np.uint8)), image)
               for row, image in zip(rows, images, strict=True))  # fmt: skip


@pytest.mark.parametrize("shape", [(None, None, 3), (6, 9, 3)])
def test_plain_images_alone_become_a_plain_column(kept, shape):
    path, references, images = kept
    feature = Image(shape)
    codec = make_codec(beton_image_feature(feature, [path]))
    assert codec.embedded() == feature
    (row,) = codec.embed([references[0]]).rows(feature)
    assert np.array_equal(make_codec(feature).decode(np.frombuffer(row, np.uint8)), images[0])
    with pytest.raises(SchemaError, match="JPEG file is no row"):
        list(codec.embed([references[1]]).rows(feature))
    with pytest.raises(DecodeError, match="no plain image"):
        codec.decode(references[1])


def test_rows_say_how_large_they_are(kept):
    path, references, _ = kept
    images = BetonImages([path], references)
    size = images.nbytes
    assert (images.num_rows, repr(images)) == (2, "<BetonImages 2 rows>")
    assert size == sum(len(row) for row in images.rows(ANY)) - 5
    assert BetonImageCodec.bytes_in_files(references.reshape(-1)) == size
    assert BetonImageCodec.bytes_in_files(references[:0].reshape(-1)) == 0


def test_references_are_given_as_they_are_to_their_own_files_only(kept, tmp_path):
    path, references, _ = kept
    images = BetonImages([path], references)
    assert list(images.rows(beton_image_feature(ANY, [path]))) == [row.tobytes() for row in references]
    with pytest.raises(SchemaError, match="not the files of the feature"):
        images.rows(beton_image_feature(ANY, [f"{tmp_path}/b.beton"]))
    with pytest.raises(SchemaError, match="jpeg-or-raw or raw"):
        images.rows(Image((None, None, 3), codec="png"))


def test_images_of_a_file_that_was_replaced_since_are_refused_read_or_embedded(kept):
    path, references, images = kept
    status = Path(path).stat()
    states = noted_states([(status.st_size, status.st_mtime_ns)])
    feature = noting_states(beton_image_feature(ANY, [path]), states)
    assert np.array_equal(make_codec(feature).decode(references[0]), images[0])
    codec = make_codec(feature)
    taken = codec.embed(list(references))
    os.utime(path, ns=(0, status.st_mtime_ns + 1))
    for read in (
        lambda: codec.decode(references[0]),
        lambda: codec.image_size(references[1]),
        lambda: list(taken.rows(ANY)),
    ):
        with pytest.raises(DecodeError, match=r"a\.beton: the file is another one than when references"):
            read()
    # references alone need no file
    assert len(list(taken.rows(feature))) == 2


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_row_that_is_no_reference_is_refused(kept, size):
    codec = make_codec(beton_image_feature(ANY, [kept[0]]))
    for use in (codec.decode, lambda blob: codec.embed([blob])):
        with pytest.raises(DecodeError, match="A reference"):
            use(np.zeros(size, np.uint8))


def test_a_reference_to_nothing_is_refused(kept):
    codec = make_codec(beton_image_feature(ANY, [kept[0]]))
    rows = np.array([(1, 0, 6), (1, 9, 6), (0, 9, 6)], ROW)
    for blob in make_image_references(0, rows, np.array([5, 1 << 40, 1 << 40]), np.array([1, 1, 10])):
        with pytest.raises(DecodeError):
            codec.decode(blob)
    with pytest.raises(DecodeError, match="a span in file 7"):
        codec.decode(make_image_references(7, rows[1:2], np.array([5]), np.array([1]))[0])


def test_bytes_that_are_no_jpeg_file_are_told_with_their_place(kept):
    codec = make_codec(beton_image_feature(ANY, [kept[0]]))
    (blob,) = make_image_references(0, np.array([(0, 9, 6)], ROW), np.array([5]), np.array([20]))
    for use in (codec.decode, codec.image_size):
        with pytest.raises(DecodeError, match=r"a\.beton, byte 5"):
            use(blob)


def test_an_image_of_another_size_is_refused(kept):
    path, references, _ = kept
    fixed = make_codec(beton_image_feature(Image((6, 8, 3), codec="jpeg-or-raw"), [path]))
    for blob in references:
        with pytest.raises(DecodeError):
            fixed.decode(blob)
    with pytest.raises(DecodeError, match="an image of 6x9"):
        make_codec(beton_image_feature(ANY, [path])).decode_into(references[0], np.empty((6, 8, 3), np.uint8))


def test_nothing_can_be_added(kept):
    codec = make_codec(beton_image_feature(ANY, [kept[0]]))
    with pytest.raises(EncodeError, match="make_image_references"):
        codec.encode(np.zeros((2, 2, 3), np.uint8))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"root": ""},
        {"root": "", "files": ""},
        {"root": 3, "files": "a"},
        {"root": "", "files": "a", "format": "png"},
        {"root": "", "files": "a", "x": 1},
    ],
)
def test_options_that_are_none_are_refused(options):
    with pytest.raises(SchemaError):
        make_codec(Image((None, None, 3), codec="beton-image", **options))


"""JPEG files and plain pixels in one column."""


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


def test_an_image_of_another_size_is_no_row_of_a_column_of_one_size(image):
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
