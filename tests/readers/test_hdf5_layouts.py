"""HDF5 files of robots and simulators: read by a declared layout, in place where rows lie plain."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import convert
from stepwell.cli.main import main
from stepwell.errors import FormatError, LeftOutWarning, UntrustedFileError
from stepwell.formats import Hdf5Layout, find_reader, open_reader

pytest.importorskip("h5py")
import h5py
from robot_sets import CAMERAS, LENGTHS, act_jpegs, picture, write_act, write_aloha, write_droid, write_maniskill

TOP = "observations.images.cam_high"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))


def test_act_episodes_stay_in_their_chunks(tmp_path: Path) -> None:
    root = write_act(tmp_path / "act")
    assert find_reader(root).name == "hdf5"
    store = stepwell.open(f"hdf5://{root}")
    assert store.fps == 50
    assert store.metadata["hdf5"] == {"layout": "act"}
    assert {name: feature.codec for name, feature in store.schema.items()} == {
        "action": "raw",
        "observations.qpos": "raw",
        "observations.qvel": "raw",
        **{f"observations.images.{camera}": "file-span" for camera in CAMERAS},
    }
    assert [episode.metadata for episode in store] == [{"episode": f"episode_{n}", "sim": True} for n in LENGTHS]
    for episode, (number, length) in zip(store, LENGTHS.items(), strict=True):
        assert (episode["action"] == np.arange(length)[:, None] + number * 100).all()
        for place, camera in enumerate(CAMERAS):
            wanted = np.stack([picture(number, step, place) for step in range(length)])
            assert np.array_equal(episode[f"observations.images.{camera}"], wanted)


def test_a_chunk_that_was_never_written_is_copied_as_zeros(tmp_path: Path) -> None:
    root = write_act(tmp_path / "act", {0: 4})
    with h5py.File(root / "episode_0.hdf5", "a") as file:
        del file["observations/images/cam_low"]
        made = file.create_dataset("observations/images/cam_low", (4, 48, 64, 3), "uint8", chunks=(1, 48, 64, 3))
        made[1] = 7
    store = stepwell.open(f"hdf5://{root}")
    assert store.schema["observations.images.cam_low"].codec == "raw"
    assert store.schema[TOP].codec == "file-span"
    assert store[0]["observations.images.cam_low"].max((1, 2, 3)).tolist() == [0, 7, 0, 0]


@pytest.mark.parametrize("kind", ["padded", "packed", "fixed texts", "varying"])
def test_compressed_rows_of_aloha_stay_jpeg(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("simplejpeg")
    root = write_aloha(tmp_path / "aloha")
    for path in root.glob("*.hdf5") if kind != "padded" else ():
        with h5py.File(path, "a") as file:
            for camera in CAMERAS:
                name = f"observations/images/{camera}"
                rows = file[name][...]
                del file[name]
                blobs = [row.tobytes().rstrip(b"\0") for row in rows]
                if kind == "packed":
                    file.create_dataset(name, data=rows, compression="gzip")
                elif kind == "fixed texts":
                    file[name] = np.array(blobs, f"S{rows.shape[1] + 3}")
                else:
                    made = file.create_dataset(name, (len(rows),), h5py.vlen_dtype(np.uint8))
                    for row, blob in enumerate(blobs):
                        made[row] = np.frombuffer(blob, np.uint8)
    reader = open_reader(root)
    assert reader.metadata["hdf5"]["layout"] == "aloha"
    assert "compress_len" not in reader.schema
    assert reader.in_place_schema[TOP].codec == ("file-span" if kind == "padded" else "jpeg")
    for index, (number, length) in enumerate(LENGTHS.items()):
        episode = reader[index]
        for camera, blobs in act_jpegs(number, length).items():
            column = episode.columns[f"observations.images.{camera}"]
            assert list(column.rows(reader.schema[f"observations.images.{camera}"])) == blobs
    store = stepwell.open(f"hdf5://{root}")
    assert store[0][TOP].shape == (5, 48, 64, 3)
    assert (store[3]["base_action"] == 10).all()


def test_lengths_that_no_camera_has_are_an_error(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    root = write_aloha(tmp_path / "aloha", {0: 3})
    with h5py.File(root / "episode_0.hdf5", "a") as file:
        file["compress_len"][2] = file["compress_len"][2] + 1
    with pytest.raises(FormatError, match=r"cam_left_wrist end elsewhere than compress_len says.*ignore="):
        open_reader(root)[0]
    assert open_reader(root, options={"ignore": "compress_len"})[0].columns.keys() == open_reader(root).schema.keys()
    root = write_aloha(tmp_path / "again", {0: 3})
    with h5py.File(root / "episode_0.hdf5", "a") as file:
        file["observations/images/cam_high"][1, :40] = 0
    with pytest.raises(FormatError, match=r"episode_0.hdf5, row 1 of observations.images.cam_high"):
        open_reader(root, options={"ignore": "compress_len"})[0]


def test_maniskill_has_a_final_row_of_observations_and_metadata_of_its_json(tmp_path: Path) -> None:
    path = write_maniskill(tmp_path / "demos")
    convert(path, tmp_path / "a.well", workers=0)
    store = stepwell.open(tmp_path / "a.well")
    assert store.metadata["hdf5"]["env_info"] == {"env_id": "PickCube-v1", "env_kwargs": {}}
    assert set(store.schema.final_names) == {"obs.agent.qpos", "obs.sensor_data.base.rgb", "env_states.actors.cube"}
    assert [(len(episode["actions"]), len(episode["obs.agent.qpos"])) for episode in store] == [(4, 5), (3, 4), (6, 7)]
    assert [(episode.terminated, episode.truncated) for episode in store] == [
        (True, False),
        (False, True),
        (True, False),
    ]
    assert store[1].metadata["episode"] == "traj_1"
    assert (store[1].metadata["episode_seed"], store[1].metadata["reset_kwargs"]) == (8, {"seed": 1})
    assert np.array_equal(store[2]["obs.sensor_data.base.rgb"][6], picture(2, 6, shape=(16, 24, 3)))


def test_json_that_counts_other_steps_is_an_error(tmp_path: Path) -> None:
    path = write_maniskill(tmp_path / "demos")
    beside = path.with_suffix(".json")
    told = json.loads(beside.read_text())
    told["episodes"][1]["elapsed_steps"] = 9
    beside.write_text(json.dumps(told))
    with pytest.raises(FormatError, match=r"traj_1 of .* has 3 steps, in its metadata elapsed_steps says 9"):
        list(open_reader(path).episodes())
    beside.write_text("[1")
    with pytest.raises(FormatError, match=r"trajectory.json: .*should be a JSON object"):
        open_reader(path)


def test_episodes_that_json_lists_and_the_file_lacks_are_told(tmp_path: Path) -> None:
    path = write_maniskill(tmp_path / "demos")
    with h5py.File(path, "a") as file:
        del file["traj_1"]
    with pytest.warns(LeftOutWarning, match=r"trajectory.h5: 1: left out, the JSON beside lists these episodes"):
        assert len(open_reader(path)) == 2


def test_json_that_is_a_link_out_of_the_directory_is_not_read(tmp_path: Path) -> None:
    path = write_maniskill(tmp_path / "demos")
    (tmp_path / "secret.json").write_text(path.with_suffix(".json").read_text())
    path.with_suffix(".json").unlink()
    path.with_suffix(".json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(UntrustedFileError, match=r"trajectory.json"):
        open_reader(path)


def test_droid_cameras_are_called_by_their_roles(tmp_path: Path) -> None:
    pytest.importorskip("av")
    root = write_droid(tmp_path / "droid")
    store = stepwell.open(f"hdf5://{root}?layout=droid")
    assert store.fps == 15
    assert "observation.camera_extrinsics.wrist_left" in store.schema
    assert "observation.timestamp.cameras.wrist_read_start" in store.schema
    assert [name for name in store.schema if name.startswith("videos")] == ["videos.wrist"]
    assert [episode["videos.wrist"].shape for episode in store] == [(30, 48, 64, 3)] * 2
    assert [episode.metadata["uuid"] for episode in store] == ["lab+0", "lab+1"]
    assert store[1].metadata["episode"] == "success/day/episode_1/trajectory"
    assert (store[1]["action.joint_position"] == 1).all()
    with pytest.raises(FormatError, match=r"40 frames where there are 41 steps.*ignore="):
        open_reader(write_droid(tmp_path / "long", length=41) / "success/day/episode_0")[0]
    assert "videos.wrist" not in open_reader(f"hdf5://{tmp_path}/long?layout=droid&ignore=videos.wrist").schema


def test_a_folder_of_droid_is_found_by_looking(tmp_path: Path) -> None:
    root = write_droid(tmp_path / "droid", videos=False)
    reader = open_reader(root / "success/day")
    assert (reader.name, len(reader)) == ("hdf5", 2)


def test_d3rlpy_writes_what_is_read(tmp_path: Path) -> None:
    pytest.importorskip("d3rlpy", reason="d3rlpy is not installed")
    from d3rlpy.dataset import Episode
    from d3rlpy.dataset.io import dump

    rng = np.random.default_rng(0)
    episodes = [
        Episode(
            rng.random((n, 4)).astype("f4"), rng.random((n, 2)).astype("f4"), rng.random((n, 1)).astype("f4"), n % 2 > 0
        )
        for n in (5, 12, *range(2, 12))
    ]
    with (tmp_path / "a.h5").open("w+b") as file:
        dump(episodes, file)
    for found, wanted in zip(stepwell.open(f"hdf5://{tmp_path}/a.h5"), episodes, strict=True):
        assert np.array_equal(found["observations"], wanted.observations)
        assert np.array_equal(found["actions"], wanted.actions)
        assert (found.terminated, found.truncated) == (wanted.terminated, not wanted.terminated)


def write_d3rlpy(path: Path, lengths: tuple[int, ...], *, is_tuple: bool) -> Path:
    with h5py.File(path, "w") as file:
        file["columns"] = np.array([b"observations", b"actions", b"rewards", b"terminated"])
        file["num_episodes"], file["version"] = len(lengths), "2.1"
        for number, length in enumerate(lengths):
            for part in ("_0", "_1") if is_tuple else ("",):
                file[f"observations_{number}{part}"] = np.full((length, 3), number, np.float32)
            file[f"actions_{number}"] = np.full((length, 2), number, np.float32)
            file[f"rewards_{number}"] = np.zeros((length, 1), np.float32)
            file[f"terminated_{number}"] = number % 2 == 0
    return path


@pytest.mark.parametrize("is_tuple", [False, True])
def test_datasets_of_one_number_are_an_episode(tmp_path: Path, is_tuple: bool) -> None:
    lengths = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8)
    reader = open_reader(write_d3rlpy(tmp_path / "a.h5", lengths, is_tuple=is_tuple))
    names = {"observations.0", "observations.1"} if is_tuple else {"observations"}
    assert set(reader.schema) == names | {"actions", "rewards"}
    for number, episode in enumerate(reader.episodes()):
        assert len(episode.columns["actions"]) == lengths[number]
        assert all((episode.columns[name] == number).all() for name in names | {"actions"})
        assert (episode.terminated, episode.truncated) == (number % 2 == 0, number % 2 == 1)


def test_a_layout_of_ones_own(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in (2, 10, 1):
            file[f"runs/run_{number}/command"] = np.full((3, 2), number)
            file[f"runs/run_{number}/state/joints"] = np.zeros((4, 7))
            file[f"runs/run_{number}/note"] = "fine"
            file[f"runs/run_{number}/ended"] = np.array([0, 0, number == 1])
    layout = Hdf5Layout(name="mine", episodes="runs/run_#", steps="command", terminated="ended")
    reader = open_reader(tmp_path / "a.h5", "hdf5", {"layout": layout, "rename": {"command": "action"}})
    assert list(reader.schema) == ["action", "ended", "state.joints"]
    assert reader.schema["state.joints"].final
    assert [episode.metadata for episode in reader.episodes()] == [
        {"episode": f"run_{n}", "note": "fine"} for n in (1, 2, 10)
    ]
    assert [episode.terminated for episode in reader.episodes()] == [True, False, False]
    again = pickle.loads(pickle.dumps(reader))
    assert np.array_equal(again[2].columns["action"], reader[2].columns["action"])
    by_text = open_reader(f"hdf5://{tmp_path}/a.h5?episodes=runs/run_#&steps=command&rename=command=action")
    assert dict(by_text.schema) == dict(reader.schema)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"layout": "alhoa"}, r"layout='alhoa'\. Allowed: aloha, act, maniskill"),
        ({"episodes": "run"}, r"episodes='run'\. Allowed: "),
        ({"episodes": "run_#/x_#"}, r"Allowed: "),
        ({"episodes": "file", "steps": "actoin"}, r"has no actoin, by which its steps are counted. It has: a \(3,\)"),
        ({"episodes": "file", "ignore": "c"}, r"ignore=\['c'\]: .* has a, b"),
        ({"episodes": "file", "rename": "c=d"}, r"rename: .* has no c. It has: a, b"),
        ({"episodes": "file", "next_obs": "no"}, r"next_obs='no'"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, str], told: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a"], file["b"] = np.zeros(3), np.zeros((3, 2))
    with pytest.raises(FormatError, match=told):
        open_reader(tmp_path / "a.h5", "hdf5", options)


def test_a_wrong_guess_says_what_was_looked_for_and_what_it_looks_like(tmp_path: Path) -> None:
    root = write_act(tmp_path / "act", {0: 2})
    path = root / "episode_0.hdf5"
    with pytest.raises(FormatError) as caught:
        open_reader(path, "robomimic")
    assert "damaged" not in str(caught.value)
    assert "no data/demo_#" in str(caught.value)
    assert "It has action, observations/{images, qpos, qvel}" in str(caught.value)
    assert f"looks like act: hdf5://{path}?layout=act" in str(caught.value)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["foo/bar"] = np.zeros(3)
    for name in (None, "hdf5"):
        with pytest.raises(
            FormatError, match=r"foo/\{bar\}.*Looked for were aloha: .*maniskill: traj_#.*episodes=file"
        ):
            open_reader(tmp_path / "x.h5", name)
    with pytest.raises(FormatError, match=r"no file of maniskill: there is no traj_#"):
        open_reader(tmp_path / "x.h5", "hdf5", {"layout": "maniskill"})


def test_a_later_episode_that_lacks_or_has_more_is_told(tmp_path: Path) -> None:
    root = write_act(tmp_path / "act", {0: 2, 1: 2, 2: 2})
    with h5py.File(root / "episode_1.hdf5", "a") as file:
        file["observations/force"] = np.zeros((2, 3))
    with h5py.File(root / "episode_2.hdf5", "a") as file:
        del file["observations/qvel"]
    reader = open_reader(root)
    with pytest.warns(LeftOutWarning, match=r"observations.force"):
        assert len(reader[1].columns["action"]) == 2
    with pytest.raises(FormatError, match=r"episode_2 has no observations.qvel, which the first one has"):
        reader[2]
    root = write_act(tmp_path / "again", {0: 2, 1: 2})
    with h5py.File(root / "episode_1.hdf5", "a") as file:
        del file["observations/qvel"]
        file["observations/qvel"] = np.zeros((3, 14), np.float32)
    with pytest.raises(FormatError, match=r"qvel has \(3, 14\) where there are 2 steps"):
        open_reader(root)[1]


@pytest.mark.parametrize("write", [write_act, write_aloha, write_maniskill])
def test_the_command_converts_what_it_recognises(tmp_path: Path, write, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("simplejpeg")
    source = write(tmp_path / "set")
    assert main(["convert", str(source), str(tmp_path / "a.well"), "--workers", "1"]) == 0
    made, wanted = stepwell.open(tmp_path / "a.well"), stepwell.open(f"hdf5://{source}")
    assert len(made) == len(wanted)
    for found, expected in zip(made, wanted, strict=True):
        assert found.metadata == expected.metadata
        assert all(np.array_equal(found[name], expected[name]) for name in made.schema)


def plain(rows: Any) -> list[Any]:
    """Return the rows of a column."""
    return list(rows.array() if hasattr(rows, "array") else rows)


@pytest.mark.parametrize("is_jpeg", [True, False])
def test_the_file_of_minari_alone_has_the_same_rows(tmp_path: Path, is_jpeg: bool) -> None:
    pytest.importorskip("simplejpeg")
    from reader_sets import write_minari

    root = write_minari(tmp_path / "set", "hdf5", jpeg=is_jpeg)
    alone = open_reader(root / "data" / "main_data.hdf5")
    whole = open_reader(root)
    assert (alone.name, alone.metadata["hdf5"]["layout"], whole.name) == ("hdf5", "minari", "minari")
    assert whole.in_place_schema["observations.cam"].codec == ("jpeg" if is_jpeg else "file-span")
    assert {name.replace("_index_", "") for name in alone.schema} == set(whole.schema)
    for found, wanted in zip(alone.episodes(), whole.episodes(), strict=True):
        assert (found.terminated, found.truncated) == (wanted.terminated, wanted.truncated)
        for name, rows in found.columns.items():
            other: Any = wanted.columns[name.replace("_index_", "")]
            assert alone.schema[name].final == whole.schema[name.replace("_index_", "")].final
            np.testing.assert_equal(plain(rows), plain(other))


def test_robomimic_is_a_preset(tmp_path: Path) -> None:
    from reader_sets import write_robomimic

    path = write_robomimic(tmp_path / "a.hdf5")
    by_layout, by_name = open_reader(path, "hdf5"), open_reader(path)
    assert (by_layout.metadata["hdf5"]["layout"], by_name.name) == ("robomimic", "robomimic")
    assert dict(by_layout.schema) == dict(by_name.schema)
    for found, wanted in zip(by_layout.episodes(), by_name.episodes(), strict=True):
        assert (found.terminated, found.truncated) == (wanted.terminated, wanted.truncated)
        assert found.metadata["masks"] == wanted.metadata["masks"]


def test_groups_that_hold_themselves_are_not_walked_for_ever(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["action"] = np.zeros((3, 2))
        file["one"] = file["two"] = file["/"]
    with pytest.raises(FormatError, match="groups are linked more than"):
        open_reader(f"hdf5://{tmp_path}/a.hdf5?episodes=file")


def test_sizes_that_are_merely_claimed_take_no_memory(tmp_path: Path) -> None:
    path, size = tmp_path / "a.hdf5", {"shape": (1 << 40,), "chunks": (1 << 10,), "dtype": "u1"}
    with h5py.File(path, "w") as file:
        file["data/demo_0/actions"] = np.zeros((3, 2))
        for name in ("obs", "next_obs"):
            file["data/demo_0"].create_dataset(f"{name}/x", **size)
    with pytest.raises(FormatError, match="claims 1099511627776 bytes"):
        open_reader(f"robomimic://{path}")
    path = tmp_path / "b.hdf5"
    with h5py.File(path, "w") as file:
        file["traj_0/actions"] = np.zeros((3, 2))
        file["traj_0"].create_dataset("terminated", **{**size, "shape": (3, 1 << 40), "chunks": (1, 1 << 10)})
    with pytest.raises(FormatError, match="terminated claims"):
        next(iter(open_reader(f"hdf5://{path}?layout=maniskill&ignore=terminated").episodes()))
