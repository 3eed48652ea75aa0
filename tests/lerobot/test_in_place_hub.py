"""Datasets of the hub, read in place: only what the chosen episodes need is fetched."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("av")
pytest.importorskip("imagecodecs")
pytest.importorskip("huggingface_hub")

import stepwell
from stepwell.errors import DatasetNotFoundError
from stepwell.testing import HubServer, tiny_lerobot
from stepwell.testing.lerobot import tiny_lerobot_picture, tiny_lerobot_rows

REPO = "me/tiny"
TOP, SIDE = "observation.images.top", "observation.images.side"
CAMERAS: dict[str, Any] = {TOP: ("video", (16, 32)), SIDE: ("png", (16, 32))}
LENGTHS = [4, 6, 5]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    new = tiny_lerobot(tmp_path / "new", cameras=CAMERAS, lengths=LENGTHS, files=3)
    old = tiny_lerobot(tmp_path / "old", version="v2.1", cameras=CAMERAS, lengths=LENGTHS, seed=1)
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    with HubServer({REPO: {"main": old, "v2.1": old, "v3.0": new}}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def get(tmp_path: Path, address: str, **options: Any) -> stepwell.Store:
    return stepwell.open(address, **{"cache_dir": tmp_path / "hub", "token": False, "progress": False, **options})


def test_episodes_of_the_hub_are_those_of_the_dataset(hub: HubServer, tmp_path: Path) -> None:
    store = get(tmp_path, f"lerobot://{REPO}?episodes=1:")
    told = store.metadata["lerobot"]
    assert (told["repo_id"], [episode.length for episode in store]) == (REPO, LENGTHS[1:])
    for place, episode in enumerate(store, 1):
        expected = tiny_lerobot_rows(place, LENGTHS[place])
        np.testing.assert_array_equal(episode["action"], expected["action"])
        pictures = [tiny_lerobot_picture(1, place, step, (16, 32)) for step in range(LENGTHS[place])]
        np.testing.assert_array_equal(episode[SIDE], pictures)
        assert episode[TOP].shape == (LENGTHS[place], 16, 32, 3)
    assert not any("file-000" in name for name in hub.files if not name.startswith("meta/"))


def test_revisions_are_stores_of_their_own(hub: HubServer, tmp_path: Path) -> None:
    new, old = get(tmp_path, f"lerobot://{REPO}"), get(tmp_path, f"lerobot://{REPO}@v2.1")
    assert new.path != old.path
    np.testing.assert_array_equal(old[0]["action"], tiny_lerobot_rows(0, LENGTHS[0], seed=1)["action"])
    np.testing.assert_array_equal(new[0]["action"], tiny_lerobot_rows(0, LENGTHS[0])["action"])


def test_what_was_fetched_is_opened_without_the_hub(hub: HubServer, tmp_path: Path) -> None:
    first = get(tmp_path, f"lerobot://{REPO}", episodes=[2])
    hub.requests.clear()
    again = get(tmp_path, f"lerobot://{REPO}", episodes=[2], local_files_only=True)
    assert (again.path, hub.requests) == (first.path, [])


def test_episodes_that_are_fetched_later_are_another_store(hub: HubServer, tmp_path: Path) -> None:
    few = get(tmp_path, f"lerobot://{REPO}", episodes=[0])
    more = get(tmp_path, f"lerobot://{REPO}")
    assert [len(few), len(more)] == [1, 3]
    assert few[0][SIDE].shape == (LENGTHS[0], 16, 32, 3)
    assert len(get(tmp_path, f"lerobot://{REPO}", episodes=[0])) == 1


def test_a_dataset_that_is_not_there_is_told(hub: HubServer, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError):
        get(tmp_path, "lerobot://me/other")
