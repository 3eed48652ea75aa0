"""What images are is told by their files: the format, and sizes that features.json leaves open."""

from itertools import chain

import numpy as np
import pytest
from made_sets import FLOATS, simple_tree, write_set

import stepwell
from stepwell.codecs import make_codec
from stepwell.errors import FormatError
from stepwell.formats import import_dataset
from stepwell.schema import Image
from stepwell.tfds.features import Fields, Leaf, Repeated
from stepwell.tfds.reader import TfdsReader

pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")


def leaf(shape=(None, None, 3), image_format="png", dtype="uint8"):
    return Leaf("image", dtype, shape, image_format=image_format)


def pixels(height, width, channels=3, dtype="uint8"):
    return np.random.default_rng(height * width).integers(0, 255, (height, width, channels)).astype(dtype)


def file_of(image, codec="png"):
    return make_codec(Image(image.shape, image.dtype, codec=codec)).encode(image)


def written(root, feature, shards):
    tree = Fields({"image": feature, "x": FLOATS})
    examples = [[{"image": [blob], "x": np.zeros(2, np.float32)} for blob in shard] for shard in shards]
    return str(write_set(root, tree, {"train": examples}))


def schema_of(path, **options):
    return TfdsReader(path, **options).schema["image"]


def test_images_that_are_all_alike_have_a_fixed_size(tmp_path):
    path = written(tmp_path, leaf(), [[file_of(pixels(8, 9))] * 3, [], [file_of(pixels(8, 9))]])
    assert schema_of(path) == Image((8, 9, 3), codec="png")


@pytest.mark.parametrize("shards", [[[(8, 9)], [(9, 8)]], [[(8, 9), (8, 9), (8, 10)]]], ids=["seen at once", "at last"])
def test_one_of_another_size_makes_them_images_of_any_size(tmp_path, shards):
    images = [[pixels(*size) for size in shard] for shard in shards]
    path = written(tmp_path, leaf(), [[file_of(image) for image in shard] for shard in images])
    assert schema_of(path) == Image((None, None, 3), codec="png")
    import_dataset(path, tmp_path / "a.well", workers=1, progress=False)
    for store in (stepwell.open(tmp_path / "a.well", mode="r"), stepwell.open(f"tfds://{path}")):
        for episode, wanted in zip(store, chain(*images), strict=True):
            assert np.array_equal(episode["image"][0], wanted)


def test_sizes_that_are_told_are_not_looked_for(tmp_path):
    path = written(tmp_path, leaf((8, 9, 3)), [[file_of(pixels(8, 9))]])
    assert schema_of(path) == Image((8, 9, 3), codec="png")


def test_the_format_is_what_the_files_are_whatever_is_told(tmp_path):
    path = written(tmp_path, leaf((16, 16, 3), "png"), [[file_of(pixels(16, 16), "jpeg")]])
    assert schema_of(path).codec == "jpeg"


def test_files_of_both_formats_are_refused(tmp_path):
    both = [file_of(pixels(16, 16), "jpeg"), file_of(pixels(16, 16))]
    path = written(tmp_path / "open", leaf(), [[blob] for blob in both])
    with pytest.raises(FormatError, match=r"has jpeg and png files.*ignore=\['image'\]"):
        schema_of(path)
    reader = TfdsReader(written(tmp_path / "fixed", leaf((16, 16, 3)), [both]))
    assert reader[0].columns["image"].num_rows == 1
    with pytest.raises(FormatError, match=r"record 1, byte \d+: 'image': an image that is no file of jpeg"):
        reader[1]


@pytest.mark.parametrize("blob", [b"", b"GIF89a", b"\x89P", b"\xff\xd8\xff"], ids=repr)
def test_what_is_no_image_is_refused(tmp_path, blob):
    with pytest.raises(FormatError, match="image"):
        schema_of(written(tmp_path, leaf(), [[blob]]))


@pytest.mark.parametrize(("channels", "dtype"), [(1, "uint8"), (4, "uint8"), (1, "uint16")])
def test_images_of_other_channels_and_types(tmp_path, channels, dtype):
    image = pixels(8, 9, channels, dtype)
    path = written(tmp_path, leaf((None, None, channels), dtype=dtype), [[file_of(image)]])
    store = stepwell.open(f"tfds://{path}")
    assert (store.schema["image"].shape, store.schema["image"].np_dtype) == ((8, 9, channels), np.dtype(dtype))
    assert np.array_equal(store[0]["image"][0], image)


def test_images_of_float32_are_the_channels_of_png_files(tmp_path):
    depth = np.random.default_rng(0).normal(size=(8, 9, 1)).astype("<f4")
    path = written(tmp_path, leaf((8, 9, 1), dtype="float32"), [[file_of(depth.view(np.uint8))] * 2])
    import_dataset(path, tmp_path / "a.well", workers=1, progress=False)
    for store in (stepwell.open(tmp_path / "a.well", mode="r"), stepwell.open(f"tfds://{path}")):
        assert store.schema["image"] == Image((8, 9, 1), "float32")
        assert np.array_equal(store[1]["image"][0], depth)
    with pytest.raises(FormatError, match="record 0, byte 12: 'image': png row"):
        TfdsReader(written(tmp_path / "b", leaf((8, 9, 1), dtype="float32"), [[file_of(pixels(8, 9))]]))[0]


def test_a_video_is_an_episode_where_its_images_are_the_steps(tmp_path):
    images = [pixels(8, 9), pixels(9, 8)]
    tree = Fields({"video": Repeated(leaf()), "label": Leaf("label", "int64", num_classes=2)})
    example = {"video": [file_of(image) for image in images], "label": np.array([1])}
    path = str(write_set(tmp_path, tree, {"train": [[example]]}))
    with pytest.raises(FormatError, match=r"feature 'video' is a sequence of images.*steps="):
        assert TfdsReader(path).schema
    (episode,) = stepwell.open(f"tfds://{path}", steps="video")
    assert episode.metadata == {"label": 1}
    assert all(map(np.array_equal, episode["video"], images))


def test_images_of_steps_are_looked_at_too(tmp_path):
    tree = simple_tree(image=leaf())
    last = np.array([False, True])
    lists = {
        "steps/action": np.zeros(4, np.float32),
        "steps/is_last": last,
        "steps/is_terminal": last,
        "steps/image": [file_of(pixels(8, 9)), file_of(pixels(9, 9))],
    }
    path = write_set(tmp_path, tree, {"train": [[lists]]})
    assert schema_of(str(path)).shape == (None, None, 3)
    (episode,) = stepwell.open(f"tfds://{path}")
    assert [image.shape for image in episode["image"]] == [(8, 9, 3), (9, 9, 3)]
