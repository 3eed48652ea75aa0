"""Chunks of items written by worker processes: the one way out for stores, shards and files of other formats.

::

    run_chunks --- chunk ----> worker 0     a pipe each; a worker gets its next chunk when it has answered for the last
               <--- answer ---
               ... counters ...             shared memory: which item it is at, read when it is killed and for the bar

A job writes a chunk and returns what the caller keeps of it. What goes wrong is named by the item it was at. Targets
that appear whole are their caller's: `stepwell.store.layout.built_store`, `built_directory`.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, Protocol, cast

from stepwell.errors import FormatError, StepwellError, WorkerError
from stepwell.progress import make_bar
from stepwell.store.beneath import FULL

__all__ = [
    "ITEM",
    "NUM_BYTES",
    "NUM_COUNTERS",
    "NUM_ITEMS",
    "NUM_STEPS",
    "Failure",
    "ProgressBar",
    "Span",
    "StartMethod",
    "Work",
    "WorkerPool",
    "answer_of",
    "checked_answer",
    "num_workers",
    "run_chunks",
]

StartMethod = Literal["spawn", "forkserver", "fork"]
POLL_SECONDS = 0.2
ORPHAN_POLL_SECONDS = 1.0
JOIN_SECONDS = 5.0
ORPHANED = 1
# of a worker at work, in memory that its parent reads: the item it is at, and how much it has written
ITEM, NUM_ITEMS, NUM_STEPS, NUM_BYTES = range(4)
NUM_COUNTERS = 4


def num_workers(workers: int | None) -> int:
    """Return how many processes are asked for.

    Args:
        workers: None: one a processor; 0 and 1: whoever asks does it itself.

    Raises:
        StepwellError: fewer than none.

    Example:
        >>> num_workers(3), num_workers(None) >= 1
        (3, True)
    """
    if workers is not None and workers < 0:
        raise StepwellError(f"workers={workers}: allowed is 0 and more, or None for one a processor.")
    return len(os.sched_getaffinity(0)) if workers is None else workers


class Span(Protocol):
    """A chunk: what is sent to a worker; its items are consecutive."""

    @property
    def start(self) -> int:
        """The first item."""

    @property
    def stop(self) -> int:
        """One past the last."""


class Work(Protocol):
    """What workers do with each chunk."""

    @property
    def noun(self) -> str:
        """What errors call an item."""

    def write(self, chunk: Any, counters: MutableSequence[int], /) -> Any:
        """Write a chunk.

        Args:
            chunk: it.
            counters: int64 [NUM_COUNTERS], kept up to date: an error is named by the item that it was at.

        Returns:
            What the caller keeps of the chunk, or a `Failure`.
        """


def run_chunks(
    job: Work,
    chunks: Iterable[Span],
    on_answer: Callable[[Any], None] = lambda _: None,
    *,
    workers: int,
    total: int | None,
    unit: str,
    progress: bool | None = None,
    num_done: int = 0,
    start_method: StartMethod = "spawn",
) -> None:
    """Write chunks by worker processes, or in this one, and show how far they are.

    Args:
        job: what to do with each, sent to each worker once.
        chunks: taken as workers become free.
        on_answer: called with what the job returned for each chunk, in the order in which they are done.
        workers: number of processes; 0 or 1: this one.
        total: number of items, None when unknown.
        unit: what an item is, for the bar.
        progress: see `ProgressBar`.
        num_done: items that were written before.
        start_method: how processes are started.

    Raises:
        WorkerError: an item could not be written, or a worker was killed.
        OSError: the disk is full.
    """
    bar = ProgressBar(total, unit, progress)
    try:
        bar.skip(num_done)
        if workers > 1:
            with WorkerPool(job, workers, start_method) as pool:
                pool.run(iter(chunks), lambda: bar.update(pool.counters), on_answer)
            return
        counters = _ShownCounters(bar)
        for chunk in chunks:
            on_answer(checked_answer(answer_of(job, chunk, counters)))
            bar.update([counters])
    finally:
        bar.close()


def answer_of(job: Work, chunk: Span, counters: MutableSequence[int]) -> Any:
    """Return what a job returns for a chunk, or what went wrong, in a form that travels between processes."""
    try:
        return job.write(chunk, counters)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL and not isinstance(error, StepwellError):
            return OSError(error.errno, os.strerror(error.errno or 0), error.filename)
        return Failure.of(counters[ITEM] if counters[ITEM] >= 0 else None, error, job.noun)


def checked_answer(answer: Any) -> Any:
    """Return an answer; raises what went wrong where it says so."""
    if isinstance(answer, OSError):
        raise answer
    if isinstance(answer, Failure):
        raise answer.to_error()
    return answer


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with one item, in a form that travels between processes."""

    item: int | None
    reason: str
    trace: str
    noun: str = "item"

    @classmethod
    def of(cls, item: int | None, error: BaseException, noun: str = "item") -> Failure:
        """Describe an error that is being handled; what a file has wrong needs no trace."""
        trace = "" if isinstance(error, FormatError) else "".join(traceback.format_exception(error))
        return cls(item, f"{type(error).__name__}: {error}", trace, noun)

    def to_error(self) -> WorkerError:
        """Return the error that the caller gets; it carries the trace."""
        where = "a worker could not begin" if self.item is None else f"{self.noun} {self.item} could not be written"
        return WorkerError(f"{where}: {self.reason}\n\n{self.trace}".rstrip())


class ProgressBar:
    """A bar on stderr: items, steps/s and MB/s from the counters of the workers.

    Args:
        total: number of items, None when unknown.
        unit: what an item is.
        wanted: None shows it when tqdm is installed and stderr is a terminal.

    Raises:
        MissingDependencyError: it was asked for and tqdm is not installed.
    """

    def __init__(self, total: int | None, unit: str, wanted: bool | None) -> None:
        self._bar, self._total = make_bar(total, unit, wanted=wanted), total
        self._began = time.perf_counter()
        self._skipped = 0

    def skip(self, num_items: int) -> None:
        """Take in items that were done before."""
        self._skipped += num_items
        self._bar.update(num_items)

    def update(self, counters: Sequence[Sequence[int]]) -> None:
        """Take in the sum of all workers' counters."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        num_steps, num_bytes = (sum(c[place] for c in counters) for place in (NUM_STEPS, NUM_BYTES))
        rates = [f"{num_steps / seconds:,.0f} steps/s"] * bool(num_steps)
        rates += [f"{num_bytes / seconds / 1e6:,.1f} MB/s"] * bool(num_bytes)
        self._bar.set_postfix_str(", ".join(rates), refresh=False)
        done = self._skipped + sum(c[NUM_ITEMS] for c in counters)
        # final rows of a conversion are beyond its steps
        self._bar.update((done if self._total is None else min(done, self._total)) - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()


class _ShownCounters(list[int]):
    """Counters of this process, shown several times a second while a chunk is written."""

    def __init__(self, bar: ProgressBar) -> None:
        super().__init__([-1, *[0] * (NUM_COUNTERS - 1)])
        self._bar, self._due = bar, 0.0

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place, value)
        if place == NUM_ITEMS and time.monotonic() >= self._due:
            self._due = time.monotonic() + POLL_SECONDS
            self._bar.update([self])


class WorkerPool:
    """Processes that run one job's chunks; a context manager that leaves none of them behind.

    Args:
        job: what to do, sent to each worker once.
        num_workers: of processes.
        start_method: how they are started; "fork" is unsafe in a process with threads.

    Raises:
        WorkerError: the job cannot be sent to another process.

    Notes:
        Workers ignore Ctrl-C, which the parent handles, and end by themselves when the parent is killed.
    """

    def __init__(self, job: Work, num_workers: int, start_method: StartMethod) -> None:
        payload: Any = job if start_method == "fork" else _pickled(job, start_method)
        self._workers: list[_Worker] = []
        try:
            for number in range(num_workers):
                self._workers.append(_Worker(start_method, payload if start_method == "fork" else None, number))
            if start_method != "fork":
                # not among what a process is started with: to one that dies of its start that may be written for ever
                for worker in self._workers:
                    worker.begin(payload)
        except BaseException:
            self.__exit__(WorkerError)
            raise

    @property
    def counters(self) -> list[MutableSequence[int]]:
        """The counters of each worker."""
        return [worker.counters for worker in self._workers]

    def run(
        self,
        chunks: Iterator[Span],
        on_poll: Callable[[], None],
        on_answer: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """Write all chunks.

        Args:
            chunks: taken as workers become free.
            on_poll: called several times a second.
            on_answer: called with what the job returned for each chunk, in the order in which they are done.

        Raises:
            WorkerError: an item could not be written, or a worker was killed.
        """
        idle = list(range(len(self._workers)))
        upcoming = next(chunks, None)
        while upcoming is not None or len(idle) < len(self._workers):
            while idle and upcoming is not None:
                self.send(idle.pop(0), upcoming)
                # read ahead: an iterator is read while the workers write
                upcoming = next(chunks, None)
            for number, answer in self.answers():
                on_answer(answer)
                idle.append(number)
            on_poll()

    def send(self, number: int, chunk: Span) -> None:
        """Send a chunk to one worker, which takes up what it is sent in that order; see `answers`.

        Args:
            number: of the worker.
            chunk: it fits into a pipe's buffer, together with the others that the worker has not answered for.

        Raises:
            WorkerError: it cannot be sent, or the worker was killed.
        """
        self._workers[number].send(chunk)

    def answers(self) -> list[tuple[int, Any]]:
        """Wait a moment for the workers that were sent something; returns (worker, answer), at most one a worker.

        Raises:
            WorkerError: an item could not be written, or a worker was killed.
        """
        busy = [worker for worker in self._workers if worker.is_busy]
        wait([handle for worker in busy for handle in worker.handles], timeout=POLL_SECONDS)
        return [(number, worker.answer) for number, worker in enumerate(self._workers) if worker.has_answered()]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in self._workers:
            worker.stop(is_failure=kind is not None)
        for worker in self._workers:
            worker.join()


class _Worker:
    """One process and the parent's end of its pipe."""

    def __init__(self, start_method: StartMethod, payload: Any, number: int) -> None:
        context: Any = multiprocessing.get_context(start_method)
        self.counters: MutableSequence[int] = context.RawArray("q", NUM_COUNTERS)
        self.counters[ITEM] = -1
        self._connection, child = context.Pipe()
        self.answer: Any = None
        self._chunks: deque[Span] = deque()
        self._process = context.Process(
            target=_work,
            # the fork server is between the two, and dies with its own parent
            args=(child, payload, self.counters, None if start_method == "forkserver" else os.getpid()),
            name=f"stepwell-writer-{number}",
            daemon=True,
        )
        self._process.start()
        child.close()

    @property
    def handles(self) -> tuple[Connection, int]:
        """What becomes ready when the worker answers or dies."""
        return self._connection, self._process.sentinel

    @property
    def is_busy(self) -> bool:
        """Whether it has not yet answered for all that it was sent."""
        return bool(self._chunks)

    def begin(self, payload: bytes) -> None:
        """Send the job to a process that was started without it; raises WorkerError when it has died."""
        try:
            self._connection.send_bytes(payload)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death() from None

    def send(self, chunk: Span) -> None:
        if not self._chunks:
            self.counters[ITEM] = -1
        self._chunks.append(chunk)
        try:
            self._connection.send(chunk)
        except BrokenPipeError:
            raise self._death() from None
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise WorkerError(
                f"items {chunk.start} to {chunk.stop - 1} cannot be sent to a worker process: {error}. "
                "Give items of arrays, numbers and strings, or workers=1."
            ) from error

    def has_answered(self) -> bool:
        """Return whether a chunk is written, and keep the answer; raises WorkerError when it cannot be."""
        if not self._chunks:
            return False
        if not self._connection.poll():
            if self._process.is_alive():
                return False
            # it may have answered between the two questions
            if not self._connection.poll():
                raise self._death()
        try:
            self.answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._death() from None
        checked_answer(self.answer)
        self._chunks.popleft()
        return True

    def stop(self, *, is_failure: bool) -> None:
        """Ask the process to end, or end it in the middle of its work."""
        if is_failure:
            self._process.terminate()
        else:
            self._connection.send(None)
        self._connection.close()

    def join(self) -> None:
        """Wait for the process to be gone."""
        self._process.join(JOIN_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _death(self) -> WorkerError:
        self._process.join(JOIN_SECONDS)
        code = self._process.exitcode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        item = self.counters[ITEM]
        if item >= 0:
            hint = "If it was SIGKILL, memory may have run out: use fewer workers or smaller items."
            return WorkerError(f"a worker died at item {item} ({how}). {hint}")
        chunk = self._chunks[0] if self._chunks else None
        at = "it began" if chunk is None else f"item {chunk.start} of items {chunk.start} to {chunk.stop - 1}"
        return WorkerError(
            f"a worker died before {at} ({how}); what it printed says more. "
            'in a script, call this under if __name__ == "__main__":; in a notebook, define the source in a module, '
            "or use workers=1."
        )


def _pickled(job: Work, start_method: str) -> bytes:
    try:
        return pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise WorkerError(
            f"the source cannot be sent to a worker process: {type(error).__name__}: {error}. "
            f'Make it picklable, or give workers=1 or start_method="fork" (now {start_method!r}).'
        ) from error


def _work(connection: Connection, payload: Any, counters: MutableSequence[int], parent: int | None) -> None:
    """Write chunks until the parent sends None; the whole life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        job: Work = pickle.loads(connection.recv_bytes()) if payload is None else payload
    except (EOFError, ConnectionResetError):
        return  # the parent is gone
    except Exception as error:
        connection.send(Failure.of(None, error))
        return
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    while (chunk := _next_chunk(connection, parent)) is not None:
        answer = answer_of(job, chunk, counters)
        try:
            connection.send(answer)
        except BrokenPipeError:
            return


def _end_with(parent: int) -> None:
    """End this process in the middle of its work when the parent is gone: nobody would be told of it."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_POLL_SECONDS)
    os._exit(ORPHANED)


def _next_chunk(connection: Connection, parent: int | None) -> Span | None:
    # a forked sibling may hold the other end of the pipe open: the pipe alone does not say that the parent is gone
    while not connection.poll(ORPHAN_POLL_SECONDS):
        if parent not in (None, os.getppid()):
            return None
    try:
        chunk = cast("Span | None", connection.recv())
        # it may have been sent before the parent was killed
        return chunk if parent in (None, os.getppid()) else None
    except (EOFError, ConnectionResetError):
        return None
