"""Functions of one's own over episodes: found by name, and the features that come out of them."""

import made_sets
import numpy as np
import pytest

import stepwell
from stepwell.errors import FormatError
from stepwell.octo import Standardize
from stepwell.recorders import EpisodeData
from stepwell.schema import Array, Image, Schema, Text
from stepwell.store import EncodedRows
from stepwell.tfds.features import Fields, Leaf, Repeated
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


@pytest.mark.parametrize("rename", [{}, {"observation.present_xyz": "place", "note": "words"}])
def test_a_standardising_function_has_the_names_and_rows_of_the_dataset(tmp_path, rename):
    # such names has BC-Z, such bytes Kuka
    tree = made_sets.steps_of(
        observation=Fields({"present/xyz": made_sets.FLOATS, "packed": Leaf("tensor", "string", ())}),
        action=Fields({"future/xyz": made_sets.FLOATS}),
        note=made_sets.TEXT,
        boxes=Repeated(Leaf("tensor", "int64")),
        is_first=made_sets.FLAG,
        is_last=made_sets.FLAG,
    )
    example = {
        "steps/observation/present/xyz": np.arange(8, dtype=np.float32),
        "steps/observation/packed": [b"\xff", b"\xfe", b"\xfd", b"\xfc"],
        "steps/action/future/xyz": -np.arange(8, dtype=np.float32),
        "steps/note": [b"a", b"b", b"c", b"d"],
        "steps/boxes/ragged_flat_values": np.arange(6),
        "steps/boxes/ragged_row_lengths_0": np.array([0, 1, 2, 3]),
        "steps/is_first": np.arange(4) == 0,
        "steps/is_last": np.arange(4) == 3,
    }
    made_sets.write_set(tmp_path / "data", tree, {"train": [[example]]})
    standard = Standardize("made", proprio_obs_key="state", language_key="note", standardize_fn=made_sets.standard)
    store = stepwell.open(
        f"tfds://{tmp_path}/data/made", transform=standard, rename=rename, as_bytes=["observation.packed"]
    )
    assert store[0]["action"].tolist() == [[-4, 2], [-6, 3]]
    assert store[0]["observation.proprio"].tolist() == [[4, 5, 253], [6, 7, 252]]
    assert store[0]["language_instruction"] == ["c", "d"]
