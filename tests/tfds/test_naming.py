"""Which features are read, and their names."""

import pytest
from made_sets import FLAG, FLOATS, TEXT, simple_tree, steps_of

from stepwell.errors import FeatureNotFoundError, FormatError
from stepwell.tfds.columns import choose
from stepwell.tfds.features import Fields, Leaf, Repeated

IMAGE = Leaf("image", "uint8", (8, 8, 3))
TREE = Fields(
    {
        **steps_of(
            observation=Fields({"image": IMAGE, "state": FLOATS}),
            is_first=FLAG,
            is_terminal=FLAG,
            timestamp=Leaf("tensor", "float32"),
            statistics=FLOATS,
        ).features,
        "episode_metadata": Fields({"path": TEXT, "robot": Fields({"name": TEXT}), "terminated": FLAG}),
        "source": TEXT,
    }
)


def test_columns_are_called_by_their_path_below_the_steps():
    chosen = choose(TREE)
    assert chosen.steps == ("steps",)
    assert {name: found.key for name, found in chosen.columns.items()} == {
        "observation.image": "steps/observation/image",
        "observation.state": "steps/observation/state",
        "is_terminal": "steps/is_terminal",
        # names that a store computes, or has files of
        "steps.is_first": "steps/is_first",
        "steps.timestamp": "steps/timestamp",
        "steps.statistics": "steps/statistics",
    }


def test_what_stands_beside_the_steps_is_metadata():
    assert {names: found.key for names, found in choose(TREE).metadata} == {
        ("path",): "episode_metadata/path",
        ("robot", "name"): "episode_metadata/robot/name",
        # what a store says itself
        ("episode_metadata", "terminated"): "episode_metadata/terminated",
        ("source",): "source",
    }


def test_flags_are_found_by_their_keys():
    chosen = choose(TREE, features=["observation"])
    assert chosen.flag("is_terminal", TREE) == "steps/is_terminal"
    assert chosen.flag("is_last", TREE) is None
    assert choose(Fields({"is_last": FLAG})).flag("is_last", Fields({"is_last": FLAG})) is None


def test_some_are_kept_and_others_left_out():
    chosen = choose(TREE, features=["observation", "episode_metadata"], ignore=["observation.image"])
    assert list(chosen.columns) == ["observation.state"]
    assert len(chosen.metadata) == 3


def test_others_names_may_be_given():
    chosen = choose(TREE, rename={"observation.image": "image_primary", "is_first": "first"})
    assert {"image_primary", "first"} < set(chosen.columns)


@pytest.mark.parametrize("options", [{"features": ["state"]}, {"ignore": ["x"]}, {"rename": {"y": "z"}}])
def test_names_that_there_are_not_are_refused(options):
    with pytest.raises(FeatureNotFoundError, match=r"There are: observation\.image, "):
        choose(TREE, **options)


def test_two_of_one_name_and_none_at_all_are_refused():
    with pytest.raises(FormatError, match="two features would be called 'is_terminal'"):
        choose(TREE, rename={"is_first": "is_terminal"})
    with pytest.raises(FormatError, match="no features of steps are left"):
        choose(TREE, features=["source"])


def test_without_steps_all_features_are_columns():
    tree = Fields({"image": IMAGE, "label": Leaf("label", "int64"), "objects": Fields({"a b/c": FLOATS})})
    chosen = choose(tree)
    assert (chosen.steps, list(chosen.columns)) == (None, ["image", "label", "objects.a_b_c"])
    assert chosen.metadata == []


def test_any_sequence_may_be_the_steps():
    tree = Fields(
        {"video": Repeated(IMAGE, 4), "label": Leaf("label", "int64"), "log": Fields({"rows": Repeated(FLOATS)})}
    )
    assert choose(tree).steps is None
    chosen = choose(tree, steps="video")
    assert {name: found.key for name, found in chosen.columns.items()} == {"video": "video"}
    assert [names for names, _ in chosen.metadata] == [("label",), ("log", "rows")]
    assert list(choose(tree, steps="log.rows").columns) == ["rows"]
    with pytest.raises(FormatError, match="is no sequence"):
        choose(tree, steps="label")
    with pytest.raises(FormatError, match="there is no such feature"):
        choose(tree, steps="episode")


def test_a_dataset_of_another_name_is_found_and_of_several_one_must_be_named():
    only = Fields({"episode": Repeated(Fields({"a": FLOATS}), is_dataset=True)})
    assert choose(only).steps == ("episode",)
    two = Fields({**only.features, "other": Repeated(FLOATS, is_dataset=True)})
    with pytest.raises(FormatError, match=r'several sequences could be the steps: episode, other\. Say which: steps="'):
        choose(two)
    assert choose(Fields({**two.features, **simple_tree().features})).steps == ("steps",)
