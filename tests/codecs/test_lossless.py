"""Zstandard rows: bit for bit, and no size believed that the frame cannot hold."""

import struct
import zlib

import numpy as np
import pytest
import zstandard

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, StepError
from stepwell.schema import Array, Bytes, Image, Text
from stepwell.testing import smooth_image


def row(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, np.uint8)


def frame(*blocks: bytes, size: int) -> bytes:
    """Return a single-segment frame with a checksum flag, a stated size and the given blocks."""
    return b"\x28\xb5\x2f\xfd" + bytes([0xE4]) + struct.pack("<Q", size) + b"".join(blocks) + bytes(4)


def block(kind: int, size: int, body: bytes) -> bytes:
    return struct.pack("<I", size << 3 | kind << 1 | 1)[:3] + body


@pytest.mark.parametrize("dtype", ["uint16", "float16", "float32", "float64"])
def test_depth_images_come_back_bit_for_bit_with_nan_and_infinities(dtype: str) -> None:
    feature = Image((48, 64), dtype, codec="zstd")
    depth = smooth_image(feature, seed=1)
    if depth.dtype.kind == "f":
        depth[0, :4] = np.nan, np.inf, -np.inf, -0.0
    codec, out = make_codec(feature), np.empty_like(depth)
    blob = row(codec.encode(depth))
    codec.decode_into(blob, out)
    assert out.tobytes() == depth.tobytes()
    assert codec.decode(blob).tobytes() == depth.tobytes()


def test_higher_level_makes_smaller_rows() -> None:
    text = " ".join(str(n * n) for n in range(3000))
    sizes = [len(make_codec(Text(codec="zstd", level=level)).encode(text)) for level in (1, 19)]
    assert sizes[1] < sizes[0] < len(text)


def test_rows_are_plain_zstandard_frames() -> None:
    assert zstandard.ZstdDecompressor().decompress(make_codec(Text(codec="zstd")).encode("a step")) == b"a step"


@pytest.mark.parametrize("size", [1 << 20, 1 << 40, (1 << 64) - 3])
def test_stated_size_that_the_blocks_cannot_hold_is_refused_before_it_is_allocated(size: int) -> None:
    with pytest.raises(DecodeError, match=f"states {size} bytes, its blocks hold 5"):
        make_codec(Bytes(codec="zstd")).decode(row(frame(block(0, 5, b"hello"), size=size)))


def test_stated_size_of_another_shape_is_refused_before_it_is_allocated() -> None:
    blob = make_codec(Array((1000,), "float64", codec="zstd")).encode(np.zeros(1000))
    out = np.full(10, 7.0)
    with pytest.raises(DecodeError, match=r"8000 bytes.*has 80"):
        make_codec(Array((10,), "float64", codec="zstd")).decode_into(row(blob), out)
    assert (out == 7).all()


def test_ragged_row_that_is_no_whole_number_of_entries_is_refused() -> None:
    blob = make_codec(Bytes(codec="zstd")).encode(bytes(13))
    with pytest.raises(DecodeError, match=r"13 bytes.*multiple of the 12"):
        make_codec(Array((None, 3), "float32", codec="zstd")).decode(row(blob))


@pytest.mark.parametrize(
    ("blob", "words"),
    [
        (b"", "zstd row of 0 bytes"),
        (b"not a frame at all", "zstd row of 18 bytes"),
        (b"\x50\x2a\x4d\x18" + struct.pack("<I", 8) + bytes(8), "not a Zstandard frame"),
        (frame(block(3, 5, b"hello"), size=5), "unknown kind"),
        (zstandard.ZstdCompressor(write_checksum=False).compress(b"hello"), "with a checksum"),
        (zstandard.ZstdCompressor(write_checksum=True).compress(b"hello") + b"!", "followed by other bytes"),
        (zstandard.ZstdCompressor(write_checksum=True).compress(b"hello")[:-1], "cut off"),
        (zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(b"hello"), "states"),
        (frame(block(0, 5, b"hello"), size=5), "25 bytes of Zstandard"),
        (frame(block(0, 5, b"hello"), size=0), "25 bytes of Zstandard"),
    ],
)
def test_what_is_no_whole_frame_with_size_and_checksum_is_refused(blob: bytes, words: str) -> None:
    with pytest.raises(DecodeError, match=words):
        make_codec(Bytes(codec="zstd")).decode(row(blob))


def test_every_flipped_bit_is_refused_or_changes_nothing() -> None:
    codec, value = make_codec(Array((None,), "uint16", codec="zstd")), np.arange(40, dtype="uint16")
    blob = row(codec.encode(value))
    num_refused = 0
    for bit in range(8 * blob.size):
        corrupt = blob.copy()
        corrupt[bit // 8] ^= 1 << bit % 8
        try:
            assert codec.decode(corrupt).tobytes() == value.tobytes()
        except DecodeError:
            num_refused += 1
    assert num_refused > 0.95 * 8 * blob.size, "all but the unused bits of headers"


def test_text_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(StepError, match="surrogate"):
        make_codec(Text(codec="zstd")).encode("\udfff")


def sealed(size: int, body: bytes) -> np.ndarray:
    content = struct.pack("<Q", size) + body
    return row(struct.pack("<I", zlib.crc32(content)) + content)


def test_higher_level_makes_smaller_rows_of_lz4() -> None:
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
