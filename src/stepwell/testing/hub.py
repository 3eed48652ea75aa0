"""A Hugging Face hub of your own on this machine, with dataset repositories: for tests of what asks a hub for files.

It answers what ``huggingface_hub`` asks when it reads a dataset: what a revision is, which files it has, their bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import unquote, urlsplit

__all__ = ["HubRequest", "HubServer", "LocalHandler", "LocalServer"]

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


RESOLVE = re.compile(r"/datasets/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")
API = re.compile(
    r"/api/datasets/(?P<repo>[^/]+/[^/]+)(?P<what>/revision|/tree|/refs)?(?:/(?P<revision>[^/]+))?(?:/.*)?"
)


@dataclass(frozen=True)
class HubRequest:
    """What was asked: method, path without the query, the token that was sent, the file of a repository that was."""

    method: str
    path: str
    token: str | None
    file: str | None


@dataclass
class HubServer(LocalServer):
    """Serve directories as dataset repositories, in a thread, until the ``with`` block ends.

    Its ``url`` is what ``HF_ENDPOINT`` shall be.

    Args:
        repos: by ``"owner/name"`` the directory of each branch or tag: ``{"main": ..., "v3.0": ...}``.
        tokens: without one of these in a request, no repository is found; None: everybody may read.
        gated: names of repositories that nobody was granted access to.

    Attributes:
        requests: every request that came, in order; a list that a test may empty.
        failing: status that is answered to every request, e.g. 503; None to answer them.

    Example:
        >>> import tempfile, urllib.request
        >>> with HubServer({"me/tiny": {"main": tempfile.mkdtemp()}}) as hub:
        ...     urllib.request.urlopen(f"{hub.url}/api/datasets/me/tiny/refs").status
        200
    """

    repos: Mapping[str, Mapping[str, str | Path]]
    tokens: tuple[str, ...] | None = None
    gated: tuple[str, ...] = ()
    failing: int | None = None
    requests: list[HubRequest] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """The files whose bytes were asked for, in order."""
        return [request.file for request in self.requests if request.method == "GET" and request.file]

    def commit(self, repo: str, revision: str) -> str:
        """Return the hash that stands for a branch or tag of a repository: of the names and bytes of its files."""
        folder = Path(self.repos[repo][revision])
        digest = hashlib.sha1(repo.encode())
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
        return digest.hexdigest()

    def folder(self, repo: str, revision: str) -> tuple[str, Path] | None:
        """Return commit and directory of a branch, tag or commit."""
        for name, folder in self.repos[repo].items():
            commit = self.commit(repo, name)
            if revision in (name, commit):
                return commit, Path(folder)
        return None


class _Handler(LocalHandler):
    """One request to the hub."""

    owner: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        file, api = RESOLVE.fullmatch(path), API.fullmatch(path)
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.owner.requests.append(HubRequest(self.command, path, token, file["path"] if file else None))
        found = file or api
        if self.owner.failing is not None:
            return self._refuse(self.owner.failing, None, "the hub is down")
        if found is None:
            return self._refuse(404, None, "no such page")
        repo = found["repo"]
        if repo not in self.owner.repos or (self.owner.tokens is not None and token not in self.owner.tokens):
            # as the hub does: who may not know whether it exists is told 401
            return self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        if api and api["what"] == "/refs":
            return self._send_json(self._refs(repo))
        return self._answer_of(repo, found["revision"] or "main", file, api)

    def _answer_of(self, repo: str, revision: str, file: re.Match[str] | None, api: re.Match[str] | None) -> None:
        version = self.owner.folder(repo, revision)
        if version is None:
            return self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if file:
            return self._send_file(repo, *version, file["path"])
        tree = self._tree(version[1])
        if api and api["what"] == "/tree":
            return self._send_json(tree)
        siblings = [{"rfilename": entry["path"]} for entry in tree if entry["type"] == "file"]
        return self._send_json({"id": repo, "sha": version[0], "siblings": siblings, "private": False, "tags": []})

    def _refs(self, repo: str) -> dict[str, Any]:
        entries = {
            name: {
                "name": name,
                "ref": f"refs/{'heads' if name == 'main' else 'tags'}/{name}",
                "targetCommit": self.owner.commit(repo, name),
            }
            for name in self.owner.repos[repo]
        }
        tags = [entry for name, entry in entries.items() if name != "main"]
        return {"branches": [entries["main"]] if "main" in entries else [], "tags": tags, "converts": []}

    def _tree(self, folder: Path) -> list[dict[str, Any]]:
        entries = []
        for path in sorted(folder.rglob("*")):
            entry: dict[str, Any] = {"type": "directory", "oid": "0" * 40, "size": 0}
            if path.is_file():
                entry = {"type": "file", "oid": _etag(path), "size": path.stat().st_size}
            entries.append(entry | {"path": path.relative_to(folder).as_posix()})
        return entries

    def _send_file(self, repo: str, commit: str, folder: Path, name: str) -> None:
        path = folder / name
        if repo in self.owner.gated:
            return self._refuse(403, "GatedRepo", "Access to this dataset is restricted")
        if not path.is_file():
            return self._refuse(404, "EntryNotFound", "Entry not found", commit)
        body, status = path.read_bytes(), 200
        headers = {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        part = self.asked_range(len(body))
        if part is not None:
            headers["Content-Range"] = f"bytes {part[0]}-{part[1]}/{len(body)}"
            body, status = body[part[0] : part[1] + 1], 206
        return self.send(status, body, {"Content-Type": "application/octet-stream", **headers})

    def _send_json(self, value: Any) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, code: str | None, message: str, commit: str | None = None) -> None:
        headers = {"X-Error-Message": message}
        if code:
            headers["X-Error-Code"] = code
        if commit:
            headers["X-Repo-Commit"] = commit
        self.send(status, json.dumps({"error": message}).encode(), headers)


def _etag(path: Path) -> str:
    """Return the hash that git gives to a file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()


HubServer.handler = _Handler
