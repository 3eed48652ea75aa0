"""Threads of a loader never outlive it, and loaders work on both sides of a fork and in a spawned process."""

import gc
import itertools
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from stepwell import Field
from stepwell.loader import Loader
from stepwell.store import Store

from .conftest import loader_threads

FIELDS = {"number": "number", "image": Field("observation.image", [0, 1])}


def make(store: Store, **changes) -> Loader:
    return Loader(store, FIELDS, **{"batch_size": 4, "threads": 2, **changes})


def numbers_of(loader: Loader) -> list[int]:
    return [n for batch in loader for n in batch["number"].tolist()]


def test_no_thread_is_left_after_a_loop(store: Store) -> None:
    numbers_of(make(store))
    assert not loader_threads()


def test_no_thread_is_left_after_leaving_a_loop_early(store: Store) -> None:
    for _ in make(store, epochs=None):
        break
    assert not loader_threads()


def test_no_thread_is_left_when_an_iterator_is_dropped(store: Store) -> None:
    iterator = iter(make(store, epochs=None))
    next(iterator)
    assert len(loader_threads()) == 2
    del iterator
    assert not loader_threads()


def test_no_thread_is_left_when_an_iterator_was_never_used(store: Store) -> None:
    iter(make(store))
    assert not loader_threads()


def test_no_thread_is_left_when_a_cycle_is_collected(store: Store) -> None:
    cycle: dict = {"iterator": iter(make(store, epochs=None))}
    cycle["self"] = cycle
    next(cycle["iterator"])
    del cycle
    gc.collect()
    assert not loader_threads()


def test_no_thread_is_left_after_an_exception_in_the_loop(store: Store) -> None:
    def train() -> None:
        for _ in make(store, epochs=None):
            raise RuntimeError("in the training step")

    with pytest.raises(RuntimeError):
        train()
    assert not loader_threads()


@pytest.mark.parametrize("threads", [0, 2])
def test_ctrl_c_while_waiting_ends_the_iteration_and_its_threads(store: Store, threads: int) -> None:
    def slow(batch: dict) -> dict:
        time.sleep(0.02)
        return batch

    loader = make(store, transform=slow, threads=threads, epochs=None)
    iterator = iter(loader)
    next(iterator)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        while True:
            next(iterator)
    timer.join()
    assert list(itertools.islice(iterator, 1)) == []
    assert not loader_threads()


@pytest.mark.parametrize(
    "ending", ["", "sys.exit(0)", "raise KeyboardInterrupt", "threading.Thread(target=next, args=(it,)).start()"]
)
def test_the_interpreter_exits_while_batches_are_being_built(store: Store, ending: str) -> None:
    script = f"""
        import sys, threading, stepwell
        from stepwell.loader import Loader
        store = stepwell.open({str(store.path)!r}, mode="r")
        loader = Loader(store, batch_size=4, threads=3, epochs=None)
        it = iter(loader)
        cycle = [it]; cycle.append(cycle)
        print(next(it)["number"].tolist(), flush=True)
        {ending}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.stdout == "[0, 1, 2, 3]\n"
    if "raise" in ending:
        assert done.stderr.strip().endswith("KeyboardInterrupt")
    else:
        assert (done.returncode, done.stderr) == (0, "")


def in_child(function) -> str:
    """Run a function in a forked child and return what it returned, or its error."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = str(function())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, answer.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        answer = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0
    return answer


@pytest.mark.parametrize("threads", [0, 2])
def test_a_loader_works_on_after_a_fork_in_parent_and_child(store: Store, numbers: list[int], threads: int) -> None:
    loader = make(store, threads=threads)
    assert numbers_of(loader) == numbers
    assert in_child(lambda: numbers_of(loader)) == str(numbers)
    assert numbers_of(loader) == numbers


@pytest.mark.parametrize("threads", [0, 2])
def test_an_iterator_is_refused_in_a_forked_child_and_goes_on_in_the_parent(
    store: Store, numbers: list[int], threads: int
) -> None:
    loader = make(store, threads=threads)
    iterator = iter(loader)
    first = next(iterator)["number"].tolist()
    assert in_child(lambda: next(iterator)).startswith("LoaderError: this iterator is of process")
    assert in_child(lambda: (iterator.close(), "closed")[1]) == "closed"
    assert first + [n for batch in iterator for n in batch["number"].tolist()] == numbers


def test_a_loader_works_in_a_spawned_process(store: Store, numbers: list[int]) -> None:
    script = """
        import pickle, sys
        loader = pickle.load(sys.stdin.buffer)
        print([n for batch in loader for n in batch["number"].tolist()])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        input=pickle.dumps(make(store)),
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert done.stdout.decode() == f"{numbers}\n", done.stderr.decode()


def test_a_loader_that_is_iterated_while_threads_run_survives_a_fork(store: Store, numbers: list[int]) -> None:
    busy = iter(make(store, epochs=None))
    next(busy)
    for _ in range(5):
        assert in_child(lambda: numbers_of(make(store))) == str(numbers)
    busy.close()
