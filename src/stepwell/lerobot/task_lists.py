"""The tasks of what is written: which text each step has, and which number each text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from stepwell.errors import SchemaError, StepError
from stepwell.formats.source_episodes import SourceEpisode
from stepwell.lerobot.schema_mapping import TASK

__all__ = ["StepTasks", "TaskList"]

TASK_INDEX = "task_index"


class TaskList:
    """Texts by ``task_index``; a text that is new gets the next number.

    Args:
        texts: known already, in their order.

    Example:
        >>> tasks = TaskList(["pick"])
        >>> tasks.index("place"), tasks.index("pick"), tasks.texts
        (1, 0, ['pick', 'place'])
    """

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
    """Finds the task of each step: the first of these that there is.

    1. one text for all, if it was given;
    2. a text feature "task" of the store;
    3. a feature "task_index", a place in the list that the store's metadata has: ``metadata["lerobot"]["tasks"]``;
    4. metadata of the episode, ``task`` (a text) or ``tasks`` (a list of one text).

    Args:
        names: of the store's features that say it, see `schema_mapping.index_names`.
        task: one text for all.
    """

    def __init__(self, names: Mapping[str, str], task: str | None) -> None:
        if task is not None and not isinstance(task, str):
            raise SchemaError(f"task={task!r}. Give a text: it is the task of every step.")
        self._names, self._task = names, task

    def listed(self, episode: SourceEpisode) -> list[str]:
        """Return the texts that the episode's store has in its list, if the list is what counts; else none."""
        if self._task is not None or TASK in self._names or TASK_INDEX not in self._names:
            return []
        return list(episode.store.metadata.get("lerobot", {}).get("tasks") or ())

    def of(self, episode: SourceEpisode, tasks: TaskList) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
        """Return the numbers of the steps' tasks, int64 [n], and their texts by first appearance.

        Args:
            episode: the episode.
            tasks: takes in texts that are new.

        Raises:
            StepError: the store does not say what a step's task is.
        """
        if self._task is not None:
            return self._same(self._task, episode.length, tasks)
        if TASK in self._names:
            texts = episode.read(self._names[TASK])
            return np.array([tasks.index(text) for text in texts], np.int64), tuple(dict.fromkeys(texts))
        listed = self.listed(episode)
        if listed:
            return self._looked_up(episode, listed, tasks)
        return self._same(_told(episode), episode.length, tasks)

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


def _told(episode: SourceEpisode) -> str:
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
