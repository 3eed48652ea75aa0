"""The server: tables of items over steps that writers send, for clients of any machine.

::

    TrajectoryWriter --- rows that items refer to, items ---> Session: rows to ids --> Steps     one thread,
                     <-- how many items are in --------------    '-(limiter)--> Table           one event loop
    Client.sample    --- so many of a table ---------------->  Table.draw --> Steps.read
                     <-- samples, several a message ---------
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import ServiceError, TableError
from stepwell.reverb.specs import import_tree
from stepwell.reverb.steps import MEMORY, Leaf, Steps
from stepwell.reverb.tables import Column, Table, Trajectory
from stepwell.service.host import Host
from stepwell.service.messages import PROTOCOL, Kind, Message, pack, unpack
from stepwell.service.server import Changes
from stepwell.service.settings import TLS, Limits, check_name
from stepwell.store.layout import ROW_BITS

if TYPE_CHECKING:
    from stepwell.reverb.checkpointers import CheckpointerBase
    from stepwell.reverb.client import Client

__all__ = ["Server", "nest_of", "pack_strings", "unpack_strings"]

Int64s = npt.NDArray[np.int64]
# how long a coroutine sleeps before it looks again
LOOK_SECONDS = 0.1
# items of one message of samples
MOST_ITEMS = 4096
MOST_LEAVES = 4096
# bytes of a writer's steps after which its episode is cut, so that its segment is sealed and can be let go of
CUT_BYTES = 1 << 20
SIZES = ":sizes"


class Server:
    """Serve tables to writers and learners, by Reverb's arguments.

    Args:
        tables: one or several, with different names.
        port: to listen at; None: any that is free.
        checkpointer: of `stepwell.reverb.checkpointers`; None: to a temporary directory.
        path: where steps are stored: a directory that does not exist yet, or ":memory:".
        address: the host to listen at, for clients of other machines: "0.0.0.0".
        tls: certificates; see `stepwell.service.TLS`.
        token: that clients must send.
        insecure: let other machines connect without either.
        limits: of messages, streams and memory.

    Raises:
        ValueError: no tables, or two of one name.
        ServiceError: a port that is taken, or an address that is open to other machines without a token or TLS.

    Example:
        >>> from stepwell import reverb
        >>> server = reverb.Server([reverb.Table.queue("queue", 10)])
        >>> client = server.localhost_client()
        >>> client.insert([1.0, 2.0], {"queue": 1.0})
        >>> [sample.data for sample in client.sample("queue", emit_timesteps=False)]
        [[array([1.]), array([2.])]]
        >>> server.stop()

    Notes:
        Steps lie in stores of stepwell, one for each structure of step, for as long as an item refers to a step of
        their segment.
    """

    def __init__(
        self,
        tables: Sequence[Table] | None = None,
        port: int | None = None,
        checkpointer: CheckpointerBase | None = None,
        *,
        path: str = MEMORY,
        address: str = "127.0.0.1",
        tls: TLS | None = None,
        token: str | None = None,
        insecure: bool = False,
        limits: Limits | None = None,
    ) -> None:
        from stepwell.reverb.checkpointers import default_checkpointer

        if not tables:
            raise ValueError("a server needs at least one table.")
        names = [table.name for table in tables]
        if len(set(names)) < len(names):
            raise ValueError(f"tables of one name: {', '.join(names)}. Give each a name of its own.")
        self.tables = {table.name: table for table in tables}
        self._steps = Steps(path)
        for table in tables:
            table.use(self._steps)
        self._checkpointer = default_checkpointer() if checkpointer is None else checkpointer
        self._checkpointer.load(self.tables, self._steps)
        self._token, self._tls = token, tls
        self._service = _Service(self)
        self._host = Host(
            f"{address}:{port or 0}",
            {"insert": self._service.insert, "sample": self._service.sample},
            self._service.answer,
            tls=tls,
            token=token,
            insecure=insecure,
            limits=limits or Limits(),
            on_stop=self._service.stop,
        )
        self._client_host = "localhost" if address in ("127.0.0.1", "0.0.0.0", "localhost") else address

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return self._host.port

    @property
    def num_segments(self) -> int:
        """Segments of steps that are kept."""
        return int(self._host.run(lambda: self._steps.num_segments))

    def stop(self) -> None:
        """Stop serving. Items are gone with the server, but for what its checkpointer was asked to write."""
        if self._host.is_running:
            self._host.stop()
            self._service.close()
            self._steps.close()

    def wait(self) -> None:
        """Wait until the server was stopped, by another thread."""
        self._host.wait()

    def localhost_client(self) -> Client:
        """Return a client of this server, for this machine."""
        from stepwell.reverb.client import Client

        return Client(f"{self._client_host}:{self.port}", token=self._token, tls=self._tls)

    @property
    def in_process_client(self) -> Client:
        """A client of this server, for this process."""
        return self.localhost_client()

    def save(self) -> str:
        """Write a checkpoint; returns its path. In the thread of the event loop."""
        return self._checkpointer.save(self.tables, self._steps)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<reverb.Server of {', '.join(self.tables)} at port {self.port}>"


class _Session:
    """What a writer has sent: which of its rows is which step, and how many of its items and ends are in."""

    def __init__(self, steps: Steps, first: int) -> None:
        self.steps = steps
        self.num_entries, self.num_rows = first, 0
        self.stream: object = None
        # rows that items may refer to: number to structure and id
        self._rows: dict[int, tuple[Any, int]] = {}
        self._lowest = 0
        self._writers: dict[int, tuple[Any, Any]] = {}
        self._bytes: dict[int, int] = {}

    def add_rows(self, message: Message) -> None:
        """Store the rows of a message, but for those that are stored already."""
        head, columns = message.head, message.columns
        number = int(head["first_row"])
        if number > self.num_rows:
            raise ServiceError(f"rows from {number} on, and {self.num_rows} are here: some before them are missing.")
        for run, (paths, count) in enumerate(head["rows"]):
            names = [f"{run}:{leaf}" for leaf in range(len(paths))]
            values = [_column(columns, name, int(count)) for name in names]
            leaves = tuple(
                Leaf(str(path), each.dtype, each.shape[1:]) for path, each in zip(paths, values, strict=True)
            )
            done = min(max(self.num_rows - number, 0), int(count))
            if done < count and leaves:
                self._append(leaves, [each[done:] for each in values])
            number += int(count)

    def _append(self, leaves: tuple[Leaf, ...], values: list[npt.NDArray[Any]]) -> None:
        structure = self.steps.structure(leaves)
        key, count = structure.first_leaf, len(values[0])
        if key not in self._writers:
            self._writers[key] = structure, structure.writer()
        writer = self._writers[key][1]
        rows = {
            name: list(each) if each.dtype == object else each
            for name, each in zip(structure.names, values, strict=True)
        }
        first = writer.append_batch(rows)
        structure.hold(first >> ROW_BITS, count)
        for offset in range(count):
            self._rows[self.num_rows + offset] = structure, first + offset
        self.num_rows += count
        self._bytes[key] = self._bytes.get(key, 0) + sum(each.nbytes for each in values) + 8 * count
        if self._bytes[key] > CUT_BYTES:
            writer.end_episode(truncated=True)
            self._bytes[key] = 0

    def end_episode(self) -> None:
        """End the open episode of what was stored."""
        for _, writer in self._writers.values():
            if writer.has_open_episode:
                writer.end_episode(truncated=True)

    def trajectory(self, columns: Any, refs: Int64s, leaves: npt.NDArray[np.int32], episodes: list[Any]) -> Trajectory:
        """Return an item of rows; ServiceError: rows that are not here, or values that do not go together."""
        found, segments, start = [], set(), 0
        known, steps = self._rows, self.steps
        rows, values = refs.tolist(), leaves.tolist()
        for size, is_squeezed in columns:
            stop = start + int(size)
            if not 0 < stop - start <= len(rows) - start or (is_squeezed and stop - start != 1):
                raise ServiceError(f"a column of {size} rows. It has one or more, exactly one where it is squeezed.")
            numbers, ids = [], []
            for row, leaf in zip(rows[start:stop], values[start:stop], strict=True):
                if row not in known:
                    raise ServiceError(f"an item of row {row}, which is not here. {len(known)} rows are.")
                structure, step = known[row]
                if not 0 <= leaf < len(structure.names):
                    raise ServiceError(f"an item of value {leaf} of a step that has {len(structure.names)}.")
                numbers.append(structure.first_leaf + leaf)
                ids.append(step)
                segments.add((structure, step >> ROW_BITS))
            kinds = {steps.leaf(number)[1:] for number in set(numbers)}
            if len(kinds) > 1:
                raise ServiceError(f"a column of values of different dtypes or shapes: {kinds}.")
            found.append(Column(np.array(numbers, np.int32), np.array(ids, np.int64), bool(is_squeezed)))
            start = stop
        if not found:
            raise ServiceError("an item without columns.")
        return Trajectory(found, episodes, tuple(segments))

    def forget_before(self, lowest: int) -> None:
        """Let go of rows that no item will refer to any more."""
        while self._lowest < min(lowest, self.num_rows):
            structure, number = self._rows.pop(self._lowest)
            structure.let_go(number >> ROW_BITS)
            self._lowest += 1

    def close(self) -> None:
        """Let go of everything: the client does not come back."""
        self.forget_before(self.num_rows)
        for structure, writer in self._writers.values():
            structure.give_back(writer)
        self._writers.clear()


class _Service:
    """The calls of clients; all of it runs in the thread of the event loop."""

    def __init__(self, server: Server) -> None:
        self._server, self._tables, self._steps = server, server.tables, server._steps
        self._changes = Changes()
        self._sessions: dict[str, _Session] = {}
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._is_stopping = False
        self._grace_seconds = 60.0
        # a client that begins anew can tell another server at the same address
        self._began = f"{socket.gethostname()}-{time.time_ns()}"

    def stop(self) -> None:
        """Let coroutines that wait end."""
        self._is_stopping = True
        self._changes.announce()

    def close(self) -> None:
        """Close the writers."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    # writers

    async def insert(self, grpc: Any, context: Any) -> None:
        """Store what a writer sends."""
        head = _hello(await context.read())
        name = check_name(head.get("name"), "a writer")
        session, stream = self._sessions.get(name), object()
        if session is None:
            # a new writer, or one whose server was another: it goes on with what was not acknowledged
            session = self._sessions[name] = _Session(self._steps, int(head.get("first", 0)))
        session.stream = stream
        if (timer := self._graces.pop(name, None)) is not None:
            timer.cancel()
        is_over = False
        try:
            state = {"num_entries": session.num_entries, "num_rows": session.num_rows}
            await context.write(pack(Kind.WELCOME, state))
            while (data := await context.read()) is not grpc.aio.EOF:
                message = unpack(data, Kind.STEPS, Kind.BYE)
                if session.stream is not stream:
                    raise ServiceError("another connection of this writer has taken its place.")
                if message.kind is Kind.BYE:
                    is_over = True
                    return
                await self._take(context, session, stream, message)
                await context.write(pack(Kind.ACK, {"num_entries": session.num_entries}))
        finally:
            if session.stream is stream:
                seconds = 0.0 if is_over or self._is_stopping else self._grace_seconds
                loop = asyncio.get_running_loop()
                self._graces[name] = loop.call_later(seconds, self._forget, name)

    async def _take(self, context: Any, session: _Session, stream: object, message: Message) -> None:
        """Store the rows, items and ends of a message, as limiters let them in."""
        head = message.head
        session.add_rows(message)
        number, start = int(head["first"]), 0
        if number > session.num_entries:
            raise ServiceError(f"items from {number} on, and {session.num_entries} are here.")
        refs, leaves = message.columns["refs"], message.columns["leaves"]
        for entry in head["entries"]:
            is_new = number >= session.num_entries
            number += 1
            if entry is None:
                if is_new:
                    session.end_episode()
            else:
                name, priority, columns, episodes = entry
                stop = start + sum(int(size) for size, _ in columns)
                if is_new:
                    given = session.trajectory(
                        columns, refs[start:stop], leaves[start:stop], [tuple(each) for each in episodes]
                    )
                    table = self._table(name)
                    if not table.can_insert(1):
                        # what waits meanwhile is less than the whole message
                        await context.write(pack(Kind.ACK, {"num_entries": session.num_entries}))
                        await self._wait_for(session, stream, table)
                    table.insert(given, float(priority))
                    self._changes.announce()
                start = stop
            session.num_entries = max(session.num_entries, number)
        session.forget_before(int(head["keep"]))

    async def _wait_for(self, session: _Session, stream: object, table: Table) -> None:
        while not table.can_insert(1):
            await self._changes.wait(LOOK_SECONDS)
            if session.stream is not stream or self._is_stopping:
                raise ServiceError("the connection of this writer has ended.")

    def _forget(self, name: str) -> None:
        self._graces.pop(name, None)
        session = self._sessions.pop(name, None)
        if session is not None:
            session.close()

    # learners

    async def sample(self, grpc: Any, context: Any) -> None:
        """Draw samples, as many as a learner asks for."""
        head = _hello(await context.read())
        table = self._table(head.get("table"))
        await context.write(pack(Kind.WELCOME, {}))
        while (data := await context.read()) is not grpc.aio.EOF:
            ask = unpack(data, Kind.ASK).head
            count, seconds = int(ask["count"]), ask.get("timeout")
            if not 1 <= count <= MOST_ITEMS:
                raise ServiceError(f"{count} samples at once. Allowed: 1 to {MOST_ITEMS}.")
            deadline = None if seconds is None else time.monotonic() + float(seconds)
            while count:
                drawn = table.draw(count)
                if drawn is None:
                    # a client that goes has this cancelled, and has drawn nothing
                    left = LOOK_SECONDS if deadline is None else min(deadline - time.monotonic(), LOOK_SECONDS)
                    if left <= 0 or self._is_stopping:
                        await context.write(pack(Kind.WAIT, {"left": count}))
                        break
                    await self._changes.wait(left)
                    continue
                messages = self._read(*drawn)
                table.done_reading()
                self._changes.announce()
                count -= len(drawn[1])
                for message in messages:
                    await context.write(message)

    def _read(self, sample: Any, trajectories: list[Trajectory]) -> list[bytes]:
        """Return messages of items that are alike, in their order."""
        messages, start = [], 0
        kinds = [self._kind(each) for each in trajectories]
        while start < len(kinds):
            stop = start + 1
            while stop < len(kinds) and kinds[stop] == kinds[start]:
                stop += 1
            messages.append(self._batch(sample.part(slice(start, stop)), trajectories[start:stop]))
            start = stop
        return messages

    def _kind(self, trajectory: Trajectory) -> tuple[Any, ...]:
        return tuple((self._steps.leaf(int(each.leaves[0]))[1:], each.is_squeezed) for each in trajectory.columns)

    def _batch(self, sample: Any, trajectories: list[Trajectory]) -> bytes:
        columns: dict[str, npt.NDArray[Any]] = {
            "key": sample.keys,
            "probability": sample.probabilities,
            "table_size": sample.table_size,
            "priority": sample.priorities,
            "times_sampled": sample.times_sampled,
        }
        for number, parts in enumerate(zip(*(each.columns for each in trajectories), strict=True)):
            leaves = np.concatenate([part.leaves for part in parts])
            values = self._steps.read(leaves, np.concatenate([part.ids for part in parts]))
            columns[f"{number}:n"] = np.array([len(part.ids) for part in parts], np.int64)
            columns.update(pack_strings(str(number), values))
        squeezed = [column.is_squeezed for column in trajectories[0].columns]
        return pack(Kind.BATCH, {"squeezed": squeezed}, columns)

    # single calls

    async def answer(self, message: Message) -> bytes:
        """Answer a call."""
        head, columns = message.head, message.columns
        match head.get("call"):
            case "info":
                return pack(Kind.ANSWER, {"tables": [_info_record(table) for table in self._tables.values()]})
            case "mutate":
                updates = (columns["keys"], columns["priorities"]) if "keys" in columns else None
                self._table(head.get("table")).mutate(updates, columns.get("deletes"))
            case "reset":
                self._table(head.get("table")).reset()
            case "checkpoint":
                return pack(Kind.ANSWER, {"path": self._server.save()})
            case unknown:
                raise ServiceError(f"a call {unknown!r:.40}, which this server does not have.")
        self._changes.announce()
        return pack(Kind.ANSWER, {})

    def _table(self, name: Any) -> Table:
        table = self._tables.get(name) if isinstance(name, str) else None
        if table is None:
            raise TableError(f"table {name!r:.100} was not found. This server has: {', '.join(self._tables)}.")
        return table


def _hello(data: Any) -> dict[str, Any]:
    if not isinstance(data, bytes):
        raise ServiceError("a stream without a HELLO.")
    head = unpack(data, Kind.HELLO).head
    if head.get("protocol") != PROTOCOL:
        raise ServiceError(f"a client of protocol {head.get('protocol')!r:.20}, and this server has {PROTOCOL}.")
    return head


def _info_record(table: Table) -> dict[str, Any]:
    info = table.info
    specs = None if table.specs is None else [[each.shape, each.dtype.str, each.name] for each in table.specs]
    signature = None if specs is None else [_structure_text(table.signature), specs]
    sampler, remover = table.selector_texts
    record = {**info._asdict(), "signature": signature, "sampler_options": sampler, "remover_options": remover}
    limits = info.rate_limiter_info
    record["rate_limiter_info"] = [
        limits.samples_per_insert,
        None if np.isinf(limits.min_diff) else limits.min_diff,
        None if np.isinf(limits.max_diff) else limits.max_diff,
        limits.min_size_to_sample,
        limits.insert_stats.completed,
        limits.sample_stats.completed,
    ]
    return record


def _structure_text(signature: Any) -> str:
    """Return a nest of dicts, lists and tuples as JSON, its leaves as numbers in dm-tree's order."""
    tree = import_tree()
    leaves = tree.flatten(signature)
    numbered = tree.unflatten_as(signature, list(range(len(leaves))))
    return json.dumps(_plain(numbered))


def _plain(nest: Any) -> Any:
    if isinstance(nest, int):
        return nest
    if hasattr(nest, "items"):
        return {"dict": [[key, _plain(value)] for key, value in nest.items()]}
    if hasattr(nest, "_fields"):
        # the class of a namedtuple is not known elsewhere
        return {"dict": [[name, _plain(getattr(nest, name))] for name in nest._fields]}
    return {"list" if isinstance(nest, list) else "tuple": [_plain(value) for value in nest]}


def nest_of(record: Any, leaves: Sequence[Any]) -> Any:
    """Return the nest of `_plain` with leaves in it."""
    if isinstance(record, int):
        return leaves[record]
    if "dict" in record:
        return {key: nest_of(value, leaves) for key, value in record["dict"]}
    kind = list if "list" in record else tuple
    return kind(nest_of(value, leaves) for value in record["list" if kind is list else "tuple"])


def pack_strings(name: str, values: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Return an array as columns of a message: strings of bytes as their sizes and all of them."""
    if values.dtype != object:
        return {name: values}
    texts = [bytes(each) for each in values.reshape(-1).tolist()]
    return {
        name: np.frombuffer(b"".join(texts), np.uint8),
        name + SIZES: np.array([len(text) for text in texts], np.int64),
    }


def unpack_strings(columns: Any, name: str) -> npt.NDArray[Any]:
    """Return the array of `pack_strings`; ServiceError where there is none."""
    if name not in columns:
        raise ServiceError(f"a message without column {name!r}.")
    if name + SIZES not in columns:
        found: npt.NDArray[Any] = columns[name]
        return found
    sizes = columns[name + SIZES].astype(np.int64)
    data = columns[name].tobytes()
    if sizes.ndim != 1 or (sizes < 0).any() or int(sizes.sum()) != len(data):
        raise ServiceError(f"strings of {name!r} whose sizes do not add up to {len(data)} bytes.")
    out = np.empty(len(sizes), object)
    ends = np.cumsum(sizes).tolist()
    for number, (end, size) in enumerate(zip(ends, sizes.tolist(), strict=True)):
        out[number] = data[end - size : end]
    return out


def _column(columns: Any, name: str, count: int) -> npt.NDArray[Any]:
    values = unpack_strings(columns, name)
    if values.ndim < 1 or len(values) != count:
        raise ServiceError(f"{len(values) if values.ndim else 'no'} rows of {name!r} where {count} were due.")
    return values
