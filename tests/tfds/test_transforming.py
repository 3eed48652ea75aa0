"""Functions of one's own over episodes: found by name, and the features that come out of them."""

import made_sets
import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.recorders import EpisodeData
from stepwell.schema import Array, Image, Schema, Text
from stepwell.store import EncodedRows
from stepwell.tfds.steps import transform_of, transformed_schema

BEFORE = Schema({"top": Image((8, 8, 3), codec="png"), "goal": Array((None, 2)), "action": Array(2)})


def schema_of(**columns):
    return transformed_schema(EpisodeData(columns), BEFORE)


def test_functions_are_found_by_their_names():
    assert transform_of("made_sets:doubled") is made_sets.doubled
    assert transform_of(made_sets.doubled) is made_sets.doubled
    assert transform_of(None) is None


@pytest.mark.parametrize("name", ["made_sets", "made_sets:none", "no_such_module:f", ":f"])
def test_what_is_no_function_is_refused(name):
    with pytest.raises(FormatError, match='Give "module:function"'):
        transform_of(name)


def test_what_was_kept_keeps_its_feature():
    found = schema_of(top=EncodedRows([b"x"]), goal=[np.zeros((3, 2), np.float32)], action=np.zeros((1, 2), np.float32))
    assert dict(found) == dict(BEFORE)


def test_what_is_new_or_another_has_the_feature_of_its_first_value():
    found = schema_of(action=np.zeros((1, 3)), task=["push"], top=np.zeros((1, 16, 16, 3), np.uint8))
    assert dict(found) == {"action": Array(3, "float64"), "task": Text(), "top": Image((16, 16, 3))}


def test_columns_that_tell_no_feature_are_refused():
    with pytest.raises(FormatError, match="gives 'other' as encoded rows"):
        schema_of(other=EncodedRows([b"x"]))
    with pytest.raises(FormatError, match="gives no steps of 'action'"):
        schema_of(action=np.zeros((0, 2)))
