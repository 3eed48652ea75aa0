"""Files of other machines: their state, and how their bytes come; HTTP, and all that fsspec knows.

::

    http://, https://          the standard library; goes on where a connection broke off, if the server can
    s3://, gs://, memory:// .. fsspec, and the package that it wants for the scheme
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from typing import IO, Any, Protocol, TypeVar
from urllib.parse import urlsplit

from stepwell.errors import DatasetNotFoundError, DiskFullError, FormatError, MissingDependencyError, StepwellError
from stepwell.files.addresses import plain_address

__all__ = [
    "PIECE_BYTES",
    "RemoteSource",
    "RemoteState",
    "UnreachableError",
    "list_addresses",
    "source_of",
    "write_piece",
]

# between the tries of what may go well another time: the one retry policy, of HTTP and of fsspec
WAITS_SECONDS = (0.5, 2.0, 8.0)
# to connect, and between two pieces of an answer; a fetch that stalls goes on where it was
TIMEOUT_SECONDS = 20.0
PIECE_BYTES = 1 << 20
DIGITS = 12
LOGIN = re.compile(r"://([^/?#]*)@")
REFUSED = (400, 401, 403, 404, 405, 410)
CONTENT_RANGE = re.compile(r"bytes (?:\d+-\d+|\*)/(\d+)")
# what file systems of fsspec call what differs when a file was written again, the surest first
VERSION_KEYS = (
    "ETag",
    "etag",
    "md5Hash",
    "checksum",
    "generation",
    "LastModified",
    "last_modified",
    "mtime",
    "created",
)

Value = TypeVar("Value")


class UnreachableError(DatasetNotFoundError):
    """The machine did not answer, or not with the file; another try may succeed."""


@dataclass(frozen=True, slots=True)
class RemoteState:
    """The state of a file at a request."""

    num_bytes: int | None  # its size; None where the server does not say
    version: str  # digest of its size and of what else differs when it is written again (etag, time of change)

    @classmethod
    def of(cls, num_bytes: int | None, mark: Any) -> RemoteState:
        """Return the state of a size and an etag, time or the like."""
        text = f"{num_bytes} {mark}".encode("utf-8", "surrogateescape")
        return cls(num_bytes, hashlib.blake2b(text, digest_size=DIGITS // 2).hexdigest())


class RemoteSource(Protocol):
    """How files of a kind of address are read."""

    def state(self, address: str, *, waits: bool = True) -> RemoteState:
        """Return the state of a file as it is now; with ``waits`` a server that does not answer is tried again."""

    def fetch(self, address: str, state: RemoteState, file: IO[bytes]) -> None:
        """Write a file's bytes, if it is in this state still."""


def source_of(address: str) -> RemoteSource:
    """Return how an address is read."""
    scheme = urlsplit(address).scheme.lower()
    if scheme == "pipe":
        raise FormatError(f"{scheme}: no commands are run. Give the address itself: https://, s3://, gs:// or a path.")
    return _Http() if scheme in ("http", "https") else _FsSpec()


def list_addresses(pattern: str) -> list[str]:
    """Return the addresses that a pattern with ``*``, ``?`` or ``[...]`` fits, sorted."""
    if urlsplit(pattern).scheme.lower() in ("http", "https"):
        raise FormatError(f"{plain_address(pattern)}: HTTP lists no files. Name them by braces: {{000000..000146}}.")
    system, path = _file_system(pattern)
    with _explained(pattern):
        return sorted(map(system.unstrip_protocol, system.glob(path)))


class _Http:
    """Files of a web server."""

    def state(self, address: str, *, waits: bool = True) -> RemoteState:
        # a byte instead of HEAD, which servers of signed addresses refuse
        def ask() -> RemoteState:
            try:
                with _opened(address, {"Range": "bytes=0-0"}) as answer:
                    return _state_of(answer.status, answer.headers)
            except urllib.error.HTTPError as error:
                # an empty file has no first byte
                if error.code == 416 and error.headers is not None:
                    return _state_of(206, error.headers)
                raise

        return _retry(address, ask, WAITS_SECONDS if waits else ())

    def fetch(self, address: str, state: RemoteState, file: IO[bytes]) -> None:
        _retry(address, lambda: self._go_on(address, state, file), WAITS_SECONDS)

    def _go_on(self, address: str, state: RemoteState, file: IO[bytes]) -> None:
        """Write what is not there yet."""
        place = file.tell()
        if state.num_bytes is not None and place >= state.num_bytes:
            return
        with _opened(address, {"Range": f"bytes={place}-"} if place else {}) as answer:
            _check_state(address, state, _state_of(answer.status, answer.headers))
            if answer.status != 206:
                file.seek(0)
                file.truncate()
            while piece := answer.read(PIECE_BYTES):
                write_piece(file, piece)
        if state.num_bytes not in (None, file.tell()):
            raise ConnectionError(f"it ended after {file.tell()} of {state.num_bytes} bytes")


class _FsSpec:
    """Files of whatever fsspec has a file system for."""

    def state(self, address: str, *, waits: bool = True) -> RemoteState:
        system, path = _file_system(address)

        def ask() -> RemoteState:
            system.invalidate_cache()
            found = system.info(path)
            if found.get("type") == "directory":
                raise FileNotFoundError(f"{path} is a directory")
            marks = [found[key] for key in VERSION_KEYS if found.get(key) is not None]
            return RemoteState.of(found.get("size"), marks[0] if marks else "")

        return _retry(address, ask, WAITS_SECONDS if waits else ())

    def fetch(self, address: str, state: RemoteState, file: IO[bytes]) -> None:
        system, path = _file_system(address)
        _check_state(address, state, self.state(address))

        def copy() -> None:
            file.seek(0)
            file.truncate()
            with system.open(path, "rb", block_size=8 * PIECE_BYTES, cache_type="readahead") as given:
                while piece := given.read(8 * PIECE_BYTES):
                    write_piece(file, piece)
            if state.num_bytes not in (None, file.tell()):
                raise ConnectionError(f"it ended after {file.tell()} of {state.num_bytes} bytes")

        _retry(address, copy, WAITS_SECONDS)


def _file_system(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDependencyError.of("fsspec", "remote") from error
    with _explained(address):
        system, path = url_to_fs(address)
        return system, path


def _opened(address: str, headers: Mapping[str, str]) -> Any:
    request = urllib.request.Request(address, headers={"User-Agent": "stepwell", **headers})
    return urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)


def _state_of(status: int, headers: Message) -> RemoteState:
    """Return the state from the headers of an answer, to a range or to the whole."""
    parts = CONTENT_RANGE.fullmatch(headers.get("Content-Range") or "")
    size = parts[1] if status == 206 and parts else headers.get("Content-Length")
    mark = (headers.get("ETag") or headers.get("Last-Modified") or "").removeprefix("W/")
    return RemoteState.of(int(size) if size and size.isdecimal() else None, mark)


def _check_state(address: str, before: RemoteState, now: RemoteState) -> None:
    if now != before:
        raise FormatError(
            f"{plain_address(address)} changed while it was in use: it had {before.num_bytes} bytes, and has "
            f"{now.num_bytes}. Open the dataset again."
        )


def write_piece(file: IO[bytes], piece: bytes) -> None:
    """Write some bytes to a file of the cache."""
    try:
        file.write(piece)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"no space left for {file.name}. Make room, lower STEPWELL_CACHE_BYTES, or set STEPWELL_CACHE to "
                "another directory."
            ) from error
        raise StepwellError(f"{file.name} cannot be written: {error}") from error


def _retry(address: str, action: Callable[[], Value], waits: Sequence[float]) -> Value:
    """Return what an action returns; a failure that may be passing is tried again after each of some seconds."""
    for wait in waits:
        try:
            with _explained(address):
                return action()
        except UnreachableError:
            time.sleep(wait)
    with _explained(address):
        return action()


@contextmanager
def _explained(address: str) -> Iterator[None]:
    """Raise stepwell's errors for those of libraries."""
    where = plain_address(address)
    try:
        yield
    except StepwellError:
        raise
    except ImportError as error:
        raise MissingDependencyError(f"{where}: {error}, beside fsspec of stepwell[remote].") from error
    except (FileNotFoundError, PermissionError) as error:
        raise _refusal(where, 404 if isinstance(error, FileNotFoundError) else 403) from error
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in REFUSED:
            raise _refusal(where, error.code) from error
        raise UnreachableError(f"{where} cannot be fetched: status {error.code}. Try again later.") from error
    except http.client.InvalidURL:
        # it quotes what may be a secret
        raise FormatError(
            f"{where} cannot be read: no address of HTTP. Write blanks and the like by %20, a port in digits, "
            "and no name and password before the host."
        ) from None
    except ValueError as error:
        # an address that no library can read; http.client's errors of answers are no ValueErrors
        reason = _reason(error, address)
        raise FormatError(f"{where} cannot be read: {reason}. Allowed: http(s)://, and what fsspec knows.") from error
    except (OSError, http.client.HTTPException) as error:
        reason = _reason(error, address)
        raise UnreachableError(f"{where} cannot be fetched: {reason}. Is there a network? Try again later.") from error
    except Exception as error:  # the libraries of object stores have trees of errors of their own
        reason = f"{type(error).__name__}: {_reason(error, address)}"
        raise UnreachableError(f"{where} cannot be fetched: {reason}") from error


def _reason(error: Exception, address: str) -> str:
    """Return what an error says, unless it quotes what messages leave out of an address."""
    text = str(getattr(error, "reason", None) or error)
    login, query = LOGIN.search(address), address.partition("?")[2]
    secrets = [query, *([] if login is None else login[1].split(":"))]
    return type(error).__name__ if not text or any(secret and secret in text for secret in secrets) else text


def _refusal(where: str, status: int) -> DatasetNotFoundError:
    if status in (401, 403):
        return DatasetNotFoundError(
            f"{where} may not be read (status {status}). Give an address that is signed, or what fsspec's library for "
            "it takes a login from (AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, ...)."
        )
    return DatasetNotFoundError(f"no file at {where} (status {status}). Check the address.")
