"""PNG rows: lossless files that every viewer opens, and a header that must be the feature's."""

import gc
import io
import struct
import sys
import tracemalloc
import zlib

import imagecodecs
import numpy as np
import pytest
from kinds_of_images import image_files, png_file

from stepwell.codecs import make_codec
from stepwell.codecs.png import decode_any_png, decode_interlaced, with_channels
from stepwell.errors import DecodeError
from stepwell.schema import Image
from stepwell.testing import random_array, smooth_image

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


UINT8, UINT16 = np.dtype("uint8"), np.dtype("uint16")


def decoded(data, channels, dtype=UINT8):
    return decode_any_png(np.frombuffer(data, np.uint8), channels, dtype)


def noise(*shape, dtype="uint8"):
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_alpha_is_kept_where_the_feature_has_it_and_left_out_where_not(dtype):
    pixels = noise(5, 6, 4, dtype=dtype)
    bits = 8 * pixels.dtype.itemsize
    np.testing.assert_array_equal(decoded(png_file(pixels, 6, bits), 4, pixels.dtype), pixels)
    np.testing.assert_array_equal(decoded(png_file(pixels, 6, bits), 3, pixels.dtype), pixels[..., :3])
    grey = np.dstack([pixels[..., 0]] * 3 + [pixels[..., 1]])
    np.testing.assert_array_equal(decoded(png_file(pixels[..., :2], 4, bits), 4, pixels.dtype), grey)


@pytest.mark.parametrize(("samples", "color"), [((5, 6), 0), ((5, 6, 3), 2)])
def test_what_has_no_alpha_is_opaque(samples, color):
    pixels = decoded(png_file(noise(*samples), color), 4, UINT16)
    assert (pixels[..., 3] == 65535).all()
    np.testing.assert_array_equal(pixels[..., :3] // 257, np.broadcast_to(noise(*samples).reshape(5, 6, -1), (5, 6, 3)))


def test_the_colour_that_stands_for_none_is_transparent():
    grey = np.array([[1, 2], [2, 3]], np.uint8)
    assert decoded(png_file(grey, 0, transparent=b"\0\2"), 4)[..., 3].tolist() == [[255, 0], [0, 255]]


def test_depth_is_cut_to_the_higher_bits_and_stretched_to_the_whole_range():
    deep = noise(5, 6, dtype="uint16")
    np.testing.assert_array_equal(decoded(png_file(deep, 0, 16), 1)[..., 0], deep >> 8)
    assert with_channels(np.array([[0, 1, 255]], np.uint8), 1, UINT16).reshape(-1).tolist() == [0, 257, 65535]


def test_grey_of_colours_is_libpngs_mean():
    colors = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]]], np.uint8)
    assert with_channels(colors, 1, UINT8).reshape(-1).tolist() == [76, 149, 29, 9]
    assert with_channels(colors.astype(np.uint16) * 257, 1, UINT16).reshape(-1).tolist() == [19594, 38467, 7474, 2313]


def test_grey_of_what_is_grey_in_all_colours_is_itself():
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    np.testing.assert_array_equal(with_channels(np.repeat(grey[..., None], 3, axis=2), 1, UINT8)[..., 0], grey)


@pytest.mark.parametrize("name", ["png palette 4", "png grey", "png rgb transparent", "png rgb interlaced"])
def test_damaged_files_leave_the_counts_of_what_all_share_alone(name):
    data = image_files()[name].data
    gc.collect()  # objects of other tests would release references meanwhile
    counts = [sys.getrefcount(None)]
    for size in range(len(data) - 80, len(data) - 30):
        with pytest.raises(DecodeError):
            decoded(data[:size], 3)
    counts.append(sys.getrefcount(None))
    assert counts[1] >= counts[0] - 5


def test_bytes_that_look_like_a_colour_without_colour_change_nothing():
    pixels = np.frombuffer(b"tRNS" * 9, np.uint8).reshape(6, 6)
    chunk = struct.pack(">I4s", 12, b"zzZz") + b"....tRNS...."
    chunk += struct.pack(">I", zlib.crc32(chunk[4:]))
    data = png_file(pixels, 0)
    assert (decoded(data[:33] + chunk + data[33:], 3)[..., 1] == pixels).all()


@pytest.mark.parametrize("height", [1, 2, 5, 9])
@pytest.mark.parametrize("width", [1, 3, 8, 17])
def test_files_of_every_kind_and_any_side_show_their_colours(height, width):
    for name, kind in image_files(height, width).items():
        if name.startswith("png"):
            np.testing.assert_array_equal(decoded(kind.data, 3), kind.colors, err_msg=name)


def decoded_of_interlaced(data):
    return decode_interlaced(np.frombuffer(data, np.uint8), imagecodecs.png_decode)


@pytest.mark.parametrize("color", [0, 2, 4, 6])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("sides", [(1, 1), (2, 9), (7, 5), (16, 24), (33, 1)])
def test_the_pixels_are_those_of_the_file_in_order(color, bits, sides):
    planes = {0: 1, 2: 3, 4: 2, 6: 4}[color]
    pixels = np.random.default_rng(color).integers(0, 1 << bits, (*sides, planes))
    found = decoded_of_interlaced(png_file(pixels, color, bits, interlaced=True))
    np.testing.assert_array_equal(found.reshape(pixels.shape), pixels)


def test_nothing_is_printed(capfd):
    decoded_of_interlaced(png_file(np.zeros((9, 9), np.uint8), 0, interlaced=True))
    assert capfd.readouterr() == ("", "")


def test_every_flipped_bit_and_every_cut_is_refused_or_changes_nothing():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4), np.uint8)
    data = png_file(pixels, 0, interlaced=True)
    end = len(data) - 12
    for bit in range(8 * 33, 8 * end):
        corrupt = bytearray(data)
        corrupt[bit // 8] ^= 1 << bit % 8
        try:
            np.testing.assert_array_equal(decoded_of_interlaced(bytes(corrupt)), pixels)
        except DecodeError:
            continue
    for size in range(33, end):
        with pytest.raises(DecodeError, match=r"breaks off|scan has|checksum"):
            decoded_of_interlaced(data[:size])
