"""A gRPC server of messages: one thread, one event loop, streams and single calls, for clients that a token lets in."""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from stepwell.errors import ServiceError, StepwellError
from stepwell.service.messages import Kind, Message, error_message, unpack
from stepwell.service.settings import (
    SERVICE,
    TLS,
    Limits,
    check_open,
    check_token,
    import_grpc,
    parse_address,
    refusal,
)

__all__ = ["Host"]

STOP_SECONDS = 1.0
# of a stream, which are read before they are asked for
LOOKAHEAD_BYTES = 4 << 20
LOG = logging.getLogger("stepwell.service")


class Host:
    """Serve streams and calls until it is stopped.

    Args:
        address: "host:port" (port 0: any that is free) or "unix:/path".
        streams: name to a coroutine function of gRPC's module and context, which reads and writes messages.
        answer: a coroutine function: the message of a call to the bytes of its answer.
        tls: certificates.
        token: that clients must send.
        insecure: let other machines connect without either.
        limits: of messages and streams.
        on_start: a coroutine function, called in the event loop before clients are let in.
        on_stop: called in the event loop before streams are ended.

    Raises:
        ServiceError: an address that is taken, or open to other machines without a token, TLS or ``insecure``.
    """

    def __init__(
        self,
        address: str,
        streams: Mapping[str, Callable[[Any, Any], Coroutine[Any, Any, None]]],
        answer: Callable[[Message], Awaitable[bytes]],
        *,
        tls: TLS | None = None,
        token: str | None = None,
        insecure: bool = False,
        limits: Limits,
        on_start: Callable[[], Awaitable[None]] | None = None,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        asked = parse_address(address, default_port=0)
        is_mutual = tls is not None and tls.authority is not None
        check_open(asked, is_guarded=insecure or token is not None or is_mutual)
        self._grpc = import_grpc()
        self._streams, self._answer = streams, answer
        self._token = None if token is None else f"Bearer {check_token(token)}".encode()
        self._tls, self._limits, self._on_start, self._on_stop = tls, limits, on_start, on_stop
        started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(asked, started), name="stepwell host", daemon=True)
        self._thread.start()
        self.port = started.result()
        host = asked.rpartition(":")[0]
        self.address = asked if asked.startswith("unix:") else f"{host}:{self.port}"

    @property
    def is_running(self) -> bool:
        """Whether clients are served."""
        return self._thread.is_alive()

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in the thread of the event loop, and return what it returns."""
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            return function()

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def stop(self) -> None:
        """Stop serving; returns when the thread has ended."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def wait(self) -> None:
        """Wait until it was stopped, by another thread."""
        self._thread.join()

    def _run(self, address: str, started: Future[int]) -> None:
        try:
            asyncio.run(self._serve(address, started))
        except BaseException as error:
            if started.done():
                LOG.exception("the server at %s failed", address)
                raise
            started.set_exception(error)

    async def _serve(self, address: str, started: Future[int]) -> None:
        grpc, limits = self._grpc, self._limits
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        options = [
            ("grpc.max_receive_message_length", limits.message_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),
            # what comes before it is asked for is memory, too: else the window grows to several messages a stream
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),
        ]
        server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.max_streams)
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(self._guarded(serve)) for name, serve in self._streams.items()
        }
        handlers["call"] = grpc.unary_unary_rpc_method_handler(self._guarded_call)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            if self._tls is None:
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, self._tls.server_credentials())
            if self._on_start is not None:
                await self._on_start()
            await server.start()
        except RuntimeError as error:
            raise ServiceError(
                f"cannot serve at {address}: another process listens there, or it is no address of this machine. Give "
                "another one; port 0 takes any that is free."
            ) from error
        started.set_result(port)
        await self._stopping.wait()
        self._on_stop()
        await server.stop(0.2)
        # what ends with its stream, within 10 ms: grpcio prints a traceback of each that the end of the loop cuts off
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=STOP_SECONDS)

    def _guarded(self, serve: Callable[[Any, Any], Coroutine[Any, Any, None]]) -> Any:
        async def handle(_: Any, context: Any) -> None:
            await self._check(context)
            try:
                await serve(self._grpc, context)
            except Exception as error:
                if not isinstance(error, StepwellError):
                    LOG.exception("a client's stream failed")
                await context.write(error_message(error))

        return handle

    async def _guarded_call(self, data: bytes, context: Any) -> bytes:
        await self._check(context)
        try:
            return await self._answer(unpack(data, Kind.CALL))
        except Exception as error:
            if not isinstance(error, StepwellError):
                LOG.exception("a client's call failed")
            return error_message(error)

    async def _check(self, context: Any) -> None:
        if self._token is None:
            return
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not hmac.compare_digest(given.encode(), self._token):
            await context.abort(self._grpc.StatusCode.UNAUTHENTICATED, refusal(given))
