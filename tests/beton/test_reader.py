"""The reader: files as episodes of one step, found by looking, in place and imported, one file or several."""

import importlib
import pickle
import struct
import sys

import numpy as np
import pytest
from built_files import SequenceField, WordField, write_arrays, write_custom, write_images, write_values
from hypothesis import given, settings
from hypothesis import strategies as st
from web_server import WebServer

import stepwell
from stepwell import Field, Loader, convert
from stepwell.beton import BetonReader
from stepwell.codecs import make_codec
from stepwell.errors import DatasetNotFoundError, DecodeError, FormatError
from stepwell.formats import find_reader
from stepwell.formats.cache import open_in_place
from stepwell.schema import Array, Image
from stepwell.transforms import CenterResizedCrop, RandomResizedCrop

JPEG = Image((16, 20, 3), codec="jpeg", dct="fast")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def smooth(height, width, seed=0):
    ramp = np.add.outer(np.arange(height) * 3, np.arange(width) * 2)[..., None] + 10 * seed + np.array([0, 20, 40])
    return (ramp % 256).astype(np.uint8)


def raw(height, width, seed=0):
    return 1, height, width, smooth(height, width, seed).tobytes()


def jpeg(height, width, seed=0):
    pytest.importorskip("simplejpeg")
    codec = make_codec(Image((height, width, 3), codec="jpeg"))
    return 0, height, width, codec.encode(smooth(height, width, seed))


def decoded(image):
    mode, height, width, data = image
    if mode == 1:
        return np.frombuffer(data, np.uint8).reshape(height, width, 3)
    return make_codec(Image((height, width, 3), codec="jpeg", dct="fast")).decode(np.frombuffer(data, np.uint8))


def test_a_beton_file_is_told_by_its_name_and_header(tmp_path):
    path = write_arrays(tmp_path / "a.beton", np.zeros((2, 2)))
    assert find_reader(path) is BetonReader
    (tmp_path / "other.beton").write_bytes(b"something else, and longer than a header")
    (tmp_path / "b.txt").write_bytes(path.read_bytes())
    (tmp_path / "cut.beton").write_bytes(path.read_bytes()[:3000])
    (tmp_path / "folder.beton").mkdir()
    for name in ("other.beton", "b.txt", "cut.beton", "folder.beton", "none.beton", "none*.beton", "\0.beton"):
        assert not BetonReader.accepts(str(tmp_path / name))
    assert not BetonReader.accepts(str(tmp_path))
    assert BetonReader.accepts("https://somewhere/a.beton")
    assert BetonReader.accepts(str(tmp_path / "a*.beton"))


def test_samples_are_episodes_of_one_step(tmp_path, cache):
    arrays = np.random.default_rng(0).normal(size=(50, 4, 3)).astype(np.float16)
    store = open_in_place(write_arrays(tmp_path / "a.beton", arrays, gap=1), cache=cache)
    assert (len(store), store.num_steps) == (50, 50)
    assert store.schema["array"].codec == "file-span"
    assert np.array_equal([episode["array"][0] for episode in store], arrays)
    assert [episode["number"][0] for episode in store] == list(range(50))


def test_an_address_opens_a_file_in_place(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    path = write_arrays(tmp_path / "a.beton", np.arange(6.0).reshape(3, 2))
    store = stepwell.open(f"beton://{path}?rename=array=values")
    assert store[2]["values"].tolist() == [[4, 5]]


@pytest.mark.parametrize("kind", ["in place", "imported"])
@pytest.mark.parametrize(
    "images",
    [
        [("raw", 16, 20)] * 5,
        [("jpeg", 16, 20)] * 5,
        [("raw", 16, 20), ("jpeg", 16, 20)] * 3,
        [("raw", 16, 20), ("raw", 7, 9)] * 3,
        [("jpeg", 16, 20), ("jpeg", 30, 20)] * 3,
        [("raw", 16, 20), ("jpeg", 40, 24), ("raw", 1, 1)] * 3,
    ],
    ids=["raw", "jpeg", "both", "raw of any size", "jpeg of any size", "both of any size"],
)
def test_images_of_every_mode_and_size_are_read(tmp_path, cache, images, kind):
    pytest.importorskip("simplejpeg")
    made = [(raw if mode == "raw" else jpeg)(*size, seed) for seed, (mode, *size) in enumerate(images)]
    path = write_images(tmp_path / "a.beton", made)
    if kind == "in place":
        store = open_in_place(path, cache=cache)
    else:
        convert(path, tmp_path / "a.well", workers=1)
        path.unlink()
        store = stepwell.open(tmp_path / "a.well")
    is_fixed = len({tuple(size) for _, *size in images}) == 1
    assert store.schema["image"].shape == ((16, 20, 3) if is_fixed else (None, None, 3))
    for episode, image in zip(store, made, strict=True):
        assert np.array_equal(episode["image"][0], decoded(image))
    for order in ("random", "pooled"):
        found = {}
        for batch in Loader(store, {"image": Field("image"), "label": Field("label")}, batch_size=4, order=order):
            for image, label in zip(batch["image"], batch["label"].ravel().tolist(), strict=True):
                found[label] = np.asarray(image)
        assert all(np.array_equal(np.squeeze(found[i]), np.squeeze(decoded(image))) for i, image in enumerate(made))


def test_what_is_converted_from_a_place_is_a_store_of_its_own(tmp_path, cache):
    pytest.importorskip("simplejpeg")
    made = [raw(16, 20, 1), jpeg(30, 24, 2), raw(5, 6, 3)]
    store = open_in_place(write_images(tmp_path / "a.beton", made), cache=cache)
    stepwell.convert(store, tmp_path / "own.well", workers=1)
    (tmp_path / "a.beton").unlink()
    own = stepwell.open(tmp_path / "own.well")
    assert own.schema["image"].codec == "jpeg-or-raw"
    assert all(np.array_equal(own[i]["image"][0], decoded(image)) for i, image in enumerate(made))


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.binary(max_size=40),
            st.lists(st.floats(width=32), min_size=3, max_size=3),
        ),
        min_size=1,
        max_size=20,
    )
)
@settings(max_examples=15)
def test_values_come_back_whatever_they_are(tmp_path_factory, samples):
    folder = tmp_path_factory.mktemp("values")
    numbers, blobs, arrays = zip(*samples, strict=True)
    values = np.array(arrays, "<f4")
    opened = [
        BetonReader(str(write_values(folder / "bytes.beton", list(blobs), shares_empty=True))),
        BetonReader(str(write_arrays(folder / "arrays.beton", values))),
    ]
    found = [[list(column.rows(reader.schema[name])) for name, column in sample.columns.items() if name != "number"]
             for reader in opened for sample in reader.episodes()]  # fmt: skip
    assert [row[0][0] for row in found] == [*blobs, *(value.tobytes() for value in values)]
    assert len(numbers) == len(opened[0])


def test_several_files_are_one_data_set(tmp_path, cache):
    parts = [np.full((n, 2), n, "f4") for n in (3, 1, 4)]
    for number, part in enumerate(parts):
        write_arrays(tmp_path / f"part-{number}.beton", part)
    for source in (str(tmp_path / "part-*.beton"), [str(tmp_path / f"part-{number}.beton") for number in range(3)]):
        store = open_in_place(source, cache=cache)
        assert np.array_equal([episode["array"][0] for episode in store], np.concatenate(parts))
        assert [episode["number"][0] for episode in store] == [0, 1, 2, 0, 0, 1, 2, 3]


def test_files_of_a_directory_are_read_when_it_is_asked_for(tmp_path, cache):
    write_arrays(tmp_path / "part-0.beton", np.zeros((2, 2)))
    write_arrays(tmp_path / "part-1.beton", np.ones((3, 2)))
    assert len(open_in_place(tmp_path, reader="beton", cache=cache)) == 5
    assert len(open_in_place(tmp_path / "part-{0..1}.beton", cache=cache)) == 5


def test_a_file_of_another_machine_is_fetched(tmp_path, cache, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(cache))
    arrays = np.arange(8.0).reshape(4, 2)
    folder = tmp_path / "served"
    folder.mkdir()
    write_arrays(folder / "a.beton", arrays)
    with WebServer(folder) as server:
        store = open_in_place(f"{server.url}/a.beton")
        assert np.array_equal([episode["array"][0] for episode in store], arrays)
        with pytest.raises(DatasetNotFoundError, match=r"none\.beton"):
            open_in_place(f"{server.url}/none.beton")


def test_images_of_several_files_have_the_feature_of_all(tmp_path):
    pytest.importorskip("simplejpeg")
    write_images(tmp_path / "a.beton", [raw(16, 20)])
    write_images(tmp_path / "b.beton", [raw(16, 20), raw(16, 20)])
    assert BetonReader(str(tmp_path / "*.beton")).schema["image"] == Image((16, 20, 3))
    write_images(tmp_path / "c.beton", [jpeg(16, 20)])
    assert BetonReader(str(tmp_path / "*.beton")).schema["image"].codec == "jpeg-or-raw"
    write_images(tmp_path / "d.beton", [])
    assert BetonReader(str(tmp_path / "*.beton")).schema["image"].shape == (16, 20, 3)


def test_files_of_other_fields_are_told(tmp_path):
    write_arrays(tmp_path / "a.beton", np.zeros((2, 2), "f4"))
    write_arrays(tmp_path / "b.beton", np.zeros((2, 3), "f4"))
    with pytest.raises(FormatError, match=r"b\.beton: field 'array' is Array\(3\), where .*a\.beton has Array\(2\)"):
        BetonReader(str(tmp_path / "*.beton"))
    write_values(tmp_path / "b.beton", [b"x"])
    with pytest.raises(FormatError, match=r"b\.beton has fields value, where .*a\.beton has array, number"):
        BetonReader(str(tmp_path / "*.beton"))


def test_a_name_that_no_feature_can_have_is_told_and_can_be_changed(tmp_path):
    path = str(write_arrays(tmp_path / "a.beton", np.zeros((2, 2)), name=b"my array"))
    with pytest.raises(FormatError, match="rename="):
        BetonReader(path)
    for rename in ({"my array": "array"}, "my array=array", " my array = array ,"):
        assert list(BetonReader(path, rename=rename).schema) == ["array", "number"]
    with pytest.raises(FormatError, match="no field 'your array' to rename"):
        BetonReader(path, rename={"your array": "array"})
    with pytest.raises(FormatError, match="has no new name"):
        BetonReader(path, rename="my array")
    with pytest.raises(FormatError, match="two fields would be called 'number'"):
        BetonReader(path, rename={"my array": "number"})


def test_a_custom_field_is_copied_or_stays_as_it_says(tmp_path, cache):
    path = write_custom(tmp_path / "a.beton")
    for store in (
        open_in_place(path, cache=cache, custom_fields={"word": WordField}),
        _imported(path, tmp_path / "a.well", custom_fields={"word": WordField}),
    ):
        assert [episode["word"][0] for episode in store] == ["left-ab", "up-ab"]


def _imported(path, target, **options):
    convert(path, target, workers=1, **options)
    return stepwell.open(target)


def test_a_custom_field_that_was_changed_is_read_anew(tmp_path, cache, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = write_arrays(tmp_path / "a.beton", np.arange(8.0).reshape(2, 4))
    code = "from stepwell.beton import SpanField\nfrom stepwell.schema import Array\nclass Part(SpanField):\n"
    code += "    metadata_type, feature = '<u8', Array({0}, 'float64')\n    def spans(self, rows, file):\n"
    code += "        return rows, 8 * {0}\n"
    for length in (2, 3):
        (tmp_path / "part_of_arrays.py").write_text(code.format(length) + "#" * length)
        monkeypatch.delitem(sys.modules, "part_of_arrays", raising=False)
        module = importlib.import_module("part_of_arrays")
        store = open_in_place(path, cache=cache, custom_fields={"array": module.Part})
        assert store[1]["array"].tolist() == [[4.0, 5.0, 6.0][:length]]


def test_a_reader_goes_to_workers(tmp_path):
    path = str(write_arrays(tmp_path / "a.beton", np.arange(20.0).reshape(10, 2)))
    reader = BetonReader(path, custom_fields={"sequence": SequenceField})
    assert reader[3].columns["array"].array().tolist() == [[6, 7]]
    again = pickle.loads(pickle.dumps(reader))
    assert again[7].columns["array"].array().tolist() == [[14, 15]]
    assert again.schema == reader.schema


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked here")
def test_several_workers_import_what_one_does(tmp_path):
    path = write_arrays(tmp_path / "a.beton", np.arange(400.0).reshape(200, 2))
    one, two = (_imported(path, tmp_path / f"{n}.well") if n == 1 else None for n in (1, 2))
    convert(path, tmp_path / "two.well", workers=2)
    two = stepwell.open(tmp_path / "two.well")
    assert np.array_equal([e["array"][0] for e in one], [e["array"][0] for e in two])


def test_a_sample_has_a_label_of_its_file(tmp_path):
    for number in range(2):
        write_arrays(tmp_path / f"{number}.beton", np.zeros((3, 2)))
    reader = BetonReader(str(tmp_path / "*.beton"))
    assert reader.label(4) == f"sample 1 of {tmp_path}/1.beton"
    assert repr(reader) == f"<BetonReader {tmp_path}/*.beton 6 samples>"
    with pytest.raises(IndexError):
        reader[6]


def test_a_source_that_is_not_there_is_told(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="nothing"):
        BetonReader(str(tmp_path / "nothing*.beton"))


def test_a_file_that_is_not_right_is_told_when_it_is_read(tmp_path, cache):
    path = write_arrays(tmp_path / "a.beton", np.zeros((3, 2)))
    whole = bytearray(path.read_bytes())
    whole[24 + 2 * 1041 + 16 : 24 + 2 * 1041 + 24] = struct.pack("<Q", 1 << 40)
    path.write_bytes(bytes(whole))
    with pytest.raises(FormatError, match="of sample 1"):
        open_in_place(path, cache=cache)


def test_a_text_that_is_none_is_told_with_its_place(tmp_path, cache):
    store = open_in_place(write_values(tmp_path / "a.beton", [b"\xff\xfe\0"], type_id=5), cache=cache)
    with pytest.raises(DecodeError, match=r"a\.beton, byte 65536"):
        store[0]["value"]


def test_a_feature_may_be_wide_or_narrow_in_memory_of_any_address(tmp_path, cache):
    arrays = np.arange(24, dtype=">i4").reshape(4, 6)
    store = open_in_place(write_arrays(tmp_path / "a.beton", arrays, gap=5), cache=cache)
    assert store.schema["array"].np_dtype == Array(6, ">i4").np_dtype
    (batch,) = Loader(store, {"array": Field("array")}, batch_size=4, order="sequential")
    assert np.array_equal(np.squeeze(batch["array"]), arrays)


def mixed_file(path):
    """Write what FFCV's "proportion" makes of photos: JPEG files and plain pixels, of any size."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(20, 70, (24, 2))
    return write_images(path, [(raw if i % 2 else jpeg)(*size, i) for i, size in enumerate(sizes.tolist())])


@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("order", ["random", "pooled"])
def test_crops_of_images_of_any_size_and_kind_are_those_of_a_store(tmp_path, cache, order, page_cache):
    pytest.importorskip("simplejpeg")
    path = mixed_file(tmp_path / "a.beton")
    fields = {
        "random": Field("image", decoder=RandomResizedCrop(16)),
        "center": Field("image", decoder=CenterResizedCrop(16)),
        "label": "label",
    }
    batches = []
    for store in (open_in_place(path, cache=cache), _imported(path, tmp_path / "a.well")):
        loader = Loader(store, fields, batch_size=5, order=order, seed=3, page_cache=page_cache)
        batches.append([{key: np.array(batch[key]) for key in fields} for batch in loader])
    for ours, theirs in zip(*batches, strict=True):
        assert ours["random"].shape[1:] == ours["center"].shape[1:] == (16, 16, 3)
        assert all(np.array_equal(ours[key], theirs[key]) for key in fields)


def test_images_of_any_kind_can_be_stored_by_another_codec(tmp_path):
    pytest.importorskip("simplejpeg")
    path = mixed_file(tmp_path / "a.beton")
    asked, kept = _imported(path, tmp_path / "png.well", features="png"), _imported(path, tmp_path / "kept.well")
    assert asked.schema["image"].codec == "png"
    assert all(np.array_equal(a["image"][0], b["image"][0]) for a, b in zip(asked, kept, strict=True))


def test_threads_and_a_changed_file_are_no_trouble(tmp_path, cache):
    arrays = np.arange(4000.0).reshape(1000, 4)
    path = write_arrays(tmp_path / "a.beton", arrays)
    store = open_in_place(path, cache=cache)
    found = {}
    loader = Loader(store, {"array": "array", "number": "number"}, batch_size=16, order="random", threads=2)
    for batch in loader:
        found |= dict(zip(batch["number"].tolist(), batch["array"].copy(), strict=True))
    assert all(np.array_equal(found[i], arrays[i]) for i in range(1000))
    write_arrays(path, arrays[:10] + 1)
    again = open_in_place(path, cache=cache)
    assert np.array_equal([episode["array"][0] for episode in again], arrays[:10] + 1)
    with pytest.raises(stepwell.StepwellError, match=r"a\.beton: the file was changed"):
        next(iter(loader))


def test_small_batches_of_arrays_in_place_are_built_without_a_thread(tmp_path, cache):
    arrays = np.zeros((64, 16, 10), "f4")
    store = open_in_place(write_arrays(tmp_path / "a.beton", arrays), cache=cache)
    assert Loader(store, {"array": "array", "number": "number"}, batch_size=32).num_threads == 0
    texts = open_in_place(write_values(tmp_path / "b.beton", [b"text"] * 64), cache=cache)
    assert Loader(texts, {"value": "value"}, batch_size=32).num_threads > 0
