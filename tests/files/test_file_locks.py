"""Locks that are free when their holder is done with them or dead, whoever was forked meanwhile."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.files.file_locks import FileLock, lock_directory, lock_file

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def is_free(path: Path) -> bool:
    try:
        with lock_file(path, is_waiting=False):
            return True
    except BlockingIOError:
        return False


def status_of_child(do: Callable[[], bool]) -> int:
    """Return 0 where a child of a fork finds that something holds."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if do() else 3)
        finally:
            os._exit(4)
    return os.waitpid(child, 0)[1] >> 8


def test_it_is_held_until_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock_file(path) as lock:
        assert lock.is_held and os.fstat(lock.descriptor).st_ino == path.stat().st_ino and not is_free(path)
    assert is_free(path) and not lock.is_held and lock.descriptor == -1
    lock.release()


def test_of_a_lock_that_is_not_got_nothing_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    with lock_file(tmp_path / "lock"):
        for _ in range(3):
            assert not is_free(tmp_path / "lock")
    assert len(list(Path("/dev/fd").iterdir())) == before


def test_many_may_share_it_and_then_nobody_has_it_alone(tmp_path: Path) -> None:
    with (
        lock_directory(tmp_path, is_shared=True),
        lock_directory(tmp_path, is_shared=True, is_waiting=False),
        pytest.raises(BlockingIOError),
    ):
        lock_directory(tmp_path, is_waiting=False)
    lock_directory(tmp_path, is_waiting=False).release()


def test_it_is_free_though_another_has_a_copy_of_the_descriptor(tmp_path: Path) -> None:
    with lock_file(tmp_path / "lock") as lock:
        copy = os.dup(lock.descriptor)
    try:
        assert is_free(tmp_path / "lock")
    finally:
        os.close(copy)


def test_a_child_of_a_fork_does_not_take_its_parent_s_lock_away(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    def leave_the_block() -> bool:
        was_held = lock.is_held
        lock.release()
        return not was_held

    with lock_file(path) as lock:
        assert status_of_child(leave_the_block) == 0
        assert lock.is_held and not is_free(path)


def test_a_child_of_a_fork_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    path, told, alive = tmp_path / "lock", os.pipe(), os.pipe()
    parent = os.fork()
    if parent == 0:
        lock_file(path)
        if os.fork() == 0:
            os.close(alive[1])
            os.read(alive[0], 1)  # until nobody can write: the parent is dead, and its files are closed
            os.write(told[1], b"free" if is_free(path) else b"held")
        os._exit(0)
    os.waitpid(parent, 0)
    os.close(alive[1])  # not before: of a process that ends, pipes may be closed before locked files are
    assert os.read(told[0], 4) == b"free"
    for descriptor in (*told, alive[0]):
        os.close(descriptor)


def test_a_child_of_a_fork_does_not_keep_what_a_thread_of_its_parent_waits_for(tmp_path: Path) -> None:
    path, done = tmp_path / "lock", os.pipe()
    holder = FileLock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))

    def wait() -> None:
        lock_file(path).release()

    waiting = threading.Thread(target=wait)
    waiting.start()
    child = os.fork()
    if child == 0:
        os.close(done[1])
        os.read(done[0], 1)
        os._exit(0)
    holder.release()
    waiting.join()
    assert is_free(path)
    for descriptor in done:
        os.close(descriptor)
    os.waitpid(child, 0)
