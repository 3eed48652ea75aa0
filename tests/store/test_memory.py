"""Stores in memory: they go with their last object, or with their process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stepwell
from stepwell.store import memory

MAKE = """
import stepwell
store = stepwell.create(":memory:", {"a": stepwell.Array((), "int64")}, capacity=100)
with store.writer() as writer:
    writer.add_episode({"a": [1, 2, 3]})
print(store.path, flush=True)
"""


def test_a_store_in_memory_goes_with_its_last_object() -> None:
    store = stepwell.create(":memory:", {"a": stepwell.Array((), "int64")})
    path = store.path
    assert path.is_dir()
    assert str(path).startswith("/dev/shm/" if os.access("/dev/shm", os.W_OK) else "/")
    with store.writer() as writer:
        writer.add_episode({"a": [1, 2, 3]})
    episode = store[0]
    other = stepwell.open(path)
    del store, writer
    assert path.is_dir()
    assert other[0]["a"].tolist() == episode["a"].tolist() == [1, 2, 3]
    del other
    assert path.is_dir()
    del episode
    assert not path.parent.exists()


def test_two_stores_in_memory_are_two() -> None:
    first, second = (stepwell.create(":memory:") for _ in range(2))
    assert first.path != second.path


def test_another_process_opens_its_path_and_leaves_it_there() -> None:
    store = stepwell.create(":memory:", {"a": stepwell.Array((), "int64")})
    child = os.fork()
    if child == 0:
        with stepwell.open(store.path).writer() as writer:
            writer.add_episode({"a": [1, 2, 3]})
        del store, writer
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    store.refresh()
    assert store[0]["a"].tolist() == [1, 2, 3]


def test_it_goes_when_the_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, check=True)
    path = Path(done.stdout.strip())
    assert not path.parent.exists()


def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", MAKE + "import time; time.sleep(60)"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    path = Path(child.stdout.readline().strip())
    assert path.is_dir()
    live = stepwell.create(":memory:")
    assert path.is_dir()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    time.sleep(0.01)
    stepwell.create(":memory:")
    assert not path.parent.exists()
    assert live.path.is_dir()


def test_without_shared_memory_it_is_in_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "SHARED_MEMORY", str(tmp_path / "none"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert stepwell.create(":memory:").path.parent.parent == tmp_path
