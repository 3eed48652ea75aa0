"""Steps of records: rows in memory and in the file, and blocks of them."""

import numpy as np
import pytest
from made_sets import FLAG, episode, simple_tree

from stepwell.codecs import make_codec
from stepwell.errors import FormatError
from stepwell.references.file_spans import span_feature
from stepwell.schema import Array, Image
from stepwell.tfds.columns import column_of
from stepwell.tfds.examples import encode_example
from stepwell.tfds.features import Leaf, Placed, walk
from stepwell.tfds.framing import framed
from stepwell.tfds.record_files import TFRecordFile
from stepwell.tfds.steps import HeldSpans, ImageRows, StepDecoder, block_of

FEATURE = Image((6, 7, 3), codec="png")
TREE = simple_tree(image=Leaf("image", "uint8", (6, 7, 3), image_format="png"))


def file_of(step):
    return make_codec(FEATURE).encode(np.full((6, 7, 3), step, np.uint8))


@pytest.fixture
def path(tmp_path):
    pytest.importorskip("imagecodecs")
    examples = [episode(n, **{"steps/image": [file_of(step) for step in range(n)]}) for n in (3, 2)]
    path = tmp_path / "a.tfrecord"
    path.write_bytes(b"".join(framed(encode_example(example)) for example in examples))
    return str(path)


def columns(feature=FEATURE):
    made = [column_of(found.path[-1], found, in_steps=True) for found in walk(TREE)]
    from dataclasses import replace

    return [replace(column, feature=feature) if column.is_image else column for column in made]


def decoded(path, **flags):
    return StepDecoder(columns(), is_last="steps/is_last", **flags).decode(TFRecordFile(path).read(0, 9), path)


def test_rows_of_all_records_come_one_after_the_other(path):
    steps = decoded(path)
    assert (len(steps), steps.edges.tolist(), steps.rows["action"].shape) == (2, [0, 3, 5], (5, 2))
    assert (steps.terminated.tolist(), steps.truncated.tolist()) == ([False, False], [True, True])
    assert list(steps.rows["image"].in_memory(3, 5, FEATURE)) == [file_of(0), file_of(1)]


def test_the_bytes_of_images_lie_where_the_file_has_them(path):
    rows = decoded(path).rows["image"]
    with open(path, "rb") as file:  # noqa: PTH123
        data = file.read()
    offsets, sizes = rows.in_file(0, 5)
    found = [data[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]
    assert found == [file_of(step) for step in (0, 1, 2, 0, 1)]


def test_rows_that_are_held_are_copied_from_memory_and_referred_to_in_the_file(path):
    steps = decoded(path)
    held = steps.rows["image"].part(3, 5, FEATURE, [path], 0)
    gone = steps.without_data().rows["image"].part(3, 5, FEATURE, [path], 0)
    assert isinstance(held, HeldSpans)
    assert (held.num_rows, held.nbytes) == (gone.num_rows, gone.nbytes)
    for feature in (FEATURE, span_feature(FEATURE, [path])):
        assert list(held.rows(feature)) == list(gone.rows(feature))


def test_rows_of_no_file_are_in_memory():
    data = np.frombuffer(file_of(1) + np.float32([1, 2]).tobytes(), np.uint8)
    size = data.size - 8
    assert list(ImageRows(np.array([0]), np.array([size]), data, None).part(0, 1, FEATURE, [], 0)) == [file_of(1)]
    plain = ImageRows(np.array([size]), np.array([8]), data, None).part(0, 1, Array(2), [], 0)
    assert plain.tolist() == [[1, 2]]


def test_a_block_is_a_part_of_the_records(path):
    steps = decoded(path)
    block = block_of(steps, 1, columns(), [{"a": 1}], 0)
    assert (block.lengths.tolist(), block.metadata, len(block.columns["image"])) == ([2], [{"a": 1}], 2)
    assert np.array_equal(block.columns["action"], steps.rows["action"][3:])
    copied = block_of(steps, 0, columns(), [{}], None).columns["image"]
    assert copied.data.tobytes() == b"".join(map(file_of, range(3)))


def test_where_nothing_tells_how_many_steps_there_are_it_is_an_error(path):
    empty = column_of("x", Placed(("steps", "x"), Leaf("tensor", "float32", (0,)), (None,)), in_steps=True)
    with pytest.raises(FormatError, match="record 0, byte 12: no feature that tells how many steps"):
        StepDecoder([empty]).decode(TFRecordFile(path).read(0, 1), path)
    flag = column_of("f", Placed(("steps", "is_last"), FLAG, (None,)), in_steps=True)
    steps = StepDecoder([empty, flag]).decode(TFRecordFile(path).read(0, 2), path)
    assert steps.rows["x"].shape == (5, 0)
