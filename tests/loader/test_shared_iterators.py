"""Several threads take from one iterator: each batch goes to one of them, all of them end, and an error reaches all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from stepwell import Loader, pooled
from stepwell.errors import LoaderError
from stepwell.store import Store

from .conftest import NUM_STEPS, loader_threads

# of a test that hangs: the suite's own limit is minutes
MOST_SECONDS = 60.0


def consume(batches: Iterable[Any], count: int, meet: Callable[[], Any] = lambda: None) -> tuple[list[Any], list[Any]]:
    """Take from one iterator in several threads; returns the batches of each, and the errors that ended them."""
    taken: list[list[Any]] = [[] for _ in range(count)]
    errors: list[BaseException | None] = [None] * count
    begin = threading.Barrier(count)

    def take(number: int) -> None:
        begin.wait()
        try:
            for batch in batches:
                taken[number].append(batch)
                meet()
        except Exception as error:
            errors[number] = error

    threads = [threading.Thread(target=take, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MOST_SECONDS)
        assert not thread.is_alive(), "a thread hangs"
    return taken, [error for error in errors if error is not None]


@pytest.mark.parametrize("order", ["random", pooled(20_000)])
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("count", [2, 5, 40])
def test_each_batch_goes_to_one_thread_and_all_end(store: Store, order: Any, threads: int, count: int) -> None:
    loader = Loader(store, {"number": "number"}, batch_size=3, order=order, threads=threads)
    expected = [batch["number"].tolist() for batch in loader]
    loader.epoch = 0
    taken, errors = consume(iter(loader), count)
    assert not errors
    found = sorted((batch.index, batch["number"].tolist()) for each in taken for batch in each)
    assert found == list(enumerate(expected))
    # the iteration is over, as after one consumer
    assert loader.state_dict()["epoch"] == 1
    assert sum(len(batch["number"]) for batch in loader) == NUM_STEPS


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_in_the_middle_reaches_all(store: Store, threads: int) -> None:
    def refuse(batch: dict[str, Any]) -> dict[str, Any]:
        if 2001 in batch["number"] or 3007 in batch["number"]:
            raise ValueError("not this one")
        return batch

    batches = iter(Loader(store, {"number": "number"}, batch_size=4, threads=threads, transform=refuse))
    taken, errors = consume(batches, 4)
    assert len(errors) == 4
    assert all(isinstance(error, LoaderError) and "not this one" in str(error) for error in errors)
    # the thread that got it has its cause
    assert sum(isinstance(error.__cause__, ValueError) for error in errors) == 1
    assert sorted(batch.index for each in taken for batch in each) == list(range(sum(map(len, taken))))
    assert not loader_threads()


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_closing_ends_all(store: Store, threads: int) -> None:
    batches = iter(Loader(store, {"number": "number"}, batch_size=2, epochs=None, threads=threads))
    counted = iter(range(10))
    taken, errors = consume(batches, 3, lambda: next(counted, None) is None and batches.close())
    assert not errors
    assert 10 <= sum(map(len, taken)) <= 20
    with pytest.raises(StopIteration):
        next(batches)
    assert not loader_threads()


def test_closing_ends_one_that_waits_for_a_batch_that_never_comes(store: Store) -> None:
    waits, goes_on = threading.Event(), threading.Event()

    def wait(batch: dict[str, Any]) -> dict[str, Any]:
        waits.set()
        assert goes_on.wait(MOST_SECONDS)
        return batch

    batches = iter(Loader(store, {"number": "number"}, batch_size=2, threads=1, transform=wait))
    ended = threading.Event()

    def take() -> None:
        list(batches)
        ended.set()

    consumer = threading.Thread(target=take, daemon=True)
    consumer.start()
    assert waits.wait(MOST_SECONDS)
    closer = threading.Thread(target=batches.close, daemon=True)
    closer.start()
    # closing waits for the batch that is being built, the consumer does not
    assert ended.wait(MOST_SECONDS)
    goes_on.set()
    closer.join(MOST_SECONDS)
    consumer.join(MOST_SECONDS)
    assert not loader_threads()
