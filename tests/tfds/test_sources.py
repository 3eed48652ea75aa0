"""What is written: views by split, and the names of classes that an import left, unless others are given."""

import pytest

import stepwell
from stepwell import Array
from stepwell.errors import EpisodeNotFoundError, StepwellError
from stepwell.tfds.features import Leaf
from stepwell.tfds.writing import entries_of, steps_of, views_of

TOLD = {"steps/phase": ["open", "closed"], "steps/wide": ["a"], "episode_metadata/robot": ["panda", "ur5"]}


@pytest.fixture
def store(tmp_path):
    schema = {"phase": Array((), "int64"), "wide": Array(2, "int64"), "steps.is_first": Array((), "bool")}
    store = stepwell.create(tmp_path / "a.well", schema, metadata={"tfds": {"labels": TOLD}})
    with store.writer() as writer:
        columns = {"phase": [0, 1], "wide": [[0, 1], [1, 0]], "steps.is_first": [True, False]}
        writer.add_episode(columns, robot=1, tfds_split="val")
    store.refresh()
    return store


def nodes(columns):
    return {column.path: column.form.node for column in columns}


def test_names_of_classes_come_from_the_import_where_they_fit(store):
    found = nodes(steps_of(views_of(store, "train"), None, None))
    assert found["phase"] == Leaf("label", "int64", num_classes=2)
    # no scalar any more: somebody made another feature of that name
    assert found["wide"] == Leaf("tensor", "int64", (2,))
    assert found["is_first"] == Leaf("tensor", "bool")
    (robot,) = entries_of(views_of(store, "train"), None, None)
    assert robot.labels == ("panda", "ur5")


def test_given_names_of_classes_come_first(store):
    labels = {"phase": ["x", "y", "z"], "episode_metadata.robot": ["r0", "r1", "r2"]}
    (phase,) = steps_of(views_of(store, "train"), ["phase"], labels)
    assert phase.form.names == ("x", "y", "z")
    (robot,) = entries_of(views_of(store, "train"), None, labels)
    assert robot.labels == ("r0", "r1", "r2")


def test_the_split_that_an_import_tells_is_written_only_when_it_is_asked_for(store):
    views = views_of(store, "train")
    assert [column.path for column in entries_of(views, None, None)] == ["robot"]
    assert [column.path for column in entries_of(views, ["tfds_split"], None)] == ["tfds_split"]


def test_a_single_source_is_one_split_and_a_mapping_several(store):
    assert list(views_of(store, "test")) == ["test"]
    assert list(views_of({"a": store, "b": store.path}, "test")) == ["a", "b"]
    with pytest.raises(EpisodeNotFoundError, match="no splits"):
        views_of({}, "train")
    with pytest.raises(StepwellError, match=r"split='a b'. Allowed"):
        views_of({"a b": store}, "train")
