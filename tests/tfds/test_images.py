"""What images are is told by their files: the format, and sizes that features.json leaves open."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from kinds_of_images import image_files
from made_sets import FLOATS, simple_tree, write_set
from made_sets import episode as lists_of_episode

import stepwell
from stepwell import Loader, convert
from stepwell.codecs import make_codec
from stepwell.errors import FormatError
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
    convert(path, tmp_path / "a.well", workers=1, progress=False)
    for store in (stepwell.open(tmp_path / "a.well", mode="r"), stepwell.open(f"tfds://{path}")):
        for episode, wanted in zip(store, chain(*images), strict=True):
            assert np.array_equal(episode["image"][0], wanted)


def test_sizes_that_are_told_are_not_looked_for(tmp_path):
    path = written(tmp_path, leaf((8, 9, 3)), [[file_of(pixels(8, 9))]])
    assert schema_of(path) == Image((8, 9, 3), codec="png")


def test_all_files_are_read_once_for_all_images_whose_size_is_open(tmp_path, monkeypatch):
    tree = Fields({"a": leaf(), "b": leaf(), "c": leaf((4, 4, 3)), "d": leaf()})
    example = {"a": [file_of(pixels(8, 9))], "b": [file_of(pixels(9, 8))], "c": [file_of(pixels(4, 4))]}
    shards = [[{**example, "d": [file_of(pixels(side, 2))]} for side in (2, 2)] for _ in range(3)]
    shards[2][1]["d"] = [file_of(pixels(3, 2))]
    path, readings = str(write_set(tmp_path, tree, {"train": shards})), []
    read = TfdsReader._all_records
    monkeypatch.setattr(TfdsReader, "_all_records", lambda reader: readings.append(reader) or read(reader))
    schema = TfdsReader(path).schema
    assert [schema[name].shape[:2] for name in "abcd"] == [(8, 9), (9, 8), (4, 4), (None, None)] and len(readings) == 1


def test_the_format_is_what_the_files_are_whatever_is_told(tmp_path):
    path = written(tmp_path, leaf((16, 16, 3), "png"), [[file_of(pixels(16, 16), "jpeg")]])
    assert schema_of(path).codec == "jpeg"


def stores_of(tmp_path, path, **options):
    """Return the dataset imported, and in place."""
    convert(path, tmp_path / "a.well", workers=1, progress=False, **options)
    return stepwell.open(tmp_path / "a.well", mode="r"), stepwell.open(f"tfds://{path}", **options)


FILES = image_files(20, 30)
# JPEG and lossy WebP come close
ATOL = 24


def assert_shows(image, name):
    most = 0 if FILES[name].is_exact else ATOL
    assert np.abs(image.astype(int) - FILES[name].colors).max() <= most, name


@pytest.mark.parametrize("shape", [(20, 30, 3), (None, None, 3), (None, None, None)], ids=str)
@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_files_of_every_kind_show_their_colours_in_place_imported_and_in_windows(tmp_path, shape, codec):
    names = [name for name in FILES if name.startswith(codec) and "alpha" not in name and "rgba" not in name]
    path = written(tmp_path, leaf(shape), [[FILES[name].data for name in names]])
    for store in stores_of(tmp_path, path):
        assert store.schema["image"].shape == (20, 30, 3)
        for name, episode in zip(names, store, strict=True):
            assert_shows(episode["image"][0], name)
        (batch,) = Loader(store, {"image": [-1, 0]}, batch_size=len(names), order="sequential")
        for name, window in zip(names, batch["image"], strict=True):
            assert_shows(window[1], name)


def test_alpha_is_left_out_where_the_feature_has_three_channels_and_kept_where_it_has_four(tmp_path):
    names = [name for name in FILES if name.startswith("png") and " 16" not in name]
    blobs = [FILES[name].data for name in names]
    three = written(tmp_path / "3", leaf(), [blobs])
    four = written(tmp_path / "4", leaf((None, None, 4)), [blobs])
    opened, whole = stepwell.open(f"tfds://{three}"), stepwell.open(f"tfds://{four}")
    for name, plain, with_alpha in zip(names, opened, whole, strict=True):
        assert_shows(plain["image"][0], name)
        assert_shows(with_alpha["image"][0][..., :3], name)


@pytest.mark.parametrize(
    ("names", "channels"),
    [
        (["png grey", "png grey 1"], 1),
        (["png grey", "png palette 8"], 3),
        (["png grey", "png rgba"], 4),
        (["jpeg grey"], 1),
        (["jpeg grey", "jpeg cmyk"], 3),
    ],
)
def test_channels_that_nothing_tells_are_those_that_the_files_need(tmp_path, names, channels):
    blobs = [FILES[name].data for name in names]
    path = written(tmp_path, leaf((None, None, None)), [blobs[:1] * 3 + blobs])
    assert schema_of(path).shape == (20, 30, channels)


def test_grey_of_colours_is_made_where_the_feature_is_grey_but_not_of_inks(tmp_path):
    colors = FILES["png rgb"].colors
    path = written(tmp_path / "a", leaf((None, None, 1)), [[FILES["png rgb"].data, FILES["png grey"].data]])
    first, second = stepwell.open(f"tfds://{path}")
    assert np.abs(first["image"][0][..., 0] - colors @ [0.299, 0.587, 0.114]).max() < 1.01
    assert np.array_equal(second["image"][0], FILES["png grey"].colors[..., :1])
    inks = written(tmp_path / "b", leaf((None, None, 1)), [[FILES["jpeg cmyk"].data]])
    with pytest.raises(
        FormatError, match=r"record 0 or after, 'image'.*CMYK, where the feature is.*ignore=\['image'\]"
    ):
        schema_of(inks)


def test_files_of_several_formats_that_are_seen_are_kept_as_they_are(tmp_path):
    names = ["jpeg grey", "png palette 4", "webp lossless", "jpeg cmyk"]
    path = written(tmp_path, leaf(), [[FILES[name].data] for name in names])
    assert schema_of(path) == Image((20, 30, 3), codec="image-file")
    for store in stores_of(tmp_path, path):
        for name, episode in zip(names, store, strict=True):
            assert_shows(episode["image"][0], name)


def test_files_of_another_format_that_nobody_saw_are_refused_unless_any_is_asked_for(tmp_path):
    names = ["jpeg rgb", "png rgb"]
    path = written(tmp_path, leaf((20, 30, 3)), [[FILES[name].data for name in names]])
    reader = TfdsReader(path)
    assert reader[0].columns["image"].num_rows == 1
    with pytest.raises(
        FormatError, match=r"record 1, byte \d+: 'image': an image that is no file of jpeg.*images=\"any\""
    ):
        reader[1]
    for store in stores_of(tmp_path, path, images="any"):
        for name, episode in zip(names, store, strict=True):
            assert_shows(episode["image"][0], name)
    assert stepwell.open(f"tfds://{path}?images=any").schema["image"].option("format", "") == "image-file"
    with pytest.raises(FormatError, match=r"images='all'\. Allowed: alike, any"):
        TfdsReader(path, images="all")


def test_what_no_codec_stores_is_refused_with_a_way_out(tmp_path):
    path = written(tmp_path, leaf((None, None, 3), dtype="uint16"), [[FILES["jpeg rgb"].data]])
    with pytest.raises(FormatError, match=r'codec "jpeg" cannot store uint16.*ignore=\[\'image\'\]'):
        schema_of(path)


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
    convert(path, tmp_path / "a.well", workers=1, progress=False)
    for store in (stepwell.open(tmp_path / "a.well", mode="r"), stepwell.open(f"tfds://{path}")):
        assert store.schema["image"] == Image((8, 9, 1), "float32")
        assert np.array_equal(store[1]["image"][0], depth)
    with pytest.raises(FormatError, match="record 0, byte 12: 'image': a png file of 3 channels"):
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


def test_images_of_another_size_than_told_are_an_error(tmp_path):
    path = written(tmp_path, leaf((8, 9, 3)), [[file_of(pixels(8, 10))]])
    with pytest.raises(FormatError, match=r"an image of 8x10, by features\.json it is 8x9"):
        schema_of(path)


def left(found):
    """Leave out the last step, and every second one of the rest."""
    mask = np.arange(len(found.columns["image"]) - 1) % 2 == 0
    return replace(found, columns={name: values[:-1][mask] for name, values in found.columns.items()})


@pytest.mark.parametrize("codec", ["png", "jpeg"])
def test_steps_may_be_left_out_and_put_in_another_order_without_decoding(tmp_path, codec):
    images = [pixels(8, 9) // (1 + number) for number in range(6)]
    lists = lists_of_episode(6, **{"steps/image": [file_of(image, codec) for image in images]})
    path = write_set(tmp_path, simple_tree(image=leaf((8, 9, 3), codec)), {"train": [[lists], [lists]]})
    convert(path, tmp_path / "a.well", workers=1, progress=False, transform=left)
    there = stepwell.open(f"tfds://{path}", transform=left)
    assert there.schema["image"].codec == "file-span"
    whole = stepwell.open(f"tfds://{path}")[1]["image"]
    for store in (stepwell.open(tmp_path / "a.well", mode="r"), there):
        for found in store:
            assert np.array_equal(found["image"], whole[[0, 2, 4]])
            assert found["action"][:, 0].tolist() == [0, 4, 8]
    column = TfdsReader(str(path))[0].columns["image"]
    for rows in (slice(None, None, -1), [3, 0], np.array([True, False] * 3), slice(0, 0), []):
        chosen = np.arange(6)[rows if len(np.shape(rows)) == 0 or len(rows) else np.zeros(0, int)]
        assert list(column[rows].rows(column.feature)) == [lists["steps/image"][row] for row in chosen]
        assert len(column[rows]) == len(chosen)
    for wrong in (7, [9], [True], "a", [[0]]):
        with pytest.raises(IndexError):
            column[wrong]
