import io
import tarfile

import numpy as np
import pytest
import sample_sets as sets
from kinds_of_images import image_files
from spec_reader import SpecFile

import stepwell
from stepwell import Array, Bytes, Field, Image, Text, convert
from stepwell.beton import write_beton
from stepwell.errors import FormatError, SchemaError, StepError, StoreExistsError
from stepwell.testing import tiny_store

PAGE = 1 << 16


@pytest.fixture
def store(tmp_path):
    return tiny_store(tmp_path / "tiny.well")


def write(store, tmp_path, **options):
    write_beton(store, tmp_path / "a.beton", workers=0, page_size=PAGE, **options)
    file = SpecFile(tmp_path / "a.beton")
    file.check()
    return file


SHORT = {"observation.image": "image", "observation.state": "state"}


def test_a_store_is_written_by_its_path(store, tmp_path):
    assert write(str(store.path), tmp_path, rename=SHORT).number == 16


def test_a_view_is_written_as_chosen(store, tmp_path):
    view = stepwell.View(store).select([0, 2])
    file = write(view, tmp_path, features=["action", "task"])
    assert [file.sample(i)["task"] for i in (0, 5)] == [b"0:0", b"2:0"]


def test_features_are_chosen_and_renamed(store, tmp_path):
    file = write(store, tmp_path, features=["observation.image", "action"], rename={"observation.image": "top"})
    assert [name for _, name, *_ in file.fields] == ["top", "action"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'observation.image' has 17 characters.*rename="),
        ({"features": ["nothing"]}, "no feature 'nothing'. There are: observation.image"),
        ({"rename": {"nothing": "x"}, "features": ["action"]}, "rename= has 'nothing'"),
        ({"windows": {"action": None}, "features": ["action"]}, "features= and windows= were both given"),
        ({"windows": {"action": None}, "fields": {"a": Array(2)}}, "fields= describes a dataset"),
        ({"windows": {"a": Field("action", transform=np.negative)}}, "field 'a': transforms are applied"),
        ({"windows": {"a": Field("action", at="future")}}, "field 'a': at='future'"),
        ({"windows": {"task": Field("task", [-1, 0], pad="zero")}}, "no file of zeros"),
        ({"windows": {"a": "action", "b": "action"}, "rename": {"a": "x", "b": "x"}}, "two fields are called 'x'"),
        ({"windows": {"obs": "observation.image"}, "write_mode": "bmp"}, "write_mode='bmp'"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_made(store, tmp_path, options, message):
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(SchemaError, match=message):
        write(store, tmp_path, **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("feature", [Array((None, 2)), Array(3, "<U4"), Array((2, 0))])
def test_features_that_ffcv_cannot_decode_are_refused(tmp_path, feature):
    store = stepwell.create(tmp_path / "a.well", {"x": feature})
    with store.writer() as writer:
        writer.add_episode(
            {"x": [np.zeros([size or 2 if size is None else size for size in feature.shape], feature.np_dtype)]}
        )
    store.refresh()
    with pytest.raises(SchemaError, match="field 'x'"):
        write(store, tmp_path)


def test_page_and_alignment_are_checked_first(store, tmp_path):
    with pytest.raises(FormatError, match="page_size=3"):
        write_beton(store, tmp_path / "a.beton", page_size=3)
    with pytest.raises(FormatError, match="align=3"):
        write_beton(store, tmp_path / "a.beton", align=3)


def test_a_file_that_is_there_is_refused(store, tmp_path):
    (tmp_path / "a.beton").write_bytes(b"old")
    with pytest.raises(StoreExistsError):
        write(store, tmp_path, features=["action"])
    assert (tmp_path / "a.beton").read_bytes() == b"old"


def test_a_store_without_steps_is_refused(tmp_path):
    with pytest.raises(StepError, match="no samples"):
        write(stepwell.create(tmp_path / "empty.well", {"x": Array(2)}), tmp_path)


def test_a_dataset_is_written_by_its_features(tmp_path):
    fields = {
        "image": Image((None, None, 3)),
        "int": Array((), "int64"),
        "float": Array((), "float64"),
        "bytes": Bytes(),
        "array": Array((4, 3)),
    }
    samples = [(*sets.rich_sample(i)[:4], sets.rich_sample(i)[5]) for i in range(20)]
    file = write(samples, tmp_path, fields=fields)
    for index, sample in enumerate(samples):
        assert all(np.array_equal(got, value) for got, value in zip(file.sample(index).values(), sample, strict=True))


def test_texts_are_utf_8_and_numbers_keep_their_type(tmp_path):
    fields = {"text": Text(), "small": Array((), "uint8"), "large": Array((), "uint64"), "half": Array((), "float16")}
    file = write([("ü", 3, np.array([1 << 63], "u8"), 0.5)], tmp_path, fields=fields)
    assert [kind for kind, *_ in file.fields] == [3, 1, 4, 0]
    assert file.sample(0)["large"][0] == 1 << 63
    assert file.sample(0)["text"] == "ü".encode()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"größe": Array(2)}, "ASCII"),
        ({"x": Array((None, 2))}, "varies in size"),
        ({"x": "float32"}, "field 'x' is a str"),
    ],
)
def test_fields_that_a_file_cannot_have_are_refused(tmp_path, fields, message):
    with pytest.raises(SchemaError, match=message):
        write([(np.zeros(2, "f4"),)], tmp_path, fields=fields)


def test_a_dataset_without_fields_is_told_of_them(tmp_path):
    with pytest.raises(SchemaError, match="fields="):
        write([(1,)], tmp_path)


def test_what_is_written_of_a_store_imports_to_the_same_values(store, tmp_path):
    write(store, tmp_path, rename=SHORT, features=["observation.image", "observation.state", "action", "reward"])
    convert(tmp_path / "a.beton", tmp_path / "back.well", workers=0)
    back = stepwell.open(tmp_path / "back.well")
    position = 0
    for episode in store:
        for step in range(episode.length):
            assert np.array_equal(back[position]["image"][0], episode["observation.image"][step])
            assert np.array_equal(back[position]["action"][0], episode["action"][step])
            assert back[position]["reward"][0] == episode["reward"][step]
            position += 1


def test_a_beton_file_is_written_as_another(store, tmp_path):
    rename = {"observation.image": "image"}
    write(store, tmp_path, rename=rename, features=["observation.image", "action", "task"])
    write_beton(f"beton://{tmp_path}/a.beton", tmp_path / "b.beton", workers=0, page_size=PAGE)
    one, two = SpecFile(tmp_path / "a.beton"), SpecFile(tmp_path / "b.beton")
    two.check()
    for index in range(16):
        first, second = one.sample(index), two.sample(index)
        assert all(np.array_equal(first[name], second[name]) for name in ("image", "action", "task"))


def test_shards_are_written_by_their_address_with_their_jpeg_files_as_they_are(tmp_path):
    simplejpeg = pytest.importorskip("simplejpeg")
    images = [np.full((8 + i % 3, 10, 3), 20 * i, np.uint8) for i in range(9)]
    files = [simplejpeg.encode_jpeg(image) for image in images]
    for shard in range(2):
        with tarfile.open(tmp_path / f"set-{shard}.tar", "w") as tar:
            for i in range(5 * shard, min(5 * shard + 5, 9)):
                for name, data in ((f"{i:03d}.jpg", files[i]), (f"{i:03d}.cls", b"%d" % i)):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    address = f"webdataset://{tmp_path}/set-{{0..1}}.tar"
    write_beton(address, tmp_path / "a.beton", features=["jpg", "cls"], workers=0, page_size=PAGE)
    file = SpecFile(tmp_path / "a.beton")
    file.check()
    for i in range(9):
        assert file.sample(i) == {"jpg": (10, 8 + i % 3, files[i]), "cls": i}


def test_images_of_every_kind_are_written_as_ffcv_can_decode_them(tmp_path):
    simplejpeg = pytest.importorskip("simplejpeg")
    pytest.importorskip("imagecodecs")
    names, files = ["jpeg rgb", "jpeg cmyk", "png rgb interlaced", "png grey", "jpeg grey", "webp"], image_files()
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for number, name in enumerate(names):
            entry = tarfile.TarInfo(f"{number}.jpg")
            entry.size = len(files[name].data)
            tar.addfile(entry, io.BytesIO(files[name].data))
    address = f"webdataset://{tmp_path}/set.tar"
    convert(address, tmp_path / "set.well", workers=0)
    for number, source in enumerate((address, tmp_path / "set.well")):
        for mode in (None, "raw"):
            path = tmp_path / f"{number}-{mode}.beton"
            write_beton(source, path, features=["jpg"], workers=0, page_size=PAGE, write_mode=mode, quality=100)
            file = SpecFile(path)
            file.check()
            for place, name in enumerate(names):
                shown = file.sample(place)["jpg"]
                if mode is None:
                    assert shown[:2] == (34, 21)
                    assert (shown[2] == files[name].data) == (name in ("jpeg rgb", "jpeg grey"))
                    shown = simplejpeg.decode_jpeg(bytes(shown[2]))
                assert np.abs(shown.astype(int) - files[name].colors).max() <= 24, name
