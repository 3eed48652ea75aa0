"""A TCP proxy that cuts, delays and stalls the connections through it."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
import time


class TcpProxy:
    """Forwards connections to a port of this machine, until told otherwise; one thread for all."""

    def __init__(self, target: int, port: int = 0) -> None:
        self.target = target
        self._server = socket.create_server(("127.0.0.1", port))
        self.port = self._server.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.delay = 0.0
        self.is_stalled = False
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Close all connections, in the midst of whatever they send."""
        with self._lock:
            for each in list(self._pairs):
                self._drop(each)

    def close(self) -> None:
        self._is_closed = True
        self._thread.join(5)
        self.cut()
        self._server.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select(0.02):
                if key.fileobj is self._server:
                    self._accept()
                elif not self.is_stalled:
                    self._forward(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._server.accept()
        try:
            upstream = socket.create_connection(("127.0.0.1", self.target), timeout=1)
        except OSError:
            client.close()
            return
        with self._lock:
            self._pairs[client], self._pairs[upstream] = upstream, client
            self._selector.register(client, selectors.EVENT_READ)
            self._selector.register(upstream, selectors.EVENT_READ)

    def _forward(self, source: socket.socket) -> None:
        with self._lock:
            other = self._pairs.get(source)
            if other is None:
                return
            try:
                data = source.recv(1 << 16)
                if self.delay:
                    time.sleep(random.SystemRandom().random() * self.delay)
                if data:
                    other.sendall(data)
                    return
            except OSError:
                pass
            self._drop(source)

    def _drop(self, one: socket.socket) -> None:
        other = self._pairs.pop(one, None)
        if other is None:
            return
        self._pairs.pop(other, None)
        for each in (one, other):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(each)
            # a reset, as a network that is gone gives
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            each.close()
