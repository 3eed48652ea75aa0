"""Writers with a key that are killed anywhere: a retry leaves the store as if nobody had been killed.

`STEPWELL_KEY_KILLS=300` kills as many at random instead of a few.
"""

import mmap
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, StoreBusyError, View
from stepwell.store import Store

KILLS = int(os.environ.get("STEPWELL_KEY_KILLS", "12"))
KEYS = ("task-1", "task-2", "task-3")
SCHEMA = {"state": Array(2), "action": Array((), "int64")}


def run_task(store: Store, key: str, pause: Callable[[], None] = lambda: None) -> None:
    """Record what a task records: in two segments, with steps, an episode that is taken back, and whole episodes."""
    with store.writer(key=key) as writer:
        for number in range(3):
            seed = 10 * KEYS.index(key) + number
            for step in range(1 + seed % 3):
                pause()
                writer.append(state=[seed, step], action=seed)
            if number == 1:
                writer.discard_episode()
            else:
                writer.end_episode(truncated=True, key=key, number=number)
        action = np.full(40, KEYS.index(key))
        for number in range(3, 5):
            pause()
            writer.add_episode({"state": np.zeros((40, 2), "f4"), "action": action}, key=key, number=number)


def shown(store: Store) -> list[Any]:
    """Return what a store shows, in its order, and on which side of a split each episode is."""
    train = set(View(store).split(0.5, 0.5, seed=1)[0].episode_index.tolist())
    return [
        (
            e.metadata["key"],
            e.metadata["number"],
            e["action"].tolist(),
            e["state"].tolist(),
            index in train,
            e.truncated,
        )
        for index, e in enumerate(store)
    ]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of which two tasks are done, and the third died half-way."""
    path = tmp_path_factory.mktemp("keys") / "a.well"
    store = stepwell.create(path, SCHEMA, segment_bytes=500)
    for key in reversed(KEYS[:2]):
        run_task(store, key)
    wait_for(fork(lambda: run_task(Store(str(path)), KEYS[2], lambda: die_sometimes(random.Random(1)))))
    return path


@pytest.fixture(scope="module")
def undisturbed(template: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    path = tmp_path_factory.mktemp("undisturbed") / "a.well"
    shutil.copytree(template, path)
    run_task(stepwell.open(path), KEYS[2])
    return shown(stepwell.open(path))


def die_sometimes(draw: random.Random) -> None:
    if draw.random() < 0.3:
        os.kill(os.getpid(), signal.SIGKILL)


def fork(action: Callable[[], Any]) -> int:
    child = os.fork()
    if child == 0:
        try:
            action()
        except BaseException as error:
            print(repr(error))
            os._exit(2)
        os._exit(0)
    return child


def wait_for(child: int) -> int:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status


def check(path: Path, expected: list[Any], retried: str) -> None:
    """Assert that others lost nothing, and that a retry leaves the store as nobody's death did."""
    others = [row for row in expected if row[0] not in (retried, KEYS[2])]
    store = stepwell.open(path)
    found = [(e.metadata.get("key"), e.metadata.get("number"), e["action"].tolist()) for e in store]
    assert [row for row in found if row[0] in {key for key, *_ in others}] == [row[:3] for row in others]
    for key in (retried, KEYS[2]):
        run_task(stepwell.open(path), key)
    store = stepwell.open(path)
    assert shown(store) == expected
    assert shown(stepwell.open(path, mode="r")) == expected
    assert store.verify(deep=True).is_ok
    left = [entry.name for entry in (path / "segments").iterdir() if not entry.name[0].isdigit()]
    assert not left
    assert not list((path / "keys").iterdir())


def test_a_task_that_is_killed_before_any_change_of_a_directory_leaves_no_trace_once_it_is_retried(
    template: Path, undisturbed: list[Any], tmp_path: Path, wells: Any
) -> None:
    folder = tmp_path / "template"
    shutil.copytree(template.parent, folder)
    for work in wells.kills(folder, lambda work: run_task(Store(str(work / "a.well")), KEYS[0])):
        check(work / "a.well", undisturbed, KEYS[0])
        shutil.rmtree(work)


def test_of_two_that_race_for_a_key_one_is_killed_at_random_and_the_other_takes_over(
    template: Path, undisturbed: list[Any], tmp_path: Path
) -> None:
    draw = random.Random(5)
    path = tmp_path / "a.well"
    shutil.copytree(template, path)

    is_alone = mmap.mmap(-1, 1)

    def insist(seed: int, key: str) -> None:
        mine, store = random.Random(seed), Store(str(path))
        is_last = False
        while not is_last:
            # one that ended before the other was killed may have been replaced by half of the other's
            begins_alone = is_alone[0] == 1
            try:
                run_task(store, key, lambda: time.sleep(mine.choice((0, 0, 0.001))))
                is_last = begins_alone
            except StoreBusyError:
                time.sleep(0.001)

    for number in range(KILLS):
        key, is_alone[0] = draw.choice(KEYS), 0
        first, second = (fork(lambda seed=2 * number + k, key=key: insist(seed, key)) for k in range(2))
        time.sleep(draw.uniform(0, 0.04))
        os.kill(first, signal.SIGKILL)
        is_alone[0] = 1
        assert wait_for(first) == -signal.SIGKILL
        assert wait_for(second) == 0
        if number % 4 == 3 or number == KILLS - 1:
            check(path, undisturbed, key)
