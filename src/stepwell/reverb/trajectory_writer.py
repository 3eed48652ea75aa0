"""The writer of items: steps are kept here until an item refers to them, and sent once.

::

    append(step) --> rows of values --> history[column][-3:] --> create_item --> items that wait
                                                                                   | a thread: the rows that the server
                                                                                   v lacks, and the items
                                                                                 server --> how many are in: flush
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from stepwell.reverb.errors import DeadlineExceededError
from stepwell.reverb.server import pack_strings
from stepwell.reverb.specs import TensorSpec, as_array, dtype_text, import_tree, shape_text
from stepwell.service.client import Sender
from stepwell.service.messages import PROTOCOL, Kind, pack, unpack

if TYPE_CHECKING:
    from stepwell.reverb.client import Client

__all__ = ["TrajectoryColumn", "TrajectoryWriter"]

# of one message: items, and bytes of rows
MOST_ITEMS, MOST_BYTES = 1024, 4 << 20
MANY_ITEMS = 64
CLOSED = "the writer is closed. Call client.trajectory_writer() for a new one."


class _Row:
    """What one call of append gave: values of some columns."""

    __slots__ = ("number", "paths", "values")

    def __init__(self, paths: tuple[str, ...], values: list[npt.NDArray[Any]]) -> None:
        self.paths, self.values = paths, values
        # among the rows that were sent; -1: not yet
        self.number = -1


class _Cell(NamedTuple):
    """A value: the row that it is of, and which of its values it is."""

    row: _Row
    leaf: int
    episode: int

    @property
    def value(self) -> npt.NDArray[Any]:
        return self.row.values[self.leaf]


class _Column:
    """The values of one column of the steps: those of the last ``keep`` steps are alive."""

    def __init__(self, path: str, value: npt.NDArray[Any], keep: int, num_steps: int) -> None:
        self.path, self.dtype, self.shape = path, value.dtype, value.shape
        # cells so far, and before the history that is shown; steps before the first value have none
        self.cells: deque[_Cell | None] = deque([None] * min(num_steps, keep), maxlen=keep)
        self.total, self.start = num_steps, 0

    def begin_step(self) -> None:
        """Add a cell without a value."""
        self.cells.append(None)
        self.total += 1

    def clear(self) -> None:
        self.cells.clear()
        self.start = self.total

    def find(self, number: int) -> _Cell:
        """Return the cell with a number; ValueError: it is not kept any more, or was never given."""
        at = number - (self.total - len(self.cells))
        if at < 0:
            raise ValueError(
                f"column {self.path!r}: step {number - self.start} is not kept any more; num_keep_alive_refs="
                f"{self.cells.maxlen} are. Column contains expired CellRef."
            )
        cell = self.cells[at]
        if cell is None:
            raise ValueError(f"column {self.path!r}: step {number - self.start} has no value (None).")
        return cell


class _History:
    """One column of a writer's history, which slices make columns of items of."""

    def __init__(self, column: _Column) -> None:
        self._column = column

    def __len__(self) -> int:
        return self._column.total - self._column.start

    def __getitem__(self, which: Any) -> TrajectoryColumn:
        """Return the steps of an index (without the dimension of the steps), a slice or a list of indices."""
        count = len(self)
        numbers: list[int]
        if isinstance(which, slice):
            numbers, is_squeezed = list(range(*which.indices(count))), False
        elif isinstance(which, int | np.integer):
            numbers, is_squeezed = [_index(int(which), count, self._column.path)], True
        else:
            numbers, is_squeezed = [_index(int(each), count, self._column.path) for each in which], False
        first = self._column.start
        column = TrajectoryColumn(self._column, [first + number for number in numbers], is_squeezed)
        for number in column.numbers:
            self._column.find(number)
        return column

    def __repr__(self) -> str:
        return f"<history of {self._column.path!r}: {len(self)} steps>"


def _index(number: int, count: int, path: str) -> int:
    if not -count <= number < count:
        raise IndexError(f"column {path!r} has {count} steps in this episode, none with index {number}.")
    return number % count


class TrajectoryColumn:
    """A column of an item: values of some steps of one column of a writer's history.

    Made by ``writer.history[name][index]``; an index gives one value without the dimension of the steps.

    Example:
        >>> from stepwell import reverb
        >>> server = reverb.Server([reverb.Table.queue("queue", 10)])
        >>> with server.localhost_client().trajectory_writer(3) as writer:
        ...     for step in range(3):
        ...         _ = writer.append({"reward": float(step)})
        ...     column = writer.history["reward"][-2:]
        ...     column.shape, column.numpy().tolist()
        ((2,), [1.0, 2.0])
        >>> server.stop()
    """

    def __init__(self, column: _Column, numbers: list[int], is_squeezed: bool) -> None:
        self._column, self.numbers, self.is_squeezed = column, numbers, is_squeezed

    @property
    def path(self) -> str:
        """Of the column that the values are of."""
        return self._column.path

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        return self._column.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the column: [n, ...], or that of a value."""
        return self._column.shape if self.is_squeezed else (len(self.numbers), *self._column.shape)

    @property
    def cells(self) -> list[_Cell]:
        """The values; ValueError: some are not kept any more."""
        return [self._column.find(number) for number in self.numbers]

    def numpy(self) -> npt.NDArray[Any]:
        """Return the values as an array.

        Raises:
            ValueError: some are not kept any more.
        """
        values = [cell.value for cell in self.cells]
        return values[0].copy() if self.is_squeezed else _stacked(values)

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, which: Any) -> TrajectoryColumn:
        if self.is_squeezed:
            raise TypeError(f"column {self.path!r} is one value, and cannot be indexed.")
        if isinstance(which, slice):
            return TrajectoryColumn(self._column, self.numbers[which], False)
        return TrajectoryColumn(self._column, [self.numbers[which]], True)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.asarray(self.numpy(), dtype)

    def __repr__(self) -> str:
        return f"<TrajectoryColumn of {self.path!r}: {self.dtype}{list(self.shape)}>"


class _Item(NamedTuple):
    table: str
    priority: float
    columns: list[tuple[list[_Cell], bool]]


class TrajectoryWriter:
    """Write steps, and items over them, to a server; made by `Client.trajectory_writer`.

    Args:
        client: of the server.
        num_keep_alive_refs: steps that items may refer to: the last so many.
        validate_items: compare items with the signatures of tables, and refuse others at once.

    Raises:
        ValueError: a number that is none.

    Notes:
        One thread at a time. Values are copied. Items are sent by a thread, those that wait in one message; `flush`
        waits until they are in their tables. Over a lost connection items are sent again, and are in once.
    """

    def __init__(self, client: Client, num_keep_alive_refs: int, *, validate_items: bool = True) -> None:
        if not isinstance(num_keep_alive_refs, int | np.integer) or num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs={num_keep_alive_refs!r} must be a whole number, at least 1.")
        self._client, self._keep, self._validates = client, int(num_keep_alive_refs), validate_items
        self._columns: dict[str, _Column] = {}
        # the nest of all columns so far, of their paths and of their histories
        self._shape: Any = None
        self._history: Any = None
        # steps of the episode, and of the history; number of the episode; whether its last step is a partial one
        self._steps = self._history_steps = self._episode = 0
        self._is_partial = False
        self._keeps: dict[str, int] = {}
        self._is_closed = False
        self._specs: dict[str, list[TensorSpec] | None] | None = None
        self._sender = _Sender(client, 2 * self._keep + 64)

    # steps

    def append(self, data: Any, *, partial_step: bool = False) -> None:
        """Add a step, or a part of one.

        Args:
            data: a nest of values: arrays, numbers, bools, a str or bytes; None where a column has no value. New
                columns may come with any step: the earlier steps have None there.
            partial_step: whether more columns of this step follow.

        Raises:
            ValueError: another dtype or shape than a column had before, or a column that this step has already.
            TypeError: a value that cannot be stored.
        """
        self.add(data, partial_step=partial_step)

    def add(self, data: Any, *, partial_step: bool) -> list[_Cell | None]:
        """Do what `append` says; return the values as cells, in dm-tree's order."""
        self._check()
        given: list[tuple[str, npt.NDArray[Any] | None]] = []
        for number, (path, leaf) in enumerate(import_tree().flatten_with_path(data)):
            name = "/".join(map(str, path))
            told = f"{number} (path={path})"
            given.append((name, None if leaf is None else self._checked(name, told, as_array(leaf))))
        shape = _merge(self._shape, data, ())
        values = {name: np.array(value) for name, value in given if value is not None}
        if not self._is_partial:
            for column in self._columns.values():
                column.begin_step()
            self._history_steps += 1
        row = _Row(tuple(values), list(values.values()))
        cells = {name: _Cell(row, leaf, self._episode) for leaf, name in enumerate(values)}
        for name, cell in cells.items():
            if name not in self._columns:
                keep = self._keeps.get(name, self._keep)
                self._columns[name] = _Column(name, cell.value, keep, self._history_steps)
            self._columns[name].cells[-1] = cell
        self._is_partial = partial_step
        self._steps += not partial_step
        if shape != self._shape:
            self._shape, self._history = shape, _with_histories(shape, self._columns)
        return [cells.get(name) if value is not None else None for name, value in given]

    def _checked(self, name: str, told: str, value: npt.NDArray[Any]) -> npt.NDArray[Any]:
        column = self._columns.get(name)
        if column is not None:
            if value.dtype != column.dtype:
                raise ValueError(
                    f"Tensor of wrong dtype provided for column {told}. Got {dtype_text(value.dtype)} but expected "
                    f"{dtype_text(column.dtype)}."
                )
            if value.shape != column.shape:
                raise ValueError(
                    f"Tensor of incompatible shape provided for column {told}. Got {shape_text(value.shape)} which is "
                    f"incompatible with {shape_text(column.shape)}."
                )
            if self._is_partial and column.cells and column.cells[-1] is not None:
                raise ValueError(
                    f"Field {name} has already been set in the active step by previous (partial) append call and thus "
                    f"must be omitted or set to None but got: {value}"
                )
        return value

    @property
    def history(self) -> Any:
        """A nest like the steps: of each column the steps of this episode, to be indexed and sliced."""
        if self._history is None:
            raise RuntimeError("there is no history before the first append.")
        return self._history

    @property
    def episode_steps(self) -> int:
        """Steps of the episode, partial ones not counted."""
        return self._steps

    def configure(self, path: Sequence[Any], *, num_keep_alive_refs: int, max_chunk_length: int | None = None) -> None:
        """Keep another number of steps of one column.

        Args:
            path: of the column, as of dm-tree's ``flatten_with_path``.
            num_keep_alive_refs: steps of it that items may refer to.
            max_chunk_length: is checked, and not needed: steps are not sent in chunks.
        """
        name = "/".join(map(str, path))
        if num_keep_alive_refs < 1:
            raise ValueError(f"num_keep_alive_refs={num_keep_alive_refs!r} must be at least 1.")
        if max_chunk_length is not None and not 1 <= max_chunk_length <= num_keep_alive_refs:
            raise ValueError(
                f"max_chunk_length={max_chunk_length!r} must be None, or between 1 and num_keep_alive_refs="
                f"{num_keep_alive_refs}."
            )
        self._keeps[name] = num_keep_alive_refs
        column = self._columns.get(name)
        if column is not None:
            column.cells = deque(column.cells, maxlen=num_keep_alive_refs)

    # items

    def create_item(self, table: str, priority: float, trajectory: Any) -> None:
        """Insert an item, as soon as the table's limiter lets it in; does not wait for that.

        Args:
            table: name of the table.
            priority: of the item, finite and not negative.
            trajectory: a nest of `TrajectoryColumn`, of any structure and lengths.

        Raises:
            ValueError: an unknown table, a bad priority, no columns, steps that are not kept any more, or columns that
                are not those of the table's signature.
            TypeError: something else than columns.
        """
        self._check()
        flat = import_tree().flatten(trajectory)
        if not flat:
            raise ValueError("an item without columns.")
        for each in flat:
            if not isinstance(each, TrajectoryColumn):
                raise TypeError(f"an item of {type(each).__name__}. It is made of columns: writer.history[name][-3:].")
            if not len(each):
                raise ValueError(f"an item of an empty column {each.path!r}.")
        self.insert(table, priority, [(each.cells, each.is_squeezed) for each in flat], [each.path for each in flat])

    def insert(
        self, table: str, priority: float, columns: list[tuple[list[_Cell], bool]], paths: Sequence[str]
    ) -> None:
        """Do what `create_item` says with columns of cells."""
        number = float(priority)
        if not 0.0 <= number < np.inf:
            raise ValueError(f"priority {priority!r}: it must be finite and not negative.")
        if self._validates:
            self._validate(table, columns, paths)
        self._sender.put(_Item(table, number, columns))

    def _validate(self, table: str, columns: list[tuple[list[_Cell], bool]], paths: Sequence[str]) -> None:
        if self._specs is None or table not in self._specs:
            self._specs = self._client.table_specs()
        if table not in self._specs:
            raise ValueError(
                f"Unable to create item in table {table!r} since the table could not be found. The server has: "
                f"{', '.join(self._specs)}."
            )
        specs = self._specs[table]
        if specs is None:
            return
        if len(specs) != len(columns):
            raise ValueError(f"an item of {len(columns)} columns for table {table!r}: its signature has {len(specs)}.")
        for spec, (cells, is_squeezed), path in zip(specs, columns, paths, strict=True):
            value = cells[0].value
            shape = value.shape if is_squeezed else (len(cells), *value.shape)
            if not spec.admits(value.dtype, shape):
                raise ValueError(
                    f"column {path!r} of an item for table {table!r} is {TensorSpec(shape, value.dtype).text}, and the "
                    f"signature has {spec.text}" + (f" ({spec.name})." if spec.name else ".")
                )

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Wait until at most so many items are not in their tables.

        Raises:
            DeadlineExceededError: the time is over; what waits is still sent.
            ValueError: a negative number.
        """
        self._check()
        if block_until_num_items < 0:
            raise ValueError(f"block_until_num_items={block_until_num_items} must not be negative.")
        self._sender.wait(block_until_num_items, _seconds(timeout_ms))

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Begin another episode, when all items are in their tables.

        Args:
            clear_buffers: whether items cannot refer to the steps before any more.
            timeout_ms: to wait; None: without end.

        Raises:
            DeadlineExceededError: the time is over, and the episode is not ended.
        """
        self._check()
        self._sender.wait(0, _seconds(timeout_ms))
        self._is_partial = False
        self._sender.end_episode()
        self._episode += 1
        self._steps = 0
        if clear_buffers:
            self._history_steps = 0
            for column in self._columns.values():
                column.clear()

    def close(self) -> None:
        """End without waiting: items that were not sent are dropped."""
        self._is_closed = True
        self._sender.stop()

    def _check(self) -> None:
        if self._is_closed:
            raise RuntimeError(CLOSED)
        self._sender.raise_error()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and not self._is_closed:
                self.flush()
        finally:
            self.close()


def _seconds(timeout_ms: int | None) -> float | None:
    return None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000


def _merge(known: Any, new: Any, path: tuple[Any, ...]) -> Any:
    if new is None:
        return known
    tree = import_tree()
    if not tree.is_nested(new):
        if known is not None and tree.is_nested(known):
            raise ValueError(f"{'/'.join(map(str, path))!r} is a value here, and was a nest before.")
        return "/".join(map(str, path))
    if known is not None and not tree.is_nested(known):
        raise ValueError(f"{'/'.join(map(str, path))!r} is a nest here, and was a value before.")
    if isinstance(new, Mapping):
        old = {} if known is None else known
        if not isinstance(old, Mapping):
            raise ValueError(f"{'/'.join(map(str, path))!r} is a mapping here, and was none before.")
        names = [*old, *(name for name in new if name not in old)]
        return {name: _merge(old.get(name), new.get(name), (*path, name)) for name in names}
    if hasattr(new, "_fields"):
        parts = {
            name: _merge(None if known is None else getattr(known, name, None), getattr(new, name), (*path, name))
            for name in new._fields
        }
        return type(new)(**parts)
    if isinstance(new, list | tuple):
        old_values = [] if known is None else list(known)
        if known is not None and not isinstance(known, list | tuple):
            raise ValueError(f"{'/'.join(map(str, path))!r} is a sequence here, and was none before.")
        count = max(len(new), len(old_values))
        parts_list = [
            _merge(
                old_values[number] if number < len(old_values) else None,
                new[number] if number < len(new) else None,
                (*path, number),
            )
            for number in range(count)
        ]
        return type(new)(parts_list)
    return tree.map_structure_with_path(lambda inner, leaf: "/".join(map(str, (*path, *inner))), new)


def _with_histories(shape: Any, columns: Mapping[str, _Column]) -> Any:
    """Return a nest of paths as one of the columns' histories; of columns that had no value yet None."""
    tree = import_tree()
    return tree.map_structure(lambda path: _History(columns[path]) if path in columns else None, shape)


class _Sender(Sender):
    """Sends items, and the rows that they refer to, over one connection after the other, until they are in."""

    def __init__(self, client: Client, num_kept: int) -> None:
        super().__init__(client.connection, "insert", "stepwell trajectory writer")
        self._name = f"{os.uname().nodename}-{os.getpid()}-{os.urandom(8).hex()}"
        # items, and ends of episodes (None), that are not known to be in; the number of the first; how many were sent
        self._entries: deque[_Item | None] = deque()
        self._first = self._num_sent = 0
        # rows so far, and those that items may still refer to
        self._num_rows = 0
        self._rows: deque[_Row] = deque()
        self._num_kept = num_kept

    def put(self, item: _Item | None) -> None:
        """Send an item, or the end of an episode, in time."""
        with self.changed:
            self._entries.append(item)
            if not self._is_begun:
                self.start()
            self.changed.notify_all()

    def end_episode(self) -> None:
        """Say that an episode has ended, where anything was sent."""
        if self._is_begun:
            self.put(None)

    @property
    def _is_begun(self) -> bool:
        return self._thread.ident is not None

    def wait(self, most: int, seconds: float | None) -> None:
        """Wait until at most so many items are not in."""
        with self.changed:
            self.wait_until(lambda: self._num_waiting <= most, seconds, self._not_in_time)
            self.raise_error()

    def _not_in_time(self) -> DeadlineExceededError:
        return DeadlineExceededError(
            f"Timeout: {self._num_waiting} items are not in their tables yet. A rate limiter may hold them; they are "
            "still sent."
        )

    @property
    def _num_waiting(self) -> int:
        return sum(entry is not None for entry in self._entries)

    def stop(self) -> None:
        """End the connection at once."""
        with self.changed:
            self._stopped.set()
            self.changed.notify_all()
            call = self._call
        if self._is_begun and self._thread is not threading.current_thread():
            # what was sent and is not in is dropped by the server, too, once it knows
            self._thread.join(1.0 if not self._entries else 0.0)
            if call is not None:
                call.cancel()
            self._thread.join(5.0)

    def _receive(self, data: bytes) -> None:
        head = unpack(data, Kind.WELCOME, Kind.ACK).head
        with self.changed:
            if "num_rows" in head:
                self._begin(int(head["num_rows"]))
            # entries that are in; those that the server had before its connection was lost were acknowledged late
            while self._first < int(head["num_entries"]) and self._entries:
                self._entries.popleft()
                self._first += 1
                self._num_sent = max(0, self._num_sent - 1)
            self.changed.notify_all()

    def _begin(self, num_rows: int) -> None:
        """Go on where the server is: one that was begun anew has no rows."""
        waiting = [cell.row for entry in self._entries if entry for cells, _ in entry.columns for cell in cells]
        for row in (*waiting, *self._rows):
            if row.number >= num_rows:
                row.number = -1
        self._rows = deque(row for row in self._rows if row.number >= 0)
        self._num_rows, self._num_sent, self._is_welcome = num_rows, 0, True

    def _requests(self, connection: int) -> Iterator[bytes]:
        """Yield what one connection sends; gRPC asks in a thread of its own."""
        yield pack(Kind.HELLO, {"protocol": PROTOCOL, "name": self._name, "first": self._first})
        while True:
            with self.changed:
                while not self._stopped.is_set() and self._connections == connection and not self._has_more:
                    self.changed.wait()
                if self._connections != connection:
                    return
                if self._stopped.is_set():
                    yield pack(Kind.BYE)
                    return
                data = self._message()
            yield data

    @property
    def _has_more(self) -> bool:
        num_new = len(self._entries) - self._num_sent
        # few wait for the answer to those before them, so that messages grow while the server is busy
        return self._is_welcome and num_new > 0 and (not self._num_sent or num_new >= MANY_ITEMS)

    def _message(self) -> bytes:
        """Return the next entries, and the rows that they need and the server lacks."""
        entries: list[_Item | None] = []
        rows: list[_Row] = []
        first, size, position = self._num_rows, 0, self._first + self._num_sent
        while self._num_sent < len(self._entries) and len(entries) < MOST_ITEMS and size < MOST_BYTES:
            entry = self._entries[self._num_sent]
            self._num_sent += 1
            entries.append(entry)
            for cells, _ in [] if entry is None else entry.columns:
                for cell in cells:
                    if cell.row.number < 0:
                        cell.row.number, self._num_rows = self._num_rows, self._num_rows + 1
                        rows.append(cell.row)
                        size += sum(value.nbytes for value in cell.row.values)
        self._rows += rows
        columns: dict[str, npt.NDArray[Any]] = {}
        runs = _write_rows(rows, columns)
        cells = [cell for entry in entries if entry for found, _ in entry.columns for cell in found]
        columns["refs"] = np.array([cell.row.number for cell in cells], np.int64)
        columns["leaves"] = np.array([cell.leaf for cell in cells], np.int32)
        records = [
            None
            if entry is None
            else [
                entry.table,
                entry.priority,
                [[len(found), is_squeezed] for found, is_squeezed in entry.columns],
                sorted({(self._name, cell.episode) for found, _ in entry.columns for cell in found}),
            ]
            for entry in entries
        ]
        # the server lets go of rows that are old; an item that refers to one all the same sends it again
        while len(self._rows) > self._num_kept:
            self._rows.popleft().number = -1
        keep = self._rows[0].number if self._rows else self._num_rows
        head = {"first_row": first, "rows": runs, "first": position, "entries": records, "keep": keep}
        return pack(Kind.STEPS, head, columns)


def _write_rows(rows: list[_Row], columns: dict[str, npt.NDArray[Any]]) -> list[tuple[tuple[str, ...], int]]:
    """Add the values of rows to the columns of a message; return runs of rows of equal structure."""
    runs: list[tuple[tuple[str, ...], int]] = []
    start = 0
    while start < len(rows):
        kind = _kind(rows[start])
        stop = start + 1
        while stop < len(rows) and _kind(rows[stop]) == kind:
            stop += 1
        for leaf in range(len(rows[start].values)):
            values = _stacked([row.values[leaf] for row in rows[start:stop]])
            columns.update(pack_strings(f"{len(runs)}:{leaf}", values))
        runs.append((rows[start].paths, stop - start))
        start = stop
    return runs


def _stacked(values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return values of one dtype and shape as an array [n, ...]."""
    out = np.empty((len(values), *values[0].shape), values[0].dtype)
    for at, value in enumerate(values):
        # of an array of objects without dimensions numpy would keep the array
        out[at] = value.item() if value.dtype == object else value
    return out


def _kind(row: _Row) -> tuple[Any, ...]:
    return row.paths, [(value.dtype, value.shape) for value in row.values]
