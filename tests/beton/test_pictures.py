import numpy as np
import pytest
from kinds_of_images import image_files

from stepwell.beton.layout import JPEG_MODE, RAW_MODE
from stepwell.beton.pictures import ImageEncoder
from stepwell.errors import SchemaError, StepError

simplejpeg = pytest.importorskip("simplejpeg")


def smooth(height=40, width=60):
    ramp = np.add.outer(np.arange(height), np.arange(width))
    return np.stack([ramp, ramp * 2, 200 - ramp], axis=-1).astype(np.uint8)


def test_raw_pixels_are_as_they_are_whatever_their_layout():
    image = smooth()[:, ::-1]
    (mode, width, height), region = ImageEncoder().encode(image, 0)
    assert (mode, width, height) == (RAW_MODE, 60, 40)
    assert bytes(region) == image.tobytes()


def test_jpeg_files_are_420_and_near_the_image():
    (mode, width, height), region = ImageEncoder("jpg").encode(smooth(), 0)
    assert (mode, width, height) == (JPEG_MODE, 60, 40)
    assert simplejpeg.decode_jpeg_header(region)[3] == "420"
    assert np.abs(simplejpeg.decode_jpeg(region).astype(int) - smooth()).mean() < 3


def test_quality_makes_files_larger():
    sizes = [len(ImageEncoder("jpg", jpeg_quality=quality).encode(smooth(), 0)[1]) for quality in (20, 60, 95)]
    assert sizes == sorted(set(sizes))


def test_smart_writes_jpeg_of_large_images_only():
    encoder = ImageEncoder("smart", smart_threshold=40 * 60 * 3 - 1)
    assert encoder.encode(smooth(), 0)[0][0] == JPEG_MODE
    assert encoder.encode(smooth(39), 0)[0][0] == RAW_MODE
    assert ImageEncoder("smart").encode(smooth(), 0)[0][0] == RAW_MODE


def test_a_proportion_is_drawn_by_the_number_of_the_sample():
    encoder = ImageEncoder("proportion", compress_probability=0.3)
    modes = [encoder.encode(smooth(), sample)[0][0] for sample in range(300)]
    assert modes == [encoder.encode(smooth(), sample)[0][0] for sample in range(300)]
    # 90 are expected, the standard deviation is 8
    assert 55 < modes.count(JPEG_MODE) < 125


@pytest.mark.parametrize(("height", "width", "sides"), [(40, 60, (20, 30)), (60, 40, (30, 20)), (1, 200, (1, 30))])
def test_the_longest_side_is_at_most_the_resolution(height, width, sides):
    (_, wide, high), region = ImageEncoder(max_resolution=30).encode(smooth(height, width), 0)
    assert (high, wide) == sides
    assert len(region) == high * wide * 3


def test_a_smaller_image_is_the_mean_of_what_its_pixels_cover():
    small = np.frombuffer(ImageEncoder(max_resolution=30).encode(smooth(), 0)[1], np.uint8).reshape(20, 30, 3)
    means = smooth().reshape(20, 2, 30, 2, 3).mean(axis=(1, 3))
    assert np.abs(small - means).max() <= 1


def test_small_images_stay_as_they_are():
    assert bytes(ImageEncoder(max_resolution=60).encode(smooth(), 0)[1]) == smooth().tobytes()


def test_a_jpeg_file_goes_over_as_it_is_or_is_decoded_where_that_is_asked_for():
    file = simplejpeg.encode_jpeg(smooth(), 71)
    cell, region = ImageEncoder("jpg").encode(memoryview(file), 0)
    assert cell == (JPEG_MODE, 60, 40) and region == file
    assert bytes(ImageEncoder("raw").encode(file, 0)[1]) == simplejpeg.decode_jpeg(file).tobytes()
    assert ImageEncoder("jpg", max_resolution=30).encode(file, 0)[0] == (JPEG_MODE, 30, 20)


def test_pil_images_are_taken():
    pil = pytest.importorskip("PIL.Image")
    assert bytes(ImageEncoder().encode(pil.fromarray(smooth()), 0)[1]) == smooth().tobytes()
    with pytest.raises(StepError, match=r'image\.convert\("RGB"\)'):
        ImageEncoder().encode(pil.fromarray(smooth()[..., 0]), 0)


def test_grey_jpeg_files_are_taken():
    grey = simplejpeg.encode_jpeg(smooth()[..., :1].copy(), 90, "GRAY", "gray")
    assert ImageEncoder("jpg").encode(grey, 0)[1] == grey


def test_jpeg_files_of_inks_are_written_as_rgb():
    pytest.importorskip("imagecodecs")
    for name in ("jpeg cmyk", "jpeg cmyk adobe", "jpeg ycck adobe"):
        kind = image_files(40, 60)[name]
        cell, region = ImageEncoder("jpg", jpeg_quality=100).encode(kind.data, 0)
        assert cell == (JPEG_MODE, 60, 40) and simplejpeg.decode_jpeg_header(region)[2] == "YCbCr"
        cell, pixels = ImageEncoder("raw").encode(kind.data, 0)
        shown = np.frombuffer(pixels, np.uint8).reshape(40, 60, 3)
        assert cell == (RAW_MODE, 60, 40) and np.abs(shown.astype(int) - kind.colors).max() <= 9
        assert np.abs(simplejpeg.decode_jpeg(bytes(region)).astype(int) - shown).max() <= 24
        with pytest.raises(StepError, match="a JPEG file that cannot be read"):
            ImageEncoder("raw").encode(kind.data[: len(kind.data) // 2], 0)


@pytest.mark.parametrize(
    "value",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3)),
        np.zeros((0, 4, 3), np.uint8),
        np.broadcast_to(np.uint8(0), (65536, 1, 3)),
        b"\x89PNG",
        b"\xff\xd8 cut off",
        None,
    ],
)
def test_what_is_no_image_is_refused(value):
    with pytest.raises(StepError, match="got"):
        ImageEncoder("jpg").encode(value, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"write_mode": "png"},
        {"max_resolution": 0},
        {"jpeg_quality": 0},
        {"jpeg_quality": 101},
        {"compress_probability": 1.5},
    ],
)
def test_options_that_are_not_allowed_are_refused(options):
    with pytest.raises(SchemaError, match=next(iter(options))):
        ImageEncoder(**options)
