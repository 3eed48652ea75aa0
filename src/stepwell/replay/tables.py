"""Tables: items over the steps of a store, sampled by priority, at a rate that a limiter couples to inserting.

::

    History.advance --> runs of rows --> Matcher --> Pending --(limiter)--> Contents: items, sampler, remover
                    +--> evicted rows ------------------------------------------^        |
                                                                   sample, update, delete
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from stepwell.display.completion import Completed
from stepwell.display.html import never_raising
from stepwell.errors import RateLimitError, TableError
from stepwell.kernels.signatures import load_kernels
from stepwell.order.order import derive_key
from stepwell.replay import table_states
from stepwell.replay.contents import NO_GROWTH, Contents, Sample, checked_count, joined_samples
from stepwell.replay.extensions import Extension, Notices
from stepwell.replay.history import History
from stepwell.replay.intake import Intake, still_there_samples
from stepwell.replay.limiters import (
    UNBOUNDED,
    Changes,
    Limiter,
    MinSize,
    Queue,
    Stack,
    Waiting,
    checked_timeout,
)
from stepwell.replay.patterns import EVERY_STEP, Pattern
from stepwell.replay.selectors import Selector
from stepwell.replay.table_info import RateMeter, TableInfo, read_columns, spread_of
from stepwell.replay.table_settings import (
    TableSettings,
    checked_keys,
    checked_priorities,
    checked_updates,
    find_slices,
    make_selector,
    open_gate,
    slices_of_steps,
)
from stepwell.store.segment_writer import writes_alone

if TYPE_CHECKING:
    from stepwell.replay.checkpoints import StateSaver
    from stepwell.replay.following import Growth
    from stepwell.store import Store
    from stepwell.store.back_pressure import BackPressure
    from stepwell.store.store import Mode
    from stepwell.windows.reader import PlaceReader

__all__ = ["Table"]

Ints = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
Reals = npt.NDArray[np.float64]
Pathlike = str | os.PathLike[str]
NO_SHAPE = np.zeros(6, np.int64)
# what inserting, drawing and updating call, beside the kernels of the selectors
KERNELS = (
    "stepwell.replay.pattern_kernels.anchors_of_pieces",
    "stepwell.replay.pattern_kernels.anchors_of_runs",
    "stepwell.replay.item_kernels.insert_items",
    "stepwell.replay.item_kernels.grow_items",
    "stepwell.replay.item_kernels.take_items",
    "stepwell.replay.item_kernels.find_items",
    "stepwell.replay.item_kernels.update_items",
)


class TableOptions(TypedDict, total=False):
    """The options of `Table` beside those that its other constructors set, for type checkers."""

    pattern: Pattern | None
    seed: int
    follow_seconds: float
    extensions: Sequence[Extension]
    back_pressure: BackPressure | None


class TableChanges(TableOptions, total=False):
    """The arguments of `Table` that may change where it is made anew from a state, for type checkers."""

    max_size: int
    sampler: str | Selector
    remover: str | Selector
    max_times_sampled: int
    limiter: Limiter | None


class Table(Completed):
    """Items over a store: which slices of its steps can be sampled, and how likely each is.

    Args:
        store: whose steps; those that are there are taken in when the table is made.
        name: of the table, in messages and checkpoints.
        max_size: items that it keeps; more make the remover choose one that goes, the newcomer among them.
        sampler: what is drawn: "uniform", "fifo", "lifo", "max_heap", "min_heap", "prioritized", or a `Selector`.
        remover: what goes; likewise.
        max_times_sampled: draws after which an item goes; 0 for any number.
        limiter: how inserting and sampling wait for each other; default ``MinSize(1)``.
        pattern: which items follow from new steps; None for none but those of `create_item`.
        seed: of what is drawn.
        follow_seconds: how long a draw may take the table as it was instead of following the store first; 0: never.
        extensions: called after each change, the first time while the table is made.
        back_pressure: what the writers of the ring do, in any process of this machine, with steps that the limiter does
            not let in: "wait" until it does, "refuse" them with a RateLimitError, or "drop" them. None: they go on, and
            what does not get in waits in the table, until the ring evicts it.
        state: of `state_arrays`: what to go on from; `from_state` gives it.

    Raises:
        TableError: arguments that cannot be.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.replay import Table
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well")
        >>> with store.writer() as writer:
        ...     episode = writer.add_episode({"action": [0, 1, 2]})
        >>> table = Table(store, sampler="prioritized")
        >>> sample = table.sample(4)
        >>> table.update_priorities(sample.keys, [1.0, 2.0, 3.0, 4.0])
        4
        >>> table.size, table.info.counts.samples
        (3, 4)

    Notes:
        Any number of threads of one process: one lock, held for a batch and never while waiting. Other processes write
        to the store, and no other process has this table; a child after a fork makes a table of its own. Memory: about
        100 bytes an item, and nothing a step.
    """

    _INTERNAL = frozenset(
        {
            "check_wait",
            "could_sample",
            "draw_batch",
            "draws_in_one",
            "from_state",
            "history",
            "lock",
            "places",
            "sample_placed",
            "settings",
            "state_arrays",
        }
    )

    def __init__(
        self,
        store: Store,
        name: str = "replay",
        *,
        max_size: int = 1_000_000,
        sampler: str | Selector = "uniform",
        remover: str | Selector = "fifo",
        max_times_sampled: int = 0,
        limiter: Limiter | None = None,
        pattern: Pattern | None = EVERY_STEP,
        seed: int = 0,
        follow_seconds: float = 0.0,
        extensions: Sequence[Extension] = (),
        back_pressure: BackPressure | None = None,
        state: Mapping[str, npt.NDArray[Any]] | None = None,
    ) -> None:
        if sampler is remover and isinstance(sampler, Selector):
            raise TableError("the sampler and the remover are one object. Give each its own.")
        chosen, sampler_text = make_selector(sampler, "sampler")
        removing, remover_text = make_selector(remover, "remover")
        self.settings = TableSettings(
            name,
            max_size,
            sampler_text,
            remover_text,
            max_times_sampled,
            limiter or MinSize(1),
            pattern,
            seed,
            follow_seconds,
            back_pressure,
        )
        # how long a draw may do without following, and when the store was followed last
        self._follow_seconds = self.settings.follow_seconds
        load_kernels((*KERNELS, *chosen.kernels, *removing.kernels))
        self._followed = -float("inf")
        self.store = store
        self.history = History(store)
        self._limiter, self._notices = self.settings.limiter, Notices(extensions)
        self._has_extensions = bool(extensions)
        purposes = (seed, "table sampler"), (seed, "table remover"), (0, f"items of table {name}")
        keys = tuple(int(derive_key(number, 0, purpose)[0]) for number, purpose in purposes)
        self._contents = Contents(
            max_size, chosen, removing, max_times_sampled, keys, self._notices, self.history.table
        )
        self._intake = Intake(self.history, pattern, self._limiter, self._contents)
        # rows that were drawn for a call that ran into its time-out
        self._drawn: list[Sample] = []
        self._lock = threading.Lock()
        self._changes = Changes(self._lock)
        self._meter = RateMeter(time.monotonic())
        self._gate = open_gate(store, self.settings)
        if self._gate is not None:
            weakref.finalize(self, self._gate.close)
        if state is None:
            self.follow()
        else:
            if self._gate is not None:
                self._gate.look()
            self._restore(state)
            self._publish()

    @classmethod
    def queue(
        cls, store: Store, name: str = "queue", *, max_size: int = 1000, **options: Unpack[TableOptions]
    ) -> Table:
        """Return a table whose items are drawn once, first in first out; inserting waits while ``max_size`` wait."""
        return cls(store, name, sampler="fifo", remover="fifo", **_drawn_once(Queue(max_size), max_size), **options)

    @classmethod
    def stack(
        cls, store: Store, name: str = "stack", *, max_size: int = 1000, **options: Unpack[TableOptions]
    ) -> Table:
        """Return a table whose items are drawn once, last in first out; inserting waits while ``max_size`` wait."""
        return cls(store, name, sampler="lifo", remover="lifo", **_drawn_once(Stack(max_size), max_size), **options)

    # what it is

    @property
    def name(self) -> str:
        """Its name."""
        return self.settings.name

    @property
    def pattern(self) -> Pattern | None:
        """Which items follow from new steps."""
        return self.settings.pattern

    @property
    def size(self) -> int:
        """Items that are there, as of the last call that followed the store."""
        return len(self._contents)

    @property
    def total_weight(self) -> float:
        """The sum of the weights by which items are drawn, ``priority ** exponent``; of other samplers the size."""
        return self._contents.sampler.total_weight

    def __len__(self) -> int:
        return len(self._contents)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return self._make_info(advance=False).line

    @never_raising
    def _repr_html_(self) -> str:
        return self._make_info(advance=False)._repr_html_()

    @property
    def info(self) -> TableInfo:
        """Its numbers, as of the last call that followed the store; rates are since the info before."""
        return self._make_info(advance=True)

    def _make_info(self, *, advance: bool) -> TableInfo:
        with self._lock:
            return TableInfo.of(
                self.settings,
                self._contents.counts,
                self._meter.measure(self._contents.counts, time.monotonic(), advance=advance),
                num_pending=self._intake.pending.items().shape[1],
                num_missed=self._intake.pending.missed,
                num_dropped=0 if self._gate is None else self._gate.num_dropped,
                largest_priority=self._contents.largest,
            )

    def spread(self) -> dict[str, Any]:
        """Return how priorities, ages, staleness and draws are spread over its items, as JSON types.

        See `stepwell.replay.table_info.spread_of`. Of more than 65,536 items evenly spaced ones are read, so that
        nothing else of the table waits for long.
        """
        with self._lock:
            columns = read_columns(self._contents.items)
        return spread_of(columns)

    def can_sample(self, count: int = 1) -> bool:
        """Return whether the limiter lets ``count`` items be drawn now; follows the store first."""
        self.follow()
        return self.could_sample(count)

    def could_sample(self, count: int = 1) -> bool:
        """Return `can_sample` of what was known of the store at the last look."""
        return self._limiter.can_sample(self._contents.counts, count)

    def can_insert(self, count: int = 1) -> bool:
        """Return whether the limiter lets ``count`` items in now, and none waits; follows the store first."""
        self.follow()
        return not self._intake.pending.num and self._limiter.can_insert(self._contents.counts, count)

    # items come

    def follow(self) -> int:
        """Take in what the store got and lost since the last call; `sample` does it as well.

        Returns:
            Items inserted. What the limiter does not let in waits, and comes with a later call.
        """
        with self._lock:
            num = self._follow()
            self._publish()
        self._notices.deliver(self)
        return num

    def _follow(self) -> int:
        if self._follow_seconds:
            self._followed = time.monotonic()
        if self._gate is not None:
            self._gate.look()
        num = self._intake.follow()
        if num and self._changes.num_waiting:
            self._changes.announce()
        if self._drawn:
            self._drawn = still_there_samples(self.history, self._drawn)
        return num

    def _publish(self) -> None:
        """Tell the writers that the table holds for how many items there is room."""
        if self._gate is not None:
            room = self._limiter.num_inserts(self._contents.counts, UNBOUNDED)
            self._gate.publish(room - self._intake.pending.num)

    def close(self) -> None:
        """Let go, for good, of the writers that the table holds by ``back_pressure``; nothing else changes.

        A table that is collected, or whose process ends, however it ends, lets go of them, too. May be called twice.
        """
        with self._lock:
            gate, self._gate = self._gate, None
        if gate is not None:
            gate.close()

    def create_item(
        self, steps: Any, length: Any = None, priority: Any = None, *, timeout: float | None = None
    ) -> Keys:
        """Insert items over slices of the history.

        Args:
            steps: ids of the steps of one item [k], as `Writer.append` returns them, or of several [n, k]; with
                ``length`` the id of the first step, or of several items [n].
            length: steps that each covers.
            priority: of each; default the largest priority so far, 1.0 at first.
            timeout: seconds to wait while the limiter refuses them; default for ever.

        Returns:
            Keys, uint64 [n]. With few places left a key may be of an item that has had to go already.

        Raises:
            TableError: steps that are not there, slices that leave their episode, a bad priority, or more items than
                the limiter ever lets in at once. Nothing was inserted.
            RateLimitError: the limiter refused them for too long. Nothing was inserted.
        """
        firsts, lengths, lasts = slices_of_steps(steps, length)
        priorities = None if priority is None else checked_priorities(priority, len(firsts))
        self._limiter.check_inserts(len(firsts))
        waiting = Waiting(self._changes, timeout, partial(self._why_no_insert, len(firsts)))
        while True:
            with self._lock:
                self._follow()
                keys = self._try_create(firsts, lengths, lasts, priorities)
                self._publish()
            self._notices.deliver(self)
            if keys is not None:
                return keys
            waiting.pause()

    def _why_no_insert(self, count: int, seconds: float) -> str:
        done = f"refused {count} items for {seconds:.3g} s"
        why = self._limiter.why_no_insert(self._contents.counts)
        return f"table {self.name!r}: {self._limiter.name} {done}: {why}. Nothing was inserted."

    def _try_create(self, firsts: Ints, lengths: Ints, lasts: Ints | None, priorities: Reals | None) -> Keys | None:
        if not self._limiter.can_insert(self._contents.counts, len(firsts)):
            return None
        found = find_slices(self.history, firsts, lengths, lasts)
        if priorities is None:
            priorities = np.full(len(firsts), self._contents.largest)
        self._contents.largest = max(self._contents.largest, float(priorities.max()))
        keys = self._contents.insert_keyed(found, priorities)
        self._changes.announce()
        return keys

    # items are drawn

    def sample(self, count: int, timeout: float | None = None) -> Sample:
        """Draw items; follows the store first.

        Args:
            count: rows to draw, one after the other, each with the limiter's leave.
            timeout: seconds to wait for it; default for ever.

        Returns:
            Exactly ``count`` rows.

        Raises:
            RateLimitError: the limiter did not let so many be drawn in time; without a time-out, where the thread that
                draws is the only one that writes. Rows that were drawn by then are not lost: they are the first ones
                of the next call.
            TableError: a count that is no whole number of 1 or more, or a time-out that is none.
        """
        checked_timeout(timeout)
        return self.sample_placed(checked_count(count), timeout)[0]

    def sample_placed(self, count: int, timeout: float | None = None) -> tuple[Sample, Ints]:
        """Draw items as `sample`, and say where they lie, as `places`: nothing follows the store between the two.

        Args:
            count: as of `sample`, checked before.
            timeout: likewise.
        """
        waiting: Waiting | None = None
        while True:
            with self._lock:
                is_fresh = not self._follow_seconds or time.monotonic() - self._followed >= self._follow_seconds
                if is_fresh:
                    self._follow()
                found = self._try_sample(count)
                if found is None and not is_fresh:
                    self._follow()
                    found = self._try_sample(count)
                if self._gate is not None:
                    self._gate.note_draw()
                    self._publish()
            if self._has_extensions:
                self._notices.deliver(self)
            if found is not None:
                return found
            if waiting is None:
                waiting = Waiting(
                    self._changes,
                    timeout,
                    partial(self._why_no_sample, count),
                    partial(self.check_wait, count) if timeout is None else None,
                )
            waiting.pause()

    def check_wait(self, count: int) -> None:
        """Raise RateLimitError where the calling thread would wait for steps that nobody but itself writes."""
        if self.pattern is None or not writes_alone(str(self.history.store.path)) or self.can_sample():
            return
        with self._lock:
            why = self._limiter.why_no_sample(self._contents.counts)
        raise RateLimitError(
            f"table {self.name!r}: {self._limiter.name} does not let {count} rows be drawn: {why}. The thread that "
            f"draws is the only one that writes to {self.store.path}: it would wait for itself for ever. Write more "
            f"before the next draw: ask table.can_sample({count}), or draw with timeout=0 and go on where this error "
            "comes. Where other threads or processes are about to write, close the writer of this thread, or draw with "
            "a timeout."
        )

    @property
    def draws_in_one(self) -> bool:
        """Whether `draw_batch` may be called: drawn uniformly or by priority, items stay, nobody waits or listens."""
        return self._contents.draws_in_one

    def draw_batch(self, size: int, reader: PlaceReader, *drawing: Any) -> bool:
        """Draw items as `sample` and read them in one call of a kernel; return False where that does not do.

        Args:
            size: rows to draw.
            reader: of places of this table's history.
            drawing: reach, endings, beta, whether to normalise, memory and its start, of
                `stepwell.replay.batch_kernels.draw_batch`.

        Notes:
            What does not do is left to `sample_placed`: limiters that make wait, items that wait for draws, rows that
            are not mapped, and windows that reach from one piece of an episode into another.
        """
        with self._lock:
            growth, contents, intake = NO_GROWTH, self._contents, self._intake
            if not self._follow_seconds or time.monotonic() - self._followed >= self._follow_seconds:
                growth = self._follow_but_growth()
            pieces, gathering = self.history.ascending_pieces, reader.gathering(size)
            if (
                gathering is None
                or self._drawn
                or intake.pending.num
                or self._limiter.num_samples(contents.counts, size) < size
            ):
                has_grown, is_drawn = False, False
            else:
                shape = NO_SHAPE if intake.shape is None else intake.shape
                has_grown, is_drawn = contents.draw_batch(growth, shape, size, pieces, *drawing, *gathering)
            if growth is not NO_GROWTH and not has_grown:
                intake.grow(growth)
            if self._gate is not None:
                self._gate.note_draw()
                self._publish()
            if self._changes.num_waiting:
                self._changes.announce()
        return is_drawn

    def _follow_but_growth(self) -> Growth:
        """Follow, but for new rows that `Contents.draw_batch` can take in: return those."""
        if self._drawn or self._follow_seconds:
            self._follow()
            return NO_GROWTH
        if self._gate is not None:
            self._gate.look()
        return self._intake.follow_but_growth() or NO_GROWTH

    def _try_sample(self, count: int) -> tuple[Sample, Ints] | None:
        contents, limiter = self._contents, self._limiter
        if not self._drawn and limiter.num_samples(contents.counts, count) == count:
            # nearly always: all at once
            sample, places = contents.draw(count, limiter.min_size)
            if len(sample.keys) == count and places is not None:
                if self._changes.num_waiting or self._intake.pending.num:
                    self._after_draws()
                return sample, places
            self._drawn.append(sample)
        while (left := count - sum(len(part.keys) for part in self._drawn)) > 0:
            if allowed := limiter.num_samples(contents.counts, left):
                self._drawn.append(contents.draw(allowed, limiter.min_size)[0])
            elif not self._after_draws():
                return None
        self._after_draws()
        sample = self._take_drawn(count)
        return sample, self.history.places(sample.episodes, sample.rows)

    def _after_draws(self) -> int:
        """Let in what waited for draws; return how many items."""
        self._changes.announce()
        return self._intake.let_in() if self._intake.pending.num else 0

    def _take_drawn(self, count: int) -> Sample:
        whole = joined_samples(self._drawn)
        self._drawn = [whole.part(slice(count, None))] if len(whole.keys) > count else []
        return whole.part(slice(count)) if self._drawn else whole

    def _why_no_sample(self, count: int, seconds: float) -> str:
        with self._lock:
            num_drawn = sum(len(part.keys) for part in self._drawn)
            why = self._limiter.why_no_sample(self._contents.counts)
        done = f"let {num_drawn} of {count} rows be drawn in {seconds:.3g} s"
        kept = f" {num_drawn} rows were drawn and are the first of the next call." if num_drawn else ""
        return f"table {self.name!r}: {self._limiter.name} {done}: {why}.{kept}"

    def places(self, sample: Sample) -> Ints:
        """Return where the rows of a sample lie, int64 [6, n], for a reader of this table's history.

        Raises:
            TableError: the steps of an item are gone since it was drawn.
        """
        with self._lock:
            return self.history.places(sample.episodes, sample.rows)

    # items change and go

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        """Set the priorities of items.

        Args:
            keys: uint64 [n]; of one that comes twice the last priority stays.
            priorities: float [n], or one for all; finite and not negative.

        Returns:
            How many of the keys were found. Those of items that are gone are counted in `info`, nothing else.

        Raises:
            TableError: a bad priority; nothing was changed.
        """
        return self.mutate(updates=(keys, priorities))

    def delete(self, keys: Any) -> int:
        """Remove items by key; return how many there were."""
        return self.mutate(deletes=keys)

    def mutate(self, *, updates: Mapping[int, float] | tuple[Any, Any] | None = None, deletes: Any = None) -> int:
        """Remove items, and set the priorities of others, in one step.

        Args:
            updates: a mapping from keys to priorities, or two arrays, as of `update_priorities`.
            deletes: keys; they are removed before the priorities are set.

        Returns:
            How many items were removed and how many priorities were set, in all.

        Raises:
            TableError: a bad priority; nothing was changed.
        """
        changed = None if updates is None else checked_updates(updates)
        gone = None if deletes is None else checked_keys(deletes)
        with self._lock:
            num = 0 if gone is None else self._contents.delete_keyed(gone)
            if num:
                self._publish()
                self._changes.announce()
            if changed is not None:
                num += self._contents.update_keyed(*changed)
        self._notices.deliver(self)
        return num

    def reset(self) -> None:
        """Remove all items and begin to count anew; of steps there are, only those come that waited for later ones."""
        with self._lock:
            self._follow()
            self._contents.clear()
            self._intake.pending.clear()
            self._drawn.clear()
            self._publish()
            self._changes.announce()
        self._notices.deliver(self)

    # its state

    def state_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all that another process needs to go on with the table; the caller holds its `lock`."""
        return {
            "settings": table_states.text_array(self.settings.to_json()),
            "largest": np.array(self._contents.largest),
            **table_states.contents_arrays(self._contents, self.history),
            **table_states.drawn_arrays(self._drawn, self.history),
            **self._intake.arrays(),
        }

    @property
    def lock(self) -> threading.Lock:
        """Held by whoever reads or changes the table; not to be taken twice."""
        return self._lock

    @classmethod
    def from_state(cls, store: Store, arrays: Mapping[str, npt.NDArray[Any]], **changes: Unpack[TableChanges]) -> Table:
        """Return the table whose state it is, over a store that has its steps.

        Args:
            store: the checkpoint's.
            arrays: of `state_arrays`.
            changes: arguments of `Table` that shall be others than they were. Extensions, and selectors of your own
                classes, are not part of a state: give them again.
        """
        settings = TableSettings.from_json(table_states.json_of(arrays["settings"]))
        return cls(store, **{**settings.arguments(changes), **changes}, state=arrays)

    def _restore(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        runs, _ = self.history.advance()
        table_states.restore_contents(self._contents, self.history, arrays)
        self._drawn = table_states.restore_drawn(self.history, arrays)
        self._intake.restore(arrays, runs)
        self._contents.largest = float(arrays["largest"])
        self._meter.restart(self._contents.counts, time.monotonic())
        self._contents.shrink()
        self._notices.forget()

    def save_state(self, path: Pathlike) -> Path:
        """Write the state of this table, without its steps, so that `resume` goes on with it over the same store.

        Args:
            path: of a file, which is replaced whole: whoever reads it finds this state or the one before.

        Returns:
            The absolute path.

        Raises:
            DiskFullError: no space; the file is as it was.

        Notes:
            A few dozen bytes an item. The table stands still while its items are copied, not while they are written.
        """
        from stepwell.replay.checkpoints import save_state

        return save_state(self, path)

    def save_state_every(self, path: Pathlike, seconds: float = 10.0) -> StateSaver:
        """Save the state now, every so many seconds from a thread, and when what this returns is closed.

        Args:
            path: of a file, as of `save_state`.
            seconds: between two savings, above 0.

        Returns:
            A context manager with ``close()``.
        """
        from stepwell.replay.checkpoints import StateSaver

        return StateSaver(self, path, seconds)

    @classmethod
    def resume(cls, store: Store, path: Pathlike, **changes: Unpack[TableChanges]) -> Table:
        """Return the table of `save_state`, over its store as that is now; actors may have gone on all the time.

        Items whose steps are still there keep keys, priorities, times sampled and order; those whose steps a ring has
        let go count as evicted. Steps that came since the state was saved become items when the table first follows
        the store. Counts, what the limiter owes and what is drawn next are as they were saved.

        Args:
            store: that the table was over, opened again.
            path: of the file.
            changes: arguments of `Table` that shall be others than they were. Extensions, and selectors of your own
                classes, are not part of a state: give them again.

        Raises:
            StoreNotFoundError: no file there.
            CorruptSegmentError: a damaged file.
            TableError: the state of a table over another store, or arguments that cannot be.
        """
        from stepwell.replay.checkpoints import resume

        return resume(store, path, **changes)

    def checkpoint(self, path: Pathlike) -> Path:
        """Write the store and this table as they are now to ``path``; see `stepwell.replay.checkpoint`."""
        from stepwell.replay.checkpoints import checkpoint

        return checkpoint(path, [self])

    def save(self, path: Pathlike) -> Path:
        """Write the store and this table to a directory or a ``.tar`` file; see `stepwell.replay.save`."""
        from stepwell.replay.checkpoints import save

        return save(path, [self])

    @classmethod
    def restore(
        cls,
        path: Pathlike,
        name: str = "replay",
        *,
        to: Pathlike | None = None,
        mode: Mode = "a",
        **changes: Unpack[TableChanges],
    ) -> Table:
        """Return a table of a checkpoint, over the checkpoint's store or a copy of it; see `stepwell.replay.restore`.

        Args:
            path: of the checkpoint.
            name: of the table.
            to: a directory to make, so that the checkpoint stays as it is.
            mode: how the store is opened.
            changes: arguments of `Table` that shall be others than they were, extensions among them.
        """
        from stepwell.replay.checkpoints import restore

        return restore(path, to=to, mode=mode, names=[name], changes={name: changes})[name]

    def __reduce__(self) -> NoReturn:
        raise TableError(f"table {self.name!r} is of one process. In another one make a table over the same store.")


def _drawn_once(limiter: Limiter, max_size: int) -> dict[str, Any]:
    return {"limiter": limiter, "max_size": max_size, "max_times_sampled": 1}
