"""Damaged datasets: the right data or an error of stepwell's, in bounded memory, whatever is damaged."""

import gzip

import numpy as np
import pytest
from made_sets import TEXT, episode, simple_tree, write_set

from stepwell.testing.damage import check_damage
from stepwell.tfds.examples import encode_example
from stepwell.tfds.features import Fields, Leaf, Repeated
from stepwell.tfds.framing import framed
from stepwell.tfds.reader import TfdsReader

TREE = Fields(
    {
        **simple_tree(
            image=Leaf("image", "uint8", (None, None, 3), image_format="png"),
            packed=Leaf("tensor", "float64", (None, 2), "zlib"),
            goals=Repeated(Leaf("tensor", "uint8", (2,))),
            words=Repeated(TEXT),
        ).features,
        "episode_metadata": Fields({"path": TEXT, "robot": Leaf("label", "int64", num_classes=2)}),
    }
)
COPIES = 30


def lists_of(number):
    import zlib

    from stepwell.codecs import make_codec
    from stepwell.schema import Image

    encode = make_codec(Image((6, 9, 3), codec="png")).encode
    length = 2 + number
    return episode(
        length,
        number,
        **{
            "steps/image": [encode(np.full((6, 9, 3), step, np.uint8)) for step in range(length)],
            "steps/packed": [zlib.compress(np.ones((step, 2)).tobytes()) for step in range(length)],
            "steps/goals/ragged_flat_values": np.arange(2 * length),
            "steps/goals/ragged_row_lengths_0": np.ones(length, np.int64),
            "steps/words/ragged_flat_values": [b"go"],
            "steps/words/ragged_row_lengths_0": np.eye(1, length, dtype=np.int64)[0],
            "episode_metadata/path": [b"/raw"],
            "episode_metadata/robot": np.array([1]),
        },
    )


@pytest.fixture
def path(tmp_path):
    pytest.importorskip("imagecodecs")
    return write_set(tmp_path, TREE, {"train": [[lists_of(0), lists_of(1)], [lists_of(2)]]})


def values_of(path):
    """Return all that a dataset holds, as text."""
    reader = TfdsReader(str(path))
    assert len(reader.schema)
    rows = [
        {
            name: list(values.rows(values.feature))
            if hasattr(values, "feature")
            else np.asarray(values, object).tolist()
            for name, values in found.columns.items()
        }
        for found in reader.episodes()
    ]
    return str([rows, [found.metadata for found in reader.episodes()]])


@pytest.mark.parametrize("name", ["made-train.tfrecord-00000-of-00002", "made-train.tfrecord-00001-of-00002"])
def test_damaged_records_are_errors(path, name):
    good = values_of(path)
    report = check_damage(path / name, lambda _: values_of(path), count=COPIES, is_right=lambda found: found == good)
    assert sum(report.errors.values()) + report.num_read == COPIES


@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_damaged_descriptions_are_errors_or_describe_something(path, name):
    report = check_damage(path / name, lambda _: values_of(path), count=2 * COPIES)
    assert sum(report.errors.values()) > COPIES


def test_damaged_compressed_files_are_errors(path):
    file = path / "made-train.tfrecord-00001-of-00002"
    file.write_bytes(gzip.compress(file.read_bytes()))
    good = values_of(path)
    report = check_damage(file, lambda _: values_of(path), count=COPIES, is_right=lambda found: found == good)
    assert report.errors


def test_damaged_examples_with_right_checksums_are_errors_or_other_values(path):
    file = path / "made-train.tfrecord-00001-of-00002"
    good = file.read_bytes()

    def read(place):
        # what is damaged here is damaged before it is framed
        place.write_bytes(framed(place.read_bytes()))
        return values_of(path)

    file.write_bytes(encode_example(lists_of(2)))
    report = check_damage(file, read, count=2 * COPIES)
    assert report.errors
    file.write_bytes(good)
    assert values_of(path)
