"""Served tables that Ray places: an actor a shard, each with a store and a server of its own."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from stepwell.errors import StepwellError, StoreExistsError
from stepwell.files.addresses import local_path
from stepwell.ray.executor import import_ray
from stepwell.service import Client, Server, open_table
from stepwell.store import Store, create
from stepwell.store import open as open_store

__all__ = ["Replay", "start_replay"]

ADDRESS = "address"
START_SECONDS = 120.0


def start_replay(
    tables: Mapping[str, Mapping[str, Any]],
    num_shards: int = 1,
    *,
    path: str,
    schema: Any = None,
    capacity: int | str | None = None,
    host: str | None = None,
    token: str | None = None,
    insecure: bool = False,
    resources_per_shard: Mapping[str, float] | None = None,
) -> Replay:
    """Start servers of tables on Ray's nodes, and return their addresses.

    Args:
        tables: name to the options of `stepwell.Table`, ``{"replay": {"sampler": "prioritized(0.6)"}}``.
        num_shards: servers, each with a store of its own, ``PATH/shard-0000.well``; one that is there goes on.
        path: a directory that the shards' nodes have; it need not be shared.
        schema: of the stores; None: inferred from the first step.
        capacity: of each ring; see `stepwell.create`.
        host: that the servers listen at; default: the address of each node.
        token: that clients must send; needed, or ``insecure``, where ``host`` is not of the loopback.
        insecure: let other machines connect without a token.
        resources_per_shard: what each asks of Ray; default ``{"CPU": 1}``.

    Returns:
        A handle with ``addresses``, for `stepwell.service.Client`.

    Raises:
        StepwellError: no tables or shards; a path that is an address; and what `stepwell.service.Server` raises.
        MissingDependencyError: without Ray, or grpcio.

    Notes:
        A server that dies is begun anew by Ray, on the same node at the same port, and goes on with the store and with
        the tables as they were saved last; see docs/service.md for what clients notice.
    """
    ray = import_ray()
    if not tables or num_shards < 1:
        raise StepwellError(f"{len(tables)} tables in {num_shards} shards: give at least one of each.")
    # an actor may have another working directory
    directory = Path(local_path(path)).absolute()
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    resources = dict(resources_per_shard or {"CPU": 1})
    begin = ray.remote(_Shard).options(
        num_cpus=resources.pop("CPU", 0),
        num_gpus=resources.pop("GPU", 0),
        resources=resources,
        max_restarts=-1,
        max_task_retries=-1,
    )
    kept = {name: dict(options) for name, options in tables.items()}
    shards = [
        begin.remote(f"{directory}/shard-{number:04d}.well", schema, capacity, kept, host, token, insecure)
        for number in range(num_shards)
    ]
    replay = Replay(ray, shards, token)
    try:
        replay.refresh()
    except BaseException:
        replay.stop()
        raise
    return replay


class Replay:
    """Servers that `start_replay` has placed; a context manager that stops them.

    Attributes:
        addresses: of the servers, in the order of the shards.
    """

    def __init__(self, ray: Any, shards: list[Any], token: str | None) -> None:
        self._ray, self._shards, self._token = ray, shards, token
        self.addresses: list[str] = []

    def refresh(self) -> list[str]:
        """Ask for the addresses again: they change only where a server was begun anew on another node."""
        try:
            asked = [shard.address.remote() for shard in self._shards]
            self.addresses = self._ray.get(asked, timeout=START_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise StepwellError(f"a server could not be started: {error}") from error
        return self.addresses

    def client(self, **options: Any) -> Client:
        """Return a client of all shards; see `stepwell.service.Client`."""
        return Client(self.addresses, **{"token": self._token, **options})

    def stop(self) -> None:
        """Stop the servers; their stores stay, with the tables as they were."""
        for shard in self._shards:
            with suppress(self._ray.exceptions.RayError):
                self._ray.get(shard.stop.remote(), timeout=START_SECONDS)
            self._ray.kill(shard)
        self._shards = []

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Replay of {', '.join(self.addresses)}>"


class _Shard:
    """One server, in a process of Ray; made again with the same arguments when that dies."""

    def __init__(  # noqa: PLR0917
        self,
        path: str,
        schema: Any,
        capacity: Any,
        tables: Mapping[str, Mapping[str, Any]],
        host: str | None,
        token: str | None,
        insecure: bool,
    ) -> None:
        self._store = _opened(path, schema, capacity)
        made = [open_table(self._store, name, **options) for name, options in tables.items()]
        note = Path(path, "service", ADDRESS)
        node = host or import_ray().util.get_node_ip_address()
        address = f"{node}:{_known_port(note, node)}"
        # clients go on at the address that they have
        self._server = Server(made, address, token=token, insecure=insecure)
        note.write_text(self._server.address)

    def address(self) -> str:
        """Return where the server is."""
        return self._server.address

    def stop(self) -> None:
        """Stop the server, and save the tables."""
        self._server.stop()
        self._store.close()


def _opened(path: str, schema: Any, capacity: Any) -> Store:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    try:
        return create(path, schema, capacity=capacity)
    except StoreExistsError:
        return open_store(path)


def _known_port(note: Path, host: str) -> int:
    """Return the port that the server before this one had, if it is free; else 0."""
    try:
        before, _, port = note.read_text().rpartition(":")
    except FileNotFoundError:
        return 0
    if before != host or not port.isdigit():
        return 0
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return 0
    return int(port)
