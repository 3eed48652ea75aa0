"""RLDS and TFDS datasets that the real TensorFlow Datasets wrote: all values as TensorFlow reads them."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from formats_process import PYTHON, REASON, FormatsProcess

import stepwell
from stepwell import convert
from stepwell.formats import even_splits
from stepwell.tfds import TfdsReader
from stepwell.tfds.features import parse_feature, walk

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason=REASON)
SHARED = Path(__file__).parents[3] / "shared" / "data"
# TensorFlow's own decoder of JPEG is off by as much as this
JPEG_ATOL = 24
COMPUTED = ("is_first", "is_last")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    with FormatsProcess("tfds_child.py", tmp_path_factory.mktemp("log") / "errors") as process:
        yield process


def made(process, folder, **arguments):
    """Return the directory of a random dataset, and its examples."""
    told = process.ask("make", root=str(folder), out=str(folder / "values"), **arguments)
    return told["path"], pickle.loads((folder / "values").read_bytes())


def strings_of(path):
    """Return the names of strings that are no text."""
    tree = parse_feature(json.loads((path / "features.json").read_text()))
    return [
        ".".join(found.path).removeprefix("steps.")
        for found in walk(tree)
        if (found.leaf.kind, found.leaf.dtype) == ("tensor", "string")
    ]


def assert_same(found, wanted, feature, where):
    if isinstance(wanted, bytes):
        assert (found.encode() if isinstance(found, str) else found) == wanted, where
        return
    if type(wanted) in {bool, int, float}:  # TFDS's reading by numpy makes Python's numbers of scalars
        assert np.asarray(found).item() == wanted, where
        return
    wanted = np.asarray(wanted)
    found = np.asarray(found)
    if wanted.size == found.size == 0:
        return
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), where
    if feature.codec in ("jpeg", "file-span") and feature.option("format", "jpeg") == "jpeg":
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= JPEG_ATOL, where
    else:
        np.testing.assert_array_equal(found, wanted, err_msg=where)


def assert_same_store(store, examples):
    assert len(store) == len(examples)
    for episode, example in zip(store, examples, strict=True):
        steps = example.get("steps", [example])
        assert episode.length == len(steps)
        for index, step in enumerate(steps):
            for name, wanted in step.items():
                ours = f"steps.{name}" if name in COMPUTED else name
                found = episode[ours][index]
                assert_same(found, wanted, store.schema[ours], f"episode {episode.index} step {index} {name}")
        if "steps" in example:
            assert (episode.terminated, episode.truncated) == ends(steps[-1])
            told = {name: value for name, value in example.items() if name != "steps"}
            assert_same_metadata(episode.metadata, told)


def ends(last):
    return bool(last["is_terminal"]), not last["is_terminal"]


def assert_same_metadata(found, told):
    assert len(found) == len(told)
    for name, wanted in told.items():
        value = found[name.removeprefix("episode_metadata.")]
        if isinstance(wanted, bytes):
            assert value == wanted.decode()
        else:
            np.testing.assert_array_equal(np.array(value, np.asarray(wanted).dtype), wanted)


@pytest.mark.parametrize("is_rlds", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_random_tfrecord_datasets_are_imported_and_opened_with_the_same_values(theirs, tmp_path, seed, is_rlds):
    path, examples = made(theirs, tmp_path, seed=seed, is_rlds=is_rlds, file_format="tfrecord")
    options = {"as_bytes": strings_of(tmp_path / path)}
    convert(path, tmp_path / "ours.well", workers=1, progress=False, **options)
    assert_same_store(stepwell.open(tmp_path / "ours.well", mode="r"), examples)
    assert_same_store(stepwell.open(f"tfds://{path}", **options), examples)


@pytest.mark.parametrize("seed", range(4))
def test_random_array_record_datasets_are_imported_with_the_same_values(theirs, tmp_path, seed):
    pytest.importorskip("array_record")
    path, examples = made(theirs, tmp_path, seed=seed, is_rlds=seed % 2 == 0, file_format="array_record")
    options = {"as_bytes": strings_of(tmp_path / path)}
    convert(path, tmp_path / "ours.well", workers=1, progress=False, **options)
    assert_same_store(stepwell.open(tmp_path / "ours.well", mode="r"), examples)


SPLITS = [
    "train", "train[:10%]", "train[33%:66%]", "train[-25%:]", "train[10:20]", "train[-5:]", "train[:-3]", "train[:1_0]",
    "train[:1shard]", "train[1shard]", "train[-1shard]", "train[-2shard:]", "train+val", "train[:50%] + val[2:]", "all",
    "val[:45%]", "val[:55%]", "val[15%:25%]",
]  # fmt: skip


def test_splits_and_even_parts_are_the_same_examples_in_the_same_order(theirs):
    path = SHARED / "tfds_images" / "tfrecord" / "mini_images" / "1.0.0"
    if not path.exists():
        pytest.skip("the shared samples are not here")
    told = theirs.ask("split_ids", path=str(path), splits=SPLITS, parts=4)
    even = [part for split in SPLITS for drop in (False, True) for part in [even_splits(split, 4, drop_remainder=drop)]]
    assert [ids(path, split) for split in SPLITS] == told["ids"]
    assert [[ids(path, part) for part in parts] for parts in even] == told["even"]


def ids(path, split):
    reader = TfdsReader(str(path), split=split, features=["id"])
    return [int(episode.columns["id"][0]) for episode in reader.episodes()]
