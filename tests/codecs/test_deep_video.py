"""Video of uint16: samples of 12 bits, without loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("av")

import stepwell
from stepwell.codecs import make_codec
from stepwell.codecs.video_decoding import DEEP, deep_frame
from stepwell.schema import Video


def encoded(feature: stepwell.Feature, images: Any) -> list[np.ndarray]:
    """Return the rows of some images."""
    encoder = make_codec(feature).encoder()
    rows = [row for image in images for row in encoder.put(image)] + encoder.end()
    encoder.close()
    return [np.frombuffer(row, np.uint8) for row in rows]


@settings(max_examples=12, deadline=None)
@given(
    height=st.integers(1, 40),
    width=st.integers(1, 70),
    channels=st.sampled_from([(), (1,)]),
    gop=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_every_row_comes_back_bit_by_bit(
    height: int, width: int, channels: tuple[int, ...], gop: int, seed: int
) -> None:
    shape = (height, width, *channels)
    images = np.random.default_rng(seed).integers(0, 4096, (6, *shape)).astype(np.uint16)
    feature = Video(shape, "uint16", gop=gop)
    rows = encoded(feature, images)
    codec: Any = make_codec(feature)
    for first in range(0, len(rows), gop):
        run = rows[first : first + gop]
        out = np.zeros((len(run), *shape), np.uint16)
        codec.decode_run(run, range(len(run)), list(out))
        np.testing.assert_array_equal(out, images[first : first + gop])


def test_a_crf_makes_it_lossy_and_smaller() -> None:
    images = (2000 + np.random.default_rng(0).normal(0, 20, (4, 64, 96))).astype(np.uint16)
    sizes = [sum(map(len, encoded(Video((64, 96), "uint16", crf=crf), images))) for crf in (None, 20)]
    assert sizes[1] < sizes[0] / 2


def test_a_smaller_size_keeps_what_is_even() -> None:
    feature = Video((64, 96), "uint16")
    rows = encoded(feature, np.full((1, 64, 96), 3210, np.uint16))
    out = np.zeros((32, 48), np.uint16)
    codec: Any = make_codec(feature)
    codec.decode_run(rows, [0], [out], (32, 48))
    assert (out == 3210).all()


def test_more_than_twelve_bits_are_refused(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"depth": Video((8, 8), "uint16")}, fps=10)
    with pytest.raises(stepwell.EncodeError, match="4095"), store.writer() as writer:
        writer.add_episode({"depth": np.full((2, 8, 8), 4096, np.uint16)})


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [((8, 8, 3), "uint16", {}), ((8, 8), "float32", {}), ((8, 8), "uint16", {"encoder": "h264"})],
)
def test_what_it_cannot_hold_is_refused(shape: Any, dtype: str, options: Any) -> None:
    with pytest.raises(stepwell.SchemaError):
        make_codec(Video(shape, dtype, **options))


def test_the_repr_makes_the_feature_again() -> None:
    feature = Video((8, 6, 1), "uint16", gop=5)
    assert eval(repr(feature), {"Video": Video}) == feature


def test_lines_of_a_frame_are_not_skewed_by_its_padding() -> None:
    pixels = np.random.default_rng(0).integers(0, 4096, (5, 7)).astype(np.uint16)
    frame = deep_frame(pixels)
    assert frame.format.name == DEEP
    lines = np.frombuffer(frame.planes[0], "<u2").reshape(5, -1)
    np.testing.assert_array_equal(lines[:, :7], pixels)
