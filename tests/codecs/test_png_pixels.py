"""PNG files of any kind, as a feature's channels and depth."""

import gc
import struct
import sys
import zlib

import numpy as np
import pytest

from stepwell.codecs.png import decode_any_png, with_channels
from stepwell.errors import DecodeError
from stepwell.testing import image_files, png_file

pytest.importorskip("imagecodecs")

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
