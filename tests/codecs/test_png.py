"""PNG rows: lossless files that every viewer opens, and a header that must be the feature's."""

import io
import struct
import zlib

import numpy as np
import pytest

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError
from stepwell.schema import Image
from stepwell.testing import random_array, smooth_image


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
        {"bits": 8},
        {"color": 0},
        {"color": 6},
        {"color": 3, "bits": 8},
        {"interlace": 1},
        {"compression": 1},
        {"filter": 64},
    ],
)
def test_header_of_another_image_is_refused_and_leaves_out_alone(changes: dict[str, int]) -> None:
    feature = Image((9, 7, 3), "uint16", codec="png")
    codec = make_codec(feature)
    blob = with_header(codec.encode(random_array(feature, seed=0)), **changes)
    out = np.full((9, 7, 3), 7, np.uint16)
    with pytest.raises(DecodeError, match="header is not that of a png 9x7x3 uint16"):
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
