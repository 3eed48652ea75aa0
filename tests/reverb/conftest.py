"""Servers by Reverb's names; skipped where grpcio or dm-tree is missing."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed")
pytest.importorskip("tree", reason="dm-tree is not installed")

from stepwell import reverb


@pytest.fixture
def serve() -> Iterator[Callable[..., tuple[reverb.Server, reverb.Client]]]:
    """Begin servers of tables, and stop them."""
    servers = []

    def begin(*tables: reverb.Table, **options: Any) -> tuple[reverb.Server, reverb.Client]:
        server = reverb.Server(list(tables), **options)
        servers.append(server)
        return server, server.localhost_client()

    yield begin
    for server in servers:
        server.stop()
