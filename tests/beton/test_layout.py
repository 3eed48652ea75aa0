"""The bytes of .beton files: built as the format says, parsed back, and every wrong number told with its place."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.beton.layout import (
    ALLOCATION_DTYPE,
    DESCRIPTOR_BYTES,
    HEADER_BYTES,
    IMAGE_ROW,
    SIZED_ROW,
    BetonLayout,
    FieldDescriptor,
    FieldType,
    Header,
    row_dtype,
)
from stepwell.errors import FormatError

NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=16)
# the alignment rule as a C compiler has it: bytes and alignment of each type in a row
SIZES = {0: (8, 8), 1: (8, 8), 2: (13, 1), 3: (16, 1), 4: (8, 8), 5: (16, 1), 6: (8, 8)}


@given(
    st.integers(1, 65535),
    st.sampled_from([1 << n for n in range(32)]),
    st.integers(0, 2**64 - 1),
    st.integers(1, 2**64 - 1),
)
def test_a_header_comes_back(num_fields, page_size, num_samples, table_ptr):
    header = Header(num_fields, page_size, num_samples, table_ptr)
    data = header.to_bytes()
    assert struct.unpack("<HHIQQ", data) == (2, num_fields, page_size, num_samples, table_ptr)
    assert Header.parse(data + b"more", "a.beton") == header


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ((1, 2, 64, 3, 900), "a.beton: version 1 at byte 0"),
        ((2, 0, 64, 3, 900), "no fields at byte 2"),
        ((2, 2, 0, 3, 900), "pages of 0 bytes at byte 4"),
        ((2, 2, 96, 3, 900), "a power of two"),
        ((2, 2, 64, 3, 0), "did not finish it"),
    ],
)
def test_a_header_that_is_none_is_told_by_byte(numbers, told):
    with pytest.raises(FormatError, match=told):
        Header.parse(struct.pack("<HHIQQ", *numbers), "a.beton")


def test_a_short_header_is_told():
    with pytest.raises(FormatError, match=r"a\.beton: 23 bytes"):
        Header.parse(bytes(23), "a.beton")


@given(
    NAMES,
    st.lists(st.integers(0, 2**40), max_size=31).flatmap(
        lambda sizes: st.integers(1, 9).map(lambda last: [*sizes, last])
    ),
    st.sampled_from(["<f4", "|b1", "<f2", ">i8", "<M8[ns]", "|S7", "<c16", "|u1"]),
    st.sampled_from([FieldType.NDARRAY, FieldType.TENSOR]),
)
def test_a_descriptor_of_an_array_comes_back(name, shape, code, type_id):
    described = FieldDescriptor.of_array(name, shape, code, type_id)
    data = described.to_bytes()
    assert len(data) == DESCRIPTOR_BYTES
    found = FieldDescriptor.parse(data, "a.beton", 24)
    assert (found.type_id, found.name) == (type_id, name)
    assert found.array_type() == (tuple(shape), np.dtype(code))


def test_the_arguments_of_an_array_are_as_the_format_has_them():
    data = FieldDescriptor.of_array("action", (16, 10), "<f4").to_bytes()
    assert data[0] == 4
    assert data[1:17] == b"action" + bytes(10)
    assert struct.unpack("<32Q", data[17:273]) == (16, 10, *[0] * 30)
    assert struct.unpack("<Q", data[273:281]) == (13,)
    assert data[281:294] == b'[["", "<f4"]]'
    assert not any(data[294:])


@pytest.mark.parametrize("name", ["", "a" * 17, "naïve", "a\0b"])
def test_a_name_that_does_not_fit_is_refused(name):
    with pytest.raises(FormatError, match="1 to 16 ASCII"):
        FieldDescriptor(1, name).to_bytes()


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(FormatError, match="1025 bytes of arguments"):
        FieldDescriptor(255, "custom", bytes(1025)).to_bytes()


@pytest.mark.parametrize(
    ("shape", "dtype", "told"),
    [
        ((), "f4", "shape"),
        ((3, 0), "f4", "the last of them 1 or more"),
        ((1,) * 33, "f4", "1 to 32 sizes"),
        ((2,), "i4,f4", "plain numpy dtypes"),
        ((2,), object, "plain numpy dtypes"),
    ],
)
def test_an_array_that_a_file_cannot_say_is_refused(shape, dtype, told):
    with pytest.raises(FormatError, match=told):
        FieldDescriptor.of_array("a", shape, dtype)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b'[["x", "<f4"]]', b'[["", "<f4", [2]]]', b'[["", "O"]]', b'[["", "i4,f4"]]', b'[["", "|V0"]]',
             b'[["", "what"]]', b'[["", "<f4"], ["", "<f4"]]', b"[[[[[[", b"\xff\xfe", b'[["", 4]]']
)  # fmt: skip
def test_a_dtype_that_is_none_is_told(text):
    arguments = struct.pack("<32Q", 2, *[0] * 31) + struct.pack("<Q", len(text)) + text
    with pytest.raises(FormatError, match="dtype"):
        FieldDescriptor(4, "a", arguments).array_type()


def test_a_dtype_of_a_length_beyond_the_arguments_is_told():
    arguments = struct.pack("<32Q", 2, *[0] * 31) + struct.pack("<Q", 761)
    with pytest.raises(FormatError, match="761 characters"):
        FieldDescriptor(4, "a", arguments).array_type()


@pytest.mark.parametrize(
    ("types", "offsets", "size"),
    [
        ([2, 1], [0, 16], 24),
        ([1, 2], [0, 8], 24),
        ([2], [0], 13),
        ([2, 2, 0], [0, 13, 32], 40),
        ([2, 3, 0], [0, 13, 32], 40),
        ([0, 1, 2, 3, 4, 5, 6], [0, 8, 16, 29, 48, 56, 72], 80),
    ],
)
def test_rows_are_laid_out_as_in_files_of_ffcv(types, offsets, size):
    found = row_dtype([FieldDescriptor(type_id, f"f{i}") for i, type_id in enumerate(types)])
    assert [found.fields[name][1] for name in found.names] == offsets
    assert found.itemsize == size


@given(st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=12))
def test_rows_follow_the_rule_of_a_c_compiler(types):
    found = row_dtype([FieldDescriptor(type_id, f"f{i}") for i, type_id in enumerate(types)])
    stop = 0
    for name, type_id in zip(found.names, types, strict=True):
        size, alignment = SIZES[type_id]
        stop += -stop % alignment
        assert (found.fields[name][1], found.fields[name][0].itemsize) == (stop, size)
        stop += size
    assert found.itemsize == stop + -stop % max(SIZES[type_id][1] for type_id in types)


@given(
    st.lists(st.sampled_from(["<f8", "<f4", "<u2", "|u1", "S3", [("a", "<u4"), ("b", "u1")]]), min_size=1, max_size=6)
)
def test_rows_with_custom_fields_are_as_numpy_aligns_them(codes):
    types = {f"f{i}": np.dtype(code) for i, code in enumerate(codes)}
    found = row_dtype([FieldDescriptor(255, name) for name in types], types)
    wanted = np.dtype(list(types.items()), align=True)
    assert [found.fields[name][1] for name in types] == [wanted.fields[name][1] for name in types]
    assert found.itemsize == wanted.itemsize


def test_a_custom_field_of_unknown_row_is_told():
    with pytest.raises(FormatError, match="'mask' is of type 255"):
        row_dtype([FieldDescriptor(255, "mask")])


def test_records_of_rows_are_packed():
    assert (IMAGE_ROW.itemsize, SIZED_ROW.itemsize, ALLOCATION_DTYPE.itemsize) == (13, 16, 24)


def test_two_fields_of_one_name_are_told_as_what_ffcv_makes_of_long_names():
    name = "a_name_of_over_16_characters"[:16]
    fields = [FieldDescriptor(1, "other"), FieldDescriptor(1, name), FieldDescriptor(0, name)]
    header = Header(3, 64, 1, 5000)
    data = header.to_bytes() + b"".join(each.to_bytes() for each in fields)
    with pytest.raises(FormatError, match="two fields are called 'a_name_of_over_1', at bytes 1066 and 2107"):
        BetonLayout.parse_fields(data, header, "a.beton")


@pytest.mark.parametrize("name", [b"\0name", b"na\xc3\xafve"])
def test_a_name_that_is_none_is_told_by_byte(name):
    header = Header(1, 64, 1, 5000)
    data = header.to_bytes() + b"\1" + name.ljust(1040, b"\0")
    with pytest.raises(FormatError, match="at byte 25"):
        BetonLayout.parse_fields(data, header, "a.beton")


def test_a_name_ends_at_its_first_zero():
    found = FieldDescriptor.parse(b"\1" + b"ix\0junk".ljust(1040, b"\0"), "a.beton", 24)
    assert found.name == "ix"


def test_fields_that_are_cut_off_are_told():
    header = Header(2, 64, 1, 5000)
    with pytest.raises(FormatError, match="cut off at byte 1065; its 2 fields"):
        BetonLayout.parse_fields(bytes(HEADER_BYTES + DESCRIPTOR_BYTES), header, "a.beton")


def layout_of(num_samples, table_ptr):
    fields = (FieldDescriptor(1, "i"),)
    return BetonLayout(Header(1, 4096, num_samples, table_ptr), fields, row_dtype(fields))


def test_places_follow_from_the_header():
    layout = layout_of(10, 8192)
    assert (layout.rows_start, layout.rows_stop, layout.pages_start) == (1065, 1145, 4096)
    layout.check_size(8192 + 48, "a.beton")


@pytest.mark.parametrize(
    ("num_samples", "table_ptr", "num_bytes", "told"),
    [
        (10, 1144, 2000, "10 samples"),
        (2**63, 2**63, 4096, "9223372036854775808 samples"),
        (10, 8192, 8191, "cut off"),
        (10, 8192, 8192 + 25, "a multiple of 24"),
    ],
)
def test_a_file_too_small_for_its_numbers_is_told(num_samples, table_ptr, num_bytes, told):
    with pytest.raises(FormatError, match=told):
        layout_of(num_samples, table_ptr).check_size(num_bytes, "a.beton")


def test_a_layout_is_built_as_it_is_parsed():
    fields = (
        FieldDescriptor.of_array("a", (2, 3), "f2"),
        FieldDescriptor(3, "text"),
        FieldDescriptor(255, "own", b"xy"),
    )
    layout = BetonLayout(Header(3, 1 << 21, 7, 1 << 22), fields, np.dtype("u1"))
    found = BetonLayout.parse_fields(layout.to_bytes(), layout.header, "a.beton")
    assert [(each.type_id, each.name) for each in found] == [(4, "a"), (3, "text"), (255, "own")]
    assert found[0].array_type() == ((2, 3), np.dtype("f2"))
    assert found[2].arguments.rstrip(b"\0") == b"xy"
    assert json.loads(found[0].arguments[264 : 264 + 13]) == [["", "<f2"]]
