"""The threads: batches built ahead of the consumer and handed over in order.

::

    consumer: take() ---- submits groups of jobs, `num_ahead` under way ----> tasks (all threads take from them)
       ^                                                                        |
       +---- waits for the oldest group only: order is kept <-- group.done <-- thread builds the group's batches

A group is one batch, or several small ones: a hand-over between threads costs more than a small batch. Threads know the
queue and the task they run, never the pipeline or its iterator, so that dropping the iterator ends them.

Where batches need what other batches need too (decoded blocks, see `stepwell.loader.pool`), a `Supply` says so: its
tasks are put beside the groups, and a group is put when all that it needs is there. No thread ever waits for the task
of another one, and what is ready goes before what is loaded ahead.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

__all__ = ["Inline", "Pipeline", "Supplied", "Supply", "Task"]

Task = Callable[[], object]

Item = TypeVar("Item")
Product = TypeVar("Product")

JOIN_TIMEOUT_SECONDS = 10.0


class Supplied(NamedTuple):
    """What a supply has for a group of jobs."""

    tasks: list[Task]
    when_ready: Callable[[Task], object]


class Supply(Protocol[Item]):
    """What the jobs of a pipeline need, made by its threads and shared by its groups.

    Notes:
        `supply` and `release` run in the consumer's thread, the tasks in any; a task never raises.
    """

    def supply(self, jobs: list[Item], is_oldest: bool) -> Supplied | None:
        """Take what a group of jobs needs; return None when there is no room until a group under way is done.

        A group that was refused is offered again then; the oldest group under way (``is_oldest``) is never refused.
        """

    def release(self, jobs: list[Item]) -> None:
        """Let go of what a group needed, which is done."""

    def end(self) -> None:
        """Take back what was supplied: no thread uses it any more. Called at most once, by any thread."""


class Pipeline(Generic[Item, Product]):
    """An ordered map over jobs by threads, with a bounded number of results ahead.

    Notes:
        One consumer at a time; `interrupt` alone may be called beside it. Ends its threads when the jobs are used
        up, at `close`, when it is garbage collected and when the interpreter exits; it waits for the batch that a
        thread is just building. Of no use in a forked child.
    """

    def __init__(
        self,
        build: Callable[[list[Item]], Iterable[Product]],
        groups: Iterator[list[Item]],
        *,
        num_threads: int,
        num_ahead: int,
        supply: Supply[Item] | None = None,
    ) -> None:
        self._run = partial(_Group.run, build=build)
        self._groups = groups
        self._num_ahead = num_ahead
        self._supply = supply
        self._refused: list[Item] | None = None
        self._under_way: deque[_Group[Item, Product]] = deque()
        self._ready: deque[Product] = deque()
        self._error: BaseException | None = None
        self._is_interrupted = False
        self._tasks = _Tasks()
        threads: list[threading.Thread] = []
        end = None if supply is None else supply.end
        self._finalizer = weakref.finalize(self, _stop, self._tasks, threads, os.getpid(), end)
        for number in range(num_threads):
            name = f"stepwell-loader-{number}"
            thread = _Worker(target=_work, args=(self._tasks,), name=name, daemon=True)
            # known before it runs: Ctrl-C may come while it starts
            threads.append(thread)
            thread.start()
        self._submit()

    @property
    def is_ready(self) -> bool:
        """Whether `take` would not wait."""
        return bool(self._ready) or (bool(self._under_way) and not self._under_way[0].done.locked())

    def take(self) -> Product:
        """Return the next product."""
        while not self._ready:
            self._collect()
        return self._ready.popleft()

    def interrupt(self) -> None:
        """Let a consumer that waits in another thread stop waiting, as if there were no more; to be closed then."""
        self._is_interrupted = True
        for group in list(self._under_way):
            group.finish()

    def close(self) -> None:
        """End the threads; products that were built and not taken are dropped. May be called twice."""
        self._finalizer()
        self._groups = iter(())
        self._refused = None
        self._under_way.clear()
        self._ready.clear()
        self._error = None

    def _collect(self) -> None:
        """Move the products of the oldest group to `_ready`, or raise why there are none."""
        if self._error is not None:
            error = self._error
            self.close()
            try:
                raise error
            finally:
                # the error's traceback knows this frame, and the frame would know the error: a cycle
                del error
        if not self._under_way:
            self.close()
            raise StopIteration
        try:
            group = self._under_way[0]
            # looked at after the group was found: `interrupt` finishes each that it finds
            if not self._is_interrupted:
                group.done.acquire()
        except BaseException:
            self.close()
            raise
        if self._is_interrupted:
            raise StopIteration
        try:
            self._under_way.popleft()
            self._ready.extend(group.products)
            if self._supply is not None:
                self._supply.release(group.jobs)
            self._error, group.error = group.error, None
            if self._error is None:
                self._submit()
        except BaseException:
            # Ctrl-C while waiting: going on later could wait for ever, or skip a batch
            self.close()
            raise

    def _submit(self) -> None:
        """Put groups into the queue until as many are under way as shall be."""
        while len(self._under_way) < self._num_ahead:
            jobs = self._refused or next(self._groups, None)
            if jobs is None:
                return
            group: _Group[Item, Product] = _Group(jobs)
            if self._supply is None:
                self._under_way.append(group)
                self._tasks.put(partial(self._run, group))
                continue
            supplied = self._supply.supply(jobs, not self._under_way)
            self._refused = None if supplied is not None else jobs
            if supplied is None:
                return
            self._under_way.append(group)
            for task in supplied.tasks:
                self._tasks.put(task)
            supplied.when_ready(partial(self._tasks.put_first, partial(self._run, group)))


class Inline(Generic[Item, Product]):
    """The same without threads: builds in `take`.

    Attributes:
        is_ready: False: every `take` builds.
    """

    is_ready = False

    def __init__(
        self,
        build: Callable[[list[Item]], Iterable[Product]],
        groups: Iterator[list[Item]],
        *,
        supply: Supply[Item] | None = None,
    ) -> None:
        self._build, self._groups, self._supply = build, groups, supply
        self._products: Iterator[Product] = iter(())
        self._finalizer = None if supply is None else weakref.finalize(self, supply.end)

    def take(self) -> Product:
        """Return the next product."""
        for product in self._products:
            return product
        for jobs in self._groups:
            self._products = iter(self._build(jobs) if self._supply is None else self._built(jobs, self._supply))
            for product in self._products:
                return product
        self.close()
        raise StopIteration

    def interrupt(self) -> None:
        """Do nothing: the consumer builds, and waits for no other thread."""

    def close(self) -> None:
        """Build no more."""
        self._groups, self._products = iter(()), iter(())
        if self._finalizer is not None:
            self._finalizer()

    def _built(self, jobs: list[Item], supply: Supply[Item]) -> list[Product]:
        """Return the products of a group that needs something."""
        supplied = supply.supply(jobs, True)
        if supplied is None:
            raise RuntimeError("the supply refused the only group.")
        try:
            for task in supplied.tasks:
                task()
            return list(self._build(jobs))
        finally:
            supply.release(jobs)


class _Group(Generic[Item, Product]):
    """Some jobs, and what became of them once `done` can be acquired."""

    __slots__ = ("done", "error", "jobs", "products")

    def __init__(self, jobs: list[Item]) -> None:
        self.jobs = jobs
        self.products: list[Product] = []
        self.error: BaseException | None = None
        # a bare lock is a tenth of the cost of an Event or a Future, and only one consumer waits for it
        self.done = threading.Lock()
        self.done.acquire()

    def run(self, build: Callable[[list[Item]], Iterable[Product]]) -> None:
        try:
            self.products.extend(build(self.jobs))
        except BaseException as error:
            self.error = error
        finally:
            self.finish()

    def finish(self) -> None:
        """Let the consumer go on; done a second time where it was interrupted."""
        with suppress(RuntimeError):
            self.done.release()


class _Tasks:
    """What the threads are to do: first come, first served, in each of two priorities.

    Notes:
        Every task has a token, counted by a queue. A thread that took a token finds a task: there are always as many
        as tokens that were taken and not yet served. Locks of C only, so that Ctrl-C leaves none behind.
    """

    __slots__ = ("_first", "_others", "_tokens")

    def __init__(self) -> None:
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._first: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._others: queue.SimpleQueue[Task] = queue.SimpleQueue()

    def put(self, task: Task) -> None:
        """Add a task."""
        self._others.put(task)
        self._tokens.put(True)

    def put_first(self, task: Task) -> None:
        """Add a task that goes before those of `put`."""
        self._first.put(task)
        self._tokens.put(True)

    def get(self) -> Task | None:
        """Wait for a task; None: there will be no more."""
        if not self._tokens.get():
            return None
        try:
            return self._first.get_nowait()
        except queue.Empty:
            return self._others.get_nowait()

    def end(self, num_threads: int) -> None:
        """Drop the tasks that were not begun, and let so many threads end."""
        while True:
            try:
                self._tokens.get_nowait()
            except queue.Empty:
                break
        for _ in range(num_threads):
            self._tokens.put(False)


class _Worker(threading.Thread):
    """A thread of a pipeline."""


def _work(tasks: _Tasks) -> None:
    """Run tasks until there are no more."""
    while (task := tasks.get()) is not None:
        task()
        # a thread that waits must not keep the last batch from being recycled
        del task


def _stop(tasks: _Tasks, threads: list[threading.Thread], pid: int, end: Task | None) -> None:
    """Drop the tasks that were not begun, end the threads, and give back what was supplied."""
    if os.getpid() != pid:
        # a forked child has no such threads, and the queue's lock may have been held when it was forked
        return
    tasks.end(len(threads))
    if isinstance(threading.current_thread(), _Worker):
        # the garbage collector runs this in the midst of a build: a lock that is held there may be what others wait for
        return
    deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
    for thread in filter(threading.Thread.is_alive, threads):
        thread.join(max(0.0, deadline - time.monotonic()))
    if end is not None and not any(map(threading.Thread.is_alive, threads)):
        end()
