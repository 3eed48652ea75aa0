"""Fields: what they accept, what they refuse, and how seconds become steps."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Array, Field, Image, Schema, Text, WindowError
from stepwell.errors import FeatureNotFoundError
from stepwell.windows import as_fields, resolve

SCHEMA = Schema(
    {
        "a": Array(3),
        "b": Array(2),
        "c": Array(3, "float64"),
        "s": Array(),
        "image": Image((4, 4, 3), codec="png", final=True),
        "words": Text(),
    }
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": ""}, "neither a feature's name"),
        ({"source": ()}, "neither a feature's name"),
        ({"source": ("a", "b")}, "need combine"),
        ({"source": "a", "combine": "stack"}, "needs a tuple of sources"),
        ({"source": ("a", "b"), "combine": "sum"}, "stack, concat"),
        ({"source": "a", "pad": "wrap"}, "edge, zero, drop"),
        ({"source": "a", "offsets": [0], "seconds": [0.0]}, "one of them"),
        ({"source": "a", "offsets": []}, "empty"),
        ({"source": "a", "offsets": [[]]}, "empty"),
        ({"source": "a", "offsets": [0.5]}, "whole number of steps"),
        ({"source": "a", "offsets": [True]}, "whole number of steps"),
        ({"source": "a", "offsets": "01"}, "whole number of steps"),
        ({"source": "a", "offsets": 2**31}, "31 bits"),
        ({"source": "a", "offsets": [[0, 1], [2]]}, "one shape"),
        ({"source": "a", "offsets": [0, [1]]}, "one shape"),
        ({"source": "a", "seconds": [float("nan")]}, "finite"),
        ({"source": "a", "seconds": ["now"]}, "not a time"),
        ({"source": "a", "transform": [3]}, "cannot be called"),
        ({"source": "a", "transform": None}, "cannot be called"),
        ({"source": "a", "tolerance_seconds": -1.0}, "0 or more"),
    ],
)
def test_field_that_cannot_be_is_refused_with_a_reason(arguments, message):
    with pytest.raises(WindowError, match=message):
        Field(**arguments)


@pytest.mark.parametrize(
    ("offsets", "shape"),
    [
        (None, ()),
        (2, ()),
        ([0], (1,)),
        (range(4), (4,)),
        (np.array([[1, 2, 3], [4, 5, 6]]), (2, 3)),
        ([[[0]], [[1]]], (2, 1, 1)),
    ],
)
def test_window_has_the_shape_of_the_offsets(offsets, shape):
    assert Field("a", offsets).window_shape == shape
    assert resolve(Field("a", offsets), "k", SCHEMA, None).shape == (*shape, 3)


def test_field_is_a_value():
    field = Field("a", range(3), pad="zero", transform=np.negative)
    assert field == Field("a", [0, 1, 2], pad="zero", transform=np.negative)
    assert field.transforms == Field("a", transform=[np.negative]).transforms == (np.negative,)
    assert pickle.loads(pickle.dumps(field)) == field
    assert repr(field) == "Field('a', (0, 1, 2), pad='zero', transform=<ufunc 'negative'>)"
    assert hash(Field("a", [0])) == hash(Field("a", (0,)))


@settings(deadline=None, max_examples=200)
@given(
    steps=st.lists(st.integers(-300, 300), min_size=1, max_size=8),
    fps=st.sampled_from([1, 10, 15, 30, 50, 59.94, 1000]),
)
def test_whole_steps_written_as_seconds_are_those_steps(steps, fps):
    assert Field("a", seconds=[step / fps for step in steps]).step_offsets(fps) == tuple(steps)


@pytest.mark.parametrize(("seconds", "ok"), [(0.10009, True), (0.0999, True), (0.1002, False), (0.05, False)])
def test_seconds_may_miss_a_step_by_the_tolerance_only(seconds, ok):
    field = Field("a", seconds=seconds)
    if ok:
        assert field.step_offsets(10) == (1,)
    else:
        with pytest.raises(WindowError, match=r"more than tolerance_seconds=0\.0001"):
            field.step_offsets(10)


@pytest.mark.parametrize("seconds", [1e300, -1e9, 1e308])
def test_seconds_beyond_the_range_of_offsets_are_refused(seconds):
    with pytest.raises(WindowError, match="31 bits"):
        Field("a", seconds=seconds).step_offsets(100)


def test_seconds_without_fps_are_refused():
    with pytest.raises(WindowError, match="field 'k': seconds need the store's fps"):
        resolve(Field("a", seconds=[0.0]), "k", SCHEMA, None)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (Field(("a", "b"), combine="stack"), r"shapes .* must agree to be stacked"),
        (Field(("a", "c"), combine="stack"), "float32 and 'c' is float64"),
        (Field(("a", "s"), combine="concat"), "scalars have none"),
        (Field(("words", "words"), combine="stack"), "varies in size"),
        (Field("timestamp"), "needs the store's fps"),
    ],
)
def test_sources_that_do_not_fit_are_refused(field, message):
    with pytest.raises(WindowError, match=f"field 'k': .*{message}"):
        resolve(field, "k", SCHEMA, None)


def test_unknown_source_lists_what_there_is():
    with pytest.raises(FeatureNotFoundError, match=r"field 'k': no feature 'x'. There are: a, b, .*step_id"):
        resolve(Field("x"), "k", SCHEMA, None)


@pytest.mark.parametrize(
    ("field", "has_mask"),
    [
        (Field("a"), False),
        (Field("a", 0), False),
        (Field("a", 1), True),
        (Field("a", [0]), True),
        (Field("a", [0, 1], pad="zero"), True),
        (Field("a", [0, 1], pad="drop"), False),
    ],
)
def test_mask_is_given_where_padding_can_be(field, has_mask):
    assert resolve(field, "k", SCHEMA, None).has_mask == has_mask


def test_fields_are_written_short():
    fields = as_fields({"a": range(2), "now": "b", "b": None, "s": -1, "f": Field("c")}, list(SCHEMA))
    assert fields == {"a": Field("a", [0, 1]), "now": Field("b"), "b": Field("b"), "s": Field("s", -1), "f": Field("c")}
    assert list(as_fields(None, list(SCHEMA))) == list(SCHEMA)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "at least one key"),
        (["a"], "not a mapping"),
        ({"a": [0], "a_is_pad": None}, "is the mask of key 'a'"),
        ({"a": [0.5]}, "field 'a': offset 0.5"),
    ],
)
def test_fields_that_cannot_be_are_refused(fields, message):
    with pytest.raises(WindowError, match=message):
        as_fields(fields, list(SCHEMA))
