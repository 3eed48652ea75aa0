"""Clients of the same host: how they are known, and a socket that costs them less than gRPC.

::

    server    STORE/service/door, mode 0600: a secret, and the name of a Unix socket that has no file
    client    call "describe", with its boot id   -->  of the same boot: the path of the store, a digest of the secret
              reads PATH/service/door             -->  the same secret: it sees the same files, and may use the socket

A boot id alone says too little: containers share it, but not their files. So a path that a server names is believed
only where a secret of that very server lies. Where the socket cannot be reached, from another network namespace, the
same messages go over gRPC.

Frames: u32 length, little-endian, and a message (`stepwell.service.messages`). The first is a CALL with the secret, the
name of the stream, and the token where the server wants one.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import os
import secrets
import socket
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stepwell.errors import ServiceError, StepwellError
from stepwell.json_text import parse_json
from stepwell.service.messages import Kind, error_message, pack, unpack
from stepwell.service.sessions import DIRECTORY
from stepwell.service.settings import import_grpc
from stepwell.store.beneath import read_rare_file, system_errors
from stepwell.store.commit import NO_BOOT, boot_id

__all__ = ["Door", "Line", "LocalCall", "LocalServer", "find_local", "this_boot"]

LOG = logging.getLogger("stepwell.service")
LENGTH = struct.Struct("<I")
BUFFER_BYTES = 1 << 18
# frames that may wait to be read, beyond which the other side is not read from
MAX_WAITING = 4
HELLO_SECONDS = 10.0
# of the first frame, before which nobody knows who sends it
HELLO_BYTES = 1 << 14
# a name in the abstract namespace: no file, and gone with the process
NAME = "\0stepwell-{}"

Serve = Callable[[str, str | None, "Line"], Awaitable[None]]
"""Serves a stream by its name, for who gave a token; raises our errors, which become messages."""


def this_boot() -> str | None:
    """Return what names this boot of this machine; None where nothing does."""
    return None if boot_id() == NO_BOOT else boot_id().hex()


class LocalServer(NamedTuple):
    """A store that a server and this process both see, and the way in.

    Args:
        path: of the store.
        secret: of the server, from its file.
        name: of its socket.
    """

    path: str
    secret: str
    name: str


def find_local(record: Any) -> LocalServer | None:
    """Return what a server said of its store, where this process sees the same files; None where it does not."""
    if not isinstance(record, Mapping):
        return None
    path, proof = record.get("path"), record.get("proof")
    if not (isinstance(path, str) and Path(path).is_absolute() and "\0" not in path and isinstance(proof, str)):
        return None
    try:
        text = read_rare_file(f"{path}/{DIRECTORY}/door")
        found = None if text is None else parse_json(text)
    except (OSError, ValueError, StepwellError):
        return None
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in ("secret", "name")):
        return None
    if not hmac.compare_digest(_proof(found["secret"]), proof):
        return None
    return LocalServer(path, found["secret"], found["name"])


def _proof(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


# at the server


class Door:
    """Lets clients of the same host in.

    Args:
        store: path of the store that is served.
        message_bytes: of one message, at most.
        max_lines: connections at a time.
        serve: serves a stream.

    Notes:
        For the thread of the event loop.
    """

    def __init__(self, store: str, message_bytes: int, max_lines: int, serve: Serve) -> None:
        self.serve, self.message_bytes, self.max_lines = serve, message_bytes, max_lines
        self._store = store
        self.secret, name = secrets.token_hex(16), secrets.token_hex(16)
        self._text = json.dumps({"secret": self.secret, "name": name}).encode()
        self._name = NAME.format(name)
        self._server: Any = None
        self.lines: set[Line] = set()
        self.is_closed = False

    async def open(self) -> None:
        """Listen, and say so in the store's directory; not where the system has no such sockets."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._name)
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Line(self), sock=listener)
        except OSError:
            listener.close()
            return
        path = f"{self._store}/{DIRECTORY}/door"
        try:
            with system_errors(self._store, is_writing=True):
                Path(f"{path}.new").unlink(missing_ok=True)
                descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    os.write(descriptor, self._text)
                finally:
                    os.close(descriptor)
                Path(f"{path}.new").rename(path)
        except BaseException:
            self._server.close()
            raise

    def describe(self, boot: object) -> dict[str, Any] | None:
        """Return what a client of the same boot needs to find the store; None for all others."""
        if self._server is None or not isinstance(boot, str) or boot != this_boot():
            return None
        return {"path": self._store, "proof": _proof(self.secret)}

    def close(self) -> None:
        """Let nobody in any more, and end what is served."""
        if self._server is None or self.is_closed:
            return
        self.is_closed = True
        # asyncio makes the transport of a connection one turn of the loop after it was accepted; where its server is
        # closed by then, the socket stays open
        loop = asyncio.get_running_loop()
        for listener in self._server.sockets:
            loop.remove_reader(listener)
        loop.call_soon(self._server.close)
        Path(f"{self._store}/{DIRECTORY}/door").unlink(missing_ok=True)
        for line in list(self.lines):
            line.end()


class Line(asyncio.Protocol):
    """One connection at the server, with what a stream of gRPC has: `read`, `write` and `peer`."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._buffer = bytearray()
        self._frames: deque[bytes] = deque()
        self._end_of_stream = import_grpc().aio.EOF
        self._num_waiting = 0
        # whether its first frame has come, and was the secret
        self._has_begun = self._is_guest = False
        self._is_over = self._is_paused = False
        self._arrived: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._transport: Any = None
        self._task: asyncio.Task[None] | None = None

    # what asyncio calls

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self._transport = transport
        if self._door.is_closed or len(self._door.lines) >= self._door.max_lines:
            transport.abort()
            return
        self._door.lines.add(self)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def data_received(self, data: bytes) -> None:
        """Take in what came: whole frames, for `read`."""
        self._buffer += data
        self._take_frames()

    def _take_frames(self) -> None:
        """Take whole frames from the buffer, as long as there is room for them."""
        buffer, at = self._buffer, 0
        while self._has_room and len(buffer) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(buffer, at)
            if length > (self._door.message_bytes if self._is_guest else HELLO_BYTES):
                # before memory is taken for it
                self._transport.abort()
                return
            stop = at + LENGTH.size + length
            if stop > len(buffer):
                break
            with memoryview(buffer) as view:
                self._frames.append(bytes(view[at + LENGTH.size : stop]))
            self._num_waiting += length
            self._has_begun = True
            at = stop
        if at:
            del buffer[:at]
            self._wake()
        if self._is_paused is self._has_room and not self._is_over:
            self._is_paused = not self._has_room
            (self._transport.pause_reading if self._is_paused else self._transport.resume_reading)()

    @property
    def _has_room(self) -> bool:
        """Whether another frame may wait: the first one of a stranger, a large or several small ones of a guest."""
        if not self._is_guest:
            return not self._has_begun
        return not self._frames or (len(self._frames) <= MAX_WAITING and self._num_waiting < BUFFER_BYTES)

    def connection_lost(self, error: Exception | None) -> None:
        """End what is served to it: a client closes what it wants no more of."""
        self._door.lines.discard(self)
        self._is_over = True
        self._wake()
        self.resume_writing()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Let `write` wait: the other side does not read."""
        self._writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        """Let it go on."""
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def _wake(self) -> None:
        arrived, self._arrived = self._arrived, None
        if arrived is not None and not arrived.done():
            arrived.set_result(None)

    # what a stream calls

    async def read(self) -> Any:
        """Return the next message; gRPC's end of stream after the last."""
        while not self._frames:
            if self._is_over:
                return self._end_of_stream
            self._arrived = asyncio.get_running_loop().create_future()
            await self._arrived
        data = self._frames.popleft()
        self._num_waiting -= len(data)
        self._take_frames()
        return data

    async def write(self, data: bytes) -> None:
        """Send a message; waits while the other side does not read."""
        if self._transport.is_closing():
            raise ServiceError("the client has gone.")
        self._transport.writelines([LENGTH.pack(len(data)), data])
        while self._writable is not None:
            await self._writable

    @staticmethod
    def peer() -> str:
        """Return who it is, for people."""
        return "local"

    def end(self) -> None:
        """Close the connection."""
        self._transport.abort()

    async def _run(self) -> None:
        try:
            data = await asyncio.wait_for(self.read(), HELLO_SECONDS)
            if data is self._end_of_stream:
                return
            head = unpack(data, Kind.CALL).head
            if not hmac.compare_digest(str(head.get("secret")).encode(), self._door.secret.encode()):
                raise ServiceError("another secret than this server's.")
            self._is_guest = True
            self._take_frames()
            token = head.get("token")
            await self._door.serve(str(head.get("stream")), token if isinstance(token, str) else None, self)
        except Exception as error:
            if not isinstance(error, StepwellError | OSError):
                LOG.exception("a client's stream failed")
            if not self._transport.is_closing():
                await self.write(error_message(error))
        finally:
            self._transport.close()


# at the client


class LocalCall:
    """One connection at the client, with what a call of gRPC has: to be iterated over, and `cancel`.

    Args:
        host: where the server is.
        stream: the name of the stream.
        token: that the server wants.

    Raises:
        OSError: it cannot be reached.

    Notes:
        One thread iterates, another may `put` and `cancel`.
    """

    def __init__(self, host: LocalServer, stream: str, token: str | None) -> None:
        self._reading, self._sending = threading.RLock(), threading.Lock()
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = self._stop = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._is_cancelled = False
        try:
            self._socket.connect(NAME.format(host.name))
        except BaseException:
            self._socket.close()
            raise
        self.put(pack(Kind.CALL, {"stream": stream, "secret": host.secret, "token": token}))

    def put(self, data: bytes | None) -> None:
        """Send a message, but None; what cannot be sent any more is found by who reads."""
        if data is not None:
            with self._sending, suppress(OSError):
                self._socket.sendall(LENGTH.pack(len(data)) + data)

    def __iter__(self) -> LocalCall:
        return self

    def __next__(self) -> Any:
        """Return the next message: bytes, or an array of them where it is long."""
        with self._reading:
            try:
                return self._receive()
            except OSError as error:
                raise _lost(str(error)) from None

    def _receive(self) -> Any:
        if not self._fill(LENGTH.size):
            if self._is_cancelled or self._stop > self._start:
                raise _lost("the connection was lost")
            raise StopIteration
        (length,) = LENGTH.unpack_from(self._buffer, self._start)
        self._start += LENGTH.size
        if length <= BUFFER_BYTES:
            if not self._fill(length):
                raise _lost("the connection was lost")
            data = bytes(memoryview(self._buffer)[self._start : self._start + length])
            self._start += length
            return data
        whole = np.empty(length, np.uint8).data
        known = self._stop - self._start
        whole[:known] = memoryview(self._buffer)[self._start : self._stop]
        self._start = self._stop = 0
        while known < length:
            count = self._socket.recv_into(whole[known:])
            if not count:
                raise _lost("the connection was lost")
            known += count
        return whole

    def _fill(self, count: int) -> bool:
        """Have so many bytes in the buffer; False where the connection ends before."""
        while self._stop - self._start < count:
            if self._start == self._stop:
                self._start = self._stop = 0
            elif self._start + count > BUFFER_BYTES:
                left = self._stop - self._start
                self._buffer[:left] = self._buffer[self._start : self._stop]
                self._start, self._stop = 0, left
            num = self._socket.recv_into(memoryview(self._buffer)[self._stop :])
            if not num:
                return False
            self._stop += num
        return True

    def cancel(self) -> None:
        """End it: whoever reads gets an error."""
        self._is_cancelled = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._reading, self._sending:
            self._socket.close()

    def __del__(self) -> None:
        # of a loader that was dropped without being closed
        if hasattr(self, "_socket"):
            self._socket.close()


def _lost(why: str) -> Exception:
    """Return the error that gRPC's calls raise when a server is away."""
    grpc = import_grpc()

    class ConnectionLostError(grpc.RpcError):  # type: ignore[name-defined, misc]
        def code(self) -> Any:
            return grpc.StatusCode.UNAVAILABLE

        def details(self) -> str:
            return why

    return ConnectionLostError(why)
