"""The threads: whole batches built ahead of the consumer and handed over in order.

::

    consumer: next() ---- submits jobs, always `num_ahead` under way ----> jobs (one queue, all threads take from it)
       ^                                                                     |
       +---- waits for the oldest job only: order is kept <-- job.done <-- thread builds the job's batches

A job is one batch, or several small ones: a hand-over between threads costs more than a small batch. Threads know the
queue and the job they run, never the pipeline or its iterator, so that dropping the iterator ends them.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

__all__ = ["Inline", "Pipeline"]

Ticket = TypeVar("Ticket")
Draft = TypeVar("Draft")
Product = TypeVar("Product")

JOIN_TIMEOUT_SECONDS = 10.0


class Pipeline(Generic[Ticket, Draft, Product]):
    """An ordered map over tickets by threads, with a bounded number of results ahead.

    Args:
        draft: the tickets of one job -> as many drafts; runs in the threads, as does
        build: draft -> product.
        tickets: what to build, in order; taken from in the consumer's thread only.
        num_threads: 1 or more.
        num_ahead: jobs under way or waiting for the consumer.
        group: tickets a job.

    Notes:
        One consumer. Ends its threads when the tickets are used up, at `close`, when it is garbage collected and when
        the interpreter exits; it waits for the batch that a thread is just building. Of no use in a forked child.
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
    ) -> None:
        self._tickets = tickets
        self._group = group
        self._under_way: deque[_Job[Ticket, Product]] = deque()
        self._ready: deque[Product] = deque()
        self._error: BaseException | None = None
        self._jobs: _Queue = queue.SimpleQueue()
        threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, _stop, self._jobs, threads, os.getpid())
        for number in range(num_threads):
            name = f"stepwell-loader-{number}"
            thread = _Worker(target=_work, args=(self._jobs, draft, build), name=name, daemon=True)
            # known before it runs: Ctrl-C may come while it starts
            threads.append(thread)
            thread.start()
        for _ in range(num_ahead):
            self._submit()

    def take(self) -> Product:
        """Return the next product.

        Raises:
            StopIteration: there are no more, or the pipeline was closed.
            BaseException: what `build` raised for this ticket; the pipeline is closed then.
        """
        while not self._ready:
            self._collect()
        return self._ready.popleft()

    def close(self) -> None:
        """End the threads; what they built and nobody took is dropped. May be called twice."""
        self._finalizer()
        self._tickets = iter(())
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
            self._under_way[0].done.acquire()
            job = self._under_way.popleft()
            self._ready.extend(job.products)
            self._error, job.error = job.error, None
            if self._error is None:
                self._submit()
        except BaseException:
            # Ctrl-C while waiting: going on later could wait for ever, or skip a batch
            self.close()
            raise

    def _submit(self) -> None:
        tickets = list(islice(self._tickets, self._group))
        if tickets:
            job: _Job[Ticket, Product] = _Job(tickets)
            self._under_way.append(job)
            self._jobs.put(job)


class Inline(Generic[Ticket, Draft, Product]):
    """The same without threads: builds when asked.

    Args:
        draft: tickets -> as many drafts.
        build: draft -> product.
        tickets: what to build, in order.
        group: tickets to draft together.
    """

    def __init__(
        self,
        draft: Callable[[Sequence[Ticket]], Iterable[Draft]],
        build: Callable[[Draft], Product],
        tickets: Iterator[Ticket],
        *,
        group: int,
    ) -> None:
        self._draft = draft
        self._build = build
        self._tickets = tickets
        self._group = group
        self._drafts: deque[Draft] = deque()

    def take(self) -> Product:
        """Return the next product.

        Raises:
            StopIteration: there are no more.
            BaseException: what `draft` or `build` raised.
        """
        if not self._drafts:
            tickets = list(islice(self._tickets, self._group))
            if not tickets:
                raise StopIteration
            self._drafts.extend(self._draft(tickets))
        return self._build(self._drafts.popleft())

    def close(self) -> None:
        """Build no more."""
        self._tickets = iter(())
        self._drafts.clear()


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
            self.done.release()


_Queue = queue.SimpleQueue["_Job[Any, Any] | None"]


class _Worker(threading.Thread):
    """A thread of a pipeline."""


def _work(jobs: _Queue, draft: Callable[[Any], Any], build: Callable[[Any], Any]) -> None:
    """Run jobs until told to stop."""
    while (job := jobs.get()) is not None:
        job.run(draft, build)
        # a thread that waits must not keep the last batch from being recycled
        del job


def _stop(jobs: _Queue, threads: list[threading.Thread], pid: int) -> None:
    """Drop the jobs that nobody began, and end the threads."""
    if os.getpid() != pid:
        # a forked child has no such threads, and the queue's lock may have been held when it was forked
        return
    while True:
        try:
            jobs.get_nowait()
        except queue.Empty:
            break
    for _ in threads:
        jobs.put(None)
    if isinstance(threading.current_thread(), _Worker):
        # the garbage collector runs this in the midst of a build: a lock that is held there may be what others wait for
        return
    deadline = time.monotonic() + JOIN_TIMEOUT_SECONDS
    for thread in filter(threading.Thread.is_alive, threads):
        thread.join(max(0.0, deadline - time.monotonic()))
