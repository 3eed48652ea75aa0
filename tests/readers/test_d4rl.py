"""D4RL files are cut into episodes where they end, and read to what was written in them."""

from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import convert
from stepwell.errors import FormatError, LeftOutWarning
from stepwell.formats import find_reader, open_reader

pytest.importorskip("h5py")
from reader_sets import write_d4rl


def test_episodes_end_after_terminals_and_timeouts(tmp_path: Path):
    arrays = write_d4rl(tmp_path / "a.hdf5")
    convert(tmp_path / "a.hdf5", tmp_path / "a.well", workers=0)
    store = stepwell.open(tmp_path / "a.well")
    assert [len(episode["actions"]) for episode in store] == [10, 10, 10]
    assert [(episode.terminated, episode.truncated) for episode in store] == [
        (True, False),
        (False, True),
        (False, False),
    ]
    for name in ("actions", "rewards", "terminals", "infos/qpos"):
        rows = np.concatenate([episode[name.replace("/", ".")] for episode in store])
        assert np.array_equal(rows, arrays[name])
    assert store.metadata["d4rl"] == {"metadata.algorithm": "SAC", "metadata.iteration": 7}


def test_the_last_next_observation_is_the_final_one(tmp_path: Path):
    arrays = write_d4rl(tmp_path / "a.hdf5")
    reader = open_reader(tmp_path / "a.hdf5")
    assert "next_observations" not in reader.schema
    for number, episode in enumerate(reader.episodes()):
        start = 10 * number
        expected = [*arrays["observations"][start : start + 10], arrays["next_observations"][start + 9]]
        assert np.array_equal(episode.columns["observations"], expected)


def test_next_observations_that_repeat_nothing_are_kept(tmp_path: Path):
    arrays = write_d4rl(tmp_path / "a.hdf5", repeats=False)
    reader = open_reader(tmp_path / "a.hdf5")
    assert not reader.schema["observations"].final
    assert np.array_equal(reader[1].columns["next_observations"], arrays["next_observations"][10:20])


def test_without_timeouts_and_next_observations_episodes_end_at_terminals(tmp_path: Path):
    import h5py

    write_d4rl(tmp_path / "a.hdf5", next_observations=False, ends=(4, 29), cuts=())
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["timeouts"]
    reader = open_reader(tmp_path / "a.hdf5")
    assert [len(episode.columns["actions"]) for episode in reader.episodes()] == [5, 25]
    assert [episode.terminated for episode in reader.episodes()] == [True, True]


def test_a_later_episode_whose_next_observations_differ_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import h5py

    monkeypatch.setattr("stepwell.readers.d4rl.LOOKED_AT_BYTES", 64)

    write_d4rl(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["next_observations"][12] += 1
    with pytest.raises(FormatError, match="do not repeat observations one step later"):
        open_reader(tmp_path / "a.hdf5")[1]


def test_arrays_of_other_lengths_are_no_columns_and_flags_must_fit(tmp_path: Path):
    import h5py

    write_d4rl(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["extra"] = np.zeros(5)
        del file["terminals"]
        file["terminals"] = np.zeros(7, bool)
    with pytest.raises(FormatError, match="terminals has"):
        open_reader(tmp_path / "a.hdf5", "d4rl")


def test_what_no_store_has_is_told_and_can_be_left_out(tmp_path: Path):
    import h5py

    write_d4rl(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["infos/größe"] = np.zeros(30)
        file["metadata/none"] = h5py.Empty("f")
    with pytest.raises(FormatError, match=r"a\.hdf5: feature name 'infos\.größe' .* with ignore=\['infos\.größe'\]"):
        open_reader(tmp_path / "a.hdf5")
    reader = open_reader(f"d4rl://{tmp_path}/a.hdf5?ignore=infos.größe, rewards")
    assert list(reader.schema) == ["actions", "infos.qpos", "observations", "terminals", "timeouts"]
    assert reader.metadata["d4rl"]["metadata.none"] == "float32 None"
    with pytest.raises(FormatError, match=r"ignore=\['nope'\]: "):
        open_reader(tmp_path / "a.hdf5", options={"ignore": ["nope"]})


def test_it_is_found_by_its_names(tmp_path: Path):
    write_d4rl(tmp_path / "a.hdf5")
    assert find_reader(tmp_path / "a.hdf5").name == "d4rl"
    store = stepwell.open(f"d4rl://{tmp_path / 'a.hdf5'}?next_obs=keep", cache=tmp_path / "cache")
    assert store[2]["next_observations"].shape == (10, 4)


def test_episodes_of_one_step_do_not_pass_for_repeating(tmp_path: Path):
    arrays = write_d4rl(tmp_path / "a.hdf5", ends=(0, 1, 2, 9), repeats=False)
    reader = open_reader(tmp_path / "a.hdf5")
    assert np.array_equal(reader[0].columns["next_observations"], arrays["next_observations"][:1])


def test_chunks_that_hold_many_episodes_are_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import h5py

    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name, width in (("observations", 200), ("actions", 2), ("rewards", 1)):
            rows = np.arange(3000.0)[:, None] + np.zeros(width)
            file.create_dataset(name, data=rows, chunks=(3000, width), compression="gzip")
        file["terminals"] = np.arange(3000) % 100 == 99
    reader = open_reader(tmp_path / "a.hdf5")
    opened = []
    monkeypatch.setattr(h5py.Group, "__getitem__", lambda *_: opened.append(1))
    for number, episode in enumerate(reader.episodes()):
        assert (episode.columns["observations"][:, 7] == 100 * number + np.arange(100)).all()
    # datasets stay open, and with them their chunks
    assert not opened


def test_other_orders_of_bytes_are_read_as_numbers(tmp_path: Path):
    import h5py

    arrays = write_d4rl(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["actions"]
        file["actions"] = arrays["actions"].astype(">f4")
    reader = open_reader(tmp_path / "a.hdf5")
    assert reader.schema["actions"].np_dtype == np.dtype("<f4")
    assert np.array_equal(reader[1].columns["actions"], arrays["actions"][10:20])


def test_files_of_d3rlpy_1_are_cut_at_the_ends_of_their_episodes(tmp_path: Path):
    import h5py

    arrays = write_d4rl(tmp_path / "a.h5", next_observations=False)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["timeouts"]
        file["episode_terminals"] = arrays["terminals"] | arrays["timeouts"]
        file["discrete_action"], file["version"] = False, "1.0"
    with pytest.warns(LeftOutWarning):
        reader = open_reader(tmp_path / "a.h5")
    ends = [(len(episode.columns["actions"]), episode.terminated, episode.truncated) for episode in reader.episodes()]
    assert ends == [(10, True, False), (10, False, True), (10, False, False)]
