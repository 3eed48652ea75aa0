"""Items of LeRobot datasets that are read where they are: the recorded items of the real library, and tiny datasets."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("av")
pytest.importorskip("imagecodecs")

from torch.utils.data import DataLoader  # noqa: E402

import stepwell  # noqa: E402
from stepwell.errors import SchemaError  # noqa: E402
from stepwell.lerobot import LeRobotDataset, LeRobotRecorder, MultiLeRobotDataset, write_dataset  # noqa: E402
from stepwell.testing.lerobot import TINY_TASKS, tiny_lerobot, tiny_lerobot_picture, tiny_lerobot_rows  # noqa: E402

from .recordings import FEATURES, VIDEO_FEATURES, add_frames  # noqa: E402

DATA = Path(__file__).parents[3] / "shared" / "data" / "lerobot"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared LeRobot datasets are not beside this checkout")
SETS = ("v30_png", "v30_video", "v21_png", "v21_video")
TOP, SIDE = "observation.images.top", "observation.images.side"
# steps of grey of the tiny pictures are 17 apart
NEAR = 6 / 255


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def recorded_items(name: str, config: str) -> tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]:
    """Return what a recording says of a configuration: its deltas, and the items by index."""
    told = json.loads((DATA / f"{name}.expected.json").read_text())["configs"][config]
    with np.load(DATA / f"{name}.expected.npz") as arrays:
        items = []
        for index in told["indexes"]:
            start = f"{config}/{index}/"
            items.append((index, {key[len(start) :]: arrays[key] for key in arrays.files if key.startswith(start)}))
    return told["delta_timestamps"], items


@needs_data
@pytest.mark.parametrize("config", ["none", "window", "images"])
@pytest.mark.parametrize("name", SETS)
def test_items_equal_those_of_the_real_class(name: str, config: str) -> None:
    deltas, items = recorded_items(name, config)
    dataset = LeRobotDataset("lerobot/samples", DATA / name, delta_timestamps=deltas)
    for (_, expected), item in zip(items, dataset.__getitems__([index for index, _ in items]), strict=True):
        assert list(item) == list(expected)
        for key, value in expected.items():
            if key == "task":
                assert item[key] == str(value)
            elif key in dataset.meta.camera_keys:
                # recorded as bytes
                assert item[key].dtype == torch.float32
                far = np.abs(item[key].numpy() - value.astype(np.float32) / np.float32(255)).max()
                assert far <= (1.01 / 255 if key in dataset.meta.video_keys else 0)
            else:
                assert item[key].numpy().dtype == value.dtype
                np.testing.assert_array_equal(item[key].numpy(), value, strict=True)


@needs_data
@pytest.mark.parametrize("name", ["v30_video", "v21_png"])
def test_items_come_the_same_one_by_one_and_through_workers(name: str) -> None:
    deltas, items = recorded_items(name, "images")
    dataset = LeRobotDataset("lerobot/samples", DATA / name, delta_timestamps=deltas)
    indexes = [index for index, _ in items]
    batches = DataLoader(dataset, batch_size=5, sampler=indexes, num_workers=2, multiprocessing_context="fork")
    found = [{key: value[row] for key, value in b.items()} for b in batches for row in range(len(b["task"]))]
    for index, item in zip(indexes, found, strict=True):
        alone = dataset[index]
        assert all(torch.equal(v, item[k]) if isinstance(v, torch.Tensor) else v == item[k] for k, v in alone.items())


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_tiny_datasets_give_what_was_written(tmp_path: Path, version: Any) -> None:
    cameras: dict[str, Any] = {TOP: ("png", (16, 24)), SIDE: ("video", (32, 48))}
    lengths = (5, 7, 4)
    root = tiny_lerobot(tmp_path / "tiny", version=version, lengths=lengths, cameras=cameras, files=2)
    dataset = LeRobotDataset("me/tiny", root, delta_timestamps={SIDE: [-0.1], "action": [0.0, 0.1]}, episodes=[1, 2])
    assert (len(dataset), dataset.repo_id, dataset.root) == (11, "me/tiny", root)
    for number, item in enumerate(dataset.__getitems__(range(11))):
        episode, step = (1, number) if number < 7 else (2, number - 7)
        rows = tiny_lerobot_rows(episode, lengths[episode])
        following = min(step + 1, lengths[episode] - 1)
        np.testing.assert_array_equal(item["action"], rows["action"][[step, following]])
        assert item["action_is_pad"].tolist() == [False, step == following]
        assert item["index"] == 5 + number
        assert item["observation.note"] == rows["observation.note"][step]
        assert item["task"] == TINY_TASKS[rows["task_index"][step]]
        top = tiny_lerobot_picture(0, episode, step, (16, 24))
        assert torch.equal(item[TOP], torch.from_numpy(top).permute(2, 0, 1).float().div(255))
        side = tiny_lerobot_picture(1, episode, max(step - 1, 0), (32, 48))[:, :20] / 255
        assert np.abs(item[SIDE][:, :, :20].numpy() - np.moveaxis(side, -1, 0)).max() < NEAR


def test_a_converted_dataset_gives_the_same_items(tmp_path: Path) -> None:
    cameras: dict[str, Any] = {TOP: ("png", (16, 24)), SIDE: ("video", (32, 48))}
    root = tiny_lerobot(tmp_path / "tiny", lengths=(5, 4), cameras=cameras)
    stepwell.convert(str(root), tmp_path / "tiny.well", workers=1)
    deltas = {TOP: [-0.1, 0.0], SIDE: [0.1], "action": [0.0, 0.1]}
    here, there = (LeRobotDataset(path, delta_timestamps=deltas) for path in (root, tmp_path / "tiny.well"))
    assert there.meta.info == here.meta.info
    for item, other in zip(here.__getitems__(range(9)), there.__getitems__(range(9)), strict=True):
        assert list(item) == list(other)
        assert all(torch.equal(other[k], v) if isinstance(v, torch.Tensor) else other[k] == v for k, v in item.items())


def test_metadata_are_those_of_the_whole_dataset(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", lengths=(5, 7, 4), cameras={SIDE: ("video", (32, 48))}, files=2)
    dataset = LeRobotDataset(root, episodes=[2])
    meta = dataset.meta
    assert (dataset.num_episodes, meta.total_episodes, meta.total_frames) == (1, 3, 16)
    assert meta.episodes["dataset_from_index"] == [0, 5, 12]
    assert meta.episodes[1][f"videos/{SIDE}/to_timestamp"] > meta.episodes[1][f"videos/{SIDE}/from_timestamp"]
    assert meta.episodes[1]["tasks"] == list(TINY_TASKS[1:])
    assert meta.stats is not None
    assert meta.stats[SIDE]["mean"].shape == (3, 1, 1)
    assert meta.names["observation.state"] == ["x", "y", "vx", "vy"]


def test_a_dataset_below_lerobots_home_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_lerobot(tmp_path / "me" / "tiny", lengths=(3,), cameras={})
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    dataset = LeRobotDataset("me/tiny")
    assert (len(dataset), dataset.repo_id) == (3, "me/tiny")
    assert len(pickle.loads(pickle.dumps(dataset))) == 3
    assert len(LeRobotDataset("me/tiny", download_videos=False)) == 3
    assert "action" not in LeRobotDataset("me/tiny", ignore=["action"])[0]


def test_subtasks_are_looked_up_where_a_dataset_has_them(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    root = tiny_lerobot(tmp_path / "tiny", lengths=(3,), cameras={})
    (data,) = root.rglob("data/**/*.parquet")
    rows = parquet.read_table(data)
    parquet.write_table(rows.append_column("subtask_index", pyarrow.array([0, 1, 1])), data)
    info = json.loads((root / "meta" / "info.json").read_text())
    info["features"]["subtask_index"] = {"dtype": "int64", "shape": [1], "names": None}
    (root / "meta" / "info.json").write_text(json.dumps(info))
    table = pyarrow.table({"subtask_index": [0, 1], "subtask": ["reach", "grasp"]})
    parquet.write_table(table, root / "meta" / "subtasks.parquet")
    dataset = LeRobotDataset(root, delta_timestamps={"subtask_index": [-0.1, 0.0]})
    assert [item["subtask"] for item in dataset.__getitems__(range(3))] == ["reach", "grasp", "grasp"]
    assert list(dataset[0])[-2:] == ["task", "subtask"]
    assert dataset[2]["subtask_index"].tolist() == [1, 1]
    # they go with the rows: into a store, out of it, and beside those of a dataset that is added to
    stepwell.convert(f"lerobot://{root}", tmp_path / "a.well", workers=0, progress=False)
    write_dataset(tmp_path / "a.well", tmp_path / "again", progress=False)
    write_dataset(tmp_path / "a.well", tmp_path / "again", append=True, progress=False)
    for source, times in ((tmp_path / "a.well", 1), (tmp_path / "again", 2)):
        items = LeRobotDataset(source)[:]
        assert [item["subtask"] for item in items] == ["reach", "grasp", "grasp"] * times
    parquet.write_table(table.slice(0, 1), tmp_path / "again" / "meta" / "subtasks.parquet")
    with pytest.raises(SchemaError, match="subtask_index"):
        write_dataset(tmp_path / "a.well", tmp_path / "again", append=True, progress=False)


def test_an_address_names_the_directory_and_its_episodes(tmp_path: Path) -> None:
    root = tiny_lerobot(tmp_path / "tiny", lengths=(3, 4, 2), cameras={})
    dataset = LeRobotDataset(f"lerobot://{root}?episodes=1:3")
    assert (dataset.repo_id, dataset.num_episodes, len(dataset)) == ("tiny", 2, 6)
    assert dataset[0]["index"] == 3
    whole = LeRobotDataset(stepwell.open(f"lerobot://{root}"))
    assert (whole.repo_id, whole.root, len(whole)) == ("tiny", root, 9)


def test_a_dataset_of_the_hub_is_fetched_as_far_as_its_episodes_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    from stepwell.testing.hub import HubServer

    root = tiny_lerobot(tmp_path / "there", lengths=(3, 4, 2), cameras={SIDE: ("video", (32, 48))}, version="v2.1")
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path / "nothing"))
    with HubServer({"me/tiny": {"main": root, "v2.1": root}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        dataset = LeRobotDataset("me/tiny", episodes=[1], cache_dir=tmp_path / "hub", download_videos=False)
        assert not [file for file in hub.files if file.endswith(".mp4")]
        dataset = LeRobotDataset("me/tiny", episodes=[1], cache_dir=tmp_path / "hub")
        assert [file[-18:] for file in hub.files if file.endswith(".mp4")] == ["episode_000001.mp4"]
    assert (dataset.repo_id, len(dataset), dataset[2]["index"].item()) == ("me/tiny", 4, 5)
    assert dataset[0][SIDE].shape == (3, 32, 48)
    assert dataset.meta.total_episodes == 3


def test_several_datasets_are_read_and_loaded_together(tmp_path: Path) -> None:
    cameras: dict[str, Any] = {TOP: ("png", (16, 24))}
    tiny_lerobot(tmp_path / "a", lengths=(4, 3), cameras=cameras)
    tiny_lerobot(tmp_path / "b", version="v2.1", lengths=(5,), cameras={**cameras, SIDE: ("video", (32, 48))}, seed=1)
    both = MultiLeRobotDataset(["a", "b"], tmp_path, episodes={"a": [1]}, delta_timestamps={TOP: [-0.1, 0.0]})
    assert both.disabled_features == {SIDE}
    (whole,) = DataLoader(both, batch_size=8)
    (batch,) = both.loader(8, order="sequential", images="float32")
    assert whole["dataset_index"].tolist() == [0] * 3 + [1] * 5
    assert list(batch) == list(whole)
    assert all(torch.equal(batch[key], value) for key, value in whole.items() if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("output", ["store", "v3.0"])
def test_what_is_recorded_later_is_not_among_the_episodes(tmp_path: Path, output: Any) -> None:
    def record(recorder: LeRobotRecorder) -> None:
        with recorder:
            add_frames(recorder, recorder.num_episodes, 3)
            recorder.save_episode()

    root = tmp_path / "robot"
    record(LeRobotRecorder.create(root, fps=10, features=FEATURES, output=output, sync="none"))
    dataset = LeRobotDataset(root)
    record(LeRobotRecorder.resume(root))
    dataset.view.stores[0].refresh()
    assert (len(dataset), dataset.meta.total_episodes) == (3, 1)
    assert dataset.meta.episodes["dataset_to_index"] == [3]
    assert LeRobotDataset(root).meta.episodes["dataset_to_index"] == [3, 6]


@pytest.mark.parametrize("vcodec", ["auto", "libsvtav1"])
def test_create_records_a_dataset_where_lerobot_puts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vcodec: str
) -> None:
    monkeypatch.setenv("HF_LEROBOT_HOME", str(tmp_path))
    options: dict[str, Any] = {"image_writer_threads": 4, "tolerance_s": 1e-4, "batch_encoding_size": 1}
    with LeRobotDataset.create("me/robot", 10, VIDEO_FEATURES, vcodec=vcodec, robot_type="so100", **options) as robot:
        add_frames(robot, 0, 3)
        robot.save_episode()
    assert robot.root == tmp_path / "me/robot"
    dataset = LeRobotDataset("me/robot")
    assert (len(dataset), dataset.meta.robot_type) == (3, "so100")
    told = dataset.features[TOP]["info"]["video.codec"]
    assert told == {"auto": "h264", "libsvtav1": "av1"}[vcodec]


def test_create_refuses_what_neither_class_has(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="image_writer_treads"):
        LeRobotDataset.create("me/robot", 10, VIDEO_FEATURES, tmp_path / "a", image_writer_treads=4)
    with pytest.raises(SchemaError, match="h264_nvenc"):
        LeRobotDataset.create("me/robot", 10, VIDEO_FEATURES, tmp_path / "a", vcodec="h264_nvenc")
    assert not list(tmp_path.iterdir())
