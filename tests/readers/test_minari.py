"""Minari's data sets are read to what was written in them, of both kinds of files."""

import json
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import convert
from stepwell.errors import FormatError
from stepwell.formats import find_reader, open_reader

pytest.importorskip("h5py")
pytest.importorskip("pyarrow")
pytest.importorskip("simplejpeg")
from reader_sets import minari_episode, minari_jpegs, write_minari

LENGTHS = (5, 3, 4)


@pytest.fixture(params=["hdf5", "arrow"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_minari(tmp_path / "set", request.param)


def test_all_values_are_read_with_a_final_observation(root: Path, tmp_path: Path):
    convert(root, tmp_path / "a.well", workers=0)
    store = stepwell.open(tmp_path / "a.well")
    assert [len(episode["actions"]) for episode in store] == list(LENGTHS)
    for number, episode in enumerate(store):
        for name, rows in minari_episode(number, LENGTHS[number]).items():
            if name != "observations.cam":
                assert len(episode[name]) == len(rows)
                assert all(map(np.array_equal, episode[name], rows)), name
        assert (episode.terminated, episode.truncated) == (number % 2 == 0, number % 2 == 1)
        assert episode.metadata["minari_episode"] == number
        assert episode.metadata["seed"] == number + 7
    assert store.metadata["minari"]["dataset_id"] == "test/mix-v0"


def test_jpeg_files_stay_as_they_are(root: Path):
    reader = open_reader(root)
    assert str(reader.schema["observations.cam"]) == "jpeg 32x40x3 uint8"
    for number, length in enumerate(LENGTHS):
        assert list(reader[number].columns["observations.cam"]) == minari_jpegs(number, length)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_plain_cameras_are_exact(tmp_path: Path, data_format: str):
    store = stepwell.open(f"minari://{write_minari(tmp_path / 'set', data_format, jpeg=False)}", cache=tmp_path / "c")
    for number, episode in enumerate(store):
        assert np.array_equal(episode["observations.cam"], minari_episode(number, LENGTHS[number])["observations.cam"])


def test_infos_can_be_left_out(root: Path):
    assert "infos.lives" in open_reader(root).schema
    assert "infos.lives" not in open_reader(root, options={"infos": "false"}).schema
    with pytest.raises(FormatError, match=r"infos='maybe'\. Allowed: true, false"):
        open_reader(root, options={"infos": "maybe"})


def test_features_can_be_left_out_but_how_episodes_end_cannot(root: Path):
    reader = open_reader(root, options={"ignore": "observations.cam, rewards"})
    assert not {"observations.cam", "rewards"} & set(reader.schema)
    assert [(each.terminated, each.truncated) for each in reader.episodes()] == [
        (each.terminated, each.truncated) for each in open_reader(root).episodes()
    ]
    with pytest.raises(FormatError, match=r"ignore=\['terminations'\]"):
        open_reader(root, options={"ignore": ["terminations"]})


def test_it_is_found_by_its_metadata(root: Path):
    assert find_reader(root).name == "minari"
    assert find_reader(root / "data").name == "minari"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_episodes": 4}, "has 3 episodes, metadata.json says 4"),
        ({"total_episodes": "three"}, "total_episodes is 'three'"),
        ({"data_format": "tape"}, "data_format is 'tape'. Read are: hdf5, arrow, parquet"),
        ({"action_space": json.dumps({"type": "Graph"})}, "actions is of the space 'Graph'"),
        ({"action_space": json.dumps({"type": "Box", "dtype": "text", "shape": [2]})}, "actions has dtype 'text'"),
        ({"action_space": json.dumps({"type": "Box", "dtype": "int8", "shape": [-2]})}, r"actions has shape \[-2\]"),
        ({"action_space": "{"}, "action_space"),
    ],
)
def test_metadata_that_are_wrong_are_told(root: Path, change: dict, message: str):
    path = root / "data" / "metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FormatError, match=message):
        open_reader(root, "minari")


def test_a_file_that_is_not_there_is_told(root: Path):
    for path in root.rglob("*"):
        if path.suffix in (".hdf5", ".arrow"):
            path.unlink()
    with pytest.raises(FormatError, match=r"not there|no \.arrow file"):
        open_reader(root, "minari")


@pytest.mark.parametrize("said", [None, False])
def test_pictures_are_what_the_files_hold_whatever_the_metadata_say(root: Path, said: bool | None):
    path = root / "data" / "metadata.json"
    told = json.loads(path.read_text())
    told.pop("jpeg_encoding")
    path.write_text(json.dumps(told if said is None else {**told, "jpeg_encoding": said}))
    reader = open_reader(root)
    assert list(reader[1].columns["observations.cam"]) == minari_jpegs(1, LENGTHS[1])


def test_jpeg_files_of_one_length_are_rows_of_bytes(tmp_path: Path):
    import h5py

    root = write_minari(tmp_path / "set", "hdf5")
    blob = np.frombuffer(minari_jpegs(0, LENGTHS[0])[0], np.uint8)
    with h5py.File(root / "data" / "main_data.hdf5", "a") as file:
        for number, length in enumerate(LENGTHS[:2]):
            del file[f"episode_{number}/observations/cam"]
            file[f"episode_{number}/observations/cam"] = np.tile(blob, (length + 1, 1))
    reader = open_reader(root)
    assert list(reader[1].columns["observations.cam"]) == [blob.tobytes()] * (LENGTHS[1] + 1)
    assert list(reader[2].columns["observations.cam"]) == minari_jpegs(2, LENGTHS[2])


def test_rows_that_are_too_many_are_told(tmp_path: Path):
    import h5py

    root = write_minari(tmp_path / "set", "hdf5")
    with h5py.File(root / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1/actions"]
        file["episode_1/actions"] = np.zeros((9, 2), np.float32)
    with pytest.raises(FormatError, match=r"episode_1 of .*actions has \(9, 2\) where there are 3 steps"):
        open_reader(root)[1]


def test_numbers_keep_the_dtype_they_are_stored_with(tmp_path: Path):
    import h5py

    root = write_minari(tmp_path / "set", "hdf5")
    values = {}
    with h5py.File(root / "data" / "main_data.hdf5", "a") as file:
        for number, length in enumerate(LENGTHS):
            values[number] = np.random.default_rng(number).random((length, 2))
            del file[f"episode_{number}/actions"]
            file[f"episode_{number}/actions"] = values[number]
    reader = open_reader(root)
    assert reader.schema["actions"].np_dtype == np.float64
    assert np.array_equal(reader[2].columns["actions"], values[2])
