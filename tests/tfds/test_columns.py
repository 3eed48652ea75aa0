"""Rows of columns from lists as TFDS writes them: types, encodings, ragged rows, what is missing or does not fit."""

import zlib

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.schema import Array, Bytes, Image, Text
from stepwell.tfds.columns import column_of
from stepwell.tfds.examples import ExampleKeys, encode_example
from stepwell.tfds.features import Leaf, Placed

STEPS, ROWS = (None,), (None, None)


def placed(leaf, lengths=STEPS):
    return Placed(("steps", "x"), leaf, lengths)


def column(leaf, lengths=STEPS, **options):
    return column_of("x", placed(leaf, lengths), in_steps=True, **options)


def parsed(column, *examples):
    blobs = [encode_example(example) for example in examples]
    stops = np.cumsum([len(blob) for blob in blobs])
    return ExampleKeys(column.keys).locate(np.frombuffer(b"".join(blobs), np.uint8), np.r_[0, stops[:-1]], stops)


def rows_of(column, *examples, lengths=None):
    found = parsed(column, *examples)
    counts = column.row_counts(found) if lengths is None else np.array(lengths)
    return column.rows(found, counts)


def tensor(dtype, shape=(), encoding="none", **more):
    return Leaf("tensor", dtype, shape, encoding, **more)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "uint64", "float32", "float64", "float16"])
def test_numbers_of_all_steps_are_rows_of_their_type(dtype):
    values = np.arange(12).reshape(4, 3) % 2
    made = column(tensor(dtype, (3,)))
    rows = rows_of(made, {"steps/x": values.astype(dtype)[:1]}, {"steps/x": values.astype(dtype)[1:]})
    assert made.feature == Array(3, dtype)
    assert (rows.dtype, rows.tolist()) == (np.dtype(dtype), values.astype(dtype).tolist())


@pytest.mark.parametrize("encoding", ["bytes", "zlib"])
def test_packed_tensors_are_exact(encoding):
    values = np.random.default_rng(0).normal(size=(4, 2, 3))
    pack = zlib.compress if encoding == "zlib" else bytes
    rows = rows_of(column(tensor("float64", (2, 3), encoding)), {"steps/x": [pack(row.tobytes()) for row in values]})
    assert rows.tobytes() == values.tobytes()


def test_packed_tensors_may_differ_in_length():
    made = column(tensor("int16", (None, 2), "bytes"))
    rows = rows_of(made, {"steps/x": [np.arange(2 * n, dtype="<i2").tobytes() for n in (2, 0, 1)]})
    assert made.feature == Array((None, 2), "int16")
    assert [row.tolist() for row in rows] == [[[0, 1], [2, 3]], [], [[0, 1]]]


@pytest.mark.parametrize("blob", [b"abc", bytes(9), b""])
def test_a_packed_tensor_of_another_size_is_refused(blob):
    with pytest.raises(FormatError, match=r"'steps/x': a tensor of \d+ bytes, by features\.json of \(2,\) int32"):
        rows_of(column(tensor("int32", (2,), "bytes")), {"steps/x": [blob]})


def test_compressed_tensors_that_are_none_or_too_long_are_refused():
    made = column(tensor("int32", (2,), "zlib"))
    with pytest.raises(FormatError, match="in a compressed tensor"):
        rows_of(made, {"steps/x": [b"abc"]})
    with pytest.raises(FormatError, match="a tensor of 9 bytes"):
        rows_of(made, {"steps/x": [zlib.compress(bytes(10**6))]})


@pytest.mark.parametrize("shape", [(2,), (None, 2)])
def test_a_compressed_tensor_that_is_cut_off_is_told(shape):
    made = column(tensor("int32", shape, "zlib"))
    whole = zlib.compress(np.arange(4, dtype="<i4").tobytes(), 0)
    # of the stored bytes 8 are there, and nothing of its checksum
    with pytest.raises(FormatError, match=r"tensor (that is cut off|of \d+ bytes)"):
        rows_of(made, {"steps/x": [whole[:-12]]})


def test_ragged_rows_are_cut_by_their_lengths():
    made = column(tensor("float32", (2,)), ROWS)
    values = np.arange(10, dtype=np.float32)
    one = {"steps/x/ragged_flat_values": values[:6], "steps/x/ragged_row_lengths_0": np.array([2, 0, 1])}
    two = {"steps/x/ragged_flat_values": values[6:], "steps/x/ragged_row_lengths_0": np.array([2])}
    rows = rows_of(made, one, two)
    assert made.feature == Array((None, 2))
    assert [row.tolist() for row in rows] == [[[0, 1], [2, 3]], [], [[4, 5]], [[6, 7], [8, 9]]]


def test_sequences_of_one_length_are_arrays():
    made = column(tensor("int64"), (None, 3))
    lists = {"steps/x/ragged_flat_values": np.arange(6), "steps/x/ragged_row_lengths_0": np.array([3, 3])}
    assert made.feature == Array(3, "int64")
    assert rows_of(made, lists).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(FormatError, match="rows of 2 to 4, 3 by features"):
        rows_of(made, {**lists, "steps/x/ragged_row_lengths_0": np.array([2, 4])})


@pytest.mark.parametrize("lengths", [[3], [1], [1, 2], [-1, 3], [2**62, 2**62]])
def test_lengths_that_are_not_those_of_the_values_are_refused(lengths):
    lists = {"steps/x/ragged_flat_values": np.arange(4), "steps/x/ragged_row_lengths_0": np.array(lengths)}
    with pytest.raises(FormatError, match="'steps/x': 2 values for rows of"):
        rows_of(column(tensor("int64", (2,)), ROWS), lists)


def test_texts_strings_and_lists_of_texts():
    text, string = column(Leaf("text", "string")), column(tensor("string"))
    assert (text.feature, string.feature, column(tensor("string"), is_text=False).feature) == (Text(), Text(), Bytes())
    assert rows_of(text, {"steps/x": ["hé".encode(), b""]}) == ["hé", ""]
    assert rows_of(column(tensor("string"), is_text=False), {"steps/x": [b"\xff"]}) == [b"\xff"]
    with pytest.raises(FormatError, match=r"'steps/x': bytes that are no text .* as_bytes=\['x'\]"):
        rows_of(string, {"steps/x": [b"\xff"]})
    lists = {"steps/x/ragged_flat_values": [b"a", "é".encode(), b"c"], "steps/x/ragged_row_lengths_0": np.array([2, 1])}
    assert rows_of(column(Leaf("text", "string"), ROWS), lists) == ['["a", "é"]', '["c"]']
    assert rows_of(column(tensor("string", (2,))), {"steps/x": [b"a", b"b", b"c", b"d"]}) == [
        '["a", "b"]',
        '["c", "d"]',
    ]


def test_labels_and_pictures_of_numbers():
    assert column(Leaf("label", "int64", num_classes=3)).feature == Array((), "int64")
    assert column(tensor("uint8", (32, 24, 3))).feature == Image((32, 24, 3))
    assert column(tensor("uint8", (8, 24, 3))).feature == Array((8, 24, 3), "uint8")


def test_what_is_missing_of_an_optional_feature_is_what_tfds_gives():
    made = column(tensor("int16", (2,), is_optional=True))
    rows = rows_of(made, {"steps/x": np.arange(4)}, {}, {"steps/x": np.arange(2)}, lengths=[2, 2, 1])
    low = np.iinfo("int16").min
    assert (rows.dtype, rows.tolist()) == (np.int16, [[0, 1], [2, 3], [low, low], [low, low], [0, 1]])
    assert made.row_counts(parsed(made, {"steps/x": np.arange(4)}, {})) is None
    assert rows_of(column(tensor("bool", is_optional=True)), {}, lengths=[1]).tolist() == [False]
    assert rows_of(column(tensor("string", is_optional=True)), {}, lengths=[2]) == ["", ""]
    assert rows_of(column(tensor("float32", is_optional=True)), {}, lengths=[1])[0] == np.finfo("float32").min


def test_rows_of_no_numbers_are_as_many_as_steps():
    made = column(tensor("float32", (0, 3)))
    assert made.row_counts(parsed(made, {})) is None
    assert rows_of(made, {}, lengths=[4]).shape == (4, 0, 3)


def test_values_that_end_within_a_row_are_refused():
    with pytest.raises(FormatError, match="'steps/x': 7 values, in rows of 2 by features"):
        rows_of(column(tensor("int64", (2,))), {"steps/x": np.arange(7)})


def example_rows(leaf, lengths, lists):
    made = column_of("x", placed(leaf, lengths), in_steps=False)
    return made.feature, made.rows(parsed(made, *lists), np.ones(len(lists), np.int64))


def test_an_example_is_a_row_where_there_are_no_steps():
    feature, rows = example_rows(tensor("int64", (2,)), (), [{"steps/x": np.arange(2)}, {"steps/x": np.arange(2)}])
    assert (feature, rows.tolist()) == (Array(2, "int64"), [[0, 1], [0, 1]])
    feature, rows = example_rows(tensor("float32", (2,)), (None,), [{"steps/x": np.ones(4, "f4")}, {}])
    assert (feature, [row.shape for row in rows]) == (Array((None, 2)), [(2, 2), (0, 2)])
    feature, rows = example_rows(tensor("float32", (None,)), (), [{"steps/x": np.ones(3, "f4")}])
    assert (feature, [row.shape for row in rows]) == (Array((None,)), [(3,)])
    feature, rows = example_rows(Leaf("text", "string"), (None,), [{"steps/x": [b"a", b"b"]}, {}])
    assert (feature, rows) == (Text(), ['["a", "b"]', "[]"])
    feature, rows = example_rows(tensor("int8", (2,), "bytes"), (None,), [{"steps/x": [b"ab", b"cd"]}, {}])
    assert (feature, [row.tolist() for row in rows]) == (Array((None, 2), "int8"), [[[97, 98], [99, 100]], []])


REFUSED = {
    "of class my.Thing": (Leaf("unknown", "", class_name="my.Thing"), STEPS),
    "sequences within sequences, 2 deep": (tensor("int64"), (None, None, None)),
    "a sequence of images. To make its images the steps": (Leaf("image", "uint8", (8, 8, 3)), ROWS),
    "images of float32": (Leaf("image", "float32", (None, 8, 1)), STEPS),
    r"of shape \(None, 3\), of which more varies": (tensor("int64", (None, 3)), STEPS),
    r"of shape \(3, None\)": (tensor("int64", (3, None), "bytes"), STEPS),
    r"of shape \(None, None\)": (tensor("int64", (None,), "bytes"), ROWS),
    r"of shape \(2, 2\) of strings": (tensor("string", (2, 2)), STEPS),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_no_store_has_is_an_error_that_names_the_feature_and_the_way_out(message):
    leaf, lengths = REFUSED[message]
    with pytest.raises(FormatError, match=rf"feature 'x' is {message}.*ignore=\['x'\]"):
        column(leaf, lengths)
