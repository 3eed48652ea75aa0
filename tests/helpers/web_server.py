"""A web server of your own on this machine that serves a directory: for tests of what is read over HTTP."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stepwell.testing.hub import LocalHandler, LocalServer

__all__ = ["WebServer"]


@dataclass
class WebServer(LocalServer):
    """Serve the files of a directory, in a thread, until the ``with`` block ends.

    Args:
        directory: what is served.
        has_ranges: whether a part of a file may be asked for; without, all of it is sent.

    Attributes:
        fetched: names of the files whose bytes were sent, but for a single one's, in order; a test may empty it.
        statuses: what the next requests are answered instead, one each, e.g. ``[503, 503]``.
        cut_bytes: the next answer breaks off after so many bytes; None: none does.

    Example:
        >>> import tempfile, urllib.request
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.txt").write_bytes(b"well")
        >>> with WebServer(folder) as server, urllib.request.urlopen(f"{server.url}/a.txt") as answer:
        ...     answer.read()
        b'well'
    """

    directory: str | Path
    has_ranges: bool = True
    fetched: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    cut_bytes: int | None = None


class _Handler(LocalHandler):
    """One request."""

    owner: WebServer

    def do_GET(self) -> None:
        name = unquote(urlsplit(self.path).path).lstrip("/")
        path = Path(self.owner.directory, name)
        if self.owner.statuses:
            return self._send(self.owner.statuses.pop(0), b"", {})
        if not path.is_file():
            return self._send(404, b"", {})
        whole = path.read_bytes()
        mark = {"ETag": f'"{hashlib.sha1(whole).hexdigest()}"'}
        part = self.asked_range(len(whole))
        if part is None or not self.owner.has_ranges:
            self.owner.fetched.append(name)
            return self._send(200, whole, mark)
        first, last = part
        if first >= len(whole):
            return self._send(416, b"", mark | {"Content-Range": f"bytes */{len(whole)}"})
        if (first, last) != (0, 0):
            self.owner.fetched.append(name)
        mark["Content-Range"] = f"bytes {first}-{min(last, len(whole) - 1)}/{len(whole)}"
        return self._send(206, whole[first : last + 1], mark)

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        cut = self.owner.cut_bytes
        if cut is not None and len(body) > cut:
            self.owner.cut_bytes = None
        self.send(status, body, headers, cut=cut)


WebServer.handler = _Handler
