"""Which features are written, and their names."""

import pytest

from stepwell.errors import FeatureNotFoundError, SchemaError
from stepwell.schema import Array, Image, Schema
from stepwell.tfds.features import Leaf
from stepwell.tfds.step_forms import step_columns

SCHEMA = Schema(
    {
        "steps.is_first": Array((), "bool"),
        "observation.top": Image((8, 8, 3)),
        "action": Array(2, "float64"),
        "n": Array(),
    }
)


def paths(**options):
    return {column.source: column.path for column in step_columns(SCHEMA, **options)}


def test_dots_nest_and_what_an_import_renamed_gets_its_name_back():
    assert paths() == {"steps.is_first": "is_first", "observation.top": "observation/top", "action": "action", "n": "n"}


def test_features_are_chosen_and_renamed_in_the_schemas_order():
    assert paths(features=["n", "action"], rename={"n": "info.count"}) == {"action": "action", "n": "info/count"}


def test_choices_hold_for_all_or_by_name():
    columns = {
        column.source: column.form.node for column in step_columns(SCHEMA, encodings={"n": "zlib"}, images="jpeg")
    }
    assert columns["n"] == Leaf("tensor", "float32", (), "zlib")
    assert columns["action"].encoding == "bytes"
    assert columns["observation.top"].image_format == "jpeg"
    by_name = step_columns(SCHEMA, images={"observation.top": "jpeg"}, encodings="none")
    assert [column.form.node for column in by_name][1:3] == [
        Leaf("image", "uint8", (8, 8, 3), image_format="jpeg"),
        Leaf("tensor", "float64", (2,)),
    ]


@pytest.mark.parametrize("argument", ["features", "rename", "encodings", "images", "labels"])
def test_names_that_are_not_there_are_refused(argument):
    given = ["z"] if argument == "features" else {"z": "none"}
    with pytest.raises(FeatureNotFoundError, match=f"{argument}: no feature 'z'. There are: .*action"):
        paths(**{argument: given})


def test_one_name_is_no_list_of_names():
    with pytest.raises(SchemaError, match=r"features='action'. Give a list of names"):
        paths(features="action")


@pytest.mark.parametrize("target", ["", "a..b", ".a", "a/", None])
def test_names_that_cannot_nest_are_refused(target):
    with pytest.raises(SchemaError, match=r"feature 'n' as .*names between single dots"):
        paths(rename={"n": target})
