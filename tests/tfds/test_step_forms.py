"""How rows lie in an Example: exact by default, files of images as they are, and refusals that say what to do."""

import pickle
import zlib

import numpy as np
import pytest

import stepwell
from stepwell.codecs import make_codec
from stepwell.errors import SchemaError
from stepwell.formats.source_episodes import as_view, episodes_of
from stepwell.schema import Array, Bytes, Image, Text, Video
from stepwell.tfds.features import Leaf, Repeated
from stepwell.tfds.step_forms import form_of


def form(feature, *args, **options):
    return form_of("x", feature, *args, **options)


@pytest.mark.parametrize(
    ("feature", "node"),
    [
        (Array(), Leaf("tensor", "float32")),
        (Array((2, 3), ">i4"), Leaf("tensor", "int32", (2, 3))),
        (Array(2, "float64"), Leaf("tensor", "float64", (2,), "bytes")),
        (Array(2, "float16"), Leaf("tensor", "float16", (2,))),
        (Array((), "uint64"), Leaf("tensor", "uint64")),
        (Array((None, 3)), Repeated(Leaf("tensor", "float32", (3,)))),
        (Array((None, 3), "float64"), Leaf("tensor", "float64", (None, 3), "bytes")),
        (Text(), Leaf("text", "string")),
        (Bytes(), Leaf("tensor", "string")),
        (Image((8, 9, 3), codec="jpeg"), Leaf("image", "uint8", (8, 9, 3), image_format="jpeg")),
        (Image((8, 9), codec="png"), Leaf("image", "uint8", (8, 9, 1), image_format="png")),
        (Image((8, 9, 4)), Leaf("image", "uint8", (8, 9, 4), image_format="png")),
        (Image((8, 9, 1), "uint16"), Leaf("image", "uint16", (8, 9, 1), image_format="png")),
        (Image((8, 9, 1), "float32"), Leaf("tensor", "float32", (8, 9, 1))),
    ],
)
def test_each_feature_has_a_form(feature, node):
    found = form(feature)
    assert found.node == node
    assert pickle.loads(pickle.dumps(found)).node == node


def test_encodings_images_and_labels_are_chosen():
    assert form(Array(2, "float64"), "none").node == Leaf("tensor", "float64", (2,))
    assert form(Array(2), "zlib").node == Leaf("tensor", "float32", (2,), "zlib")
    assert form(Image((8, 9, 3)), images="jpeg").node.image_format == "jpeg"
    assert form(Image((8, 9, 1), "uint16"), images="jpeg").node.image_format == "png"
    assert form(Array((), "int64"), labels=["a", "b"]).node == Leaf("label", "int64", num_classes=2)


@pytest.mark.parametrize(
    ("feature", "options", "message"),
    [
        (Array((), "complex64"), {}, "'x' .*: TFDS has no such dtype. Leave it out by features="),
        (Array((), "U5"), {}, "TFDS has no such dtype"),
        (Array((2, 0)), {}, "TensorFlow cannot read features of no values"),
        (Array(2), {"encoding": "gzip"}, "encodings='gzip'. Allowed: 'none', 'bytes', 'zlib'"),
        (Image((8, 9, 3)), {"images": "gif"}, "images='gif'. Allowed: 'jpeg', 'png'"),
        (Array(2, "int64"), {"labels": ["a"]}, "whose numbers are int64 scalars"),
        (Array((), "int32"), {"labels": ["a"]}, "whose numbers are int64 scalars"),
        (Array((), "int64"), {"labels": "ab"}, "Give the name of each class"),
        (Array((), "int64"), {"labels": ["a", ""]}, "Give the name of each class"),
        (Array((), "int64"), {"labels": ["a", "a"]}, "Give the name of each class"),
    ],
)
def test_what_tfds_has_no_form_for_is_refused(feature, options, message):
    with pytest.raises(SchemaError, match=message):
        form(feature, **options)


def test_numbers_become_lists_and_packed_ones_little_endian_bytes():
    rows = np.arange(6, dtype=">f8").reshape(3, 2)
    feature = Array(2, ">f8")
    assert form(feature).lists("k", rows) == {"k": [row.astype("<f8").tobytes() for row in rows]}
    packed = form(feature, "zlib").lists("k", rows)["k"]
    assert [zlib.decompress(row) for row in packed] == [row.astype("<f8").tobytes() for row in rows]
    np.testing.assert_array_equal(form(feature, "none").lists("k", rows)["k"], rows)


def test_ragged_rows_become_values_and_lengths_in_episodes_and_a_list_in_steps():
    rows = [np.ones((2, 3), "f4"), np.zeros((0, 3), "f4"), np.full((1, 3), 2, "f4")]
    ragged = form(Array((None, 3)))
    found = ragged.lists("k", rows)
    np.testing.assert_array_equal(found["k/ragged_flat_values"], np.concatenate(rows))
    np.testing.assert_array_equal(found["k/ragged_row_lengths_0"], [2, 0, 1])
    np.testing.assert_array_equal(ragged.step_lists("k", rows[2:])["k"], rows[2])
    assert ragged.step_lists("k", rows[1:2])["k"].shape == (0, 3)


@pytest.mark.parametrize(
    "feature", [Array((2, 3)), Array((None, 3)), Array((None, 2), "float64"), Array((), "float64"), Text(), Bytes()]
)
def test_a_blank_row_can_be_written(feature):
    found = form(feature)
    assert all(len(values) for values in found.lists("k", [found.blank, found.blank]).values() if feature.is_raw)


@pytest.fixture
def pictures():
    return np.random.default_rng(0).integers(0, 256, (4, 16, 24, 3), dtype="u1")


def written(path, feature, rows):
    store = stepwell.create(path, {"x": feature})
    with store.writer() as writer:
        writer.add_episode({"x": rows})
    store.refresh()
    (episode,) = episodes_of(as_view(store))
    return episode


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_files_of_images_go_out_as_they_are(tmp_path, pictures, codec):
    pytest.importorskip("simplejpeg")
    feature = Image((16, 24, 3), codec=codec)
    episode = written(tmp_path / "a.well", feature, pictures)
    found = form(feature, images="png").read(episode, "x", 3)
    assert found == [blob.tobytes() for blob in episode.blobs("x")[:3]]
    assert form(feature).node.image_format == codec


@pytest.mark.parametrize("feature", [Image((16, 24, 3)), Image((16, 24, 3), codec="zstd")])
@pytest.mark.parametrize("images", ["png", "jpeg"])
def test_other_images_are_encoded(tmp_path, pictures, feature, images):
    pytest.importorskip("simplejpeg")
    episode = written(tmp_path / "a.well", feature, pictures)
    found = form(feature, images=images).read(episode, "x", 4)
    codec = make_codec(Image((16, 24, 3), codec=images))
    assert found == [codec.encode(picture) for picture in pictures]


def test_video_is_encoded(tmp_path, pictures):
    pytest.importorskip("av")
    feature = Video((16, 24, 3))
    episode = written(tmp_path / "a.well", feature, pictures)
    found = form(feature).read(episode, "x", 4)
    codec = make_codec(Image((16, 24, 3), codec="png"))
    decoded = [codec.decode(np.frombuffer(blob, np.uint8)) for blob in found]
    np.testing.assert_array_equal(decoded, episode.read("x"))


@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_images_of_any_size_keep_theirs(tmp_path, codec):
    pytest.importorskip("simplejpeg")
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (8 + step, 9 + step, 3), dtype="u1") for step in range(3)]
    feature = Image((None, None, 3), codec=codec)
    episode = written(tmp_path / "a.well", feature, pictures)
    found = form(feature)
    assert found.node.shape == (None, None, 3)
    assert found.read(episode, "x", 3) == [blob.tobytes() for blob in episode.blobs("x")]


def test_a_blank_image_is_black():
    codec = Image((16, 24, 3), codec="png")
    blank = make_codec(codec).decode(np.frombuffer(form(codec).blank, np.uint8))
    assert blank.shape == (16, 24, 3)
    assert not blank.any()
