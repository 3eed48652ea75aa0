"""Delta rows: small where little moves, few to decode for one, and none taken for another."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.codecs import make_codec
from stepwell.codecs.delta import DeltaCodec
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Array, Feature, Image, Text

SCREEN = (40, 56, 3)


def moving_screens(num_rows: int) -> np.ndarray:
    """Return screens of noise on which a square moves."""
    screens = np.tile(np.random.default_rng(0).integers(0, 256, SCREEN).astype(np.uint8), (num_rows, 1, 1, 1))
    for number, screen in enumerate(screens):
        screen[8:12, number % 50 : number % 50 + 4] = 255
    return screens


def encoded(feature: Feature, rows: Any) -> list[np.ndarray]:
    encoder = make_codec(feature).encoder()  # type: ignore[attr-defined]
    blobs = [blob for row in rows for blob in encoder.put(row)] + encoder.end()
    return [np.frombuffer(blob, np.uint8) for blob in blobs]


def decoded(codec: DeltaCodec, run: list[np.ndarray], wanted: list[int]) -> list[np.ndarray]:
    outs = [np.empty(codec.feature.fixed_shape, codec.feature.np_dtype) for _ in wanted]
    codec.decode_run(run, wanted, outs)
    return outs


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_rows_on_which_little_moves_take_a_tenth_of_whole_ones(compression: str) -> None:
    screens = moving_screens(64)
    sizes = [
        sum(map(len, encoded(Image(SCREEN, codec="delta", compression=compression, every=every), screens)))
        for every in (1, 64)
    ]
    assert 10 * sizes[1] < sizes[0]


def test_row_is_whole_where_its_difference_would_be_larger() -> None:
    screens = moving_screens(3)
    screens[1] = 7
    blobs = encoded(Image(SCREEN, codec="delta"), screens)
    assert [int(blob[4]) for blob in blobs] == [1, 0, 2]


@pytest.mark.parametrize("every", [1, 5, 16, 256])
def test_run_begins_every_so_many_rows(every: int) -> None:
    blobs = encoded(Image(SCREEN, codec="delta", every=every), moving_screens(300))
    assert [number for number, blob in enumerate(blobs) if blob[4] & 1] == list(range(0, 300, every))


def test_one_row_needs_as_many_others_as_its_place_has_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    feature = Image(SCREEN, codec="delta", every=64)
    run, codec = encoded(feature, moving_screens(64)), DeltaCodec(feature)
    found: list[int] = []
    decompress = codec._compressor.decompress
    monkeypatch.setattr(codec._compressor, "decompress", lambda body, out: (found.append(1), decompress(body, out)))
    for place in range(64):
        found.clear()
        decoded(codec, run, [place])
        assert len(found) == 1 + place.bit_count()
    found.clear()
    decoded(codec, run, list(range(64)))
    assert len(found) == 64


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(["uint8", "bool", ">i4", "float16", "float64"]),
    shape=st.sampled_from([(), (0,), (1,), (3, 5), (2, 1, 4)]),
    every=st.integers(1, 20),
    compression=st.sampled_from(["zstd", "lz4"]),
    data=st.data(),
)
def test_any_rows_of_any_dtype_come_back_bit_for_bit(
    dtype: str, shape: tuple[int, ...], every: int, compression: str, data: st.DataObject
) -> None:
    feature = Array(shape, dtype, codec="delta", every=every, compression=compression)
    bits = np.random.default_rng(data.draw(st.integers(0, 99))).integers(
        0, 2, (every, *shape, np.dtype(dtype).itemsize)
    )
    rows = bits.astype(np.uint8).view(dtype).reshape(every, *shape)
    wanted = sorted(data.draw(st.sets(st.integers(0, every - 1))))
    found = decoded(DeltaCodec(feature), encoded(feature, rows), wanted)
    assert [row.tobytes() for row in found] == [rows[place, ...].tobytes() for place in wanted]


def test_encoder_keeps_no_view_of_a_row_that_its_owner_writes_again() -> None:
    feature = Image(SCREEN, codec="delta")
    screens, encoder, again = moving_screens(9), DeltaCodec(feature).encoder(), np.empty(SCREEN, np.uint8)
    blobs = []
    for screen in screens:
        again[...] = screen
        blobs += [np.frombuffer(blob, np.uint8) for blob in encoder.put(again)]
    np.testing.assert_array_equal(decoded(DeltaCodec(feature), blobs, list(range(9))), screens)


def test_every_flipped_bit_is_refused() -> None:
    feature = Array((12,), "uint16", codec="delta", every=3)
    run, codec = encoded(feature, np.arange(36, dtype="uint16").reshape(3, 12)), DeltaCodec(feature)
    for place in range(3):
        for bit in range(8 * run[place].size):
            corrupt = run[place].copy()
            corrupt[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DecodeError, match="checksum"):
                decoded(codec, [*run[:place], corrupt, *run[place + 1 :]], [2] if place != 1 else [1])


def test_row_of_another_run_is_refused() -> None:
    feature = Image(SCREEN, codec="delta", every=4)
    run, codec = encoded(feature, moving_screens(4)), DeltaCodec(feature)
    with pytest.raises(DecodeError, match="place 3 of its run, expected 1"):
        decoded(codec, [run[0], run[3]], [1])


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (Text(codec="delta"), "whose size varies"),
        (Array((None, 2), codec="delta"), "whose size varies"),
        (Array(2, codec="delta", every=0), "'every'"),
        (Array(2, codec="delta", every=257), "Allowed: an integer from 1 to 256"),
        (Array(2, codec="delta", compression="gzip"), "Allowed: 'zstd', 'lz4'"),
        (Array(2, codec="delta", level=0), "Allowed: an integer from 1 to 22"),
        (Array(2, codec="delta", compression="lz4", level=13), "Allowed: an integer from 0 to 12"),
    ],
)
def test_feature_or_option_that_it_cannot_keep_is_refused(feature: Feature, words: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(words)):
        make_codec(feature)
