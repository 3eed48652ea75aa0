"""A dataset's directory to the hub: which requests are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("pyarrow")
hub = pytest.importorskip("huggingface_hub")

from stepwell.errors import WindowError  # noqa: E402
from stepwell.lerobot import LeRobotDataset  # noqa: E402
from stepwell.testing import tiny_store  # noqa: E402
from stepwell.testing.lerobot import tiny_lerobot  # noqa: E402


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the requests, by name and arguments, none of which is sent."""
    made: list[tuple[str, dict[str, Any]]] = []

    class Api:
        def __init__(self, **options: Any) -> None:
            made.append(("HfApi", options))

        def __getattr__(self, name: str) -> Any:
            return lambda **arguments: made.append((name, arguments))

    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub.DatasetCard, "push_to_hub", lambda card, **options: made.append(("card", {"it": card})))
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    return made


def test_files_a_card_and_a_tag_are_pushed(tmp_path: Path, calls: list[tuple[str, dict[str, Any]]]) -> None:
    root = tiny_lerobot(tmp_path / "tiny", cameras={})
    dataset = LeRobotDataset("me/tiny", root)
    dataset.push_to_hub(branch="wip", tags=["reach"], push_videos=False, private=True, token="hf_x", paper="none yet")
    assert [name for name, _ in calls] == [
        "HfApi",
        "create_repo",
        "create_branch",
        "upload_folder",
        "card",
        "delete_tag",
        "create_tag",
    ]
    asked = dict(calls)
    assert asked["HfApi"]["token"] == "hf_x"
    assert asked["create_repo"] == {"repo_id": "me/tiny", "repo_type": "dataset", "private": True, "exist_ok": True}
    upload = asked["upload_folder"]
    assert (upload["folder_path"], upload["revision"]) == (Path(root), "wip")
    assert upload["ignore_patterns"] == ["images/", "videos/"]
    assert (asked["create_tag"]["tag"], asked["create_tag"]["revision"]) == ("v3.0", "wip")
    card = asked["card"]["it"]
    assert (card.data.tags, card.data.license) == (["LeRobot", "reach"], "apache-2.0")
    assert '"total_episodes": 3' in card.text and "## Paper\n\nnone yet" in card.text


def test_many_files_go_another_way_and_no_tag_is_set(tmp_path: Path, calls: list[tuple[str, dict[str, Any]]]) -> None:
    dataset = LeRobotDataset("me/tiny", tiny_lerobot(tmp_path / "tiny", cameras={}))
    dataset.push_to_hub(upload_large_folder=True, tag_version=False)
    assert [name for name, _ in calls] == ["HfApi", "create_repo", "upload_large_folder", "card"]


def test_a_store_is_to_be_written_first(tmp_path: Path, calls: list[tuple[str, dict[str, Any]]]) -> None:
    with pytest.raises(WindowError, match="write_dataset"):
        LeRobotDataset(tiny_store(tmp_path / "tiny.well")).push_to_hub()
    assert calls == []
