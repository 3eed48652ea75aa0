import numpy as np
import pytest

from stepwell.beton.encoding import (
    ArrayEncoder,
    BytesEncoder,
    FloatEncoder,
    IntEncoder,
    JsonEncoder,
    check_names,
    encode_named,
)
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
