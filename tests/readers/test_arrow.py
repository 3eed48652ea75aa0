"""Arrow and Parquet files: any run of rows of one table, columns by dotted names, as values of features or an error."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.readers.arrow import ArrowFiles, column_feature, feature_of_type, leaf_column, leaf_names, values_of
from stepwell.schema import Array

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
SIZES = (5, 1, 12)


def write_stream(path: Path, table) -> None:
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=4)


def write_file(path: Path, table) -> None:
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=4)


def write_parquet(path: Path, table) -> None:
    pq.write_table(table, path, row_group_size=4)


@pytest.fixture(params=[("arrow", write_stream), ("arrow", write_file), ("parquet", write_parquet)])
def paths(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    suffix, write = request.param
    found, start = [], 0
    for number, size in enumerate(SIZES):
        found.append(str(tmp_path / f"{number}.{suffix}"))
        rows = np.arange(start, start + size)
        write(tmp_path / f"{number}.{suffix}", pa.table({"row": rows, "text": [str(row) for row in rows]}))
        start += size
    return found


def test_any_run_of_rows_is_read(paths: list[str]):
    files = ArrowFiles(paths)
    assert files.num_rows == sum(SIZES)
    assert files.file_starts.tolist() == [0, 5, 6, 18]
    for start in range(files.num_rows):
        for stop in range(start + 1, files.num_rows + 1):
            assert files.read(start, stop).column("row").to_pylist() == list(range(start, stop))
    assert files.column("text").to_pylist() == [str(row) for row in range(files.num_rows)]


def test_heads_are_from_all_over_the_files(paths: list[str]):
    rows = ArrowFiles(paths).heads(3, 2).column("row").to_pylist()
    assert rows[:2] == [0, 1]
    assert rows[-1] >= 14
    assert len(rows) <= 6


def test_it_is_sent_without_what_it_holds(paths: list[str]):
    files = ArrowFiles(paths)
    files.read(0, 18)
    again = pickle.loads(pickle.dumps(files))
    assert again.read(3, 8).equals(files.read(3, 8))


def test_other_columns_and_other_rows_are_told(paths: list[str]):
    files = ArrowFiles(paths)
    write = write_parquet if paths[0].endswith("parquet") else write_stream
    write(Path(paths[2]), pa.table({"row": [1], "text": ["a"]}))
    with pytest.raises(FormatError, match="has changed since it was opened: 1 rows, not 4"):
        files.read(6, 18)
    write(Path(paths[2]), pa.table({"row": [1]}))
    with pytest.raises(FormatError, match=r"2\.\w+ has other columns than .*0\.\w+"):
        ArrowFiles(paths)


def test_a_file_that_is_none_is_named(paths: list[str]):
    Path(paths[1]).write_bytes(b"nothing")
    with pytest.raises(FormatError, match=r"1\.(arrow|parquet)"):
        ArrowFiles(paths)


class Boxed(pa.ExtensionType):
    """A type of somebody's own, as `datasets` has them for arrays of several dimensions."""

    def __init__(self) -> None:
        super().__init__(pa.list_(pa.int64()), "stepwell.tests.boxed")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: object, serialized: bytes) -> "Boxed":
        return cls()


def test_a_column_within_structs_is_found_by_its_names():
    table = pa.table({"obs": pa.array([{"a.b": {"x": 1}, "a": {"y": 2}}, {"a.b": {"x": 3}, "a": {"y": 4}}])})
    assert leaf_names("obs", table.schema.field("obs").type) == ["obs.a.b.x", "obs.a.y"]
    assert leaf_column(table, "obs.a.b.x", "here").to_pylist() == [1, 3]
    assert leaf_column(table, "obs.a.y", "here").to_pylist() == [2, 4]


def test_the_longest_name_wins():
    table = pa.table({"a": pa.array([{"c": 1}]), "a.b": [2]})
    assert leaf_column(table, "a.b", "here").to_pylist() == [2]
    assert leaf_column(table, "a.c", "here").to_pylist() == [1]


def test_a_name_that_is_not_there_is_told_with_those_that_are():
    table = pa.table({"a": pa.array([{"c": 1}]), "b": [2]})
    with pytest.raises(FormatError, match=r"here has no column 'x'\. There are: a, b"):
        leaf_column(table, "x", "here")
    with pytest.raises(FormatError, match=r"here has no column 'x'\. There are: c"):
        leaf_column(table, "a.x", "here")


def test_dictionaries_and_types_of_others_are_unwrapped():
    boxed = pa.ExtensionArray.from_storage(Boxed(), pa.array([[1], [2, 3]]))
    table = pa.table({"word": pa.array(["a", "b"]).dictionary_encode(), "boxed": boxed})
    assert leaf_column(table, "word", "here").equals(pa.array(["a", "b"]))
    assert leaf_column(table, "boxed", "here").to_pylist() == [[1], [2, 3]]


def test_a_missing_struct_is_a_missing_value():
    table = pa.table({"obs": pa.array([{"x": 1}, None])})
    assert leaf_column(table, "obs.x", "here").null_count == 1


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
