"""MultiLeRobotDataset: several datasets as one."""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

import stepwell  # noqa: E402
from stepwell.errors import WindowError  # noqa: E402
from stepwell.lerobot import LeRobotDataset, MultiLeRobotDataset, write_dataset  # noqa: E402
from stepwell.store import Store  # noqa: E402

from .item_model import LENGTHS, SIDE, TOP, assert_item, converted_store, expected_item  # noqa: E402

OTHER = (4, 2)


def without(store: Store, path: Path, *names: str) -> Store:
    """Return a copy of a store without some features, and with a list of tasks of its own."""
    schema = {name: feature for name, feature in (store.schema or {}).items() if name not in names}
    told = dict(store.metadata["lerobot"])
    info = {**told["info"], "features": {k: v for k, v in told["info"]["features"].items() if k not in names}}
    tasks = [f"{task} twice" for task in told["tasks"]]
    copy = stepwell.create(path, schema, fps=store.fps, metadata={"lerobot": {"info": info, "tasks": tasks}})
    with copy.writer() as writer:
        for episode in store:
            writer.add_episode({name: episode[name] for name in schema})
    return copy


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Store]:
    home = tmp_path_factory.mktemp("several")
    first = converted_store(home / "one", LENGTHS)
    second = without(converted_store(home / "two.all", OTHER), home / "two", SIDE, "next.done")
    return [first, second]


@pytest.fixture
def both(stores: list[Store]) -> MultiLeRobotDataset:
    return MultiLeRobotDataset(stores, delta_timestamps={"action": [0.0, 0.1]})


def common(item: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an expected item as a member of several datasets has it."""
    kept = {key: value for key, value in item.items() if key not in (SIDE, "next.done")}
    task = kept["task"] if number == 0 else f"{kept['task']} twice"
    return {**kept, "task": task, "dataset_index": np.int64(number)}


def test_items_have_the_common_features_and_say_which_dataset_they_are_of(both: MultiLeRobotDataset) -> None:
    places = [(0, LENGTHS, e, s) for e, n in enumerate(LENGTHS) for s in range(n)]
    places += [(1, OTHER, e, s) for e, n in enumerate(OTHER) for s in range(n)]
    assert len(both) == both.num_frames == len(places)
    for number, (dataset, lengths, episode, step) in enumerate(places):
        expected = expected_item(episode, step, {"action": (0, 1)}, lengths)
        assert_item(both[number], common(expected, dataset))


def test_a_batch_across_datasets_keeps_its_order(both: MultiLeRobotDataset) -> None:
    numbers = [25, 0, 22, 7, 7, -1]
    items = both.__getitems__(numbers)
    for number, item in zip(numbers, items, strict=True):
        alone = both[number]
        assert list(item) == list(alone)
        for key, value in alone.items():
            assert torch.equal(item[key], value) if isinstance(value, torch.Tensor) else item[key] == value
    assert both.__getitems__([3, 20]).columns["dataset_index"].tolist() == [0, 0]


def test_numbers_beyond_the_last_item_are_refused(both: MultiLeRobotDataset) -> None:
    assert both[-1]["dataset_index"] == 1
    for wrong in (27, -28):
        with pytest.raises(IndexError, match="27"):
            both[wrong]


def test_what_not_all_have_is_named_and_logged(stores: list[Store], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        both = MultiLeRobotDataset(stores)
    assert both.disabled_features == {SIDE, "next.done"}
    assert SIDE in caplog.text
    assert both.camera_keys == [TOP]
    assert both.video_frame_keys == []
    assert "next.done" not in both.features


def test_a_window_of_what_one_dataset_lacks_is_refused(stores: list[Store]) -> None:
    with pytest.raises(KeyError, match=r"next\.done"):
        MultiLeRobotDataset(stores, delta_timestamps={"next.done": [0.0]})


def test_names_find_directories_episodes_and_tolerances(stores: list[Store]) -> None:
    both = MultiLeRobotDataset(
        ["one", "two"],
        stores[0].path.parent,
        episodes={"two": [1]},
        delta_timestamps={"action": [0.101]},
        tolerances_s={"one": 0.01, "two": 0.01},
    )
    assert (both.repo_ids, both.repo_id_to_index) == (["one", "two"], {"one": 0, "two": 1})
    assert (len(both), both.num_episodes) == (sum(LENGTHS) + 2, 5)
    assert both[-1]["episode_index"] == 1


def test_datasets_that_are_made_already_are_taken_as_they_are(stores: list[Store]) -> None:
    made = LeRobotDataset(stores[0], episodes=[0])
    assert len(MultiLeRobotDataset([made, stores[1]])) == LENGTHS[0] + sum(OTHER)


def test_names_of_no_dataset_are_refused(stores: list[Store]) -> None:
    one = str(stores[0].path)
    with pytest.raises(WindowError, match=f"episodes of 'onne'.*There are: {one}"):
        MultiLeRobotDataset([one], episodes={"onne": [0]})
    with pytest.raises(WindowError, match="tolerances_s of '/one'"):
        MultiLeRobotDataset([LeRobotDataset(one)], tolerances_s={"/one": 1.0})
    with pytest.raises(WindowError, match="Give a list"):
        MultiLeRobotDataset(one)


def test_none_are_refused() -> None:
    with pytest.raises(WindowError, match="no datasets"):
        MultiLeRobotDataset([])


def test_images_of_several_sizes_stay_apart_until_a_transform_makes_them_alike(stores: list[Store]) -> None:
    small = LeRobotDataset(stores[1], image_transforms=lambda images: images[..., :8, :8])
    both = MultiLeRobotDataset([stores[0], small])
    items = both.__getitems__([0, 22])
    assert [item[TOP].shape for item in items] == [(3, 16, 24), (3, 8, 8)]
    assert items.columns["action"].shape == (2, 2)


def test_a_data_loader_and_a_pickled_copy_give_the_same(both: MultiLeRobotDataset) -> None:
    copy = pickle.loads(pickle.dumps(both))
    here, there = (list(DataLoader(dataset, batch_size=9)) for dataset in (both, copy))
    assert [batch["dataset_index"].tolist() for batch in here] == [[0] * 9, [0] * 9, [0] * 3 + [1] * 6]
    assert all(torch.equal(a[TOP], b[TOP]) and a["task"] == b["task"] for a, b in zip(here, there, strict=True))


def test_the_loader_gives_the_same_items(both: MultiLeRobotDataset) -> None:
    (whole,) = DataLoader(both, batch_size=len(both))
    (batch,) = both.loader(len(both), order="sequential", images="float32")
    assert list(batch) == list(whole)
    assert batch["task"] == whole["task"]
    assert all(torch.equal(batch[key], value) for key, value in whole.items() if isinstance(value, torch.Tensor))


def test_the_loader_mixes_by_weights(stores: list[Store]) -> None:
    both = MultiLeRobotDataset([stores[0], LeRobotDataset(stores[1], episodes=[0])])
    found: Counter[int] = Counter()
    for batch in both.loader(64, weights=[1, 3], epochs=40):
        found.update(batch["dataset_index"].tolist())
        assert all(("twice" in task) == bool(k) for task, k in zip(batch["task"], batch["dataset_index"], strict=True))
    assert found[1] == pytest.approx(3 * found[0], rel=0.05)


def test_weights_and_an_order_exclude_each_other(both: MultiLeRobotDataset) -> None:
    with pytest.raises(WindowError, match="weights and order"):
        both.loader(weights=[1, 1], order="sequential")


def test_several_rates_give_windows_of_each_ones_own_steps(stores: list[Store], tmp_path: Path) -> None:
    slow = stepwell.create(tmp_path / "slow.well", {"action": stepwell.Array(2)}, fps=5)
    with slow.writer() as writer:
        writer.add_episode({"action": np.arange(12, dtype=np.float32).reshape(6, 2)})
    both = MultiLeRobotDataset([stores[0], slow], delta_timestamps={"action": [0.0, 0.4]})
    assert both[21]["action"].tolist() == [[0, 1], [4, 5]]
    assert torch.equal(both[0]["action"][1], both[4]["action"][0])
    with pytest.raises(WindowError, match="5, 10 fps"):
        _ = both.fps
    with pytest.raises(WindowError, match="other steps"):
        both.loader()


def test_the_loader_refuses_stores_without_index_columns(tmp_path: Path, stores: list[Store]) -> None:
    own = stepwell.create(tmp_path / "own.well", {"action": stepwell.Array(2)}, fps=10)
    with own.writer() as writer:
        writer.add_episode({"action": np.zeros((3, 2), np.float32)})
    both = MultiLeRobotDataset([stores[0], own])
    assert both[23]["index"] == 2
    with pytest.raises(WindowError, match=r"own\.well stores no .*index"):
        both.loader()


def test_statistics_are_those_of_all_selected_rows(stores: list[Store]) -> None:
    both = MultiLeRobotDataset([LeRobotDataset(stores[0], episodes=[1]), stores[1]])
    values = torch.stack([both[i]["action"] for i in range(len(both))]).double()
    assert SIDE not in both.stats
    np.testing.assert_allclose(both.stats["action"]["mean"], values.mean(0))
    assert both.stats["action"]["count"].tolist() == [13]


def test_image_transforms_are_set_for_all(both: MultiLeRobotDataset) -> None:
    before = both[0][TOP]
    both.set_image_transforms(lambda image: image + 1)
    assert torch.equal(both[0][TOP], before + 1)
    assert all(dataset.image_transforms is both.image_transforms for dataset in both.datasets)
    both.clear_image_transforms()
    assert both.image_transforms is None and torch.equal(both[0][TOP], before)
    assert isinstance(both, torch.utils.data.Dataset)


def test_subtasks_are_each_datasets_own_and_left_out_where_one_has_none(tmp_path: Path) -> None:
    roots = []
    for number, texts in enumerate((["reach", "grasp"], ["lift", "turn"], None)):
        metadata: dict[str, Any] = {} if texts is None else {"lerobot": {"subtasks": texts}}
        store = stepwell.create(
            tmp_path / f"{number}.well", {"subtask_index": stepwell.Array((), "int64")}, fps=10, metadata=metadata
        )
        with store, store.writer() as writer:
            writer.add_episode({"subtask_index": np.arange(4) % 2}, task="T")
        write_dataset(tmp_path / f"{number}.well", tmp_path / str(number))
        roots.append(tmp_path / str(number))
    both = MultiLeRobotDataset(roots[:2])
    expected = ["reach", "grasp"] * 2 + ["lift", "turn"] * 2
    assert [item["subtask"] for item in both.__getitems__(list(range(8)))] == expected
    assert next(iter(both.loader(8, order="sequential")))["subtask"] == expected
    for order in (roots[1:], roots[:0:-1]):
        mixed = MultiLeRobotDataset(order)
        assert all("subtask" not in item for item in mixed.__getitems__(list(range(8))))
        assert "subtask" not in next(iter(mixed.loader(8, order="sequential")))
