"""Columns of Arrow tables become the values of a feature, or an error: never others."""

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.readers.arrow import column_feature, feature_of_type, values_of
from stepwell.schema import Array

pa = pytest.importorskip("pyarrow")


def fixed(values: np.ndarray):
    array = pa.array(values.reshape(-1))
    for size in values.shape[:0:-1]:
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 2, 3), (5, 2, 1, 3)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "bool", "float16"])
def test_lists_of_any_depth_are_arrays(shape: tuple[int, ...], dtype: str):
    values = (np.arange(np.prod(shape)).reshape(shape) % 2).astype(dtype)
    for column in (fixed(values), pa.array(values.tolist(), from_numpy(dtype, len(shape)))):
        feature = column_feature(column, "a")
        assert (feature.fixed_shape, feature.np_dtype) == (shape[1:], np.dtype(dtype))
        assert np.array_equal(values_of(column, feature, "a"), values)
        assert np.array_equal(values_of(column.slice(1, 3), feature, "a"), values[1:4])


def from_numpy(dtype: str, depth: int):
    kind = pa.from_numpy_dtype(np.dtype(dtype))
    for _ in range(depth - 1):
        kind = pa.list_(kind)
    return kind


def test_flat_lists_become_arrays_of_the_feature():
    values = np.arange(24.0).reshape(4, 6)
    assert np.array_equal(values_of(fixed(values), Array((2, 3), "float64"), "a"), values.reshape(4, 2, 3))


def test_lists_of_other_lengths_are_ragged():
    rows = [[1.0], [], [2.0, 3.0]]
    column = pa.array(rows)
    feature = column_feature(column, "a")
    assert feature.shape == (None,)
    assert [row.tolist() for row in values_of(column, feature, "a")] == rows
    assert [row.tolist() for row in values_of(column.slice(2, 1), feature, "a")] == rows[2:]


def test_rows_within_ragged_lists_keep_their_shape():
    rows = [[[1, 2]], [], [[3, 4], [5, 6]]]
    column = pa.array(rows)
    feature = column_feature(column, "a")
    assert feature.shape == (None, 2)
    assert [row.tolist() for row in values_of(column, feature, "a")] == rows


@pytest.mark.parametrize(
    ("rows", "feature", "message"),
    [
        ([[1.0], [2.0, 3.0, 4.0]], Array(2, "float64"), "lists of 1 to 3 values"),
        ([[[1.0], [2.0]], [[3.0], [4.0]]], Array((1, 2), "float64"), r"rows of \(2, 1\) values"),
        ([[[1.0, 2.0]], [[3.0], [4.0]]], Array((1, 2), "float64"), "lists of 1 to 2 values"),
        ([1.0, None], Array((), "float64"), "1 rows or values that are missing"),
        ([[1.0, None], [2.0, 3.0]], Array(2, "float64"), "1 rows or values that are missing"),
        ([[1.0, None]], Array((None,), "float64"), "1 rows or values that are missing"),
        ([None, [2.0, 3.0]], Array(2, "float64"), "1 rows or values that are missing"),
        ([1.5, 2.5], Array((), "int64"), "holds float64"),
        ([1.5, 2.5], Array((), "float32"), "holds float64"),
        ([[1.5], [2.5, 3.5]], Array((None,), "int64"), "holds float64"),
    ],
)
def test_what_is_no_value_of_the_feature_is_refused(rows: list, feature: object, message: str):
    with pytest.raises(FormatError, match=f"here.* {message}"):
        values_of(pa.array(rows), feature, "here")


@pytest.mark.parametrize(
    "kind",
    [pa.decimal128(5), pa.null(), pa.list_(pa.string()), pa.list_(pa.string(), 2), pa.list_(pa.list_(pa.int8()))],
)
def test_types_of_no_feature_are_named(kind: object):
    with pytest.raises(FormatError, match="here is of Arrow's type"):
        feature_of_type(kind, "here")


def test_times_are_numbers_of_their_unit():
    column = pa.array([1, 2], pa.timestamp("us"))
    feature = column_feature(column, "a")
    assert values_of(column, feature, "a").tolist() == np.array([1, 2], "M8[us]").tolist()
