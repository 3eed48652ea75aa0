"""Raw rows: text, bytes, and arrays whose first dimension is told by the number of bytes."""

import numpy as np
import pytest

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, StepError
from stepwell.schema import Array, Image, Text


def row(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, np.uint8)


def test_ragged_row_is_its_bytes_in_c_order() -> None:
    points = np.arange(12, dtype="<i4").reshape(2, 3, 2)
    assert make_codec(Array((None, 3, 2), "<i4")).encode(points) == points.tobytes()


def test_ragged_row_of_a_transposed_array_is_its_elements_in_c_order() -> None:
    points = np.arange(6, dtype="<i4").reshape(2, 3).T
    codec = make_codec(Array((None, 2), "<i4"))
    np.testing.assert_array_equal(codec.decode(row(codec.encode(points))), points)


def test_ragged_row_of_no_entries_keeps_its_inner_shape() -> None:
    assert make_codec(Array((None, 3, 2), "float32")).decode(row(b"")).shape == (0, 3, 2)


@pytest.mark.parametrize("num_bytes", [1, 23, 25])
def test_ragged_row_that_is_no_whole_number_of_entries_is_refused(num_bytes: int) -> None:
    with pytest.raises(DecodeError, match=f"{num_bytes} bytes.*multiple of the 24"):
        make_codec(Array((None, 3, 2), "float32")).decode(row(bytes(num_bytes)))


@pytest.mark.parametrize("num_bytes", [0, 7, 9])
def test_fixed_row_of_another_size_is_refused_and_leaves_out_alone(num_bytes: int) -> None:
    out = np.full(2, 7, "float32")
    with pytest.raises(DecodeError, match=f"{num_bytes} bytes.*has 8"):
        make_codec(Array(2, "float32")).decode_into(row(bytes(num_bytes)), out)
    np.testing.assert_array_equal(out, [7, 7])


def test_text_with_a_lone_surrogate_is_refused_before_it_is_written() -> None:
    with pytest.raises(StepError, match=r"lone surrogate, U\+D800 at 2"):
        make_codec(Text()).encode("ab\ud800")


def test_bytes_that_are_not_utf8_are_refused_as_text() -> None:
    with pytest.raises(DecodeError, match="not UTF-8"):
        make_codec(Text()).decode(row(b"\xff\xfe"))


def test_numpy_scalar_as_out_is_refused_because_it_is_a_copy() -> None:
    batch = np.zeros(3, "float32")
    for codec in ("raw", "zstd"):
        made = make_codec(Array((), "float32", codec=codec))
        blob = row(made.encode(np.float32(7)))
        with pytest.raises(TypeError, match="numpy scalar"):
            made.decode_into(blob, batch[1])
        made.decode_into(blob, batch[1, ...])
    assert batch.tolist() == [0, 7, 0]


def test_image_of_any_size_is_its_sides_and_its_pixels() -> None:
    codec = make_codec(Image((None, None, 3)))
    image = np.arange(2 * 300 * 3, dtype=np.uint8).reshape(2, 300, 3)
    blob = codec.encode(image)
    assert blob == b"\x02\x00\x2c\x01" + image.tobytes()
    assert codec.image_size(row(blob)) == (2, 300)
    np.testing.assert_array_equal(codec.decode_crop(row(blob), (1, 5, 1, 7), (1, 7)), image[1:, 5:12])


@pytest.mark.parametrize("head", [b"", b"\x02\x00", b"\x02\x00\x02\x00", b"\x00\x00\x04\x00", b"\xff\xff\xff\xff"])
def test_image_whose_sides_do_not_fit_its_bytes_is_refused(head: bytes) -> None:
    codec = make_codec(Image((None, None, 3)))
    with pytest.raises(DecodeError, match="whose header says an image of"):
        codec.decode(row(head + bytes(7)))


def test_image_with_a_side_of_more_than_16_bits_is_refused() -> None:
    with pytest.raises(StepError, match=r"an image of 1x65536\. Allowed: sides of 1 to 65535"):
        make_codec(Image((None, None))).encode(np.zeros((1, 65536), np.uint8))


def test_long_numbers_of_an_image_are_decoded_to_where_numpy_wants_them() -> None:
    codec, image = make_codec(Image((None, None), "float64")), np.arange(12.0).reshape(3, 4)
    back = codec.decode(row(codec.encode(image)))
    assert back.flags.aligned
    np.testing.assert_array_equal(back, image)
