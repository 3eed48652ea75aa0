"""Settings that servers and clients share: limits, certificates, addresses."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from stepwell.errors import MissingDependencyError, ServiceError, StepwellError

__all__ = [
    "TLS",
    "Limits",
    "check_name",
    "check_open",
    "check_token",
    "import_grpc",
    "is_loopback",
    "parse_address",
    "refusal",
]

SERVICE = "stepwell.Tables"
UNIX = "unix:"
MAX_NAME = 200
DEFAULT_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server lets its clients do.

    Args:
        message_bytes: of one message, at most; a larger one is refused before memory is taken for it.
        max_streams: writers and loaders that are connected at a time.
        max_sessions: writers that are remembered, so that they can go on after they were away.
        max_in_flight: batches that a loader may ask for ahead.
        value_bytes: of all values that clients publish.
        grace_seconds: how long the open episode of a writer waits for it after its connection was lost.

    Notes:
        Memory of a server, beside its tables: for each stream at most two messages of its own size and 4 MiB that are
        read ahead, two messages more for the one that is being read, three for a call of `Client.publish` while it
        lasts, what the system's sockets hold; and the values.
    """

    message_bytes: int = 64 << 20
    max_streams: int = 1024
    max_sessions: int = 10_000
    max_in_flight: int = 64
    value_bytes: int = 1 << 30
    grace_seconds: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            least = 0 if each.name == "grace_seconds" else 1 << 12 if each.name == "message_bytes" else 1
            if not isinstance(value, int | float) or not value >= least:
                raise StepwellError(f"Limits({each.name}={value!r}): allowed is a number of at least {least}.")


@dataclass(frozen=True, slots=True)
class TLS:
    """Certificates, as paths of PEM files.

    Args:
        certificate: of this side, with its chain.
        key: the private key of it.
        authority: certificates that the other side's must lead to. A server with one asks its clients for theirs
            (mutual TLS); a client without one trusts what gRPC does by default.
    """

    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    authority: str | os.PathLike[str] | None = None

    def server_credentials(self) -> Any:
        """Return what a server's port is made with."""
        if self.certificate is None or self.key is None:
            given = f"certificate={self.certificate!r}, key={self.key!r}"
            raise StepwellError(f"TLS({given}): a server needs both. Give paths of PEM files.")
        pair = self._read(self.key), self._read(self.certificate)
        authority = None if self.authority is None else self._read(self.authority)
        return import_grpc().ssl_server_credentials([pair], authority, authority is not None)

    def channel_credentials(self) -> Any:
        """Return what a client's channel is made with."""
        named = self.authority, self.key, self.certificate
        return import_grpc().ssl_channel_credentials(*[None if each is None else self._read(each) for each in named])

    @staticmethod
    def _read(path: str | os.PathLike[str]) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise StepwellError(f"{path} of TLS cannot be read: {error.strerror}. Give a PEM file.") from error


def import_grpc() -> Any:
    """Return the module; MissingDependencyError without it."""
    # forks of data loaders' workers would be stopped by its handlers, and take no part in its connections
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        import grpc
    except ImportError as error:
        raise MissingDependencyError.of("grpcio", "service") from error
    return grpc


def parse_address(address: str, *, default_port: int | None = None) -> str:
    """Return an address as gRPC takes it: ``host:port``, ``[v6]:port`` or ``unix:/path``."""
    if isinstance(address, str):
        if address.startswith(UNIX) and len(address) > len(UNIX):
            return address
        host, colon, port = address.rpartition(":")
        if colon and port.isdigit() and int(port) < 1 << 16 and re.fullmatch(r"[\w.\-]+|\[[0-9a-fA-F:.%\w]+\]", host):
            return address
        # a number alone is a port without a host
        if default_port is not None and re.fullmatch(r"[\w.\-]+", address) and not address.isdigit():
            return f"{address}:{default_port}"
    raise ServiceError(f'{address!r} is no address. Allowed: "host:port", "[::1]:port" or "unix:/path/of.sock".')


def check_open(address: str, *, is_guarded: bool) -> None:
    """Refuse to serve other machines without a token, mutual TLS, or a word that it shall be so."""
    if not (is_guarded or address.startswith(UNIX) or is_loopback(address.rpartition(":")[0])):
        raise ServiceError(
            f"serving at {address} would let every machine that reaches it write and read. Give a token, TLS with an "
            "authority, or insecure=True (--token-file, --authority, --insecure); or serve at 127.0.0.1."
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address of this host."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(token: str) -> str:
    """Return a token; ServiceError where it guards nothing, or cannot be sent."""
    # what a header of HTTP/2 may hold
    if isinstance(token, str) and re.fullmatch(r"[!-~]([ -~]*[!-~])?", token):
        return token
    what = "is empty" if not token else f"is a {type(token).__name__}, or has other characters"
    raise ServiceError(f"the token {what}. Allowed: letters, digits and signs of ASCII, without spaces at its ends.")


def refusal(given: object) -> str:
    """Return why a client without the token of a server is not let in; ``given`` is what it sent."""
    if not given:
        return "this server asks for a token, and none came. Give Client(token=...), or --token-file"
    return "the token that came is not the one of this server"


def check_name(name: object, what: str) -> str:
    """Return a name; ServiceError where it is none."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise ServiceError(f"{name!r:.100} is no name of {what}. Give printable text of 1 to {MAX_NAME} characters.")
    return name
