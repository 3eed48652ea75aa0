"""The server: tables of one store, for clients of any machine.

::

    gRPC --- write(STEPS ...) ---> Session.apply ---> store ---> tables follow     one thread, one event loop:
         <-- ACK                                                                   nothing waits in it but coroutines
         --- draw(ASK, UPDATE) --> Drawing.draw ---> BATCH
         --- call(CALL) ---------> ANSWER

A limiter that lets nothing through makes a coroutine wait: neither a thread nor a lock is held, and a client that goes
away meanwhile has drawn nothing. A writer that is held is not read from, so that its connection fills, and its client
waits.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from stepwell.errors import (
    DiskFullError,
    RateLimitError,
    ServiceError,
    StepwellError,
    StoreBusyError,
    StoreNotFoundError,
    TableError,
)
from stepwell.files.file_locks import FileLock
from stepwell.replay.checkpoints import StateSaver
from stepwell.replay.tables import Table
from stepwell.service.drawing import MAX_ROWS, Drawing, waits
from stepwell.service.host import Host
from stepwell.service.local import Door, Line
from stepwell.service.messages import PROTOCOL, Kind, Message, pack, unpack
from stepwell.service.metrics import serve_metrics
from stepwell.service.sessions import DIRECTORY, Session
from stepwell.service.settings import TLS, Limits, check_name, check_token, import_grpc, refusal
from stepwell.store.beneath import GO_ON, check_directory, system_errors
from stepwell.store.memory import is_in_memory
from stepwell.store.store import Store

__all__ = ["Server", "open_table"]

LOG = logging.getLogger("stepwell.service")
WAIT_SECONDS = 1.0
FULL = "make room at the server, and go on with a new client.writer(): what this one has not flushed is lost."
TAKEN = "another connection of this writer has taken its place."
CHECKPOINT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,99}")


def open_table(store: Store, name: str = "replay", **options: Any) -> Table:
    """Return a table as the last server of this store left it, or a new one.

    Args:
        store: opened for writing.
        name: of the table.
        options: of `Table`; of a table that is resumed the limiter, the sizes and the rest become these, too.

    Returns:
        The table: items whose steps are still there keep keys, priorities and order; see `Table.resume`.
    """
    try:
        return Table.resume(store, state_path(store, name), **options)
    except StoreNotFoundError:
        return Table(store, name, **options)


def state_path(store: Store, name: str) -> Path:
    """Return where a server saves the state of a table."""
    # names of tables are names of files
    return Path(store.path) / DIRECTORY / f"{name}.table"


class Server:
    """Serve tables of one store to writers and learners of other processes and machines.

    Args:
        tables: one or several, of one store, with different names.
        address: "host:port" (port 0: any that is free) or "unix:/path".
        tls: certificates of the server; with an authority clients need certificates, too.
        token: text that clients must send.
        insecure: let other machines connect without either.
        limits: of messages, streams and memory.
        checkpoints: a directory for `Client.checkpoint`; None: clients can make none.
        metrics: "host:port" at which ``/metrics`` are served for Prometheus; None: nowhere.
        save_seconds: how often the state of the tables is saved beside the store, so that `open_table` goes on with it
            after this process was killed; None: only when the server stops. Not of a store in memory.

    Raises:
        ServiceError: an address that is taken, or open to other machines without a token, TLS or ``insecure``.
        TableError: no tables, two of one name or of different stores, or one that holds writers by ``back_pressure``.
        StoreBusyError: another server serves this store.
        MissingDependencyError: without grpcio.

    Example:
        >>> import stepwell
        >>> from stepwell.service import Client, Server
        >>> store = stepwell.create(":memory:", {"x": stepwell.Array(2)}, capacity=1000)
        >>> with Server(stepwell.Table(store)) as server, Client(server.address) as client:
        ...     with client.writer() as writer:
        ...         for t in range(5):
        ...             _ = writer.append(x=[t, 0])
        ...     client.info()["replay"].size
        5

    Notes:
        One thread serves all clients; the process may go on using tables and store. Steps that were acknowledged are in
        the files of the store: a killed server loses none. See docs/service.md for what is promised across failures.
    """

    def __init__(
        self,
        tables: Table | Sequence[Table],
        address: str = "127.0.0.1:0",
        *,
        tls: TLS | None = None,
        token: str | None = None,
        insecure: bool = False,
        limits: Limits | None = None,
        checkpoints: str | os.PathLike[str] | None = None,
        metrics: str | None = None,
        save_seconds: float | None = 10.0,
    ) -> None:
        self.tables = {table.name: table for table in _checked_tables(tables)}
        self.store: Store = next(iter(self.tables.values())).store
        self.limits = limits or Limits()
        self._lock = _lock(self.store)
        try:
            service = self._service = _Service(self.store, self.tables, self.limits, token, checkpoints)
            streams = {"write": service.write, "draw": service.draw}
            self._host = Host(
                address, streams, service.answer, tls=tls, token=token, insecure=insecure, limits=self.limits,
                on_start=service.start, on_stop=service.stop,
            )  # fmt: skip
        except BaseException:
            self._lock.release()
            raise
        self.port, self.address = self._host.port, self._host.address
        self._stop_metrics: Callable[[], None] | None = None
        self._savers: list[StateSaver] = []
        try:
            if save_seconds is not None and not is_in_memory(str(self.store.path)):
                self._savers = [
                    table.save_state_every(state_path(self.store, name), save_seconds)
                    for name, table in self.tables.items()
                ]
            self._stop_metrics = None if metrics is None else serve_metrics(metrics, self.stats)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop: open episodes of clients end as interrupted ones, and the state of the tables is saved."""
        if not self._lock.is_held:
            return
        # each of them, from the last to the first, whatever becomes of the others: a full disk takes no state
        with ExitStack() as stack:
            stack.callback(self._lock.release)
            for saver in self._savers:
                stack.callback(saver.close)
            stack.callback(self._service.close)
            stack.callback(self._host.stop)
            if self._stop_metrics is not None:
                stack.callback(self._stop_metrics)

    def wait(self) -> None:
        """Wait until the server was stopped, by another thread."""
        self._host.wait()

    @property
    def is_running(self) -> bool:
        """Whether clients are served."""
        return self._host.is_running

    def stats(self) -> dict[str, Any]:
        """Return who is connected, and what waits, as JSON types; see `Client.stats`."""
        return self._service.stats()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Server of {', '.join(self.tables)} at {self.address}>"


class Changes:
    """Wakes coroutines when something came or went."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def announce(self) -> None:
        """Wake all."""
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        self._waiting.clear()

    async def wait(self, seconds: float) -> None:
        """Wait for the next change, for so long at most."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await asyncio.wait([waiting], timeout=seconds)
        finally:
            self._waiting.discard(waiting)


class _Service:
    """The calls of gRPC; all of it runs in one thread."""

    def __init__(
        self,
        store: Store,
        tables: dict[str, Table],
        limits: Limits,
        token: str | None,
        checkpoints: str | os.PathLike[str] | None,
    ) -> None:
        self.store, self.tables, self.limits = store, tables, limits
        self._token = None if token is None else check_token(token).encode()
        self._checkpoints = None if checkpoints is None else Path(checkpoints)
        self._limited = [table for table in tables.values() if table.settings.limiter.max_diff < np.inf]
        # for clients of this host, once the server runs
        self.door: Door | None = None
        self._changes = Changes()
        self._turn = asyncio.Lock()
        self._is_stopping = False
        # name of a client to its session, and to what serves it now, or to what ends its episode if it stays away
        self._sessions: dict[str, Session] = {}
        self._streams: dict[str, object] = {}
        self._graces: dict[str, asyncio.TimerHandle] = {}
        self._held: dict[str, float] = {}
        self._loaders: dict[object, dict[str, Any]] = {}
        # latest values: name to version and message
        self._values: dict[str, tuple[int, bytes]] = {}
        self._began, self._num_steps, self._num_loaders = time.monotonic(), 0, 0

    # who may come in

    async def start(self) -> None:
        """Let clients of this host in."""
        self.door = Door(str(self.store.path), self.limits.message_bytes, self.limits.max_streams, self.enter)
        await self.door.open()

    async def enter(self, name: str, token: str | None, line: Line) -> None:
        """Serve a stream of a client on this host; see `stepwell.service.local`."""
        if self._token is not None and not hmac.compare_digest((token or "").encode(), self._token):
            raise ServiceError(refusal(token))
        if name != "draw":
            raise ServiceError(f"a stream {name!r:.40}, which protocol {PROTOCOL} does not have here.")
        await self.draw(import_grpc(), line)

    def _hello(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, bytes):
            raise ServiceError("a stream without a HELLO.")
        head = unpack(data, Kind.HELLO).head
        if head.get("protocol") != PROTOCOL:
            raise ServiceError(
                f"a client of protocol {head.get('protocol')!r:.20}, and this server has {PROTOCOL}. Install the same "
                "stepwell on both sides."
            )
        wanted = head.get("store")
        if wanted is not None and wanted != self.store.uuid:
            raise ServiceError(
                f"the client began with store {wanted!r:.40}, and this server has {self.store.uuid}. What was not "
                "acknowledged there is not sent here."
            )
        return head

    # writers

    async def write(self, grpc: Any, context: Any) -> None:
        """Store what a writer sends."""
        try:
            await self._write(grpc, context)
        except DiskFullError as error:
            raise DiskFullError(str(error).replace(GO_ON, FULL)) from error

    async def _write(self, grpc: Any, context: Any) -> None:
        head = self._hello(await context.read())
        session, stream = self._attach(head), object()
        self._streams[session.name] = stream
        try:
            await context.write(pack(Kind.WELCOME, {**self._welcome(), "position": session.position}))
            while (data := await context.read()) is not grpc.aio.EOF:
                if self._streams.get(session.name) is not stream:
                    raise ServiceError(TAKEN)
                message = unpack(data, Kind.STEPS, Kind.BYE)
                if message.kind is Kind.BYE:
                    self._leave(session)
                    await context.write(pack(Kind.ACK, {"position": session.position, "is_over": True}))
                    return
                await self._apply(session, stream, message)
                if message.head.get("ack"):
                    await context.write(pack(Kind.ACK, {"position": session.position}))
                # not kept while the next one comes
                del data, message
        finally:
            if self._streams.get(session.name) is stream:
                del self._streams[session.name]
                seconds = 0.0 if self._is_stopping else self.limits.grace_seconds
                loop = asyncio.get_running_loop()
                self._graces[session.name] = loop.call_later(seconds, self._interrupt, session)

    def _attach(self, head: dict[str, Any]) -> Session:
        name, incarnation = check_name(head.get("name"), "a writer"), check_name(head.get("incarnation"), "a process")
        num_envs, on_disconnect = head.get("num_envs"), head.get("on_disconnect", "interrupt")
        if num_envs is not None and not (type(num_envs) is int and 1 <= num_envs <= 65_536):
            raise ServiceError(f"{num_envs!r:.20} environments. Allowed: 1 to 65,536.")
        if on_disconnect not in ("interrupt", "discard"):
            raise ServiceError(f'on_disconnect={on_disconnect!r:.40}. Allowed: "interrupt" or "discard".')
        grace = self._graces.pop(name, None)
        if grace is not None:
            grace.cancel()
        session = self._sessions.get(name)
        if session is not None and (session.incarnation, session.num_envs) == (incarnation, num_envs):
            return session
        if session is not None:
            # the process that began it is gone, and another one has its name
            self._end(session, is_over=False)
        if len(self._sessions) >= self.limits.max_sessions:
            self._forget_one()
        session = Session(self.store, name, incarnation, num_envs, self._create_item, on_disconnect)
        self._sessions[name] = session
        return session

    def _forget_one(self) -> None:
        for name, session in self._sessions.items():
            if name not in self._streams:
                if (grace := self._graces.pop(name, None)) is not None:
                    grace.cancel()
                self._end(session, is_over=True)
                return
        raise ServiceError(f"{len(self._sessions):,} writers are connected, and this server takes no more.")

    async def _apply(self, session: Session, stream: object, message: Message) -> None:
        """Store a message once tables let its items in."""
        # one of all writers' at a time, and then whatever came meanwhile: a draw waits for one message, not for each
        async with self._turn:
            if self._streams.get(session.name) is not stream:
                raise ServiceError(TAKEN)
            is_applied = self._is_applied(session, message)
            await asyncio.sleep(0)
        try:
            while not is_applied:
                self._held.setdefault(session.name, time.monotonic())
                self._changes.announce()
                await self._changes.wait(waits(WAIT_SECONDS))
                if self._streams.get(session.name) is not stream:
                    raise ServiceError(TAKEN)
                is_applied = self._is_applied(session, message)
        finally:
            self._held.pop(session.name, None)
        self._changes.announce()

    def _is_applied(self, session: Session, message: Message) -> bool:
        if not all(table.can_insert() for table in self._limited):
            return False
        before = session.position.steps
        try:
            session.apply(message)
        except RateLimitError:
            # of an item: what was stored is passed over when the message is applied again
            return False
        finally:
            self._num_steps += session.position.steps - before
        return True

    def _interrupt(self, session: Session) -> None:
        self._graces.pop(session.name, None)
        with _logged(session):
            session.interrupt()
        self._changes.announce()

    def _end(self, session: Session, *, is_over: bool) -> None:
        """Forget a session whose client is not there to hear of errors."""
        del self._sessions[session.name]
        with _logged(session):
            session.close(is_over=is_over)

    def _leave(self, session: Session) -> None:
        self._sessions.pop(session.name, None)
        self._streams.pop(session.name, None)
        session.close(is_over=True)
        self._changes.announce()

    def _create_item(self, name: str, ids: Any, length: int, priority: float | None) -> None:
        self._table(name).create_item(ids[None], None, priority, timeout=0.0)

    # loaders

    async def draw(self, grpc: Any, context: Any) -> None:
        """Draw batches for a loader, as many as it asks for."""
        head = self._hello(await context.read())
        table = self._table(head.get("table"))
        drawing = Drawing(table, head)
        await context.write(pack(Kind.WELCOME, self._welcome()))
        self._num_loaders += 1
        about = {"id": self._num_loaders, "peer": context.peer(), "table": table.name}
        about |= {"drawing": drawing, "waits_since": None}
        key = object()
        self._loaders[key] = about
        try:
            # a client that goes while a limiter holds its draw has this cancelled, and has drawn nothing
            while (data := await context.read()) is not grpc.aio.EOF:
                asked = self._take_ask(table, data)
                if asked is not None:
                    count, least = asked
                    batch = drawing.draw(count, least)
                    if batch is None:
                        batch = await self._wait_to_draw(context, drawing, count, least, about)
                    self._changes.announce()
                    await context.write(batch)
        finally:
            del self._loaders[key]

    @staticmethod
    def _take_ask(table: Table, data: bytes) -> tuple[int, int] | None:
        """Set the priorities that a loader sends; return how many rows it asks for, if any, and the least it takes."""
        message = unpack(data, Kind.ASK)
        if "keys" in message.columns:
            table.update_priorities(message.columns["keys"], message.columns["priorities"])
        if "rows" not in message.head:
            return None
        count = message.head["rows"]
        if type(count) is not int or not 0 <= count <= MAX_ROWS:
            raise ServiceError(f"a batch of {count!r:.20} rows. Allowed: 0 to {MAX_ROWS:,}.")
        least = message.head.get("least", count)
        if type(least) is not int or not min(count, 1) <= least <= count:
            raise ServiceError(f"at least {least!r:.20} rows of {count}. Allowed: 1 to {count}.")
        return count, least

    async def _wait_to_draw(
        self, context: Any, drawing: Drawing, count: int, least: int, about: dict[str, Any]
    ) -> bytes:
        """Return a batch once limiters let it be drawn."""
        about["waits_since"] = began = told = time.monotonic()
        while True:
            if drawing.has_part:
                self._changes.announce()
            await self._changes.wait(waits(WAIT_SECONDS))
            if (data := drawing.draw(count, least)) is not None:
                about["waits_since"] = None
                return data
            if time.monotonic() - told >= WAIT_SECONDS:
                told = time.monotonic()
                await context.write(pack(Kind.WAIT, {"why": drawing.why_not(least), "seconds": told - began}))

    # single calls

    async def answer(self, message: Message) -> bytes:  # noqa: PLR0911
        """Answer a single call."""
        head, columns = message.head, message.columns
        match head.get("call"):
            case "describe":
                here = None if self.door is None else self.door.describe(head.get("boot"))
                return pack(Kind.ANSWER, {**self._welcome(), "here": here})
            case "info":
                return pack(Kind.ANSWER, {"tables": {name: _info(table) for name, table in self.tables.items()}})
            case "stats":
                return pack(Kind.ANSWER, self.stats())
            case "spread":
                return pack(Kind.ANSWER, {"tables": {name: table.spread() for name, table in self.tables.items()}})
            case "mutate":
                table = self._table(head.get("table"))
                updates = (columns["keys"], columns["priorities"]) if "keys" in columns else None
                number = table.mutate(updates=updates, deletes=columns.get("deletes"))
                self._changes.announce()
                return pack(Kind.ANSWER, {"number": number})
            case "reset":
                self._table(head.get("table")).reset()
                self._changes.announce()
                return pack(Kind.ANSWER)
            case "create_item":
                given = columns["steps"], head.get("length"), columns.get("priority")
                keys = self._table(head.get("table")).create_item(*given, timeout=0.0)
                self._changes.announce()
                return pack(Kind.ANSWER, None, {"keys": keys})
            case "checkpoint":
                return pack(Kind.ANSWER, {"path": await self._checkpoint(head.get("name"))})
            case "publish":
                return pack(Kind.ANSWER, {"version": self._publish(head, columns)})
            case "latest":
                version, data = self._values.get(check_name(head.get("name"), "a value"), (0, b""))
                # after a restart the clock may have gone back: whatever is not the client's is newer
                is_news = version not in (0, int(head.get("newer_than", 0)))
                return data if is_news else pack(Kind.ANSWER, {"version": 0})
            case unknown:
                raise ServiceError(f"a call {unknown!r:.100}, which protocol {PROTOCOL} does not have.")

    async def _checkpoint(self, name: Any) -> str:
        from stepwell.replay.checkpoints import checkpoint

        if self._checkpoints is None:
            raise TableError("this server makes no checkpoints. Give Server(..., checkpoints=DIRECTORY).")
        if not isinstance(name, str) or not CHECKPOINT.fullmatch(name):
            raise TableError(f"{name!r:.120} is no name of a checkpoint. Allowed: letters, digits, '_', '-' and '.'.")
        for table in self.tables.values():
            table.follow()
        path = await asyncio.to_thread(checkpoint, self._checkpoints / name, list(self.tables.values()))
        return str(path)

    def _publish(self, head: Mapping[str, Any], columns: Mapping[str, Any]) -> int:
        name = check_name(head.get("name"), "a value")
        last, old = self._values.get(name, (0, b""))
        # of the clock, so that clients of a server that was restarted know a newer one
        version = max(last + 1, time.time_ns())
        data = pack(Kind.ANSWER, {"version": version, "value": head.get("value")}, columns)
        total = sum(len(each) for _, each in self._values.values()) - len(old) + len(data)
        if total > self.limits.value_bytes:
            raise ServiceError(f"values of {total:,} bytes in all. Limits(value_bytes={self.limits.value_bytes:,}).")
        self._values[name] = version, data
        return version

    def _table(self, name: Any) -> Table:
        if not isinstance(name, str) or name not in self.tables:
            raise TableError(f"no table {name!r:.100}. This server has: {', '.join(self.tables)}.")
        return self.tables[name]

    def _welcome(self) -> dict[str, Any]:
        schema = self.store.schema
        return {
            "protocol": PROTOCOL,
            "store": self.store.uuid,
            "schema": None if schema is None else schema.to_json(),
            "fps": self.store.fps,
            "is_ring": self.store.capacity is not None,
            "tables": list(self.tables),
            "message_bytes": self.limits.message_bytes,
            "max_in_flight": self.limits.max_in_flight,
        }

    def stats(self) -> dict[str, Any]:
        """Return who is connected, and what waits."""
        now = time.monotonic()
        held = dict(self._held)
        return {
            "uptime": now - self._began,
            "store": str(self.store.path.name),
            "steps": self._num_steps,
            "tables": {name: _info(table) for name, table in self.tables.items()},
            "writers": [
                {
                    "name": session.name,
                    "steps": session.position.steps,
                    "episodes": session.position.ends,
                    "is_connected": session.name in self._streams,
                    "held_seconds": now - held[session.name] if session.name in held else 0.0,
                }
                for session in list(self._sessions.values())
            ],
            "loaders": [
                {
                    "id": about["id"],
                    "peer": about["peer"],
                    "table": about["table"],
                    "batches": about["drawing"].num_batches,
                    "rows": about["drawing"].num_rows,
                    "waits_seconds": 0.0 if about["waits_since"] is None else now - about["waits_since"],
                }
                for about in list(self._loaders.values())
            ],
            "values": {
                name: {"version": version, "bytes": len(data)} for name, (version, data) in list(self._values.items())
            },
        }

    # the end

    def stop(self) -> None:
        """Wake all that waits."""
        self._is_stopping = True
        if self.door is not None:
            self.door.close()
        for grace in self._graces.values():
            grace.cancel()
        self._changes.announce()

    def close(self) -> None:
        """End the sessions; clients that come back to another server of this store go on."""
        for session in list(self._sessions.values()):
            self._end(session, is_over=False)


@contextmanager
def _logged(session: Session) -> Iterator[None]:
    """Log what keeps the open episode of a writer from being ended: recovery ends it, as interrupted."""
    try:
        yield
    except StepwellError as error:
        LOG.warning("the open episode of writer %s could not be ended: %s", session.name, error)
    except Exception:
        LOG.exception("the open episode of writer %s could not be ended", session.name)


def _info(table: Table) -> dict[str, Any]:
    table.follow()
    return table.info.to_json()


def _checked_tables(tables: Table | Sequence[Table]) -> list[Table]:
    found = [tables] if isinstance(tables, Table) else list(tables)
    if not found or not all(isinstance(table, Table) for table in found):
        raise TableError(f"{tables!r:.100} to be served. Give one Table or several.")
    names = [table.name for table in found]
    if len(set(names)) < len(names):
        raise TableError(f"two tables of one name among {', '.join(names)}. Give each its own.")
    if len({str(table.store.path) for table in found}) > 1:
        raise TableError("tables of several stores. A server has those of one; start one for each store.")
    holding = [table.name for table in found if table.settings.back_pressure is not None]
    if holding:
        raise TableError(
            f"table {holding[0]!r} has back_pressure, by which it would hold the server's own writers. Leave it out: "
            "the server lets clients wait for the limiter."
        )
    return found


def _lock(store: Store) -> FileLock:
    directory = Path(store.path) / DIRECTORY
    # what a server keeps there: its lock, the positions of writers, the state of tables
    with system_errors(store.path, is_writing=True):
        directory.mkdir(exist_ok=True)
        check_directory(directory)
        descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        return FileLock(descriptor, is_waiting=False)
    except BlockingIOError:
        raise StoreBusyError(f"another server serves {store.path}. Stop it first, or connect to it.") from None
