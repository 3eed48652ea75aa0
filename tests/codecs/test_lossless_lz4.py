"""LZ4 rows: bit for bit, and no size believed that the row cannot hold."""

import struct
import zlib

import numpy as np
import pytest

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError
from stepwell.schema import Array, Bytes, Text


def row(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, np.uint8)


def sealed(size: int, body: bytes) -> np.ndarray:
    content = struct.pack("<Q", size) + body
    return row(struct.pack("<I", zlib.crc32(content)) + content)


def test_higher_level_makes_smaller_rows() -> None:
    text = " ".join(str(n * n) for n in range(3000))
    sizes = [len(make_codec(Text(codec="lz4", level=level)).encode(text)) for level in (0, 12)]
    assert sizes[1] < sizes[0] < len(text)


@pytest.mark.parametrize("size", [1 << 20, 1 << 40, (1 << 64) - 3])
def test_stated_size_that_the_row_cannot_hold_is_refused_before_it_is_allocated(size: int) -> None:
    with pytest.raises(DecodeError, match=f"states {size} bytes, which it cannot hold"):
        make_codec(Bytes(codec="lz4")).decode(sealed(size, b"hello"))


def test_stated_size_of_another_shape_is_refused_and_leaves_out_alone() -> None:
    blob, out = make_codec(Array(1000, "float64", codec="lz4")).encode(np.zeros(1000)), np.full(10, 7.0)
    with pytest.raises(DecodeError, match=r"8000 bytes.*has 80"):
        make_codec(Array(10, "float64", codec="lz4")).decode_into(row(blob), out)
    assert (out == 7).all()


def test_block_that_holds_another_number_of_bytes_is_refused() -> None:
    whole = make_codec(Bytes(codec="lz4")).encode(b"a step " * 40)
    for size in (279, 281):
        with pytest.raises(DecodeError, match="bytes of LZ4"):
            make_codec(Bytes(codec="lz4")).decode(sealed(size, whole[12:]))


def test_every_flipped_bit_is_refused() -> None:
    codec = make_codec(Array((None,), "uint16", codec="lz4"))
    blob = row(codec.encode(np.arange(40, dtype="uint16")))
    for bit in range(8 * blob.size):
        corrupt = blob.copy()
        corrupt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError):
            codec.decode(corrupt)
