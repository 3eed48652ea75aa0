"""Interlaced PNG files: seven passes, each an image of its own."""

import imagecodecs
import numpy as np
import pytest

from stepwell.codecs.png import decode_interlaced
from stepwell.errors import DecodeError
from stepwell.testing import png_file


def decoded(data):
    return decode_interlaced(np.frombuffer(data, np.uint8), imagecodecs.png_decode)


@pytest.mark.parametrize("color", [0, 2, 4, 6])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("sides", [(1, 1), (2, 9), (7, 5), (16, 24), (33, 1)])
def test_the_pixels_are_those_of_the_file_in_order(color, bits, sides):
    planes = {0: 1, 2: 3, 4: 2, 6: 4}[color]
    pixels = np.random.default_rng(color).integers(0, 1 << bits, (*sides, planes))
    found = decoded(png_file(pixels, color, bits, interlaced=True))
    np.testing.assert_array_equal(found.reshape(pixels.shape), pixels)


def test_nothing_is_printed(capfd):
    decoded(png_file(np.zeros((9, 9), np.uint8), 0, interlaced=True))
    assert capfd.readouterr() == ("", "")


def test_every_flipped_bit_and_every_cut_is_refused_or_changes_nothing():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 4), np.uint8)
    data = png_file(pixels, 0, interlaced=True)
    end = len(data) - 12
    for bit in range(8 * 33, 8 * end):
        corrupt = bytearray(data)
        corrupt[bit // 8] ^= 1 << bit % 8
        try:
            np.testing.assert_array_equal(decoded(bytes(corrupt)), pixels)
        except DecodeError:
            continue
    for size in range(33, end):
        with pytest.raises(DecodeError, match=r"breaks off|scan has|checksum"):
            decoded(data[:size])
