"""The pool: blocks of decoded rows in memory that is used again and again.

::

    jobs ---- PoolSupply.groups ----> group of jobs, and where the next one begins
                                        |
              PoolSupply.supply: which blocks they need, which come next ----> tasks that load blocks (any thread)
                                        |                                            |
                                  job.blocks (HeldBlocks)  <-------------------------'  built when all are loaded

::

    slot        0          1          2          3          4         num_slots = 5, each of Blocks.max_bytes
    block       12         3          40         7          -
    read by     2 jobs     1 job      nobody     nobody
    next turn   now        now        none       soon                  the order says which blocks come next
                                      |          `- being loaded
                                      `- leaves first when a block needs a slot

A block is loaded by one thread, once; a batch is built when its blocks are there (`BlockPool.when_loaded`). The table
of addresses has a column for each piece of each slot; the window kernel finds held rows in it as it finds those of
maps. Slots are given out and taken back in the consumer's thread alone; the others only load and read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.loader.jobs import Job
from stepwell.loader.pipeline import Supplied, Task
from stepwell.order import BoundPooled
from stepwell.windows import aligned_empty
from stepwell.windows.blocks import HeldRows

if TYPE_CHECKING:
    from stepwell.windows.blocks import Blocks
    from stepwell.windows.maps import MapTable
    from stepwell.windows.plans import Reach

__all__ = ["BlockPool", "HeldBlocks", "PieceLoader", "PoolSupply"]

Int64s = npt.NDArray[np.int64]
# Where rows of pixels begin at multiples of 32 bytes, libjpeg-turbo (AVX2) writes around the cache, which takes longer
# than it saves: a codec may decode to odd addresses directly. A few percent of a frame of 224 x 224.
ODD_BYTES = 1


class PieceLoader(Protocol):
    """What brings rows into memory (`stepwell.windows.blocks.RowLoader` is the real one)."""

    columns: tuple[Reach, ...]

    def new_table(self, num_pieces: int) -> MapTable:
        """Return an empty table for so many held pieces."""

    def num_bytes(self, pieces: Int64s) -> Int64s:
        """Return the memory that pieces take, int64 [q]."""

    def load(self, piece: Int64s, memory: npt.NDArray[np.uint8]) -> Int64s:
        """Bring the rows of a piece into memory, and return their column of addresses, int64 [2C]."""


class BlockPool:
    """Hold blocks, in at most ``num_slots`` slots unless one job needs more.

    Attributes:
        slot_bytes: memory of the largest block.

    Notes:
        Memory is taken when a slot is first used and kept for as long as the pool lives: at most
        ``num_slots * slot_bytes``, and what the oldest job needs beyond that while it is under way. `take`,
        `take_ahead`, `held`, `give_back` and `settle` are for one thread at a time; tasks and held blocks are for any.
    """

    def __init__(self, blocks: Blocks, rows: PieceLoader, num_slots: int) -> None:
        self.blocks, self.num_slots = blocks, num_slots
        self._rows = rows
        self._num_pieces = int(np.diff(blocks.piece_starts).max(initial=1))
        # int64 [Q + 1], where each piece would begin if all were held at once
        self._ends = np.concatenate(([0], np.cumsum(rows.num_bytes(blocks.pieces))))
        self.slot_bytes = int(np.diff(self._ends[blocks.piece_starts]).max(initial=0))
        self._slots: list[_Slot] = []
        self._by_block: dict[int, _Slot] = {}
        self._loading: list[_Slot] = []
        self._free_numbers = list(range(num_slots - 1, -1, -1))
        has_bytes_only = all(column.dtype.itemsize == 1 for column in rows.columns)
        self._first_byte = ODD_BYTES if has_bytes_only else 0
        # column of the table in which each piece lies, where it is held
        self._columns = np.zeros(len(blocks.pieces), dtype=np.int64)
        self._table = rows.new_table(num_slots * self._num_pieces)
        # the table may grow while threads fill in what they have loaded
        self._lock = threading.Lock()
        self._clock = 0
        # of blocks that will be needed, which comes first, second ...
        self._turns: dict[int, int] = {}
        # while slots change hands: Ctrl-C may come between any two statements
        self._is_torn = False

    @property
    def num_held(self) -> int:
        """Blocks that are held or being loaded."""
        return len(self._by_block)

    @property
    def num_bytes(self) -> int:
        """Memory of the slots."""
        return sum(slot.memory.nbytes for slot in self._slots if slot.memory is not None)

    def take(self, needed: Sequence[int], upcoming: Sequence[int], *, is_forced: bool) -> list[Task] | None:
        """Hold blocks for one reader until `give_back`."""
        missing = [block for block in needed if block not in self._by_block]
        if missing and not is_forced and len(missing) > self._num_free(needed):
            return None
        self._is_torn = True
        self._clock += 1
        self._turns = {block: turn for turn, block in enumerate(upcoming)}
        for block in needed:
            slot = self._by_block.get(block)
            if slot is not None:
                slot.hold(self._clock)
        tasks = []
        for block in missing:
            empty = self._empty_slot() or self._new_slot()
            tasks.append(self._load_into(empty, block))
            empty.hold(self._clock)
        self._is_torn = False
        return tasks

    def take_ahead(self, limit: int) -> list[Task]:
        """Begin to load the upcoming blocks of the last `take`, where no block must go that is needed as well."""
        absent = [block for block in self._turns if block not in self._by_block]
        if not absent:
            return []
        self._loading = [slot for slot in self._loading if not slot.is_loaded]
        limit -= len(self._loading)
        tasks: list[Task] = []
        self._is_torn = True
        for block in absent[: max(limit, 0)]:
            slot = self._empty_slot(but=self._turns)
            if slot is None:
                break
            tasks.append(self._load_into(slot, block))
        self._is_torn = False
        return tasks

    def when_loaded(self, needed: Sequence[int], call: Callable[[], object]) -> None:
        """Call a function once, when blocks that are held by `take` are loaded: now, or in the thread of the last."""
        countdown = _Countdown(len(needed) + 1, call)
        for block in needed:
            self._by_block[block].then(countdown)
        countdown()

    def held(self, needed: Sequence[int], anchors: Int64s) -> HeldBlocks:
        """Return the rows that the windows of anchors reach, from blocks that are held by `take`."""
        return HeldBlocks(self, [self._by_block[block] for block in needed], anchors)

    def give_back(self, needed: Sequence[int]) -> None:
        """Let go of blocks that `take` held."""
        self._is_torn = True
        for block in needed:
            self._by_block[block].num_readers -= 1
        self._shrink()
        self._is_torn = False

    def settle(self) -> None:
        """Let go of everything and forget what was not loaded; no thread may use the pool."""
        if self._is_torn:
            self._forget()
        for slot in self._slots:
            slot.num_readers = 0
            if not slot.is_loaded or slot.error is not None:
                self._empty(slot)
        self._loading = []
        self._shrink()

    def rows_of(self, anchors: Int64s, in_place: frozenset[str] = frozenset()) -> HeldRows:
        """Return where the rows of anchors lie; their blocks are held and loaded."""
        return HeldRows(self._table, self._columns[self.blocks.piece_of(anchors)], self, in_place)

    def fill(self, slot: _Slot, block: int) -> None:
        """Load a block into a slot, in any thread."""
        memory = slot.memory
        if memory is None:
            memory = slot.memory = aligned_empty(self.slot_bytes + self._first_byte)[self._first_byte :]
        first, last = self.blocks.piece_starts[block : block + 2].tolist()
        edges = (self._ends[first : last + 1] - self._ends[first]).tolist()
        found = [
            self._rows.load(piece, memory[begin:end])
            for piece, begin, end in zip(self.blocks.pieces[first:last], edges, edges[1:], strict=False)
        ]
        column = slot.number * self._num_pieces
        with self._lock:
            self._table.addresses[:, column : column + len(found)] = np.stack(found, axis=1)

    def _num_free(self, needed: Sequence[int]) -> int:
        """Return how many slots there are for blocks that are not held, those of ``needed`` not counted."""
        kept = set(needed)
        unused = max(0, self.num_slots - len(self._slots))
        return unused + sum(slot.is_free and slot.block not in kept for slot in self._slots)

    def _empty_slot(self, but: Collection[int] = ()) -> _Slot | None:
        """Return a slot that holds nothing, perhaps after the block that is of the least use has left it."""
        slots = [slot for slot in self._slots if slot.is_free and slot.block not in but]
        if len(self._slots) < self.num_slots and all(slot.block is not None for slot in slots):
            return self._new_slot()
        if not slots:
            return None
        slot = max(slots, key=self._uselessness)
        self._empty(slot)
        return slot

    def _new_slot(self) -> _Slot:
        number = self._free_numbers.pop() if self._free_numbers else len(self._slots)
        size = (number + 1) * self._num_pieces
        if size > self._table.addresses.shape[1]:
            with self._lock:
                table = self._rows.new_table(2 * size)
                table.addresses[:, : self._table.addresses.shape[1]] = self._table.addresses
                self._table = table
        slot = _Slot(number)
        self._slots.append(slot)
        return slot

    def _load_into(self, slot: _Slot, block: int) -> Task:
        slot.begin(block, self._clock)
        self._by_block[block] = slot
        self._loading.append(slot)
        first, last = self.blocks.piece_starts[block : block + 2].tolist()
        column = slot.number * self._num_pieces
        self._columns[first:last] = np.arange(column, column + last - first)
        return partial(slot.load, self)

    def _empty(self, slot: _Slot) -> None:
        if slot.block is not None:
            del self._by_block[slot.block]
        slot.clear()

    def _shrink(self) -> None:
        """Give up slots beyond `num_slots`, as far as nobody reads them."""
        while len(self._slots) > self.num_slots:
            free = [slot for slot in self._slots if slot.is_free]
            if not free:
                return
            slot = max(free, key=self._uselessness)
            self._empty(slot)
            self._slots.remove(slot)
            self._free_numbers.append(slot.number)

    def _forget(self) -> None:
        """Hold nothing: nobody knows which block is where after a change that was broken off."""
        self._slots = []
        self._by_block = {}
        self._free_numbers = list(range(self.num_slots - 1, -1, -1))
        # it may be held by what was broken off
        self._lock = threading.Lock()
        self._is_torn = False

    def _uselessness(self, slot: _Slot) -> tuple[float, int]:
        """Return the eviction priority of a slot: free, unused, used furthest in the future, least recently used."""
        if slot.block is None:
            return np.inf, 1
        return self._turns.get(slot.block, len(self._turns)), -slot.last_taken


class HeldBlocks:
    """The rows of one batch, in blocks that are held for it.

    Args:
        pool: that holds them.
        slots: of the blocks.
        anchors: int64 [n].
    """

    __slots__ = ("_anchors", "_pool", "_slots")

    def __init__(self, pool: BlockPool, slots: Sequence[_Slot], anchors: Int64s) -> None:
        self._pool, self._slots, self._anchors = pool, slots, anchors

    def wait(self, in_place: frozenset[str] = frozenset()) -> HeldRows:
        """Return the rows once they are loaded; ``in_place``: as of `HeldRows`."""
        for slot in self._slots:
            slot.wait()
        return self._pool.rows_of(self._anchors, in_place)


class PoolSupply:
    """Hold the blocks of batches under way in a pool, and load ahead those of the next."""

    def __init__(self, pool: BlockPool, num_ahead: int, on_end: Callable[[BlockPool], object]) -> None:
        self._pool = pool
        self._num_ahead = num_ahead
        self._on_end = on_end
        # of each group under way
        self._needed: deque[list[int]] = deque()
        # the epoch and position with which the batch after the latest group begins; None after the last
        self._next: tuple[int, int] | None = None

    def groups(self, jobs: Iterator[Job], size: int) -> Iterator[list[Job]]:
        """Yield jobs, whose anchors are known, in groups; when one is yielded it is known where the next begins."""
        group: list[Job] = []
        for job in jobs:
            if len(group) == size:
                span = job.share.spans[0]
                self._next = span.epoch, span.start
                yield group
                group = []
            group.append(job)
        self._next = None
        if group:
            yield group

    def supply(self, jobs: list[Job], is_oldest: bool) -> Supplied | None:
        """Take the blocks of the latest group; see `stepwell.loader.pipeline.Supply`."""
        anchors = [job.anchors for job in jobs if job.anchors is not None]
        # each waits for its own: an error belongs to the batch that needs the block
        each = [np.unique(self._pool.blocks.block_of(own)).tolist() for own in anchors]
        together = sorted({block for blocks in each for block in blocks})
        tasks = self._pool.take(together, self._upcoming(jobs[-1]), is_forced=is_oldest)
        if tasks is None:
            return None
        for job, blocks, own in zip(jobs, each, anchors, strict=True):
            job.blocks = self._pool.held(blocks, own)
        self._needed.append(together)
        tasks += self._pool.take_ahead(self._num_ahead)
        return Supplied(tasks, partial(self._pool.when_loaded, together))

    def release(self, jobs: list[Job]) -> None:
        """Let go of the blocks of the oldest group."""
        self._pool.give_back(self._needed.popleft())

    def end(self) -> None:
        """Give the pool back."""
        self._pool.settle()
        self._on_end(self._pool)

    def _upcoming(self, job: Job) -> list[int]:
        """Return the blocks that will be needed after a group, soonest first."""
        if self._next is None or not isinstance(job.order, BoundPooled):
            return []
        blocks: list[int] = job.order.entering(*self._next, job.order.num_resident + self._num_ahead).tolist()
        return blocks


class _Slot:
    """Memory for one block, and what is known of the block in it.

    Attributes:
        is_loaded: whether no thread writes to it, or will.
    """

    __slots__ = (
        "_calls",
        "_done",
        "_lock",
        "block",
        "error",
        "is_loaded",
        "last_taken",
        "memory",
        "num_readers",
        "number",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self._lock = threading.Lock()
        self._calls: list[Callable[[], object]] = []
        self.memory: npt.NDArray[np.uint8] | None = None
        self.last_taken = self.num_readers = 0
        self.clear()

    @property
    def is_free(self) -> bool:
        """Whether its block may leave."""
        return self.num_readers == 0 and self.is_loaded

    def clear(self) -> None:
        """Hold nothing."""
        self.block: int | None = None
        self.error: BaseException | None = None
        self.is_loaded = True

    def hold(self, clock: int) -> None:
        """Count one more reader."""
        self.num_readers += 1
        self.last_taken = clock

    def begin(self, block: int, clock: int) -> None:
        """Take a block that is going to be loaded."""
        self.block, self.last_taken = block, clock
        self._done = threading.Event()
        self._calls = []
        # what a load that was broken off left behind may still be held
        self._lock = threading.Lock()
        self.is_loaded = False

    def then(self, call: Callable[[], object]) -> None:
        """Call a function when the block is loaded, now if it is."""
        with self._lock:
            if not self.is_loaded:
                self._calls.append(call)
                return
        call()

    def load(self, pool: BlockPool) -> None:
        """Load the block; `wait` raises its error."""
        done = self._done
        try:
            if self.block is not None:
                pool.fill(self, self.block)
        except BaseException as error:
            self.error = error
        finally:
            with self._lock:
                calls, self._calls = self._calls, []
                # last: from here on the slot may be given to another block
                self.is_loaded = True
            done.set()
            for call in calls:
                call()

    def wait(self) -> None:
        """Return when the block is loaded."""
        # mostly it is, and a look at an Event costs more than that
        if not self.is_loaded:
            self._done.wait()
        if self.error is not None:
            raise self.error


class _Countdown:
    """Call a function at the last of so many calls, in whichever threads they come."""

    __slots__ = ("_call", "_left", "_lock")

    def __init__(self, number: int, call: Callable[[], object]) -> None:
        self._left, self._call = number, call
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._call()
