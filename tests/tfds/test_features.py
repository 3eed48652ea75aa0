"""features.json in both forms, of all classes; and what is none."""

import json

import pytest

from stepwell.errors import FormatError
from stepwell.tfds.features import Fields, Leaf, Repeated, feature_json, parse_feature, walk

CORE = "tensorflow_datasets.core.features"


def old(name, content, **more):
    return {"type": f"{CORE}.{name}", "content": content, **more}


def test_the_tree_of_a_real_dataset_is_read_and_written_alike(rlds_sets):
    record = json.loads((rlds_sets / "tfrecord/mini_rlds/1.2.3/features.json").read_text())
    tree = parse_feature(record)
    assert feature_json(tree) == record
    placed = {found.key: found for found in walk(tree)}
    assert placed["steps/observation/image"].leaf == Leaf(
        "image", "uint8", (64, 64, 3), image_format="jpeg", class_name=f"{CORE}.image_feature.Image"
    )
    assert placed["steps/action"].lengths == (None,)
    assert placed["episode_metadata/robot_id"].leaf.num_classes == 2


OLD_TREE = old(
    "features_dict.FeaturesDict",
    {
        "image": old("image_feature.Image", {"shape": [28, None, 1], "dtype": "uint8", "encoding_format": "png"}),
        "label": old("class_label_feature.ClassLabel", {"num_classes": 10}),
        "words": old("sequence_feature.Sequence", {"feature": old("text_feature.Text", {}), "length": None}),
        "box": old("bounding_boxes.BBoxFeature", {}),
        "state": old("tensor_feature.Tensor", {"shape": [3], "dtype": "float64", "encoding": "zlib"}),
        "video": old(
            "video_feature.Video", {"shape": [None, 8, 8, 3], "encoding_format": "jpeg", "ffmpeg_extra_args": []}
        ),
    },
)


def test_the_older_form_is_read():
    assert {found.key: (str(found.leaf), found.lengths) for found in walk(parse_feature(OLD_TREE))} == {
        "image": ("Leaf(image png uint8 (28, None, 1))", ()),
        "label": ("Leaf(label int64 ())", ()),
        "words": ("Leaf(text string ())", (None,)),
        "box": ("Leaf(tensor float32 (4,))", ()),
        "state": ("Leaf(tensor zlib float64 (3,))", ()),
        "video": ("Leaf(image jpeg uint8 (8, 8, 3))", (None,)),
    }


def test_contents_that_are_text_and_messages_in_the_older_form_are_read():
    tensor = {"shape": {"dimensions": ["3", "-1"]}, "dtype": "int64", "encoding": "bytes"}
    record = old("tensor_feature.Tensor", json.dumps(tensor), proto_cls="tensorflow_datasets.TensorFeature")
    assert parse_feature(record) == parse_feature({**record, "content": tensor})
    assert parse_feature(record).shape == (3, None)
    names = {"features": {"features": {"pythonClassName": f"{CORE}.text_feature.Text", "text": {}}}}
    assert list(parse_feature(old("features_dict.FeaturesDict", names)).features) == ["features"]


def newer(path, **content):
    return {"pythonClassName": f"{CORE}.{path}", **content}


SOME = {"dimensions": ["-1"]}
OTHERS = {
    "audio": (newer("audio_feature.Audio", audio={"shape": SOME, "dtype": "int64"}), "Leaf(tensor int64 (None,))"),
    "lazy audio": (newer("audio_feature.Audio", audio={"lazyDecode": True}), "Leaf(tensor string ())"),
    "optional": (newer("scalar.Scalar", tensor={"dtype": "bool", "optional": True}), "Leaf(tensor bool ())"),
    "image of any size": (newer("image_feature.Image", image={}), "Leaf(image uint8 (None, None, 3))"),
    "string tensor": (newer("tensor_feature.Tensor", tensor={"dtype": "string"}), "Leaf(tensor string ())"),
    "an alias": (newer("feature.Tensor", tensor={"dtype": "bool"}), "Leaf(tensor bool ())"),
    "bfloat16": (newer("scalar.Scalar", tensor={"dtype": "bfloat16"}), "unknown"),
    "complex": (newer("scalar.Scalar", tensor={"dtype": "complex64"}), "unknown"),
    "token ids": (newer("text_feature.Text", text={"useEncoder": True}), "unknown"),
    "one's own": ({"pythonClassName": "my.Features", "jsonFeature": {"json": "{}"}}, "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_classes_are_read_or_unknown(name):
    record, told = OTHERS[name]
    leaf = parse_feature(record)
    assert (leaf.kind if told == "unknown" else str(leaf)) == told
    assert leaf.class_name.startswith(record["pythonClassName"])


def test_translations_are_texts_by_language():
    tree = parse_feature(newer("translation_feature.Translation", translation={"languages": ["de", "en"]}))
    assert [found.key for found in walk(tree)] == ["de", "en"]
    several = parse_feature(newer("translation_feature.TranslationVariableLanguages", sequence={}))
    assert isinstance(several, Repeated)


TREE = Fields(
    {
        "steps": Repeated(
            Fields({"a": Leaf("tensor", "float64", (2, 3), "zlib", is_optional=True), "t": Leaf("text", "string")}),
            is_dataset=True,
        ),
        "fixed": Repeated(Leaf("image", "uint16", (None, None, 1), image_format="png"), 4),
        "label": Leaf("label", "int64", num_classes=3),
        "one": Leaf("tensor", "string"),
    }
)


def test_a_tree_comes_back():
    def plain(tree):
        return [(found.path, str(found.leaf), found.lengths, found.leaf.is_optional) for found in walk(tree)]

    again = parse_feature(json.loads(json.dumps(feature_json(TREE))))
    assert plain(again) == plain(TREE)
    assert again.features["steps"].is_dataset
    assert not again.features["fixed"].is_dataset


DAMAGED = [
    [],
    {},
    {"pythonClassName": f"{CORE}.sequence_feature.Sequence", "sequence": {}},
    newer("tensor_feature.Tensor", tensor={"dtype": "float32", "shape": {"dimensions": ["x"]}}),
    newer("tensor_feature.Tensor", tensor={"dtype": "float32", "shape": {"dimensions": [str(2**40)]}}),
    newer("tensor_feature.Tensor", tensor={"dtype": "float32", "encoding": "gzip"}),
    newer("features_dict.FeaturesDict", featuresDict={"features": {"a": 1}}),
    {"type": "x", "content": "{"},
]


@pytest.mark.parametrize("record", DAMAGED, ids=str)
def test_what_is_no_description_is_an_error_that_names_the_file(record):
    with pytest.raises(FormatError, match=r"^there/features\.json: "):
        parse_feature(record, "there/features.json")


def test_features_within_each_other_end_somewhere():
    record = newer("scalar.Scalar", tensor={"dtype": "bool"})
    for _ in range(50):
        record = newer("sequence_feature.Sequence", sequence={"feature": record})
    with pytest.raises(FormatError, match="more than 32 deep"):
        parse_feature(record)


def test_content_under_a_name_that_is_none_is_an_error():
    record = feature_json(Fields({"a": Leaf("tensor", "float32", (2,))}))
    record["featiresDict"] = record.pop("featuresDict")
    with pytest.raises(FormatError, match=r"FeaturesDict has 'featiresDict', and none of tensor"):
        parse_feature(record)
    text = {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "description": "a task"}
    assert parse_feature(text).kind == "text"
