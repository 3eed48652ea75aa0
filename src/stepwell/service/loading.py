"""The loader of clients: `stepwell.ReplayLoader`'s verbs, over tables of one server or of several.

::

    ASK(rows) --> server draws when its limiter lets it --> BATCH --> decode --> transforms --> (torch, JAX) --> Batch
       '--- in_flight of them are asked ahead, so that a batch is there when it is needed

Of several servers (shards) each batch has as many rows of each as chance gives it by the sum of its weights, which each
message tells; probabilities are over all, so that importance weights are right whatever these sums were. Rows that a
shard does not have by now are dealt again to the others::

    shards   sums 0 0 0    ask 0 0 0    told 3 0 1    ask 3 0 1    came 3 - 0    ask 1 0 0    came 1
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import LoaderError, OrderError, RateLimitError, ServiceError, TableError
from stepwell.loader.batch import Batch
from stepwell.loader.build import Builder
from stepwell.loader.devices import DeviceSource, make_copier
from stepwell.loader.pipeline import Inline, Pipeline
from stepwell.loader.settings import LoaderSettings
from stepwell.loader.transforms import BatchKey
from stepwell.process import this
from stepwell.replay.drawing import (
    BetaSchedule,
    TurnTaker,
    checked_info,
    deal_rows,
    look_up,
    to_numpy,
)
from stepwell.replay.limiters import checked_timeout
from stepwell.schema import Schema
from stepwell.service.client import Pauses, refuse_pickle
from stepwell.service.drawing import CELLS, COLUMNS
from stepwell.service.fields import fields_to_json, is_mapped, is_sent_stored, reach_of, resolve_remote
from stepwell.service.local import LocalCall, LocalServer, find_local, this_boot
from stepwell.service.mapping import MappedStore
from stepwell.service.messages import PROTOCOL, Kind, Message, pack, unpack
from stepwell.service.sessions import ROWS, SIZES
from stepwell.service.settings import import_grpc
from stepwell.store.decode import RowError, StoredRows, decode_rows
from stepwell.windows.reader import PlaceReader

if TYPE_CHECKING:
    from stepwell.kernels.draws import Draws
    from stepwell.loader.memory import Target
    from stepwell.loader.transforms import WholeTransform
    from stepwell.replay.drawing import Beta
    from stepwell.service.client import Connection
    from stepwell.windows.blocks import HeldRows
    from stepwell.windows.chains import Chained
    from stepwell.windows.fields import ResolvedField
    from stepwell.windows.reader import Drawing

__all__ = ["RemoteLoader"]

ALIGNMENT = 64
HELD_BATCHES = 2
MAX_REDRAWS = 8
# for items, where no shard has any
WAIT_SECONDS = 0.05
SMALL_BYTES = 1 << 18
NO_PLACES = np.empty((6, 0), np.int64)
CLOSED = "this loader was closed. Make a new one."


class _Answer(NamedTuple):
    """Rows that came of one stream: their message, and where they lie."""

    stream: _Stream
    num_rows: int
    message: Message
    part: _Part | None


class _Ask(NamedTuple):
    """Rows that were asked of one of a table's shards, and the chance that was theirs."""

    stream: _Stream
    ticket: int
    num_rows: int
    share: float


class _Pending:
    """A batch, or several of one stream: rows of each table that are to be asked for, what was asked for, what came."""

    def __init__(self, counts: Sequence[int], shards: Sequence[int]) -> None:
        self.counts = list(counts)
        # with which chance rows went to each shard of a table
        self.shares = [np.zeros(number) for number in shards]
        self.asks: deque[_Ask] = deque()
        self.came: list[_Answer] = []


class _Received(NamedTuple):
    """One batch as it came, or several of one stream: the number of the first; what came; the shares of the shards."""

    number: int
    answers: list[_Answer]
    shares: list[npt.NDArray[np.float64]]

    @property
    def num_rows(self) -> int:
        """Rows of all messages."""
        return sum(answer.num_rows for answer in self.answers)

    def count(self, source: int) -> int:
        """Return how many rows are of a table."""
        return sum(answer.num_rows for answer in self.answers if answer.stream.source == source)


class _Part(NamedTuple):
    """Where the rows of a message lie: places that were checked, or why they are not there; and what reads them."""

    reader: PlaceReader
    places: npt.NDArray[np.int64]
    chained: Chained | None
    error: LoaderError | None = None

    def read(self, memory: npt.NDArray[np.uint8] | None, draws: Drawing | None) -> dict[str, Any]:
        """Return the arrays of the fields that are read here, by key."""
        if self.error is not None:
            raise self.error
        return self.reader.read_places([self.places], memory, draws=draws, chained=self.chained)


class _Stream:
    """Batches of one table of one server, over one connection after the other; `receive` by one thread at a time."""

    def __init__(  # noqa: PLR0917
        self,
        connection: Connection,
        table: str,
        source: int,
        shard: int,
        hello: dict[str, Any],
        connect_timeout: float | None,
        mapped: _Mapped | None,
    ) -> None:
        self.connection, self.table, self.source, self.shard, self.mapped = connection, table, source, shard, mapped
        self._hello, self._connect_timeout = {**hello, "table": table, "maps": mapped is not None}, connect_timeout
        # of the items that can be drawn there, as the last message told: the sum of their weights, and their number
        self.total = 0.0
        self.size = 0
        # by number: rows, and the least of them that are taken: a batch
        self._asked: deque[tuple[int, int, int]] = deque()
        self._num_asked = 0
        # what came before what was waited for
        self._ready: dict[int, _Answer] = {}
        self._requests: Any = queue.SimpleQueue()
        self._call: Any = None
        self._updates: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]] = []
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()

    def ask(self, count: int, least: int) -> int:
        """Ask for so many rows, some batches, or for the least of them where a limiter does not let all be drawn.

        Of a shard there come none where it has nothing to draw from; of 0 rows there comes how much it has.

        Returns:
            The number of the answer, for `receive`.
        """
        self._num_asked += 1
        self._asked.append((self._num_asked, count, least))
        if self._call is not None:
            self._send(count, least)
        return self._num_asked

    def update(self, keys: npt.NDArray[np.uint64], priorities: npt.NDArray[np.float64]) -> None:
        """Set priorities, together with the next batch that is asked for."""
        with self._lock:
            self._updates.append((keys, priorities))

    def _send(self, *rows: int) -> None:
        """Send the priorities that were given since, and ask for rows: how many, and the least of them."""
        with self._lock:
            updates, self._updates = self._updates, []
        columns: dict[str, npt.NDArray[Any]] = {}
        if updates:
            # of an item that comes twice the last one counts, at the server
            columns["keys"] = _joined([keys for keys, _ in updates])
            columns["priorities"] = _joined([priorities for _, priorities in updates])
        if rows or columns:
            self._requests.put(pack(Kind.ASK, dict(zip(("rows", "least"), rows, strict=False)), columns))

    def flush(self) -> None:
        """Set the priorities that were not sent yet."""
        with self._lock:
            updates, self._updates = self._updates, []
        if updates:
            columns = {
                "keys": _joined([keys for keys, _ in updates]),
                "priorities": _joined([priorities for _, priorities in updates]),
            }
            self.connection.call("mutate", {"table": self.table}, columns, timeout=self._connect_timeout)

    def receive(self, ticket: int, deadline: float | None) -> _Answer:
        """Return what came for an `ask`; RateLimitError: a limiter let none through in time."""
        while ticket not in self._ready:
            number, answer = self._receive(deadline)
            self._ready[number] = answer
        return self._ready.pop(ticket)

    def _receive(self, deadline: float | None) -> tuple[int, _Answer]:
        grpc, pauses = import_grpc(), Pauses(self._connect_timeout)
        while True:
            try:
                if self._call is None:
                    self._connect()
                for data in self._call:
                    message = unpack(data, Kind.BATCH, Kind.PLACES, Kind.WAIT)
                    if message.kind is not Kind.WAIT:
                        return self._accept(message)
                    if deadline is not None and time.monotonic() >= deadline:
                        raise RateLimitError(f"{message.head.get('why')}, at {self.connection.address}.")
                raise ServiceError(f"{self.connection.address} closed the connection")
            except grpc.RpcError as error:
                self._disconnect()
                if self._is_stopped.is_set():
                    raise LoaderError(CLOSED) from None
                pauses.next(self.connection.error(error), self._is_stopped)
            except RateLimitError:
                raise
            except ServiceError as error:
                self._disconnect()
                if "closed the connection" not in str(error):
                    raise
                pauses.next(error, self._is_stopped)
            except BaseException:
                self._disconnect()
                raise

    def _accept(self, message: Message) -> tuple[int, _Answer]:
        """Take note of what came, before the next message changes what is known of segments."""
        ticket, count, least = self._asked[0]
        rows: int = message.head.get("rows", count)
        if rows not in ((0, count, least) if self._hello["is_shard"] else (count, least)):
            raise ServiceError(f"{rows!r:.40} rows, and {count} were asked for, or {least}.")
        part = None
        if self.mapped is not None:
            self.mapped.store.take_in(message.head)
            part = None if not rows else self._part(self.mapped, message, rows)
        if "sums" in message.head:
            total, size = message.head["sums"]
            self.total, self.size = float(total), int(size)
        self._asked.popleft()
        return ticket, _Answer(self, rows, message, part)

    @staticmethod
    def _part(mapped: _Mapped, message: Message, rows: int) -> _Part:
        try:
            return _Part(mapped.reader, *mapped.store.checked(message.columns, rows, mapped.reach))
        except LoaderError as error:
            return _Part(mapped.reader, NO_PLACES, None, error)

    def _connect(self) -> None:
        """Connect, and ask again for what was not answered: batches that were on their way are spent."""
        local = self._local_call()
        if local is not None:
            self._requests = self._call = local
        else:
            self._requests = queue.SimpleQueue()
            self._call = self.connection.stream("draw", iter(self._requests.get, None))
        self._requests.put(pack(Kind.HELLO, self._hello))
        data = next(iter(self._call), None)
        if data is None:
            raise ServiceError(f"{self.connection.address} closed the connection")
        welcome = unpack(data, Kind.WELCOME).head
        self._hello["store"] = welcome["store"]
        if self.mapped is not None:
            self.mapped.store.begin()
        for _, *rows in self._asked or [(0,)]:
            self._send(*rows)

    def _local_call(self) -> LocalCall | None:
        """Begin a stream over the socket of this host; None where that cannot be reached."""
        if self.mapped is None:
            return None
        found = self.connection.local_stream("draw", self.mapped.host)
        if found is None:
            # a server that was begun again has another one
            head = self.connection.call("describe", {"boot": this_boot()}, timeout=self._connect_timeout).head
            host = find_local(head.get("here"))
            if host is None or host.path != self.mapped.host.path:
                return None
            self.mapped = self.mapped._replace(host=host)
            found = self.connection.local_stream("draw", host)
        return found

    def _disconnect(self) -> None:
        call, self._call = self._call, None
        self._requests.put(None)
        if call is not None:
            call.cancel()

    def pause(self) -> None:
        """Wait a while for items."""
        if self._is_stopped.wait(WAIT_SECONDS):
            raise LoaderError(CLOSED)

    def stop(self) -> None:
        """End what `receive` waits for, in whichever thread."""
        self._is_stopped.set()
        self._disconnect()

    def drop(self) -> None:
        """Forget what was asked for."""
        self._disconnect()
        self._asked.clear()
        self._ready.clear()


class _Mapped(NamedTuple):
    """The files of a server's store, in this process.

    Args:
        host: where they are, and the server.
        store: the segments that the server named.
        reader: of the fields that are read here; ``reach``: of their windows.
    """

    host: LocalServer
    store: MappedStore
    reader: PlaceReader
    reach: tuple[int, int]

    @classmethod
    def open(cls, about: Mapping[str, Any], fields: Mapping[str, ResolvedField]) -> _Mapped | None:
        """Return the files of a server; None where this process does not see them."""
        host = find_local(about.get("here"))
        if host is None:
            return None
        store = MappedStore(host.path, about["store"])
        reader = PlaceReader([store], {key: each.field for key, each in fields.items()})
        return cls(host, store, reader, reach_of(fields.values()))


class RemoteLoader:
    """Stream batches of tables that servers have: the verbs and keys of `stepwell.ReplayLoader`.

    Made by ``client.loader(fields, ...)``.

    Args:
        connections: to the servers.
        fields: key to `Field`, feature name or offsets; None: every feature at the item's first step. Decoders and
            transforms run here.
        tables: the name of one, or names with their shares of a batch; None: the only one that there is.
        batch_size: rows a batch.
        in_flight: batches that are asked for ahead; see `max_staleness`.
        beta: exponent of the importance weights, as of `ReplayLoader`; ``normalize``, ``seed``, ``to``, ``device``,
            ``sharding``, ``pin_memory``, ``nested``, ``transform``, ``info`` and ``clip`` likewise.
        threads: that decode and transform batches; 0: the consumer does.
        timeout: seconds to wait for a rate limiter; None: without end.
        connect_timeout: seconds to wait for a server that is away; None: without end.
        local: whether the store's files are mapped here, so that only places come: None where this process sees them,
            False never; True raises ServiceError where it does not.

    Raises:
        OrderError: a setting out of range, or shares that do not fit.
        TableError: no such table, a beta that cannot be; or fields that do not fit, as their own errors.
        ServiceError: a server that is away.

    Example:
        >>> import stepwell
        >>> from stepwell.service import Client, Server
        >>> store = stepwell.create(":memory:", {"x": stepwell.Array()}, capacity=1000)
        >>> with Server(stepwell.Table(store)) as server, Client(server.address) as client:
        ...     with client.writer("actor") as writer:
        ...         _ = writer.add_episode({"x": [0.5] * 10})
        ...     with client.loader({"x": "x"}, batch_size=4) as loader:
        ...         next(loader)["x"].tolist()
        [0.5, 0.5, 0.5, 0.5]

    Notes:
        An iterator that never ends, for the process that made it. Images and texts come as they are stored, each
        distinct row once, and are decoded by ``threads``. Items that are drawn for a batch which is lost with its
        connection count as drawn. Where windows are put elsewhere than at the anchor, the server draws where.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        fields: Mapping[str, Any] | None = None,
        *,
        tables: str | Mapping[str, float] | None = None,
        batch_size: int = 256,
        in_flight: int = 4,
        beta: Beta = 0.4,
        normalize: bool = True,
        seed: int = 0,
        threads: int = 0,
        to: Target = "numpy",
        device: str | None = None,
        sharding: Any = None,
        pin_memory: bool | None = None,
        nested: bool = False,
        transform: WholeTransform | None = None,
        timeout: float | None = None,
        info: Sequence[str] | None = None,
        clip: str = "episode",
        connect_timeout: float | None = 60.0,
        local: bool | None = None,
    ) -> None:
        if clip not in ("episode", "item"):
            raise OrderError(f'clip={clip!r}. Allowed: "episode" or "item".')
        checked_timeout(timeout)
        self.settings = LoaderSettings(
            batch_size=batch_size, seed=seed, epochs=None, threads=threads, prefetch=1, to=to, device=device,
            sharding=sharding, pin_memory=pin_memory, nested=nested,
        )  # fmt: skip
        boot = {} if local is False else {"boot": this_boot()}
        about = [each.call("describe", boot, timeout=connect_timeout).head for each in connections]
        record, fps = about[0]["schema"], about[0]["fps"]
        if record is None:
            raise TableError(f"the store of {connections[0].address} has no features yet. Write a step first.")
        most = min(each["max_in_flight"] for each in about)
        if not 1 <= in_flight <= most:
            raise OrderError(f"in_flight={in_flight!r}. Allowed: 1 to {most}, as the server says.")
        schema = Schema.from_json(record)
        for connection, each in zip(connections, about, strict=True):
            if each["schema"] != record:
                raise TableError(f"{connection.address} and {connections[0].address} have other features.")
        names, self._shares = _checked_tables(tables, about[0]["tables"])
        self.fields = resolve_remote(fields, schema, fps)
        self._info = checked_info(info)
        plain = {key: each.field for key, each in self.fields.items()}
        # what comes with each row: what a batch shows, and what weights are reckoned from
        wanted = {*self._info, *(("probability", "size") if "weight" in self._info else ())}
        self._sent = [name for name in COLUMNS if name in wanted]
        hello = {
            "protocol": PROTOCOL,
            "fields": fields_to_json(plain),
            "is_clipped": clip == "item",
            "info": self._sent,
            "is_shard": len(connections) > 1,
        }
        mapped = {key: each for key, each in self.fields.items() if is_mapped(each)}

        def stream(connection: Connection, about: Mapping[str, Any], source: int, shard: int) -> _Stream:
            files = _Mapped.open(about, mapped) if mapped and local is not False else None
            if local and mapped and files is None:
                raise ServiceError(
                    f"the files of the store of {connection.address} are not to be seen from this process, which "
                    "local=True asks for. Leave it out, and batches come over the network."
                )
            return _Stream(connection, names[source], source, shard, hello, connect_timeout, files)

        self._streams = [
            [stream(*each, source, shard) for shard, each in enumerate(zip(connections, about, strict=True))]
            for source in range(len(names))
        ]
        self._in_flight, self._timeout, self._num_threads = in_flight, timeout, int(threads)
        from stepwell.replay.batch_kernels import importance_weights

        self._weigh, self._beta, self._normalize = importance_weights, BetaSchedule(beta), bool(normalize)
        self._random = np.random.default_rng(seed)
        self._owed = [0.0] * len(names)
        # what was asked for and did not come yet; the batches that were handed out
        self._asked: deque[_Pending] = deque()
        self._number = self._num_received = 0
        reader = _Reader(self.fields, self._info, self)
        # of one stream, small batches that are asked for, and read, together
        is_small = len(self._streams[0]) == len(names) == 1 and reader.num_bytes(batch_size) <= SMALL_BYTES
        self._group = max(1, in_flight // 2) if is_small and not threads else 1
        max_free = HELD_BATCHES + 1 + int(threads)
        self._builder = Builder(reader, self.settings, transform, max_free, self._group)
        self._copier = make_copier(self.settings)
        self._source: Any = None
        self._is_closed = False
        self._pid = this.pid
        self._turn = threading.RLock()
        # of the streams, which several threads read where rows are gone
        self._receiving = threading.Lock()

    @property
    def max_staleness(self) -> int:
        """The most batches that come after an update of priorities, or an insert, and do not know of it yet."""
        return self._in_flight + self._num_threads + (self._copier is not None)

    @property
    def num_batches(self) -> int:
        """Batches that the consumer has got."""
        return self._number

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch."""
        if self._pid != this.pid:
            raise LoaderError(f"this loader is of process {self._pid}, this is {this.pid}. Make a client there.")
        with self._turn:
            if self._is_closed:
                raise LoaderError(CLOSED)
            source = self._source or self._start()
            try:
                batch: Batch = source.take()[1]
            except StopIteration:
                raise LoaderError(CLOSED) from None
            except RateLimitError:
                # what was asked for is still to come
                if self._num_threads:
                    self._end()
                raise
            except BaseException:
                self._end()
                raise
            self._number += 1
            return batch

    def update_priorities(self, batch: Mapping[str, Any], priorities: Any) -> None:
        """Give the items of a batch new priorities, as `stepwell.ReplayLoader.update_priorities` does.

        They are sent with what the next batch asks for, or by `flush`, and not waited for; items that are gone are left
        out.

        Args:
            batch: of this loader.
            priorities: float [n], numpy or torch on any device; finite, 0 or more.

        Raises:
            TableError: another number of priorities than rows, or one that cannot be; nothing was sent.
        """
        keys = to_numpy(look_up(batch, "key"))
        values = np.asarray(to_numpy(priorities), np.float64)
        if values.shape != keys.shape:
            raise TableError(
                f"priorities of shape {values.shape} for a batch of {len(keys)} rows. One a row is needed."
            )
        bad = values[~(np.isfinite(values) & (values >= 0))]
        if len(bad):
            raise TableError(f"a priority of {bad[0]}. Allowed are finite numbers of 0 or more; nothing was changed.")
        streams = [stream for row in self._streams for stream in row]
        if len(streams) == 1:
            streams[0].update(keys, values)
            return
        shards = to_numpy(look_up(batch, "shard"))
        for number, stream in enumerate(streams):
            mask = shards == number
            if mask.any():
                stream.update(keys[mask], values[mask])

    def flush(self) -> None:
        """Send the priorities that wait for the next batch, and wait until the servers have them."""
        for row in self._streams:
            for stream in row:
                stream.flush()

    def close(self) -> None:
        """Send what `flush` does; end the connections. Batches that were asked for ahead are dropped.

        May be called twice.
        """
        if not self._is_closed and self._pid == this.pid:
            with suppress(ServiceError):
                self.flush()
        self._is_closed = True
        if self._pid != this.pid:
            return
        for row in self._streams:
            for stream in row:
                stream.stop()
        if self._source is not None:
            self._source.interrupt()
        with self._turn:
            self._end()

    def __enter__(self) -> RemoteLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickle("remote loader")

    def __repr__(self) -> str:
        tables = ", ".join(row[0].table for row in self._streams)
        servers = ", ".join(stream.connection.address for stream in self._streams[0])
        return f"<RemoteLoader of {tables} at {servers}  batch {self.settings.batch_size}>"

    # batches

    def _start(self) -> Any:
        source: Any
        threads = self._num_threads
        if threads:
            receive = TurnTaker(self).draw
            numbers = ([number] for number in itertools.count())
            source = Pipeline(partial(self._build, receive), numbers, num_threads=threads, num_ahead=threads)
        else:
            source = Inline(partial(self._build, self.draw), itertools.repeat([None]))
        self._source = source if self._copier is None else DeviceSource(source, self._copier)
        return self._source

    def _end(self) -> None:
        source, self._source = self._source, None
        for row in self._streams:
            for stream in row:
                stream.drop()
        self._asked.clear()
        if source is not None:
            source.close()
        self._num_received = self._number

    def _build(
        self, receive: Callable[[Sequence[Any]], list[_Received]], numbers: Sequence[Any]
    ) -> list[tuple[int, Batch]]:
        (received,) = receive(numbers)
        size = self.settings.batch_size
        first = received.number * size
        for attempt in range(MAX_REDRAWS + 1):
            num_rows = received.num_rows
            key = BatchKey(self.settings.seed, ((0, range(first, first + num_rows)),), num_rows)
            try:
                found = self._builder.read(received, key, num_rows // size)
                break
            except LoaderError as error:
                # a writer went round the ring, and a segment of the batch is gone
                if not isinstance(error.__cause__, FileNotFoundError) or attempt == MAX_REDRAWS:
                    raise
                received = self._draw_again(received)
        return [(number, Batch(values, 0, number)) for number, values in enumerate(found, received.number)]

    def draw(self, _: Sequence[Any]) -> list[_Received]:
        """Return the next batches as they came; asks for those after them first. One thread at a time."""
        while not self._asked or (len(self._asked) + 1) * self._group <= self._in_flight:
            counts = [self._group * self.settings.batch_size]
            if len(self._streams) > 1:
                counts, self._owed = deal_rows(self._shares, self._owed, self.settings.batch_size)
            self._asked.append(self._ask(counts))
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        with self._receiving:
            received = self._receive(self._asked[0], self._num_received, deadline)
        self._asked.popleft()
        self._num_received += received.num_rows // self.settings.batch_size
        return [received]

    def _draw_again(self, received: _Received) -> _Received:
        """Return others in place of rows that are gone."""
        with self._receiving:
            counts = [received.count(source) for source in range(len(self._streams))]
            again = self._receive(self._ask(counts), received.number, None)
        if self._group > 1:
            # fewer, perhaps; this thread is alone
            self._num_received = again.number + again.num_rows // min(again.num_rows, self.settings.batch_size)
        return again

    def _ask(self, counts: Sequence[int]) -> _Pending:
        """Ask for a batch, or some of one stream: so many rows of each table."""
        pending = _Pending(counts, [len(row) for row in self._streams])
        self._deal(pending)
        return pending

    def _deal(self, pending: _Pending) -> None:
        """Ask for the rows of a batch that are not asked for yet; of shards without any, how much they have by now."""
        for source, (row, count) in enumerate(zip(self._streams, pending.counts, strict=True)):
            if not count:
                continue
            found = np.ones(1) if len(row) == 1 else self._totals(row)
            numbers = np.zeros(len(row), np.int64)
            if found.any():
                found *= (1.0 - pending.shares[source].sum()) / found.sum()
                numbers = self._random.multinomial(count, found / found.sum())
                pending.shares[source] += found
                pending.counts[source] = 0
            for stream, number, share in zip(row, numbers.tolist(), found.tolist(), strict=True):
                ticket = stream.ask(number, min(number, self.settings.batch_size))
                pending.asks.append(_Ask(stream, ticket, number, share))

    @staticmethod
    def _totals(row: Sequence[_Stream]) -> npt.NDArray[np.float64]:
        """Return the weight of each shard: the sum of its items' weights, or their number where all weights are 0."""
        totals = np.array([stream.total for stream in row])
        return totals if totals.any() else np.array([float(stream.size) for stream in row])

    def _receive(self, pending: _Pending, number: int, deadline: float | None) -> _Received:
        """Return a batch that was asked for; what came stays with it where a limiter holds the rest for too long."""
        while True:
            while pending.asks:
                ask = pending.asks[0]
                answer = ask.stream.receive(ask.ticket, deadline)
                pending.asks.popleft()
                if answer.num_rows:
                    pending.came.append(answer)
                elif ask.num_rows:
                    # by now it has nothing
                    pending.counts[ask.stream.source] += ask.num_rows
                    pending.shares[ask.stream.source][ask.stream.shard] -= ask.share
            missing = [row for row, count in zip(self._streams, pending.counts, strict=True) if count]
            if not missing:
                answers = sorted(pending.came, key=lambda answer: answer.stream.source)
                return _Received(number, answers, pending.shares)
            for row in missing:
                if not self._totals(row).any():
                    if deadline is not None and time.monotonic() >= deadline:
                        servers = ", ".join(stream.connection.address for stream in row)
                        raise RateLimitError(f"table {row[0].table!r} has nothing to draw from yet, at {servers}.")
                    row[0].pause()
            self._deal(pending)

    def columns_of(self, received: _Received) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of the table of a batch."""
        streams = [answer.stream for answer in received.answers]
        counts = [answer.num_rows for answer in received.answers]
        joined = {
            name: _joined([answer.message.columns[f"table.{name}"] for answer in received.answers])
            for name in self._sent
        }
        if len(self._streams[0]) > 1:
            if "probability" in joined:
                shares = [received.shares[stream.source][stream.shard] for stream in streams]
                joined["probability"] = joined["probability"] * np.repeat(shares, counts)
            if "size" in joined:
                sizes = [sum(shard.size for shard in self._streams[stream.source]) for stream in streams]
                joined["size"] = np.repeat(np.array(sizes, np.int64), counts)
        if "weight" in self._info:
            size, num_rows = self.settings.batch_size, received.num_rows
            betas = [self._beta((received.number + number) * size) for number in range(num_rows // size)]
            joined["weight"] = weights = np.empty(num_rows, np.float32)
            self._weigh(joined["probability"], joined["size"], np.array(betas, np.float64), self._normalize, weights)
        if "source" in self._info:
            joined["source"] = np.repeat([stream.source for stream in streams], counts)
        found = {f"table.{name}": joined[name] for name in self._info}
        if sum(map(len, self._streams)) > 1 and "key" in self._info:
            found["table.shard"] = np.repeat(np.array([self._number_of(each) for each in streams], np.int64), counts)
        return found

    def _number_of(self, stream: _Stream) -> int:
        return stream.source * len(self._streams[0]) + stream.shard


class _Reader:
    """Makes the arrays of a batch of what came, or of what lies at the places that came."""

    def __init__(self, fields: Mapping[str, ResolvedField], info: Sequence[str], loader: RemoteLoader) -> None:
        self.fields = fields
        self._mapped = {key for key, each in fields.items() if is_mapped(each)}
        self._is_mapped = len(self._mapped) == len(fields)
        self._info, self._columns_of = info, loader.columns_of
        # a loader reads batches of one size
        self._layouts: dict[int, list[tuple[str, tuple[int, ...], np.dtype[Any], int]]] = {}
        self._codecs = {
            key: make_codec(each.sources[0].feature)
            for key, each in fields.items()
            if is_sent_stored(each) and each.sources[0].feature is not None
        }

    def num_bytes(self, num_rows: int, /) -> int:
        """Return the bytes of memory that the fields of a batch take."""
        return sum(size for *_, size in self._layout(num_rows))

    def _layout(self, num_rows: int) -> list[tuple[str, tuple[int, ...], np.dtype[Any], int]]:
        layout = self._layouts.get(num_rows)
        if layout is None:
            layout = self._layouts[num_rows] = list(self._make_layout(num_rows))
        return layout

    def _make_layout(self, num_rows: int) -> Iterator[tuple[str, tuple[int, ...], np.dtype[Any], int]]:
        for key, field in self.fields.items():
            shapes = [(key, field.shape, field.dtype)]
            if field.has_mask:
                shapes.append((field.mask_key, field.window_shape, np.dtype(np.bool_)))
            for name, shape, dtype in shapes:
                if dtype.kind != "O":
                    size = int(np.prod((num_rows, *shape), dtype=np.int64)) * dtype.itemsize
                    yield name, (num_rows, *shape), dtype, size + -size % ALIGNMENT

    def read(
        self,
        received: _Received,
        memory: npt.NDArray[np.uint8] | None = None,
        /,
        *,
        held: HeldRows | None = None,
        draws: Drawing | None = None,
    ) -> dict[str, Any]:
        """Return the arrays of a batch by key, and how its rows were drawn."""
        num_rows, start = received.num_rows, 0
        memory = np.empty(self.num_bytes(num_rows), np.uint8) if memory is None else memory
        part = received.answers[0].part
        if part is not None and len(received.answers) == 1 and self._is_mapped:
            # nearly always: all is read straight into the batch
            return {**part.read(memory, draws), **self._columns_of(received)}
        arrays: dict[str, Any] = {}
        for key, shape, dtype, size in self._layout(num_rows):
            arrays[key] = np.ndarray(shape, dtype, memory, start)
            start += size
        found = self._read_parts(received, draws)
        values = {}
        for key, field in self.fields.items():
            if field.dtype == object:
                arrays[key] = np.empty((num_rows, *field.window_shape), object)
            self._fill(field, received, found, arrays[key], draws)
            values[key] = arrays[key]
            if field.has_mask:
                masks = [each[field.mask_key] for each in found]
                values[field.mask_key] = _joined(masks, arrays[field.mask_key])
        return {**values, **self._columns_of(received)}

    def _read_parts(self, received: _Received, draws: Drawing | None) -> list[dict[str, Any]]:
        """Return the columns of each message, with the fields that are read here."""
        found, start = [], 0
        for _, num_rows, message, part in received.answers:
            columns: dict[str, Any] = message.columns
            if part is not None:
                own = None if draws is None else partial(_part_of, draws, start, start + num_rows)
                columns = {**columns, **part.read(None, own)}
            found.append(columns)
            start += num_rows
        return found

    def _fill(
        self,
        field: ResolvedField,
        received: _Received,
        found: Sequence[dict[str, Any]],
        out: npt.NDArray[Any],
        draws: Drawing | None,
    ) -> None:
        source, drawn = field.sources[0], None
        decoder = source.decoder
        if decoder is not None and decoder.is_random and source.feature is not None and draws is not None:
            purpose = f"key {decoder.key}" if decoder.key is not None else f"decoder of {field.key}"
            drawn = decoder.draw(source.feature, draws(purpose))
        start = 0
        for answer, columns in zip(received.answers, found, strict=True):
            part = out[start : start + answer.num_rows]
            own = None if drawn is None else drawn[start : start + answer.num_rows]
            start += answer.num_rows
            if answer.part is not None and field.key in self._mapped:
                part[...] = columns[field.key]
            elif field.key in self._codecs:
                self._decode(field, columns, part, own)
            elif decoder is None:
                np.copyto(part, columns[field.key])
            else:
                rows = columns[field.key]
                per_window = len(field.offsets)
                flat, target = (
                    rows.reshape(-1, *rows.shape[1 + len(field.window_shape) :]),
                    part.reshape(-1, *source.shape),
                )
                for number, row in enumerate(flat):
                    decoder.convert(row, target[number], None if own is None else own[number // per_window])

    def _decode(
        self,
        field: ResolvedField,
        columns: Mapping[str, npt.NDArray[Any]],
        out: npt.NDArray[Any],
        drawn: npt.NDArray[Any] | None,
    ) -> None:
        """Decode rows that came as they are stored, each distinct one once."""
        source, codec = field.sources[0], self._codecs[field.key]
        sizes, blobs = columns[source.name + SIZES], columns[source.name + ROWS]
        offsets = np.zeros(len(sizes) + 1, np.uint64)
        np.cumsum(sizes, out=offsets[1:])
        stored = StoredRows(source.name, codec, offsets, blobs, len(sizes))
        cells = columns[field.key + CELLS].reshape(-1)
        if len(cells) != len(out) * len(field.offsets) or (len(cells) and int(cells.max()) >= len(sizes)):
            raise ServiceError(f"field {field.key!r}: the server sent cells of other rows than it sent.")
        flat = out.reshape(len(cells), *out.shape[1 + len(field.window_shape) :])
        order = np.argsort(cells, kind="stable")
        order = order[np.searchsorted(cells[order], 0) :]
        rows, members = cells[order].tolist(), order.tolist()
        for missing in np.flatnonzero(cells < 0).tolist():
            flat[missing] = _empty(field) if flat.dtype == object else 0
        try:
            if flat.dtype == object:
                for member, value in zip(members, stored.objects(rows), strict=True):
                    flat[member] = value
                return
            per_window = len(field.offsets)
            own = None if drawn is None else [drawn[member // per_window] for member in members]
            outs = [flat[member, ...] for member in members]
            decode_rows(stored, rows, outs, source.decoder, own, {}, codec.batch_decoder())
        except RowError as error:
            raise LoaderError(
                f"field {field.key!r}: a row that came could not be decoded: {error.cause}"
            ) from error.cause


def _part_of(draws: Drawing, start: int, stop: int, purpose: str) -> Draws:
    return draws(purpose).part(start, stop)


def _empty(field: ResolvedField) -> Any:
    feature = field.sources[0].feature
    assert feature is not None
    if feature.kind == "text":
        return ""
    return b"" if feature.kind == "bytes" else np.zeros([int(n or 0) for n in feature.shape], feature.np_dtype)


def _joined(parts: Sequence[npt.NDArray[Any]], out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    if out is not None:
        np.concatenate(parts, out=out)
        return out
    return parts[0].copy() if len(parts) == 1 else np.concatenate(parts)


def _checked_tables(tables: str | Mapping[str, float] | None, known: Sequence[str]) -> tuple[list[str], list[float]]:
    if tables is None:
        if len(known) > 1:
            raise TableError(f'the server has tables {", ".join(known)}. Choose by tables="..." or names with shares.')
        tables = known[0]
    shares = {tables: 1.0} if isinstance(tables, str) else {str(name): float(share) for name, share in tables.items()}
    if not shares or not all(0 <= share < np.inf for share in shares.values()) or not sum(shares.values()) > 0:
        raise OrderError(f"tables={tables!r}. Give a name, or names with shares of 0 or more.")
    for name in shares:
        if name not in known:
            raise TableError(f"no table {name!r}. The server has: {', '.join(known)}.")
    total = sum(shares.values())
    return list(shares), [share / total for share in shares.values()]
