"""LeRobotDataset: items, and where they are asked for."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.utils.data import ConcatDataset, DataLoader, Subset  # noqa: E402

import stepwell  # noqa: E402
from stepwell.errors import DatasetNotFoundError, StepwellError, WindowError  # noqa: E402
from stepwell.lerobot import LeRobotDataset  # noqa: E402
from stepwell.lerobot.items import ItemFormat  # noqa: E402
from stepwell.loader import BatchSampler  # noqa: E402
from stepwell.store import Store  # noqa: E402
from stepwell.testing import tiny_lerobot, tiny_store  # noqa: E402

from .item_model import LENGTHS, SIDE, TOP, assert_item, converted_store, expected_item  # noqa: E402

PLACES = [(episode, step) for episode, length in enumerate(LENGTHS) for step in range(length)]
DELTAS = {"action": (0, 1, 2), "observation.state": (-1, 0), TOP: (-2, 0), SIDE: (-1, 1), "index": (0,)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return converted_store(tmp_path_factory.mktemp("items") / "a.well")


def seconds(deltas: dict[str, tuple[int, ...]]) -> dict[str, list[float]]:
    return {key: [step / 10 for step in steps] for key, steps in deltas.items()}


def make(store: Store, deltas: dict[str, tuple[int, ...]] = DELTAS, **options: Any) -> LeRobotDataset:
    return LeRobotDataset(store, delta_timestamps=seconds(deltas), **options)


def without_task(item: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != "task"}


def test_every_item_is_as_the_format_says(store: Store) -> None:
    dataset = LeRobotDataset(store)
    assert len(dataset) == dataset.num_frames == sum(LENGTHS)
    for number, (episode, step) in enumerate(PLACES):
        item = dataset[number]
        assert type(item) is dict
        assert_item(item, expected_item(episode, step, {}))


KEYS = st.sampled_from(["action", "observation.state", "next.reward", "next.done", "observation.grid", TOP, SIDE])


@given(
    st.dictionaries(KEYS, st.lists(st.integers(-9, 9), min_size=1, max_size=3).map(tuple), max_size=4),
    st.lists(st.integers(0, len(PLACES) - 1), min_size=1, max_size=4),
)
@settings(max_examples=15)
def test_windows_are_as_the_format_says(store: Store, deltas: dict[str, tuple[int, ...]], numbers: list[int]) -> None:
    dataset = make(store, deltas)
    for number, item in zip(numbers, dataset.__getitems__(numbers), strict=True):
        assert_item(item, expected_item(*PLACES[number], deltas))


def test_a_video_with_one_delta_has_no_axis_of_time_and_pictures_have(store: Store) -> None:
    item = make(store, {SIDE: (0,), TOP: (0,)})[4]
    assert item[SIDE].shape == (3, 8, 12)
    assert item[TOP].shape == (1, 3, 16, 24)
    assert item[f"{SIDE}_is_pad"].shape == item[f"{TOP}_is_pad"].shape == (1,)


def test_windows_of_times_and_tasks_leave_the_item_its_own(store: Store, recorded: Store) -> None:
    item = make(store, {"timestamp": (0, 1), "task_index": (0, 1)})[8]
    assert item["timestamp"].tolist() == pytest.approx([0.3, 0.4])
    assert (item["task_index"].tolist(), item["task"]) == ([2, 2], "put it down")
    assert LeRobotDataset(recorded, delta_timestamps={"task_index": [-0.2, 0.2]})[2]["task"] == "pick"


def test_scalars_have_no_axis_and_strings_are_strings(store: Store) -> None:
    item = LeRobotDataset(store)[3]
    assert item["next.reward"].shape == item["index"].shape == ()
    assert item["index"].dtype == torch.int64
    assert item["observation.note"] == "episode 0, step 3"


def test_some_episodes_are_counted_among_themselves(store: Store) -> None:
    dataset = make(store, {"action": (-1, 0, 1)}, episodes=[3, 1])
    chosen = [place for place in PLACES if place[0] in (1, 3)]
    assert (len(dataset), dataset.num_episodes, dataset.episodes) == (len(chosen), 2, [3, 1])
    for number, place in enumerate(chosen):
        assert_item(dataset[number], expected_item(*place, {"action": (-1, 0, 1)}))
    assert dataset[0]["index"] == 5
    assert {k: v.tolist() for k, v in dataset.episode_data_index.items()} == {"from": [0, 7], "to": [7, 13]}
    assert dataset.meta.total_frames == sum(LENGTHS)


def test_numbers_count_from_the_end_and_end(store: Store) -> None:
    dataset = LeRobotDataset(store)
    assert dataset[-1]["index"] == len(dataset) - 1
    assert dataset[np.int64(2)]["index"] == dataset[torch.tensor(2)]["index"] == 2
    for wrong in (len(dataset), -len(dataset) - 1):
        with pytest.raises(IndexError):
            dataset[wrong]
    with pytest.raises(TypeError):
        dataset[1.0]  # type: ignore[index]
    assert len(list(dataset)) == len(dataset)  # type: ignore[call-overload]


def test_image_transforms_see_the_whole_stack_of_each_camera_last(store: Store) -> None:
    seen: list[tuple[int, ...]] = []

    def halve(images: Any) -> Any:
        seen.append((images.dtype, *images.shape))
        return images[..., ::2, ::2]

    dataset = make(store, {TOP: (-1, 0)}, image_transforms=halve)
    expected = expected_item(1, 2, {TOP: (-1, 0)})
    assert_item(dataset[7], expected | {key: expected[key][..., ::2, ::2] for key in (TOP, SIDE)})
    assert sorted(seen, key=len) == [(torch.float32, 3, 8, 12), (torch.float32, 2, 3, 16, 24)]
    batch = next(iter(DataLoader(dataset, batch_size=4)))
    assert batch[TOP].shape == (4, 2, 3, 8, 12)


def test_images_stay_bytes_when_asked_to(store: Store) -> None:
    item, floats = make(store, {SIDE: (0,)}, return_uint8=True)[8], make(store, {SIDE: (0,)})[8]
    assert item[SIDE].dtype == item[TOP].dtype == torch.uint8
    assert item[SIDE].is_contiguous()
    assert torch.equal(item[SIDE].float().div(255), floats[SIDE])
    assert torch.equal(item[TOP].float().div(255), floats[TOP])


def test_a_batch_is_one_read_and_items_keep_what_they_hold(store: Store) -> None:
    dataset = make(store)
    kept = dataset.__getitems__([3, 9, 3])
    first = {key: value.clone() for key, value in kept[1].items() if hasattr(value, "clone")}
    for _ in range(20):
        dataset.__getitems__(list(range(15)))
    assert all(torch.equal(kept[1][key], value) for key, value in first.items())
    assert kept[0]["action"].untyped_storage().data_ptr() == kept[2]["action"].untyped_storage().data_ptr()


@pytest.mark.parametrize("context", [None, "fork", "spawn"])
def test_a_data_loader_gives_the_items_in_order(store: Store, context: str | None) -> None:
    dataset = make(store)
    workers = (
        {} if context is None else {"num_workers": 2 if context == "fork" else 1, "multiprocessing_context": context}
    )
    loader = DataLoader(dataset, batch_size=6, **workers)  # type: ignore[arg-type]
    number = 0
    for batch in loader:
        assert type(batch) is dict
        for row in range(len(batch["task"])):
            item = {key: value[row] for key, value in batch.items()}
            assert_item(without_task(item), without_task(expected_item(*PLACES[number], DELTAS)))
            number += 1
    assert number == len(dataset)


def test_subsets_and_concatenations_give_the_same_items(store: Store) -> None:
    dataset = make(store)
    subset, twice = Subset(dataset, [5, 2]), ConcatDataset([dataset, dataset])
    assert subset[0]["index"].tolist() == [5]
    assert next(iter(DataLoader(subset, batch_size=2)))["index"].tolist() == [[5], [2]]
    assert twice[len(dataset) + 2]["index"].tolist() == [2]


def test_a_pickled_dataset_gives_the_same_items(store: Store) -> None:
    dataset = make(store, episodes=[1, 2])
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(copy) == len(dataset)
    assert torch.equal(copy[4]["action"], dataset[4]["action"])
    assert copy.meta.episodes["length"] == list(LENGTHS)


def test_a_forked_child_reads_by_itself(store: Store) -> None:
    dataset = make(store)
    wanted = dataset[5]["index"].item()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(dataset[5]["index"].item()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(read, 20)) == wanted
    os.close(read)
    os.close(write)


class EpisodeSampler:
    """What LeRobot's EpisodeAwareSampler does with the lists that it is given."""

    def __init__(self, starts: list[int], stops: list[int], drop_last: int, shuffle: bool) -> None:
        self.numbers = [n for a, b in zip(starts, stops, strict=True) for n in range(a, b - drop_last)]
        self.shuffle = shuffle

    def __iter__(self) -> Iterator[int]:
        numbers = list(self.numbers)
        return iter(random.Random(0).sample(numbers, len(numbers)) if self.shuffle else numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def test_a_sampler_of_episodes_drops_their_last_items(store: Store) -> None:
    dataset = make(store, {"action": (0, 1)})
    episodes = dataset.meta.episodes
    sampler = EpisodeSampler(episodes["dataset_from_index"], episodes["dataset_to_index"], 1, shuffle=True)
    batches = list(DataLoader(dataset, batch_size=4, sampler=sampler))
    found = torch.cat([batch["index"] for batch in batches])
    assert sorted(found.tolist()) == sampler.numbers
    assert not any(batch["action_is_pad"].any() for batch in batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_sampler_shares_items_out_as_a_loader_does(store: Store, workers: int) -> None:
    dataset = make(store, {"action": (0, 1)}, episodes=[0, 2])
    settings: Any = {"batch_size": 3, "order": "random", "rank": 1, "world_size": 2, "drop_last": True, "epochs": 2}
    sampler = BatchSampler(dataset, **settings)
    found = [batch["index"].tolist() for batch in DataLoader(dataset, batch_sampler=sampler, num_workers=workers)]
    assert found == [batch["index"].tolist() for batch in dataset.loader(**settings)]


def test_the_loader_gives_the_same_batches(store: Store) -> None:
    dataset = make(store)
    (whole,) = DataLoader(dataset, batch_size=len(dataset))
    for images in ("float32", "uint8"):
        (batch,) = dataset.loader(len(dataset), order="sequential", images=images)  # type: ignore[arg-type]
        assert list(batch) == list(whole)
        assert batch["task"] == whole["task"]
        for key, value in batch.items():
            if images == "uint8" and key in (TOP, SIDE):
                assert value.dtype == torch.uint8
                assert torch.equal(value.float().div(255), whole[key])
            elif isinstance(value, torch.Tensor):
                assert value.dtype == whole[key].dtype
                assert torch.equal(value, whole[key])


def test_small_batches_that_are_read_together_stay_apart(store: Store) -> None:
    dataset = make(store, {"action": (0, 1)}, ignore=[TOP, SIDE, "observation.note"])
    batches = list(dataset.loader(2, order="sequential", threads=0))
    assert [len(batch["task"]) for batch in batches] == [2] * 10 + [1]
    items = [
        {key: value[row] for key, value in batch.items()} for batch in batches for row in range(len(batch["task"]))
    ]
    for found, wanted in zip(items, dataset.__getitems__(range(21)), strict=True):
        assert list(found) == list(wanted)
        assert all(
            torch.equal(found[k], v) if isinstance(v, torch.Tensor) else found[k] == v for k, v in wanted.items()
        )


def test_images_of_a_loader_lie_channels_last(store: Store) -> None:
    (batch,) = LeRobotDataset(store).loader(30)
    assert batch[TOP].shape == (21, 3, 16, 24)
    assert batch[TOP].is_contiguous(memory_format=torch.channels_last)


def test_the_loader_hands_options_and_transforms_on(store: Store) -> None:
    def tag(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "number": np.array([len(text) for text in batch["task"]])}

    loader = LeRobotDataset(store).loader(4, threads=0, drop_last=True, epochs=2, transform=tag)
    assert (loader.num_threads, len(loader)) == (0, 10)
    assert next(iter(loader))["number"].dtype == torch.int64


def test_the_loader_refuses_transforms_of_single_items(store: Store) -> None:
    with pytest.raises(WindowError, match="image_transforms"):
        LeRobotDataset(store, image_transforms=lambda images: images).loader()


def test_attributes_have_lerobots_names(store: Store) -> None:
    dataset = make(store, tolerance_s=1e-3)
    assert dataset.fps == 10
    assert isinstance(dataset.fps, int)
    assert list(dataset.features)[:2] == ["observation.state", "action"]
    assert dataset.delta_indices == {key: list(steps) for key, steps in DELTAS.items()}
    assert LeRobotDataset(store).delta_indices is None
    assert "21 items" in repr(dataset)


def test_a_named_directory_is_opened(store: Store) -> None:
    dataset = LeRobotDataset("me/tiny", store.path)
    assert (dataset.repo_id, len(dataset)) == ("me/tiny", 21)
    assert len(LeRobotDataset(store.path)) == len(LeRobotDataset(str(store.path))) == 21


def test_a_directory_without_a_dataset_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError, match=r"meta/info\.json.*never looked for on the hub"):
        LeRobotDataset("me/tiny", tmp_path / "nothing")


def test_arguments_of_lerobot_without_a_meaning_are_accepted_and_others_refused(store: Store) -> None:
    assert len(LeRobotDataset(store, video_backend="pyav", vcodec="h264", batch_encoding_size=2)) == 21
    with pytest.raises(TypeError, match="delta_timestamp,"):
        LeRobotDataset(store, delta_timestamp={"action": [0.0]})


def test_features_that_are_not_needed_are_left_out(store: Store) -> None:
    dataset = LeRobotDataset(store, ignore=[SIDE, "next.done", "index"])
    expected = expected_item(1, 3, {})
    assert_item(dataset[8], {key: value for key, value in expected.items() if key not in (SIDE, "next.done")})
    assert dataset.meta.camera_keys == [TOP]


def test_a_wrong_delta_is_refused_when_the_dataset_is_made(store: Store) -> None:
    with pytest.raises(ValueError, match="action"):
        LeRobotDataset(store, delta_timestamps={"action": [0.05]})
    with pytest.raises(KeyError, match="task"):
        LeRobotDataset(store, delta_timestamps={"task": [0.0]})


def test_an_item_that_cannot_be_read_names_its_episode(tmp_path: Path) -> None:
    store = converted_store(tmp_path / "a.well", (3, 2))
    (blobs,) = store.path.rglob(f"{TOP}.bin")
    blobs.write_bytes(b"\0" * blobs.stat().st_size)
    with pytest.raises(StepwellError, match="episode 1, step 0"):
        LeRobotDataset(store.path)[3]


# stores of another origin


@pytest.fixture
def recorded(tmp_path: Path) -> Store:
    features = {"observation.image": stepwell.Image((8, 8, 3)), "action": stepwell.Array(2, "float64")}
    store = stepwell.create(tmp_path / "own.well", features, fps=5, segment_bytes=1)
    for task, length in (("pick", 3), ("place", 2), ("pick", 4)):
        with store.writer() as writer:
            images = np.full((length, 8, 8, 3), length, np.uint8)
            writer.add_episode({"observation.image": images, "action": np.ones((length, 2))}, task=task)
    return store


def test_a_store_of_another_origin_has_the_columns_that_lerobot_expects(recorded: Store) -> None:
    dataset = LeRobotDataset(recorded, delta_timestamps={"action": [0.0, 0.2], "index": [-0.2, 0.0]})
    keys = ["observation.image", "action", "timestamp", "frame_index", "episode_index", "index", "task_index"]
    assert list(dataset[0]) == [*keys, "action_is_pad", "index_is_pad", "task"]
    items = list(dataset.__getitems__(range(9)))
    assert [item["task"] for item in items] == ["pick"] * 3 + ["place"] * 2 + ["pick"] * 4
    assert [item["task_index"].item() for item in items] == [0] * 3 + [1] * 2 + [0] * 4
    assert [item["index"].tolist() for item in items][2:5] == [[1, 2], [3, 3], [3, 4]]
    assert [item["frame_index"].item() for item in items][3:6] == [0, 1, 0]
    assert items[4]["timestamp"] == torch.tensor(0.2)
    assert items[4]["observation.image"].shape == (3, 8, 8)
    assert dataset.meta.tasks.index == ["pick", "place"]


def test_some_episodes_of_a_store_keep_their_index(recorded: Store) -> None:
    dataset = LeRobotDataset(stepwell.View(recorded).select(where={"task": "place"}))
    assert [item["index"].item() for item in dataset] == [3, 4]  # type: ignore[attr-defined]
    assert dataset[0]["episode_index"] == 1


def test_an_episode_that_is_being_recorded_comes_in_when_it_is_done(recorded: Store) -> None:
    with recorded.writer() as first, recorded.writer() as second:
        step = {"observation.image": np.zeros((8, 8, 3), np.uint8), "action": [0.0, 0.0]}
        for _ in range(5):
            first.append(step)
        second.append(step)
        second.end_episode(task="place")
        second.append(step)
        recorded.refresh()
        dataset = LeRobotDataset(recorded, delta_timestamps={"action": [0.0, 0.2, 0.4]})
        # one is open before the fourth, and one after it
        assert [item["index"].item() for item in dataset] == list(range(10))  # type: ignore[attr-defined]
        assert dataset.meta.episodes["dataset_to_index"] == [3, 5, 9, 10]
        assert (dataset.num_episodes, dataset.meta.total_episodes, dataset.meta.total_frames) == (4, 4, 10)
        assert (dataset[9]["episode_index"], dataset[9]["frame_index"], dataset[9]["task"]) == (3, 0, "place")
        assert dataset.meta.episodes[3]["tasks"] == ["place"]
        assert LeRobotDataset(recorded, episodes=[3])[0]["episode_index"] == 3
    recorded.refresh()
    assert len(LeRobotDataset(recorded)) == 16


def test_features_named_as_what_is_computed_do_not_take_its_place(tmp_path: Path) -> None:
    for name in ("step_index", "step_id"):
        store = stepwell.create(tmp_path / name, {name: stepwell.Array((), "int64")}, fps=5)
        with store.writer() as writer:
            writer.add_episode({name: [7, 8, 9]})
        store.refresh()
        if name == "step_id":
            with pytest.raises(WindowError, match=r"feature 'step_id'.*under another name"):
                LeRobotDataset(store)
        else:
            assert LeRobotDataset(store)[1]["frame_index"] == 1
            assert LeRobotDataset(store)[1]["step_index"] == 8


def test_a_choice_of_images_that_there_is_not_is_named(store: Store) -> None:
    with pytest.raises(WindowError, match="images='bytes' is not one of 'float32', 'uint8'"):
        LeRobotDataset(store).loader(4, images="bytes")  # type: ignore[arg-type]


def test_numbers_of_episodes_may_be_numpys(store: Store) -> None:
    dataset = LeRobotDataset(store, episodes=np.array([2, 0]))  # type: ignore[arg-type]
    assert repr(dataset.episodes) == "[2, 0]"


def test_a_feature_named_task_is_the_task_of_its_step(tmp_path: Path) -> None:
    item = LeRobotDataset(tiny_store(tmp_path / "tiny.well"))[1]
    assert item["task"] == "0:1"
    assert list(item)[-1] == "task"


def test_a_task_that_the_stores_list_lacks_is_refused_when_its_item_is_read(tmp_path: Path) -> None:
    told = {"lerobot": {"tasks": ["pick"]}}
    store = stepwell.create(tmp_path / "own.well", {"action": stepwell.Array(2)}, fps=5, metadata=told)
    with store.writer() as writer:
        for task in ("pick", "drop"):
            writer.add_episode({"action": np.ones((2, 2), np.float32)}, task=task)
    dataset = LeRobotDataset(store)
    assert dataset[1]["task"] == "pick"
    with pytest.raises(StepwellError, match="task_index 1, and the dataset has 1 texts"):
        dataset[2]


def test_a_view_of_several_stores_is_refused(recorded: Store, store: Store) -> None:
    with pytest.raises(WindowError, match="MultiLeRobotDataset"):
        LeRobotDataset(stepwell.View([recorded, store]))


def test_a_store_without_a_rate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WindowError, match="fps"):
        LeRobotDataset(tiny_store(tmp_path / "tiny.well", fps=None))


def test_a_column_that_was_added_comes_after_those_of_the_dataset(tmp_path: Path) -> None:
    store = converted_store(tmp_path / "a.well", (3, 2))
    with_more = store.schema.with_feature("return", stepwell.Array())  # type: ignore[union-attr]
    more = stepwell.create(tmp_path / "b.well", with_more, fps=10, metadata=dict(store.metadata))
    with more.writer() as writer:
        for episode in store:
            columns = {name: episode[name] for name in store.schema or ()}
            writer.add_episode({**columns, "return": np.arange(episode.length, dtype=np.float32)})
    dataset = LeRobotDataset(more)
    assert list(dataset[0])[-2:] == ["return", "task"]
    assert dataset[4]["return"] == 1
    assert isinstance(dataset.item_format(), ItemFormat)


def test_arguments_may_be_positional_as_in_lerobots_class(store: Store) -> None:
    dataset = LeRobotDataset("a/b", store.path, [2, 1], None, None, {"action": [0.0, 0.1]}, 1e-4, None, False, True)
    assert isinstance(dataset, torch.utils.data.Dataset)
    assert (dataset.episodes, len(dataset), dataset[0]["action"].shape) == ([2, 1], LENGTHS[1] + LENGTHS[2], (2, 2))


def test_a_filter_takes_episodes_by_their_rows(store: Store) -> None:
    dataset = LeRobotDataset(store, episode_filter=lambda row: row["length"] > 4)
    assert dataset.episodes == [episode for episode, length in enumerate(LENGTHS) if length > 4]
    assert LeRobotDataset(str(store.path), episodes=[2, 1], episode_filter=lambda row: row["length"] > 4).episodes == [
        1
    ]
    with pytest.raises(ValueError, match="did not match any episode"):
        LeRobotDataset(store, episode_filter=lambda row: False)
    with pytest.raises(KeyError, match="lenght"):
        LeRobotDataset(store, episode_filter=lambda row: row["lenght"] > 4)


def test_a_slice_is_a_list_of_items(store: Store) -> None:
    dataset = make(store)
    for chosen in (slice(3), slice(4, None, -2), slice(-3, None), slice(40, None)):
        items = dataset[chosen]
        numbers = range(*chosen.indices(len(dataset)))
        assert [int(item["frame_index"]) for item in items] == [PLACES[number][1] for number in numbers]
        for number, item in zip(numbers, items, strict=True):
            assert type(item) is dict
            assert_item(item, expected_item(*PLACES[number], DELTAS))


def test_a_raw_item_is_a_row_without_videos_windows_and_task(store: Store) -> None:
    dataset = make(store, episodes=[1, 2], image_transforms=lambda image: image * 0)
    for number in (0, -1):
        raw, item = dataset.get_raw_item(number), LeRobotDataset(store, episodes=[1, 2])[number]
        assert raw.keys() == item.keys() - {SIDE, "task"}
        assert_item(raw, {key: value for key, value in item.items() if key in raw})
    with pytest.raises(IndexError):
        dataset.get_raw_item(len(dataset))


def test_rows_of_the_dataset_are_found_among_those_selected(store: Store) -> None:
    assert LeRobotDataset(store).absolute_to_relative_idx is None
    dataset = LeRobotDataset(store, episodes=[2, 0])
    found = dataset.absolute_to_relative_idx
    assert found is not None and list(found.values()) == list(range(len(dataset)))
    assert all(int(dataset[number]["index"]) == row for row, number in found.items())


def test_image_transforms_may_be_set_and_cleared(store: Store) -> None:
    dataset = LeRobotDataset(store)
    before = dataset[0][TOP]
    dataset.set_image_transforms(lambda image: image + 1)
    assert torch.equal(dataset[0][TOP], before + 1)
    dataset.clear_image_transforms()
    assert dataset.image_transforms is None and torch.equal(dataset[0][TOP], before)
    with pytest.raises(TypeError, match="a function of a tensor"):
        dataset.set_image_transforms(5)  # type: ignore[arg-type]


def test_the_reader_has_the_names_of_lerobots(store: Store) -> None:
    dataset = LeRobotDataset(store, episodes=[0, 1], delta_timestamps={"action": [0.0]})
    reader = dataset.reader
    assert reader is dataset.reader and reader is not None
    assert (reader.num_frames, reader.num_episodes, reader.episodes) == (len(dataset), 2, [0, 1])
    assert (reader.delta_indices, reader.index.num_anchors) == ({"action": [0]}, len(dataset))
    assert_item(reader.get_item(3), dataset[3])
    with pytest.raises(WindowError, match="write_dataset"):
        reader.get_episodes_file_paths()


def test_frames_are_kept_as_the_argument_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("av")
    from stepwell.references import video_in_files

    kept = video_in_files.KeptFrames()
    monkeypatch.setattr(video_in_files, "KEPT", kept)
    monkeypatch.setattr("stepwell.lerobot.dataset.KEPT", kept)
    source = tiny_lerobot(tmp_path / "set", cameras={"top": ("video", (32, 48))})
    plain = LeRobotDataset(source, frame_cache=0)
    expected = [plain[number]["top"] for number in range(len(plain))]
    assert kept.max_bytes == 0 and not kept.frames
    cached = LeRobotDataset(source, frame_cache="1 MiB")
    for number in np.random.default_rng(0).permutation(len(cached)).tolist():
        assert torch.equal(cached[number]["top"], expected[number])
    assert kept.max_bytes == 1 << 20 and kept.frames
    with pytest.raises(StepwellError, match="frame_cache"):
        LeRobotDataset(source, frame_cache="much")
