"""Writers of clients: steps are checked and encoded here, sent several at a time, and kept until the server has them.

::

    append(step) --> rows of the next message --(batch_steps, an end, flush_seconds)--> messages --> stream --> server
                                                                                  kept until ACK <-----------------'
    connection lost:  connect again, HELLO, WELCOME(position): what the server has is dropped, the rest is sent again

So each step is stored exactly once, in order, whatever happens to the connection or the server.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import RateLimitError, ServiceError, StepError, StepwellError, WriterClosedError
from stepwell.process import this
from stepwell.replay.limiters import checked_timeout
from stepwell.schema import Feature, Schema, flatten, infer_columns, infer_schema
from stepwell.service.client import Sender, refuse_pickle
from stepwell.service.messages import PROTOCOL, Kind, pack, unpack
from stepwell.service.sessions import FINAL, FLAG, ROWS, SIZES, Position
from stepwell.sizes import parse_bytes
from stepwell.store.device_arrays import HostCopies
from stepwell.store.samples import refuse_rates
from stepwell.store.values import (
    accept_column,
    accept_columns,
    accept_final,
    acceptor,
    check_mapping,
    encode_metadata,
    missing_features_error,
)

if TYPE_CHECKING:
    from stepwell.service.client import Connection
    from stepwell.store.vector_writer import Flags

__all__ = ["RemoteVectorWriter", "RemoteWriter"]

BATCH_BYTES = 1 << 20
# times that a message may become larger while those before it wait to be sent
GROWTH = 16
# of a message, for what is not rows
HEAD_BYTES = 1 << 10
# messages after which a server says how far it is
ACK_MESSAGES = 16
CLOSED = "the writer is closed. Call client.writer() for a new one."


class _Sender(Sender):
    """Sends messages in order, over one connection after the other, and keeps them until they are acknowledged."""

    def __init__(
        self,
        connection: Connection,
        hello: dict[str, Any],
        max_bytes: int,
        flush_seconds: float,
        take: Callable[[], None],
    ) -> None:
        super().__init__(connection, "write", "stepwell remote writer")
        self._hello, self._max_bytes, self._take = hello, max_bytes, take
        # what is not acknowledged: the position after each message, and its bytes; how many were sent
        self._messages: deque[tuple[Position, bytes]] = deque()
        self._num_sent = self.num_bytes = self._num_since_ack = 0
        self.flush_seconds = flush_seconds
        # whether nothing follows; whether the user knows of the error
        self._is_ending = self._is_told = False

    def wants_ack(self, num_bytes: int) -> bool:
        """Return whether the next message, of so many bytes, is to be acknowledged: before there is no more room."""
        return self._num_since_ack + 1 >= ACK_MESSAGES or (self.num_bytes + num_bytes) * 4 >= self._max_bytes

    def put(self, position: Position, data: bytes, *, is_acknowledged: bool) -> None:
        """Send a message, as soon as the connection lets; ``changed`` is held."""
        self._messages.append((position, data))
        self.num_bytes += len(data)
        self._num_since_ack = 0 if is_acknowledged else self._num_since_ack + 1
        self.changed.notify_all()

    def raise_error(self) -> None:
        """Raise what the server said, or what became of the connection."""
        self._is_told = self.error is not None
        super().raise_error()

    @property
    def is_empty(self) -> bool:
        """Whether the server has all."""
        return not self._messages

    @property
    def is_idle(self) -> bool:
        """Whether all that was put has been sent."""
        return self._num_sent == len(self._messages)

    @property
    def has_room(self) -> bool:
        """Whether more may be kept."""
        return self.num_bytes < self._max_bytes

    def why_waiting(self) -> str:
        """Return what the server said last, for messages."""
        return f" The last error was: {self._last_error}" if self._last_error is not None else ""

    def end(self, timeout: float | None) -> None:
        """Say that nothing follows, and wait until the server knows."""
        if self._is_told:
            # the writer has failed, and its user knows
            self.stop()
            return
        try:
            with self.changed:
                self._is_ending = True
                self.changed.notify_all()
                self.wait_until(lambda: self.is_over, timeout, self._not_in_time)
        finally:
            self.stop()

    def _not_in_time(self) -> StepwellError:
        address, number = self._connection.address, len(self._messages)
        if not number:
            return ServiceError(
                f"{address} has all steps, and was not told in time that the writer ends: an open episode ends as an "
                f"interrupted one.{self.why_waiting()}"
            )
        return ServiceError(f"{address} did not acknowledge the last {number} messages in time.{self.why_waiting()}")

    def stop(self) -> None:
        """End the connection at once."""
        self._stopped.set()
        with self.changed:
            call = self._call
            self.changed.notify_all()
        if call is not None:
            call.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _requests(self, connection: int) -> Iterator[bytes]:
        """Yield what one connection sends; runs in a thread of gRPC's."""
        yield pack(Kind.HELLO, self._hello)
        is_over = False
        while not is_over:
            with self.changed:
                while True:
                    if connection != self._connections or self._stopped.is_set():
                        return
                    if self._is_welcome and self._num_sent < len(self._messages):
                        data = self._messages[self._num_sent][1]
                        self._num_sent += 1
                        break
                    if self._is_welcome and self._is_ending and not self._messages:
                        data, is_over = pack(Kind.BYE), True
                        break
                    if not self.changed.wait(self.flush_seconds):
                        self._take()
            yield data

    def _receive(self, data: bytes) -> None:
        message = unpack(data, Kind.WELCOME, Kind.ACK)
        position = Position(*message.head["position"])
        with self.changed:
            if message.kind is Kind.WELCOME:
                self._hello["store"] = message.head["store"]
                self._is_welcome, self._num_sent = True, 0
                self._last_error = None
            while self._messages and all(a <= b for a, b in zip(self._messages[0][0], position, strict=True)):
                _, sent = self._messages.popleft()
                self.num_bytes -= len(sent)
                self._num_sent = max(0, self._num_sent - 1)
            self.is_over |= bool(message.head.get("is_over"))
            self.changed.notify_all()


class _RemoteBase:
    """What both writers share."""

    def __init__(  # noqa: PLR0917
        self,
        connection: Connection,
        name: str,
        num_envs: int | None,
        max_in_flight: int | str,
        flush_seconds: float,
        timeout: float | None,
        on_disconnect: str,
    ) -> None:
        if on_disconnect not in ("interrupt", "discard"):
            raise ServiceError(f'on_disconnect={on_disconnect!r}. Allowed: "interrupt" or "discard".')
        if not flush_seconds > 0:
            raise ServiceError(f"flush_seconds={flush_seconds!r}. Allowed: a number above 0.")
        checked_timeout(timeout)
        self.name = name
        self._connection, self._timeout, self._pid = connection, timeout, this.pid
        self._is_closed = False
        about = connection.call("describe", timeout=60.0 if timeout is None else timeout).head
        self._schema: Schema | None = None if about["schema"] is None else Schema.from_json(about["schema"])
        self._is_schema_known = self._schema is not None
        self._is_ring = bool(about["is_ring"])
        self._max_message = int(about["message_bytes"])
        hello = {
            "protocol": PROTOCOL,
            "store": about["store"],
            "name": name,
            "incarnation": f"{this.pid}-{os.urandom(8).hex()}",
            "num_envs": num_envs,
            "on_disconnect": on_disconnect,
        }
        max_bytes = parse_bytes("max_in_flight", max_in_flight)
        self._sender = _Sender(connection, hello, max_bytes, flush_seconds, self._seal)
        self._changed = self._sender.changed
        # what was put into messages, and what the next one has
        self._sealed = Position()
        self._count = self._num_ends = self._num_items = 0
        self._ops: list[list[Any]] = []

    @property
    def schema(self) -> Schema | None:
        """The features of the store; None until the first step of a store that was created without a schema."""
        return self._schema

    def flush(self, timeout: float | None = None) -> None:
        """Wait until the server has stored all that was appended.

        Args:
            timeout: seconds; None: that of the writer.

        Raises:
            ServiceError: it did not in time; what is missing is sent all the same, later.
        """
        with self._changed:
            self._check()
            self._seal(is_asked=True)
            seconds = self._timeout if timeout is None else timeout
            self._sender.wait_until(lambda: self._sender.is_empty, seconds, self._sender._not_in_time)

    def close(self) -> None:
        """Send what is left and wait until it is stored; an open episode is kept, marked ``interrupted``.

        Raises:
            ServiceError: the server was away for longer than ``timeout``: what it has not acknowledged may be lost.
        """
        if self._is_closed or self._pid != this.pid:
            return
        self._is_closed = True
        try:
            with self._changed:
                if self._sender.error is None:
                    self._seal(is_asked=True)
        finally:
            self._sender.end(self._timeout)

    def _check(self) -> None:
        if self._pid != this.pid:
            raise WriterClosedError(
                f"this writer belongs to process {self._pid}, this is {this.pid}. Make a client and a writer there."
            )
        self._sender.raise_error()
        if self._is_closed:
            raise WriterClosedError(CLOSED)

    def _make_room(self) -> None:
        """Wait where the server is behind, before anything of a step is taken."""
        if not self._sender.has_room:
            self._sender.wait_until(lambda: self._sender.has_room, self._timeout, self._is_behind)

    def _is_behind(self) -> StepwellError:
        return RateLimitError(
            f"writer {self.name!r}: {self._sender.num_bytes:,} bytes are on their way to {self._connection.address}, "
            f"which takes no more: a limiter holds it, or it is away.{self._sender.why_waiting()} Nothing of this step "
            "was taken."
        )

    def _seal(self, *, is_asked: bool = False) -> None:
        """Make a message of what is there."""
        sender = self._sender
        if not (self._count or self._ops) and (not is_asked or sender.is_empty):
            return
        after = self._after()
        head: dict[str, Any] = {"first": self._sealed, **self._head()}
        columns = self._columns()
        if self._ops:
            head["ops"] = self._ops
        is_acknowledged = is_asked or sender.wants_ack(sum(column.nbytes for column in columns.values()) + HEAD_BYTES)
        if is_acknowledged:
            head["ack"] = True
        if not self._is_schema_known and self._schema is not None:
            head["schema"] = self._schema.to_json()
            self._is_schema_known = True
        sender.put(after, pack(Kind.STEPS, head, columns), is_acknowledged=is_acknowledged)
        self._sealed, self._ops = after, []
        self._count = self._num_ends = self._num_items = 0

    def _after(self) -> Position:
        raise NotImplementedError

    def _head(self) -> dict[str, Any]:
        raise NotImplementedError

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        raise NotImplementedError

    def _fitting(self, schema: Schema, room: int, num_rows: int = 1) -> int:
        """Return how many steps of ``num_rows`` rows fit in a message, ``room`` at most."""
        row_bytes = num_rows * sum(feature.row_bytes for feature in schema.values() if not feature.is_ragged)
        most = (self._max_message - HEAD_BYTES) // 2
        if row_bytes > most:
            raise StepError(
                f"a step of {row_bytes:,} bytes; with its final row a message of this server takes {most:,}. Give the "
                "server larger Limits(message_bytes=...)."
            )
        return max(1, min(room, most // max(row_bytes, 1)))

    def _add_op(self, *op: Any) -> None:
        self._ops.append([self._count, *op])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        refuse_pickle("remote writer")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<{type(self).__name__} {self.name} of {self._connection.address} {state}>"


class _Rows:
    """The rows of one column in the next message."""

    def __init__(self, name: str, feature: Feature, room: int) -> None:
        self.name = name
        # what the server decodes or encodes row by row travels as it is
        codec = make_codec(feature)
        self._encode = None if feature.is_raw or codec.is_sequential else codec.encode
        self._accept = acceptor(name, feature)
        self.dtype, self.shape = feature.np_dtype, None if feature.is_ragged else feature.shape
        self._blobs: list[bytes] = []
        self._array = np.empty((room, *feature.fixed_shape), feature.np_dtype) if self._encode is None else None

    def accept(self, value: Any) -> Any:
        """Return a value as it is sent; StepError where it does not fit."""
        if type(value) is not np.ndarray or value.dtype is not self.dtype or value.shape != self.shape:
            value = self._accept(value)
        return value if self._encode is None else self._encode(value)

    def put(self, row: int, value: Any) -> None:
        """Store an accepted value."""
        if self._array is not None:
            self._array[row] = value
        else:
            self._blobs.append(value)

    def put_many(self, row: int, values: Any) -> None:
        """Store accepted values [k, ...] of `accept_columns`."""
        if self._array is not None:
            self._array[row : row + len(values)] = values
        elif hasattr(values, "buffers"):
            self._blobs += [bytes(each) for each in values.buffers]
        elif self._encode is not None:
            self._blobs += [self._encode(value) for value in values]

    @property
    def num_bytes(self) -> int:
        """Bytes of encoded rows."""
        return sum(map(len, self._blobs))

    def take(self, count: int, prefix: str = "") -> dict[str, npt.NDArray[Any]]:
        """Return the columns of a message, and begin anew."""
        if self._array is not None:
            return {prefix + self.name: self._array[:count]}
        blobs, self._blobs = self._blobs, []
        return {
            prefix + self.name + SIZES: np.array([len(blob) for blob in blobs], np.int64),
            prefix + self.name + ROWS: np.frombuffer(b"".join(blobs), np.uint8),
        }


class RemoteWriter(_RemoteBase):
    """Record episodes into the store of a server: the verbs of `stepwell.Writer`.

    Made by ``client.writer()``.

    Args:
        connection: of the client.
        name: of the actor. A process that begins anew under the name of a dead one ends what that one had open.
        batch_steps: steps that are sent together; up to 16 times as many while the connection is busy.
        max_in_flight: bytes that the server has not acknowledged; with more, `append` waits. An int or "16 MiB".
        flush_seconds: after which steps are sent though a message is not full.
        timeout: seconds to wait for a server that is away or held by a limiter; None: without end.
        on_disconnect: what becomes of the open episode when this process dies: "interrupt" keeps it, marked so;
            "discard" takes it back.

    Example:
        >>> import stepwell
        >>> from stepwell.service import Client, Server
        >>> store = stepwell.create(":memory:", {"x": stepwell.Array()}, capacity=1000)
        >>> with Server(stepwell.Table(store)) as server, Client(server.address) as client:
        ...     with client.writer("actor") as writer:
        ...         numbers = [writer.append(x=0.5), writer.append(x=1.0)]
        ...         writer.flush()
        >>> numbers, store.num_steps
        ([0, 1], 2)

    Notes:
        Values are checked, and images and texts encoded, here. One thread at a time. `append` returns the number of the
        step among all of this writer, for `create_item`. A step is stored when `flush` has returned, or is sent again
        until it is: exactly once, in order. Where the server itself was killed, the episode that was open ends there,
        marked ``interrupted``, and what follows is another one.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        *,
        batch_steps: int = 64,
        max_in_flight: int | str = "16 MiB",
        flush_seconds: float = 0.1,
        timeout: float | None = None,
        on_disconnect: str = "interrupt",
    ) -> None:
        if not 1 <= batch_steps <= 1 << 16:
            raise ServiceError(f"batch_steps={batch_steps!r}. Allowed: 1 to {1 << 16:,}.")
        super().__init__(connection, name, None, max_in_flight, flush_seconds, timeout, on_disconnect)
        self._room = int(batch_steps)
        self._rows: list[_Rows] = []
        self._num_finals = 0
        self._finals: list[_Rows] = []
        self._open_steps = 0
        if self._schema is not None:
            self._bind(self._schema)
        self._sender.start()

    def append(self, step: Mapping[str, Any] | None = None, /, **features: Any) -> int:
        """Send one step of the open episode; see `stepwell.Writer.append`.

        Returns:
            The number of the step among all of this writer.

        Raises:
            StepError: it does not fit the schema; nothing was sent.
            RateLimitError: the server did not take steps in time; nothing of this one was sent.
            WriterClosedError: the writer was closed, or belongs to another process.
        """
        given = features if step is None else step
        with self._changed:
            if self._is_closed or self._sender.error is not None or self._pid != this.pid:
                self._check()
            if self._schema is None:
                check_mapping(given)
                self._bind(infer_schema(given))
            values = self._accepted(given)
            if not self._count:
                self._make_room()
            row = self._count
            for rows, value in zip(self._rows, values, strict=True):
                rows.put(row, value)
            self._count = row + 1
            self._open_steps += 1
            number = self._sealed.steps + row
            if self._count >= self._batch_steps:
                self._seal_if_due()
            elif self._encoded and self._num_encoded() > BATCH_BYTES:
                self._seal()
            return number

    def append_batch(self, columns: Mapping[str, Any]) -> int:
        """Send several steps of the open episode, as `stepwell.Writer.append_batch`; returns the first one's number."""
        check_mapping(columns)
        with self._changed:
            self._check()
            given = dict(flatten(columns))
            if self._schema is None:
                self._bind(infer_columns(given))
            assert self._schema is not None
            accepted, count = accept_columns(self._schema, given, finals=False)
            return self._put_many(accepted, count)

    def end_episode(
        self,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> None:
        """End the open episode; see `stepwell.Writer.end_episode`."""
        with self._changed:
            self._check()
            if not self._open_steps:
                raise StepError("there are no steps since the last end_episode. Append at least one.")
            assert self._schema is not None
            finals = None if final is None else accept_final(self._schema, dict(flatten(final)))
            self._end(finals, terminated, truncated, metadata)

    def add_episode(
        self,
        columns: Mapping[str, Any],
        /,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> None:
        """Send a whole episode; see `stepwell.Writer.add_episode`."""
        encode_metadata(metadata)
        check_mapping(columns)
        with self._changed:
            self._check()
            if self._open_steps:
                raise StepError("an episode is open. Call end_episode or discard_episode first.")
            given = dict(flatten(columns))
            if self._schema is None:
                self._bind(infer_columns(given))
            assert self._schema is not None
            accepted, count = accept_columns(self._schema, given, finals=True)
            if not count:
                raise StepError("an episode needs at least one step, got columns of 0 steps.")
            finals = {
                name: values[count : count + 1] if hasattr(values, "buffers") else values[count]
                for name, values in zip(self._schema, accepted, strict=True)
                if len(values) > count
            }
            if final is not None:
                if finals:
                    raise StepError("the final row was given twice: by columns of T + 1, and by final.")
                finals = accept_final(self._schema, dict(flatten(final)))
            self._put_many([values[:count] for values in accepted], count)
            self._end(finals or None, terminated, truncated, metadata)

    def discard_episode(self) -> None:
        """Take back the steps since the last end of an episode; see `stepwell.Writer.discard_episode`."""
        with self._changed:
            self._check()
            if self._open_steps:
                self._add_op("discard")
                self._num_ends += 1
                self._open_steps = 0

    def create_item(self, table: str, step: int, length: int = 1, priority: float | None = None) -> None:
        """Make an item of a table of consecutive steps of one episode, once they are stored.

        Args:
            table: its name; one without a pattern.
            step: number of the first, as `append` returned it: among the newest 262,144 of this writer.
            length: how many steps.
            priority: 0 or more; None: the largest so far.

        Notes:
            Errors of it come with a later call, and close the writer.
        """
        with self._changed:
            self._check()
            last = self._sealed.steps + self._count
            if not 0 <= step <= step + length - 1 < last or length < 1:
                raise StepError(f"an item of {length} steps from step {step} on, and {last} were appended.")
            self._add_op("item", str(table), int(step), int(length), None if priority is None else float(priority))
            self._num_items += 1

    def _seal_if_due(self) -> None:
        if self._count == self._room or self._sender.is_idle or (self._encoded and self._num_encoded() > BATCH_BYTES):
            self._seal()

    def _accepted(self, step: Mapping[str, Any]) -> list[Any]:
        values = []
        try:
            for rows in self._rows:
                values.append(rows.accept(step[rows.name]))
        except (KeyError, TypeError):
            values.clear()
        if len(values) == len(self._rows) == len(step):
            return values
        check_mapping(step)
        assert self._schema is not None
        flat = dict(flatten(step))
        if flat.keys() != self._schema.keys():
            raise missing_features_error(self._schema, flat)
        return [rows.accept(flat[rows.name]) for rows in self._rows]

    def _put_many(self, accepted: list[Any], count: int) -> int:
        first, done = self._sealed.steps + self._count, 0
        while done < count:
            if not self._count:
                self._make_room()
            due = self._batch_steps if self._count < self._batch_steps else self._room
            number = min(due - self._count, count - done)
            for rows, values in zip(self._rows, accepted, strict=True):
                rows.put_many(self._count, values[done : done + number])
            self._count += number
            self._open_steps += number
            done += number
            if self._count >= self._batch_steps:
                self._seal_if_due()
            elif self._encoded and self._num_encoded() > BATCH_BYTES:
                self._seal()
        return first

    def _end(
        self, finals: Mapping[str, Any] | None, terminated: bool, truncated: bool, metadata: dict[str, Any]
    ) -> None:
        line = encode_metadata(metadata)
        options: dict[str, Any] = {"terminated": bool(terminated), "truncated": bool(truncated)}
        if len(line) > 3:
            options["metadata"] = metadata
        if finals:
            if self._num_finals == self._room:
                self._seal()
            for rows in self._finals:
                value = finals[rows.name]
                if hasattr(value, "buffers"):
                    rows.put_many(self._num_finals, value)
                else:
                    rows.put(self._num_finals, rows.accept(value))
            options["final"] = self._num_finals
            self._num_finals += 1
        self._add_op("end", options)
        self._num_ends += 1
        self._open_steps = 0

    def _bind(self, schema: Schema) -> None:
        refuse_rates(schema, "a writer of a served store")
        self._batch_steps = self._fitting(schema, self._room)
        # while the connection is busy with messages before it, one grows
        self._room = self._fitting(schema, GROWTH * self._batch_steps)
        self._rows = [_Rows(name, feature, self._room) for name, feature in schema.items()]
        self._finals = [_Rows(name, schema[name], self._room) for name in schema.final_names]
        self._encoded = [rows for rows in self._rows if rows._encode is not None]
        self._schema = schema

    def _num_encoded(self) -> int:
        return sum(rows.num_bytes for rows in self._encoded)

    def _after(self) -> Position:
        one = self._sealed
        return Position(one.steps + self._count, one.ends + self._num_ends, one.items + self._num_items)

    def _head(self) -> dict[str, Any]:
        return {"count": self._count}

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        found: dict[str, npt.NDArray[Any]] = {}
        if self._count:
            for rows in self._rows:
                found.update(rows.take(self._count))
        if self._num_finals:
            for rows in self._finals:
                found.update(rows.take(self._num_finals, FINAL))
            self._num_finals = 0
        return found


class RemoteVectorWriter(_RemoteBase):
    """Record n environments that step together into the ring of a server: the verbs of `stepwell.VectorWriter`.

    Made by ``client.vector_writer(n)``; for rings whose features are all raw. Elsewhere make a `RemoteWriter` for each
    environment.

    Args:
        connection: of the client.
        name: of the actor, as of `RemoteWriter`.
        num_envs: how many environments.
        batch_steps: vector steps that are sent together, at most; default: those of about 64 steps.
        max_in_flight: as of `RemoteWriter`, and so are ``flush_seconds``, ``timeout`` and ``on_disconnect``.

    Example:
        >>> import stepwell
        >>> from stepwell.service import Client, Server
        >>> store = stepwell.create(":memory:", {"x": stepwell.Array()}, capacity=1000)
        >>> with Server(stepwell.Table(store)) as server, Client(server.address) as client:
        ...     with client.vector_writer(2) as writer:
        ...         _ = writer.append(x=np.float32([0.5, 1.0]))
        ...         writer.flush()
        >>> store.num_steps
        2
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        num_envs: int,
        *,
        batch_steps: int | None = None,
        max_in_flight: int | str = "16 MiB",
        flush_seconds: float = 0.1,
        timeout: float | None = None,
        on_disconnect: str = "interrupt",
    ) -> None:
        self._num_envs = int(num_envs)
        super().__init__(connection, name, self._num_envs, max_in_flight, flush_seconds, timeout, on_disconnect)
        self._room = max(1, 64 // self._num_envs) if batch_steps is None else int(batch_steps)
        if self._room < 1:
            raise ServiceError(f"batch_steps={batch_steps!r}. Allowed: 1 or more.")
        self._host = HostCopies()
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._final_arrays: dict[str, npt.NDArray[Any]] = {}
        self._metadata: dict[str, dict[str, Any]] = {}
        self._has_mask = self._has_ends = self._has_final = False
        self._num_rows = self._num_steps = 0
        if self._schema is not None:
            self._bind(self._schema)
        self._sender.start()

    @property
    def num_envs(self) -> int:
        """How many environments it records."""
        return self._num_envs

    def append(
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: Flags | None = None,
        truncated: Flags | None = None,
        final: Mapping[str, Any] | None = None,
        mask: Flags | None = None,
        metadata: Mapping[int, Mapping[str, Any]] | None = None,
        **features: Any,
    ) -> npt.NDArray[np.int64]:
        """Send one step of each environment, and end the episodes that end with it; see `stepwell.VectorWriter.append`.

        Returns:
            The numbers of the steps among all of this writer, int64 [n], -1 where the mask is False.

        Raises:
            StepError: it does not fit the schema; nothing was sent.
            RateLimitError: the server did not take steps in time; nothing of this one was sent.
            WriterClosedError: the writer was closed, or belongs to another process.
        """
        given = features if step is None else step
        given, terminated, truncated, final, mask = self._host.take((given, terminated, truncated, final, mask))
        check_mapping(given)
        with self._changed:
            self._check()
            flat = dict(flatten(given))
            if self._schema is None:
                self._bind(infer_schema({name: np.asarray(values)[0] for name, values in flat.items()}))
            schema = self._schema
            assert schema is not None
            if flat.keys() != schema.keys():
                raise missing_features_error(schema, flat)
            values = {name: self._accepted(name, each) for name, each in flat.items()}
            finals = None if final is None else self._accepted_finals(dict(flatten(final)))
            flags = [self._flag(name, each) for name, each in (("terminated", terminated), ("truncated", truncated))]
            taken = None if mask is None else self._flag("mask", mask)
            ends = flags[0] | flags[1]
            for each in (metadata or {}).values():
                encode_metadata(dict(each))
            if self._has_ends and ends.any() and (finals is not None) != self._has_final:
                self._seal()
            if not self._count:
                self._make_room()
            row = self._count
            for name, each in values.items():
                self._arrays[name][row] = each
            self._flags[0, row], self._flags[1, row] = flags
            self._flags[2, row] = True if taken is None else taken
            self._has_mask |= taken is not None
            if ends.any():
                self._has_ends, self._has_final = True, finals is not None
                for name, each in (finals or {}).items():
                    self._final_arrays[name][row] = each
            if metadata:
                self._metadata[str(row)] = {str(int(env)): dict(each) for env, each in metadata.items()}
            self._num_rows += self._num_envs if taken is None else int(taken.sum())
            first = (self._num_steps + row) * self._num_envs
            self._count = row + 1
            if self._count == self._room:
                self._seal()
        numbers = np.arange(first, first + self._num_envs)
        return numbers if taken is None else np.where(taken, numbers, -1)

    def end_episodes(
        self,
        mask: Flags | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Mapping[str, Any] | None = None,
        metadata: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        """End the open episodes of some environments, without a step; see `stepwell.VectorWriter.end_episodes`."""
        mask, final = self._host.take((mask, final))
        with self._changed:
            self._check()
            finals = None if final is None else self._accepted_finals(dict(flatten(final)))
            options: dict[str, Any] = {"terminated": bool(terminated), "truncated": bool(truncated)}
            options["metadata"] = {str(int(env)): dict(each) for env, each in (metadata or {}).items()}
            self._add_alone("end", mask, options, finals)

    def discard_episodes(self, mask: Flags | None = None) -> None:
        """Take back the open episodes of some environments; see `stepwell.VectorWriter.discard_episodes`."""
        with self._changed:
            self._check()
            self._add_alone("discard", mask, {}, None)

    def create_item(self, table: str, step: int, length: int = 1, priority: float | None = None) -> None:
        """Make an item of consecutive steps of one environment; see `RemoteWriter.create_item`.

        Args:
            table: its name; one without a pattern.
            step: number of the first, as `append` returned it.
            length: how many vector steps; the environment took part in each.
            priority: 0 or more; None: the largest so far.
        """
        with self._changed:
            self._check()
            last = (self._num_steps + self._count) * self._num_envs
            if not (length >= 1 and step >= 0 and step + (length - 1) * self._num_envs < last):
                raise StepError(f"an item of {length} steps from step {step} on, and {last} were appended.")
            self._add_op("item", str(table), int(step), int(length), None if priority is None else float(priority))
            self._num_items += 1

    def _add_alone(self, what: str, mask: Flags | None, options: dict[str, Any], finals: dict[str, Any] | None) -> None:
        """Send an end that is not one of a step, in a message of its own."""
        if self._schema is None:
            return
        self._seal()
        if mask is not None:
            options["envs"] = np.flatnonzero(self._flag("mask", mask)).tolist()
        self._add_op(what, options)
        self._num_ends += 1
        for name, each in (finals or {}).items():
            self._final_arrays[name][0] = each
        self._has_final = finals is not None
        self._seal()

    def _accepted(self, name: str, values: Any) -> Any:
        array = self._arrays[name]
        if type(values) is np.ndarray and values.dtype is array.dtype and values.shape == array.shape[1:]:
            return values
        assert self._schema is not None
        found = accept_column(name, self._schema[name], values)
        if len(found) != self._num_envs:
            raise StepError(f"feature {name!r}: {len(found)} values of {self._num_envs} environments.")
        return found

    def _accepted_finals(self, final: dict[str, Any]) -> dict[str, Any]:
        if final.keys() != self._final_arrays.keys():
            names = ", ".join(self._final_arrays) or "there are none"
            raise StepError(
                f"final values of {', '.join(final) or 'no features'}. Give those of all features with final=True: "
                f"{names}."
            )
        return {name: self._accepted(name, values) for name, values in final.items()}

    def _flag(self, name: str, values: Any) -> npt.NDArray[np.bool_]:
        if values is None:
            return np.zeros(self._num_envs, np.bool_)
        array = np.asarray(values)
        if array.shape != (self._num_envs,) or array.dtype != np.bool_:
            raise StepError(
                f"{name} of dtype {array.dtype} and shape {array.shape}. Give bool [{self._num_envs}], one for each "
                "environment."
            )
        return array

    def _bind(self, schema: Schema) -> None:
        refuse_rates(schema, "a vector writer")
        if not (self._is_ring and schema.is_raw):
            raise ServiceError(
                "a vector writer over the network needs a ring (create(..., capacity=...)) whose features are all raw. "
                "Make a client.writer() for each environment."
            )
        self._room = self._fitting(schema, self._room, self._num_envs)
        self._flags = np.zeros((3, self._room, self._num_envs), np.bool_)
        shape = self._room, self._num_envs
        self._arrays = {
            name: np.zeros((*shape, *feature.fixed_shape), feature.np_dtype) for name, feature in schema.items()
        }
        self._final_arrays = {name: np.zeros_like(self._arrays[name]) for name in schema.final_names}
        self._schema = schema

    def _after(self) -> Position:
        one = self._sealed
        return Position(one.steps + self._num_rows, one.ends + self._num_ends, one.items + self._num_items)

    def _head(self) -> dict[str, Any]:
        number = self._num_steps * self._num_envs
        head: dict[str, Any] = {"count": self._count, "number": number}
        if self._metadata:
            head["metadata"] = self._metadata
        return head

    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        count = self._count
        found: dict[str, npt.NDArray[Any]] = {}
        if count:
            found = {name: array[:count] for name, array in self._arrays.items()}
            if self._has_ends:
                found[f"{FLAG}terminated"], found[f"{FLAG}truncated"] = self._flags[0, :count], self._flags[1, :count]
            if self._has_mask:
                found[f"{FLAG}mask"] = self._flags[2, :count]
        if self._has_final:
            found.update({FINAL + name: array[: max(count, 1)] for name, array in self._final_arrays.items()})
        self._num_steps += count
        self._num_rows, self._metadata = 0, {}
        self._has_mask = self._has_ends = self._has_final = False
        return found
