import gc
import itertools
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.loader.pipeline import Inline, Pipeline, Supplied


def same(job):
    return job


def take_all(source) -> list:
    taken = []
    while True:
        try:
            taken.append(source.take())
        except StopIteration:
            return taken


def each(build):
    """Return a build of groups: the products of their jobs, one after the other."""
    return lambda jobs: (build(job) for job in jobs)


def in_groups(jobs, size):
    jobs = iter(jobs)
    return iter(lambda: list(itertools.islice(jobs, size)), [])


def pipeline(build, jobs, threads=2, ahead=4, *, group=1) -> Pipeline:
    return Pipeline(each(build), in_groups(jobs, group), num_threads=threads, num_ahead=ahead)


@settings(max_examples=25)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(1, 6), st.integers(1, 5))
def test_products_come_in_the_order_of_their_jobs(count: int, threads: int, ahead: int, group: int) -> None:
    def build(job: int) -> int:
        time.sleep(0.0005 * (job % 3))
        return job * job

    expected = [n * n for n in range(count)]
    assert take_all(pipeline(build, range(count), threads, ahead, group=group)) == expected
    assert take_all(Inline(each(build), in_groups(range(count), group))) == expected


def test_no_more_is_built_than_was_asked_ahead() -> None:
    built = []
    source = pipeline(built.append, range(100), threads=2, ahead=3, group=2)
    source.take()
    time.sleep(0.1)
    assert len(built) <= 2 + 3 * 2
    source.close()


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_exception_comes_in_its_place_and_then_it_is_over(threads: int, group: int) -> None:
    def build(job: int) -> int:
        if job == 5:
            raise ValueError("five")
        return job

    inline = Inline(each(build), in_groups(range(50), group))
    source = pipeline(build, range(50), threads, group=group) if threads else inline
    assert [source.take() for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="five"):
        source.take()
    if threads:
        with pytest.raises(StopIteration):
            source.take()


def test_an_exception_before_the_first_product_comes_too() -> None:
    def build(jobs):
        raise KeyError("build")

    source = Pipeline(build, in_groups(range(3), 1), num_threads=2, num_ahead=4)
    with pytest.raises(KeyError, match="build"):
        source.take()


def test_even_an_exit_in_a_thread_reaches_the_consumer() -> None:
    def build(job: int) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        pipeline(build, range(3)).take()


def test_threads_end_with_the_last_product() -> None:
    before = threading.active_count()
    assert take_all(pipeline(same, range(5), threads=3)) == list(range(5))
    assert threading.active_count() == before


def test_threads_end_when_the_pipeline_is_dropped() -> None:
    before = threading.active_count()
    source = pipeline(same, range(1000))
    source.take()
    gone = weakref.ref(source)
    del source
    assert gone() is None
    assert threading.active_count() == before


def test_threads_end_when_ctrl_c_comes_while_one_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread)
        if len(started) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pipeline(same, range(10), threads=3)
    # the traceback, which held the pipeline, is gone
    gc.collect()
    assert threading.active_count() == before


def test_threads_end_when_a_cycle_holds_the_pipeline() -> None:
    before = threading.active_count()
    cycle: list = [pipeline(same, range(1000))]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert threading.active_count() == before


def test_a_closed_pipeline_stops_and_may_be_closed_again() -> None:
    source = pipeline(same, range(1000), group=4)
    source.take()
    source.close()
    source.close()
    with pytest.raises(StopIteration):
        source.take()


def test_a_collector_that_runs_in_one_of_its_threads_does_not_wait_for_itself() -> None:
    holder: list = []

    def build(job: int) -> int:
        if job == 3:
            holder.clear()
        return job

    before = threading.active_count()
    holder.append(pipeline(build, range(4), threads=1, ahead=4))
    deadline = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_waiting_threads_keep_no_product() -> None:
    class Product:
        pass

    source = pipeline(lambda job: Product(), range(2), threads=1)
    gone = [weakref.ref(source.take()), weakref.ref(source.take())]
    assert [ref() for ref in gone] == [None, None]
    source.close()


class Shelf:
    """Has room for a few jobs at a time; each needs what a task makes, and one more is made ahead."""

    def __init__(self, room: int) -> None:
        self.room, self.held, self.made, self.most, self.ends = room, 0, set(), 0, 0
        self.waiting: list[tuple[set[int], Callable[[], object]]] = []
        self.lock = threading.Lock()

    def supply(self, jobs: list, is_oldest: bool) -> Supplied | None:
        if self.held + len(jobs) > self.room and not is_oldest:
            return None
        self.held += len(jobs)
        self.most = max(self.most, self.held)
        tasks = [partial(self.make, n) for n in (*jobs, jobs[-1] + 1)]
        return Supplied(tasks, partial(self.wait_for, set(jobs)))

    def make(self, number: int) -> None:
        time.sleep(0.0005 * (number % 3))
        with self.lock:
            self.made.add(number)
        self.wait_for(set(), lambda: None)

    def wait_for(self, needed: set[int], call: Callable[[], object]) -> None:
        with self.lock:
            self.waiting.append((needed, call))
            ready = [each for each in self.waiting if each[0] <= self.made]
            self.waiting = [each for each in self.waiting if not each[0] <= self.made]
        for _, each in ready:
            each()

    def release(self, jobs: list) -> None:
        self.held -= len(jobs)

    def end(self) -> None:
        self.ends += 1

    def build(self, number: int) -> int:
        # no thread is kept waiting by another one's task
        assert number in self.made
        return number


@settings(max_examples=20)
@given(st.integers(0, 30), st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(1, 8))
def test_a_supply_that_refuses_is_asked_again_and_never_for_the_oldest(
    count: int, threads: int, ahead: int, group: int, room: int
) -> None:
    shelf = Shelf(room)
    groups = in_groups(range(count), group)
    source = Pipeline(each(shelf.build), groups, num_threads=threads, num_ahead=ahead, supply=shelf)
    assert take_all(source) == list(range(count))
    assert shelf.most <= max(room, min(group, count))
    assert (shelf.held, shelf.ends) == (0, 1)
    inline = Shelf(room)
    assert take_all(Inline(each(inline.build), in_groups(range(count), 1), supply=inline)) == list(range(count))
    assert (inline.most, inline.held, inline.ends) == (min(count, 1), 0, 1)


@pytest.mark.parametrize("kind", [Inline, Pipeline])
def test_what_was_supplied_is_taken_back_when_the_source_is_dropped(kind: type) -> None:
    shelf = Shelf(4)
    more = {"num_threads": 2, "num_ahead": 3} if kind is Pipeline else {}
    source = kind(each(shelf.build), in_groups(range(100), 1), supply=shelf, **more)
    source.take()
    assert shelf.ends == 0
    del source
    assert shelf.ends == 1


def test_a_source_says_whether_the_next_product_is_there() -> None:
    go = threading.Event()
    source = pipeline(lambda job: go.wait(60), range(2), threads=1)
    assert not source.is_ready
    go.set()
    source.take()
    while not source.is_ready:
        time.sleep(0.001)
    source.take()
    assert not source.is_ready
    source.close()
