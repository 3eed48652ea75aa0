"""Datasets of the hub are audited: what the table of episodes names is fetched, what the hub lacks is a finding."""

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("huggingface_hub")
pytest.importorskip("av")

from stepwell.lerobot.auditing import audit
from stepwell.testing.hub import HubServer

from .audits.damage import change_rows, data_files, episode_files, found, tiny_set

CAMERAS = {"observation.images.side": ("video", (16, 16))}
CHOSEN = ["totals and statistics of the whole dataset"]
SEVERAL = {"video-several-files": [1, 2]}


@pytest.fixture
def root(tmp_path):
    return tiny_set(tmp_path, cameras=CAMERAS, files=3)


@pytest.fixture
def hub(root, tmp_path, monkeypatch):
    with HubServer({"me/tiny": {"main": root, "v3.0": root}}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield server


def test_a_repository_is_fetched_and_looked_at(hub, root):
    change_rows(root, "timestamp", {2: 0.203}, file=1)
    assert found(audit("me/tiny")) == {"timestamp-grid": [1], **SEVERAL}


def test_only_the_files_of_the_chosen_episodes_are_fetched(hub):
    assert found(audit("lerobot://me/tiny?episodes=2:"), unchecked=CHOSEN) == {}
    assert {name for name in hub.files if not name.startswith("meta/")} == {
        "data/chunk-000/file-002.parquet",
        "videos/observation.images.side/chunk-000/file-002.mp4",
    }


def test_files_that_the_hub_does_not_have_are_findings(hub, root):
    data_files(root)[2].unlink()
    next((root / "videos").rglob("file-001.mp4")).unlink()
    codes = found(audit("me/tiny"), unchecked=["statistics"])
    assert codes == {"data-missing": [2], "video-missing": [1], **SEVERAL}


def test_a_repository_whose_tables_no_reader_takes_is_looked_at_all_the_same(hub, root):
    episode_files(root)[1].write_bytes(b"no parquet")
    codes = found(audit("me/tiny"))
    assert codes["episodes-unreadable"] == [] and not audit("me/tiny").is_ok
