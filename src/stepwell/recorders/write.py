"""Writing a whole data set into a store, by several processes, with the same result for any number of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar, cast

from stepwell.errors import DecodeError, EncodeError, SchemaError, StepError, StepwellError, WorkerError
from stepwell.files.addresses import local_path
from stepwell.recorders.chunks import (
    ITEM,
    NUM_BYTES,
    NUM_ITEMS,
    NUM_STEPS,
    Executor,
    Failure,
    StartMethod,
    Workers,
    run_chunks,
)
from stepwell.recorders.recoded_columns import EpisodeInSegment
from stepwell.recorders.recoding import EpisodeChunk, Recoding, Result, codec_modules, read_results
from stepwell.recorders.resuming import RESULTS, Plan, Unfinished, remove_segments, segment_maker
from stepwell.recorders.sources import Chunk, HasOneStepEpisodes, HasSpans, SourceItems, chunk_length, cut, take_chunks
from stepwell.schema import Feature, Schema
from stepwell.store import Store, create
from stepwell.store.layout import remove_directory, sync_names, target_path
from stepwell.store.records import SEGMENT_BYTES
from stepwell.store.writer import Writer

__all__ = ["recode_episodes", "write_episodes", "write_samples"]

Target = Store | str | os.PathLike[str]


def write_episodes(
    target: Target,
    source: Iterable[Any],
    *,
    schema: Schema | Mapping[str, Feature] | None = None,
    fps: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    chunk_episodes: int | None = None,
    edges: Sequence[int] | None = None,
    resume: bool = False,
    progress: bool | None = None,
    start_method: StartMethod = "spawn",
) -> Store:
    """Write every episode of a source, by several processes.

    The store is the same for every number of workers: the source is cut into chunks of consecutive episodes, each
    chunk is a segment, and its place in the store does not depend on the worker that writes it. A failure undoes the
    whole call: the segments it made are removed, and the store, if this call created it. (The schema that it inferred
    for a store without one stays.) With ``resume`` finished segments stay, and the same call again makes the rest.

    Args:
        target: a path where nothing is yet, or a store to append to.
        source: what has ``len()`` and ``source[i]`` is read by the workers themselves; any other iterable is read here
            and its episodes are sent to them. An episode is a mapping of name to array [T, ...] or list of T values,
            or an `EpisodeData` with its ends and metadata. Item 0 of a source with a length is read once more, for
            the schema and the chunk size, unless both are given. More of what such a source may have, `HasSpans` says.
        schema: of a store that has none; default: inferred from the first episode.
        fps: steps a second of a new store, if they are evenly spaced.
        metadata: of a new store, anything that JSON holds.
        workers: number of processes; default one a processor, 0 or 1 writes in this process.
        executor: where the work is done instead of in ``workers`` processes: `stepwell.ray.RayExecutor`.
        chunk_episodes: episodes a segment; default: from the number of episodes and the bytes of the first.
        edges: int [k], ascending, of a source with a length: episodes that begin a file or shard of it. A segment
            begins at each, so that no two workers read one; what is between two is cut evenly where it is too large.
        resume: keep what is finished when it fails, or is interrupted or killed, for the next call with the same
            arguments (``workers`` may differ): what the store holds in the end is the same, but for the time at which
            each episode was stored. Until then it is a store that opens and shows what was written so far. Needs a
            path, and a source with ``len()``.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.
        start_method: "spawn" (default) and "forkserver" need a picklable source and, in a script, a
            ``if __name__ == "__main__":`` guard; "fork" needs neither and is unsafe in a process with threads.

    Returns:
        The store, refreshed.

    Raises:
        WorkerError: an episode that could not be read or written (the message names it and carries the traceback), a
            worker that was killed, or a source that cannot be sent to a worker.
        StepError: the source is empty.
        StoreExistsError: something is at the path already; with ``resume``: other than what such a call left.
        StoreBusyError: with ``resume``: another process is at it.

    Example:
        >>> import numpy as np, tempfile
        >>> episodes = [{"action": np.full((length, 2), length, "float32")} for length in (3, 5, 2)]
        >>> store = write_episodes(tempfile.mkdtemp() + "/three.well", episodes, workers=1)
        >>> [episode.length for episode in store]
        [3, 5, 2]

    Notes:
        Ctrl-C ends the workers and undoes the call. If this process itself is killed, finished segments remain, and its
        workers end within a second.
    """
    settings = _Settings(_as_schema(schema), fps, metadata, chunk_episodes, resume, _as_edges(edges))
    return _Recording(target, source, SourceItems(are_samples=False), settings).run(
        executor or workers, progress, start_method
    )


def recode_episodes(
    target: str | os.PathLike[str],
    source: Iterable[Any],
    rows: Schema,
    schema: Schema,
    *,
    fps: float | None,
    metadata: Mapping[str, Any],
    workers: Workers,
    chunk_episodes: int | None,
    edges: Sequence[int] | None,
    resume: bool,
    progress: bool | None,
    finish: Callable[[Store], None],
) -> tuple[Store, Recoding, list[Result]]:
    """Write the episodes of a source whose rows come as ``rows`` says, and are stored as ``schema`` says.

    Args:
        finish: called with the store when all of its episodes are there, before it counts as finished. For the others
            see `write_episodes`.

    Returns:
        The store, the work on each chunk, and what became of the features of each; none where rows are stored as they
        come.
    """
    settings = _Settings(schema, fps, metadata, chunk_episodes, resume, _as_edges(edges), rows)
    recording = _Recording(target, source, SourceItems(are_samples=False), settings)
    store = recording.run(workers, progress, "spawn", finish)
    return store, recording.recoding, recording.results


def write_samples(
    target: Target,
    source: Iterable[Any],
    *,
    names: Sequence[str] | None = None,
    schema: Schema | Mapping[str, Feature] | None = None,
    fps: float | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
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
        executor: see `write_episodes`.
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
    items = SourceItems(are_samples=True, names=None if names is None else tuple(names))
    settings = _Settings(_as_schema(schema), fps, None, chunk_samples)
    return _Recording(target, source, items, settings).run(executor or workers, progress, start_method)


@dataclass(frozen=True, slots=True)
class _Settings:
    """What a call asks for, see `write_episodes`."""

    schema: Schema | None
    fps: float | None
    metadata: Mapping[str, Any] | None
    chunk_items: int | None
    resume: bool = False
    edges: tuple[int, ...] | None = None
    # the features as their rows come; None: as they are stored
    rows: Schema | None = None

    def check(self, target: Target) -> None:
        if isinstance(target, Store) and self.fps not in (None, target.fps):
            raise StepwellError(f"fps={self.fps}, and the store has {target.fps}: it is fixed when a store is created.")
        if isinstance(target, Store) and (self.metadata is not None or self.resume):
            name = "resume" if self.resume else "metadata"
            raise StepwellError(f"{name}= is for new stores. Give a path where nothing is yet, not a store.")
        if self.chunk_items is not None and self.chunk_items < 1:
            raise StepwellError(f"a chunk of {self.chunk_items} items is none. Give at least 1, or None.")


class _Recording:
    """One call: the source, the store, and what of the store it has to take back when it fails."""

    def __init__(self, target: Target, source: Iterable[Any], items: SourceItems, settings: _Settings) -> None:
        settings.check(target)
        if isinstance(source, str | bytes | Mapping):
            raise StepError(f"the source is a {type(source).__name__}. Give a data set or an iterable of episodes.")
        self._items, self._settings = items, settings
        self._source: Any = source
        self._is_indexable = hasattr(source, "__len__") and hasattr(source, "__getitem__")
        self._num_items: int | None = len(cast("Sized", source)) if self._is_indexable else None
        if settings.edges is not None and self._num_items is None:
            raise StepError("edges= of an iterator. Give a source with len() and source[i], or leave them out.")
        if not isinstance(target, Store):
            local_path(target)
        self.results: list[Result] = []
        self._reserved: list[int] = []
        self._unfinished: Unfinished | None = None
        self._first: Any = None
        self._read_first()
        self._creates = not isinstance(target, Store)
        if settings.resume and not isinstance(target, Store):
            self._take_up(target)
            return
        self._store = (
            target
            if isinstance(target, Store)
            else create(target, settings.schema, fps=settings.fps, metadata=settings.metadata)
        )
        try:
            self._prepare()
        except BaseException:
            self._undo()
            raise

    @property
    def recoding(self) -> Recoding:
        """The work on rows that come by another codec than they are stored by."""
        before, after, place = self._settings.rows or Schema({}), self._settings.schema or Schema({}), self._store.path
        return Recoding("", str(place), before, after, codec_modules(before, after))

    def run(
        self,
        workers: Workers,
        progress: bool | None,
        start_method: StartMethod,
        finish: Callable[[Store], None] | None = None,
    ) -> Store:
        """Write all of the source; on failure take everything back, or leave what is finished."""
        try:
            spans = self._spans()
            num_items = self._num_items
            if isinstance(self._source, HasSpans):
                self._source.prepare([(start, stop) for _, start, stop in spans])
            recoding = self.recoding if self._settings.rows not in (None, self._settings.schema) else None
            run_chunks(
                _Job(self._store, self._source if self._is_indexable else None, self._items, recoding),
                self._chunks(spans) if num_items is None else list(self._chunks(spans)),
                workers=workers,
                total=num_items,
                unit="samples" if self._items.are_samples else "episodes",
                progress=progress,
                num_done=0 if num_items is None else num_items - sum(stop - start for _, start, stop in spans),
                start_method=start_method,
                target=self._store.path,
            )
            sync_names(str(self._store.path))
            self.results = read_results(str(self._store.path))
            if finish is not None:
                self._store.refresh()
                finish(self._store)
            if self._unfinished is not None:
                self._unfinished.end()
        except BaseException:
            # this error says more than one of the undoing
            with suppress(OSError):
                self._undo()
            raise
        shutil.rmtree(f"{self._store.path}/{RESULTS}", ignore_errors=True)
        self._store.refresh()
        return self._store

    def _read_first(self) -> None:
        """Read item 0 without losing it, where it is needed."""
        if self._num_items == 0:
            raise StepError("the source is empty: its len() is 0.")
        if self._is_indexable and None not in (self._settings.schema, self._settings.chunk_items):
            return
        try:
            if self._is_indexable:
                self._first = _read_item(self._source, 0)
                return
            iterator = iter(self._source)
            self._first = next(iterator)
        except StopIteration:
            raise StepError("the source is empty: its iterator ended before the first item.") from None
        except Exception as error:
            raise Failure.of(0, error).to_error() from error
        self._source = chain([self._first], iterator)

    def _prepare(self) -> None:
        """Fix the schema and the chunks before any worker begins, so that neither depends on which of them is first."""
        given = self._settings.schema
        try:
            found = self._store.ensure_schema(lambda: given or self._items.infer_schema(self._first))
        except StepwellError as error:
            raise Failure.of(0, error).to_error() from error
        if given is not None and found != given:
            raise SchemaError(f"the store has another schema: {found}, not {given}. Leave schema= out.")
        self._chunk_items = self._chunk_length(self._store.record.segment_bytes)

    def _take_up(self, target: str | os.PathLike[str]) -> None:
        """Create the store, or find what an earlier call left of it."""
        if self._num_items is None:
            raise StepError(
                "an iterator cannot be gone on with. Give a source with len() and source[i], or resume=False."
            )
        settings = self._settings
        try:
            schema = settings.schema or self._items.infer_schema(self._first)
        except StepwellError as error:
            raise Failure.of(0, error).to_error() from error
        self._chunk_items = self._chunk_length(SEGMENT_BYTES)
        identity = getattr(self._source, "identity", type(self._source).__qualname__)
        plan = Plan(
            str(identity),
            self._num_items,
            self._chunk_items,
            schema,
            settings.fps,
            dict(settings.metadata or {}),
            settings.edges,
            str(getattr(self._source, "state", "")),
        )
        self._unfinished = Unfinished(target, plan)
        self._store = self._unfinished.store

    def _chunk_length(self, segment_bytes: int) -> int:
        if self._settings.chunk_items is not None:
            return self._settings.chunk_items
        try:
            return chunk_length(
                self._num_items,
                self._items.num_bytes(self._first),
                segment_bytes,
                has_edges=self._settings.edges is not None,
            )
        except StepwellError as error:
            raise Failure.of(0, error).to_error() from error

    def _spans(self) -> list[tuple[int, int, int]]:
        """Return (chunk, start, stop) of what is to be written; nothing of an iterator, which tells as it goes."""
        if self._num_items is None:
            return []
        done: Collection[int] = () if self._unfinished is None else self._unfinished.finished
        spans = cut(self._num_items, self._chunk_items, self._settings.edges)
        return [(chunk, start, stop) for chunk, (start, stop) in enumerate(spans) if chunk not in done]

    def _chunks(self, spans: Sequence[tuple[int, int, int]]) -> Iterator[Chunk]:
        for chunk, start, stop in spans:
            if self._unfinished is not None:
                yield Chunk(start, stop, chunk, tag=self._unfinished.plan.tag(chunk))
            else:
                yield Chunk(start, stop, self._reserve())
        if self._num_items is None:
            for start, items in take_chunks(_named_errors(self._source), self._chunk_items):
                yield Chunk(start, start + len(items), self._reserve(), items)

    def _reserve(self) -> int:
        self._reserved.append(self._store.reserve_ordinals(1))
        return self._reserved[-1]

    def _undo(self) -> None:
        if self._unfinished is not None:
            self._unfinished.leave()
        elif self._creates:
            self._store.close()
            remove_directory(target_path(self._store.path))
        elif self._reserved:
            remove_segments(str(self._store.path), set(self._reserved))
            self._store.refresh()


@dataclass(frozen=True, slots=True)
class _Job:
    """Reads the items of a chunk, of the source or carried by the chunk, and writes them as one segment."""

    noun: ClassVar[str] = "item"
    store: Store
    source: Any
    items: SourceItems
    recoding: Recoding | None = None

    def write(self, chunk: Chunk, counters: MutableSequence[int]) -> None:
        """Write one chunk as one segment."""
        with segment_maker(self.store.path):
            if self.recoding is None:
                self._write_rows(self.store, chunk, counters)
            else:
                self._recode(self.recoding, chunk, counters)
        if isinstance(self.source, HasSpans):
            self.source.forget(chunk.start, chunk.stop)

    def remove(self, chunk: Chunk) -> None:
        """Remove what a killed worker left of a chunk."""
        remove_segments(str(self.store.path), [chunk.ordinal])

    def _recode(self, recoding: Recoding, chunk: Chunk, counters: MutableSequence[int]) -> None:
        """Write the rows of a chunk as they come into a store of their own, and convert that."""
        place = f"{recoding.target}/{RESULTS}/{chunk.ordinal:08d}.well"
        # of a process that was killed
        shutil.rmtree(place, ignore_errors=True)

        def advance(episode: EpisodeInSegment, rows: int) -> None:
            counters[ITEM] = episode.source_index

        with create(place, recoding.before) as rows:
            self._write_rows(rows, chunk, counters)
            rows.refresh()
            if not len(rows):
                return
            try:
                replace(recoding, source=place).write_segment(_whole(rows, chunk), advance)
            except (DecodeError, EncodeError) as error:
                raise type(error)(f"{_label_of(self.source, counters[ITEM])}{error}") from error
        shutil.rmtree(place)

    def _write_rows(self, store: Store, chunk: Chunk, counters: MutableSequence[int]) -> None:
        with store.writer(ordinal=chunk.ordinal, tag=chunk.tag) as writer:
            index, has_many = chunk.start, chunk.carried is None and isinstance(self.source, HasOneStepEpisodes)
            while index < chunk.stop:
                counters[ITEM] = index
                many, has_many = self._write_many(writer, chunk, index) if has_many else (None, False)
                num_items, num_steps, num_bytes = many or self._write_one(writer, chunk, index)
                index += num_items
                counters[NUM_STEPS] += num_steps
                counters[NUM_BYTES] += num_bytes
                counters[NUM_ITEMS] += num_items

    def _write_one(self, writer: Writer, chunk: Chunk, index: int) -> tuple[int, int, int]:
        """Write one item; returns numbers of items, steps and bytes."""
        item = _read_item(self.source, index) if chunk.carried is None else chunk.carried[index - chunk.start]
        # an episode that the source leaves out
        return (1, 0, 0) if item is None else (1, *self.items.write(writer, item))

    def _write_many(self, writer: Writer, chunk: Chunk, index: int) -> tuple[tuple[int, int, int] | None, bool]:
        """Write several items at once; returns the numbers, or None, and whether to try this for the next ones."""
        try:
            columns = self.source.one_step_episodes(index, chunk.stop)
            if columns is None:
                return None, True
            count, num_bytes = self.items.write_one_step_episodes(writer, columns)
        except (ValueError, LookupError):
            # written one by one, they show which of them is bad
            return None, False
        return (count, count, num_bytes), True


def _whole(store: Store, chunk: Chunk) -> EpisodeChunk:
    """Return all episodes of a store of one segment, as those of a chunk."""
    (segment,) = store.segments
    return EpisodeChunk(
        chunk.start,
        chunk.stop,
        chunk.ordinal,
        ((segment.name, tuple(range(len(segment.records)))),),
        tuple(range(chunk.start, chunk.stop)),
        int(segment.records["length"].sum()),
        tag=chunk.tag,
    )


def _label_of(source: Any, index: int) -> str:
    label = getattr(source, "label", None)
    return "" if label is None else f"{label(index)}, "


def _read_item(source: Any, index: int) -> Any:
    try:
        return source[index]
    except IndexError as error:
        raise WorkerError(
            f"the source has no item {index}, although its len() is {len(source)}. Correct __len__ or __getitem__."
        ) from error


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


def _as_edges(edges: Sequence[int] | None) -> tuple[int, ...] | None:
    return None if edges is None else tuple(sorted(map(int, edges)))


def _as_schema(schema: Schema | Mapping[str, Feature] | None) -> Schema | None:
    return schema if schema is None or isinstance(schema, Schema) else Schema(schema)
