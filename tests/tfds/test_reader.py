"""RLDS and TFDS datasets as episodes: what the real TFDS wrote to its values; steps, metadata, ends."""

import importlib
import json
import pickle
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from made_sets import FLAG, FLOATS, TEXT, doubled, episode, simple_tree, write_set

import stepwell
from stepwell import convert
from stepwell.errors import DatasetNotFoundError, FeatureNotFoundError, FormatError, WorkerError
from stepwell.formats import find_reader, open_reader
from stepwell.schema import Array
from stepwell.tfds import reader as reader_module
from stepwell.tfds import record_files
from stepwell.tfds.features import Fields, Leaf, Repeated, feature_json
from stepwell.tfds.reader import TfdsReader

NAMES = {
    "image": "observation.image",
    "wrist_image": "observation.wrist_image",
    "state": "observation.state",
    "gripper_closed": "action_dict.gripper_closed",
    "is_first": "steps.is_first",
    "is_last": "steps.is_last",
}
METADATA = ("episode_id", "robot_id", "file_path")
# TensorFlow decodes JPEG in another way
JPEG_ATOL = 24


def all_steps(store, name):
    parts = [episode[name] for episode in store]
    return np.array(list(chain(*parts))) if isinstance(parts[0], list) else np.concatenate(parts)


def assert_as_expected(store, expected, split):
    assert [episode.length for episode in store] == expected[f"{split}/lengths"].tolist()
    for key in expected.files:
        part, _, name = key.partition("/")
        if part != split or name == "lengths":
            continue
        wanted = expected[key]
        if name in METADATA:
            assert [episode.metadata[name] for episode in store] == wanted.tolist()
            continue
        found = all_steps(store, NAMES.get(name, name))
        assert found.shape == wanted.shape
        if name == "image":
            assert np.abs(found.astype(int) - wanted).max() <= JPEG_ATOL
        else:
            assert found.dtype.kind == wanted.dtype.kind
            assert np.array_equal(found, wanted), name


RLDS = {
    "tfrecord": ("tfrecord/mini_rlds/1.2.3", "train", "train"),
    "another split": ("tfrecord", "val", "val"),
    "shards": ("tfrecord_3shards", "train", "sharded"),
    "array_record": ("array_record", "train", "train"),
    "array_record, another split": ("array_record", "val", "val"),
}


@pytest.mark.parametrize("name", RLDS)
def test_what_tfds_wrote_as_rlds_is_imported_and_opened_to_its_values(rlds_sets, tmp_path, name):
    pytest.importorskip("simplejpeg")
    folder, split, values = RLDS[name]
    if "array_record" in name:
        pytest.importorskip("array_record")
    expected = np.load(rlds_sets / "expected.npz")
    report = convert(rlds_sets / folder, tmp_path / "a.well", split=split, workers=1, progress=False)
    assert all(feature.distortion is None for feature in report.features.values())
    assert_as_expected(stepwell.open(tmp_path / "a.well", mode="r"), expected, values)
    assert_as_expected(stepwell.open(f"rlds://{rlds_sets / folder}", split=split), expected, values)


def test_jpeg_files_are_decoded_as_pillow_does(rlds_sets, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("simplejpeg")
    from io import BytesIO

    reader = TfdsReader(str(rlds_sets / "tfrecord"))
    store = stepwell.open(f"tfds://{rlds_sets / 'tfrecord'}")
    files = reader[0].columns["observation.image"].rows(reader.schema["observation.image"])
    for file, pixels in zip(files, store[0]["observation.image"], strict=True):
        assert np.array_equal(np.asarray(image.open(BytesIO(file))), pixels)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize("split", ["train", "val", "train+val"])
def test_what_tfds_wrote_as_examples_are_episodes_of_one_step(image_sets, tmp_path, file_format, split):
    pytest.importorskip("simplejpeg")
    if file_format == "array_record":
        pytest.importorskip("array_record")
    expected = np.load(image_sets / "expected_tfds.npz")
    folder = image_sets / file_format
    convert(folder, tmp_path / "a.well", split=split, workers=1, progress=False)
    for store in (stepwell.open(tmp_path / "a.well", mode="r"), stepwell.open(f"tfds://{folder}", split=split)):
        for name in ("id", "label", "image"):
            wanted = np.concatenate([expected[f"{part}/{name}"] for part in split.split("+")])
            found = all_steps(store, name)
            assert found.shape == wanted.shape
            assert np.abs(found.astype(int) - wanted).max() <= (JPEG_ATOL if name == "image" else 0)
        told = [episode.metadata.get("tfds_split") for episode in store]
        assert told == (["train"] * 30 + ["val"] * 10 if "+" in split else [None] * len(store))
        assert store.schema["image"].shape == (48, 64, 3)


@pytest.fixture
def path(tmp_path):
    shards = {"train": [[episode(3), episode(2, 10)], [episode(4, 20)]], "val": [[episode(1, 30)]]}
    return write_set(tmp_path, simple_tree(), shards)


def test_a_dataset_is_found_by_looking_and_by_both_names(path):
    assert find_reader(path) is find_reader(path.parent.parent) is TfdsReader
    assert TfdsReader.name == "tfds"
    assert len(open_reader(f"tfds://{path}?split=all")) == len(open_reader(path, "rlds", {"split": "all"})) == 4
    assert not TfdsReader.accepts(str(path / "features.json"))
    assert not TfdsReader.accepts("s3://bucket/set")
    (path / "dataset_info.json").unlink()
    assert not TfdsReader.accepts(str(path))


def test_episodes_come_in_the_order_of_the_files_and_shards_are_told(path):
    reader = TfdsReader(str(path), split="all")
    assert [float(data.columns["action"][0, 0]) for data in reader.episodes()] == [0, 10, 20, 30]
    assert reader.edges.tolist() == [0, 2, 3]
    assert reader.label(1) == f"record 1 of {path}/made-train.tfrecord-00000-of-00002"
    assert reader.schema["action"] == Array(2)
    assert [float(reader[index].columns["action"][0, 0]) for index in (3, 0, 2, 1, 1)] == [30, 0, 20, 10, 10]


def test_a_reader_travels_to_workers_and_names_what_it_reads(path):
    reader = TfdsReader(str(path), ignore="is_last")
    reader[0]
    again = pickle.loads(pickle.dumps(reader))
    assert again[1].columns["action"].tolist() == reader[1].columns["action"].tolist()
    assert again.identity == reader.identity != TfdsReader(str(path)).identity
    assert TfdsReader(str(path), split="train[:1]").identity != TfdsReader(str(path)).identity
    files = TfdsReader(str(path), split="val").own_files
    assert set(files) < set(TfdsReader.files(str(path), split="val"))
    assert [Path(name).name for name in files] == [
        "dataset_info.json", "features.json", "made-val.tfrecord-00000-of-00001",
    ]  # fmt: skip


@pytest.mark.parametrize("is_rlds", [True, False])
def test_parts_that_overlap_come_as_often_and_in_the_order_as_asked(tmp_path, is_rlds):
    if is_rlds:
        path = write_set(tmp_path, simple_tree(), {"train": [[episode(2, 100 * n) for n in range(6)]]})
    else:
        examples = [{"action": np.full(2, 100 * n, np.float32)} for n in range(6)]
        path = write_set(tmp_path, Fields({"action": FLOATS}), {"train": [examples]})
    split, wanted = "train[1:4]+train[0:2]+train[5:]+train[3:]", [1, 2, 3, 0, 1, 5, 3, 4, 5]
    convert(path, tmp_path / "a.well", split=split, workers=1, progress=False)
    for store in (stepwell.open(tmp_path / "a.well", mode="r"), stepwell.open(f"tfds://{path}", split=split)):
        assert [found["action"][0, 0] // 100 for found in store] == wanted


ENDS = {
    "terminal": ([False, True], [False, True], (True, False)),
    "cut": ([False, True], [False, False], (False, True)),
    "neither": ([False, False], [False, False], (False, False)),
}


@pytest.mark.parametrize("name", ENDS)
def test_how_an_episode_ended_follows_from_its_last_flags(tmp_path, name):
    is_last, is_terminal, ends = ENDS[name]
    more = {"steps/is_last": np.array(is_last), "steps/is_terminal": np.array(is_terminal)}
    path = write_set(tmp_path, simple_tree(), {"train": [[episode(2, **more)]]})
    # also where the flags themselves are left out
    for ignore in ((), ("is_last", "is_terminal")):
        found = TfdsReader(str(path), ignore=ignore)[0]
        assert (found.terminated, found.truncated) == ends


def test_stored_and_computed_flags_can_both_be_read(tmp_path):
    is_last = np.array([True, False, False])
    path = write_set(tmp_path, simple_tree(), {"train": [[episode(3, **{"steps/is_last": is_last})]]})
    convert(path, tmp_path / "a.well", workers=1, progress=False)
    store = stepwell.open(tmp_path / "a.well", mode="r")
    batch = next(iter(stepwell.Loader(store, {"a": "is_last", "b": "steps.is_last"}, batch_size=3, order="sequential")))
    assert (batch["a"].tolist(), batch["b"].tolist()) == ([False, False, True], [True, False, False])


def test_metadata_of_all_kinds(tmp_path):
    more = Fields(
        {
            "id": Leaf("tensor", "int32"),
            "pose": Leaf("tensor", "float64", (2,)),
            "name": TEXT,
            "tags": Repeated(TEXT),
            "robot": Fields({"arm": TEXT}),
            "is_good": FLAG,
        }
    )
    tree = Fields({**simple_tree().features, "episode_metadata": more, "source": TEXT})
    told = {
        "episode_metadata/id": np.array([7]),
        "episode_metadata/pose": np.float32([1, 2]),
        "episode_metadata/name": ["é".encode()],
        "episode_metadata/tags": [b"a", b"b"],
        "episode_metadata/robot/arm": [b"ur5"],
        "episode_metadata/is_good": np.array([True]),
        "source": [b"lab"],
    }
    path = write_set(tmp_path, tree, {"train": [[episode(2, **told)]]})
    assert TfdsReader(str(path))[0].metadata == {
        "id": 7, "pose": [1.0, 2.0], "name": "é", "tags": ["a", "b"], "robot": {"arm": "ur5"}, "is_good": True,
        "source": "lab",
    }  # fmt: skip
    assert TfdsReader(str(path), ignore=["episode_metadata"])[0].metadata == {"source": "lab"}


def test_the_store_says_what_the_dataset_was(path):
    told = TfdsReader(str(path), split="train[:1]").metadata["tfds"]
    features = json.loads((path / "features.json").read_text())
    assert (told["name"], told["version"], told["split"], told["splits"], told["features"]) == (
        "made", "1.0.0", "train[:1]", {"train": 3, "val": 1}, features,
    )  # fmt: skip


def test_unknown_features_are_an_error_unless_they_are_left_out(tmp_path):
    tree = simple_tree(thing=Leaf("tensor", "float32"))
    raw = json.loads(json.dumps(feature_json(tree)).replace("scalar.Scalar", "mine.Thing", 1))
    path = write_set(tmp_path, tree, {"train": [[episode(2)]]}, raw_features=raw)
    with pytest.raises(FormatError, match=r"feature 'is_last' is of class .*mine\.Thing.*ignore=\['is_last'\]"):
        assert TfdsReader(str(path), ignore=["thing"]).schema
    assert TfdsReader(str(path), ignore=["thing", "is_last"]).schema
    assert TfdsReader(str(path), ignore=["thing", "steps.is_last"]).schema
    with pytest.raises(FeatureNotFoundError, match="no feature 'things'"):
        TfdsReader(str(path), ignore=["things"])


DIFFERENT = {
    "another number of rows": ({"steps/action": np.zeros(5, np.float32)}, "'steps/action': 5 values, in rows of 2"),
    "fewer flags": ({"steps/is_terminal": np.zeros(1, np.bool_)}, "'is_terminal' has 1 rows, 'action' 3"),
    "another kind": ({"steps/action": [b"x"] * 6}, "'steps/action': a list of bytes"),
    "no steps": ({"steps/action": np.zeros(0, np.float32), "steps/is_last": np.zeros(0, np.bool_),
                  "steps/is_terminal": np.zeros(0, np.bool_)}, "an episode without steps"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_record_that_does_not_fit_is_an_error_that_names_file_record_and_byte(tmp_path, name):
    more, message = DIFFERENT[name]
    path = write_set(tmp_path, simple_tree(), {"train": [[episode(2), episode(3, **more), episode(2)]]})
    with pytest.raises(FormatError, match=rf"tfrecord-00000-of-00001: record 1, byte \d+: .*({message})"):
        list(TfdsReader(str(path)).episodes())


def test_features_that_the_dataset_does_not_tell_of_are_left_out(tmp_path):
    path = write_set(tmp_path, simple_tree(), {"train": [[episode(2, **{"steps/more": [b"x"], "z": [b""]})]]})
    assert list(TfdsReader(str(path))[0].columns) == ["action", "steps.is_last", "is_terminal"]


def test_a_file_of_another_number_of_records_is_an_error(path):
    file = next(path.glob("*-train*-00000-*"))
    file.write_bytes(file.read_bytes() + next(path.glob("*-val*")).read_bytes())
    with pytest.raises(FormatError, match=r"3 records, by .*dataset_info\.json 2"):
        TfdsReader(str(path))[0]


@pytest.mark.parametrize(("there", "told"), [(3, 2), (1, 2)])
def test_another_number_of_records_shows_at_the_end_of_a_file_read_in_order(tmp_path, monkeypatch, there, told):
    path = write_set(tmp_path, simple_tree(), {"train": [[episode(2)] * told]})
    file = next(path.glob("*-train*"))
    monkeypatch.setattr(record_files, "BATCH_BYTES", file.stat().st_size // told)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // told] * there)
    with pytest.raises(FormatError, match=rf"{there} records, by .*dataset_info\.json {told}"):
        list(TfdsReader(str(path)).episodes())


def test_a_flipped_bit_is_an_error_of_its_record_unless_nobody_asks(path):
    file = next(path.glob("*-train*-00000-*"))
    data = bytearray(file.read_bytes())
    data[data.index(np.float32(10).tobytes())] ^= 1
    file.write_bytes(data)
    reader = TfdsReader(str(path))
    assert reader[0].columns["action"].shape == (3, 2)
    with pytest.raises(FormatError, match=r"00000-of-00002: record 1, byte \d+: its bytes are not what its CRC says"):
        reader[1]
    assert TfdsReader(str(path), verify="false")[1].columns["action"].shape == (2, 2)
    with pytest.raises(FormatError, match="its CRC says"):
        stepwell.open(f"tfds://{path}")


def test_episodes_by_index_and_several_processes_give_the_same_store(path, tmp_path):
    many = [[episode(1 + n % 3, n) for n in range(k, k + 20)] for k in (0, 20)]
    folder = write_set(tmp_path / "many", simple_tree(), {"train": many})
    stores = []
    for workers in (1, 2):
        convert(folder, tmp_path / f"{workers}.well", workers=workers, progress=False)
        stores.append(stepwell.open(tmp_path / f"{workers}.well", mode="r"))
    assert [len(store) for store in stores] == [40, 40]
    for one, two in zip(*stores, strict=True):
        assert np.array_equal(one["action"], two["action"])
    convert(folder, tmp_path / "some.well", episodes=[3, 25], workers=1, progress=False)
    assert [found["action"][0, 0] for found in stepwell.open(tmp_path / "some.well", mode="r")] == [3, 25]


def test_an_import_of_a_damaged_file_names_it(path, tmp_path):
    file = next(path.glob("*-train*-00001-*"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises((WorkerError, FormatError), match="00001-of-00002"):
        convert(path, tmp_path / "a.well", workers=1, progress=False)


def test_strings_that_are_no_text_are_bytes_where_that_is_said(tmp_path):
    tree = simple_tree(blob=Leaf("tensor", "string"))
    path = str(write_set(tmp_path, tree, {"train": [[episode(2, **{"steps/blob": [b"\xff", b""]})]]}))
    assert TfdsReader(path, as_bytes="blob")[0].columns["blob"] == [b"\xff", b""]
    with pytest.raises(
        FormatError, match=r"record 0, byte 12: 'steps/blob': bytes that are no text.*as_bytes=\['blob'\]"
    ):
        TfdsReader(path)[0]
    with pytest.raises(FeatureNotFoundError, match="as_bytes: no feature blobs"):
        TfdsReader(path, as_bytes=["blobs"])


def test_long_records_are_not_held_and_their_images_read_again(image_sets, tmp_path, monkeypatch):
    pytest.importorskip("simplejpeg")
    held = [list(found.columns["image"].rows(found.columns["image"].feature)) for found in images_of(image_sets)]
    monkeypatch.setattr(reader_module, "MOST_HELD_BYTES", 0)
    assert [
        list(found.columns["image"].rows(found.columns["image"].feature)) for found in images_of(image_sets)
    ] == held
    assert all(type(found.columns["image"]).__name__ == "FileSpans" for found in images_of(image_sets))


def images_of(image_sets):
    return TfdsReader(str(image_sets / "tfrecord"), split="val").episodes()


def test_episodes_may_be_made_others(path, tmp_path):
    for transform in (doubled, "made_sets:doubled"):
        reader = TfdsReader(str(path), transform=transform)
        assert reader.schema["sum"] == Array()
        assert reader[0].columns["action"].tolist() == (2 * np.arange(6).reshape(3, 2)).tolist()
    store = stepwell.open(f"tfds://{path}", transform="made_sets:doubled")
    assert store[0]["sum"].tolist() == [1, 5, 9]
    names = {TfdsReader(str(path), transform=given).identity for given in (doubled, "made_sets:doubled", None)}
    assert len(names) == 2
    assert TfdsReader(str(path), transform=doubled, split="train[:0]").schema
    with pytest.raises(FormatError, match="transform='nowhere:f'"):
        TfdsReader(str(path), transform="nowhere:f")


def test_long_tensors_of_bytes_stay_in_the_files(tmp_path):
    depth = np.random.default_rng(0).normal(size=(3, 40, 30)).astype("<f4")
    tree = simple_tree(depth=Leaf("tensor", "float32", (40, 30), "bytes"))
    lists = episode(3, **{"steps/depth": [row.tobytes() for row in depth]})
    path = write_set(tmp_path, tree, {"train": [[lists]]})
    store = stepwell.open(f"tfds://{path}")
    assert store.schema["depth"].codec == "file-span"
    assert np.array_equal(store[0]["depth"], depth)
    convert(path, tmp_path / "a.well", workers=1, progress=False)
    assert np.array_equal(stepwell.open(tmp_path / "a.well", mode="r")[0]["depth"], depth)


def test_a_missing_dataset_is_an_error(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no TFDS dataset"):
        TfdsReader(str(tmp_path))
    with pytest.raises(FormatError, match=r"there is no 'train'\. There are: val"):
        TfdsReader(str(write_set(tmp_path, simple_tree(), {"val": [[episode(1)]]})))


def test_examples_of_plain_numbers_are_steps(tmp_path):
    tree = Fields({"x": FLOATS, "y": Leaf("label", "int64", num_classes=2), "z": Repeated(FLOATS)})
    examples = [
        {"x": np.full(2, n, np.float32), "y": np.array([n % 2]), "z": np.ones(2 * n, np.float32)} for n in range(7)
    ]
    path = write_set(tmp_path, tree, {"train": [examples[:3], examples[3:]]})
    convert(path, tmp_path / "a.well", workers=1, progress=False)
    for store in (stepwell.open(tmp_path / "a.well", mode="r"), stepwell.open(f"tfds://{path}")):
        assert [found["x"][0, 0] for found in store] == list(range(7))
        assert [found["z"][0].shape for found in store] == [(n, 2) for n in range(7)]
        assert [found.terminated for found in store] == [False] * 7


def test_a_store_in_the_cache_is_of_the_function_as_it_is_now(path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "transforms_of_a_test.py"
    text = """from dataclasses import replace
def scaled(data): return replace(data, columns={**data.columns, "action": 2 * data.columns["action"]})
"""
    source.write_text(text)
    before = stepwell.open(f"tfds://{path}?transform={source.stem}:scaled")[0]["action"]
    source.write_text(text.replace("2 *", "3.0 *"))
    importlib.reload(sys.modules[source.stem])
    after = stepwell.open(f"tfds://{path}?transform={source.stem}:scaled")[0]["action"]
    assert np.array_equal(2 * after, 3 * before) and after.any()
