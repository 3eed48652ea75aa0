"""Small stores whose every value says which episode and step it is of."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell.store import Store

# run in processes of their own, and need torch, JAX or Ray
collect_ignore = ["exact_ranks.py", "jax_devices.py", "jax_processes.py", "ray_ranks.py"]
LENGTHS = (5, 9, 1, 12, 7, 3)
NUM_STEPS = sum(LENGTHS)


def write_episodes(store: Store, lengths: tuple[int, ...], first: int = 0) -> None:
    """Write episodes whose features hold 1000 * episode + step."""
    with store.writer() as writer:
        for episode, length in enumerate(lengths, first):
            number = 1000 * episode + np.arange(length + 1)
            writer.add_episode(
                {
                    "number": number[:-1],
                    "observation.state": np.stack([number, -number], axis=1).astype(np.float32),
                    "observation.image": np.repeat(number % 251, 12).astype(np.uint8).reshape(-1, 2, 2, 3),
                    "text": [str(n) for n in number[:-1]],
                },
                terminated=True,
            )
    store.refresh()


def make_store(path: Path, lengths: tuple[int, ...] = LENGTHS) -> Store:
    """Return a new store of such episodes."""
    store = stepwell.create(
        path,
        {
            "number": stepwell.Array((), "int64"),
            "observation.state": stepwell.Array(2, final=True),
            "observation.image": stepwell.Image((2, 2, 3), codec="png", final=True),
            "text": stepwell.Text(),
        },
        fps=10,
    )
    write_episodes(store, lengths)
    return store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store that no test changes."""
    return make_store(tmp_path_factory.mktemp("loader") / "small.well")


@pytest.fixture(scope="session")
def numbers() -> list[int]:
    """The number of every step, in order."""
    return [1000 * episode + step for episode, length in enumerate(LENGTHS) for step in range(length)]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """No test of the loader leaves one of its threads behind."""
    before = set(loader_threads())
    yield
    deadline = time.monotonic() + 60
    while set(loader_threads()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(loader_threads()) - before


def loader_threads() -> list[threading.Thread]:
    """Return the threads of loaders that are alive."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("stepwell-loader")]
