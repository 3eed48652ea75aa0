"""Rows of the episode table are written some at a time."""

import gc
import weakref

import pytest

from stepwell.lerobot.episode_writing import GROUP_EPISODES, EpisodeRow, EpisodeTableWriter, episode_schema

pytest.importorskip("pyarrow")


class Files:
    """What the writer needs of `ParquetFiles`; remembers how many rows came at a time."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.rows: list[dict] = []

    def begin(self, num_rows: int) -> tuple[int, int]:
        self.sizes.append(num_rows)
        return 0, 0

    def write(self, table) -> None:
        self.rows += table.to_pylist()

    def close(self) -> None:
        pass


class Tasks(list):
    """A list that can be referred to weakly."""


def test_no_more_rows_are_held_than_a_group_of_the_file():
    files, held = Files(), []
    writer = EpisodeTableWriter(files, episode_schema([]))
    count = 2 * GROUP_EPISODES + 2
    for index in range(count):
        tasks = Tasks(["push"])
        held.append(weakref.ref(tasks))
        writer.add(EpisodeRow(index, tasks, 3, 3 * index, (0, 0), {}, {}))
        del tasks
        gc.collect()
        assert sum(each() is not None for each in held) <= GROUP_EPISODES
    writer.close()
    assert files.sizes == [GROUP_EPISODES, GROUP_EPISODES, 2]
    assert [row["episode_index"] for row in files.rows] == list(range(count))
