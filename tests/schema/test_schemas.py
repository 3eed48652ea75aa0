"""Schemas: names that can be files, inference from a step, and what is refused with the feature's name."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import FeatureNotFoundError, SchemaError
from stepwell.schema import Array, Bytes, Image, Schema, Text, flatten, infer_columns, infer_feature, infer_schema
from stepwell.testing import schemas, values


@settings(max_examples=50)
@given(schemas())
def test_schema_comes_back_equal_from_json_and_pickle(schema: Schema) -> None:
    back = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert back == schema
    assert list(back) == list(schema)
    assert hash(back) == hash(schema)
    assert pickle.loads(pickle.dumps(schema)) == schema


@settings(max_examples=100)
@given(st.data())
def test_inferred_feature_can_hold_the_value_that_it_was_inferred_from(data: st.DataObject) -> None:
    (feature,) = data.draw(schemas(max_features=1)).values()
    value = data.draw(values(feature))
    found = infer_feature(value)
    if isinstance(value, np.ndarray):
        assert (found.np_dtype, found.fixed_shape) == (value.dtype, value.shape)
    else:
        assert found == (Text() if feature.kind == "text" else Bytes())


def test_order_of_features_is_kept_and_counts() -> None:
    one, other = Schema({"b": Array(), "a": Array()}), Schema({"a": Array(), "b": Array()})
    assert list(one) == ["b", "a"]
    assert one != other


@pytest.mark.parametrize(
    "name",
    ["", ".a", "-a", "a.", "a..b", "a/b", "../a", "a b", "ä", "a\n", "a\0", "x" * 201, "episodes", "store", 3, None],
)
def test_name_that_cannot_be_a_file_is_refused(name: Any) -> None:
    with pytest.raises(SchemaError, match="feature name"):
        Schema({name: Array()})


@pytest.mark.parametrize("name", ["a", "A9", "_x", "a-b", "observation.image", "episodes.x", "x" * 200])
def test_name_of_letters_digits_and_dots_is_allowed(name: str) -> None:
    assert list(Schema({name: Array()})) == [name]


def test_names_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(SchemaError, match="'Action' and 'action' differ only in case"):
        Schema({"Action": Array(), "action": Array()})


@pytest.mark.parametrize("features", [{}, None, 3, [("a", Array())], {"a": "float32"}])
def test_what_is_no_mapping_of_names_to_features_is_refused(features: Any) -> None:
    with pytest.raises(SchemaError):
        Schema(features)


@pytest.mark.parametrize("record", [None, [], {}, {"a": 3}, {"a": {}}])
def test_record_that_is_no_schema_is_refused(record: Any) -> None:
    with pytest.raises(SchemaError):
        Schema.from_json(record)


def test_unknown_feature_is_refused_with_those_that_are_there() -> None:
    meant = r"no feature 'actoin'\. Did you mean 'action'\? There are: action, reward"
    with pytest.raises(FeatureNotFoundError, match=meant):
        Schema({"action": Array(), "reward": Array()})["actoin"]


def test_with_feature_adds_at_the_end_and_never_replaces() -> None:
    schema = Schema({"b": Array()}).with_feature("a", Text())
    assert list(schema) == ["b", "a"]
    with pytest.raises(SchemaError, match="'a' already"):
        schema.with_feature("a", Array())


def test_inference_maps_python_and_numpy_values_to_features() -> None:
    step = {
        "flag": True,
        "count": 3,
        "reward": 0.5,
        "single": np.float32(1),
        "task": "push",
        "blob": b"\0",
        "action": np.zeros(2, "float32"),
        "listed": [1.0, 2.0],
        "camera": np.zeros((16, 16, 3), np.uint8),
        "patch": np.zeros((15, 16, 3), np.uint8),
        "board": np.zeros((16, 16, 3), np.int8),
    }
    assert dict(infer_schema(step)) == {
        "flag": Array((), "bool"),
        "count": Array((), "int64"),
        "reward": Array((), "float64"),
        "single": Array((), "float32"),
        "task": Text(),
        "blob": Bytes(),
        "action": Array(2, "float32"),
        "listed": Array(2, "float64"),
        "camera": Image((16, 16, 3)),
        "patch": Array((15, 16, 3), "uint8"),
        "board": Array((16, 16, 3), "int8"),
    }


def test_inference_from_columns_knows_what_varies() -> None:
    columns = {
        "image": [np.zeros((20, 30, 3), np.uint8), np.zeros((20, 31, 3), np.uint8)],
        "grey": [np.zeros((16, 16, 1), np.uint8), np.zeros((40, 16, 1), np.uint8)],
        "still": [np.zeros((20, 30, 3), np.uint8)] * 2,
        "points": [np.zeros((1, 3), "f4"), np.zeros((4, 3), "f4")],
        "pose": np.zeros((2, 7), "f4"),
        "task": ["a", "bcd"],
    }
    assert dict(infer_columns(columns, final=["image"])) == {
        "image": Image((None, None, 3), final=True),
        "grey": Image((None, None, 1)),
        "still": Image((20, 30, 3)),
        "points": Array((None, 3), "float32"),
        "pose": Array(7),
        "task": Text(),
    }


def test_inference_flattens_nested_steps_and_marks_observations_final() -> None:
    schema = infer_schema({"observation": {"image": np.zeros((16, 16, 3), np.uint8), "state": 1.0}, "action": 1.0})
    assert list(schema) == ["observation.image", "observation.state", "action"]
    assert schema.final_names == ("observation.image", "observation.state")


def test_inference_takes_the_final_names_that_it_is_given() -> None:
    assert infer_schema({"obs": 1.0, "x": 1.0}, final=["x"]).final_names == ("x",)
    assert infer_schema({"obs": 1.0, "x": 1.0}, final=[]).final_names == ()
    with pytest.raises(SchemaError, match=r"'y'.*It has: obs, x"):
        infer_schema({"obs": 1.0, "x": 1.0}, final=["y"])


@pytest.mark.parametrize("value", [None, object(), {1}, [[1], [1, 2]], ["push", "pull"], 2**70])
def test_inference_refuses_what_has_no_fixed_size_and_names_the_feature(value: Any) -> None:
    with pytest.raises(SchemaError, match="feature 'thing'"):
        infer_schema({"thing": value})


def test_inference_refuses_a_name_that_comes_twice() -> None:
    with pytest.raises(SchemaError, match=r"has a\.b twice"):
        infer_schema({"a.b": 1, "a": {"b": 2}})


def test_flatten_yields_dotted_names_in_order() -> None:
    assert list(flatten({"a": {"b": 1, "c": {"d": 2}}, "e": 3})) == [("a.b", 1), ("a.c.d", 2), ("e", 3)]
