"""FFCV's loader over stepwell's: pipelines, orders, and batches that are built ahead.

::

    TraversalOrder.sample_order(epoch) ──> numbers of samples
         │                                      │ batches
         └──> stepwell.Loader (threads) ──> values, ids ──> Graph.run (one thread, in order) ──> queue ──> next()
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum, auto, unique
from functools import partial
from queue import SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, OrderError, SchemaError
from stepwell.ffcv.graph import Graph, Source
from stepwell.ffcv.pipeline import Compiler, PipelineSpec, torch_of
from stepwell.ffcv.reader import MemoryManager, Reader, reader_of
from stepwell.loader import Loader as WindowLoader
from stepwell.loader.loader import BatchIterator
from stepwell.order import BoundOrder, Order
from stepwell.process import available_cpus

__all__ = [
    "ORDER_MAP",
    "ORDER_TYPE",
    "EpochIterator",
    "Loader",
    "OrderOption",
    "QuasiRandom",
    "Random",
    "Sequential",
    "TraversalOrder",
]

DEFAULT_OS_CACHE = os.environ.get("FFCV_DEFAULT_CACHE_PROCESS", "0") in ("", "0")
MAX_SEED = 2**31 - 1


@unique
class OrderOption(Enum):
    """How an epoch visits the samples."""

    SEQUENTIAL = auto()
    RANDOM = auto()
    QUASI_RANDOM = auto()


class TraversalOrder(ABC):
    """An order; a subclass of one's own is given to `Loader` as ``order``, with ``order_kwargs``.

    Attributes:
        loader: whose order it is.
        indices: the samples, in their order.
        seed: of the loader.
        distributed: whether each process of torch's group has a part.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.indices, self.seed, self.distributed = loader.indices, loader.seed, loader.distributed

    @abstractmethod
    def sample_order(self, epoch: int) -> Any:
        """Return the numbers of the samples of an epoch, of this process."""

    def of_rank(self, order: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return this process's part, as DistributedSampler: every n-th, some twice so that all have as many."""
        if not self.distributed:
            return order
        group = torch_of().distributed
        rank, number = group.get_rank(), group.get_world_size()
        total = -(-len(order) // number) * number
        return np.resize(order, total)[rank::number] if len(order) else order


class Sequential(TraversalOrder):
    """The samples as they come."""

    def sample_order(self, epoch: int) -> Any:
        """Return the samples; see `TraversalOrder.sample_order`."""
        return self.of_rank(self.indices)


class Random(TraversalOrder):
    """The samples at random, each once: the permutation that FFCV draws for a seed and an epoch."""

    def sample_order(self, epoch: int) -> Any:
        """Return the samples in random order; see `TraversalOrder.sample_order`."""
        if not self.distributed:
            return np.random.default_rng(self.seed + epoch).permutation(self.indices)
        torch = torch_of()
        generator = torch.Generator()
        generator.manual_seed(self.seed + epoch)
        return self.of_rank(self.indices[torch.randperm(len(self.indices), generator=generator).numpy()])


class QuasiRandom(TraversalOrder):
    """The samples at random out of a few pages at a time, each once, so that few pages are read at once.

    As many pages as two batches have samples are open; each sample is the next one, in random order, of one of them.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self._pages = loader.reader.pages[self.indices.astype(np.int64)]

    def sample_order(self, epoch: int) -> Any:
        """Return the samples; see `TraversalOrder.sample_order`."""
        from stepwell.ffcv.kernels import draw_from_pages

        generator = np.random.default_rng([self.seed, epoch])
        mixed = generator.permutation(len(self.indices))
        by_page = mixed[np.argsort(self._pages[mixed], kind="stable")]
        starts = np.flatnonzero(np.diff(self._pages[by_page], prepend=-1))
        pages = generator.permutation(len(starts))
        opened = np.empty(2 * self.loader.batch_size, np.int64)
        found, draws = np.empty_like(by_page), generator.random(len(by_page))
        draw_from_pages(by_page, np.append(starts, len(by_page)), pages, draws, opened, found)
        return self.of_rank(self.indices[found])


ORDER_MAP: Mapping[OrderOption, type[TraversalOrder]] = {
    OrderOption.SEQUENTIAL: Sequential,
    OrderOption.RANDOM: Random,
    OrderOption.QUASI_RANDOM: QuasiRandom,
}
ORDER_TYPE = OrderOption | type[TraversalOrder]


@dataclass(frozen=True)
class _Given(Order):
    """An order of stepwell's loader, whose epochs are set one by one."""

    epochs: Mapping[int, npt.NDArray[np.int64]]
    number: int

    def bind(self, index: Any) -> BoundOrder:
        return _BoundGiven(self.epochs, self.number)


@dataclass(frozen=True)
class _BoundGiven(BoundOrder):
    epochs: Mapping[int, npt.NDArray[np.int64]]
    number: int

    @property
    def num_positions(self) -> int:
        return self.number

    def positions(self, epoch: int, start: int, count: int) -> npt.NDArray[np.int64]:
        return self.epochs[epoch][start : start + count].copy()


class Loader:
    """FFCV's loader: batches of a ``.beton`` file, a tuple of one value for each pipeline.

    Args:
        fname: path of the file; or of a store of stepwell's, or an address that `stepwell.open` takes: their numbers,
            arrays and RGB images are the fields, each step is a sample.
        batch_size: samples a batch.
        num_workers: threads; below 1: one a processor.
        os_cache: whether rows are read through the system's page cache (default); False reads them into memory of the
            loader's own. What operations of one's own read is always mapped.
        order: an `OrderOption`, or a subclass of `TraversalOrder`.
        distributed: each process of torch's group gets a part, as by torch's DistributedSampler; of every order.
        seed: of orders and transforms; None: drawn from numpy's global generator, 0 with ``distributed``.
        indices: only these samples, in this order.
        pipelines: name of a field to its decoder and operations; None leaves the field out; of a field without a
            pipeline comes what the default decoder reads, as a tensor. A `PipelineSpec` makes an output of any name.
        custom_fields: the class of each field that is not built in.
        drop_last: leave out a last batch that is not full.
        batches_ahead: batches that wait for the consumer.
        recompile: generate the code of operations anew before each epoch.
        order_kwargs: of a `TraversalOrder` of one's own.

    Raises:
        DatasetNotFoundError: no such file.
        FormatError: no such file as its format says, or a custom field without a class.
        SchemaError: a pipeline that cannot be.
        OrderError: no such order.
        LoaderError: a batch size below 1.
        TypeError: `SimpleRGBImageDecoder` of images of several sizes.

    Example:
        >>> import tempfile
        >>> from stepwell.ffcv import DatasetWriter
        >>> from stepwell.ffcv.fields import IntField, NDArrayField
        >>> path = tempfile.mkdtemp() + "/squares.beton"
        >>> fields = {"number": IntField(), "square": NDArrayField("float32", (1,))}
        >>> samples = [(i, np.float32([i * i])) for i in range(20)]
        >>> DatasetWriter(path, fields, num_workers=1).from_indexed_dataset(samples)
        >>> for numbers, squares in Loader(path, batch_size=8, num_workers=1, drop_last=False):
        ...     print(tuple(numbers.shape), float(squares.max()))
        (8, 1) 49.0
        (8, 1) 225.0
        (4, 1) 361.0

    Notes:
        Each ``for`` is an epoch. Batches share no memory, so they may be kept. What goes wrong is raised by ``next``.
        A loop that is left early leaves no thread behind. `state_dict` is stepwell's: it resumes at the next batch.
    """

    def __init__(  # noqa: PLR0917
        self,
        fname: str | os.PathLike[str],
        batch_size: int,
        num_workers: int = -1,
        os_cache: bool = DEFAULT_OS_CACHE,
        order: Any = OrderOption.SEQUENTIAL,
        distributed: bool = False,
        seed: int | None = None,
        indices: Sequence[int] | None = None,
        pipelines: Mapping[str, Any] | None = None,
        custom_fields: Mapping[str, Any] | None = None,
        drop_last: bool = True,
        batches_ahead: int = 3,
        recompile: bool = False,
        order_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if seed is None:
            # the processes of a group must agree
            seed = 0 if distributed else int(np.random.randint(0, MAX_SEED))
        self._options = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self.fname, self.batch_size, self.seed = os.fspath(fname), int(batch_size), int(seed)
        if self.batch_size < 1:
            raise LoaderError(f"batch_size={batch_size}. Allowed: 1 and more.")
        self.os_cache, self.distributed, self.drop_last = os_cache, distributed, drop_last
        self.batches_ahead, self.recompile = max(int(batches_ahead), 1), recompile
        self.num_workers = num_workers if num_workers >= 1 else available_cpus()
        Compiler.set_num_threads(self.num_workers)
        self.reader = reader_of(fname, custom_fields or {})
        # None of a store
        self.memory_manager = MemoryManager(self.reader) if isinstance(self.reader, Reader) else None
        self.indices = self._chosen(indices)
        self.traversal_order = self._order(order, order_kwargs or {})
        self.next_epoch = 0
        self._skipped = 0
        self._place = (0, 0)
        self.pipeline_specs = self._specs(pipelines or {})
        self.graph = Graph(self.pipeline_specs, self._source())
        self.first_traversal_order = self.next_traversal_order()
        # of the epochs under way, held by their iterators
        self._orders: WeakValueDictionary[int, npt.NDArray[np.int64]] = WeakValueDictionary()
        self._fields, self._number = self.graph.fields, self._whole(len(self.first_traversal_order))
        self._inner = self._window_loader()

    @property
    def code(self) -> Any:
        """The functions of the operations that are called; others after each epoch with ``recompile``."""
        return self.graph.code

    def next_traversal_order(self) -> Any:
        """Return the numbers of the samples of the next epoch."""
        return self.traversal_order.sample_order(self.next_epoch)

    def generate_code(self) -> None:
        """Generate the code of operations anew."""
        self.graph.generate_code()

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return math.ceil(self._whole(len(self.first_traversal_order)) / self.batch_size)

    def __iter__(self) -> EpochIterator:
        """Begin the next epoch."""
        self.graph.declare()
        if self.recompile:
            self.generate_code()
        ids = self._numbers(np.asarray(self.next_traversal_order()), "order")
        ids = ids[: self._whole(len(ids))]
        if (self.graph.fields, len(ids)) != (self._fields, self._number):
            # a size that the script has changed, or an order of one's own whose epochs differ in length
            self._fields, self._number = self.graph.fields, len(ids)
            self._inner = self._window_loader()
        epoch, start = self.next_epoch, self._skipped
        self.next_epoch, self._skipped = epoch + 1, 0
        return EpochIterator(self, ids, epoch, start)

    def filter(self, field_name: str, condition: Callable[[Any], bool]) -> Loader:
        """Return a loader of the samples of whose field a condition is true.

        Args:
            field_name: the field, with its pipeline.
            condition: of one sample's value.

        Raises:
            SchemaError: no such field.
        """
        given = self._options["pipelines"] or {}
        if field_name not in self.reader.handlers:
            raise SchemaError(
                f"filter: there is no field {field_name!r}. The file has: {', '.join(self.reader.handlers)}."
            )
        alone = {name: None for name in self.reader.handlers if name != field_name}
        if field_name in given:
            alone[field_name] = given[field_name]
        options = {**self._options, "pipelines": alone, "order": OrderOption.SEQUENTIAL, "drop_last": False}
        values = Loader(**{**options, "distributed": False, "indices": self.indices})
        kept = [condition(value) for (batch,) in values for value in batch]
        return Loader(**{**self._options, "indices": self.indices[np.array(kept, bool)]})

    def state_dict(self) -> dict[str, int]:
        """Return where the consumer of the latest iteration stands: epoch, and samples that it had of it."""
        epoch, consumed = self._place
        return {"epoch": epoch, "consumed": consumed, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Let the next ``for`` go on where a state was taken.

        Raises:
            OrderError: of another seed.
        """
        if state["seed"] != self.seed:
            raise OrderError(f"a state of seed {state['seed']}, and the loader has {self.seed}. Give it seed=.")
        self.next_epoch, self._skipped = int(state["epoch"]), int(state["consumed"])

    def batches(
        self, ids: npt.NDArray[Any], epoch: int, start: int
    ) -> Generator[tuple[npt.NDArray[Any], Any], None, None]:
        """Return the numbers of the samples of each batch, and what stepwell's loader reads of them."""
        parts = [ids[at : at + self.batch_size] for at in range(start, len(ids), self.batch_size)]
        if self._inner is None:
            return ((part, {}) for part in parts)
        order = self._orders.get(epoch)
        if order is None or not np.array_equal(order, ids):
            order = self._orders[epoch] = ids.astype(np.int64)
        self._inner.load_state_dict({**self._inner.state_dict(), "epoch": epoch, "consumed": start})
        return _read(parts, iter(self._inner), order)

    def _whole(self, number: int) -> int:
        """Return how many of an epoch's samples come: of full batches alone with ``drop_last``."""
        return number // self.batch_size * self.batch_size if self.drop_last else number

    def _chosen(self, indices: Sequence[int] | None) -> npt.NDArray[Any]:
        if indices is None:
            return np.arange(self.reader.num_samples, dtype=np.uint64)
        return self._numbers(np.array(indices), "indices")

    def _numbers(self, found: npt.NDArray[Any], what: str) -> npt.NDArray[Any]:
        """Return numbers of samples, which compiled code takes as they are."""
        if not found.size:
            return np.empty(0, np.uint64)
        last = self.reader.num_samples - 1
        if found.ndim != 1 or found.dtype.kind not in "iu" or found.min() < 0 or found.max() > last:
            raise OrderError(
                f"{what}: {found.dtype} {found.shape} from {found.min()} to {found.max()}. Allowed: 0 to {last}, "
                "whole numbers in one row."
            )
        return found

    def _order(self, order: Any, options: Mapping[str, Any]) -> TraversalOrder:
        if isinstance(order, OrderOption):
            return ORDER_MAP[order](self)
        if isinstance(order, type) and issubclass(order, TraversalOrder):
            return order(self, **options)
        raise OrderError(f"order={order!r}. Allowed: an OrderOption, or a subclass of TraversalOrder.")

    def _specs(self, given: Mapping[str, Any]) -> dict[str, PipelineSpec]:
        """Return the pipeline of each output: of the fields in the file's order, then the others."""
        names = [*self.reader.handlers, *(name for name in given if name not in self.reader.handlers)]
        found = {}
        for name in names:
            spec = given.get(name, PipelineSpec(name))
            if spec is None:
                continue
            if not isinstance(spec, PipelineSpec):
                if isinstance(spec, str) or not isinstance(spec, Sequence):
                    kind = type(spec).__name__
                    raise SchemaError(
                        f"pipeline {name!r} is a {kind}. Allowed: a list of operations, a PipelineSpec, None."
                    )
                spec = PipelineSpec(name, transforms=spec)
            found[name] = spec
        return found

    def _source(self) -> Source:
        reader, manager = self.reader, self.memory_manager
        if not isinstance(reader, Reader) or manager is None:
            return Source(reader.handlers, reader.rows_of, None, lambda: None, lowers=True)
        lowers = reader.view is not None
        return Source(reader.handlers, reader.rows_of, manager.compile_reader(), lambda: manager.state, lowers)

    def _window_loader(self) -> WindowLoader | None:
        """Return stepwell's loader of what it reads; None where it reads nothing."""
        view = self.reader.view
        if not self._fields or view is None:
            return None
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "order": _Given(self._orders, self._number),
            "seed": self.seed,
            "prefetch": max(1, math.ceil(self.batches_ahead / self.num_workers)),
            "page_cache": self.os_cache,
            # in pinned memory, where there is a GPU to copy to
            "to": "torch",
        }
        found = WindowLoader(view, self._fields, **options)
        # small batches that are only copied cost less than a hand-over between threads
        return found if not found.num_threads else WindowLoader(view, self._fields, threads=self.num_workers, **options)


class EpochIterator(Iterator[tuple[Any, ...]]):
    """One epoch: a thread runs the operations, so many batches ahead; none where all that is left are views."""

    def __init__(self, loader: Loader, ids: npt.NDArray[Any], epoch: int, start: int) -> None:
        self.loader, self._epoch, self._number = loader, epoch, start
        self._total = len(ids)
        loader._place = (epoch, start)
        outputs = _outputs(loader.graph, loader.batches(ids, epoch, start), loader.seed, epoch, start)
        if loader.graph.is_light:
            self._next: Callable[[], Any] = partial(next, outputs, None)
            self.close: Callable[[], object] = outputs.close
            return
        worker = _Worker(outputs, loader.graph, loader.num_workers, loader.batches_ahead)
        self._next = worker.take
        self.close = weakref.finalize(self, worker.end)
        worker.thread.start()

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> tuple[Any, ...]:
        """Return the next batch."""
        found = self._next()
        if found is None:
            self.close()
            raise StopIteration
        if isinstance(found, BaseException):
            self.close()
            raise found
        self._number = min(self._number + self.loader.batch_size, self._total)
        place = (self._epoch, self._number)
        self.loader._place = place if self._number < self._total else (self._epoch + 1, 0)
        _use_here(found)
        return tuple(found)


def _read(
    parts: Sequence[npt.NDArray[Any]], batches: BatchIterator, order: npt.NDArray[np.int64]
) -> Generator[tuple[npt.NDArray[Any], Any], None, None]:
    """Yield the batches of an order, which lives as long as it is read."""
    try:
        for part in parts:
            yield part, {key: _as_array(value) for key, value in next(batches).items()}
    finally:
        batches.close()


def _outputs(
    graph: Graph, batches: Generator[tuple[npt.NDArray[Any], Any], None, None], seed: int, epoch: int, start: int
) -> Generator[tuple[Any, ...], None, None]:
    """Yield what becomes of batches."""
    torch = torch_of()
    stream = torch.cuda.Stream() if torch.cuda.is_available() and not graph.is_light else None
    try:
        for ids, values in batches:
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                outputs = graph.run(values, ids, seed, epoch, start)
            if stream is not None:
                # copies are done when the batch is handed over, so that memory may be used again
                stream.synchronize()
            start += len(ids)
            yield outputs
    finally:
        batches.close()


class _Worker:
    """The thread of an epoch; knows nothing of the iterator, which may be dropped meanwhile."""

    def __init__(self, outputs: Generator[Any, None, None], graph: Graph, threads: int, ahead: int) -> None:
        self._outputs = outputs
        # numba begins its threads when it is told their number
        self._threads = threads if any(code.is_parallel for code in graph.code) else 0
        self._ready: SimpleQueue[Any] = SimpleQueue()
        self._room = threading.Semaphore(ahead)
        self._stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="stepwell-ffcv")

    def take(self) -> Any:
        """Return the next batch, or the error in its place; None at the end."""
        if self._stop.is_set():
            return None
        self._room.release()
        return self._ready.get()

    def end(self) -> None:
        """Build no more."""
        self._stop.set()
        self._room.release()
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        try:
            if self._threads:
                import numba

                numba.set_num_threads(min(self._threads, numba.config.NUMBA_NUM_THREADS))
            while self._room.acquire() and not self._stop.is_set():
                batch = next(self._outputs, None)
                if batch is None:
                    break
                self._ready.put(batch)
        except BaseException as error:
            self._ready.put(error)
        finally:
            self._outputs.close()
            self._ready.put(None)


def _as_array(value: Any) -> Any:
    """Return a tensor as an array over its memory."""
    return value if isinstance(value, np.ndarray) else value.numpy()


def _use_here(outputs: Sequence[Any]) -> None:
    """Tell torch that tensors of the thread's stream are used on this one."""
    for each in outputs:
        if getattr(each, "is_cuda", False):
            each.record_stream(torch_of().cuda.current_stream(each.device))
