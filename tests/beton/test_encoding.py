import numpy as np
import pytest
from kinds_of_images import image_files

from stepwell.beton.encoding import (
    ArrayEncoder,
    BytesEncoder,
    FloatEncoder,
    ImageEncoder,
    IntEncoder,
    JsonEncoder,
    check_names,
    encode_named,
)
from stepwell.beton.layout import JPEG_MODE, RAW_MODE
from stepwell.errors import SchemaError, StepError


@pytest.mark.parametrize("value", [7, True, np.int8(-3), np.uint64(9), np.array(5), np.array([4]), 3.0, np.float32(2)])
def test_whole_numbers_are_taken_from_all_that_are_such(value):
    assert IntEncoder().encode(value, 0) == (int(np.ravel(value)[0]), None)


def test_numbers_may_be_tensors():
    torch = pytest.importorskip("torch")
    assert IntEncoder().encode(torch.tensor(3), 0) == IntEncoder().encode(torch.tensor([3.0]), 0) == (3, None)
    assert FloatEncoder().encode(torch.tensor(0.5, requires_grad=True), 0) == (0.5, None)


@pytest.mark.parametrize("value", [1.5, "7", None, 1 << 63, np.float32(0.5), np.zeros(2), np.nan, np.inf])
def test_what_is_no_whole_number_is_refused_not_cut_off(value):
    with pytest.raises(StepError):
        IntEncoder().encode(value, 0)


def test_floats_are_taken_as_they_are_and_texts_refused():
    for value in (0.5, np.float32(0.5), np.array([[0.5]])):
        assert FloatEncoder().encode(value, 0) == (0.5, None)
    for wrong in ("0.5", None, np.zeros(2), 1j):
        with pytest.raises(StepError, match="a number"):
            FloatEncoder().encode(wrong, 0)


def test_bytes_are_bytes_or_arrays_of_them():
    assert bytes(BytesEncoder().encode(np.arange(6, dtype=np.uint8)[::2], 0)[1]) == b"\0\2\4"
    assert BytesEncoder().encode(bytearray(b"ab"), 0)[1] == b"ab"
    assert BytesEncoder().encode("ä", 0)[1] == b"\xc3\xa4"
    assert bytes(BytesEncoder().encode(np.array([7.0, 255.0]), 0)[1]) == b"\x07\xff"
    for wrong in (np.full(3, -1, np.int8), np.full(1, 0.5), np.zeros((2, 2), np.uint8), None):
        with pytest.raises(StepError, match="array of one axis of whole numbers from 0 to 255"):
            BytesEncoder().encode(wrong, 0)


def test_json_ends_with_a_nul_and_has_no_other():
    region = JsonEncoder().encode({"a": "\0ä"}, 0)[1]
    assert region.endswith(b"\0") and region.count(b"\0") == 1 and region.isascii()
    with pytest.raises(StepError, match="JSON does not hold"):
        JsonEncoder().encode({1, 2}, 0)


def test_arrays_of_another_byte_order_or_layout_become_plain_ones():
    given = np.arange(6, dtype=">f4").reshape(2, 3)[:, ::-1]
    assert bytes(ArrayEncoder((2, 3), ">f4").encode(given, 0)[1]) == given.astype("<f4").tobytes()


def test_a_tensor_is_taken_and_a_gradient_let_go():
    torch = pytest.importorskip("torch")
    given = torch.arange(3.0, requires_grad=True)
    assert bytes(ArrayEncoder((3,), "f4").encode(given, 0)[1]) == np.arange(3, dtype="<f4").tobytes()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((3, 2), "f4"), "got shape"),
        (np.zeros(4, "f8"), "got dtype float64, the field has float32"),
        (np.zeros(4, "i4"), "got dtype int32"),
    ],
)
def test_arrays_that_ffcv_would_take_for_others_are_refused(value, message):
    with pytest.raises(StepError, match=message):
        ArrayEncoder((2, 2), "f4").encode(value, 0)


def test_as_many_elements_in_another_shape_are_taken_and_narrower_ones_widened():
    assert len(ArrayEncoder((2, 2), "f4").encode(np.zeros(4, "f2"), 0)[1]) == 16


@pytest.mark.parametrize(
    ("shape", "dtype"), [((), "f4"), ((0,), "f4"), ((2, 0), "f4"), ((1,) * 33, "f4"), ((2,), "O"), ((2,), "i4,f4")]
)
def test_arrays_that_no_file_can_describe_are_refused(shape, dtype):
    with pytest.raises(SchemaError):
        ArrayEncoder(shape, dtype)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["größe"], "ASCII"),
        ([""], "ASCII"),
        (["a\0b"], "ASCII"),
        (["observation.state"], "17 characters, FFCV would cut it to 'observation.stat'"),
        (["observation.state_1", "observation.state_2"], "FFCV would cut"),
        (["image", "image"], "two fields are called 'image'"),
        ([], "no fields"),
    ],
)
def test_names_that_a_file_would_not_keep_apart_are_refused(names, message):
    with pytest.raises(SchemaError, match=message):
        check_names(names, "rename={...}")


def test_sixteen_characters_are_a_name():
    check_names(["a" * 16, "a" * 15], "rename={...}")


def test_a_value_that_does_not_fit_names_its_field():
    with pytest.raises(StepError, match="field 'b': got 'x'"):
        encode_named({"a": IntEncoder(), "b": FloatEncoder()}, [1, "x"], 0)


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
