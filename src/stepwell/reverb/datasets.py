"""Data sets of samples: iterables with the verbs that users of tf.data know, and without TensorFlow.

::

    client.samples --> TrajectoryDataset   one ReplaySample an item
                   --> TimestepDataset     one ReplaySample a step
                   --> ReplayDataset       the older name: steps, or sequences of a given length
                         .batch(32).map(f).take(10) --> for sample in ...: numpy; .as_torch(), .as_jax()

Where TensorFlow has been imported before, they are ``tf.data.Dataset``, too: see `stepwell.reverb.tf_data`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import Any, Self

import numpy as np

from stepwell.reverb import tf_data
from stepwell.reverb.client import Client
from stepwell.reverb.replay_sample import ReplaySample, SampleInfo
from stepwell.reverb.specs import TensorSpec, as_spec, import_tree, leaf_array, sizes_of, specs_of
from stepwell.reverb.structured_writer import Config, Patterns, infer_signature

__all__ = ["Dataset", "PatternDataset", "ReplayDataset", "TimestepDataset", "TrajectoryDataset"]


class Dataset:
    """Elements, nests of arrays, from a function that begins to yield them anew.

    Args:
        begin: returns an iterator; given True, one that yields None where nothing came for a while.
        element_spec: a nest of `TensorSpec`, where it is known.
    """

    _is_of_tensorflow = False

    def __init__(self, begin: Callable[[bool], Iterator[Any]], element_spec: Any = None) -> None:
        self._begin, self._spec = begin, element_spec

    @property
    def element_spec(self) -> Any:
        """A nest of `TensorSpec`, where it is known; of TensorFlow's where this is a data set of it."""
        return self._spec

    def __iter__(self) -> Iterator[Any]:
        return self._begin(False)

    def as_numpy_iterator(self) -> Iterator[Any]:
        """Return an iterator over the elements, whose leaves are arrays of numpy."""
        return self._begin(False)

    def _derived(self, begin: Callable[[bool], Iterator[Any]], element_spec: Any) -> Dataset:
        """Return other elements of a known spec: a data set of TensorFlow where this is one."""
        made: Dataset = (tf_data.tf_class(Dataset) if self._is_of_tensorflow else Dataset)(begin, element_spec)
        return made

    def map(self, function: Callable[..., Any], *_: Any, **__: Any) -> Dataset:
        """Return the elements, each as a function gives it; ``num_parallel_calls`` and others are taken and not used.

        A tuple that is no namedtuple is given as several arguments, as tf.data does.
        """

        def apply(element: Any) -> Any:
            is_plain = isinstance(element, tuple) and not hasattr(element, "_fields")
            return function(*element) if is_plain else function(element)

        return Dataset(lambda _: (apply(element) for element in self))

    def filter(self, predicate: Callable[[Any], Any]) -> Dataset:
        """Return the elements of which a function says so."""
        return Dataset(lambda _: (element for element in self if bool(predicate(element))), self._spec)

    def take(self, count: int) -> Dataset:
        """Return the first elements; -1: all."""

        def first(is_polled: bool) -> Iterator[Any]:
            left, elements = count, self._begin(is_polled)
            while left and (element := next(elements, elements)) is not elements:
                left -= element is not None
                yield element

        return self._derived(first, self._spec)

    def skip(self, count: int) -> Dataset:
        """Return the elements behind the first."""
        return Dataset(lambda _: islice(iter(self), count, None), self._spec)

    def batch(self, batch_size: int, drop_remainder: bool = False, **_: Any) -> Dataset:
        """Return elements stacked, so many at a time."""
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: give at least 1.")

        tree = import_tree()

        def stacked(found: list[Any]) -> Any:
            return tree.map_structure(lambda *leaves: np.stack([leaf_array(leaf) for leaf in leaves]), *found)

        def batches(is_polled: bool) -> Iterator[Any]:
            found: list[Any] = []
            for element in self._begin(is_polled):
                if element is None:
                    yield None
                    continue
                found.append(element)
                if len(found) == batch_size:
                    yield stacked(found)
                    found = []
            if found and not drop_remainder:
                yield stacked(found)

        def spec_of(each: TensorSpec) -> TensorSpec:
            shape = None if each.shape is None else (batch_size if drop_remainder else None, *each.shape)
            return TensorSpec(shape, each.dtype, each.name)

        return self._derived(batches, None if self._spec is None else tree.map_structure(spec_of, self._spec))

    def unbatch(self) -> Dataset:
        """Return the rows of the elements, one by one."""

        def rows(_: bool) -> Iterator[Any]:
            tree = import_tree()
            for element in self:
                for row in range(len(tree.flatten(element)[0])):
                    yield tree.map_structure(lambda leaf, row=row: leaf[row], element)

        return Dataset(rows)

    def flat_map(self, function: Callable[[Any], Iterable[Any]]) -> Dataset:
        """Return the elements of what a function gives for each element."""
        return Dataset(lambda _: (inner for element in self for inner in function(element)))

    def interleave(
        self, function: Callable[[Any], Iterable[Any]], cycle_length: int = 1, block_length: int = 1, **_: Any
    ) -> Dataset:
        """Return the elements of what a function gives for each element, of several in turns."""

        def turns(_: bool) -> Iterator[Any]:
            sources = iter(self)
            active = [iter(function(each)) for each in islice(sources, cycle_length)]
            while active:
                for inner in list(active):
                    found = list(islice(inner, block_length))
                    yield from found
                    if len(found) < block_length:
                        active.remove(inner)
                        active += [iter(function(each)) for each in islice(sources, 1)]

        return Dataset(turns)

    def prefetch(self, buffer_size: int = 0) -> Dataset:
        """Return the same: samples are asked for ahead by the data set itself."""
        return self

    def with_options(self, options: Any) -> Dataset:
        """Return the same: options of tf.data say nothing here."""
        return self

    def repeat(self, count: int | None = None) -> Dataset:
        """Return the elements again and again; None: without end."""

        def again(_: bool) -> Iterator[Any]:
            number = 0
            while count is None or count < 0 or number < count:
                yield from self
                number += 1

        return Dataset(again, self._spec)

    def as_torch(self) -> Dataset:
        """Return the elements with tensors of torch, which share the arrays' memory."""
        import torch

        return self._converted(lambda leaf: torch.from_numpy(np.ascontiguousarray(leaf).reshape(np.shape(leaf))))

    def as_jax(self) -> Dataset:
        """Return the elements with arrays of JAX."""
        return self._converted(import_module("jax.numpy").asarray)

    def _converted(self, convert: Callable[[Any], Any]) -> Dataset:
        def leaf(value: Any) -> Any:
            # keys are uint64, which frameworks hardly know, and strings are no numbers
            array = np.asarray(value)
            return value if array.dtype.kind not in "biufc" or array.dtype == np.uint64 else convert(array)

        return Dataset(lambda _: (import_tree().map_structure(leaf, element) for element in self._begin(False)))


class _Source(Dataset):
    """What data sets of samples, and of steps, share: they are TensorFlow's, too, where that has been imported."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        made: Self = super().__new__(tf_data.tf_class(cls))
        return made


class _Samples(_Source):
    """What the data sets of a table share: arguments, and the nest that samples are given as."""

    def __init__(  # noqa: PLR0917
        self,
        server_address: str | Client,
        table: str,
        dtypes: Any,
        shapes: Any,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        tree = import_tree()
        tree.assert_same_structure(dtypes, tree.map_structure_up_to(dtypes, lambda _: 0, shapes), False)
        for name, value, allowed in (
            ("max_in_flight_samples_per_worker", max_in_flight_samples_per_worker, ()),
            ("num_workers_per_iterator", num_workers_per_iterator, (-1,)),
            ("max_samples_per_stream", max_samples_per_stream, (-1,)),
            ("max_samples", max_samples, (-1,)),
        ):
            if value < 1 and value not in allowed:
                raise ValueError(f"{name} ({value}) must be a positive integer" + (" or -1" if allowed else ""))
        if rate_limiter_timeout_ms < -1:
            raise ValueError(f"rate_limiter_timeout_ms ({rate_limiter_timeout_ms}) must be an integer >= -1")
        self._client = server_address if isinstance(server_address, Client) else Client(_text(server_address))
        self._table, self._structure = _text(table), dtypes
        self._specs = [
            TensorSpec(sizes_of(shape), as_spec(_Typed(dtype)).dtype)
            for dtype, shape in zip(tree.flatten(dtypes), tree.flatten_up_to(dtypes, shapes), strict=True)
        ]
        self._drawing = {
            "max_in_flight": max_in_flight_samples_per_worker,
            "rate_limiter_timeout_ms": rate_limiter_timeout_ms,
            "max_samples": max_samples,
        }
        spec = ReplaySample(
            SampleInfo(*(TensorSpec((), np.dtype(dtype)) for dtype in SampleInfo.tf_dtypes())),
            tree.unflatten_as(dtypes, self._specs),
        )
        super().__init__(self._elements, spec)

    @classmethod
    def from_table_signature(  # noqa: PLR0917
        cls,
        server_address: str | Client,
        table: str,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        get_signature_timeout_secs: float | None = None,
        max_samples: int = -1,
    ) -> Self:
        """Return the data set of a table with a signature, which says dtypes and shapes.

        Raises:
            ValueError: no such table, one without a signature, or arguments that cannot be.
            DeadlineExceededError: the server did not tell it within ``get_signature_timeout_secs``.
        """
        client = server_address if isinstance(server_address, Client) else Client(server_address)
        info = client.server_info(get_signature_timeout_secs)
        if table not in info:
            raise ValueError(
                f"Server at {client.server_address} does not contain any table named {table}. Found: "
                f"{', '.join(sorted(info))}."
            )
        signature = info[table].signature
        if signature is None:
            raise ValueError(f"Table {table} at {client.server_address} does not have a signature.")
        tree = import_tree()
        return cls(
            client,
            table,
            tree.map_structure(lambda spec: spec.dtype, signature),
            tree.map_structure(lambda spec: None if spec.shape is None else _Shape(spec.shape), signature),
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )

    def _elements(self, is_polled: bool) -> Iterator[ReplaySample | None]:
        for found in self._samples(is_polled):
            if found is None:
                yield None
            else:
                yield from self._rows(*found)

    def _rows(self, info: SampleInfo, columns: list[Any]) -> Iterator[ReplaySample]:
        """Yield the elements of an item."""
        raise NotImplementedError

    # whether dtypes and shapes are those of a step, so that a signature of items may have a dimension before them
    _is_of_steps = False

    def _samples(self, is_polled: bool) -> Iterator[tuple[SampleInfo, list[Any]] | None]:
        self._check_signature()
        types = SampleInfo.tf_dtypes()
        samples = self._client.samples(self._table, **self._drawing)
        for found in samples.polled() if is_polled else samples:
            if found is None:
                yield None
                continue
            info, columns = found
            if len(columns) != len(self._specs):
                raise ValueError(f"an item of {len(columns)} columns where {len(self._specs)} were expected.")
            yield SampleInfo(*(np.dtype(dtype).type(value) for dtype, value in zip(types, info, strict=True))), columns

    def _check_signature(self) -> None:
        """Raise ValueError where the table has a signature, and that is another."""
        found = self._client.server_info().get(self._table)
        if found is None or found.signature is None:
            # a table that is not there is the draw's error
            return
        signature = specs_of(found.signature)
        if len(signature) != len(self._specs):
            raise ValueError(
                f"Inconsistent number of tensors requested from table '{self._table}'.  Requested {len(self._specs)} "
                f"tensors, but table signature shows {len(signature)} tensors."
            )
        for number, (asked, known) in enumerate(zip(self._specs, signature, strict=True)):
            shapes = [known.shape]
            if self._is_of_steps and known.shape:
                shapes.append(known.shape[1:])
            fits = any(shape is None or asked.admits_shape(shape) for shape in shapes)
            if asked.dtype != known.dtype or not fits:
                raise ValueError(
                    f"Requested incompatible tensor at flattened index {number} from table '{self._table}'.  Requested "
                    f"(dtype, shape): {asked.text}.  Signature (dtype, shape): {known.text}"
                )

    def _nest(self, info: SampleInfo, values: Sequence[Any]) -> ReplaySample:
        for number, (spec, value) in enumerate(zip(self._specs, values, strict=True)):
            array = np.asarray(value)
            found = TensorSpec(array.shape, np.dtype(object) if isinstance(value, bytes) else array.dtype)
            if found.dtype != spec.dtype or not spec.admits_shape(array.shape):
                raise ValueError(
                    f"Received incompatible tensor at flattened index {number} from table '{self._table}'.  "
                    f"Specification has (dtype, shape): {spec.text}.  Tensor has (dtype, shape): {found.text}."
                )
        return ReplaySample(info, import_tree().unflatten_as(self._structure, list(values)))


class TrajectoryDataset(_Samples):
    """Samples of a table, one element an item: `ReplaySample`.

    Args:
        server_address: of the server, or a `Client`.
        table: to draw from.
        dtypes: a nest of the items' dtypes.
        shapes: the same nest of shapes; None in a shape is any size.
        max_in_flight_samples_per_worker: samples that are asked for ahead.
        num_workers_per_iterator: not needed here: a message brings many samples.
        max_samples_per_stream: not needed here.
        rate_limiter_timeout_ms: ends the iteration when nothing may be drawn for so long; -1: it waits without end.
        max_samples: ends it after so many; -1: never.

    Raises:
        ValueError: arguments that cannot be; by iterating, items that are of other dtypes or shapes.
    """

    def _rows(self, info: SampleInfo, columns: list[Any]) -> Iterator[ReplaySample]:
        yield self._nest(info, columns)


class TimestepDataset(_Samples):
    """Samples of a table, one element a step: `ReplaySample`, the same info for all steps of an item.

    The arguments are those of `TrajectoryDataset`; dtypes and shapes are a step's.

    Example:
        >>> from stepwell import reverb
        >>> server = reverb.Server([reverb.Table.queue("queue", 10)])
        >>> client = server.localhost_client()
        >>> with client.trajectory_writer(3) as writer:
        ...     for step in range(3):
        ...         _ = writer.append({"reward": np.float32(step)})
        ...     writer.create_item("queue", 1.0, {"reward": writer.history["reward"][:]})
        >>> samples = TimestepDataset(client, "queue", {"reward": np.float32}, {"reward": ()}, 1, max_samples=1)
        >>> [float(sample.data["reward"]) for sample in samples]
        [0.0, 1.0, 2.0]
        >>> server.stop()
    """

    _is_of_steps = True

    def _rows(self, info: SampleInfo, columns: list[Any]) -> Iterator[ReplaySample]:
        for step in range(len(columns[0])):
            yield self._nest(info, [column[step] for column in columns])


class ReplayDataset(_Samples):
    """Samples of a table, by the name and arguments of Reverb before 2021.

    Args:
        server_address: of the server, or a `Client`.
        table: to draw from.
        dtypes: a nest of the dtypes of a step.
        shapes: the same nest of shapes; of a step, or of a sequence where ``sequence_length`` is given.
        max_in_flight_samples_per_worker: samples that are asked for ahead.
        num_workers_per_iterator: not needed here.
        max_samples_per_stream: not needed here.
        sequence_length: steps of each item.
        emit_timesteps: one element a step; else one an item, with ``sequence_length`` steps.
        rate_limiter_timeout_ms: as of `TrajectoryDataset`.
        max_samples: as of `TrajectoryDataset`.

    Example:
        >>> from stepwell import reverb
        >>> server = reverb.Server([reverb.Table.queue("queue", 10)])
        >>> client = server.localhost_client()
        >>> client.insert([np.float32(5)], {"queue": 1.0})
        >>> samples = ReplayDataset(client, "queue", [np.float32], [()], 1, max_samples=1)
        >>> [float(sample.data[0]) for sample in samples]
        [5.0]
        >>> server.stop()
    """

    def __init__(  # noqa: PLR0917
        self,
        server_address: str | Client,
        table: str,
        dtypes: Any,
        shapes: Any,
        max_in_flight_samples_per_worker: int,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        sequence_length: int | None = None,
        emit_timesteps: bool = True,
        rate_limiter_timeout_ms: int = -1,
        max_samples: int = -1,
    ) -> None:
        super().__init__(
            server_address,
            table,
            dtypes,
            shapes,
            max_in_flight_samples_per_worker,
            num_workers_per_iterator,
            max_samples_per_stream,
            rate_limiter_timeout_ms,
            max_samples,
        )
        if sequence_length is not None and sequence_length < 1:
            raise ValueError(f"sequence_length ({sequence_length}) must be a positive integer or None")
        self._length, self._emits_steps = sequence_length, emit_timesteps
        self._is_of_steps = emit_timesteps

    def _rows(self, info: SampleInfo, columns: list[Any]) -> Iterator[ReplaySample]:
        if self._length is not None and any(len(column) != self._length for column in columns):
            raise ValueError(f"an item of {len(columns[0])} steps where sequence_length={self._length}.")
        if not self._emits_steps:
            repeated = SampleInfo(*(np.repeat(value, len(columns[0])) for value in info))
            yield self._nest(repeated, columns)
            return
        for step in range(len(columns[0])):
            yield self._nest(info, [column[step] for column in columns])


class PatternDataset(_Source):
    """The items that configs of a `StructuredWriter` make of a stream of steps, without a server.

    Args:
        input_dataset: steps, nests of one structure.
        configs: of one structure, for one table.
        respect_episode_boundaries: make no items over several episodes.
        is_end_of_episode: whether a step is the last of its episode.

    Example:
        >>> from stepwell.reverb.structured_writer import create_config, pattern_from_transform
        >>> pairs = pattern_from_transform({"reward": None}, lambda steps: {"last_two": steps["reward"][-2:]})
        >>> steps = [{"reward": np.float32(number)} for number in range(4)]
        >>> items = PatternDataset(steps, [create_config(pairs, "any")], True, lambda step: False)
        >>> [item["last_two"].tolist() for item in items]
        [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    """

    def __init__(
        self,
        input_dataset: Iterable[Any],
        configs: Sequence[Config],
        respect_episode_boundaries: bool,
        is_end_of_episode: Callable[[Any], Any],
    ) -> None:
        self._steps, self._configs = input_dataset, configs
        self._clears, self._ends = respect_episode_boundaries, is_end_of_episode
        spec = getattr(input_dataset, "element_spec", None)
        super().__init__(self._items, None if spec is None else infer_signature(configs, spec))

    def _items(self, _: bool) -> Iterator[Any]:
        tree = import_tree()
        patterns: Patterns[Any] = Patterns(self._configs, lambda cell: cell)
        for step in self._steps:
            made = list(patterns.append(tree.flatten(step), partial_step=False))
            if bool(self._ends(step)):
                made += patterns.end_episode(clear=self._clears)
            for each in made:
                columns = [np.asarray(cells[0]) if squeezed else np.stack(cells) for cells, squeezed in each.columns]
                yield tree.unflatten_as(each.config.pattern, columns)


def pattern_dataset_with_info(
    input_dataset: Iterable[Any],
    configs: Sequence[Config],
    respect_episode_boundaries: bool,
    is_end_of_episode: Callable[[Any], Any],
) -> Dataset:
    """Return a `PatternDataset` of `ReplaySample` whose infos are zeros."""
    items = PatternDataset(input_dataset, configs, respect_episode_boundaries, is_end_of_episode)
    return items.map(lambda item: ReplaySample(SampleInfo.zeros(), item))


class _Shape(tuple[Any, ...]):
    """A shape that dm-tree takes for a leaf."""


class _Typed:
    """A dtype as a spec."""

    shape = ()

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype


def _text(value: Any) -> str:
    """Return a text that may be a tensor of TensorFlow."""
    plain = tf_data.plain_value(value)
    return plain.decode() if isinstance(plain, bytes) else str(plain)
