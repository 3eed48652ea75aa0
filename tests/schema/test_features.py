"""Features: what they refuse, how they print, and that nothing is lost on the way through JSON."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from stepwell.errors import SchemaError
from stepwell.schema import Array, Bytes, Feature, Image, Text
from stepwell.testing import features


@settings(max_examples=100)
@given(features())
def test_feature_comes_back_equal_from_json_and_pickle(feature: Feature) -> None:
    back = Feature.from_json(json.loads(json.dumps(feature.to_json())))
    assert back == feature
    assert back.np_dtype == feature.np_dtype
    assert hash(back) == hash(feature)
    assert pickle.loads(pickle.dumps(feature)) == feature


@pytest.mark.parametrize(
    "dtype",
    ["bool", "u1", ">u2", "<f2", "complex128", "M8[us]", "m8[s]", "S7", "U3", "V5", [("x", "f4"), ("n", "i8", (2,))]],
)
def test_np_dtype_is_the_dtype_that_was_given(dtype: Any) -> None:
    assert Array(3, dtype).np_dtype == np.dtype(dtype)


def test_aligned_structured_dtype_keeps_its_padding() -> None:
    dtype = np.dtype([("flag", "i1"), ("value", "f8")], align=True)
    assert Array(3, dtype).np_dtype == dtype
    assert Array(3, dtype).row_bytes == 48


@pytest.mark.parametrize("shape", [3, np.int64(3), (3,), [3], (np.int32(3),)])
def test_shape_may_be_an_integer_or_integers_of_any_kind(shape: Any) -> None:
    assert Array(shape).shape == (3,)
    assert json.dumps(Array(shape).to_json()["shape"]) == "[3]"


@pytest.mark.parametrize("shape", [3.0, (2.5,), "34", None, -1, (2, None), (2, -1)])
def test_shape_that_is_none_is_refused(shape: Any) -> None:
    with pytest.raises(SchemaError, match="shape"):
        Array(shape)


def test_ragged_feature_of_empty_entries_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"\(None, 0\): entries of no bytes.*1 or more"):
        Array((None, 0))


@pytest.mark.parametrize("dtype", [object, "S", "U", "nope", ("f4", (2,)), [("x", object)], np.dtypes.StringDType()])
def test_dtype_that_a_row_cannot_have_is_refused(dtype: Any) -> None:
    with pytest.raises(SchemaError, match="dtype"):
        Array(3, dtype)


@pytest.mark.parametrize("shape", [(3,), 3, (0, 4), (4, 4, 2), (4, 4, 5), (None, 4, 3), (2, 4, 4, 3)])
def test_shape_that_is_no_image_is_refused_with_those_that_are(shape: Any) -> None:
    with pytest.raises(SchemaError, match=r"not an image. Allowed: \(height, width\) or"):
        Image(shape)


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1), (4, 6, 3), (4, 6, 4)])
def test_image_may_be_grey_colour_or_colour_with_alpha(shape: tuple[int, ...]) -> None:
    assert Image(shape).row_bytes == np.zeros(shape, np.uint8).nbytes


@pytest.mark.parametrize("shape", [(None, None), (None, None, 1), (None, None, 3), (None, None, 4)])
def test_image_may_be_of_any_size(shape: Any) -> None:
    feature = Image(shape, codec="png")
    assert (feature.is_image_of_any_size, feature.is_ragged, feature.is_raw) == (True, True, False)
    assert Feature.from_json(json.loads(json.dumps(feature.to_json()))) == feature
    assert not Array((None, 3)).is_image_of_any_size
    with pytest.raises(SchemaError, match="varies from step to step"):
        _ = feature.fixed_shape


def test_rgb_images_are_of_three_channels_of_bytes():
    assert all(image.is_rgb_image for image in (Image((4, 5, 3)), Image((None, None, 3), codec="jpeg")))
    others = Image((4, 5)), Image((4, 5, 4)), Image((4, 5, 3), "uint16"), Array((4, 5, 3), "uint8"), Array((), "uint8")
    assert not any(other.is_rgb_image for other in others)


@pytest.mark.parametrize("shape", [(None, 4, 3), (4, None, 3), (None, None, None), (None, None, 2), (None,), (None, 4)])
def test_image_of_which_one_side_varies_is_refused(shape: Any) -> None:
    with pytest.raises(SchemaError, match="None for both sides where each image has a size of its own"):
        Image(shape)


def test_array_of_which_other_dimensions_vary_is_refused() -> None:
    with pytest.raises(SchemaError, match="only the first dimension may be None"):
        Array((None, None, 3), "uint8")


@pytest.mark.parametrize(("shape", "names"), [((), ["x"]), (3, ["x", "y"]), ((2, 3), ["a", "b"]), ((None,), ["a"])])
def test_names_must_be_one_for_each_element_of_the_last_axis(shape: Any, names: list[str]) -> None:
    with pytest.raises(SchemaError, match=r"names for shape"):
        Array(shape, names=names)


def test_options_are_sorted_so_that_their_order_does_not_matter() -> None:
    one = Image((4, 4, 3), codec="jpeg", quality=90, subsampling="444")
    assert one == Image((4, 4, 3), codec="jpeg", subsampling="444", quality=90)


def test_numpy_numbers_as_options_become_plain_ones() -> None:
    assert json.dumps(Array(3, codec="zstd", level=np.int64(5)).to_json()["options"]) == '{"level": 5}'


def test_option_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(SchemaError, match="'level' is a list"):
        Array(3, codec="zstd", level=[1])


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "video"},
        {"kind": "text"},
        {"kind": "image"},
        {"dtype": "zz"},
        {"dtype": "["},
        {"dtype": None},
        {"shape": None},
        {"shape": [2, None]},
        {"shape": "3"},
        {"options": 3},
        {"names": ["x"]},
    ],
)
def test_record_that_is_no_feature_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        Feature.from_json({**Array(2).to_json(), **changes})


@pytest.mark.parametrize("missing", ["kind", "dtype", "shape", "codec"])
def test_record_that_lacks_a_key_is_refused(missing: str) -> None:
    record = Array(2).to_json()
    del record[missing]
    with pytest.raises(SchemaError, match=missing):
        Feature.from_json(record)


def test_raw_and_ragged_tell_how_a_feature_lies_on_disk() -> None:
    kinds = {feature: (feature.is_raw, feature.is_ragged) for feature in (Array(2), Array((None, 2)), Text(), Bytes())}
    assert list(kinds.values()) == [(True, False), (False, True), (False, True), (False, True)]
    assert not Image((4, 4), codec="png").is_raw


@pytest.mark.parametrize("feature", [Text(), Bytes(), Array((None, 2))])
def test_ragged_feature_has_no_fixed_size(feature: Feature) -> None:
    with pytest.raises(SchemaError, match="varies"):
        _ = feature.fixed_shape
    with pytest.raises(SchemaError, match="varies"):
        _ = feature.row_bytes


@pytest.mark.parametrize(
    ("feature", "text"),
    [
        (Array(), "raw scalar float32"),
        (Array((None, 3), "f8"), "raw ?x3 float64"),
        (Image((96, 96, 3), codec="jpeg"), "jpeg 96x96x3 uint8"),
        (Text(codec="zstd"), "zstd ? text"),
        (Bytes(), "raw ? bytes"),
    ],
)
def test_feature_prints_codec_size_and_type(feature: Feature, text: str) -> None:
    assert str(feature) == text


def test_with_final_changes_nothing_else() -> None:
    feature = Image((4, 4), "uint16", codec="png", level=2, names="abcd")
    assert feature.with_final() == Image((4, 4), "uint16", codec="png", level=2, names="abcd", final=True)
    assert feature.with_final().with_final(False) == feature
