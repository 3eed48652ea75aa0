"""The loader of online learning: batches drawn from tables and views, without end."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypedDict, overload

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError, OrderError, StateError, TableError
from stepwell.kernels.places import PLACE_ROWS
from stepwell.loader.batch import Batch, V
from stepwell.loader.build import Builder
from stepwell.loader.devices import DeviceSource, make_copier
from stepwell.loader.loader import RENAMED
from stepwell.loader.memory import CountedPool, torch_dtype
from stepwell.loader.pipeline import Inline, Pipeline
from stepwell.loader.settings import LoaderSettings, explain_arguments
from stepwell.loader.transforms import BatchKey
from stepwell.process import this
from stepwell.replay.batch_kernels import DRAWN_BYTES, HALVES, PROBABILITY
from stepwell.replay.drawing import (
    BetaSchedule,
    Drawer,
    Drawn,
    DrawnReader,
    Progress,
    TurnTaker,
    checked_info,
    checked_shares,
    look_up,
    to_numpy,
)
from stepwell.replay.history import ENDINGS
from stepwell.replay.item_kernels import TAKEN_KEY, TAKEN_PRIORITY, TAKEN_SIZE
from stepwell.replay.limiters import checked_timeout
from stepwell.replay.sampling import TableRows, open_sources
from stepwell.replay.transitions import TransitionTargets

if TYPE_CHECKING:
    from typing import Unpack

    import numpy.typing as npt
    from torch import Tensor

    from stepwell.loader.memory import Target
    from stepwell.loader.transforms import WholeTransform
    from stepwell.order import Order
    from stepwell.replay.drawing import Beta
    from stepwell.replay.tables import Table
    from stepwell.store import Store
    from stepwell.windows import View
    from stepwell.windows.reader import PlaceReader

__all__ = ["ReplayLoader"]

Built = tuple[Progress, Batch]
Source: TypeAlias = "Inline[Any, Built] | Pipeline[Any, Built] | _DirectDraw | DeviceSource"
FORMAT = 1
# what most batches call, beside the kernels of tables
KERNELS = (
    "stepwell.replay.batch_kernels.importance_weights",
    "stepwell.replay.batch_kernels.mark_last_steps",
    "stepwell.kernels.gather.touch_and_gather",
    "stepwell.kernels.windows.mark_rows",
)
# about a state that does not fit, by what differs
WHAT_TO_DO = {
    "format": "Give what state_dict() of a ReplayLoader returned.",
    "seed": "Make the loader with the seed of the state.",
    "batch_size": "Make the loader with the batch size of the state.",
    "sources": (
        "Anchors are of other episodes or fields than before: a data set that grew has others. Give a view of the "
        "episodes that were there (View(store).select(...)) and the same fields, tables and orders; or go on with a "
        "new loader, without the state: tables keep theirs."
    ),
    "shares": "Make the loader with the shares of the state.",
}
# the consumer still holds one batch while it asks for the next
HELD_BATCHES = 2
# of drawn batches whose memory is recycled
MAX_KNOWN = 8
NO_TARGETS = np.empty(0, np.int64)
MAX_REDRAWS = 8
CLOSED = "this loader was closed. Make a new one."
# batches that are drawn and read together by default, of at most so many bytes: of larger ones a call costs little
TOGETHER = 8
SMALL_BYTES = 1 << 18


class ReplayOptions(TypedDict, total=False):
    """The options of `ReplayLoader` beside ``to`` and ``nested``, for type checkers."""

    batch_size: int
    shares: Sequence[float] | Literal["size"] | None
    beta: Beta
    normalize: bool
    seed: int
    threads: int
    prefetch: int | None
    device: str | None
    pin_memory: bool | None
    transform: WholeTransform | None
    timeout: float | None
    info: Sequence[str] | None
    clip: Literal["episode", "item"]


class ReplayLoader(Generic[V]):
    """Stream batches of a table, or of several tables and views with given shares, without end.

    ::

        Table ---- sample ----> keys, probabilities, places --.
        View  ---- order -----> positions, places ------------+--> one read --> transforms --> (torch, JAX) --> Batch
                                                               rows in the order of the sources

    A batch holds the fields, and of every row, unless ``info`` leaves it out: ``table.key`` (uint64),
    ``table.probability`` and ``table.priority`` (float64) at the time it was drawn, ``table.weight`` (float32, its
    importance weight), ``table.times_sampled``, ``table.size`` (items or anchors there were) and ``table.source``
    (which source it is of). Rows of a view have
    weight 1 before normalising, priority 1 and no item.

    Args:
        sources: a `Table`; a `View` or store; a pair of a view and an `Order`, ``(view, weighted(...))``; or a list of
            several of these. Views are walked without end, by default in a new random order each epoch.
        fields: key to `Field`, feature name or offsets; None: every feature at the anchor, an item's first step.
        batch_size: rows a batch.
        shares: of each source, in any unit: ``[1, 1]`` makes 128 and 128 of 256. Where they do not come out even, rows
            are carried from batch to batch, the same way every time. "size": as many as each source holds at the time.
            None: equal shares.
        beta: exponent of the importance weights: a number, ``(first, last, samples)`` for a straight line over so many
            rows, or a function of the rows drawn so far.
        normalize: whether a batch's largest weight is made 1.
        seed: of the orders of views and of the random numbers that transforms get; a table has its own.
        threads: that build batches; 0 builds in the consumer, which costs least for small batches.
        prefetch: batches to draw and read at a time (without threads), or ahead (with them); see `max_staleness`.
            Default: 1, but 8 small ones of views, whose rows are known beforehand.
        to: "numpy", "torch" or "jax", as for `stepwell.Loader`. Without ``jax_enable_x64``, ``table.key`` stays numpy:
            32 bits of it would name no item.
        device: for "torch": "cuda" or "cuda:N" copies batches there; "cpu" (default): they stay. For "jax": as
            for `stepwell.Loader`.
        sharding: for "jax": how batches lie on several devices, as for `stepwell.Loader`.
        pin_memory: for "torch": page-locked memory; default: where CUDA is there.
        nested: whether keys with dots become nested dicts: ``batch["table"]["key"]``.
        transform: of the whole batch, one or several, in order, as for `stepwell.Loader`.
        timeout: seconds to wait for a rate limiter; None: without end.
        info: of the columns ``table.*`` those that a batch holds: some of "key", "probability", "weight", "priority",
            "times_sampled", "size" and "source"; None: all. Each costs about as much as a field: a learner of a uniform
            table needs none (``info=()``), `update_priorities` the key, and of several sources the source.
        clip: "episode": windows reach as far as the episode does; "item": not beyond the steps of the item, and what is
            beyond is padding.

    Raises:
        OrderError: a setting out of range, shares that do not fit, or info that there is none of.
        TableError: a beta or a time-out that cannot be.
        WindowError: fields that do not fit the stores, or reach further ahead than a table's pattern waits for.
        MissingDependencyError: ``to="torch"`` without torch, ``to="jax"`` without JAX.

    Notes:
        An iterator that never ends: ``for`` may be left and entered again, and goes on. For the process that made it,
        where several threads may take from it: each batch goes to one of them. With a table's seed, the same steps and
        the same updates between the same batches give the same batches, if ``threads=0``. A batch that could not be
        drawn in time raises RateLimitError, and the next call tries again. Memory of batches is recycled once nobody
        holds an array of it; up to 16 small ones may share it.
    """

    # which values batches have, for type checkers; nested ones have dicts as well
    @overload
    def __init__(
        self: ReplayLoader[npt.NDArray[Any]],
        sources: Table | View | Store | tuple[View | Store, Order] | Sequence[Any],
        fields: Mapping[str, Any] | None = None,
        *,
        to: Literal["numpy"] = "numpy",
        nested: Literal[False] = False,
        **options: Unpack[ReplayOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayLoader[Tensor],
        sources: Table | View | Store | tuple[View | Store, Order] | Sequence[Any],
        fields: Mapping[str, Any] | None = None,
        *,
        to: Literal["torch"],
        nested: Literal[False] = False,
        **options: Unpack[ReplayOptions],
    ) -> None: ...

    @overload
    def __init__(
        self: ReplayLoader[Any],
        sources: Table | View | Store | tuple[View | Store, Order] | Sequence[Any],
        fields: Mapping[str, Any] | None = None,
        *,
        to: Target = "numpy",
        nested: bool = False,
        **options: Unpack[ReplayOptions],
    ) -> None: ...

    @explain_arguments(RENAMED)
    def __init__(
        self,
        sources: Table | View | Store | tuple[View | Store, Order] | Sequence[Any],
        fields: Mapping[str, Any] | None = None,
        *,
        batch_size: int = 256,
        shares: Sequence[float] | Literal["size"] | None = None,
        beta: Beta = 0.4,
        normalize: bool = True,
        seed: int = 0,
        threads: int = 0,
        prefetch: int | None = None,
        to: Target = "numpy",
        device: str | None = None,
        sharding: Any = None,
        pin_memory: bool | None = None,
        nested: bool = False,
        transform: WholeTransform | None = None,
        timeout: float | None = None,
        info: Sequence[str] | None = None,
        clip: Literal["episode", "item"] = "episode",
    ) -> None:
        self.settings = LoaderSettings(
            batch_size=batch_size,
            seed=seed,
            epochs=None,
            threads=threads,
            prefetch=1 if prefetch is None else prefetch,
            to=to,
            device=device,
            sharding=sharding,
            pin_memory=pin_memory,
            nested=nested,
        )
        if clip not in ("episode", "item"):
            raise OrderError(f'clip={clip!r}. Allowed: "episode" or "item".')
        checked_timeout(timeout)
        chosen = checked_info(info)
        self._num_threads = int(threads)
        from stepwell.kernels.signatures import load_kernels

        load_kernels(KERNELS)
        self._rows, reader = open_sources(sources, fields, seed=self.settings.seed, is_clipped=clip == "item")
        is_known = not self.tables and reader.num_bytes(batch_size) <= SMALL_BYTES
        if prefetch is None and not threads and is_known:
            self.settings = replace(self.settings, prefetch=TOGETHER)
        dealt = None if shares == "size" else checked_shares(shares, len(self._rows))
        self._shares = dealt
        self.fields = reader.fields
        self._drawer = Drawer(
            self._rows,
            dealt,
            self.settings.batch_size,
            BetaSchedule(beta),
            bool(normalize),
            timeout,
        )
        # rows of several sources come source by source, and those of several batches would be mixed
        group = 1 if self._num_threads or len(self._rows) > 1 else self.settings.prefetch
        max_free = HELD_BATCHES + (self.settings.prefetch + self._num_threads if group == 1 else 1)
        builder = Builder(DrawnReader(reader, chosen), self.settings, transform, max_free, group)
        self._build = _Build(builder, self.settings, self._drawer)
        self._direct: Callable[[Inline[Any, Built]], _DirectDraw] | None = None
        first, is_alone = self._rows[0], group == 1 and not threads and len(self._rows) == 1
        if is_alone and isinstance(first, TableRows) and first.draws_in_one and not builder.is_pinned:
            load_kernels(["stepwell.replay.batch_kernels.draw_batch"])
            whole: Any = transform[0] if isinstance(transform, Sequence) and len(transform) == 1 else transform
            self._direct = partial(
                _DirectDraw, self.tables[0], self._drawer, reader, builder, self.settings, chosen, whole
            )
        self._copier = make_copier(self.settings)
        self._progress = self._drawer.progress
        self._source: Source | None = None
        self._is_closed = False
        self._pid = this.pid
        # of the thread that takes; one that closes in the midst of it, in a signal handler, is the same
        self._turn = threading.RLock()

    @property
    def max_staleness(self) -> int:
        """The most batches that come after an update of priorities, or an insert, and do not know of it yet."""
        if not self.tables:
            return 0
        if not self._num_threads:
            return self.settings.prefetch - 1
        return max(self.settings.prefetch, self._num_threads) + (self._copier is not None)

    @property
    def num_batches(self) -> int:
        """Batches that the consumer has got."""
        return self._progress.number

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables among the sources."""
        return tuple(rows.table for rows in self._rows if rows.table is not None)

    def __iter__(self) -> Iterator[Batch[V]]:
        return self

    def __next__(self) -> Batch[V]:
        """Return the next batch."""
        if self._pid != this.pid:
            raise LoaderError(
                f"this loader is of process {self._pid} and was used in process {this.pid}, a fork of it. "
                "Make the loader in the process that takes the batches."
            )
        with self._turn:
            source = self._source or self._start()
            try:
                taken: tuple[Any, Batch] = source.take()
            except StopIteration:
                # by another thread, that closed it meanwhile
                raise LoaderError(CLOSED) from None
            except BaseException:
                # also Ctrl-C: what was drawn ahead is gone, and the next call begins anew behind the last batch
                self._end()
                raise
            self._progress, batch = taken
            return batch

    def update_priorities(self, batch: Mapping[str, Any], priorities: Any) -> int:
        """Give the items of a batch new priorities.

        Args:
            batch: of this loader, or any mapping with its ``table.key`` and ``table.source``.
            priorities: float [n], numpy or torch on any device; 0 or more. Those of rows of views are not used.

        Returns:
            How many rows' items were still there. Items that are gone are left out, and never another one that took
            their place.

        Raises:
            TableError: another number of priorities than rows, or one that is negative, infinite or NaN; no table was
                changed then.

        Notes:
            Where an item is there more than once, its last priority counts.
        """
        keys = to_numpy(look_up(batch, "key"))
        values = np.asarray(to_numpy(priorities), np.float64)
        if values.shape != keys.shape:
            raise TableError(
                f"priorities of shape {values.shape} for a batch of {len(keys)} rows. One a row is needed."
            )
        tables = [(number, rows.table) for number, rows in enumerate(self._rows) if rows.table is not None]
        if len(self._rows) == 1:
            return sum(int(table.update_priorities(keys, values)) for _, table in tables)
        sources = to_numpy(look_up(batch, "source"))
        chosen = [(table, sources == number) for number, table in tables]
        for _, mask in chosen:
            bad = values[mask][~(np.isfinite(values[mask]) & (values[mask] >= 0))]
            if len(bad):
                raise TableError(
                    f"a priority of {bad[0]}. Allowed are finite numbers of 0 or more; nothing was changed."
                )
        return sum(int(table.update_priorities(keys[mask], values[mask])) for table, mask in chosen)

    def state_dict(self) -> dict[str, Any]:
        """Return where the consumer stands, as JSON types: batches, beta's rows, shares carried, places in the orders.

        What is in the tables is theirs to save: see `Table.checkpoint`.
        """
        progress = self._progress
        return {
            "format": FORMAT,
            **self._identity(),
            "number": progress.number,
            "owed": list(progress.owed),
            "taken": list(progress.taken),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where a state was taken; what was drawn ahead is dropped.

        Raises:
            StateError: of other sources, shares, seed, batch size or format.
        """
        wanted = {"format": FORMAT, **self._identity()}
        for name, value in wanted.items():
            if state_dict.get(name) != value:
                raise StateError(
                    f"the state has {name} {state_dict.get(name)!r}, this loader {value!r}. {WHAT_TO_DO[name]}"
                )
        owed, taken = tuple(map(float, state_dict["owed"])), tuple(map(int, state_dict["taken"]))
        with self._turn:
            self._end()
            self._progress = Progress(int(state_dict["number"]), owed, taken)

    def close(self) -> None:
        """End the threads, and what waits in others; batches that were built ahead are dropped. May be called twice."""
        self._is_closed = True
        if self._pid != this.pid:
            return
        self._drawer.stop()
        if self._source is not None:
            self._source.interrupt()
        with self._turn:
            self._end()

    def __enter__(self) -> ReplayLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        sources = ", ".join(rows.identity for rows in self._rows)
        return f"<ReplayLoader of {sources}  batch {self.settings.batch_size}  max_staleness {self.max_staleness}>"

    def _identity(self) -> dict[str, Any]:
        return {
            "seed": self.settings.seed,
            "batch_size": self.settings.batch_size,
            "sources": [rows.identity for rows in self._rows],
            "shares": "size" if self._shares is None else list(self._shares),
        }

    def _start(self) -> Source:
        """Begin to draw behind the last batch that the consumer got."""
        if self._is_closed:
            raise LoaderError(CLOSED)
        self._drawer.move_to(self._progress)
        prefetch, threads = self.settings.prefetch, self._num_threads
        source: Any
        if threads:
            numbers = ([number] for number in count())
            build = self._build.of(TurnTaker(self._drawer).draw)
            source = Pipeline(build, numbers, num_threads=threads, num_ahead=max(prefetch, threads))
            # the pipeline waits for its threads when it goes, and they may wait for a limiter: this one is called first
            weakref.finalize(self, self._drawer.stop)
        else:
            source = Inline(self._build.of(self._drawer.draw), repeat([None] * prefetch))
            source = source if self._direct is None else self._direct(source)
        self._source = source if self._copier is None else DeviceSource(source, self._copier)
        return self._source

    def _end(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            self._drawer.stop()
            source.close()
            if not self._is_closed:
                self._drawer.resume()


class _DirectDraw:
    """Draws and reads batches of a table in one call of a kernel, and leaves to another source what that does not do.

    In a training loop a batch finds the processor's caches cold, and each function and object on its way costs several
    microseconds to fetch: see design/017. So targets of one step are made by the kernel, too, and arrays are made, and
    wrapped for torch, in one loop.
    """

    is_ready = False

    def __init__(  # noqa: PLR0917
        self,
        table: Table,
        drawer: Drawer,
        reader: PlaceReader,
        builder: Builder,
        settings: LoaderSettings,
        info: Sequence[str],
        transform: WholeTransform | None,
        otherwise: Inline[Any, Built],
    ) -> None:
        self._table, self._drawer, self._reader, self._otherwise = table, drawer, reader, otherwise
        self._seed, self._size = settings.seed, settings.batch_size
        size, self._start = settings.batch_size, reader.num_bytes(settings.batch_size)
        self._reach = np.array([reader.min_offset, reader.max_offset])
        views = reader.views(size)
        starts = {key: start for key, _, _, start in views}
        marked = [each for each in reader.computed if each.is_step and each.sources[0].name in ENDINGS]
        endings = [(starts[each.key], *ENDINGS[each.sources[0].name]) for each in marked]
        self._endings = np.array(endings, np.int64).reshape(-1, 3)
        self._computed = [each for each in reader.computed if each not in marked]
        word, half = 8 * size, self._start + 8 * HALVES * size
        columns: dict[str, tuple[Any, int]] = {
            "key": (np.uint64, self._start + TAKEN_KEY * word),
            "probability": (np.float64, self._start + PROBABILITY * word),
            "weight": (np.float32, half + word),
            "priority": (np.float64, self._start + TAKEN_PRIORITY * word),
            "times_sampled": (np.int32, half + word // 2),
            "size": (np.int64, self._start + TAKEN_SIZE * word),
        }
        chosen = [(f"table.{name}", *columns[name]) for name in info if name in columns]
        arrays = [*views, *((key, (size,), np.dtype(dtype), start) for key, dtype, start in chosen)]
        self._has_source, self._is_weighted = "source" in info, "weight" in info
        num_bytes = self._start + DRAWN_BYTES * size
        self._targets, self._discount, made = NO_TARGETS, 0.0, None
        # what is left to do with the arrays; None: they are the batch, but for torch
        self._finish: Callable[[dict[str, Any], BatchKey], dict[str, Any]] | None = None
        # a class of a user's may do more
        if builder.is_plain and not self._computed and type(transform) is TransitionTargets:
            made = transform.in_place(arrays, num_bytes)
            self._discount = transform.discount
        if made is not None:
            self._targets, num_bytes = made.targets, made.num_bytes
        elif transform is not None or not builder.is_plain or self._computed:
            self._finish = builder.finished
        placed = [(*each, None) for each in arrays] if made is None else made.arrays
        torch = builder.torch if self._finish is None else None
        self._wrap: Callable[[npt.NDArray[Any]], Any] | None = None if torch is None else torch.from_numpy
        self._arrays = [(*each, torch is not None and torch_dtype(each[2], torch) is not None) for each in placed]
        self._pool = CountedPool(num_bytes, MAX_KNOWN)

    def take(self) -> Built:
        """Return the progress after the next batch, and the batch."""
        drawer, size, wrap = self._drawer, self._size, self._wrap
        number, owed, (taken,) = drawer.progress
        memory = self._pool.lease()
        if not self._table.draw_batch(
            size, self._reader, self._reach, self._endings, self._targets, self._discount,
            drawer.beta(number * size) if self._is_weighted else 0.0, drawer.normalize, memory, self._start,
        ):  # fmt: skip
            # what has a name here is not recycled
            del memory
            return self._otherwise.take()
        values: dict[str, Any] = {}
        for key, shape, dtype, start, strides, is_wrapped in self._arrays:
            array = np.ndarray(shape, dtype, memory, start, strides)
            values[key] = wrap(array) if is_wrapped and wrap is not None else array
        if self._has_source:
            sources = np.zeros(size, np.int64)
            values["table.source"] = sources if wrap is None else wrap(sources)
        first = number * size
        drawer.progress = progress = Progress(number + 1, owed, (taken + size,))
        if self._finish is not None:
            if self._computed:
                places = np.ndarray((PLACE_ROWS, size), np.int64, memory, self._start)
                self._reader.compute(self._computed, places, values)
                del places
            # nor what has one while transforms make other arrays
            del memory, array
            values = self._finish(values, BatchKey(self._seed, ((0, range(first, first + size)),), size))
        return progress, Batch(values, 0, number)

    def interrupt(self) -> None:
        """Do nothing: the consumer builds, and waits for no other thread."""

    def close(self) -> None:
        """Build no more."""
        self._otherwise.close()


class _Build:
    """Make batches of what was drawn; knows nothing of the loader, so that dropping that ends its threads."""

    def __init__(self, builder: Builder, settings: LoaderSettings, drawer: Drawer) -> None:
        self._builder, self._drawer = builder, drawer
        self._seed, self._batch_size = settings.seed, settings.batch_size

    def of(self, draw: Callable[[Sequence[Any]], list[Drawn]]) -> Callable[[Sequence[Any]], list[Built]]:
        """Return what draws several batches and builds them at once: before a ring comes round to what was drawn."""

        def build(jobs: Sequence[Any]) -> list[Built]:
            built: list[Built] = []
            for drawn in draw(jobs):
                first, num_rows = drawn.number * self._batch_size, len(drawn.weights)
                key = BatchKey(self._seed, ((0, range(first, first + num_rows)),), num_rows)
                try:
                    each = self._builder.read(drawn, key, len(drawn.afters))
                except LoaderError as error:
                    each = self._read_again(drawn, key, error)
                for number, values in enumerate(each):
                    built.append((drawn.afters[number], Batch(values, 0, drawn.number + number)))
            return built

        return build

    def _read_again(self, drawn: Drawn, key: BatchKey, error: LoaderError) -> list[dict[str, Any]]:
        """Draw and read batches again where a writer went round the ring, and removed a segment, in between."""
        for _ in range(MAX_REDRAWS):
            if not isinstance(error.__cause__, FileNotFoundError):
                break
            drawn = self._drawer.draw_again(drawn)
            try:
                return self._builder.read(drawn, key, len(drawn.afters))
            except LoaderError as again:
                error = again
        raise error
