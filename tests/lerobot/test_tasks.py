"""Where the texts of tasks are in a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array, Text
from stepwell.errors import ReadOnlyError, StepError
from stepwell.formats.source_episodes import episodes_of
from stepwell.lerobot.schema_mapping import index_names
from stepwell.lerobot.tasks import StepTasks, TaskList, add_tasks, episode_tasks, tasks_of


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


def one_episode(path, columns, schema, metadata=None, **told):
    store = stepwell.create(path, {"action": Array(), **schema}, fps=10, metadata=metadata or {})
    with store.writer() as writer:
        writer.add_episode({"action": np.zeros(4, np.float32), **columns}, **told)
    store.refresh()
    return next(episodes_of(store)), index_names(store.schema)


def found(episode, names, task=None, known=()):
    tasks = TaskList(known)
    numbers, texts = StepTasks(names, task).of(episode, tasks)
    return numbers.tolist(), texts, tasks.texts


def test_texts_are_numbered_as_they_come():
    tasks = TaskList(["a", "b", "a"])
    assert [tasks.index(text) for text in ("b", "c", "a")] == [1, 3, 0]
    assert tasks.texts == ["a", "b", "a", "c"]


@pytest.mark.parametrize("told", [{"task": "pick"}, {"tasks": ["pick"]}, {"tasks": "pick"}])
def test_the_metadata_of_an_episode_says_it(tmp_path, told):
    episode, names = one_episode(tmp_path / "a.well", {}, {}, **told)
    assert found(episode, names, known=["place"]) == ([1, 1, 1, 1], ("pick",), ["place", "pick"])


def test_a_text_feature_says_it_for_each_step(tmp_path):
    episode, names = one_episode(tmp_path / "a.well", {"task": ["b", "b", "a", "b"]}, {"task": Text()}, task="c")
    assert found(episode, names) == ([0, 0, 1, 0], ("b", "a"), ["b", "a"])


def test_a_list_and_numbers_say_it(tmp_path):
    columns, schema = {"task_index": np.array([2, 2, 0, 2])}, {"task_index": Array((), "int64")}
    listed = {"lerobot": {"tasks": ["a", "b", "c"]}}
    episode, names = one_episode(tmp_path / "a.well", columns, schema, metadata=listed, task="other")
    assert StepTasks(names, None).listed(episode) == ["a", "b", "c"]
    assert found(episode, names, known=["a", "b", "c"]) == ([2, 2, 0, 2], ("c", "a"), ["a", "b", "c"])
    # in a dataset that has other tasks
    assert found(episode, names, known=["c"]) == ([0, 0, 1, 0], ("c", "a"), ["c", "a"])


def test_what_is_given_counts_for_all(tmp_path):
    episode, names = one_episode(tmp_path / "a.well", {"task": ["a"] * 4}, {"task": Text()})
    assert found(episode, names, task="b") == ([0, 0, 0, 0], ("b",), ["b"])
    assert StepTasks(names, "b").listed(episode) == []


def test_numbers_beyond_the_list_are_refused(tmp_path):
    columns, schema = {"task_index": np.array([0, 1, 2, 0])}, {"task_index": Array((), "int64")}
    episode, names = one_episode(tmp_path / "a.well", columns, schema, metadata={"lerobot": {"tasks": ["a"]}})
    with pytest.raises(StepError, match="episode 0 has task_index 0 to 2; the store's list has 1 task"):
        found(episode, names)


@pytest.mark.parametrize(("told", "what"), [({}, "has no task"), ({"tasks": ["a", "b"]}, "has 2 tasks")])
def test_a_step_without_a_task_is_refused(tmp_path, told, what):
    episode, names = one_episode(tmp_path / "a.well", {}, {}, **told)
    with pytest.raises(StepError, match=rf"a\.well: episode 0 {what}.*task="):
        found(episode, names)
