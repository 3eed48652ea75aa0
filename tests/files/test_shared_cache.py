"""Values that threads share: each made once, bounded, also after a fork."""

import os
import threading
import time

import pytest

from stepwell.files.shared_cache import SharedCache


def counting_cache(max_size: int = 100) -> tuple[SharedCache[int, bytes], list[int]]:
    return SharedCache(max_size, size_of=len), []


def test_value_is_made_once_by_threads_that_want_it_at_once() -> None:
    cache, made = counting_cache()
    found: list[bytes] = []

    def make() -> bytes:
        made.append(1)
        time.sleep(0.05)
        return b"value"

    threads = [threading.Thread(target=lambda: found.append(cache.get(1, make))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert found == [b"value"] * 6


def test_values_used_last_are_kept_within_the_size() -> None:
    cache, _ = counting_cache(100)
    for key in range(5):
        cache.get(key, lambda: bytes(30))
        cache.get(0, lambda: bytes(30))
    assert cache.size == 90
    assert [cache.find(key) is not None for key in range(5)] == [True, False, False, True, True]


def test_value_larger_than_everything_is_kept_alone() -> None:
    cache, _ = counting_cache(100)
    cache.get(1, lambda: bytes(30))
    cache.get(2, lambda: bytes(300))
    assert (len(cache), cache.size) == (1, 300)
    cache.get(3, lambda: bytes(3))
    assert (len(cache), cache.size) == (1, 3)


def test_what_making_raises_is_raised_and_the_next_one_tries_again() -> None:
    cache, _ = counting_cache()
    with pytest.raises(ZeroDivisionError):
        cache.get(1, lambda: bytes(1 // 0))
    assert cache.get(1, lambda: b"good") == b"good"


def test_only_the_value_that_is_meant_is_dropped() -> None:
    cache, _ = counting_cache()
    old = cache.get(1, lambda: bytes(3))
    cache.drop(1, old)
    assert (len(cache), cache.size) == (0, 0)
    new = cache.get(1, lambda: bytes(4))
    cache.drop(1, old)
    assert cache.find(1) is new


def test_child_of_a_fork_goes_on_though_a_thread_held_the_lock() -> None:
    cache, _ = counting_cache()
    cache.get(1, lambda: b"kept")
    with cache._lock:
        child = os.fork()
        if child == 0:
            is_right = cache.get(1, lambda: b"") == b"kept" and cache.get(2, lambda: b"new") == b"new"
            os._exit(0 if is_right and cache.size == 7 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_child_of_a_fork_does_not_wait_for_a_value_that_its_parent_was_making() -> None:
    cache, _ = counting_cache()
    is_making, may_end = threading.Event(), threading.Event()

    def make() -> bytes:
        is_making.set()
        may_end.wait(10)
        return b"parent"

    thread = threading.Thread(target=lambda: cache.get(1, make))
    thread.start()
    is_making.wait(10)
    child = os.fork()
    if child == 0:
        os._exit(0 if cache.get(1, lambda: b"child") == b"child" else 1)
    assert os.waitpid(child, 0)[1] == 0
    may_end.set()
    thread.join()
