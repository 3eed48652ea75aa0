"""robomimic files are read to what was written in them; next observations are not stored twice."""

import pickle
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import convert
from stepwell.errors import FormatError
from stepwell.formats import find_reader, open_reader

pytest.importorskip("h5py")
from reader_sets import robomimic_camera, robomimic_state, write_robomimic

NUMBERS = {0: 4, 1: 6, 2: 5, 10: 3}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_robomimic(tmp_path / "low_dim.hdf5")


def check(store: stepwell.Store) -> None:
    assert [episode.metadata["demo"] for episode in store] == [f"demo_{number}" for number in NUMBERS]
    for episode, (number, length) in zip(store, NUMBERS.items(), strict=True):
        assert np.array_equal(episode["obs.cam"], robomimic_camera(number, length))
        assert np.array_equal(episode["obs.eef"], robomimic_state(number, length))
        assert (episode["actions"] == number).all()
        assert episode["actions"].shape == (length, 7)
        assert episode.terminated
        assert not episode.truncated


def test_demonstrations_come_in_the_order_of_their_numbers_with_the_last_next_observation(file: Path, tmp_path: Path):
    convert(file, tmp_path / "a.well", workers=0)
    store = stepwell.open(tmp_path / "a.well")
    check(store)
    assert store.fps == 20
    assert [episode.metadata["masks"] for episode in store] == [["train"], [], [], ["train"]]
    assert store[0].metadata["tasks"] == ["lift the cube"]
    assert "model_file" not in store[0].metadata
    assert store.metadata["robomimic"]["env_args"]["env_name"] == "Lift"
    assert not any(name.startswith("next_obs") for name in store.schema)


def test_images_stay_in_a_file_without_compression(file: Path, tmp_path: Path):
    store = stepwell.open(f"robomimic://{file}", cache=tmp_path / "cache")
    assert store.schema["obs.cam"].codec == "file-span"
    assert store.schema["obs.eef"].codec == "raw"
    check(store)
    whole = stepwell.Loader(store, {"obs.cam": [0, 1], "actions": [0]}, batch_size=18)
    batch = next(iter(whole))
    assert batch["obs.cam"].shape == (18, 2, 32, 24, 3)
    assert (batch["obs.cam"][:, 1, 0, 0, 0].astype(int) - batch["obs.cam"][:, 0, 0, 0, 0] == 1).all()


def test_compressed_images_are_copied_into_the_cache(tmp_path: Path):
    file = write_robomimic(tmp_path / "a.hdf5", compression="gzip", chunks=True)
    store = stepwell.open(f"robomimic://{file}", cache=tmp_path / "cache")
    assert store.schema["obs.cam"].codec == "raw"
    check(store)


def test_next_observations_of_their_own_are_kept(tmp_path: Path):
    file = write_robomimic(tmp_path / "a.hdf5", repeats=False)
    convert(file, tmp_path / "a.well", workers=0)
    store = stepwell.open(tmp_path / "a.well")
    assert np.array_equal(store[0]["next_obs.eef"], robomimic_state(0, 4)[:4])
    assert store[0]["obs.eef"].shape == (4, 5)


@pytest.mark.parametrize(("mode", "names"), [("keep", {"next_obs.cam", "next_obs.eef"}), ("ignore", set())])
def test_next_observations_can_be_kept_or_left_out(file: Path, mode: str, names: set[str]):
    reader = open_reader(file, options={"next_obs": mode})
    assert {name for name in reader.schema if name.startswith("next_obs")} == names
    assert not any(feature.final for feature in reader.schema.values())


def test_a_demonstration_whose_next_observations_differ_is_refused(file: Path):
    import h5py

    with h5py.File(file, "a") as opened:
        opened["data/demo_2/next_obs/eef"][0] += 1
    reader = open_reader(file)
    with pytest.raises(FormatError, match=r"demo_2 of .*next_obs does not repeat obs.eef.*keep"):
        list(reader.episodes())


def test_a_directory_of_files_is_one_data_set(tmp_path: Path):
    (tmp_path / "libero").mkdir()
    for name in ("a_demo.hdf5", "b_demo.hdf5"):
        write_robomimic(tmp_path / "libero" / name)
    reader = open_reader(tmp_path / "libero")
    assert len(reader) == 8
    assert reader[5].metadata["file"] == "b_demo.hdf5"


def test_several_processes_write_the_same_store(file: Path, tmp_path: Path):
    convert(file, tmp_path / "a.well", workers=2)
    check(stepwell.open(tmp_path / "a.well"))


def test_a_reader_can_be_pickled(file: Path):
    reader = open_reader(file)
    again = pickle.loads(pickle.dumps(reader))
    assert np.array_equal(again[1].columns["obs.eef"], reader[1].columns["obs.eef"])


def test_what_is_no_such_file_is_told(tmp_path: Path):
    (tmp_path / "a.hdf5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(FormatError, match=r"a.hdf5, the file"):
        open_reader(tmp_path / "a.hdf5")
    with pytest.raises(FormatError, match=r"next_obs='both'\. Allowed: auto, keep, ignore"):
        open_reader(write_robomimic(tmp_path / "b.hdf5"), options={"next_obs": "both"})
    assert find_reader(tmp_path / "b.hdf5").name == "robomimic"


def test_every_row_of_numbers_is_compared_with_the_next_ones(file: Path):
    import h5py

    with h5py.File(file, "a") as opened:
        del opened["data/demo_1/obs/eef"], opened["data/demo_1/next_obs/eef"]
        rows = np.random.default_rng(0).random((7, 500))
        opened["data/demo_1/obs/eef"] = rows[:-1]
        rows[4] += 1
        opened["data/demo_1/next_obs/eef"] = rows[1:]
        for number, length in ((0, 4), (2, 5), (10, 3)):
            del opened[f"data/demo_{number}/obs/eef"], opened[f"data/demo_{number}/next_obs/eef"]
            rows = np.random.default_rng(number).random((length + 1, 500))
            opened[f"data/demo_{number}/obs/eef"] = rows[:-1]
            opened[f"data/demo_{number}/next_obs/eef"] = rows[1:]
    reader = open_reader(file)
    with pytest.raises(FormatError, match=r"demo_1 of .*next_obs does not repeat obs.eef"):
        reader[1]


def test_rows_that_are_not_one_a_step_are_told_and_can_be_left_out(file: Path):
    import h5py

    with h5py.File(file, "a") as opened:
        for name in opened["data"]:
            opened[f"data/{name}/pose"] = np.eye(9)
    with pytest.raises(FormatError, match=r'demo_0 of .*pose has \(9, 9\).*Leave it out: ignore="pose"'):
        open_reader(file)[0]
    assert open_reader(file, options={"ignore": "pose,rewards"})[0].columns.keys() == {
        "actions",
        "dones",
        "obs.cam",
        "obs.eef",
    }
    with pytest.raises(FormatError, match=r"ignore=\['nothing'\]: demo_0 of .* has actions, "):
        open_reader(file, options={"ignore": ["nothing"]})


def test_an_episode_without_dones_has_no_end_that_is_known(file: Path):
    import h5py

    with h5py.File(file, "a") as opened:
        for name in opened["data"]:
            del opened[f"data/{name}/dones"]
    episode = open_reader(file)[0]
    assert (episode.terminated, episode.truncated) == (False, False)


def test_a_directory_is_looked_at_without_a_walk_of_all(tmp_path: Path):
    from stepwell.readers.robomimic import RobomimicReader

    write_robomimic(tmp_path / "a.hdf5")
    (tmp_path / "one/two/three").mkdir(parents=True)
    assert RobomimicReader.accepts(str(tmp_path))
    (tmp_path / "a.hdf5").rename(tmp_path / "one/a.hdf5")
    assert RobomimicReader.accepts(str(tmp_path))
    (tmp_path / "one/a.hdf5").rename(tmp_path / "one/two/three/a.hdf5")
    assert not RobomimicReader.accepts(str(tmp_path))
    assert len(open_reader(tmp_path, "robomimic")) == len(NUMBERS)


def test_observations_alone_have_no_final_row(file: Path):
    reader = open_reader(file, options={"ignore": "actions, dones, rewards"})
    assert list(reader.schema) == ["obs.cam", "obs.eef"]
    assert [len(episode.columns["obs.eef"]) for episode in reader.episodes()] == list(NUMBERS.values())
    assert reader[0].terminated
