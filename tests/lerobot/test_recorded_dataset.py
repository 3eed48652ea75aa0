"""LeRobotDataset.create and .resume: datasets that record, and are read after finalize."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
pytest.importorskip("imagecodecs")

from torch.utils.data import DataLoader  # noqa: E402

from stepwell.errors import DatasetNotFoundError, LoaderError, StepError, StoreExistsError, WriterClosedError  # noqa: E402
from stepwell.lerobot import LeRobotDataset, LeRobotRecorder  # noqa: E402
from stepwell.loader import BatchSampler  # noqa: E402
from stepwell.testing.hub import HubServer  # noqa: E402
from stepwell.testing.lerobot import tiny_lerobot  # noqa: E402

from .recordings import FEATURES, VIDEO_FEATURES, add_frames, frame, picture  # noqa: E402

TOP = "observation.images.top"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def recorded(root: Path, lengths: tuple[int, ...] = (3, 2), **options: Any) -> LeRobotDataset:
    dataset = LeRobotDataset.create("me/reach", 10, FEATURES, root, **options)
    for episode, length in enumerate(lengths):
        add_frames(dataset, episode, length)
        assert dataset.save_episode() == episode
    return dataset


def check_items(dataset: LeRobotDataset, lengths: tuple[int, ...]) -> None:
    places = [(episode, step) for episode, length in enumerate(lengths) for step in range(length)]
    assert len(dataset) == len(places)
    for number, (episode, step) in enumerate(places):
        item = dataset[number]
        assert item["observation.state"].tolist() == [episode, step, 0.5]
        assert (int(item["episode_index"]), item["task"]) == (episode, frame(episode, step)["task"])
        assert torch.equal(item[TOP], torch.from_numpy(picture(episode, step)).permute(2, 0, 1) / np.float32(255))


def test_it_counts_while_it_records_and_has_items_after_it(tmp_path: Path) -> None:
    dataset = LeRobotDataset.create("me/reach", 10, FEATURES, tmp_path / "reach")
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert isinstance(dataset.writer, LeRobotRecorder)
    assert (dataset.num_episodes, dataset.num_frames, dataset.fps, dataset.reader) == (0, 0, 10, None)
    assert (dataset.meta.tasks, dataset.meta.episodes, dataset.meta.stats) == (None, None, None)
    assert list(dataset.features)[:3] == list(FEATURES)
    add_frames(dataset, 0, 3)
    assert dataset.has_pending_frames()
    dataset.save_episode()
    assert (dataset.has_pending_frames(), dataset.num_episodes, len(dataset)) == (False, 1, 3)
    assert (dataset.meta.total_tasks, dataset.meta.get_task_index("push")) == (1, 0)
    with pytest.raises(LoaderError, match="finalize"):
        dataset[0]
    dataset.finalize()
    dataset.finalize()
    assert dataset.meta.episodes is not None and dataset.meta.episodes["length"] == [3]
    check_items(dataset, (3,))
    assert dataset.reader is not None and dataset.reader.num_frames == 3
    with pytest.raises(WriterClosedError, match="finalized"):
        dataset.add_frame(frame(0, 0))


def test_a_dataset_that_was_opened_goes_on_where_lerobots_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded(tmp_path / "reach").finalize()
    dataset = LeRobotDataset("me/reach", tmp_path / "reach", delta_timestamps={"observation.state": [0.0, 0.1]})
    with pytest.raises(LoaderError, match=r"resume\(\) goes on"):
        dataset.add_frame(frame(2, 0))
    monkeypatch.setattr(LeRobotDataset, "goes_on_when_opened", True)
    dataset.start_image_writer(num_threads=4)
    add_frames(dataset, 2, 4)
    with pytest.raises(LoaderError, match="finalize"):
        dataset[0]
    assert (dataset.save_episode(), dataset.num_episodes, dataset.num_frames) == (2, 3, 9)
    dataset.finalize()
    assert dataset[8]["observation.state"].tolist() == [[2, 3, 0.5], [2, 3, 0.5]]
    check_items(LeRobotDataset("me/reach", tmp_path / "reach"), (3, 2, 4))
    with pytest.raises(LoaderError, match="some episodes"):
        LeRobotDataset("me/reach", tmp_path / "reach", episodes=[1]).add_frame(frame(3, 0))


def test_a_new_dataset_has_the_items_of_saved_episodes_where_lerobots_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeRobotDataset, "goes_on_when_opened", True)
    dataset = recorded(tmp_path / "reach")
    check_items(dataset, (3, 2))
    add_frames(dataset, 2, 4)
    check_items(dataset, (3, 2))
    dataset.save_episode()
    check_items(dataset, (3, 2, 4))
    assert dataset.meta.total_episodes == 3
    dataset.finalize()
    check_items(dataset, (3, 2, 4))


def test_windows_and_transforms_may_be_chosen_before_the_first_item(tmp_path: Path) -> None:
    dataset = recorded(tmp_path / "reach")
    dataset.finalize()
    dataset.delta_timestamps = {"observation.state": [-0.1, 0.0]}
    dataset.set_image_transforms(lambda image: image * 0)
    assert (dataset[1]["observation.state"].shape, float(dataset[1][TOP].max())) == ((2, 3), 0.0)
    assert dataset.delta_indices == {"observation.state": [-1, 0]}


def test_a_block_finalizes_also_what_an_error_ends(tmp_path: Path) -> None:
    with recorded(tmp_path / "whole") as dataset:
        pass
    check_items(dataset, (3, 2))
    with pytest.raises(ZeroDivisionError), recorded(tmp_path / "cut") as dataset:
        add_frames(dataset, 2, 2)
        raise ZeroDivisionError
    check_items(dataset, (3, 2))


def test_resume_goes_on_with_what_is_there(tmp_path: Path) -> None:
    recorded(tmp_path / "reach").finalize()
    dataset = LeRobotDataset.resume("me/reach", tmp_path / "reach")
    assert (dataset.num_episodes, dataset.meta.total_frames, dataset.meta.total_tasks) == (2, 5, 2)
    add_frames(dataset, 2, 4)
    dataset.clear_episode_buffer()
    add_frames(dataset, 2, 1)
    dataset.save_episode()
    dataset.finalize()
    check_items(dataset, (3, 2, 1))
    check_items(LeRobotDataset("me/reach", tmp_path / "reach"), (3, 2, 1))


def test_what_was_saved_is_there_after_a_crash(tmp_path: Path) -> None:
    dataset = recorded(tmp_path / "reach")
    add_frames(dataset, 2, 2)
    # as a killed process: neither finalized nor closed
    del dataset
    with pytest.raises(StoreExistsError, match=r"there already. Go on with LeRobotRecorder.resume\(\)"):
        LeRobotDataset.create("me/reach", 10, FEATURES, tmp_path / "reach")
    again = LeRobotDataset.resume("me/reach", tmp_path / "reach")
    assert again.num_episodes == 2
    again.finalize()
    check_items(again, (3, 2))


def test_a_new_dataset_has_its_info_at_once_and_is_gone_on_with_before_an_episode(tmp_path: Path) -> None:
    root = tmp_path / "reach"
    dataset = LeRobotDataset.create("me/reach", 10, FEATURES, root, robot_type="so100")
    for size in (300, 400):
        dataset.meta.update_chunk_settings(chunks_size=size, **({"data_files_size_in_mb": 7} if size == 300 else {}))
    info = json.loads((root / "meta/info.json").read_text())
    assert (info["total_episodes"], info["chunks_size"], info["data_files_size_in_mb"]) == (0, 400, 7)
    assert list(info["features"])[:3] == list(FEATURES)
    # killed, then finalized without an episode, then gone on with
    del dataset
    LeRobotDataset.resume("me/reach", root).finalize()
    again = LeRobotDataset.resume("me/reach", root)
    assert (again.meta.total_episodes, again.meta.tasks, again.meta.episodes) == (0, None, None)
    add_frames(again, 0, 3)
    again.save_episode()
    again.finalize()
    check_items(again, (3,))
    assert (again.meta.robot_type, again.meta.chunks_size, again.meta.data_files_size_in_mb) == ("so100", 400, 7)


def test_sizes_of_files_are_those_asked_for(tmp_path: Path) -> None:
    dataset = recorded(tmp_path / "reach", data_files_size_in_mb=0.0001, video_files_size_in_mb=42.0)
    assert dataset.meta.video_files_size_in_mb == 42.0
    dataset.meta.update_chunk_settings(chunks_size=1)
    dataset.finalize()
    assert dataset.meta.get_chunk_settings() == {
        "chunks_size": 1,
        "data_files_size_in_mb": 0.0001,
        "video_files_size_in_mb": 42.0,
    }
    names = sorted(path.relative_to(dataset.root).as_posix() for path in (tmp_path / "reach/data").glob("*/*"))
    assert names == ["data/chunk-000/file-000.parquet", "data/chunk-001/file-000.parquet"]
    again = LeRobotDataset.resume("me/reach", tmp_path / "reach")
    again.meta.update_chunk_settings(data_files_size_in_mb=7)
    again.finalize()
    assert LeRobotDataset("me/reach", tmp_path / "reach").meta.data_files_size_in_mb == 7


class Encoder:
    """Settings of an encoder, as LeRobot's class has them."""

    vcodec, g, crf, preset, pix_fmt = "libsvtav1", 4, 30, 12, "yuv420p"


def test_settings_of_lerobots_encoder_are_those_of_the_videos(tmp_path: Path) -> None:
    pytest.importorskip("av")
    with LeRobotDataset.create("me/reach", 10, VIDEO_FEATURES, tmp_path / "reach", rgb_encoder=Encoder()) as dataset:
        add_frames(dataset, 0, 3)
        dataset.save_episode()
    assert dataset.features[TOP]["info"]["video.codec"] == "av1"
    assert (dataset[1][TOP] - picture(0, 1)[0, 0, 0] / 255).abs().max() < 0.05


def test_statistics_are_there_while_it_is_recorded_and_afterwards_the_same(tmp_path: Path) -> None:
    def stats(dataset: LeRobotDataset) -> dict[str, Any]:
        found = dataset.meta.stats or {}
        return {name: found[name] for name in (TOP, "observation.state", "next.reward")}

    dataset = LeRobotDataset.create("me/reach", 10, FEATURES, tmp_path / "reach")
    assert dataset.meta.stats is None
    for episode in range(4):
        if episode == 2:
            dataset.finalize()
            dataset = LeRobotDataset.resume("me/reach", tmp_path / "reach")
        add_frames(dataset, episode, 3)
        dataset.save_episode()
        assert stats(dataset)["observation.state"]["max"].tolist() == [episode, 2, 0.5]
        assert stats(dataset)[TOP]["count"].tolist() == [3 * (episode + 1)]
    before = stats(dataset)
    dataset.finalize()
    for name, after in stats(dataset).items():
        for key, value in after.items():
            np.testing.assert_allclose(before[name][key], value, rtol=1e-9, err_msg=f"{name} {key}")


def test_verbs_of_recording_are_refused_where_nothing_is_recorded(tmp_path: Path) -> None:
    dataset = LeRobotDataset("me/tiny", tiny_lerobot(tmp_path / "tiny", cameras={}))
    assert (dataset.writer, dataset.has_pending_frames()) == (None, False)
    for verb, arguments in (("add_frame", ({},)), ("save_episode", ()), ("clear_episode_buffer", ())):
        with pytest.raises(RuntimeError, match=rf"{verb}\(\) on a dataset that is read-only"):
            getattr(dataset, verb)(*arguments)
    dataset.finalize()
    with pytest.raises(ValueError, match="needs root"):
        LeRobotDataset.resume("me/tiny")


def test_what_the_hub_has_is_fetched_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    source = tmp_path / "reach"
    recorded(source).finalize()
    with HubServer({"me/reach": {"main": source, "v3.0": source}}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        dataset = LeRobotDataset.resume("me/reach", tmp_path / "mine")
        (tmp_path / "full").mkdir()
        (tmp_path / "full/notes").touch()
        with pytest.raises(FileExistsError, match="not empty"):
            LeRobotDataset.resume("me/reach", tmp_path / "full")
        with pytest.raises(DatasetNotFoundError, match="me/other"):
            LeRobotDataset.resume("me/other", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    add_frames(dataset, 2, 4)
    assert dataset.save_episode() == 2
    dataset.finalize()
    check_items(dataset, (3, 2, 4))
    check_items(LeRobotDataset("me/reach", source), (3, 2))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"task": None}, "Feature mismatch in `frame` dictionary:\nMissing features: {'task'}\n"),
        ({"extra": 1}, "Feature mismatch in `frame` dictionary:\nExtra features: {'extra'}\n"),
        (
            {"observation.state": torch.zeros(3, dtype=torch.float16)},
            "The feature 'observation.state' of dtype 'float16' is not of the expected dtype 'float32'.\n",
        ),
        (
            {"observation.state": np.zeros(2, np.float32)},
            "The feature 'observation.state' of shape '(2,)' does not have the expected shape '(3,)'.\n",
        ),
        (
            {"next.reward": 1.0},
            "The feature 'next.reward' is not a 'np.ndarray'. Expected type is 'float32', but type '<class 'float'>' "
            "provided instead.\n",
        ),
        (
            {"next.reward": torch.tensor(1.0)},
            "The feature 'next.reward' of shape '()' does not have the expected shape '(1,)'.\n",
        ),
        ({TOP: np.zeros((5, 4, 3), np.uint8)}, f"The feature '{TOP}' of shape '(5, 4, 3)' does not have the expected"),
    ],
)
def test_a_frame_that_does_not_fit_is_told_in_lerobots_words_and_ours(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    dataset = LeRobotDataset.create("me/reach", 10, FEATURES, tmp_path / "reach")
    wrong = {name: value for name, value in (frame(0, 0) | changes).items() if value is not None}
    with pytest.raises(StepError) as caught:
        dataset.add_frame(wrong)
    assert str(caught.value).startswith(said)
    assert str(caught.value.__cause__ or "Give an array of shape (1,)") in str(caught.value)
    assert not dataset.has_pending_frames()
    dataset.finalize()


def test_episodes_that_were_made_elsewhere_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="add_frame"):
        recorded(tmp_path / "reach").save_episode({"size": 1})  # type: ignore[arg-type]


def test_loaders_samplers_and_copies_work_after_it(tmp_path: Path) -> None:
    dataset = recorded(tmp_path / "reach")
    with pytest.raises(LoaderError, match="finalize"):
        pickle.dumps(dataset)
    dataset.finalize()
    assert len(pickle.loads(pickle.dumps(dataset))) == 5
    sampler = BatchSampler(dataset, 2)
    assert [batch["index"].tolist() for batch in DataLoader(dataset, batch_sampler=sampler)] == [[0, 1], [2, 3], [4]]
    assert sum(len(batch["task"]) for batch in dataset.loader(2, threads=0)) == 5
