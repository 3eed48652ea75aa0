"""What the tests of maintenance share: small stores, what they show, and children that are killed at a chosen call."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.store import Store, rewrite, verify

# imported here, and not anew in each child that is killed
MODULES = (rewrite, verify)

# whatever changes a directory goes through one of these
CALLS = ("rename", "replace", "link", "unlink", "mkdir", "rmdir")

FEATURES = {
    "action": stepwell.Array(2),
    "observation": stepwell.Array((), "int64", final=True),
    "depth": stepwell.Image((4, 4), "uint16", codec="png"),
    "text": stepwell.Text(),
}


def episode_of(number: int, length: int) -> dict[str, Any]:
    """Return the columns of an episode that tell its number everywhere."""
    return {
        "action": np.full((length, 2), number, "float32"),
        "observation": np.arange(length + number % 2) + 1000 * number,
        "depth": np.full((length, 4, 4), number, "uint16"),
        "text": [f"{number}/{step}" for step in range(length)],
    }


def fill(store: Store, numbers: range, *, discard: bool = False) -> None:
    """Record one episode a number, of 1 to 4 steps; with ``discard`` also one that is taken back after each."""
    with store.writer() as writer:
        for number in numbers:
            writer.add_episode(episode_of(number, 1 + number % 4), truncated=bool(number % 3), number=number)
            if discard:
                writer.append({name: column[0] for name, column in episode_of(99, 1).items()})
                writer.discard_episode()
    store.refresh()


def shown(store: Store) -> list[int]:
    """Return the numbers of the episodes that a store shows, after a look at all that each holds."""
    found = []
    for episode in store:
        number = episode.metadata["number"]
        expected = episode_of(number, 1 + number % 4)
        for name, column in expected.items():
            assert np.array_equal(episode[name], column), (number, name)
        assert episode.length == 1 + number % 4
        assert episode.truncated == bool(number % 3)
        found.append(number)
    return found


def assert_sound(store: Store) -> None:
    """Assert that every byte is as written and that nothing is left of what was interrupted."""
    report = store.verify(deep=True)
    assert report.is_ok, str(report)
    assert not {"staging"} & {entry.name for entry in store.path.iterdir()}
    assert not list(store.path.rglob("*.tmp"))


def run_until_kill(action: Callable[[], Any], calls: int) -> bool:
    """Run ``action`` in a child that kills itself before its call number ``calls``; True when it got to its end."""
    child = os.fork()
    if child == 0:
        try:
            _count_calls(lambda count: os.kill(os.getpid(), signal.SIGKILL) if count == calls else None)
            action()
        except BaseException:
            os._exit(2)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status == 0


def _count_calls(before: Callable[[int], None]) -> None:
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            before(count)
            count += 1
            return function(*args, **options)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def kills(template: Path, action: Callable[[Path], Any]) -> Iterator[Path]:
    """Yield copies of a folder in which ``action`` was killed before its first call, its second, and so on."""
    calls, is_done = 0, False
    while not is_done:
        work = template.with_name(f"work{calls}")
        shutil.copytree(template, work)
        is_done = run_until_kill(lambda work=work: action(work), calls)
        calls += 1
        yield work
    assert calls > 3, "nothing was killed"


class Wells:
    """Small stores in one folder, and the functions above."""

    features = FEATURES
    episode_of = staticmethod(episode_of)
    fill = staticmethod(fill)
    shown = staticmethod(shown)
    assert_sound = staticmethod(assert_sound)
    kills = staticmethod(kills)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, numbers: range = range(7), *, name: str = "a.well", discard: bool = False, **options: Any) -> Store:
        """Return a store of several small segments with the given episodes."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        store = stepwell.create(path, FEATURES, **{"segment_bytes": 300, **options})
        fill(store, numbers, discard=discard)
        return store


@pytest.fixture
def wells(tmp_path: Path) -> Wells:
    return Wells(tmp_path)
