"""Where the texts of tasks are in a store: one rule for stores that are recorded, converted or read in place.

::

    store.metadata["lerobot"]["tasks"]    ["pick", "place"]      by task_index; complete before a step refers to it
    feature "task_index"                  int64 scalar a step    a place in that list
    store.metadata["lerobot"]["subtasks"] likewise, of a feature "subtask_index" (lerobot 0.4 and 0.5)
    metadata of an episode, "tasks"       ["place"]              its texts by first appearance, to select episodes by

A store of other origin has no such list: its tasks are the texts that its episodes' metadata has, as ``tasks`` (a list)
or ``task`` (one), in the order in which they appear first.

What is written or exported has the task of each step from the first of these that there is:

1. one text for all, if it was given;
2. a text feature "task" of the store;
3. a feature "task_index" and the list;
4. metadata of the episode, ``task`` (a text) or ``tasks`` (a list of one text).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import SchemaError, StepError
from stepwell.json_text import seal_json
from stepwell.lerobot.schema_mapping import TASK
from stepwell.store.layout import STORE_JSON, locked_store, replace_file
from stepwell.store.records import read_record

if TYPE_CHECKING:
    from stepwell.formats.source_episodes import SourceEpisode
    from stepwell.store import Store

__all__ = ["StepTasks", "TaskList", "add_tasks", "change_info", "episode_tasks", "subtasks_of", "tasks_of"]

TASK_INDEX = "task_index"


def tasks_of(store: Store) -> list[str]:
    """Return the texts of a store's tasks by ``task_index``, as of its last refresh."""
    listed = _listed(store.metadata)
    if listed is not None:
        return listed
    return list(dict.fromkeys(text for texts in episode_tasks(store) for text in texts))


def subtasks_of(store: Store) -> list[str] | None:
    """Return the texts of a store's subtasks by ``subtask_index``; None where it has none."""
    texts = store.metadata.get("lerobot", {}).get("subtasks")
    return None if texts is None else list(texts)


def episode_tasks(store: Store) -> list[tuple[str, ...]]:
    """Return the texts of each episode's tasks, as its metadata has them; an empty tuple where it has none."""
    table = store.episodes
    return [_texts(table.metadata(episode)) for episode in range(len(table))]


def add_tasks(store: Store, texts: Iterable[str]) -> list[str]:
    """Append texts that are not in the store's list to it, in every process that refreshes."""
    store.check_writable("add tasks")

    def added(lerobot: dict[str, Any]) -> dict[str, Any]:
        return {**lerobot, "tasks": list(dict.fromkeys([*(lerobot.get("tasks") or ()), *texts]))}

    tasks: list[str] = _change(store, added)["tasks"]
    return tasks


def change_info(store: Store, changes: Mapping[str, Any]) -> None:
    """Change entries of the info.json that a recording's store has in its metadata."""
    _change(store, lambda lerobot: {**lerobot, "info": {**lerobot["info"], **changes}})


def _change(store: Store, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Replace what the metadata of a store says of LeRobot, and return it."""
    path = str(store.path)
    with locked_store(path):
        record = read_record(path)
        before = record.metadata.get("lerobot", {})
        after = change(before)
        if after != before:
            data = seal_json(replace(record, metadata={**record.metadata, "lerobot": after}).to_json())
            # a control loop may add a task: it waits for the disk only where every step does
            replace_file(f"{path}/{STORE_JSON}", data, sync=record.sync == "step")
    return after


def _listed(metadata: Mapping[str, Any]) -> list[str] | None:
    tasks = metadata.get("lerobot", {}).get("tasks")
    return None if tasks is None else list(tasks)


def _texts(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    texts = metadata.get("tasks")
    if texts is None:
        text = metadata.get("task")
        return (text,) if isinstance(text, str) else ()
    return tuple(text for text in texts if isinstance(text, str))


class TaskList:
    """Texts by ``task_index``; a text that is new gets the next number."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._texts = list(texts)
        # of a text that is there twice the first number
        self._numbers = {text: number for number, text in reversed(list(enumerate(self._texts)))}

    @property
    def texts(self) -> list[str]:
        """All texts, by number."""
        return list(self._texts)

    def index(self, text: str) -> int:
        """Return the number of a text."""
        if text not in self._numbers:
            self._numbers[text] = len(self._texts)
            self._texts.append(text)
        return self._numbers[text]


class StepTasks:
    """Finds the task of each step: the first of these that there is."""

    def __init__(self, names: Mapping[str, str], task: str | None) -> None:
        if task is not None and not isinstance(task, str):
            raise SchemaError(f"task={task!r}. Give a text: it is the task of every step.")
        self._names, self._task = names, task

    def listed(self, episode: SourceEpisode) -> list[str]:
        """Return the texts in the list of the episode's store, if the list counts; else none."""
        if self._task is not None or TASK in self._names or TASK_INDEX not in self._names:
            return []
        return list(episode.store.metadata.get("lerobot", {}).get("tasks") or ())

    def of(self, episode: SourceEpisode, tasks: TaskList) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        """Return the numbers of the steps' tasks, int64 [n], and their texts by first appearance."""
        if self._task is not None:
            return self._same(self._task, episode.length, tasks)
        if TASK in self._names:
            texts = episode.read(self._names[TASK])
            return np.array([tasks.index(text) for text in texts], np.int64), tuple(dict.fromkeys(texts))
        listed = self.listed(episode)
        if listed:
            return self._looked_up(episode, listed, tasks)
        return self._same(_episode_text(episode), episode.length, tasks)

    def _same(self, text: str, length: int, tasks: TaskList) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        return np.full(length, tasks.index(text), np.int64), (text,)

    def _looked_up(
        self, episode: SourceEpisode, listed: list[str], tasks: TaskList
    ) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        found = np.asarray(episode.read(self._names[TASK_INDEX])).reshape(-1)
        distinct, places = np.unique(found, return_inverse=True)
        if distinct[0] < 0 or distinct[-1] >= len(listed):
            raise StepError(
                f"{episode.store.path}: episode {episode.index} has task_index {distinct[0]} to {distinct[-1]}; the "
                f"store's list has {len(listed)} tasks. Give task=, or mend the column."
            )
        order = dict.fromkeys(found.tolist())
        numbers = np.array([tasks.index(listed[int(number)]) for number in distinct], np.int64)
        return numbers[places], tuple(dict.fromkeys(listed[int(number)] for number in order))


def _episode_text(episode: SourceEpisode) -> str:
    """Return the text in an episode's metadata."""
    texts = episode.metadata.get("tasks", episode.metadata.get("task"))
    if isinstance(texts, str):
        return texts
    if isinstance(texts, list | tuple) and len(texts) == 1 and isinstance(texts[0], str):
        return texts[0]
    where = f"{episode.store.path}: episode {episode.index}"
    if isinstance(texts, list | tuple) and len(texts) > 1:
        raise StepError(
            f"{where} has {len(texts)} tasks in its metadata, and nothing says which step has which. Give one for all "
            "with task=, or record a text feature 'task'."
        )
    raise StepError(
        f"{where} has no task, which LeRobot wants for every step. Give one for all with task=; end episodes with "
        "task=...; or record a text feature 'task'."
    )
