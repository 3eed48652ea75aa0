"""The client: writers, samples and single calls of one server, by Reverb's names."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import ServiceError, TableError
from stepwell.json_text import parse_json
from stepwell.replay.table_settings import checked_keys, checked_priorities
from stepwell.reverb.errors import DeadlineExceededError
from stepwell.reverb.replay_sample import ReplaySample, SampleInfo
from stepwell.reverb.server import nest_of, unpack_strings
from stepwell.reverb.specs import TensorSpec, import_tree
from stepwell.reverb.tables import RateLimiterInfo, SelectorOptions, Stats, TableInfo
from stepwell.reverb.trajectory_writer import TrajectoryWriter
from stepwell.service.client import Connection
from stepwell.service.messages import PROTOCOL, Kind, Message, pack, unpack
from stepwell.service.settings import TLS, import_grpc

if TYPE_CHECKING:
    from stepwell.reverb.structured_writer import Config, StructuredWriter
    from stepwell.reverb.writer import Writer

__all__ = ["Client"]

MESSAGE_BYTES = 1 << 30
# samples that one message asks for, at most
MOST_ASKED = 256
# that a data set of TensorFlow waits before it looks whether it is still wanted
POLL_SECONDS = 0.1
INFO = ("key", "probability", "table_size", "priority", "times_sampled")


class Client:
    """Write to and draw from the tables of a `stepwell.reverb.Server`.

    Args:
        server_address: "host:port".
        token: that the server asks for.
        tls: certificates; see `stepwell.service.TLS`.

    Raises:
        ServiceError: an address that is none.

    Notes:
        Thread-safe; pickles as its arguments. Calls wait for a server that is away.
    """

    def __init__(self, server_address: str, *, token: str | None = None, tls: TLS | None = None) -> None:
        self._server_address, self._token, self._tls = server_address, token, tls
        self.connection = Connection(server_address, token, tls, MESSAGE_BYTES)
        self._signatures: dict[str, Any] = {}

    @property
    def server_address(self) -> str:
        """The address that it was made with."""
        return self._server_address

    # writing

    def trajectory_writer(
        self, num_keep_alive_refs: int, *, get_signature_timeout_ms: int | None = 3000, validate_items: bool = True
    ) -> TrajectoryWriter:
        """Return a writer whose items may refer to the last ``num_keep_alive_refs`` steps.

        Args:
            num_keep_alive_refs: steps that are kept.
            get_signature_timeout_ms: to wait for the tables' signatures.
            validate_items: compare items with them.

        Raises:
            ValueError: a number below 1.
            DeadlineExceededError: the server did not tell its signatures in time.
        """
        writer = TrajectoryWriter(self, num_keep_alive_refs, validate_items=validate_items)
        if validate_items and get_signature_timeout_ms is not None:
            self.server_info(get_signature_timeout_ms / 1000)
        return writer

    def structured_writer(self, configs: Sequence[Config]) -> StructuredWriter:
        """Return a writer that makes items by patterns; see `stepwell.reverb.structured`.

        Raises:
            ValueError: no configs.
        """
        from stepwell.reverb.structured_writer import StructuredWriter

        return StructuredWriter(self, configs)

    def writer(
        self,
        max_sequence_length: int,
        delta_encoded: bool = False,
        chunk_length: int | None = None,
        max_in_flight_items: int | None = 25,
    ) -> Writer:
        """Return a writer whose items are the last steps of all columns, as Reverb had it before 2021.

        Args:
            max_sequence_length: steps that are kept.
            delta_encoded: not needed here.
            chunk_length: not needed here; at most ``max_sequence_length``.
            max_in_flight_items: items that `create_item` lets wait; None: any number.

        Raises:
            ValueError: numbers below 1.
        """
        from stepwell.reverb.writer import Writer

        if max_sequence_length < 1:
            raise ValueError(f"max_sequence_length ({max_sequence_length}) must be a positive integer")
        if chunk_length is not None and not 1 <= chunk_length <= max_sequence_length:
            raise ValueError(f"chunk_length ({chunk_length}) must be between 1 and {max_sequence_length}")
        if max_in_flight_items is not None and max_in_flight_items < 1:
            raise ValueError(f"max_in_flight_items ({max_in_flight_items}) must be a positive integer or None")
        return Writer(self, max_sequence_length, max_in_flight_items)

    def insert(self, data: Any, priorities: Mapping[str, float]) -> None:
        """Insert one step as an item of one or several tables, and wait until it is in.

        Args:
            data: a nest of values.
            priorities: table to priority.

        Raises:
            ValueError: no tables, or one that is not there.
        """
        if not priorities:
            raise ValueError("an item for no table. Give the priority for one or more.")
        # the signature of a table of single steps says what a step is
        with self.trajectory_writer(1, validate_items=False) as writer:
            writer.append(data)
            flat = import_tree().map_structure(lambda column: column[:], writer.history)
            for table, priority in priorities.items():
                writer.create_item(table, priority, flat)

    # sampling

    def samples(  # noqa: PLR0917
        self,
        table: str,
        max_in_flight: int = 1,
        num_workers: int = 1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int | None = None,
        max_samples: int = -1,
    ) -> _Samples:
        """Yield samples: an info, and the columns of the item as a list of arrays.

        Args:
            table: to draw from.
            max_in_flight: samples that are asked for ahead.
            num_workers: are not needed here: a message brings many samples.
            max_samples_per_stream: are not needed here.
            rate_limiter_timeout_ms: ends the iteration when the limiter lets nothing be drawn for so long; None or -1:
                it waits without end.
            max_samples: ends it after so many; -1: never.
        """
        return _Samples(self.connection, table, max_in_flight, rate_limiter_timeout_ms, max_samples)

    def sample(
        self,
        table: str,
        num_samples: int = 1,
        *,
        emit_timesteps: bool = True,
        unpack_as_table_signature: bool = False,
    ) -> Iterator[Any]:
        """Yield samples.

        Args:
            table: to draw from.
            num_samples: to draw.
            emit_timesteps: give each sample as a list of steps, `ReplaySample` each; else one `ReplaySample`.
            unpack_as_table_signature: give data as the nest of the table's signature, where it has one, instead of a
                list of columns.

        Raises:
            ValueError: steps of columns that differ in length, or of a column without steps.
        """
        signature = self.signature(table) if unpack_as_table_signature else None
        for info, columns in self.samples(table, max_in_flight=min(num_samples, 64), max_samples=num_samples):
            if not emit_timesteps:
                yield ReplaySample(info, _as_nest(signature, columns))
                continue
            lengths = {len(column) for column in columns if np.ndim(column)}
            if len(lengths) != 1 or not all(np.ndim(column) for column in columns):
                raise ValueError(
                    f"columns of {', '.join(str(np.shape(each)) for each in columns)} cannot be given step by step. "
                    "Sample with emit_timesteps=False."
                )
            yield [
                ReplaySample(info, _as_nest(signature, [column[step] for column in columns]))
                for step in range(lengths.pop())
            ]

    # single calls

    def mutate_priorities(
        self, table: str, updates: Mapping[int, float] | None = None, deletes: Sequence[int] | None = None
    ) -> None:
        """Remove items by key, then set the priorities of others; keys that are not there are passed over.

        Raises:
            ValueError: a table that is not there, or a priority that is none; nothing was changed.
        """
        columns: dict[str, Any] = {}
        if updates:
            columns["keys"] = checked_keys(list(updates))
            columns["priorities"] = checked_priorities(list(updates.values()), len(updates))
        if deletes is not None and len(deletes):
            columns["deletes"] = checked_keys(list(deletes))
        self._call("mutate", {"table": table}, columns)

    def reset(self, table: str) -> None:
        """Remove all items of a table and begin to count anew."""
        self._call("reset", {"table": table})

    def checkpoint(self) -> str:
        """Let the server write a checkpoint; returns its path, on the server's machine."""
        return str(self._call("checkpoint").head["path"])

    def server_info(self, timeout: float | None = None) -> dict[str, TableInfo]:
        """Return the settings and numbers of the tables, by name.

        Raises:
            DeadlineExceededError: the server did not answer within ``timeout`` seconds.
        """
        try:
            found = self.connection.call("info", timeout=timeout)
        except ServiceError as error:
            raise DeadlineExceededError(f"no answer within {timeout} s: {error}") from error
        return {record["name"]: _info_of(record) for record in found.head["tables"]}

    def table_specs(self) -> dict[str, list[TensorSpec] | None]:
        """Return the specs of the tables' columns in dm-tree's order, by name; None without a signature."""
        tree = import_tree()
        found = {name: info.signature for name, info in self.server_info().items()}
        return {name: None if each is None else tree.flatten(each) for name, each in found.items()}

    def signature(self, table: str) -> Any:
        """Return the signature of a table as a nest of `TensorSpec`; None without one.

        Raises:
            ValueError: the table is not there.
        """
        info = self.server_info()
        if table not in info:
            raise TableError(f"table {table!r} was not found. The server has: {', '.join(info)}.")
        return info[table].signature

    def _call(self, name: str, head: Mapping[str, Any] | None = None, columns: Any = None) -> Message:
        return self.connection.call(name, head, columns, timeout=None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_client, (self._server_address, self._token, self._tls)

    def __repr__(self) -> str:
        return f"<reverb.Client of {self._server_address}>"


def _make_client(address: str, token: str | None, tls: TLS | None) -> Client:
    return Client(address, token=token, tls=tls)


class _Samples:
    """Samples of one stream, asked for ahead."""

    def __init__(
        self, connection: Connection, table: str, max_in_flight: int, timeout_ms: int | None, max_samples: int
    ) -> None:
        self._asks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call: Any = None
        # whether it is because nothing could be drawn in time
        self._is_over = self._has_waited = False
        if max_in_flight < 1:
            raise ValueError(f"max_in_flight={max_in_flight} samples: at least 1 must be asked for.")
        if max_samples == 0 or max_samples < -1:
            raise ValueError(f"max_samples={max_samples}: give at least 1, or -1 for any number.")
        self._connection, self._table = connection, table
        self._timeout = None if timeout_ms is None or timeout_ms < 0 else timeout_ms / 1000
        self._left = max_samples if max_samples > 0 else 1 << 62
        self._ahead, self._asked = max_in_flight, 0
        self._found: list[tuple[SampleInfo, list[Any]]] = []
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[tuple[SampleInfo, list[Any]]]:
        return self

    def __next__(self) -> tuple[SampleInfo, list[Any]]:
        with self._lock:
            while not self._found:
                if self._is_over or not self._left:
                    self.close()
                    raise StopIteration
                self._read()
            self._left -= 1
            return self._found.pop()

    def polled(self) -> Iterator[tuple[SampleInfo, list[Any]] | None]:
        """Yield the samples, and None where there is none for a while; ends as the iteration does."""
        seconds, waited = self._timeout, 0.0
        while True:
            self._timeout = POLL_SECONDS if seconds is None else min(POLL_SECONDS, seconds - waited)
            for found in self:
                waited = 0.0
                yield found
            waited += self._timeout
            if not self._has_waited or (seconds is not None and waited >= seconds):
                return
            self._is_over = self._has_waited = False
            yield None

    def _read(self) -> None:
        """Ask for what may be on its way, and take the next message."""
        grpc = import_grpc()
        if self._call is None:
            self._asks.put(pack(Kind.HELLO, {"protocol": PROTOCOL, "table": self._table}))
            self._call = self._connection.stream("sample", iter(self._asks.get, None))
            self._asked = 0
        self._ask()
        try:
            message = unpack(next(self._call), Kind.WELCOME, Kind.BATCH, Kind.WAIT)
        except StopIteration:
            raise ServiceError(f"the server at {self._connection.address} has ended the stream of samples.") from None
        except grpc.RpcError as error:
            raise self._connection.error(error) from error
        if message.kind is Kind.WAIT:
            self._is_over = self._has_waited = True
        elif message.kind is Kind.BATCH:
            found = _samples_of(message)
            self._asked -= len(found)
            self._found = found[::-1]

    def _ask(self) -> None:
        while self._asked < min(self._ahead, self._left):
            count = min(self._ahead - self._asked, self._left - self._asked, MOST_ASKED)
            self._asks.put(pack(Kind.ASK, {"count": count, "timeout": self._timeout}))
            self._asked += count

    def close(self) -> None:
        """End the stream."""
        call, self._call = self._call, None
        self._is_over = True
        self._asks.put(None)
        if call is not None:
            call.cancel()

    def __del__(self) -> None:
        self.close()


def _samples_of(message: Message) -> list[tuple[SampleInfo, list[Any]]]:
    """Return the samples of a message, in their order."""
    squeezed = message.head["squeezed"]
    infos = [message.columns[name].tolist() for name in INFO]
    parts = []
    for number, is_squeezed in enumerate(squeezed):
        values = unpack_strings(message.columns, str(number))
        sizes = message.columns[f"{number}:n"]
        if int(sizes.sum()) != len(values):
            raise ServiceError(f"{len(values)} rows of column {number}, of which its sizes say {int(sizes.sum())}.")
        if is_squeezed:
            parts.append([values[row] if values.ndim == 1 else values[row].copy() for row in range(len(values))])
        else:
            # copies, so that one sample does not keep the memory of all
            parts.append([each.copy() for each in np.split(values, np.cumsum(sizes)[:-1])])
    return [
        (SampleInfo(*info), [part[number] for part in parts]) for number, info in enumerate(zip(*infos, strict=True))
    ]


def _as_nest(signature: Any, columns: list[Any]) -> Any:
    return columns if signature is None else import_tree().unflatten_as(signature, columns)


def _info_of(record: Mapping[str, Any]) -> TableInfo:
    ratio, low, high, least, inserts, samples = record["rate_limiter_info"]
    limits = RateLimiterInfo(
        ratio,
        -np.inf if low is None else low,
        np.inf if high is None else high,
        least,
        Stats(inserts),
        Stats(samples),
    )
    signature = record["signature"]
    if signature is not None:
        text, specs = signature
        leaves = [TensorSpec(tuple(shape), np.dtype(dtype), name) for shape, dtype, name in specs]
        signature = nest_of(parse_json(text), leaves)
    options = {name: SelectorOptions.of(record[name]) for name in ("sampler_options", "remover_options")}
    return TableInfo(**{**record, **options, "rate_limiter_info": limits, "signature": signature})
