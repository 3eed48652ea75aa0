"""`run_chunks`: a job on runs of items, in this process or in several, with the same answers for every number of them.

::

    parent --- chunk ----> worker 0     a pipe each; a worker holds one chunk, or a few whose places are not known yet
           <-- answer ----
           --- place ----> worker 0     `PlacedJob` only: the answers are placed in the order of the chunks
           ... counters ...             shared memory: the item at which a worker is, and how much it has written
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
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sized
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, Protocol, TypeAlias, cast

from stepwell.errors import DiskFullError, StepwellError, WorkerError
from stepwell.process import available_cpus
from stepwell.progress import RateBar
from stepwell.store.beneath import disk_error

__all__ = [
    "ITEM",
    "NUM_BYTES",
    "NUM_ITEMS",
    "NUM_STEPS",
    "ChunkJob",
    "ChunkSpan",
    "ChunkTask",
    "ChunkWorker",
    "Executor",
    "Failure",
    "PlacedJob",
    "ProcessExecutor",
    "StartMethod",
    "Workers",
    "num_workers",
    "run_chunks",
]

StartMethod = Literal["spawn", "forkserver", "fork"]
Workers: TypeAlias = "int | Executor | None"
# the counters of a worker: the item at which it is, and how much it has written
ITEM, NUM_ITEMS, NUM_STEPS, NUM_BYTES = range(4)
NUM_COUNTERS = 4
# chunks that a worker of a `PlacedJob` has encoded, or has still to encode
MAX_ENCODED = 3
POLL_SECONDS = 0.2
SHOW_SECONDS = 0.1
ORPHAN_POLL_SECONDS = 1.0
JOIN_SECONDS = 5.0
ORPHANED = 1


class ChunkSpan(Protocol):
    """A chunk: consecutive items. It fits into a pipe's buffer, unless it carries its items and the job places none."""

    @property
    def start(self) -> int:
        """The first item."""

    @property
    def stop(self) -> int:
        """One past the last."""


class ChunkJob(Protocol):
    """The work on each chunk; it is sent to each worker once, by pickle, and used there by one thread.

    Where what a killed worker left of a chunk would not be replaced by writing it again, ``remove(chunk)`` removes it.
    """

    @property
    def noun(self) -> str:
        """The kind of item, for messages."""

    def write(self, chunk: Any, counters: MutableSequence[int], /) -> Any:
        """Write a chunk, keep the counters up to date, and return its answer, which travels between processes."""


class PlacedJob(ChunkJob, Protocol):
    """A job in two steps: ``write`` keeps a chunk in memory and answers with its sizes; ``put`` gets its places."""

    def put(self, chunk: Any, places: Any, counters: MutableSequence[int], /) -> Any:
        """Write a chunk that this process keeps to its places; returns its answer."""


def num_workers(workers: Workers) -> int:
    """Return the number of processes: one a processor for None; 0 and 1 mean this process; or of an executor's workers.

    Example:
        >>> num_workers(3), num_workers(None) >= 1
        (3, True)
    """
    if workers is not None and not isinstance(workers, int):
        return workers.num_workers
    if workers is not None and workers < 0:
        raise StepwellError(f"workers={workers}: allowed is 0 and more, or None for one a processor.")
    return available_cpus() if workers is None else workers


def run_chunks(
    job: ChunkJob,
    chunks: Iterable[ChunkSpan],
    *,
    workers: Workers,
    total: int | None,
    unit: str,
    progress: bool | None = None,
    num_done: int = 0,
    start_method: StartMethod = "spawn",
    place: Callable[[Any], Any] | None = None,
    target: str | os.PathLike[str] | None = None,
) -> list[Any]:
    """Run a job on all chunks and return its answers in the order of the chunks.

    Args:
        job: a `PlacedJob` where ``place`` is given.
        chunks: read as workers become free. Those of one ``home`` (an int attribute) go to one worker, in order.
        workers: see `num_workers`; or an `Executor`, which does all of it elsewhere.
        total: number of items, for the bar; None when unknown.
        unit: of the bar.
        progress: see `stepwell.progress.make_bar`.
        num_done: items that were written before.
        start_method: of the processes; "fork" is unsafe in a process with threads.
        place: returns the places of an answer; called in the parent, in the order of the chunks.
        target: the directory that the job writes to, which workers of other machines must see.

    Raises:
        WorkerError: an item that could not be written, a worker that was killed, or a job that cannot be sent.
        DiskFullError: the disk is full.

    Notes:
        Workers ignore Ctrl-C, which the parent handles, and end by themselves when the parent is killed. After any
        failure none is left.
    """
    is_here = workers is None or isinstance(workers, int)
    executor = ProcessExecutor(workers, start_method) if is_here else cast("Executor", workers)
    count = executor.num_workers
    if isinstance(chunks, Sized):
        count = min(count, len(chunks))
    bar = RateBar(total, unit, progress)
    try:
        if num_done:
            bar.show(num_done, 0, 0)
        if count <= 1 and is_here:
            return _run_here(job, chunks, place, _ShownCounters(bar, num_done))
        with _Pool(executor, executor.begin(job, max(count, 1), target)) as pool:
            return pool.run(iter(chunks), place, lambda counters: _show(bar, counters, num_done))
    finally:
        bar.close()


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with one item, in a form that travels between processes."""

    item: int | None
    reason: str
    trace: str
    noun: str = "item"
    # the number of the error
    full_disk: int | None = None

    @classmethod
    def of(cls, item: int | None, error: BaseException, noun: str = "item") -> Failure:
        """Describe an error that is being handled; errors of stepwell's say enough without a trace."""
        trace = "" if isinstance(error, StepwellError) else "".join(traceback.format_exception(error))
        full = disk_error(error, 0, str(error.filename or "a file")) if isinstance(error, OSError) else error
        if isinstance(full, DiskFullError):
            return cls(item, str(full), "", noun, full.errno)
        return cls(item, f"{type(error).__name__}: {error}", trace, noun)

    def to_error(self) -> WorkerError | DiskFullError:
        """Return the error for the caller: of a full disk as such, any other names the item."""
        if self.full_disk is not None:
            full = DiskFullError(self.reason)
            full.errno = self.full_disk
            return full
        where = "a worker could not begin" if self.item is None else f"{self.noun} {self.item} could not be written"
        return WorkerError(f"{where}: {self.reason}\n\n{self.trace}".rstrip())


def _run_here(
    job: ChunkJob, chunks: Iterable[ChunkSpan], place: Callable[[Any], Any] | None, counters: _ShownCounters
) -> list[Any]:
    answers = []
    for number, chunk in enumerate(chunks):
        answer = _done_here(job, ChunkTask(number, chunk), counters)
        if place is not None:
            answer = _done_here(job, ChunkTask(number, chunk, is_placed=True, places=place(answer)), counters)
        answers.append(answer)
        counters.show()
    return answers


def _done_here(job: ChunkJob, task: ChunkTask, counters: MutableSequence[int]) -> Any:
    try:
        return task.run(job, counters)
    except Exception as error:
        raise Failure.of(counters[ITEM], error, job.noun).to_error() from error


def _show(bar: RateBar, counters: Iterable[MutableSequence[int]], num_done: int) -> None:
    _, num_items, num_steps, num_bytes = map(sum, zip(*counters, strict=True))
    bar.show(num_done + num_items, num_steps, num_bytes)


class _ShownCounters(list[int]):
    """The counters of this process, which move the bar when they change."""

    def __init__(self, bar: RateBar, num_done: int) -> None:
        super().__init__([0] * NUM_COUNTERS)
        self._bar, self._num_done, self._shown_at = bar, num_done, time.perf_counter()

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place, value)
        if place == NUM_ITEMS and time.perf_counter() - self._shown_at > SHOW_SECONDS:
            self.show()

    def show(self) -> None:
        self._shown_at = time.perf_counter()
        _show(self._bar, [self], self._num_done)


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """What a worker is to do: write a chunk, or put one that it keeps to its places."""

    number: int
    chunk: Any
    is_placed: bool = False
    places: Any = None
    # a worker that died may have begun it
    is_again: bool = False

    def run(self, job: Any, counters: MutableSequence[int]) -> Any:
        """Do it, and return the answer."""
        if self.is_placed:
            return job.put(self.chunk, self.places, counters)
        if self.is_again and hasattr(job, "remove"):
            job.remove(self.chunk)
        return job.write(self.chunk, counters)


class ChunkWorker(Protocol):
    """One worker of an `Executor`: does its tasks one after the other, and keeps none of them from being done twice.

    Attributes:
        tasks: sent and not answered, in order; `send` adds to it, `run_chunks` removes what was answered.
        num_chunks: that are not finished; kept by `run_chunks`.
        counters: where it is, and how much it has written: ITEM, NUM_ITEMS, NUM_STEPS, NUM_BYTES.
        answer: of the oldest task, once `has_answered` says so.
    """

    tasks: deque[ChunkTask]
    num_chunks: int
    counters: MutableSequence[int]
    answer: Any

    def send(self, task: ChunkTask, /) -> None:
        """Give it another task, ``task.run(job, counters)``."""

    def has_answered(self) -> bool:
        """Return whether the oldest task is done; raises the error that it ended with."""

    def stop(self, *, is_failure: bool) -> None:
        """Let it end, or end it in the middle of its work."""

    def join(self) -> None:
        """Wait until it is gone."""


class Executor(Protocol):
    """Where the chunks of a job are done: in processes of this machine, or elsewhere; see `stepwell.ray.RayExecutor`.

    A chunk that is done again writes the same bytes to the same place.

    Example:
        >>> executor: Executor = ProcessExecutor(workers=2)
        >>> executor.num_workers
        2
    """

    @property
    def num_workers(self) -> int:
        """Workers that it begins at most."""

    def begin(self, job: ChunkJob, count: int, target: str | os.PathLike[str] | None, /) -> list[ChunkWorker]:
        """Begin at most ``count`` workers of a job, that see the directory ``target``; leave none on failure."""

    def wait(self, workers: list[ChunkWorker], seconds: float, /) -> None:
        """Wait until one of these has answered, for so long at most."""


class ProcessExecutor:
    """Processes of this machine.

    Args:
        workers: number of them; None: one a processor.
        start_method: see `stepwell.write_episodes`.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> store = tiny_store(f"{folder}/a.well", lengths=[3, 5])
        >>> executor = ProcessExecutor(workers=1, start_method="fork")
        >>> stepwell.convert(store, f"{folder}/b.well", {"observation.image": "delta"}, executor=executor).num_steps
        8
    """

    def __init__(self, workers: Workers = None, start_method: StartMethod = "spawn") -> None:
        self.num_workers, self._start_method = num_workers(workers), start_method

    def begin(self, job: ChunkJob, count: int, target: str | os.PathLike[str] | None, /) -> list[ChunkWorker]:
        """Begin processes of a job."""
        method = self._start_method
        payload: Any = job if method == "fork" else _pickled(job, method)
        workers: list[_Worker] = []
        try:
            for number in range(count):
                workers.append(_Worker(method, payload if method == "fork" else None, number))
            if method != "fork":
                # not among a process's arguments: if it dies while it starts, writing them could block for ever
                for worker in workers:
                    worker.begin(payload)
        except BaseException:
            _end(workers, is_failure=True)
            raise
        return list(workers)

    def wait(self, workers: list[Any], seconds: float, /) -> None:
        """Wait until one of these has answered, or died."""
        wait([handle for worker in workers for handle in worker.handles], timeout=seconds)


def _end(workers: Iterable[ChunkWorker], *, is_failure: bool) -> None:
    workers = list(workers)
    for worker in workers:
        worker.stop(is_failure=is_failure)
    for worker in workers:
        worker.join()


class _Pool:
    """The workers of a job; a context manager that leaves none of them behind."""

    def __init__(self, executor: Executor, workers: list[ChunkWorker]) -> None:
        self._executor, self._workers = executor, workers
        self._answers: dict[int, Any] = {}
        # sizes that wait for those before them: number of the chunk to worker, task and answer
        self._measured: dict[int, tuple[ChunkWorker, ChunkTask, Any]] = {}
        self._num_placed = 0

    def run(
        self,
        chunks: Iterator[ChunkSpan],
        place: Callable[[Any], Any] | None,
        show: Callable[[list[MutableSequence[int]]], None],
    ) -> list[Any]:
        """Run the job on all chunks; returns the answers."""
        number, upcoming = 0, next(chunks, None)
        while upcoming is not None or any(worker.num_chunks for worker in self._workers):
            while upcoming is not None and (worker := self._free(upcoming, 1 if place is None else MAX_ENCODED)):
                worker.num_chunks += 1
                worker.send(ChunkTask(number, upcoming))
                # read ahead: an iterator is read while the workers write
                number, upcoming = number + 1, next(chunks, None)
            for worker, task, answer in self._wait():
                self._take(worker, task, answer, place)
            show([worker.counters for worker in self._workers])
        return [self._answers[each] for each in range(number)]

    def _free(self, chunk: ChunkSpan, limit: int) -> ChunkWorker | None:
        """Return the worker for a chunk: that of its home, or the one with the fewest; None while it has enough."""
        home: int | None = getattr(chunk, "home", None)
        workers = self._workers
        worker = min(workers, key=lambda each: each.num_chunks) if home is None else workers[home % len(workers)]
        return worker if worker.num_chunks < limit else None

    def _take(self, worker: ChunkWorker, task: ChunkTask, answer: Any, place: Callable[[Any], Any] | None) -> None:
        if place is None or task.is_placed:
            worker.num_chunks -= 1
            self._answers[task.number] = answer
            return
        self._measured[task.number] = worker, task, answer
        while self._num_placed in self._measured:
            owner, measured, sizes = self._measured.pop(self._num_placed)
            owner.send(ChunkTask(measured.number, measured.chunk, is_placed=True, places=place(sizes)))
            self._num_placed += 1

    def _wait(self) -> list[tuple[ChunkWorker, ChunkTask, Any]]:
        """Wait a moment for busy workers; returns at most one answer a worker."""
        self._executor.wait([worker for worker in self._workers if worker.tasks], POLL_SECONDS)
        return [(worker, worker.tasks.popleft(), worker.answer) for worker in self._workers if worker.has_answered()]

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _end(self._workers, is_failure=kind is not None)


class _Worker:
    """One process and the parent's end of its pipe."""

    def __init__(self, start_method: StartMethod, payload: Any, number: int) -> None:
        context: Any = multiprocessing.get_context(start_method)
        self.counters: MutableSequence[int] = context.RawArray("q", NUM_COUNTERS)
        self.counters[ITEM] = -1
        self._connection, child = context.Pipe()
        self.answer: Any = None
        # sent and not answered, in order; and the chunks that are not finished
        self.tasks: deque[ChunkTask] = deque()
        self.num_chunks = 0
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

    def begin(self, payload: bytes) -> None:
        """Send the job to a process that was started without it."""
        try:
            self._connection.send_bytes(payload)
        except (BrokenPipeError, ConnectionResetError):
            raise self._death() from None

    def send(self, task: ChunkTask) -> None:
        if not self.tasks:
            self.counters[ITEM] = -1
        self.tasks.append(task)
        try:
            self._connection.send(task)
        except BrokenPipeError:
            raise self._death() from None
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            chunk = task.chunk
            raise WorkerError(
                f"items {chunk.start} to {chunk.stop - 1} cannot be sent to a worker process: {error}. "
                "Give items of arrays, numbers and strings, or workers=1."
            ) from error

    def has_answered(self) -> bool:
        """Return whether the oldest task is done, and keep its answer."""
        if not self.tasks:
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
        if isinstance(self.answer, Failure):
            raise self.answer.to_error()
        return True

    def stop(self, *, is_failure: bool) -> None:
        """Let the process end, or end it in the middle of its work."""
        if is_failure:
            self._process.terminate()
        else:
            self._connection.send(None)
        self._connection.close()

    def join(self) -> None:
        """Wait until the process is gone."""
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
        chunk = self.tasks[0].chunk if self.tasks else None
        at = "it began" if chunk is None else f"item {chunk.start} of items {chunk.start} to {chunk.stop - 1}"
        return WorkerError(
            f"a worker died before {at} ({how}); what it printed says more. "
            'in a script, call this under if __name__ == "__main__":; in a notebook, define the source in a module, '
            "or use workers=1."
        )


def _pickled(job: ChunkJob, start_method: str) -> bytes:
    try:
        return pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise WorkerError(
            f"the source cannot be sent to a worker process: {type(error).__name__}: {error}. "
            f'Make it picklable, or give workers=1 or start_method="fork" (now {start_method!r}).'
        ) from error


def _work(connection: Connection, payload: Any, counters: MutableSequence[int], parent: int | None) -> None:
    """Do tasks until the parent sends None; the whole life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        job: ChunkJob = pickle.loads(connection.recv_bytes()) if payload is None else payload
    except (EOFError, ConnectionResetError):
        return  # the parent is gone
    except Exception as error:
        connection.send(Failure.of(None, error))
        return
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    while (task := _next_task(connection, parent)) is not None:
        try:
            answer: Any = task.run(job, counters)
        except Exception as error:
            answer = Failure.of(counters[ITEM] if counters[ITEM] >= 0 else None, error, job.noun)
        try:
            connection.send(answer)
        except BrokenPipeError:
            return


def _end_with(parent: int) -> None:
    """End this process in the middle of its work when the parent is gone."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_POLL_SECONDS)
    os._exit(ORPHANED)


def _next_task(connection: Connection, parent: int | None) -> ChunkTask | None:
    # a forked sibling may hold the other end of the pipe open: the pipe alone does not say that the parent is gone
    while not connection.poll(ORPHAN_POLL_SECONDS):
        if parent not in (None, os.getppid()):
            return None
    try:
        task = cast("ChunkTask | None", connection.recv())
        # it may have been sent before the parent was killed
        return task if parent in (None, os.getppid()) else None
    except (EOFError, ConnectionResetError):
        return None
