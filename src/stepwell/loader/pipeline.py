"""The threads: whole batches built ahead of the consumer and handed over in order.

::

    consumer: next() ---- submits jobs, always `num_ahead` under way ----> tasks (all threads take from them)
       ^                                                                     |
       +---- waits for the oldest job only: order is kept <-- job.done <-- thread builds the job's batches

A job is one batch, or several small ones: a hand-over between threads costs more than a small batch. Threads know the
queue and the task they run, never the pipeline or its iterator, so that dropping the iterator ends them.

Where batches need what other batches need too (decoded blocks, see `stepwell.loader.pool`), a `Supply` says so: its
tasks are put beside the jobs, and a job is put when all it needs is there. No thread ever waits for another one's task,
and what is ready goes before what is loaded ahead.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["Inline", "Pipeline", "Supplied", "Supply", "Task"]

Task = Callable[[], object]

Ticket = TypeVar("Ticket")
Draft = TypeVar("Draft")
Product = TypeVar("Product")

JOIN_TIMEOUT_SECONDS = 10.0


class Supplied(NamedTuple):
    """What a supply answers for the tickets of a job.

    Args:
        tickets: as many, with what they need.
        tasks: what is to be made for this job, then for later ones.
        when_ready: is given a function, and calls it once, in any thread, when all that the job needs has been made.
    """

    tickets: list[Any]
    tasks: list[Task]
    when_ready: Callable[[Task], object]


class Supply(ABC):
    """What the tickets of a pipeline need, made by its threads and shared by its jobs.

    Notes:
        `supply` and `release` run in the consumer's thread, the tasks in any; a task never raises.
    """

    @abstractmethod
    def supply(self, tickets: list[Any], is_oldest: bool) -> Supplied | None:
        """Take what a job needs.

        Args:
            tickets: of the job.
            is_oldest: whether no job is under way; it is not refused then.

        Returns:
            None when there is no room until a job under way is done: it is asked again then.
        """

    @abstractmethod
    def release(self, tickets: list[Any]) -> None:
        """Let go of what the tickets of a job needed, which is done."""

    @abstractmethod
    def end(self) -> None:
        """Take back what was supplied: no thread uses it any more. Called at most once, by any thread."""


class Pipeline(Generic[Ticket, Draft, Product]):
    """An ordered map over tickets by threads, with a bounded number of results ahead.

    Args:
        draft: the tickets of one job -> as many drafts; runs in the threads, as does
        build: draft -> product.
        tickets: what to build, in order; taken from in the consumer's thread only.
        num_threads: 1 or more.
        num_ahead: jobs under way or waiting for the consumer.
        group: tickets a job.
        supply: what tickets need of each other, or None.

    Notes:
        One consumer at a time; `interrupt` alone may be called beside it. Ends its threads when the tickets are used
        up, at `close`, when it is garbage collected and when the interpreter exits; it waits for the batch that a
        thread is just building. Of no use in a forked child.
    """

    def __init__(
        self,
        draft: Callable[[Sequence[Ticket]], Iterable[Draft]],
        build: Callable[[Draft], Product],
        tickets: Iterator[Ticket],
        *,
        num_threads: int,
        num_ahead: int,
        group: int = 1,
        supply: Supply | None = None,
    ) -> None:
        self._run = partial(_Job.run, draft=draft, build=build)
        self._tickets = tickets
        self._group = group
        self._num_ahead = num_ahead
        self._supply = supply
        self._refused: list[Ticket] = []
        self._under_way: deque[_Job[Ticket, Product]] = deque()
        self._ready: deque[Product] = deque()
        self._error: BaseException | None = None
        self._is_interrupted = False
        self._tasks = _Tasks()
        threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, _stop, self._tasks, threads, os.getpid(), supply)
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
        """Return the next product.

        Raises:
            StopIteration: there are no more, or the pipeline was closed.
            BaseException: what `build` raised for this ticket; the pipeline is closed then.
        """
        while not self._ready:
            self._collect()
        return self._ready.popleft()

    def interrupt(self) -> None:
        """Let a consumer that waits in another thread stop waiting, as if there were no more; to be closed then."""
        self._is_interrupted = True
        for job in list(self._under_way):
            job.finish()

    def close(self) -> None:
        """End the threads; what they built and nobody took is dropped. May be called twice."""
        self._finalizer()
        self._tickets = iter(())
        self._refused = []
        self._under_way.clear()
        self._ready.clear()
        self._error = None

    def _collect(self) -> None:
        """Move the products of the oldest job to `_ready`, or raise why there are none."""
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
            job = self._under_way[0]
            # asked after the job was found: `interrupt` finishes each that it finds
            if not self._is_interrupted:
                job.done.acquire()
        except BaseException:
            self.close()
            raise
        if self._is_interrupted:
            raise StopIteration
        try:
            self._under_way.popleft()
            self._ready.extend(job.products)
            if self._supply is not None:
                self._supply.release(job.tickets)
            self._error, job.error = job.error, None
            if self._error is None:
                self._submit()
        except BaseException:
            # Ctrl-C while waiting: going on later could wait for ever, or skip a batch
            self.close()
            raise

    def _submit(self) -> None:
        """Put jobs into the queue until as many are under way as shall be."""
        while len(self._under_way) < self._num_ahead:
            tickets = self._refused or list(islice(self._tickets, self._group))
            if not tickets:
                return
            if self._supply is None:
                job: _Job[Ticket, Product] = _Job(tickets)
                self._under_way.append(job)
                self._tasks.put(partial(self._run, job))
                continue
            supplied = self._supply.supply(tickets, is_oldest=not self._under_way)
            self._refused = [] if supplied is not None else tickets
            if supplied is None:
                return
            job = _Job(supplied.tickets)
            self._under_way.append(job)
            for task in supplied.tasks:
                self._tasks.put(task)
            supplied.when_ready(partial(self._tasks.put_first, partial(self._run, job)))


class Inline(Generic[Ticket, Draft, Product]):
    """The same without threads: builds when asked.

    Args:
        draft: tickets -> as many drafts, taken from it one by one.
        build: draft -> product.
        tickets: what to build, in order.
        group: tickets to draft together.
        supply: what tickets need of each other, or None; asked for a ticket at a time, and before `draft`.

    Attributes:
        is_ready: False: every `take` builds.
    """

    is_ready = False

    def __init__(
        self,
        draft: Callable[[Sequence[Ticket]], Iterable[Draft]],
        build: Callable[[Draft], Product],
        tickets: Iterator[Ticket],
        *,
        group: int,
        supply: Supply | None = None,
    ) -> None:
        self._draft = draft
        self._build = build
        self._tickets = tickets
        self._group = group
        self._supply = supply
        self._drafts: Iterator[Draft] = iter(())
        self._finalizer = None if supply is None else weakref.finalize(self, supply.end)

    def take(self) -> Product:
        """Return the next product.

        Raises:
            StopIteration: there are no more.
            BaseException: what `draft` or `build` raised.
        """
        if self._supply is not None:
            return self._take_supplied(self._supply)
        draft = next(self._drafts, None)
        while draft is None:
            self._drafts = iter(self._draft(self._next_tickets(self._group)))
            draft = next(self._drafts, None)
        return self._build(draft)

    def interrupt(self) -> None:
        """Nothing: who builds waits for nobody."""

    def close(self) -> None:
        """Build no more."""
        self._tickets = iter(())
        self._drafts = iter(())
        if self._finalizer is not None:
            self._finalizer()

    def _take_supplied(self, supply: Supply) -> Product:
        supplied = supply.supply(self._next_tickets(1), is_oldest=True)
        if supplied is None:
            raise RuntimeError("the supply refused the only job.")
        try:
            for task in supplied.tasks:
                task()
            (draft,) = self._draft(supplied.tickets)
            return self._build(draft)
        finally:
            supply.release(supplied.tickets)

    def _next_tickets(self, number: int) -> list[Ticket]:
        tickets = list(islice(self._tickets, number))
        if not tickets:
            self.close()
            raise StopIteration
        return tickets


class _Job(Generic[Ticket, Product]):
    """Some tickets, and what became of them once `done` can be acquired."""

    __slots__ = ("done", "error", "products", "tickets")

    def __init__(self, tickets: list[Ticket]) -> None:
        self.tickets = tickets
        self.products: list[Product] = []
        self.error: BaseException | None = None
        # a bare lock is a tenth of the cost of an Event or a Future, and only one consumer waits for it
        self.done = threading.Lock()
        self.done.acquire()

    def run(self, draft: Callable[[Sequence[Ticket]], Iterable[Draft]], build: Callable[[Draft], Product]) -> None:
        try:
            for each in draft(self.tickets):
                self.products.append(build(each))
        except BaseException as error:
            self.error = error
        finally:
            self.finish()

    def finish(self) -> None:
        """Let the consumer go on; done a second time where it was interrupted."""
        with suppress(RuntimeError):
            self.done.release()


class _Tasks:
    """What the threads are to do: first come, first served, in each of two ranks.

    Notes:
        Every task has a token. Who took one finds a task: there are always as many as tokens that were taken and not
        yet served. Locks of C only, so that Ctrl-C leaves none behind.
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
        """Drop what nobody began, and tell so many threads that there is no more."""
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
    """Run tasks until told to stop."""
    while (task := tasks.get()) is not None:
        task()
        # a thread that waits must not keep the last batch from being recycled
        del task


def _stop(tasks: _Tasks, threads: list[threading.Thread], pid: int, supply: Supply | None) -> None:
    """Drop the tasks that nobody began, end the threads, and give back what was supplied."""
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
    if supply is not None and not any(map(threading.Thread.is_alive, threads)):
        supply.end()
