"""Where the texts of tasks are in a store: one rule for stores that are recorded, converted or read in place.

::

    store.metadata["lerobot"]["tasks"]    ["pick", "place"]      by task_index; complete before a step refers to it
    feature "task_index"                  int64 scalar a step    a place in that list
    metadata of an episode, "tasks"       ["place"]              its texts by first appearance, to select episodes by

A store of other origin has no such list: its tasks are the texts that its episodes' metadata has, as ``tasks`` (a list)
or ``task`` (one), in the order in which they appear first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepwell.json_text import seal_json
from stepwell.store.layout import STORE_JSON, locked_store, replace_file
from stepwell.store.records import read_record

if TYPE_CHECKING:
    from stepwell.store import Store

__all__ = ["add_tasks", "episode_tasks", "tasks_of"]


def tasks_of(store: Store) -> list[str]:
    """Return the texts of a store's tasks by ``task_index``, as of its last refresh.

    Args:
        store: recorded by `LeRobotRecorder`, converted from LeRobot, read in place, or any other.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/a.well", {"action": stepwell.Array(2)})
        >>> with store.writer() as writer:
        ...     for task in ("pick", "place", "pick"):
        ...         episode = writer.add_episode({"action": [[0.0, 1.0]]}, task=task)
        >>> tasks_of(store)
        ['pick', 'place']
    """
    listed = _listed(store.metadata)
    if listed is not None:
        return listed
    return list(dict.fromkeys(text for texts in episode_tasks(store) for text in texts))


def episode_tasks(store: Store) -> list[tuple[str, ...]]:
    """Return the texts of each episode's tasks, as its metadata has them; an empty tuple where it has none."""
    table = store.episodes
    return [_texts(table.metadata(episode)) for episode in range(len(table))]


def add_tasks(store: Store, texts: Iterable[str]) -> list[str]:
    """Append texts that are not in the store's list to it, in every process that refreshes.

    Args:
        store: open for writing.
        texts: of tasks, in any number, known or not.

    Returns:
        The whole list, by ``task_index``. The store shows it after its next refresh.

    Raises:
        ReadOnlyError: the store was opened for reading only.
        DiskFullError: no space; the list is as it was.

    Notes:
        The list is replaced whole, under the store's lock: any number of processes may record into one store.
    """
    store.check_writable("add tasks")
    path = str(store.path)
    with locked_store(path):
        record = read_record(path)
        known = _listed(record.metadata) or []
        tasks = list(dict.fromkeys([*known, *texts]))
        if len(tasks) > len(known):
            told = {**record.metadata, "lerobot": {**record.metadata.get("lerobot", {}), "tasks": tasks}}
            data = seal_json(replace(record, metadata=told).to_json())
            # a control loop may be what adds a task: it waits for the disk only where every step does
            replace_file(f"{path}/{STORE_JSON}", data, sync=record.sync == "step")
    return tasks


def _listed(metadata: Mapping[str, Any]) -> list[str] | None:
    tasks = metadata.get("lerobot", {}).get("tasks")
    return None if tasks is None else list(tasks)


def _texts(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    texts = metadata.get("tasks")
    if texts is None:
        text = metadata.get("task")
        return (text,) if isinstance(text, str) else ()
    return tuple(text for text in texts if isinstance(text, str))
