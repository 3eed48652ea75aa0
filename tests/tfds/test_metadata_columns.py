"""Metadata of episodes: one type for all of them, JSON where there is none; nothing is lost."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import SchemaError
from stepwell.tfds.episode_examples import metadata_columns
from stepwell.tfds.examples import ExampleKeys, encode_example
from stepwell.tfds.features import Leaf, Repeated


def kinds(*metadata, **options):
    return {column.path: (column.kind, column.shape) for column in metadata_columns(metadata, **options)}


@pytest.mark.parametrize(
    ("values", "kind", "shape"),
    [
        (["push", ""], "text", ()),
        ([True, False], "bool", ()),
        ([1, -(2**63)], "integer", ()),
        ([1, 2.5], "number", ()),
        ([2**63, 1], "unsigned", ()),
        ([2**63, -1], "other", ()),
        ([2**64, 1], "other", ()),
        ([2**53 + 1, 2.5], "other", ()),
        ([1, True], "other", ()),
        ([None, None], "other", ()),
        ([[1, 2], [3, 4]], "integer", (2,)),
        ([[[1.5], [2]], [[3], [4]]], "number", (2, 1)),
        ([[1], [3, 4]], "other", ()),
        ([[[1], [2, 3]], [[1], [2, 3]]], "other", ()),
        ([["a"], ["b", "c"]], "text", (None,)),
        ([[], ["b", "c"]], "text", (None,)),
        ([[["a"]], [["b"]]], "other", ()),
        ([[], []], "other", ()),
        ([["a"], "b"], "other", ()),
        ([{}, {}], "other", ()),
    ],
)
def test_the_type_is_that_of_all_values(values, kind, shape):
    assert kinds(*({"entry": value} for value in values)) == {"entry": (kind, shape)}


def test_what_some_episodes_lack_is_json_but_texts_are_empty():
    assert kinds({"task": "push", "seed": 3}, {}) == {"seed": ("other", ()), "task": ("text", ())}
    columns = {column.path: column for column in metadata_columns([{"task": "push", "seed": 3}, {}])}
    assert columns["seed"].lists("k", {"seed": 3}) == {"k": [b"3"]}
    assert columns["seed"].lists("k", {}) == {"k": [b""]}
    assert columns["task"].lists("k", {}) == {"k": [b""]}


def test_mappings_nest_and_are_json_where_others_are_none():
    nested = {"robot": {"arm": {"dof": 6}}}
    assert kinds(nested) == {"robot/arm/dof": ("integer", ())}
    assert kinds(nested, {"robot": "ur5"}) == {"robot": ("other", ())}
    (column,) = metadata_columns([nested, {"robot": "ur5"}])
    assert json.loads(column.lists("k", nested)["k"][0]) == nested["robot"]


def test_features_keep_float64_exact_and_name_classes():
    columns = {column.path: column for column in metadata_columns([{"x": 0.1, "pose": [1.0, 2.0], "robot": 1}])}
    assert columns["x"].node == Leaf("tensor", "float64", (), "bytes")
    assert columns["pose"].node == Leaf("tensor", "float64", (2,), "bytes")
    (labelled,) = metadata_columns([{"robot": 1}], labels={"robot": ["panda", "ur5"]})
    assert labelled.node == Leaf("label", "int64", num_classes=2)
    assert metadata_columns([{"tags": ["a"]}])[0].node == Repeated(Leaf("text", "string"))


def test_only_named_entries_are_written():
    assert kinds({"a": 1, "b": {"c": 2}, "d/e": 3}, names=["b"]) == {"b/c": ("integer", ())}
    with pytest.raises(SchemaError, match=r"metadata 'z': no episode has it. There are: a"):
        kinds({"a": 1}, names=["a", "z"])


def test_names_that_tfds_would_nest_are_refused():
    with pytest.raises(SchemaError, match="'d/e': TFDS nests at '/'"):
        kinds({"d/e": 3})


def test_labels_of_what_is_no_number_are_refused():
    with pytest.raises(SchemaError, match="'a': labels are names of classes"):
        metadata_columns([{"a": "x"}], labels={"a": ["x"]})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3), min_size=1, max_size=4))
def test_every_value_can_be_told_from_what_is_written(metadata):
    for column in metadata_columns(metadata):
        for entries in metadata:
            value, is_there = look_up(entries, column.path)
            (found,) = column.lists("k", entries).values()
            assert told(column, found) == (value if is_there else "" if column.kind == "text" else None), column
            keys = ExampleKeys(["k"]).locate(memory(encode_example({"k": found})))
            assert keys.has("k").all()


def memory(data):
    return np.frombuffer(data, np.uint8)


def look_up(entries, path):
    for name in path.split("/"):
        if not isinstance(entries, dict) or name not in entries:
            return None, False
        entries = entries[name]
    return entries, True


def told(column, found):
    """Return the value that a list holds, as JSON has it."""
    if column.kind == "other":
        return json.loads(found[0]) if found[0] else None
    if column.kind == "text":
        texts = [text.decode() for text in found]
        return texts if column.shape else texts[0]
    numbers = np.frombuffer(found[0], "<f8") if column.kind == "number" else found
    return numbers.reshape(column.shape).astype(column.node.dtype).tolist()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_number_a_mapping_and_a_deeper_mapping_of_one_name_are_one_entry_of_any_kind(order):
    metadata = [{"a": 1}, {"a": {"y": 1}}, {"a": {"y": {"x": 1}}, "b": {"c": {}}}]
    metadata = [metadata[place] for place in order]
    assert kinds(*metadata) == {"a": ("other", ()), "b/c": ("other", ())}
    column = next(column for column in metadata_columns(metadata) if column.path == "a")
    assert [json.loads(column.lists("k", entry)["k"][0]) for entry in metadata] == [entry["a"] for entry in metadata]
