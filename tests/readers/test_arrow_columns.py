"""Columns of Arrow tables are found by dotted names, whatever is within which."""

import pytest

from stepwell.errors import FormatError
from stepwell.readers.arrow import leaf_column, leaf_names

pa = pytest.importorskip("pyarrow")


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
