import json
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from built_files import Built, WordField, array_arguments, write_arrays, write_custom, write_images, write_values
from hypothesis import given
from hypothesis import strategies as st

from stepwell.beton import BetonFile, SpanField, ValueField, register_beton_field
from stepwell.beton.layout import ALLOCATION_DTYPE, ROW_TYPES, BetonLayout, FieldDescriptor, Header, row_dtype
from stepwell.beton.reading import RegionTable
from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.schema import Array

"""Open .beton files: rows, places and values, and what is told of files that are not right."""


DTYPES = ["<f2", "<f4", "<f8", ">f4", "<i1", "<u2", "<i8", "|b1", "<c8", "<M8[ns]", "|S3", "<U2"]


def values_of(file, name):
    offsets, sizes = file.spans(name, file.rows())
    return [file.read(*span) for span in zip(offsets.tolist(), sizes.tolist(), strict=True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("type_id", [4, 6])
def test_arrays_of_every_dtype_are_read_wherever_they_lie(tmp_path, dtype, type_id):
    rng = np.random.default_rng(0)
    arrays = rng.integers(0, 100, (5, 3, 2)).astype(dtype)
    file = BetonFile(write_arrays(tmp_path / "a.beton", arrays, type_id=type_id, gap=3))
    offsets, _ = file.spans("array", file.rows())
    assert (offsets % arrays.itemsize).any() or arrays.itemsize == 1
    assert file.fields["array"].feature == Array((3, 2), dtype)
    assert values_of(file, "array") == [array.tobytes() for array in arrays]
    assert file.values("number", file.rows()).tolist() == list(range(5))


def test_rows_can_be_read_in_parts(tmp_path):
    file = BetonFile(write_arrays(tmp_path / "a.beton", np.arange(12.0).reshape(12, 1)))
    assert file.rows(3, 7)["number"].tolist() == [3, 4, 5, 6]
    assert len(file) == 12


def test_an_array_without_sizes_is_a_scalar(tmp_path):
    built = Built([(4, b"a", array_arguments((), "<f4"))], [struct.pack("<Q", 1 << 16)])
    built.put(0, np.float32(2.5).tobytes())
    file = BetonFile(built.write(tmp_path / "a.beton", 1))
    assert file.fields["a"].feature.shape == ()
    assert values_of(file, "a") == [np.float32(2.5).tobytes()]


@pytest.mark.parametrize("shares_empty", [False, True])
def test_empty_values_do_not_hide_what_comes_after_them(tmp_path, shares_empty):
    values = [b"", b"one", b"", b"", b"two and more", b"x", b""]
    file = BetonFile(write_values(tmp_path / "a.beton", values, shares_empty=shares_empty))
    assert values_of(file, "value") == values


def test_texts_come_without_their_zero(tmp_path):
    values = [{"a": 1}, [], "é", None]
    texts = [json.dumps(value).encode() for value in values]
    file = BetonFile(write_values(tmp_path / "a.beton", [text + b"\0" for text in texts], type_id=5))
    assert values_of(file, "value") == texts


def test_a_file_of_no_samples_is_read(tmp_path):
    built = Built([(1, b"i", b""), (3, b"text", b"")])
    file = BetonFile(built.write(tmp_path / "a.beton", 0))
    assert len(file) == 0
    assert [len(part) for part in file.spans("text", file.rows())] == [0, 0]


def test_samples_that_share_a_region_have_the_same_value(tmp_path):
    built = Built([(3, b"value", b"")])
    built.rows = [struct.pack("<QQ", 1 << 16, 6)] * 3
    built.put(0, b"shared")
    built.table += [(1, 0, 6), (2, 0, 6)]
    assert values_of(BetonFile(built.write(tmp_path / "a.beton", 3)), "value") == [b"shared"] * 3


def test_a_custom_field_is_asked_for_by_type_and_with_the_way_out(tmp_path):
    path = write_custom(tmp_path / "a.beton")
    with pytest.raises(FormatError) as caught:
        BetonFile(path)
    told = str(caught.value)
    assert "at byte 24: field 'word' is of type 255" in told
    assert "custom_fields={'word': YourField}" in told
    assert "register_beton_field('word', YourField)" in told


def test_any_other_type_is_asked_for_likewise(tmp_path):
    with pytest.raises(FormatError, match="is of type 77, no type that FFCV has built in"):
        BetonFile(write_custom(tmp_path / "a.beton", type_id=77))


def test_a_custom_field_reads_values_of_its_rows(tmp_path):
    file = BetonFile(write_custom(tmp_path / "a.beton"), {"word": WordField})
    assert file.values("word", file.rows()) == ["left-ab", "up-ab"]
    assert file.values("weight", file.rows()).tolist() == [0.5, 0.5]


def test_a_field_is_registered_by_type_or_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("stepwell.beton.fields._REGISTRY", {})
    path = write_custom(tmp_path / "a.beton", type_id=77)
    register_beton_field(77, WordField)
    assert isinstance(BetonFile(path).fields["word"], WordField)
    other = write_custom(tmp_path / "b.beton", name=b"other")
    assert register_beton_field("other", WordField) is WordField
    assert isinstance(BetonFile(other).fields["other"], WordField)


def test_a_key_has_one_field(monkeypatch):
    monkeypatch.setattr("stepwell.beton.fields._REGISTRY", {})
    register_beton_field("word", WordField)
    register_beton_field("word", WordField)

    class Other(WordField):
        """Another one."""

    with pytest.raises(FormatError, match=r"read by built_files\.WordField already"):
        register_beton_field("word", Other)
    with pytest.raises(FormatError, match="Allowed: 7 to 255"):
        register_beton_field(2, Other)


def test_a_given_field_comes_before_one_that_is_built_in(tmp_path):
    class Halved(SpanField):
        """The first of two numbers."""

        metadata_type, feature = "<u8", Array((), "float64")

        def spans(self, rows, file):
            return rows, 8

    file = BetonFile(write_arrays(tmp_path / "a.beton", np.arange(6.0).reshape(3, 2)), {"array": Halved})
    assert values_of(file, "array") == [np.float64(value).tobytes() for value in (0, 2, 4)]


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({"metadata_type": "<u8"}, "no feature"),
        ({"feature": Array(1)}, "no metadata_type"),
        ({"metadata_type": "<u8", "feature": 3}, "no feature"),
    ],
)
def test_a_field_that_does_not_say_what_it_is_is_refused(tmp_path, members, told):
    kind = type("Bad", (ValueField,), {**members, "values": lambda self, rows, file: rows})
    with pytest.raises(FormatError, match=told):
        BetonFile(write_custom(tmp_path / "a.beton"), {"word": kind})


def test_a_class_that_is_no_field_is_refused(tmp_path):
    with pytest.raises(FormatError, match="a SpanField or a ValueField"):
        BetonFile(write_custom(tmp_path / "a.beton"), {"word": lambda arguments: object()})


@pytest.mark.parametrize(
    ("spans", "told"),
    [
        ((0, 8), "8 bytes at 0"),
        ((2**64 - 1, 8), "8 bytes at 18446744073709551615"),
        ((1 << 16, 2**64 - 1), "18446744073709551615 bytes at 65536"),
        ((1 << 16, (1 << 16) + 1), "65537 bytes at 65536"),
        ((1.5, 8), "Allowed: integers"),
    ],
)
def test_places_that_a_field_says_are_checked(tmp_path, spans, told):
    class Elsewhere(SpanField):
        """Says the same of all samples."""

        metadata_type, feature = "<u8", Array(2)

        def spans(self, rows, file):
            return tuple(np.full(len(rows), part, "f8" if isinstance(part, float) else "u8") for part in spans)

    file = BetonFile(write_arrays(tmp_path / "a.beton", np.zeros((2, 2))), {"array": Elsewhere})
    with pytest.raises(FormatError, match=told):
        file.spans("array", file.rows())


def test_a_field_of_too_few_values_is_told(tmp_path):
    class Short(WordField):
        """Forgets one."""

        def values(self, rows, file):
            return ["left"]

    file = BetonFile(write_custom(tmp_path / "a.beton"), {"word": Short})
    with pytest.raises(FormatError, match="has 1 values for 2 samples"):
        file.values("word", file.rows())


def test_asking_for_what_a_field_does_not_have_is_told(tmp_path):
    file = BetonFile(write_arrays(tmp_path / "a.beton", np.zeros((2, 2))))
    with pytest.raises(FormatError, match="no bytes of the file"):
        file.spans("number", file.rows())
    with pytest.raises(FormatError, match="Ask for its spans"):
        file.values("array", file.rows())


def changed(path, place, data):
    whole = bytearray(path.read_bytes())
    whole[place : place + len(data)] = data
    path.write_bytes(bytes(whole))
    return path


def test_a_place_without_a_region_is_told_with_sample_and_byte(tmp_path):
    path = write_arrays(tmp_path / "a.beton", np.zeros((3, 2)))
    changed(path, 24 + 2 * 1041 + 16, struct.pack("<Q", 70_000))
    file = BetonFile(path)
    with pytest.raises(FormatError, match="field 'array' of sample 1, at byte 2122, has 16 bytes at 70000"):
        file.spans("array", file.rows())
    with pytest.raises(FormatError, match="field 'array' of sample 1, at byte 2122"):
        file.spans("array", file.rows(1, 3), 1)


def test_images_that_cannot_be_are_told(tmp_path):
    images = [(1, 2, 2, bytes(12)), (1, 2, 2, bytes(12))]
    row = 24 + 2 * 1041 + 24
    for place, data, told in [
        (0, b"\2", "an image of 2x2 of mode 2"),
        (1, bytes(2), "an image of 2x0 of mode 1"),
        (3, b"\3", "has 18 bytes at 65548, where the allocation table has 12"),
        (0, b"\0" + b"\2\0\2\0" + struct.pack("<Q", 7), "is at 7, where the allocation table has no region"),
    ]:
        file = BetonFile(changed(write_images(tmp_path / "a.beton", images), row + place, data))
        with pytest.raises(FormatError, match=told):
            file.spans("image", file.rows())


@pytest.mark.parametrize("sizes", [(2**62,), (0, 2**62)])
def test_an_array_larger_than_a_page_is_told_when_the_file_is_opened(tmp_path, sizes):
    path = write_arrays(tmp_path / "a.beton", np.zeros((1, 4)))
    changed(path, 24 + 17, struct.pack(f"<{len(sizes)}Q", *sizes))
    with pytest.raises(FormatError, match=r"where pages have 65536|a step of \d+ bytes"):
        BetonFile(path)


def test_a_file_that_was_cut_off_is_told(tmp_path):
    path = write_arrays(tmp_path / "a.beton", np.zeros((3, 2)))
    whole = path.read_bytes()
    for length in (0, 10, 1000, 2000, 70_000, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=r"a\.beton"):
            BetonFile(path)


def test_a_damaged_number_of_fields_takes_no_memory(tmp_path):
    path = tmp_path / "a.beton"
    path.write_bytes(Header(65535, 1 << 16, 0, 4096).to_bytes().ljust(4096, b"\0"))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=r"cut off at byte 4096; its 65535 fields \(byte 2\)"):
            BetonFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_that_becomes_shorter_is_an_error_not_a_crash(tmp_path):
    path = write_arrays(tmp_path / "a.beton", np.zeros((300, 2)))
    file = BetonFile(path)
    os.truncate(path, 2200)
    with pytest.raises(FormatError, match="became shorter"):
        file.rows()
    with pytest.raises(FormatError, match="became shorter"):
        _ = file.regions


def test_a_file_that_is_replaced_or_gone_is_told(tmp_path):
    path = write_arrays(tmp_path / "a.beton", np.zeros((3, 2)))
    file, others = BetonFile(path), [write_arrays(tmp_path / f"{n}.beton", np.zeros((1, 1))) for n in range(70)]
    write_arrays(tmp_path / "b.beton", np.ones((3, 2))).replace(path)
    opened = [BetonFile(other).rows() for other in others]
    assert len(opened) == 70
    with pytest.raises(FormatError, match="changed or replaced"):
        file.rows()
    path.unlink()
    with pytest.raises(DatasetNotFoundError, match="any more"):
        file.rows()


def num_open():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_more_files_can_be_read_than_be_open(tmp_path):
    paths = [write_arrays(tmp_path / f"{number:03d}.beton", np.full((2, 1), number)) for number in range(100)]
    before = num_open()
    files = [BetonFile(path) for path in paths]
    assert [values_of(file, "array")[1] for file in files] == [np.int64(n).tobytes() for n in range(100)]
    assert num_open() - before <= 64


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DatasetNotFoundError, match=r"nothing\.beton"):
        BetonFile(tmp_path / "nothing.beton")


def test_it_prints_well(tmp_path):
    path = write_arrays(tmp_path / "a.beton", np.zeros((3, 2)))
    file = BetonFile(path)
    assert repr(file) == f"<BetonFile {path} 3 samples of array, number>"
    assert repr(file.regions) == f"<RegionTable 3 regions of {path}>"


def test_row_types_are_all_that_ffcv_has():
    assert sorted(ROW_TYPES) == list(range(7))
    assert pickle.loads(pickle.dumps(ROW_TYPES)) == ROW_TYPES


"""The allocation table: sizes by ptr, in any order, shared, empty; and what it may not hold."""


FIELDS = (FieldDescriptor(1, "i"),)
LAYOUT = BetonLayout(Header(1, 4096, 10, 100_000), FIELDS, row_dtype(FIELDS))


def table_of(*rows):
    return RegionTable(np.array(list(rows), ALLOCATION_DTYPE), LAYOUT, "a.beton")


@given(st.dictionaries(st.integers(1145, 90_000), st.integers(1, 9_000), min_size=1, max_size=30), st.randoms())
def test_sizes_are_found_whatever_the_order_of_the_table(sizes, random):
    # every region is there once or more, by several samples, and empty values have the place of the next
    rows = [(random.randrange(10), ptr, size) for ptr, size in sizes.items() for _ in range(random.randrange(1, 4))]
    rows += [(random.randrange(10), ptr, 0) for ptr in sizes if random.random() < 0.3]
    random.shuffle(rows)
    table = table_of(*rows)
    ptrs = np.array([*sizes, *(ptr + 1 for ptr in sizes if ptr + 1 not in sizes), 2**64 - 1, 0], "u8")
    assert table.sizes_at(ptrs).tolist() == [sizes.get(ptr, 0) for ptr in ptrs.tolist()]
    assert len(table) == len(sizes)


def test_an_empty_table_has_no_sizes():
    assert table_of().sizes_at(np.array([5, 2**64 - 1], "u8")).tolist() == [0, 0]


def test_an_empty_region_may_be_anywhere():
    assert len(table_of((0, 0, 0), (1, 2**64 - 1, 0))) == 0


@pytest.mark.parametrize(
    "row", [(0, 1144, 8), (0, 99_993, 8), (0, 2**64 - 4, 8), (0, 2000, 2**64 - 1), (0, 2**63, 2**63)]
)
def test_a_region_outside_the_pages_is_told_by_row_and_byte(row):
    with pytest.raises(FormatError, match=r"a\.beton: row 1 of the allocation table, at byte 100024,"):
        table_of((0, 2000, 8), row)


def test_two_sizes_at_one_place_are_told_with_both_rows():
    with pytest.raises(
        FormatError, match="row 3 of the allocation table, at byte 100072, has 9 bytes at 2000, where row 0"
    ):
        table_of((0, 2000, 8), (1, 1500, 8), (2, 0, 0), (1, 2000, 9))
