"""hf_dataset: the rows as a ``datasets.Dataset``, equal to the items' own."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")
datasets = pytest.importorskip("datasets")

from stepwell.errors import WindowError  # noqa: E402
from stepwell.lerobot import LeRobotDataset  # noqa: E402
from stepwell.testing import tiny_store  # noqa: E402
from stepwell.testing.lerobot import tiny_lerobot  # noqa: E402

from .head_sets import head_set  # noqa: E402

TOP, SIDE = "observation.images.top", "observation.images.side"
CAMERAS = {TOP: ("png", (16, 24)), SIDE: ("video", (16, 24))}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))


@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
@pytest.mark.parametrize("episodes", [None, [2, 0]])
def test_rows_are_raw_items(tmp_path: Path, version: str, episodes: list[int] | None) -> None:
    root = tiny_lerobot(tmp_path / "tiny", version=version, cameras=CAMERAS, files=2)
    dataset = LeRobotDataset("me/tiny", root, episodes)
    rows = dataset.hf_dataset
    assert isinstance(rows, datasets.Dataset) and len(rows) == len(dataset)
    for number in range(len(dataset)):
        row, item = rows[number], dataset.get_raw_item(number)
        assert row.keys() == item.keys()
        for key, value in item.items():
            assert row[key] == value if isinstance(value, str) else torch.equal(row[key], value), key
            assert isinstance(value, str) or row[key].dtype == value.dtype
    assert dataset.select_columns("action").column_names == ["action"]
    assert rows.data.column("index").to_pylist() == [int(item["index"]) for item in dataset[:]]
    assert all((dataset.root / path).is_file() for path in dataset.reader.get_episodes_file_paths())


@pytest.mark.parametrize("name", ["image", "image_metres", "language"])
def test_depths_are_as_they_were_recorded_and_language_is_lists(tmp_path: Path, name: str) -> None:
    dataset = LeRobotDataset(head_set(name, tmp_path))
    expected = [dataset.get_raw_item(number) for number in range(len(dataset))]
    for row, item in zip((dataset.hf_dataset[number] for number in range(len(dataset))), expected, strict=True):
        for key, value in item.items():
            assert torch.equal(row[key], value) if isinstance(value, torch.Tensor) else row[key] == value, key


def test_a_store_has_none(tmp_path: Path) -> None:
    with pytest.raises(WindowError, match="write_dataset"):
        _ = LeRobotDataset(tiny_store(tmp_path / "tiny.well")).hf_dataset
