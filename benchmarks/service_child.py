"""One process of bench_replay_service: a server, an actor or a learner, of stepwell or of a prototype over raw TCP.

Reads a JSON object a line, {"do": NAME, ...}, and answers each with one: the names are the functions below.

The prototype is as little as a service can be: the same table and loader behind asyncio, frames of a kind, a length and
bytes; no acknowledgements that survive a reconnection, no checks, no limiters, no authentication::

    client    u8 kind, u32 length, steps | nothing | keys and priorities
    server    a byte                     | u32 length, a batch | a byte
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np

import stepwell
from stepwell.replay import ReplayLoader, Table, transition_fields
from stepwell.service import Client, Server

BATCH, STEPS, STACK, MESSAGES_AHEAD = 256, 64, 4, 8
OBSERVATION, ACTION, SIDE = 17, 6, 84
CAPACITY = {"transitions": 500_000, "stacks": 20_000}
FEATURES = {
    "transitions": {
        "observation": stepwell.Array(OBSERVATION, final=True),
        "action": stepwell.Array(ACTION),
        "reward": stepwell.Array(),
    },
    "stacks": {"observation": stepwell.Array((SIDE, SIDE), "uint8"), "action": stepwell.Array((), "int64")},
}
COLUMNS = ("observation", "action", "reward", "next_observation", "discount", "table.weight", "table.key")
INSERT, SAMPLE, UPDATE = range(3)
HEAD, LENGTH = struct.Struct("<BI"), struct.Struct("<I")
# messages of an actor between two ends of episodes
EPISODE = 4

TARGETS = transition_fields(n_step=1, discount=0.99)
LOADERS: dict[str, dict[str, Any]] = {
    "transitions": {"fields": TARGETS.fields, "transform": TARGETS.transform, "info": ("key", "weight")},
    "stacks": {
        "fields": {"observation": stepwell.Field("observation", range(1 - STACK, 1)), "action": "action"},
        "info": ("key", "weight"),
    },
}
HELD: dict[str, Any] = {}


def _table(what: str, filled: int) -> Table:
    rng = np.random.default_rng(0)
    store = stepwell.create(":memory:", FEATURES[what], capacity=CAPACITY[what])
    with store.writer() as writer:
        for _ in range(0, filled, 1000):
            if what == "stacks":
                screens = rng.integers(0, 255, (1000, SIDE, SIDE), np.uint8)
                writer.add_episode({"observation": screens, "action": np.arange(1000)}, terminated=True)
                continue
            rows = {name: values[np.arange(1000) % STEPS] for name, values in _steps().items()}
            writer.add_episode(rows, final={"observation": np.zeros(OBSERVATION, np.float32)}, terminated=True)
    pattern = TARGETS.pattern if what == "transitions" else stepwell.replay.Pattern(1)
    table = Table(store, sampler="prioritized(0.6)", pattern=pattern, follow_seconds=0.01)
    table.follow()
    return table


def _steps() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "observation": rng.standard_normal((STEPS, OBSERVATION), dtype=np.float32),
        "action": rng.standard_normal((STEPS, ACTION), dtype=np.float32),
        "reward": rng.standard_normal(STEPS, dtype=np.float32),
    }


# servers


def serve(kind: str, what: str, filled: int) -> dict[str, Any]:
    """Serve a table of so many steps; returns where."""
    table = HELD["table"] = _table(what, filled)
    if kind == "stepwell":
        server = HELD["server"] = Server(table, save_seconds=None)
        return {"address": server.address}
    started: Future[str] = Future()
    threading.Thread(target=lambda: asyncio.run(_serve_raw(table, what, started)), daemon=True).start()
    return {"address": started.result()}


async def _serve_raw(table: Table, what: str, started: Future[str]) -> None:
    loader = ReplayLoader(table, batch_size=BATCH, **LOADERS[what])
    next(loader)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        steps, number = table.store.writer(), 0
        try:
            while True:
                kind, length = HEAD.unpack(await reader.readexactly(HEAD.size))
                body = await reader.readexactly(length)
                if kind == INSERT:
                    values = np.frombuffer(body, np.float32).reshape(STEPS, -1)
                    rows = np.split(values, [OBSERVATION, OBSERVATION + ACTION], axis=1)
                    steps.append_batch({"observation": rows[0], "action": rows[1], "reward": rows[2][:, 0]})
                    number += 1
                    if number % EPISODE == 0:
                        steps.end_episode(truncated=True, final={"observation": values[-1, :OBSERVATION]})
                    writer.write(b"\1")
                elif kind == SAMPLE:
                    batch = next(loader)
                    parts = [np.ascontiguousarray(batch[name]).reshape(-1).view(np.uint8).data for name in COLUMNS]
                    writer.writelines([LENGTH.pack(sum(map(len, parts))), *parts])
                else:
                    keys, priorities = np.frombuffer(body, np.uint64, BATCH), np.frombuffer(body, np.float64)[BATCH:]
                    table.update_priorities(keys, priorities)
                    writer.write(b"\1")
                await writer.drain()
        except asyncio.IncompleteReadError:
            steps.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 20)
    started.set_result(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await server.serve_forever()


# clients: what each does once, and returns the units of it


def act(kind: str, address: str, number: int) -> dict[str, Any]:
    """Become an actor."""
    HELD["work"] = (_act if kind == "stepwell" else _act_raw)(address, number)
    return {}


def _act(address: str, number: int) -> Callable[[], int]:
    HELD["client"] = client = Client(address)
    writer, rows, sent = client.writer(f"actor {number}", batch_steps=STEPS), _steps(), [0]
    final = {"observation": rows["observation"][-1]}

    def work() -> int:
        writer.append_batch(rows)
        sent[0] += 1
        if sent[0] % EPISODE == 0:
            writer.end_episode(truncated=True, final=final)
        return STEPS

    HELD["finish"] = writer.flush
    return work


def _act_raw(address: str, number: int) -> Callable[[], int]:
    connection, ahead = _connect(address), [0]
    body = np.concatenate([values.reshape(STEPS, -1) for values in _steps().values()], axis=1).tobytes()
    message = HEAD.pack(INSERT, len(body)) + body

    def work() -> int:
        connection.sendall(message)
        ahead[0] += 1
        if ahead[0] == MESSAGES_AHEAD:
            ahead[0] -= len(connection.recv(MESSAGES_AHEAD))
        return STEPS

    def finish() -> None:
        while ahead[0]:
            ahead[0] -= len(connection.recv(MESSAGES_AHEAD))

    HELD["finish"] = finish
    return work


def learn(kind: str, address: str, what: str, **options: Any) -> dict[str, Any]:
    """Become a learner: of a server, of the prototype, or of a table in this process."""
    if kind == "raw":
        HELD["work"] = _learn_raw(address)
        return {}
    if kind == "near":
        HELD["table"] = _table(what, options.pop("filled"))
        loader: Any = ReplayLoader(HELD["table"], batch_size=BATCH, **LOADERS[what], **options)
    else:
        HELD["client"] = client = Client(address)
        loader = client.loader(batch_size=BATCH, **LOADERS[what], **options)
    priorities = np.ones(BATCH)

    def work() -> int:
        began = time.perf_counter()
        batch = next(loader)
        HELD["waits"].append(time.perf_counter() - began)
        loader.update_priorities(batch, priorities)
        return BATCH

    work()
    HELD["work"] = work
    return {}


def _connect(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _learn_raw(address: str) -> Callable[[], int]:
    connection, priorities = _connect(address), np.ones(BATCH).tobytes()
    incoming = connection.makefile("rb", 1 << 20)

    def work() -> int:
        began = time.perf_counter()
        connection.sendall(HEAD.pack(SAMPLE, 0))
        (length,) = LENGTH.unpack(incoming.read(LENGTH.size))
        batch = bytearray(length)
        incoming.readinto(batch)
        HELD["waits"].append(time.perf_counter() - began)
        body = bytes(batch[-8 * BATCH :]) + priorities
        connection.sendall(HEAD.pack(UPDATE, len(body)) + body)
        incoming.read(1)
        return BATCH

    return work


def run(seconds: float) -> dict[str, Any]:
    """Work for so long; returns units, the seconds they took, and those that draws of learners waited."""
    HELD["waits"], units, began = [], 0, time.perf_counter()
    processor = time.process_time()
    while time.perf_counter() - began < seconds:
        units += HELD["work"]()
    HELD.get("finish", int)()
    spent, processor = time.perf_counter() - began, time.process_time() - processor
    return {"units": units, "seconds": spent, "processor": processor, "waits": HELD["waits"]}


def processor() -> dict[str, Any]:
    """Return the processor time of this process so far."""
    return {"seconds": time.process_time()}


def main() -> None:
    """Do what each line says."""
    HELD["waits"] = []
    does = {"serve": serve, "act": act, "learn": learn, "run": run, "processor": processor}
    for line in sys.stdin:
        arguments = json.loads(line)
        print(json.dumps(does[arguments.pop("do")](**arguments)), flush=True)


if __name__ == "__main__":
    main()
