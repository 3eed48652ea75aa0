"""Ray Data: stores as data sets of episodes, steps or windows, and episodes of a data set as a store.

::

    read(store, "episode")   a row an episode: columns [T, ...]           task: some episodes that follow each other
    read(store, "step")      a row a step
    read(store, "window")    a row a window: the batches of a Loader      task: one rank of it
    dataset.write_datasink(WellDatasink(path))        rows of "episode" only: however Ray cuts blocks, none is torn
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stepwell.errors import StepwellError, StoreExistsError
from stepwell.files.addresses import local_path
from stepwell.formats.opening import open
from stepwell.json_text import parse_json
from stepwell.loader import Loader
from stepwell.ray.executor import import_ray
from stepwell.schema import Schema, infer_columns
from stepwell.store import Store, create
from stepwell.windows import View

__all__ = ["WellDatasink", "read"]

Unit = Literal["episode", "step", "window"]
UNITS = ("episode", "step", "window")
# columns of episodes beside their features
EPISODE, NUM_STEPS, TERMINATED, TRUNCATED, METADATA = "episode", "num_steps", "terminated", "truncated", "metadata"
BLOCK_BYTES = 64 << 20


def read(
    source: Store | str | os.PathLike[str],
    unit: Unit = "episode",
    *,
    columns: Sequence[str] | None = None,
    fields: Mapping[str, Any] | None = None,
    episodes: Any = None,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
    **loading: Any,
) -> Any:
    """Return a store, or a data set that is read in place, as a ``ray.data.Dataset``.

    Args:
        source: a store, a path or an address; workers open it by its path.
        unit: what a row is. "episode": arrays [T, ...] of the features (T + 1 rows of one with a final row),
            ``num_steps``, T, ``episode`` (its number), ``terminated``, ``truncated``, ``metadata`` (JSON). "step":
            features of a step, ``episode`` and ``step``. "window": the fields of a `stepwell.Loader`.
        columns: features that are read; default all. Not of windows.
        fields: of windows; see `stepwell.Loader`.
        episodes: indices, a slice or a mask; default all.
        concurrency: read tasks at a time; see ``ray.data.read_datasource``.
        override_num_blocks: read tasks; default: Ray's choice.
        loading: of windows: options of `stepwell.Loader`, such as ``order="random"``, ``batch_size``, ``seed``. The
            order is the loader's, dealt to the read tasks as to ranks: no shuffle by Ray is needed.

    Raises:
        StepwellError: another unit, or options that it does not have.
        MissingDependencyError: without Ray.
    """
    import_ray()
    import ray.data

    if unit not in UNITS:
        raise StepwellError(f"unit={unit!r}. Allowed: {', '.join(map(repr, UNITS))}.")
    if unit != "window" and (fields is not None or loading):
        raise StepwellError(f'fields and {", ".join(loading) or "options"} of a loader are of unit="window".')
    store = source if isinstance(source, Store) else open(source, mode="r")
    chosen = np.arange(len(store))[slice(None) if episodes is None else episodes]
    datasource = _make_source(str(store.path), unit, columns, fields, np.atleast_1d(chosen).tolist(), loading)
    return ray.data.read_datasource(datasource, concurrency=concurrency, override_num_blocks=override_num_blocks)


def _make_source(  # noqa: PLR0917
    path: str,
    unit: Unit,
    columns: Sequence[str] | None,
    fields: Mapping[str, Any] | None,
    episodes: list[int],
    loading: Mapping[str, Any],
) -> Any:
    from ray.data import Datasource, ReadTask
    from ray.data.block import BlockMetadata

    with open(path, mode="r") as store:
        names = list(store.schema or ()) if columns is None else list(columns)
        lengths = [store[index].length for index in episodes]
        fixed = sum(feature.row_bytes if feature.is_raw else 4096 for feature in (store.schema or {}).values())

    class Source(Datasource):  # type: ignore[misc]
        """A store; a read task is a run of episodes, or a rank of a loader."""

        def get_name(self) -> str:
            return f"Stepwell{unit.capitalize()}"

        def estimate_inmemory_data_size(self) -> int:
            return sum(lengths) * fixed

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[Any]:
            count = max(1, min(parallelism, len(episodes)))
            if unit == "window":
                parts: list[Callable[[], Iterable[Any]]] = [
                    _WindowPart(path, fields, episodes, dict(loading), rank, count) for rank in range(count)
                ]
                rows: list[int | None] = [None] * count
            else:
                cuts = np.linspace(0, len(episodes), count + 1).astype(int).tolist()
                runs = [episodes[start:stop] for start, stop in pairwise(cuts)]
                parts = [_EpisodePart(path, unit, names, run) for run in runs]
                steps = [sum(lengths[start:stop]) for start, stop in pairwise(cuts)]
                rows = [len(run) if unit == "episode" else each for run, each in zip(runs, steps, strict=True)]
            return [
                ReadTask(part, BlockMetadata(num_rows=num, size_bytes=None, input_files=None, exec_stats=None))
                for part, num in zip(parts, rows, strict=True)
            ]

    return Source()


class _EpisodePart:
    """A read task: some episodes, as rows of episodes or of steps."""

    def __init__(self, path: str, unit: Unit, names: list[str], episodes: list[int]) -> None:
        self._path, self._unit, self._names, self._episodes = path, unit, names, episodes

    def __call__(self) -> Iterator[Any]:
        with open(self._path, mode="r") as store:
            make = self._episode if self._unit == "episode" else self._steps
            rows: list[dict[str, Any]] = []
            size = 0
            for index in self._episodes:
                row = make(store, index)
                rows.append(row)
                size += sum(getattr(value, "nbytes", 64) for value in row.values())
                if size > BLOCK_BYTES:
                    yield self._block(rows)
                    rows, size = [], 0
            if rows:
                yield self._block(rows)

    def _episode(self, store: Store, index: int) -> dict[str, Any]:
        episode = store[index]
        row: dict[str, Any] = {name: _array(episode[name]) for name in self._names}
        row |= {EPISODE: index, NUM_STEPS: episode.length}
        row |= {TERMINATED: episode.terminated, TRUNCATED: episode.truncated}
        return row | {METADATA: json.dumps(dict(episode.metadata))}

    def _steps(self, store: Store, index: int) -> dict[str, Any]:
        episode = store[index]
        row: dict[str, Any] = {name: _array(episode[name])[: episode.length] for name in self._names}
        return row | {EPISODE: np.full(episode.length, index), "step": np.arange(episode.length)}

    def _block(self, rows: list[dict[str, Any]]) -> Any:
        from ray.data.block import BlockAccessor

        if self._unit == "step":
            return BlockAccessor.batch_to_block({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
        names = {name: None for row in rows for name in row}
        return BlockAccessor.batch_to_block({name: _column([row.get(name) for row in rows]) for name in names})


class _WindowPart:
    """A read task: the batches of one rank of a loader."""

    def __init__(  # noqa: PLR0917
        self,
        path: str,
        fields: Mapping[str, Any] | None,
        episodes: list[int],
        loading: dict[str, Any],
        rank: int,
        world_size: int,
    ) -> None:
        self._path, self._fields, self._episodes, self._loading = path, fields, episodes, loading
        self._rank, self._world_size = rank, world_size

    def __call__(self) -> Iterator[Any]:
        from ray.data.block import BlockAccessor

        with open(self._path, mode="r") as store:
            view = View(store).select(self._episodes)
            options = {"batch_size": 256, "threads": 1, **self._loading}
            loader = Loader(view, self._fields, rank=self._rank, world_size=self._world_size, **options)
            for batch in loader:
                # the memory of a batch is used again
                yield BlockAccessor.batch_to_block({key: np.array(value) for key, value in batch.items()})


def _array(values: Any) -> Any:
    """Return the rows of a feature as an array; texts and rows of several sizes as one of objects."""
    if isinstance(values, np.ndarray):
        return values
    return _column(list(values))


def _column(values: list[Any]) -> Any:
    out = np.empty(len(values), object)
    for number, value in enumerate(values):
        out[number] = value
    if all(isinstance(value, bool | int | float | np.generic) for value in values):
        return np.array(values)
    return out


def WellDatasink(
    path: str | os.PathLike[str], schema: Schema | Mapping[str, Any] | None = None, *, fps: float | None = None
) -> Any:
    """Return a ``ray.data.Datasink`` that writes rows of whole episodes as a store.

    Args:
        path: of the store, where nothing is yet; on a file system that all nodes share.
        schema: its features; default: inferred from the first episode of each task.
        fps: steps a second.

    Raises:
        StoreExistsError: something is at the path already.
        FormatError: an address; a store is written to local paths.

    Notes:
        Rows are those of ``read(..., unit="episode")``: arrays [T, ...] and ``num_steps``, T; ``terminated``,
        ``truncated`` and ``metadata`` where they are there. Rows of steps are refused. Where writing fails nothing is
        left. A task that Ray tries again replaces what it wrote. Episodes are in the order of tasks.
    """
    import_ray()
    from ray.data import Datasink

    # workers may have another working directory
    path = Path(local_path(path)).absolute()

    class Sink(Datasink):  # type: ignore[misc]
        """Writes episodes, each whole."""

        # Ray tells of every failure, also of one before there was a store of ours: what is at the path then stays
        _is_begun = False

        def on_write_start(self, *_: Any, **__: Any) -> None:
            if Path(path).exists():
                raise StoreExistsError(f"{path} is there already. Choose another path, or remove it.")
            create(path, schema, fps=fps).close()
            self._is_begun = True

        def write(self, blocks: Iterable[Any], ctx: Any) -> int:
            from ray.data.block import BlockAccessor

            count = 0
            with open(path) as store, store.writer(key=f"task-{ctx.task_idx:08d}") as writer:
                for block in blocks:
                    for row in BlockAccessor.for_block(block).iter_rows(public_row_format=True):
                        _write_episode(store, writer, dict(row))
                        count += 1
            return count

        def on_write_complete(self, write_result: Any) -> None:
            if not self._is_begun:
                # there were no rows, of which Ray tells before it writes any
                self.on_write_start()
            self._is_begun = False

        def on_write_failed(self, error: Exception) -> None:
            if self._is_begun:
                self._is_begun = False
                shutil.rmtree(path, ignore_errors=True)

    return Sink()


def _write_episode(store: Any, writer: Any, row: dict[str, Any]) -> None:
    ends = {name: bool(row.pop(name, False)) for name in (TERMINATED, TRUNCATED)}
    metadata = parse_json(row.pop(METADATA, None) or "{}")
    row.pop(EPISODE, None)
    length = row.pop(NUM_STEPS, None)
    sizes = {name: np.shape(value)[0] if np.ndim(value) else None for name, value in row.items()}
    # of a feature with a final row
    last = [name for name, size in sizes.items() if length is not None and size == length + 1]
    if not sizes or any(size != length for name, size in sizes.items() if name not in last):
        raise StepwellError(
            f"a row of {length} steps with columns of {sizes} rows is no episode. Write rows of read(..., "
            'unit="episode"): one an episode, with arrays [num_steps, ...].'
        )
    columns = {name: list(value) if value.dtype == object else value for name, value in row.items()}
    if store.schema is None:
        store.ensure_schema(lambda: infer_columns(columns, final=last))
    writer.add_episode(columns, **ends, **metadata)
