"""JPEG rows: the pixels that every decoder gives, and nothing written for another image's header."""

import io
import struct

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError
from stepwell.schema import Image
from stepwell.testing import smooth_image

Pixels = tuple[int, ...]


def row(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, np.uint8)


def psnr_db(a: np.ndarray, b: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / max(np.mean((a.astype(float) - b) ** 2), 1e-9)))


def with_size(blob: bytes, height: int, width: int) -> np.ndarray:
    """Return the JPEG with another size in its header."""
    start = blob.index(b"\xff\xc0") + 5
    return row(blob[:start] + struct.pack(">HH", height, width) + blob[start + 4 :])


@settings(max_examples=60)
@given(
    sides=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.sampled_from([(), (1,), (3,)]),
    quality=st.integers(60, 100),
    seed=st.integers(0, 100),
)
def test_image_of_any_size_comes_back_close_and_equal_to_simplejpegs_own_decoding(
    sides: Pixels, channels: Pixels, quality: int, seed: int
) -> None:
    feature = Image((*sides, *channels), codec="jpeg", quality=quality)
    codec, image = make_codec(feature), smooth_image(feature, seed)
    blob = codec.encode(image)
    decoded = codec.decode(row(blob))
    theirs = simplejpeg.decode_jpeg(blob, "RGB" if channels == (3,) else "GRAY")
    np.testing.assert_array_equal(decoded, theirs.reshape(decoded.shape))
    assert psnr_db(decoded, image) > 30


def test_pillow_reads_the_rows_as_files_of_the_same_pixels() -> None:
    pillow = pytest.importorskip("PIL.Image")
    feature = Image((37, 53, 3), codec="jpeg", quality=90, subsampling="444")
    codec = make_codec(feature)
    blob = codec.encode(smooth_image(feature, seed=0))
    theirs = np.asarray(pillow.open(io.BytesIO(blob)).convert("RGB"))
    assert np.abs(theirs.astype(int) - codec.decode(row(blob))).max() <= 2, "two builds of the same decoder"


def test_higher_quality_is_closer_and_bigger() -> None:
    rows = {}
    for quality in (30, 95):
        feature = Image((48, 48, 3), codec="jpeg", quality=quality)
        image = smooth_image(feature, seed=0)
        codec = make_codec(feature)
        blob = codec.encode(image)
        rows[quality] = len(blob), psnr_db(codec.decode(row(blob)), image)
    assert rows[95] > rows[30]
    assert rows[95][1] > rows[30][1]


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411", "gray"])
def test_subsampling_is_what_the_option_says(subsampling: str) -> None:
    feature = Image((32, 48, 3), codec="jpeg", subsampling=subsampling)
    blob = make_codec(feature).encode(smooth_image(feature, seed=0))
    assert simplejpeg.decode_jpeg_header(blob)[3].lower() == subsampling


@pytest.mark.parametrize("size", [(32, 47), (33, 47), (32, 49), (48, 32), (65000, 65000), (1, 1)])
def test_row_of_another_size_is_refused_and_leaves_out_alone(size: Pixels) -> None:
    feature = Image((32, 48, 3), codec="jpeg")
    codec = make_codec(feature)
    blob = with_size(codec.encode(smooth_image(feature, seed=0)), *size)
    out = np.full((32, 48, 3), 7, np.uint8)
    with pytest.raises(DecodeError, match=f"{size[0]}x{size[1]}.*where the feature is 32x48"):
        codec.decode_into(blob, out)
    assert (out == 7).all()


def test_row_that_breaks_off_raises_at_every_length() -> None:
    feature = Image((16, 16, 3), codec="jpeg")
    codec = make_codec(feature)
    blob = row(codec.encode(smooth_image(feature, seed=0)))
    for size in range(blob.size):
        with pytest.raises(DecodeError):
            codec.decode(blob[:size])


def test_cmyk_row_is_refused() -> None:
    blob = simplejpeg.encode_jpeg(np.zeros((16, 16, 4), np.uint8), colorspace="CMYK")
    with pytest.raises(DecodeError, match=r"YCCK|CMYK"):
        make_codec(Image((16, 16, 3), codec="jpeg")).decode(row(blob))


def test_grey_feature_reads_a_colour_row_as_its_brightness() -> None:
    blob = simplejpeg.encode_jpeg(np.full((16, 16, 3), 90, np.uint8))
    grey = make_codec(Image((16, 16), codec="jpeg")).decode(row(blob))
    assert np.abs(grey.astype(int) - 90).max() <= 1
