"""Writing a whole data set into a store, by several processes, with the same result for any number of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from pathlib import Path
from typing import Any, cast

from stepwell.errors import SchemaError, StepError, StepwellError
from stepwell.recorders.jobs import NUM_COUNTERS, Failure, Job, read_item
from stepwell.recorders.pool import StartMethod, WorkerPool
from stepwell.recorders.progress import ProgressBar
from stepwell.recorders.sources import Chunk, Items, chunk_length, take_chunks
from stepwell.schema import Feature, Schema
from stepwell.store import Store, create
from stepwell.store.layout import OPEN_SUFFIX, SEGMENTS, list_segments, locked_store

__all__ = ["write_episodes", "write_samples"]

Target = Store | str | os.PathLike[str]


def write_episodes(
    target: Target,
    source: Iterable[Any],
    *,
    schema: Schema | Mapping[str, Feature] | None = None,
    fps: float | None = None,
    workers: int | None = None,
    chunk_episodes: int | None = None,
    progress: bool | None = None,
    start_method: StartMethod = "spawn",
) -> Store:
    """Write every episode of a source, by several processes.

    The store is the same for every number of workers: the source is cut into chunks of consecutive episodes, each
    chunk is a segment, and its place in the store does not depend on who writes it. A failure undoes the whole call:
    the segments it made are removed, and the store, if this call created it. (The schema that it inferred for a store
    without one stays.)

    Args:
        target: a path where nothing is yet, or a store to append to.
        source: what has ``len()`` and ``source[i]`` is read by the workers themselves; any other iterable is read here
            and its episodes are sent to them. An episode is a mapping of name to array [T, ...] or list of T values,
            or an `EpisodeData` with its ends and metadata. Item 0 of a source with a length is read once more, for
            the schema and the chunk size.
        schema: of a store that has none; default: inferred from the first episode.
        fps: steps a second of a new store, if they are evenly spaced.
        workers: number of processes; default one a processor, 0 or 1 writes in this process.
        chunk_episodes: episodes a segment; default: from the number of episodes and the bytes of the first.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.
        start_method: "spawn" (default) and "forkserver" need a picklable source and, in a script, a
            ``if __name__ == "__main__":`` guard; "fork" needs neither and is unsafe in a process with threads.

    Returns:
        The store, refreshed.

    Raises:
        WorkerError: an episode that could not be read or written (the message names it and carries the traceback), a
            worker that was killed, or a source that cannot be sent to a worker.
        StepError: the source is empty.
        StoreExistsError: something is at the path already.

    Example:
        >>> import numpy as np, tempfile
        >>> episodes = [{"action": np.full((length, 2), length, "float32")} for length in (3, 5, 2)]
        >>> store = write_episodes(tempfile.mkdtemp() + "/three.well", episodes, workers=1)
        >>> [episode.length for episode in store]
        [3, 5, 2]

    Notes:
        Ctrl-C ends the workers and undoes the call. If this process itself is killed, finished segments remain.
    """
    return _Recording(target, source, Items(are_samples=False), schema=schema, fps=fps, chunk_items=chunk_episodes).run(
        workers, progress, start_method
    )


def write_samples(
    target: Target,
    source: Iterable[Any],
    *,
    names: Sequence[str] | None = None,
    schema: Schema | Mapping[str, Feature] | None = None,
    fps: float | None = None,
    workers: int | None = None,
    chunk_samples: int | None = None,
    progress: bool | None = None,
    start_method: StartMethod = "spawn",
) -> Store:
    """Write every sample of a data set as an episode of one step, by several processes.

    Args:
        target: see `write_episodes`.
        source: of samples: mappings of name to value, or tuples with ``names``, as image classification data sets give.
        names: of the parts of a tuple.
        schema: see `write_episodes`.
        fps: see `write_episodes`.
        workers: see `write_episodes`.
        chunk_samples: samples a segment; default: from the number of samples and the bytes of the first.
        progress: see `write_episodes`.
        start_method: see `write_episodes`.

    Returns:
        The store, refreshed.

    Raises:
        WorkerError: see `write_episodes`.
        StepError: the source is empty.
        StoreExistsError: something is at the path already.

    Example:
        >>> import numpy as np, tempfile
        >>> samples = [(np.full((16, 16, 3), i, "uint8"), i % 2) for i in range(5)]
        >>> store = write_samples(tempfile.mkdtemp() + "/five.well", samples, names=("image", "label"), workers=1)
        >>> len(store), store[3]["label"].tolist()
        (5, [1])
    """
    items = Items(are_samples=True, names=None if names is None else tuple(names))
    return _Recording(target, source, items, schema=schema, fps=fps, chunk_items=chunk_samples).run(
        workers, progress, start_method
    )


class _Recording:
    """One call: the source, the store, and what of the store it has to take back when it fails."""

    def __init__(
        self,
        target: Target,
        source: Iterable[Any],
        items: Items,
        *,
        schema: Schema | Mapping[str, Feature] | None,
        fps: float | None,
        chunk_items: int | None,
    ) -> None:
        if isinstance(target, Store) and fps not in (None, target.fps):
            raise StepwellError(f"fps={fps}, and the store has {target.fps}: it is fixed when a store is created.")
        if chunk_items is not None and chunk_items < 1:
            raise StepwellError(f"a chunk of {chunk_items} items is none. Give at least 1, or None.")
        if isinstance(source, str | bytes | Mapping):
            raise StepError(f"the source is a {type(source).__name__}. Give a data set or an iterable of episodes.")
        self._items = items
        self._source: Any = source
        self._is_indexable = hasattr(source, "__len__") and hasattr(source, "__getitem__")
        self._num_items: int | None = len(cast("Sized", source)) if self._is_indexable else None
        self._reserved: list[int] = []
        first = self._read_first()
        self._creates = not isinstance(target, Store)
        self._store = target if isinstance(target, Store) else create(target, _as_schema(schema), fps=fps)
        try:
            self._prepare(first, schema, chunk_items)
        except BaseException:
            self._undo()
            raise

    def run(self, workers: int | None, progress: bool | None, start_method: StartMethod) -> Store:
        """Write all of the source; on failure take everything back."""
        bar: ProgressBar | None = None
        try:
            bar = ProgressBar(self._num_items, "samples" if self._items.are_samples else "episodes", progress)
            job = Job(self._store, self._source if self._is_indexable else None, self._items)
            num_workers = self._num_workers(workers)
            if num_workers > 1:
                _run_pool(job, self._chunks(), num_workers, start_method, bar)
            else:
                _run_here(job, self._chunks(), bar)
        except BaseException:
            self._undo()
            raise
        finally:
            if bar is not None:
                bar.close()
        self._store.refresh()
        return self._store

    def _read_first(self) -> Any:
        """Return item 0 without losing it."""
        if self._num_items == 0:
            raise StepError("the source is empty: its len() is 0.")
        try:
            if self._is_indexable:
                return read_item(self._source, 0)
            iterator = iter(self._source)
            first = next(iterator)
        except StopIteration:
            raise StepError("the source is empty: its iterator ended before the first item.") from None
        except Exception as error:
            raise Failure.of(0, error).to_error() from error
        self._source = chain([first], iterator)
        return first

    def _prepare(self, first: Any, schema: Schema | Mapping[str, Feature] | None, chunk_items: int | None) -> None:
        """Fix the schema and the chunks before any worker begins, so that neither depends on who is first."""
        given = _as_schema(schema)
        try:
            found = self._store.ensure_schema(lambda: given or self._items.infer_schema(first))
            length = chunk_length(self._num_items, self._items.num_bytes(first), self._store.record.segment_bytes)
        except StepwellError as error:
            raise Failure.of(0, error).to_error() from error
        if given is not None and found != given:
            raise SchemaError(f"the store has another schema: {found}, not {given}. Leave schema= out.")
        self._chunk_items = length if chunk_items is None else chunk_items

    def _num_workers(self, workers: int | None) -> int:
        if workers is not None and workers < 0:
            raise StepwellError(f"workers={workers}: allowed is 0 and more, or None for one a processor.")
        wanted = len(os.sched_getaffinity(0)) if workers is None else workers
        if self._num_items is None:
            return wanted
        return min(wanted, -(-self._num_items // self._chunk_items))

    def _chunks(self) -> Iterator[Chunk]:
        if self._num_items is not None:
            for start in range(0, self._num_items, self._chunk_items):
                yield Chunk(start, min(start + self._chunk_items, self._num_items), self._reserve())
            return
        for start, items in take_chunks(_named_errors(self._source), self._chunk_items):
            yield Chunk(start, start + len(items), self._reserve(), items)

    def _reserve(self) -> int:
        self._reserved.append(self._store.reserve_ordinals(1))
        return self._reserved[-1]

    def _undo(self) -> None:
        if self._creates:
            self._store.close()
            shutil.rmtree(self._store.path)
        elif self._reserved:
            _remove_segments(str(self._store.path), set(self._reserved))
            self._store.refresh()


def _run_here(job: Job, chunks: Iterator[Chunk], bar: ProgressBar) -> None:
    counters = [0] * NUM_COUNTERS
    for chunk in chunks:
        failure = job.write(chunk, counters)
        if failure is not None:
            raise failure.to_error()
        bar.update([counters])


def _run_pool(job: Job, chunks: Iterator[Chunk], num_workers: int, start_method: StartMethod, bar: ProgressBar) -> None:
    with WorkerPool(job, num_workers, start_method) as pool:
        pool.run(chunks, lambda: bar.update(pool.counters))


def _named_errors(source: Iterator[Any]) -> Iterator[Any]:
    index = 0
    while True:
        try:
            item = next(source)
        except StopIteration:
            return
        except Exception as error:
            raise Failure.of(index, error).to_error() from error
        yield item
        index += 1


def _remove_segments(store: str, ordinals: set[int]) -> None:
    with locked_store(store):
        for name, (ordinal, _) in list_segments(store).items():
            if ordinal in ordinals:
                for suffix in ("", OPEN_SUFFIX):
                    shutil.rmtree(Path(store) / SEGMENTS / (name + suffix), ignore_errors=True)


def _as_schema(schema: Schema | Mapping[str, Feature] | None) -> Schema | None:
    return schema if schema is None or isinstance(schema, Schema) else Schema(schema)
