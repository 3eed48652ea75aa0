"""A server of HTTP on this machine, in a thread."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Self

__all__ = ["LocalHandler", "LocalServer"]

RANGE = re.compile(r"bytes=(\d+)-(\d*)")


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

    def asked_range(self, num_bytes: int) -> tuple[int, int] | None:
        """Return the first byte that is asked for, of so many, and the last; None where all are."""
        found = RANGE.fullmatch(self.headers.get("Range") or "")
        return None if found is None else (int(found[1]), int(found[2] or num_bytes - 1))

    def send(self, status: int, body: bytes, headers: Mapping[str, str], *, cut: int | None = None) -> None:
        """Send an answer.

        Args:
            status: of HTTP.
            body: nothing of it is sent to who asked for the headers alone.
            headers: beside its length.
            cut: bytes after which it breaks off; None: it does not.
        """
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # who asked may have seen enough
        with suppress(ConnectionError):
            self.wfile.write(b"" if self.command == "HEAD" else body[:cut])
