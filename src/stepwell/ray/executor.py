"""Chunks of `stepwell.write_episodes`, `stepwell.convert` and the exports, done by actors of Ray.

::

    driver  run_chunks --- task ----> actor 0, on any node      the job is in Ray's object store once
                       <-- answer --      an actor that dies is begun anew, and gets its tasks again:
                                          what a chunk writes does not depend on who writes it, or how often
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, MutableSequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.errors import MissingDependencyError, StepwellError, WorkerError
from stepwell.recorders.chunks import ITEM, ChunkJob, ChunkTask, ChunkWorker, Failure

__all__ = ["RayExecutor", "import_ray"]

NUM_COUNTERS = 4
SEEN_SECONDS = 120.0


class RayExecutor:
    """Actors of Ray that do the chunks of a job: give it as ``executor=``.

    Args:
        num_workers: actors; default: one for each processor that Ray has.
        resources_per_worker: what each asks of Ray, ``{"CPU": 1}`` by default; other names than "CPU" and "GPU" are
            Ray's custom resources.
        max_retries: actors of one worker that may die before it is a WorkerError.
        address: of a cluster, as of ``ray.init``; None: the one that this process is connected to, or a local one.

    Raises:
        MissingDependencyError: without Ray.
        StepwellError: numbers that cannot be; when it is used, a node that does not see the target's directory.

    Notes:
        The target must lie on a file system that all nodes see. What is written is the same as by one process.
    """

    def __init__(
        self,
        num_workers: int | None = None,
        *,
        resources_per_worker: Mapping[str, float] | None = None,
        max_retries: int = 3,
        address: str | None = None,
    ) -> None:
        self._ray = import_ray()
        if not self._ray.is_initialized():
            self._ray.init(address=address, include_dashboard=False, log_to_driver=False)
        if num_workers is None:
            num_workers = int(self._ray.cluster_resources().get("CPU", 1))
        if num_workers < 1 or max_retries < 0:
            raise StepwellError(
                f"RayExecutor(num_workers={num_workers}, max_retries={max_retries}): allowed are at least 1 worker "
                "and 0 retries."
            )
        self.num_workers, self._max_retries = num_workers, max_retries
        resources = dict(resources_per_worker or {"CPU": 1})
        self._options = {
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "resources": resources,
        }

    def begin(self, job: ChunkJob, count: int, target: str | os.PathLike[str] | None, /) -> list[ChunkWorker]:
        """Begin actors of a job that see the directory ``target``."""
        actor = self._ray.remote(_Actor).options(**self._options)
        try:
            kept = self._ray.put(job)
        except Exception as error:
            raise WorkerError(
                f"the source cannot be sent to Ray's workers: {type(error).__name__}: {error}. Make it picklable."
            ) from error
        # what is kept by one worker until its place is known would be lost with it
        retries = 0 if hasattr(job, "put") else self._max_retries
        begin = partial(actor.remote, kept, _working_directory())
        workers = [_RayWorker(self._ray, begin, retries) for _ in range(count)]
        try:
            self._check(workers, None if target is None else Path(target) / f".seen-{os.urandom(8).hex()}")
        except BaseException:
            for worker in workers:
                worker.stop(is_failure=True)
            raise
        return list(workers)

    def wait(self, workers: list[Any], seconds: float, /) -> None:
        """Wait until one of these has answered, or died."""
        self._ray.wait([worker.oldest for worker in workers], num_returns=1, timeout=seconds)

    def _check(self, workers: list[_RayWorker], nonce: Path | None) -> None:
        """Raise WorkerError when Ray does not begin all of them in time, StepwellError where one sees other files.

        Args:
            workers: that were asked for.
            nonce: a file to write and to have read, in the target; None: there is none.
        """
        ray, text = self._ray, os.urandom(16).hex()
        if nonce is not None:
            nonce.write_text(text)
        try:
            refs = [worker.read(os.devnull if nonce is None else str(nonce)) for worker in workers]
            begun, _ = ray.wait(refs, num_returns=len(refs), timeout=SEEN_SECONDS)
            if len(begun) < len(refs):
                options = {key: value for key, value in self._options.items() if value}
                raise WorkerError(
                    f"Ray has begun {len(begun)} of {len(refs)} workers in {SEEN_SECONDS:.0f} s, each of {options}. It "
                    f"has {ray.cluster_resources()}, of which {ray.available_resources()} are free. Ask for fewer "
                    "workers, RayExecutor(num_workers), or for less, resources_per_worker={...}."
                )
            found = ray.get(refs)
        except ray.exceptions.RayError as error:
            raise WorkerError(f"a worker of Ray could not begin: {error}") from error
        finally:
            if nonce is not None:
                nonce.unlink()
        if nonce is None:
            return
        blind = sorted({node for node, seen in found if seen != text})
        if blind:
            raise StepwellError(
                f"{nonce.parent} is not what this process sees there on node {', '.join(blind)}. Write to a directory "
                "of a file system that all nodes share."
            )


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        # it was removed: relative paths name nothing here, and nothing there
        return None


class _Actor:
    """Does tasks of one job, in a process of Ray."""

    def __init__(self, job: ChunkJob, directory: str | None) -> None:
        # so that a source's relative paths name what they do for the driver; a node may lack the directory
        with suppress(OSError):
            os.chdir(directory or os.curdir)
        self._job = job
        self._counters: MutableSequence[int] = [-1, 0, 0, 0]

    def run(self, task: ChunkTask) -> tuple[Any, list[int]]:
        """Do a task; returns the answer, or a `Failure`, and the counters."""
        self._counters[ITEM] = -1
        try:
            answer: Any = task.run(self._job, self._counters)
        except Exception as error:
            item = self._counters[ITEM]
            answer = Failure.of(item if item >= 0 else None, error, self._job.noun)
        return answer, list(self._counters)

    def read(self, path: str) -> tuple[str, str]:
        """Return the name of the node, and what is in a file there."""
        try:
            return os.uname().nodename, Path(path).read_text()
        except OSError:
            return os.uname().nodename, ""


class _RayWorker:
    """An actor, and those that come in its place."""

    def __init__(self, ray: Any, begin: Callable[[], Any], retries: int) -> None:
        self._ray, self._begin, self._retries = ray, begin, retries
        self.tasks: deque[ChunkTask] = deque()
        self.num_chunks = 0
        self.counters: MutableSequence[int] = [-1, *[0] * (NUM_COUNTERS - 1)]
        self.answer: Any = None
        # counts of actors that died
        self._before = [0] * NUM_COUNTERS
        self._refs: deque[Any] = deque()
        self._actor = begin()

    @property
    def oldest(self) -> Any:
        """What becomes ready when the oldest task is done, or cannot be."""
        return self._refs[0]

    def read(self, path: str) -> Any:
        """Ask for what is in a file."""
        return self._actor.read.remote(path)

    def send(self, task: ChunkTask, /) -> None:
        """Give it another task."""
        self.tasks.append(task)
        try:
            self._refs.append(self._actor.run.remote(task))
        except TypeError as error:
            chunk = task.chunk
            raise WorkerError(
                f"items {chunk.start} to {chunk.stop - 1} cannot be sent to a worker of Ray: {error}. Give items of "
                "arrays, numbers and strings."
            ) from error

    def has_answered(self) -> bool:
        """Return whether the oldest task is done; an actor that died is begun anew, and does its tasks again."""
        if not self._refs or not self._ray.wait([self._refs[0]], timeout=0)[0]:
            return False
        try:
            self.answer, counters = self._ray.get(self._refs[0])
        except self._ray.exceptions.RayError as error:
            self._begin_anew(error)
            return False
        self._refs.popleft()
        self.counters = [counters[ITEM], *map(sum, zip(self._before[1:], counters[1:], strict=True))]
        if isinstance(self.answer, Failure):
            raise self.answer.to_error()
        return True

    def _begin_anew(self, error: Exception) -> None:
        if not self._retries:
            chunk = self.tasks[0].chunk
            raise WorkerError(
                f"a worker of Ray died at item {chunk.start} of items {chunk.start} to {chunk.stop - 1}, and was begun "
                f"anew as often as max_retries says: {error}"
            ) from error
        self._retries -= 1
        # one that is only out of reach would write the same chunk beside the new one
        self._ray.kill(self._actor)
        self._before = list(self.counters)
        self._actor = self._begin()
        self.tasks = deque(replace(task, is_again=True) for task in self.tasks)
        self._refs = deque(self._actor.run.remote(task) for task in self.tasks)

    def stop(self, *, is_failure: bool) -> None:
        """End the actor."""
        self._ray.kill(self._actor)

    def join(self) -> None:
        """Nothing is left to wait for."""


def import_ray() -> Any:
    """Return Ray, which tells nobody of its use; MissingDependencyError without it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError.of("ray", "ray") from error
    return ray
