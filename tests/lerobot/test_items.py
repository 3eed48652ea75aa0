"""Which fields an item is read by, and what a batch of them becomes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.errors import FeatureNotFoundError, FormatError, WindowError
from stepwell.kernels.draws import Draws
from stepwell.lerobot.items import EpisodeNumbers, Planes, UnitFloats, delta_steps, item_format
from stepwell.lerobot.meta_view import DatasetMeta
from stepwell.transforms import ToCHW
from stepwell.transforms.colors_kernels import STREAMED_BYTES
from stepwell.transforms.fusing import fuse
from stepwell.windows.plans import aligned_empty

from .item_model import SIDE, TOP, converted_store

DRAWS = Draws(np.zeros(2, np.uint64))


@pytest.fixture
def meta(tmp_path: Path) -> DatasetMeta:
    return DatasetMeta(converted_store(tmp_path / "a.well", (2, 3)), repo_id="me/tiny")


def test_deltas_become_steps() -> None:
    assert delta_steps({"action": [-0.1, 0, 0.30000000000000004]}, 10, 1e-4) == {"action": (-1, 0, 3)}
    assert delta_steps(None, 10, 1e-4) == {}


@pytest.mark.parametrize(
    ("seconds", "tolerance"), [(0.15, 1e-4), (0.1002, 1e-4), (float("nan"), 1e-4), (float("inf"), 1e-4), (0.11, 0.009)]
)
def test_a_delta_off_the_grid_is_a_value_error_that_names_it(seconds: float, tolerance: float) -> None:
    with pytest.raises(ValueError, match=r"'action'.*not within") as caught:
        delta_steps({"action": [0.0, seconds]}, 10, tolerance)
    assert str(seconds) in str(caught.value)


def test_a_tolerance_lets_more_deltas_through() -> None:
    assert delta_steps({"action": [0.108]}, 10, 0.01) == {"action": (1,)}


def test_no_deltas_for_a_key_are_refused() -> None:
    with pytest.raises(WindowError, match="empty"):
        delta_steps({"action": []}, 10, 1e-4)


def loaded_planes(values: np.ndarray) -> np.ndarray:
    """Return images as a loader makes them: in one pass."""
    stages = fuse((UnitFloats(), ToCHW()), values.shape[1:], values.dtype)
    assert len(stages) == 1 or values.dtype != np.uint8
    for stage in stages:
        values = stage(values, [DRAWS] * len(stage.transforms))
    return values


@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([1, 3, 4]))
@settings(max_examples=20)
def test_floats_of_bytes_are_exactly_a_255th(steps: int, height: int, channels: int) -> None:
    values = np.arange(2 * steps * height * 90 * channels).astype(np.uint8).reshape(2, steps, height, 90, channels)
    wanted = np.moveaxis(values, -1, -3).astype(np.float32) / np.float32(255)
    for found in (loaded_planes(values), Planes("float32")(values)):
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, wanted, strict=True)
    np.testing.assert_array_equal(Planes("uint8")(values), np.moveaxis(values, -1, -3), strict=True)


@pytest.mark.parametrize("size", [(340, 352), (341, 352), (341, 353)])
@pytest.mark.parametrize("shift", [0, 4])
def test_floats_that_go_past_the_caches_are_the_same(size: tuple[int, int], shift: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (3, *size, 3), dtype=np.uint8)
    memory = aligned_empty(4 * values.size + 128)
    memory[:] = 7

    def empty(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        return memory[64 + shift : 64 + shift + 4 * values.size].view(dtype).reshape(shape)

    found = Planes("float32")(values, empty)
    assert found.nbytes > STREAMED_BYTES
    np.testing.assert_array_equal(found, np.moveaxis(values, -1, -3).astype(np.float32) / np.float32(255))
    assert (memory[: 64 + shift] == 7).all() and (memory[64 + shift + found.nbytes :] == 7).all()


def test_grey_images_get_an_axis_of_channels() -> None:
    values = np.arange(2 * 12, dtype=np.uint8).reshape(2, 3, 4)
    made = [Planes(images, has_channels=False)(values) for images in ("float32", "uint8", "uint8_view")]
    assert {each.shape for each in made} == {loaded_planes(values).shape} == {(2, 1, 3, 4)}


def test_pictures_of_other_dtypes_become_floats_as_they_are() -> None:
    values = np.full((2, 3, 4, 1), 1000, np.uint16)
    for found in (loaded_planes(values), Planes("float32")(values)):
        assert found.dtype == np.float32
        assert found.shape == (2, 1, 3, 4)
        assert (found == 1000).all()


def test_planes_move_no_byte() -> None:
    values = np.zeros((2, 5, 3, 4, 3), np.uint8)
    assert np.shares_memory(Planes("uint8_view")(values), values)


def test_numbers_of_episodes_follow_from_ids_of_steps() -> None:
    ids = np.array([[10, 12], [40, 41]])
    first = np.array([10, 40])
    assert EpisodeNumbers(first, np.array([7, 100]), counts=True)(ids).tolist() == [[7, 9], [100, 101]]
    assert EpisodeNumbers(first, np.array([7, 100]), counts=False)(ids).tolist() == [[7, 7], [100, 100]]


def test_videos_come_first_then_features_then_masks(meta: DatasetMeta) -> None:
    made = item_format(meta, {"action": (0, 1), TOP: (0,)})
    names = [name for name in meta.features if name != SIDE]
    assert made.keys == (SIDE, *names, "action_is_pad", f"{TOP}_is_pad")


def test_deltas_of_no_feature_are_a_key_error_that_names_the_features(meta: DatasetMeta) -> None:
    with pytest.raises(KeyError, match=r"actoin.*observation.state") as caught:
        item_format(meta, {"actoin": (0,)})
    assert isinstance(caught.value, FeatureNotFoundError)


def test_deltas_of_strings_are_refused(meta: DatasetMeta) -> None:
    with pytest.raises(WindowError, match=r"observation\.note.*strings"):
        item_format(meta, {"observation.note": (0,)})


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("float64", "float32"),
        ("float16", "float32"),
        ("int32", "int64"),
        ("uint8", "int64"),
        ("uint32", "int64"),
        ("bool", "bool"),
    ],
)
def test_numbers_have_the_dtypes_that_lerobot_makes_of_them(tmp_path: Path, dtype: str, wanted: str) -> None:
    torch = pytest.importorskip("torch")
    from stepwell.lerobot import LeRobotDataset

    store = stepwell.create(tmp_path / "a.well", {"x": stepwell.Array(2, dtype), "s": stepwell.Array((), dtype)}, fps=1)
    with store.writer() as writer:
        writer.add_episode({"x": np.ones((3, 2), dtype), "s": np.ones(3, dtype)})
    item = LeRobotDataset(store, delta_timestamps={"s": [0.0]})[1]
    assert item["x"].dtype == item["s"].dtype == getattr(torch, wanted)
    assert item["x"].tolist() == [1, 1]


def test_a_task_index_that_no_task_has_is_named(meta: DatasetMeta) -> None:
    made = item_format(meta, {})
    values: dict[str, Any] = dict.fromkeys(made.keys, np.zeros(2))
    values["observation.note"] = np.array(["a", "b"], object)
    values[TOP] = values[SIDE] = np.zeros((2, 4, 6, 3), np.uint8)
    values["task_index"] = np.array([0, 9])
    with pytest.raises(FormatError, match="task_index 9"):
        made(values)


def test_a_format_is_picklable(meta: DatasetMeta) -> None:
    made = item_format(meta, {"action": (0,), TOP: (0, 1)})
    copy = pickle.loads(pickle.dumps(made))
    assert (copy.keys, copy.texts, copy.tasks) == (made.keys, made.texts, made.tasks)
    assert copy.fields == made.fields
