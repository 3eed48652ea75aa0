"""PNG rows: lossless files that every viewer opens, and a header that must be the feature's."""

import io
import struct
import sys
import tracemalloc
import zlib

import numpy as np
import pytest

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError
from stepwell.schema import Image
from stepwell.testing import image_files, random_array, smooth_image

pytest.importorskip("imagecodecs")


def row(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, np.uint8)


def with_header(blob: bytes, **changes: int) -> np.ndarray:
    """Return the PNG with other values in its header, and a checksum that fits."""
    names = ("width", "height", "bits", "color", "compression", "filter", "interlace")
    values = dict(zip(names, struct.unpack(">IIBBBBB", blob[16:29]), strict=True)) | changes
    header = b"IHDR" + struct.pack(">IIBBBBB", *values.values())
    return row(blob[:12] + header + struct.pack(">I", zlib.crc32(header)) + blob[33:])


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 1), (9, 7, 3), (9, 7, 4), (1, 1), (1, 1, 3)])
@pytest.mark.parametrize("level", [0, 1, 9])
def test_image_comes_back_bit_for_bit(dtype: str, shape: tuple[int, ...], level: int) -> None:
    feature = Image(shape, dtype, codec="png", level=level)
    codec, image = make_codec(feature), random_array(feature, seed=0)
    out = np.zeros_like(image)
    codec.decode_into(row(codec.encode(image)), out)
    np.testing.assert_array_equal(out, image)


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 3), (9, 7, 4)])
def test_pillow_reads_the_rows_as_files_of_the_same_pixels(shape: tuple[int, ...]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    feature = Image(shape, codec="png")
    image = random_array(feature, seed=0)
    theirs = np.asarray(pillow.open(io.BytesIO(make_codec(feature).encode(image))))
    np.testing.assert_array_equal(theirs, image)


def test_higher_level_makes_smaller_rows() -> None:
    image = smooth_image(Image((64, 64)), seed=0) // 16
    sizes = [len(make_codec(Image((64, 64), codec="png", level=level)).encode(image)) for level in (0, 1, 9)]
    assert sizes[0] > sizes[1] > sizes[2]


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 8},
        {"height": 10},
        {"width": 2**31 - 1, "height": 2**31 - 1},
        {"bits": 4},
        {"color": 5},
        {"color": 3},
        {"interlace": 2},
        {"compression": 1},
        {"filter": 64},
    ],
)
def test_header_of_no_such_image_is_refused_and_leaves_out_alone(changes: dict[str, int]) -> None:
    feature = Image((9, 7, 3), "uint16", codec="png")
    codec = make_codec(feature)
    blob = with_header(codec.encode(random_array(feature, seed=0)), **changes)
    out = np.full((9, 7, 3), 7, np.uint16)
    with pytest.raises(DecodeError, match="header is not that of a png 9x7x3 uint16"):
        codec.decode_into(blob, out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    "changes", [{"bits": 8}, {"color": 0}, {"color": 6}, {"color": 3, "bits": 8}, {"interlace": 1}]
)
def test_pixels_that_are_not_those_of_the_header_are_refused_and_leave_out_alone(changes: dict[str, int]) -> None:
    feature = Image((9, 7, 3), "uint16", codec="png")
    codec = make_codec(feature)
    blob = with_header(codec.encode(random_array(feature, seed=0)), **changes)
    out = np.full((9, 7, 3), 7, np.uint16)
    with pytest.raises(DecodeError, match=r"png row( of 4\d\d bytes)?: "):
        codec.decode_into(blob, out)
    assert (out == 7).all()


def test_every_flipped_bit_is_refused_or_changes_nothing() -> None:
    feature = Image((5, 4), codec="png")
    codec, image = make_codec(feature), random_array(feature, seed=0)
    blob = row(codec.encode(image))
    for bit in range(8 * blob.size):
        corrupt = blob.copy()
        corrupt[bit // 8] ^= 1 << bit % 8
        try:
            np.testing.assert_array_equal(codec.decode(corrupt), image)
        except DecodeError:
            continue
        assert bit >= 8 * (blob.size - 16), "only the bytes after the pixels may change unnoticed"


@pytest.mark.parametrize(("channels", "dtype"), [((), "uint8"), ((3,), "uint8"), ((4,), "uint16"), ((1,), "uint16")])
def test_images_of_any_size_come_back_as_those_of_one_size(channels: tuple[int, ...], dtype: str) -> None:
    codec = make_codec(Image((None, None, *channels), dtype, codec="png"))
    for size in ((9, 40), (40, 9), (1, 1)):
        fixed = Image((*size, *channels), dtype, codec="png")
        image = random_array(fixed, seed=0)
        blob = codec.encode(image)
        assert blob == make_codec(fixed).encode(image)
        assert codec.image_size(row(blob)) == make_codec(fixed).image_size(row(blob)) == size
        np.testing.assert_array_equal(codec.decode(row(blob)), image)


PNG_FILES = {name: kind for name, kind in image_files(20, 30).items() if name.startswith("png")}


@pytest.mark.parametrize("shape", [(20, 30, 3), (None, None, 3)])
@pytest.mark.parametrize("name", PNG_FILES)
def test_files_of_every_kind_are_read_as_the_feature_s(shape: tuple[int | None, ...], name: str) -> None:
    codec, kind = make_codec(Image(shape, codec="png")), PNG_FILES[name]
    blob = row(kind.data)
    assert codec.image_size(blob) == (20, 30)
    np.testing.assert_array_equal(codec.decode(blob), kind.colors)
    np.testing.assert_array_equal(codec.decode_crop(blob, (3, 4, 10, 11), (10, 11)), kind.colors[3:13, 4:15])


@pytest.mark.parametrize("shape", [(20, 31, 3), (21, 30, 3)])
@pytest.mark.parametrize("name", PNG_FILES)
def test_files_of_every_kind_are_refused_where_they_are_of_another_size(shape: tuple[int, ...], name: str) -> None:
    out = np.full(shape, 7, np.uint8)
    with pytest.raises(
        DecodeError, match=r"its header is not that of a png 2.x3.x3 uint8 image, but of \d+-bit .*20x30"
    ):
        make_codec(Image(shape, codec="png")).decode_into(row(PNG_FILES[name].data), out)
    assert (out == 7).all()


def test_memory_for_what_a_row_of_another_kind_cannot_hold_is_never_asked_for() -> None:
    codec = make_codec(Image((None, None, 3), codec="png"))
    tracemalloc.start()
    for name in ("png palette 1", "png rgba 16 interlaced", "png grey"):
        with pytest.raises(DecodeError, match="cannot hold"):
            codec.decode(with_header(PNG_FILES[name].data, width=500_000, height=500_000))
        flipped = bytearray(PNG_FILES[name].data)
        flipped[19] ^= 2
        with pytest.raises(DecodeError, match="the checksum of its header is wrong"):
            codec.decode(row(bytes(flipped)))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_memory_for_what_a_row_cannot_hold_is_never_asked_for() -> None:
    codec = make_codec(Image((None, None, 3), codec="png"))
    blob = codec.encode(np.zeros((5, 5, 3), np.uint8))
    tracemalloc.start()
    for size in ({"width": 2**31 - 1, "height": 2**31 - 1}, {"height": 100_000}, {"width": 0}):
        with pytest.raises(DecodeError, match=r"cannot hold|header is not that of"):
            codec.decode(with_header(blob, **size))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    with pytest.raises(DecodeError, match="its header is cut off"):
        codec.image_size(row(blob)[:20])
    flipped = bytearray(blob)
    flipped[19] ^= 2
    with pytest.raises(DecodeError, match="the checksum of its header is wrong"):
        codec.image_size(row(bytes(flipped)))


def test_the_emptiest_image_of_any_size_is_no_lie() -> None:
    codec = make_codec(Image((None, None), codec="png", level=9))
    black = np.zeros((3000, 3000), np.uint8)
    np.testing.assert_array_equal(codec.decode(row(codec.encode(black))), black)


def test_a_damaged_row_keeps_nobody_else_s_memory() -> None:
    codec = make_codec(Image((64, 64, 3), codec="png"))
    blob = bytearray(codec.encode(random_array(Image((64, 64, 3)), seed=0)))
    blob[len(blob) // 2] ^= 1
    out = np.empty((64, 64, 3), np.uint8)
    kept = sys.getrefcount(out)
    with pytest.raises(DecodeError, match="CRC error"):
        codec.decode_into(row(bytes(blob)), out)
    assert sys.getrefcount(out) == kept
