"""Tiles in JPEG rows: the same pixels, crops of any part, and files that every decoder reads."""

import io

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.codecs import make_codec
from stepwell.codecs.jpeg import JpegHeader, with_tiles
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Image

SUBSAMPLINGS = ["444", "422", "420", "440", "411", "gray"]
WIDE = (96, 160, 3)


def row(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, np.uint8)


def picture(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return noise or, of even seeds, a ramp with a little noise, so that blocks have few and many coefficients."""
    noise = np.random.default_rng(seed).integers(0, 256, shape)
    ramp = np.linspace(0, 200, shape[1]).reshape(1, -1, *[1] * (len(shape) - 2)) + noise / 10
    return (noise if seed % 2 else ramp).astype(np.uint8)


@st.composite
def boxes(draw: st.DrawFn, height: int, width: int) -> tuple[int, int, int, int]:
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    sides=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    subsampling=st.sampled_from(SUBSAMPLINGS),
    quality=st.integers(1, 100),
    tile=st.integers(1, 100),
    seed=st.integers(0, 9),
)
def test_tiled_row_and_its_crops_have_the_pixels_of_the_plain_one(
    data: st.DataObject, sides: tuple[int, int], subsampling: str, quality: int, tile: int, seed: int
) -> None:
    tiled, plain = (
        make_codec(Image((*sides, 3), codec="jpeg", quality=quality, subsampling=subsampling, tile=columns))
        for columns in (tile, 0)
    )
    image = picture((*sides, 3), seed)
    blob, whole = row(tiled.encode(image)), plain.decode(row(plain.encode(image)))
    np.testing.assert_array_equal(tiled.decode(blob), whole)
    np.testing.assert_array_equal(plain.decode(blob), whole)
    top, left, height, width = box = data.draw(boxes(*sides))
    np.testing.assert_array_equal(
        tiled.decode_crop(blob, box, (height, width)), whole[top : top + height, left : left + width]
    )
    smaller = -(-height // 2), -(-width // 2)
    np.testing.assert_array_equal(
        tiled.decode_crop(blob, box, smaller), plain.decode_crop(row(plain.encode(image)), box, smaller)
    )


@pytest.mark.parametrize("subsampling", ["422", "420"])
def test_a_crop_of_a_last_tile_of_few_pixels_has_the_colours_of_the_whole_image(subsampling: str) -> None:
    codec = make_codec(Image((20, 36, 3), codec="jpeg", subsampling=subsampling, tile=1))
    blob = row(codec.encode(picture((20, 36, 3), 1)))
    whole = codec.decode(blob)
    for left in range(30, 36):
        part = codec.decode_crop(blob, (0, left, 20, 36 - left), (20, 36 - left))
        np.testing.assert_array_equal(part, whole[:, left:])


def test_pillow_reads_tiled_rows_as_files_of_the_same_pixels() -> None:
    pillow = pytest.importorskip("PIL.Image")
    plain = make_codec(Image(WIDE, codec="jpeg", subsampling="444")).encode(picture(WIDE, 0))
    opened = [np.asarray(pillow.open(io.BytesIO(blob))) for blob in (plain, with_tiles(plain, 32))]
    np.testing.assert_array_equal(*opened)


@pytest.mark.parametrize(("tile", "interval"), [(1, 1), (16, 1), (32, 2), (79, 2), (80, 5), (160, 10), (65_500, 10)])
def test_tiles_are_as_wide_as_fits_and_all_alike(tile: int, interval: int) -> None:
    blob = make_codec(Image(WIDE, codec="jpeg", tile=tile)).encode(picture(WIDE, 0))
    assert JpegHeader.of(blob).interval == interval
    num_marks = sum(blob.count(bytes([0xFF, 0xD0 + k])) for k in range(8))
    assert num_marks == 6 * 10 // interval - 1


def test_crop_takes_no_more_of_a_row_than_its_tiles() -> None:
    blob = row(make_codec(Image(WIDE, codec="jpeg", tile=32)).encode(picture(WIDE, 1)))
    part = JpegHeader.of(blob.tobytes()).part_of(blob, WIDE[:2], (40, 70, 10, 20))
    assert (part.top, part.left, part.height, part.width) == (32, 64, 32, 32)
    assert len(part.file) < 1000 + blob.size / 10


def test_damage_beside_the_tiles_of_a_crop_leaves_it_alone_and_damage_in_them_does_not() -> None:
    codec = make_codec(Image(WIDE, codec="jpeg", tile=32))
    blob = row(codec.encode(picture(WIDE, 1)))
    box = (40, 70, 10, 20)
    whole = codec.decode_crop(blob, box, (10, 20))
    tiles = [
        place for place in range(blob.size) if blob[place] == 0xFF and blob[place + 1 : place + 2] >> 3 == 0xD0 >> 3
    ]
    beside, within = blob.copy(), blob.copy()
    # the box lies in row 2 and column 2 of 6 rows of 5 tiles; its tile is behind the mark before it
    beside[tiles[13] + 2 : tiles[14]] = 0
    within[tiles[11] + 2 : tiles[12]] = 0
    np.testing.assert_array_equal(codec.decode_crop(beside, box, (10, 20)), whole)
    with pytest.raises(DecodeError):
        codec.decode_crop(within, box, (10, 20))


def test_crop_of_a_tiled_row_that_lacks_a_mark_or_breaks_off_is_refused() -> None:
    codec = make_codec(Image(WIDE, codec="jpeg", tile=32))
    blob = row(codec.encode(picture(WIDE, 1)))
    place = blob.tobytes().index(b"\xff\xd3")
    for damaged in (np.delete(blob, [place, place + 1]), blob[:-2], blob[: blob.size // 2], blob[:700]):
        with pytest.raises(DecodeError):
            codec.decode_crop(damaged, (0, 0, 10, 10), (10, 10))


@pytest.mark.parametrize("options", [{"progressive": True}, {"restart_marker_blocks": 3}])
def test_file_that_cannot_be_tiled_stays_as_it_is(options: dict[str, int]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pillow.fromarray(picture(WIDE, 0)).save(file, "jpeg", **options)
    assert with_tiles(file.getvalue(), 32) == file.getvalue()


def test_optimised_tables_that_lack_a_code_leave_the_file_as_it_is_or_its_pixels() -> None:
    pillow = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pillow.fromarray(picture(WIDE, 0)).save(file, "jpeg", optimize=True)
    tiled = with_tiles(file.getvalue(), 32)
    np.testing.assert_array_equal(simplejpeg.decode_jpeg(tiled), simplejpeg.decode_jpeg(file.getvalue()))


def test_damaged_scan_is_not_tiled() -> None:
    blob = bytearray(make_codec(Image(WIDE, codec="jpeg")).encode(picture(WIDE, 1)))
    blob[700:900] = b"\xff\x00" * 100
    assert with_tiles(bytes(blob), 32) == bytes(blob)


@pytest.mark.parametrize("tile", [-1, 65_501, 1.5, "64"])
def test_tile_that_is_no_width_is_refused(tile: object) -> None:
    with pytest.raises(SchemaError, match="'tile'"):
        make_codec(Image(WIDE, codec="jpeg", tile=tile))
