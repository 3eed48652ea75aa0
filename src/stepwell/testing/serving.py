"""A server of HTTP on this machine, in a thread."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self

__all__ = ["LocalHandler", "LocalServer"]


class LocalServer:
    """Answer requests until the ``with`` block ends.

    Attributes:
        handler: what answers one; its ``owner`` is this server.
    """

    handler: ClassVar[type[BaseHTTPRequestHandler]]

    def __enter__(self) -> Self:
        handler = type("Handler", (self.handler,), {"owner": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"


class LocalHandler(BaseHTTPRequestHandler):
    """One request, of which nothing is said on standard error."""

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""
