"""Where the texts of tasks are in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepwell
from stepwell.errors import ReadOnlyError
from stepwell.lerobot.tasks import add_tasks, episode_tasks, tasks_of


def test_added_tasks_keep_their_places(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"a": stepwell.Array()}, metadata={"lerobot": {"info": 1}, "by": "me"})
    assert add_tasks(store, ["push", "pull", "push"]) == ["push", "pull"]
    assert add_tasks(store, ["lift", "pull"]) == ["push", "pull", "lift"]
    assert tasks_of(store) == []
    assert store.refresh()
    assert tasks_of(store) == ["push", "pull", "lift"]
    assert store.metadata == {"lerobot": {"info": 1, "tasks": ["push", "pull", "lift"]}, "by": "me"}


def test_tasks_that_are_known_change_nothing(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"a": stepwell.Array()})
    add_tasks(store, ["push"])
    before = (tmp_path / "a.well/store.json").stat()
    assert add_tasks(store, ["push"]) == ["push"]
    assert (tmp_path / "a.well/store.json").stat() == before


def test_two_stores_of_one_path_add_to_one_list(tmp_path: Path) -> None:
    first = stepwell.create(tmp_path / "a.well", {"a": stepwell.Array()})
    second = stepwell.open(tmp_path / "a.well")
    add_tasks(first, ["push"])
    assert add_tasks(second, ["pull"]) == ["push", "pull"]
    assert add_tasks(first, ["pull", "lift"]) == ["push", "pull", "lift"]


def test_a_store_without_a_list_has_the_tasks_of_its_episodes(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"a": stepwell.Array()})
    with store.writer() as writer:
        for told in ({"task": "push"}, {}, {"tasks": ["pull", "push"]}, {"task": 3}, {"tasks": ["lift"], "task": "no"}):
            writer.add_episode({"a": [0.0]}, **told)
    assert tasks_of(store) == ["push", "pull", "lift"]
    assert episode_tasks(store) == [("push",), (), ("pull", "push"), (), ("lift",)]


def test_a_store_that_is_read_only_takes_no_tasks(tmp_path: Path) -> None:
    stepwell.create(tmp_path / "a.well", {"a": stepwell.Array()})
    with pytest.raises(ReadOnlyError, match="add tasks"):
        add_tasks(stepwell.open(tmp_path / "a.well", mode="r"), ["push"])
