"""What becomes of features: forms that LeRobot has, and refusals that name the feature and say what to do."""

import numpy as np
import pytest

import stepwell
from stepwell import Array, Bytes, Image, Schema, Text, Video
from stepwell.errors import FeatureNotFoundError, SchemaError
from stepwell.lerobot.schema_mapping import index_names, map_schema

pytest.importorskip("imagecodecs")


def forms(schema, **options):
    return {
        column.name: (column.info.dtype, column.info.shape, column.info.names)
        for column in map_schema(Schema(schema), **options)
    }


def test_numbers_and_text_keep_type_shape_and_names():
    schema = {
        "scalar": Array((), "float64"),
        "one": Array((1,), "int8"),
        "action": Array(2, ">f4", names=["x", "y"]),
        "grid": Array((2, 3), "bool"),
        "note": Text(),
    }
    assert forms(schema) == {
        "scalar": ("float64", (1,), None),
        "one": ("int8", (1,), None),
        "action": ("float32", (2,), ["x", "y"]),
        "grid": ("bool", (2, 3), None),
        "note": ("string", (1,), None),
    }


def test_cameras_are_stored_as_they_are_encoded():
    pytest.importorskip("av")
    pytest.importorskip("simplejpeg")
    schema = {
        "png": Image((32, 48, 3), codec="png"),
        "jpeg": Image((32, 48, 3), codec="jpeg"),
        "raw": Image((32, 48, 3)),
        "grey": Image((32, 48, 1)),
        "video": Video((32, 48, 3)),
        "odd": Image((31, 48, 3)),
        "small": Image((8, 8, 3)),
    }
    kinds = {name: dtype for name, (dtype, _, _) in forms(schema).items()}
    assert kinds == {"png": "image", "jpeg": "image", "raw": "video", "grey": "video", "video": "video"} | {
        "odd": "image",
        "small": "image",
    }
    assert forms(schema)["grey"] == ("video", (32, 48, 3), ["height", "width", "channels"])
    assert {dtype for dtype, _, _ in forms(schema, cameras="image").values()} == {"image"}
    assert forms(schema, cameras={"raw": "image"})["raw"][0] == "image"


def test_index_columns_and_the_task_are_no_features():
    schema = Schema({"timestamp": Array(), "index": Array((), "int64"), "task": Text(), "action": Array(2)})
    assert list(forms(schema)) == ["action"]
    assert index_names(schema) == {"timestamp": "timestamp", "index": "index", "task": "task"}


def test_an_index_column_is_kept_under_another_name():
    schema = Schema({"timestamp": Array((), "float64"), "action": Array(2)})
    assert list(forms(schema, rename={"timestamp": "observation.time"})) == ["observation.time", "action"]
    assert index_names(schema, {"timestamp": "observation.time"}) == {}


def test_names_of_elements_are_those_that_a_dataset_had():
    told = {"action": {"dtype": "float32", "shape": [2], "names": {"motors": ["x", "y"]}}}
    schema = {"action": Array(2, names=["x", "y"])}
    assert forms(schema, origin=told)["action"][2] == {"motors": ["x", "y"]}
    told["action"]["shape"] = [3]
    assert forms(schema, origin=told)["action"][2] == ["x", "y"]


@pytest.mark.parametrize(
    ("feature", "what"),
    [
        (Bytes(), r"'odd' is bytes: .*Leave it out: features="),
        (Array((None, 3)), r"'odd' is an array of varying size"),
        (Image((None, None, 3), codec="jpeg"), r"'odd' has images of any size, .*Leave it out: features="),
        (Array(2, "complex64"), r"'odd' has dtype complex64"),
        (Array(3, "U5"), r"'odd' has dtype"),
        (Array((1, 1, 1, 1, 1, 2)), r"'odd' has shape \(1, 1, 1, 1, 1, 2\)"),
        (Array((2, 0)), r"'odd' has shape \(2, 0\)"),
        (Image((32, 48, 3), "uint16"), r"'odd' is an image of uint16 \(32, 48, 3\)"),
        (Image((32, 48, 4)), r"'odd' is an image of uint8 \(32, 48, 4\)"),
    ],
)
def test_what_lerobot_has_no_form_for_is_refused_by_name(feature, what):
    with pytest.raises(SchemaError, match=what):
        map_schema(Schema({"action": Array(2), "odd": feature}))
    assert list(forms({"action": Array(2), "odd": feature}, features=["action"])) == ["action"]


def test_a_number_named_task_is_refused():
    with pytest.raises(SchemaError, match=r"'task' is no text.*rename="):
        map_schema(Schema({"task": Array((), "int64")}))


@pytest.mark.parametrize("name", ["left/camera", "", "..", 3])
def test_names_that_cannot_be_are_refused(name):
    with pytest.raises(SchemaError, match="feature 'action' as"):
        map_schema(Schema({"action": Array(2)}), rename={"action": name})


def test_two_features_of_one_name_are_refused():
    with pytest.raises(SchemaError, match="features of one name: 'a' as 'b', 'b' as 'b'"):
        map_schema(Schema({"a": Array(2), "b": Array(2)}), rename={"a": "b"})


@pytest.mark.parametrize(
    "options", [{"features": ["camera"]}, {"rename": {"camera": "x"}}, {"cameras": {"camera": "image"}}]
)
def test_names_that_are_not_there_are_refused(options):
    with pytest.raises(FeatureNotFoundError, match="'camera'"):
        map_schema(Schema({"action": Array(2)}), **options)


def test_a_choice_of_cameras_that_is_none_is_refused():
    with pytest.raises(SchemaError, match=r"cameras='mp4'.*'auto', 'image', 'video'"):
        map_schema(Schema({"camera": Image((32, 48, 3))}), cameras="mp4")


def test_one_type_is_one_name_whatever_the_byte_order(tmp_path):
    pytest.importorskip("pyarrow")
    from stepwell.lerobot import write_dataset

    from .written import read_tables

    store = stepwell.create(tmp_path / "a.well", {"big": Array(2, ">i2")}, fps=10)
    with store.writer() as writer:
        writer.add_episode({"big": np.array([[1, -300]] * 2, ">i2")}, task="x")
    store.refresh()
    write_dataset(store, tmp_path / "set")
    assert read_tables(tmp_path / "set")["big"].to_pylist() == [[1, -300]] * 2
