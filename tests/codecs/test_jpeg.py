"""JPEG rows: the pixels that every decoder gives, and nothing written for another image's header."""

import io
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds_of_images import image_files

from stepwell.codecs import make_codec
from stepwell.codecs.jpeg import JpegHeader, with_tiles
from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.schema import Image
from stepwell.testing import smooth_image

pytest.importorskip("imagecodecs")


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


@pytest.mark.parametrize("shape", [(9, 13), (9, 13, 1), (16, 24, 3), (9, 13, 3)])
@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_rows_are_decoded_to_any_address_and_nothing_is_written_beside_them(shape: Pixels, first: int) -> None:
    feature = Image(shape, codec="jpeg")
    codec, image = make_codec(feature), smooth_image(feature, 0)
    blob = row(codec.encode(image))
    memory = np.full(image.nbytes + 8, 77, np.uint8)
    out = memory[first : first + image.nbytes].reshape(shape)
    codec.decode_into(blob, out)
    np.testing.assert_array_equal(out, codec.decode(blob))
    assert set(memory[:first]) | set(memory[first + image.nbytes :]) == {77}


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


INKS = {name: kind for name, kind in image_files(20, 30).items() if "cmyk" in name or "ycck" in name}


@pytest.mark.parametrize("shape", [(20, 30, 3), (None, None, 3)])
@pytest.mark.parametrize("name", INKS)
def test_rows_of_inks_are_mixed_to_colours(shape: tuple[int | None, ...], name: str) -> None:
    codec, blob = make_codec(Image(shape, codec="jpeg")), row(INKS[name].data)
    pixels = codec.decode(blob)
    assert codec.image_size(blob) == (20, 30)
    assert np.abs(pixels.astype(int) - INKS[name].colors).max() <= 9
    np.testing.assert_array_equal(codec.decode_crop(blob, (3, 4, 10, 11), (5, 5)), pixels[3:13, 4:15])


def test_a_row_of_inks_changes_nothing_of_those_after_it() -> None:
    codec, image = make_codec(Image((20, 30, 3), codec="jpeg")), smooth_image(Image((20, 30, 3)), seed=0)
    plain, inks = row(codec.encode(image)), row(INKS["jpeg cmyk"].data)
    first, mixed = codec.decode(plain), codec.decode(inks)
    for blob, wanted in ((inks, mixed), (plain, first), (plain, first), (inks, mixed), (inks, mixed)):
        np.testing.assert_array_equal(codec.decode(blob), wanted)


@pytest.mark.parametrize("name", INKS)
def test_a_row_of_inks_that_breaks_off_or_is_of_another_size_is_refused(name: str) -> None:
    codec, blob = make_codec(Image((20, 30, 3), codec="jpeg")), row(INKS[name].data)
    for size in range(0, blob.size - 1, 7):
        with pytest.raises(DecodeError):
            codec.decode(blob[:size])
    with pytest.raises(DecodeError, match=r"20x30 (CMYK|YCCK), where the feature is 20x31"):
        make_codec(Image((20, 31, 3), codec="jpeg")).decode(blob)


def test_grey_feature_refuses_a_row_of_inks_and_says_what_it_reads() -> None:
    with pytest.raises(DecodeError, match=r"20x30 CMYK, where the feature is \?x\? of YCbCr, RGB, Gray\."):
        make_codec(Image((None, None, 1), codec="jpeg")).decode(row(INKS["jpeg cmyk"].data))


def test_grey_feature_reads_a_colour_row_as_its_brightness() -> None:
    blob = simplejpeg.encode_jpeg(np.full((16, 16, 3), 90, np.uint8))
    grey = make_codec(Image((16, 16), codec="jpeg")).decode(row(blob))
    assert np.abs(grey.astype(int) - 90).max() <= 1


Box = tuple[int, int, int, int]
SUBSAMPLINGS = ["444", "422", "420", "440", "411", "gray"]


@pytest.mark.parametrize("is_any_size", [False, True])
def test_check_takes_whole_rows_alone_and_decodes_none_that_ends_as_it_should(
    is_any_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (None, None, 3) if is_any_size else (24, 40, 3)
    codec = make_codec(Image(shape, codec="jpeg"))
    blob = bytes(codec.encode(smooth_image(Image((24, 40, 3)), seed=0)))
    for wrong in (blob[:-1], blob[: len(blob) // 2], blob[:10], b"", b"\x00" + blob):
        with pytest.raises(DecodeError, match="jpeg row"):
            codec.check(row(wrong))
    # what stands behind the end of a file is nobody's business
    codec.check(row(blob + b"more"))
    monkeypatch.setattr(type(codec), "decode_into", lambda *_: pytest.fail("decoded"))
    codec.check(row(blob))


def noise(shape: Pixels, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


@st.composite
def boxes(draw: st.DrawFn, height: int, width: int) -> Box:
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    sides=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    subsampling=st.sampled_from(SUBSAMPLINGS),
)
def test_crop_is_equal_to_the_part_of_the_whole_image(data: st.DataObject, sides: Pixels, subsampling: str) -> None:
    feature = Image((*sides, 3), codec="jpeg", quality=90, subsampling=subsampling)
    codec = make_codec(feature)
    blob = row(codec.encode(noise(feature.fixed_shape)))
    top, left, height, width = box = data.draw(boxes(*sides))
    whole = codec.decode(blob)
    part = codec.decode_crop(blob, box, (height, width))
    np.testing.assert_array_equal(part, whole[top : top + height, left : left + width])


@pytest.mark.parametrize("shape", [(61, 45), (61, 45, 1)])
def test_crop_of_a_grey_image_keeps_its_channels(shape: Pixels) -> None:
    codec = make_codec(Image(shape, codec="jpeg"))
    blob = row(codec.encode(noise(shape)))
    np.testing.assert_array_equal(codec.decode_crop(blob, (3, 5, 20, 30), (20, 30)), codec.decode(blob)[3:23, 5:35])


@pytest.mark.parametrize("shrink", [2, 4, 8])
@pytest.mark.parametrize("box", [(0, 0, 128, 192), (16, 32, 96, 128), (17, 35, 80, 131), (64, 0, 64, 192)])
def test_crop_that_will_be_made_smaller_is_near_to_the_mean_of_its_pixels(box: Box, shrink: int) -> None:
    feature = Image((128, 192, 3), codec="jpeg", quality=95, subsampling="444")
    codec = make_codec(feature)
    blob = row(codec.encode(smooth_image(feature, seed=3)))
    top, left, height, width = box
    part = codec.decode_crop(blob, box, (height // shrink, width // shrink))
    means = codec.decode(blob).reshape(128 // shrink, shrink, 192 // shrink, shrink, 3).mean(axis=(1, 3))
    start_row, start_column = (top + shrink // 2) // shrink, (left + shrink // 2) // shrink
    assert part.shape[0] >= height // shrink
    assert part.shape[1] >= width // shrink
    theirs = means[start_row : start_row + part.shape[0], start_column : start_column + part.shape[1]]
    assert np.abs(part - theirs).max() <= 3


def test_crop_is_decoded_no_further_than_it_reaches() -> None:
    """What lies below the crop is not looked at: noise there leaves its pixels alone."""
    codec = make_codec(Image((128, 128, 3), codec="jpeg"))
    blob = row(codec.encode(noise((128, 128, 3))))
    damaged = blob.copy()
    damaged[-2000:-100] = 0
    box = (10, 20, 30, 40)
    np.testing.assert_array_equal(codec.decode_crop(damaged, box, (30, 40)), codec.decode(blob)[10:40, 20:60])


def test_crop_of_a_row_that_is_damaged_above_or_breaks_off_is_refused() -> None:
    codec = make_codec(Image((128, 128, 3), codec="jpeg"))
    blob = row(codec.encode(noise((128, 128, 3))))
    for size in range(0, blob.size, 997):
        with pytest.raises(DecodeError):
            codec.decode_crop(blob[:size], (10, 20, 30, 40), (30, 40))
    damaged = blob.copy()
    damaged[1500:1502] = 0xFF, 0xD9
    with pytest.raises(DecodeError, match=r"Corrupt JPEG|[Pp]remature"):
        codec.decode_crop(damaged, (10, 20, 90, 40), (90, 40))


@pytest.mark.parametrize("options", [{"progressive": True}, {"restart_marker_blocks": 3}])
def test_crop_of_a_file_that_cannot_be_cut_is_taken_from_the_whole(options: dict[str, int]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    pillow.fromarray(noise((128, 96, 3))).save(file, "jpeg", quality=90, **options)
    codec, blob = make_codec(Image((128, 96, 3), codec="jpeg")), row(file.getvalue())
    np.testing.assert_array_equal(codec.decode_crop(blob, (8, 9, 20, 30), (20, 30)), codec.decode(blob)[8:28, 9:39])


ANY_SIZE = Image((None, None, 3), codec="jpeg", quality=90)


def test_images_of_any_size_come_back_as_those_of_one_size() -> None:
    codec = make_codec(ANY_SIZE)
    for shape in ((9, 40, 3), (64, 16, 3), (9, 40, 3), (1, 1, 3), (33, 33, 3)):
        fixed = Image(shape, codec="jpeg", quality=90)
        image = smooth_image(fixed, seed=shape[0])
        blob = codec.encode(image)
        assert blob == make_codec(fixed).encode(image)
        assert codec.image_size(row(blob)) == make_codec(fixed).image_size(row(blob)) == shape[:2]
        np.testing.assert_array_equal(codec.decode(row(blob)), make_codec(fixed).decode(row(blob)))


@pytest.mark.parametrize("tile", [0, 16])
def test_crops_of_images_of_any_size_are_those_of_the_whole_image(tile: int) -> None:
    codec = make_codec(Image((None, None, 3), codec="jpeg", tile=tile))
    for height, width in ((40, 60), (60, 40), (40, 60)):
        blob = row(codec.encode(noise((height, width, 3), height)))
        whole = codec.decode(blob)
        part = codec.decode_crop(blob, (7, 9, 20, 21), (20, 21))
        np.testing.assert_array_equal(part, whole[7:27, 9:30])


def test_grey_and_progressive_files_of_any_size_are_read_as_rgb() -> None:
    pillow = pytest.importorskip("PIL.Image")
    grey = smooth_image(Image((20, 30)), seed=0)
    blob = simplejpeg.encode_jpeg(grey[..., None], colorspace="GRAY")
    pixels = make_codec(ANY_SIZE).decode(row(blob))
    assert pixels.shape == (20, 30, 3)
    np.testing.assert_array_equal(pixels, np.repeat(simplejpeg.decode_jpeg(blob, "GRAY"), 3, axis=2))
    file = io.BytesIO()
    colours = smooth_image(Image((20, 30, 3)), seed=0)
    pillow.fromarray(colours).save(file, "JPEG", progressive=True, quality=95)
    codec, blob = make_codec(ANY_SIZE), file.getvalue()
    assert psnr_db(codec.decode(row(blob)), colours) > 30
    np.testing.assert_array_equal(
        codec.decode_crop(row(blob), (3, 4, 10, 11), (10, 11)), codec.decode(row(blob))[3:13, 4:15]
    )


def test_memory_for_what_a_row_cannot_hold_is_never_asked_for() -> None:
    codec = make_codec(ANY_SIZE)
    blob = codec.encode(noise((16, 16, 3)))
    assert codec.image_size(row(blob)) == (16, 16)
    tracemalloc.start()
    for size in ((65000, 65000), (16, 65000), (65000, 100)):
        lying = with_size(blob, *size)
        for read in (codec.decode, codec.image_size, lambda each: codec.decode_crop(each, (0, 0, 9, 9), (9, 9))):
            with pytest.raises(DecodeError, match=f"says {size[0]}x{size[1]}, which it cannot hold"):
                read(lying)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_the_emptiest_image_of_any_size_is_no_lie() -> None:
    codec = make_codec(Image((None, None), codec="jpeg", quality=1))
    black = np.zeros((2000, 3000), np.uint8)
    assert codec.decode(row(codec.encode(black))).max() <= 1


def test_a_row_cut_off_behind_the_header_of_a_good_one_is_refused() -> None:
    codec = make_codec(ANY_SIZE)
    blob = codec.encode(np.zeros((800, 800, 3), np.uint8))
    codec.decode(row(blob))
    with pytest.raises(DecodeError, match="800x800, which it cannot hold"):
        codec.decode(row(blob)[:700])


def test_threads_that_read_images_of_several_sizes_disturb_nobody() -> None:
    codec = make_codec(ANY_SIZE)
    blobs = [row(codec.encode(noise((8 + 4 * k, 40 - 4 * k, 3), k))) for k in range(8)]
    expected = [codec.decode(blob) for blob in blobs]
    with ThreadPoolExecutor(8) as pool:
        for k, pixels in enumerate(pool.map(lambda k: codec.decode(blobs[k % 8]), range(400))):
            np.testing.assert_array_equal(pixels, expected[k % 8])


def test_an_image_with_a_side_that_jpeg_has_not_is_refused() -> None:
    with pytest.raises(StepError, match=r"an image of 1x65501\. Allowed as JPEG: sides of 1 to 65500"):
        make_codec(ANY_SIZE).encode(np.zeros((1, 65501, 3), np.uint8))


WIDE = (96, 160, 3)


def picture(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return noise or, of even seeds, a ramp with a little noise, so that blocks have few and many coefficients."""
    noise = np.random.default_rng(seed).integers(0, 256, shape)
    ramp = np.linspace(0, 200, shape[1]).reshape(1, -1, *[1] * (len(shape) - 2)) + noise / 10
    return (noise if seed % 2 else ramp).astype(np.uint8)


@st.composite
def boxes_of_tiles(draw: st.DrawFn, height: int, width: int) -> tuple[int, int, int, int]:
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
    top, left, height, width = box = data.draw(boxes_of_tiles(*sides))
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
