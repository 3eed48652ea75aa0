"""The client: one address or several, and what is done with the tables there.

A call that finds the server away tries again, with growing pauses, until it answers or ``timeout`` is over: a server
that is restarted is waited for. What a call does may be done twice alike, but for `Client.create_item`.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from stepwell.errors import ServiceError, StepwellError, TableError
from stepwell.replay.contents import Counts
from stepwell.replay.limiters import Limiter, checked_timeout
from stepwell.replay.table_info import Rates, TableInfo
from stepwell.schema import Schema
from stepwell.service.local import LocalCall, LocalServer
from stepwell.service.messages import Kind, Message, pack, unpack
from stepwell.service.settings import SERVICE, TLS, check_token, import_grpc, parse_address

if TYPE_CHECKING:
    from stepwell.service.loading import RemoteLoader
    from stepwell.service.writing import RemoteVectorWriter, RemoteWriter

__all__ = ["Client", "Connection", "Pauses", "Sender", "refuse_pickle"]

# apart from the user's own generator, and other in each process after a fork
JITTER = random.SystemRandom()

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 2.0
CALL_SECONDS = 10.0
# answers of gRPC after which a call may be tried again: the server is away, or the connection was lost
AWAY = ("UNAVAILABLE", "INTERNAL", "UNKNOWN", "ABORTED", "CANCELLED", "DEADLINE_EXCEEDED")


class Pauses:
    """The pauses of one who tries again: they grow, and are drawn, so that clients do not come all at once.

    Args:
        timeout: seconds after which it is given up; None: never.
    """

    def __init__(self, timeout: float | None) -> None:
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._seconds = FIRST_PAUSE

    def next(self, why: Exception, stopped: threading.Event | None = None) -> None:
        """Wait a while; raise ``why`` where the time is over."""
        seconds = self._seconds * (0.5 + JITTER.random())
        if self._deadline is not None and time.monotonic() + seconds > self._deadline:
            raise why
        self._seconds = min(2 * self._seconds, LONGEST_PAUSE)
        if stopped is None:
            time.sleep(seconds)
        else:
            stopped.wait(seconds)


class Connection:
    """The channel to one server, made on first use, in the process that uses it."""

    def __init__(self, address: str, token: str | None, tls: TLS | None, message_bytes: int) -> None:
        self.address = parse_address(address)
        self._token = None if token is None else check_token(token)
        self._tls, self._message_bytes = tls, message_bytes
        self._pid = -1
        self._channel: Any = None
        self._lock = threading.Lock()

    def open(self) -> Any:
        """Return the channel."""
        with self._lock:
            if self._pid != os.getpid():
                grpc = import_grpc()
                options = [
                    ("grpc.max_receive_message_length", self._message_bytes),
                    ("grpc.max_send_message_length", -1),
                    # a server that does not answer for so long is away, whatever the network says
                    ("grpc.keepalive_time_ms", 10_000),
                    ("grpc.keepalive_timeout_ms", 5_000),
                    ("grpc.keepalive_permit_without_calls", 0),
                    ("grpc.http2.max_pings_without_data", 0),
                    ("grpc.initial_reconnect_backoff_ms", 50),
                    ("grpc.min_reconnect_backoff_ms", 50),
                    ("grpc.max_reconnect_backoff_ms", 2_000),
                    ("grpc.use_local_subchannel_pool", 1),
                ]
                if self._tls is None:
                    self._channel = grpc.insecure_channel(self.address, options)
                else:
                    self._channel = grpc.secure_channel(self.address, self._tls.channel_credentials(), options)
                self._pid = os.getpid()
            return self._channel

    @property
    def metadata(self) -> Sequence[tuple[str, str]]:
        """What goes with each call."""
        return () if self._token is None else (("authorization", f"Bearer {self._token}"),)

    def stream(self, name: str, requests: Any) -> Any:
        """Begin a stream of messages both ways; returns gRPC's call, to be iterated over and cancelled."""
        return self.open().stream_stream(f"/{SERVICE}/{name}")(requests, metadata=self.metadata)

    def local_stream(self, name: str, host: LocalServer) -> LocalCall | None:
        """Begin a stream over a socket of the same host; None where that cannot be reached."""
        try:
            return LocalCall(host, name, self._token)
        except OSError:
            return None

    def call(
        self, name: str, head: Mapping[str, Any] | None = None, columns: Any = None, *, timeout: float | None
    ) -> Message:
        """Make a single call, and again while the server is away."""
        grpc = import_grpc()
        data, pauses = pack(Kind.CALL, {"call": name, **(head or {})}, columns), Pauses(timeout)
        while True:
            try:
                seconds = CALL_SECONDS if timeout is None else max(timeout, 0.1)
                answer = self.open().unary_unary(f"/{SERVICE}/call")(data, timeout=seconds, metadata=self.metadata)
            except grpc.RpcError as error:
                pauses.next(self.error(error))
            else:
                return unpack(answer, Kind.ANSWER)

    def error(self, error: Any) -> ServiceError:
        """Return what became of a call as one of our errors; raise it where trying again does not help."""
        status, hint = error.code().name, ""
        if status == "UNAVAILABLE":
            hint = ". Is a server running there, and TLS on both sides or on none?"
        found = ServiceError(f"{self.address}: {status}: {error.details()}{hint}")
        if status not in AWAY:
            raise found from None
        return found

    def close(self) -> None:
        """Close the channel, and what runs over it."""
        with self._lock:
            if self._channel is not None and self._pid == os.getpid():
                self._channel.close()
            self._channel, self._pid = None, -1


class Sender(ABC):
    """Sends what its user puts, in a thread, over one connection after the other.

    Attributes:
        changed: guards all of it, and tells of changes.
        error: why it ended, where it failed.
        is_over: whether the server knows that nothing follows.

    Args:
        connection: to the server.
        verb: of the stream.
        name: of the thread.
    """

    def __init__(self, connection: Connection, verb: str, name: str) -> None:
        self._connection, self._verb = connection, verb
        self.changed = threading.Condition()
        self.error: StepwellError | None = None
        # the last one that was met, whether or not it ended this
        self._last_error: Exception | None = None
        self.is_over = self._is_welcome = False
        self._connections = 0
        self._call: Any = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _requests(self, connection: int) -> Iterator[bytes]:
        """Yield what a connection, by its number, sends; runs in a thread of gRPC's."""

    @abstractmethod
    def _receive(self, data: bytes) -> None:
        """Take note of an answer."""

    def start(self) -> None:
        """Connect."""
        self._thread.start()

    def raise_error(self) -> None:
        """Raise what the server said, or what became of the connection."""
        if self.error is not None:
            raise self.error

    def wait_until(self, is_so: Callable[[], bool], timeout: float | None, why: Callable[[], Exception]) -> None:
        """Wait; raise what the server said meanwhile, or ``why`` after so long; ``changed`` is held."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not is_so():
            self.raise_error()
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise why()
            self.changed.wait(left)

    def _run(self) -> None:
        grpc, pauses = import_grpc(), Pauses(None)
        while not self._stopped.is_set() and not self.is_over:
            try:
                with self.changed:
                    self._connections += 1
                    self._is_welcome = False
                    self._call = self._connection.stream(self._verb, self._requests(self._connections))
                for data in self._call:
                    self._receive(data)
                    pauses = Pauses(None)
                if not self.is_over:
                    self._pause(pauses, ServiceError("the server closed the connection"))
            except grpc.RpcError as error:
                try:
                    self._pause(pauses, self._connection.error(error))
                except StepwellError as final:
                    self._fail(final)
            except StepwellError as error:
                self._fail(error)
            except BaseException as error:
                # else its user would wait for ever
                self._fail(ServiceError(f"the thread of a writer failed: {type(error).__name__}: {error}"))
                raise

    def _pause(self, pauses: Pauses, error: Exception) -> None:
        self._last_error = error
        if not self._stopped.is_set():
            pauses.next(error, self._stopped)

    def _fail(self, error: StepwellError) -> None:
        with self.changed:
            self.error = self.error or error
            self._stopped.set()
            self.changed.notify_all()


class Client:
    """Write to and draw from the tables of servers, in any process, on any machine.

    Args:
        address: of a `Server`, "host:port" or "unix:/path"; or of several, that are shards: each writer goes to one of
            them, loaders draw from all.
        token: that the servers ask for.
        tls: certificates: ``TLS(authority=...)``, with one of its own for mutual TLS.
        timeout: seconds to wait for a server that is away, in each call; None: without end.
        message_bytes: of one message that comes, at most.
        local: whether loaders map the files of a store on this host; see `stepwell.service.RemoteLoader`.

    Raises:
        ServiceError: an address that is none; or, by its calls, a server that is away for longer than ``timeout``.
        MissingDependencyError: without grpcio.

    Notes:
        Thread-safe; pickles as its arguments. After a fork make a new one in the child.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        token: str | None = None,
        tls: TLS | None = None,
        timeout: float | None = 60.0,
        message_bytes: int = 1 << 30,
        local: bool | None = None,
    ) -> None:
        import_grpc()
        self.addresses = [address] if isinstance(address, str) else list(address)
        if not self.addresses or len(set(self.addresses)) < len(self.addresses):
            raise ServiceError(
                f"{address!r:.100} names no server, or one of them twice. Give one address, or several different ones."
            )
        checked_timeout(timeout)
        self._arguments = {
            "token": token,
            "tls": tls,
            "timeout": timeout,
            "message_bytes": message_bytes,
            "local": local,
        }
        self.timeout, self.local = timeout, local
        self.connections = [Connection(each, token, tls, message_bytes) for each in self.addresses]

    def writer(self, name: str | None = None, **options: Any) -> RemoteWriter:
        """Return a writer whose steps are stored by a server; see `stepwell.service.RemoteWriter` for the options.

        Args:
            name: of this actor, one writer each; of several servers it decides which one it goes to. Default: drawn.
            options: of `RemoteWriter`.
        """
        from stepwell.service.writing import RemoteWriter

        name = name or _random_name()
        return RemoteWriter(self._connection_of(name), name, **{"timeout": None, **options})

    def vector_writer(self, num_envs: int, name: str | None = None, **options: Any) -> RemoteVectorWriter:
        """Return a writer of ``num_envs`` environments; see `stepwell.service.RemoteVectorWriter`."""
        from stepwell.service.writing import RemoteVectorWriter

        name = name or _random_name()
        return RemoteVectorWriter(self._connection_of(name), name, num_envs, **options)

    def loader(
        self,
        fields: Mapping[str, Any] | None = None,
        *,
        tables: str | Mapping[str, float] | None = None,
        **options: Any,
    ) -> RemoteLoader:
        """Return a loader over tables of the servers: `stepwell.ReplayLoader`'s verbs and keys.

        Args:
            fields: key to `Field`, feature name or offsets; None: every feature at the item's first step.
            tables: the name of one, or names with their shares; None: the only one that there is.
            options: of `stepwell.service.RemoteLoader`.
        """
        from stepwell.service.loading import RemoteLoader

        given = {"connect_timeout": self.timeout, "local": self.local, **options}
        return RemoteLoader(self.connections, fields, tables=tables, **given)

    def _connection_of(self, name: str) -> Connection:
        digest = hashlib.sha256(name.encode()).digest()
        return self.connections[int.from_bytes(digest[:8], "little") % len(self.connections)]

    # what is known of the tables

    @property
    def schema(self) -> Schema | None:
        """The features of the store; None until the first step of one that was created without a schema."""
        record = self._call("describe").head["schema"]
        return None if record is None else Schema.from_json(record)

    def info(self, timeout: float | None = None) -> dict[str, TableInfo]:
        """Return the numbers of each table, by name; of several servers of the same names those of all together."""
        found: dict[str, TableInfo] = {}
        for message in self._call_all("info", timeout=timeout):
            for name, record in message.head["tables"].items():
                info = _info_of(record)
                found[name] = _added(found[name], info) if name in found else info
        return found

    def stats(self) -> list[dict[str, Any]]:
        """Return of each server who is connected, and what waits: tables, writers and loaders, as JSON types."""
        return [message.head for message in self._call_all("stats")]

    def spread(self) -> list[dict[str, Any]]:
        """Return of each server, by table, how its items' numbers are spread, as JSON types; see `Table.spread`."""
        return [message.head["tables"] for message in self._call_all("spread")]

    # what is done with them

    def mutate(
        self, table: str, *, updates: Mapping[int, float] | tuple[Any, Any] | None = None, deletes: Any = None
    ) -> int:
        """Remove items by key, and set the priorities of others; see `stepwell.Table.mutate`.

        Returns:
            How many items were removed and how many priorities were set. Of several servers each looks for all keys:
            those of other servers' items are rarely, but then wrongly, found; use the loader's `update_priorities`.
        """
        columns: dict[str, npt.NDArray[Any]] = {}
        if updates is not None:
            keys, priorities = (list(updates), list(updates.values())) if isinstance(updates, Mapping) else updates
            columns["keys"] = np.asarray(keys, np.uint64)
            columns["priorities"] = np.broadcast_to(np.asarray(priorities, np.float64), columns["keys"].shape)
        if deletes is not None:
            columns["deletes"] = np.asarray(deletes, np.uint64)
        return sum(each.head["number"] for each in self._call_all("mutate", {"table": table}, columns))

    def update_priorities(self, table: str, keys: Any, priorities: Any) -> int:
        """Set the priorities of items by key; returns how many were found."""
        return self.mutate(table, updates=(keys, priorities))

    def reset(self, table: str) -> None:
        """Remove all items of a table and begin to count anew."""
        self._call_all("reset", {"table": table})

    def create_item(self, table: str, steps: Any, length: int | None = None, priority: Any = None) -> Any:
        """Insert items over steps by their ids; see `stepwell.Table.create_item`. Writers have a verb of their own.

        Returns:
            Keys, uint64 [n].

        Raises:
            RateLimitError: the limiter refuses them. Nothing was inserted.
        """
        columns = {"steps": np.asarray(steps, np.int64)}
        if priority is not None:
            columns["priority"] = np.asarray(priority, np.float64)
        return self._call("create_item", {"table": table, "length": length}, columns).columns["keys"]

    def checkpoint(self, name: str) -> list[str]:
        """Let each server write its store and tables to a directory of this name among its checkpoints.

        Returns:
            The paths, on the servers' machines. With several servers they are of slightly different moments.
        """
        return [message.head["path"] for message in self._call_all("checkpoint", {"name": name})]

    def publish(self, name: str, values: Mapping[str, Any], **about: Any) -> int:
        """Publish the latest value of a name: weights of a policy, for actors that ask for them.

        Args:
            name: of the value.
            values: name to array of numbers or bools, numpy or torch.
            about: what JSON holds: the step of the learner, for instance.

        Returns:
            Its version: grows with each value of this name, and is another one after a restart of the server, which
            forgets values.
        """
        columns = {key: _to_numpy(value) for key, value in values.items()}
        return int(self._call("publish", {"name": name, "value": about}, columns).head["version"])

    def latest(
        self, name: str, *, newer_than: int = 0
    ) -> tuple[int, dict[str, npt.NDArray[Any]], dict[str, Any]] | None:
        """Return version, arrays and what else was said of the latest value; None where there is none newer.

        Args:
            name: of the value.
            newer_than: the version that the caller has; any other one is newer.
        """
        message = self._call("latest", {"name": name, "newer_than": newer_than})
        if not message.head["version"]:
            return None
        return message.head["version"], message.columns, message.head["value"]

    def _call(self, name: str, head: Mapping[str, Any] | None = None, columns: Any = None) -> Message:
        return self.connections[0].call(name, head, columns, timeout=self.timeout)

    def _call_all(
        self,
        name: str,
        head: Mapping[str, Any] | None = None,
        columns: Any = None,
        *,
        timeout: float | None = None,
    ) -> list[Message]:
        seconds = self.timeout if timeout is None else timeout
        return [each.call(name, head, columns, timeout=seconds) for each in self.connections]

    def close(self) -> None:
        """Close the connections; writers and loaders of this client are closed before it."""
        for connection in self.connections:
            connection.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_client, (self.addresses, self._arguments)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {', '.join(self.addresses)}>"


def _make_client(addresses: Sequence[str], arguments: Mapping[str, Any]) -> Client:
    return Client(addresses, **arguments)


def _random_name() -> str:
    return f"{os.uname().nodename}-{os.getpid()}-{os.urandom(4).hex()}"


def _to_numpy(value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.dtype.kind not in "biufc":
        raise TableError(f"a value of {array.dtype}. Publish arrays of numbers or bools, and text by keywords.")
    return array


def _info_of(record: Mapping[str, Any]) -> TableInfo:
    derived = ("samples_per_insert", "diff")
    rest = {name: value for name, value in record.items() if name not in derived}
    limiter, counts, rates = Limiter.from_json(rest["limiter"]), Counts(**rest["counts"]), Rates(**rest["rates"])
    return TableInfo(**{**rest, "limiter": limiter, "counts": counts, "rates": rates})


def _added(one: TableInfo, other: TableInfo) -> TableInfo:
    """Return the sums of two servers' tables of one name."""
    from dataclasses import asdict, replace

    def summed(kind: Any, first: Any, second: Any) -> Any:
        return kind(**{name: value + asdict(second)[name] for name, value in asdict(first).items()})

    numbers = ("size", "max_size", "num_pending", "num_missed", "num_dropped")
    return replace(
        one,
        **{name: getattr(one, name) + getattr(other, name) for name in numbers},
        counts=summed(Counts, one.counts, other.counts),
        rates=summed(Rates, one.rates, other.rates),
        largest_priority=max(one.largest_priority, other.largest_priority),
    )


def refuse_pickle(what: str) -> NoReturn:
    """Raise for what is of one process."""
    raise ServiceError(f"a {what} is of one process. Send the Client, and make one there.")
