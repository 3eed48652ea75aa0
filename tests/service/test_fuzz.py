"""Hostile messages at each stage of each stream of a running server: an error each, and it serves as before.

``STEPWELL_FUZZ=100000`` sends as many by hand; the suite sends fewer.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import stepwell
from stepwell.replay import Table

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")

from stepwell.service import Client, Server  # noqa: E402
from stepwell.service.messages import HEAD, PROTOCOL, Kind, pack  # noqa: E402
from stepwell.service.settings import SERVICE  # noqa: E402

COUNT = int(os.environ.get("STEPWELL_FUZZ", "1500"))
HOSTILE: list[Any] = [
    None, True, -1, 0, 1 << 31, 1 << 63, 1 << 70, 1e308, float("inf"), "", "x" * 300, "../../etc/passwd", "\0", [], {},
    [[]], [None] * 5, [1 << 40] * 3, {"a": {"b": []}}, [["end"]], [[0, "end", None]],
    [[0, "item", "replay", [1], 2, -1.0]],
]  # fmt: skip
CALLS = ["info", "stats", "mutate", "reset", "create_item", "checkpoint", "publish", "latest", "hello", "x"]
DEEP = b"[" * 50_000
COLUMNS = [
    np.zeros((), np.float32), np.full(3, np.nan), np.zeros((0, 3), np.float32), np.ones((2, 3)),
    np.arange(4, dtype=np.uint8),
    np.zeros((1, 1, 1), bool), np.full(2, -1), np.full(2, 1 << 62), np.array([1 + 1j], np.complex64),
]  # fmt: skip


def hello(**changes: Any) -> dict[str, Any]:
    fields = {"x": {"source": "x", "offsets": [0], "seconds": None, "pad": "edge", "combine": "stack", "at": None}}
    fields["x"]["tolerance_seconds"] = None
    return {
        "protocol": PROTOCOL, "name": "fuzz", "incarnation": "1", "num_envs": None, "on_disconnect": "interrupt",
        "table": "replay", "fields": fields, "is_clipped": False, "store": None, **changes,
    }  # fmt: skip


def good_messages(stream: str) -> list[tuple[Kind, dict[str, Any], dict[str, Any]]]:
    """Return what a client of a stream sends after its HELLO."""
    if stream == "write":
        steps = {"first": [0, 0, 0], "count": 2, "ops": [[2, "end", {"terminated": True}]], "ack": True}
        return [(Kind.STEPS, steps, {"x": np.zeros((2, 3), np.float32)}), (Kind.BYE, {}, {})]
    ask = {"count": 4, "rows": 4, "least": 1}
    return [(Kind.ASK, ask, {"keys": np.arange(3, dtype=np.uint64), "priorities": np.ones(3)})]


def damaged(rng: random.Random, kind: Kind, head: dict[str, Any], columns: dict[str, Any]) -> bytes:
    """Return a message with one or several things wrong, or nothing."""
    head, columns = copy.deepcopy(head), dict(columns)
    for _ in range(rng.randrange(3)):
        place: Any = head
        while isinstance(place, dict) and place and rng.random() < 0.5:
            key = rng.choice(list(place))
            if not isinstance(place[key], dict):
                break
            place = place[key]
        if place:
            place[rng.choice(list(place))] = copy.deepcopy(rng.choice(HOSTILE))
    if head and rng.random() < 0.1:
        del head[rng.choice(list(head))]
    if rng.random() < 0.3:
        columns[rng.choice([*columns, "x", "final:x", "flag:mask", "x:sizes", "x:rows"])] = rng.choice(COLUMNS)
    if rng.random() < 0.1:
        kind = rng.choice(list(Kind))
    data = bytearray(pack(kind, head, columns))
    if rng.random() < 0.2:
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.05:
        del data[rng.randrange(len(data)) :]
    if rng.random() < 0.01:
        data = bytearray(HEAD.pack(kind, 0, 0, len(DEEP), 0) + DEEP)
    return bytes(data)


def send(channel: Any, rng: random.Random) -> Iterator[bytes]:
    """Send a call, or a stream of some messages; yield what comes back."""
    stream = rng.choice(["write", "draw", "call"])
    if stream == "call":
        name = rng.choice(
            ["info", "stats", "mutate", "reset", "create_item", "checkpoint", "publish", "latest", "hello", "x"]
        )
        head = {"call": name, "table": "replay", "name": "v", "value": {}, "newer_than": 0, "length": None}
        columns = {"keys": np.arange(2, dtype=np.uint64), "priorities": np.ones(2), "steps": np.zeros((1, 1), np.int64)}
        yield channel.unary_unary(f"/{SERVICE}/call")(damaged(rng, Kind.CALL, head, columns), timeout=20)
        return
    begin = pack(Kind.HELLO, hello()) if rng.random() < 0.7 else damaged(rng, Kind.HELLO, hello(), {})
    messages = [begin, *(damaged(rng, *each) for each in good_messages(stream) * rng.randrange(3))]
    # a draw may wait for a limiter for ever, as it should
    yield from channel.stream_stream(f"/{SERVICE}/{stream}")(iter(messages), timeout=0.5)


@pytest.mark.timeout(1200)
def test_a_server_under_hostile_messages_serves_as_before() -> None:
    rng = random.Random(7)
    store = stepwell.create(":memory:", {"x": stepwell.Array(3)}, capacity=2_000)
    process = psutil.Process()
    sent = answered = 0
    with Server(Table(store)) as server, Client(server.address, timeout=60) as client:
        with client.writer("good") as writer:
            for number in range(100):
                writer.append(x=np.full(3, number, np.float32))
        before = 0
        with grpc.insecure_channel(server.address) as channel:
            while sent < COUNT:
                sent += 1
                try:
                    for _ in send(channel, rng):
                        answered += 1
                except grpc.RpcError as error:
                    # UNKNOWN is an error that nobody thought of
                    assert error.code().name in ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "CANCELLED"), (sent, error)
                if sent == min(500, COUNT // 2):
                    before = process.memory_info().rss
        assert server.is_running
        assert answered > sent // 2
        assert process.memory_info().rss - before < 256 << 20
        client.reset("replay")
        with client.writer("after") as writer:
            for _ in range(100):
                writer.append(x=np.full(3, 7, np.float32))
        with client.loader({"x": "x"}, batch_size=64) as loader:
            assert next(loader)["x"].shape == (64, 3)
        json.dumps(server.stats())
