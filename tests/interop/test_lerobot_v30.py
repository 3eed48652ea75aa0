"""v3.0 datasets, both ways: what lerobot wrote is read here, what is written here lerobot reads."""

import numpy as np
import pytest
from interop_sets import CAMERAS, FPS, SHARED, assert_same_items, opened, ours, smooth, some_deltas, some_indices

import stepwell

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("name", ["v30_png", "v30_video"])
@pytest.mark.parametrize("seed", range(4))
def test_items_of_the_samples_are_equal_for_any_windows(name, seed, tmp_path, monkeypatch):
    if not SHARED.is_dir():
        pytest.skip("the samples of ../shared are not here")
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path))
    keys = ["action", "observation.state", "observation.grid", "observation.images.top", "observation.images.side"]
    deltas = some_deltas(seed, keys)
    theirs = opened(SHARED / name, deltas)
    assert_same_items(ours(SHARED / name, deltas), theirs, some_indices(seed, len(theirs)), inexact=CAMERAS)


@pytest.mark.parametrize("name", ["v30_png", "v30_video"])
@pytest.mark.parametrize("episodes", [[1], [1, 0]])
def test_a_selection_of_episodes_is_equal(name, episodes, tmp_path, monkeypatch):
    if not SHARED.is_dir():
        pytest.skip("the samples of ../shared are not here")
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path))
    deltas = {"observation.images.top": [-0.1, 0.0], "action": [0.2, 0.0]}
    theirs = opened(SHARED / name, deltas, episodes=episodes)
    found = ours(SHARED / name, deltas, episodes=episodes)
    assert_same_items(found, theirs, some_indices(0, len(theirs)), inexact=CAMERAS)
    for attribute in ("num_frames", "num_episodes", "episodes", "fps", "delta_indices"):
        assert getattr(found, attribute) == getattr(theirs, attribute), attribute


@pytest.mark.parametrize("name", ["v30_png", "v30_video"])
def test_metadata_tell_lerobots_training_the_same(name):
    if not SHARED.is_dir():
        pytest.skip("the samples of ../shared are not here")
    from lerobot.datasets.utils import dataset_to_policy_features

    theirs, found = opened(SHARED / name).meta, ours(SHARED / name).meta
    equal = ("features", "fps", "robot_type", "camera_keys", "video_keys", "image_keys", "names", "shapes")
    for attribute in (*equal, "total_episodes", "total_frames", "total_tasks"):
        assert getattr(found, attribute) == getattr(theirs, attribute), attribute
    assert list(found.features) == list(theirs.features)
    assert dataset_to_policy_features(found.features) == dataset_to_policy_features(theirs.features)
    assert [found.tasks.iloc[i].name for i in range(len(found.tasks))] == list(theirs.tasks.index)
    for column in ("dataset_from_index", "dataset_to_index", "length", "tasks"):
        assert found.episodes[column] == list(theirs.episodes[column]), column
    assert found.stats.keys() == theirs.stats.keys()
    for feature, stats in theirs.stats.items():
        assert found.stats[feature].keys() == stats.keys()
        for key, value in stats.items():
            np.testing.assert_array_equal(found.stats[feature][key], value, err_msg=f"{feature} {key}")
            assert np.shape(found.stats[feature][key]) == np.shape(value)


@pytest.mark.parametrize("cameras", ["image", "video"])
def test_what_is_written_here_lerobot_reads_with_equal_items(store, tmp_path, cameras, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    root = tmp_path / "set"
    stepwell.lerobot.write_dataset(store, root, cameras=cameras)
    for seed in range(4):
        deltas = some_deltas(seed, list(store.schema))
        theirs = opened(root, deltas)
        inexact = CAMERAS if cameras == "video" else ()
        assert_same_items(ours(root, deltas), theirs, some_indices(seed, len(theirs)), inexact=inexact)
    theirs = opened(root)
    for index, (episode, step) in enumerate((e, s) for e in range(3) for s in range(store[e].length)):
        item = theirs[index]
        assert item["task"] == f"task {episode % 2}"
        np.testing.assert_array_equal(item["next.success"], store[episode]["next.success"][step])


def test_frames_of_samples_with_a_rate_are_read_by_lerobot(tmp_path):
    store = stepwell.create(
        tmp_path / "a.well",
        {"action": stepwell.Array(2), "tactile": stepwell.Array(3, rate=4.7 * FPS)},
        fps=FPS,
    )
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for length in (6, 9):
            times = np.sort(rng.uniform(0, length / FPS, int(length * 4.7)))
            samples = stepwell.Samples(rng.normal(size=(len(times), 3)).astype("f4"), times)
            writer.add_episode({"action": np.zeros((length, 2), "f4"), "tactile": samples}, task="touch")
    root = tmp_path / "set"
    written = stepwell.lerobot.write_dataset(store, root)
    room = written.info.features["tactile"].shape[0]
    theirs = opened(root)
    assert theirs.meta.features["tactile"]["info"] == {"rate": 4.7 * FPS}
    frames = [theirs[index] for index in range(15)]
    for episode, first, stop in ((store[0], 0, 6), (store[1], 6, 15)):
        values, times = (
            np.stack([frame[name].numpy() for frame in frames[first:stop]]) for name in ("tactile", "tactile_time")
        )
        assert values.shape == (stop - first, room, 3)
        np.testing.assert_array_equal(values[times >= 0], episode["tactile"].values)
        np.testing.assert_allclose(times[times >= 0], episode["tactile"].times, rtol=1e-6)


def test_the_statistics_written_here_are_those_that_lerobot_finds_in_numbers(store, tmp_path):
    root = tmp_path / "set"
    stepwell.lerobot.write_dataset(store, root, cameras="image")
    stats = opened(root).meta.stats
    actions = np.concatenate([episode["action"] for episode in store]).astype("f8")
    np.testing.assert_allclose(stats["action"]["mean"], actions.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(stats["action"]["std"], actions.std(axis=0), rtol=1e-9)
    np.testing.assert_array_equal(stats["action"]["max"], actions.max(axis=0))
    assert np.shape(stats["observation.images.top"]["mean"]) == (3, 1, 1)


@pytest.mark.parametrize("use_videos", [False, True])
def test_what_lerobot_records_is_read_here_with_equal_items(tmp_path, use_videos, monkeypatch):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    kind, names = "video" if use_videos else "image", ["height", "width", "channels"]
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        **{name: {"dtype": kind, "shape": shape, "names": names} for name, shape in CAMERAS.items()},
    }
    recorded = LeRobotDataset.create("interop/set", FPS, features, root=tmp_path / "set", vcodec="h264")
    rng = np.random.default_rng(1)
    for episode, length in enumerate((8, 25)):
        images = {name: smooth(rng, length, shape) for name, shape in CAMERAS.items()}
        for step in range(length):
            frame = {"observation.state": rng.normal(size=3).astype("f4"), "action": rng.normal(size=2).astype("f4")}
            recorded.add_frame({**frame, **{n: i[step] for n, i in images.items()}, "task": f"task {episode}"})
        recorded.save_episode()
    recorded.finalize()
    for seed in range(3):
        deltas = some_deltas(seed, list(features))
        theirs = opened(tmp_path / "set", deltas)
        assert_same_items(ours(tmp_path / "set", deltas), theirs, some_indices(seed, 33), inexact=CAMERAS)
    report = stepwell.lerobot.audit(tmp_path / "set")
    assert [finding for finding in report.findings if finding.severity == "error"] == []


@pytest.mark.parametrize("use_videos", [False, True])
def test_what_is_recorded_here_lerobot_reads_and_goes_on_with(tmp_path, use_videos, monkeypatch):
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    kind, names = "video" if use_videos else "image", ["height", "width", "channels"]
    features = {
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "observation.images.top": {"dtype": kind, "shape": (48, 64, 3), "names": names},
    }
    root, rng = tmp_path / "set", np.random.default_rng(2)
    recorder = stepwell.lerobot.LeRobotRecorder.create(root, fps=FPS, features=features, output="v3.0")
    with recorder:
        for length in (6, 9):
            images = smooth(rng, length, (48, 64, 3))
            for image in images:
                action = rng.normal(size=2).astype("f4")
                recorder.add_frame({"action": action, "observation.images.top": image, "task": "push"})
            recorder.save_episode()
    theirs = opened(root)
    assert (len(theirs), theirs.num_episodes) == (15, 2)
    assert_same_items(ours(root), theirs, range(15), inexact=CAMERAS)


def test_the_drop_in_works_in_lerobots_sampler_and_a_dataloader(tmp_path, monkeypatch):
    if not SHARED.is_dir():
        pytest.skip("the samples of ../shared are not here")
    from lerobot.datasets.sampler import EpisodeAwareSampler

    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path))
    batches = []
    for dataset in (ours(SHARED / "v30_png"), opened(SHARED / "v30_png")):
        episodes = dataset.meta.episodes
        sampler = EpisodeAwareSampler(
            episodes["dataset_from_index"], episodes["dataset_to_index"], drop_n_last_frames=7, shuffle=False
        )
        loader = torch.utils.data.DataLoader(dataset, batch_size=16, sampler=sampler)
        batches.append(list(loader))
    assert len(batches[0]) == len(batches[1])
    for found, wanted in zip(*batches, strict=True):
        assert torch.equal(found["index"], wanted["index"])
        assert torch.equal(found["observation.images.top"], wanted["observation.images.top"])
