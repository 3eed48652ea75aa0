"""Readers in other processes, at full speed, while a writer records: every step carries its own checksum."""

from __future__ import annotations

import os
import struct
import time
import traceback
import zlib
from pathlib import Path

import numpy as np

from stepwell.order import random
from stepwell.schema import Array, Schema
from stepwell.store import Store, create, open
from stepwell.windows import Field, View, WindowReader

SCHEMA = Schema({"observation": Array(6, "int64", final=True), "action": Array((), "int64")})
SECONDS = 3.0
# rows that a reader checks at least, however slow the machine is
ENOUGH = 200


def observation(episode: int, t: int, is_final: bool) -> np.ndarray:
    body = [episode, t, is_final, episode * 7919 + t, t * t]
    return np.array([*body, zlib.crc32(struct.pack("<5q", *body))], np.int64)


def record(path: str, until: float) -> None:
    with Store(path).writer() as out:
        episode = 0
        while time.monotonic() < until:
            length = 1 + episode * 13 % 40
            for t in range(length):
                out.append({"observation": observation(episode, t, False), "action": episode * 1000 + t})
            out.end_episode(final={"observation": observation(episode, length, True)}, number=episode)
            episode += 1


def read(path: str, until: float, enough: int = ENOUGH) -> int:
    """Read random windows of what is there, refreshing all the time; returns how many were checked."""
    store = open(path, mode="r")
    fields = {
        "now": Field("observation", (-2, -1, 0)),
        "next": Field("observation", 1),
        "action": Field("action", (0, 1, 2)),
    }
    checked, longest = 0, 0
    view = View(store)
    while time.monotonic() < until or (checked <= enough and time.monotonic() < until + 60):
        store.refresh()
        view = view.refresh()
        assert store.num_steps >= longest
        longest = store.num_steps
        reader = WindowReader(view, fields)
        bound = random(seed=checked).bind(reader.index)
        if bound.num_positions == 0:
            continue
        batch = reader.read(bound.positions(0, 0, min(64, bound.num_positions)))
        check(batch)
        checked += len(batch["next"])
    return checked


def check(batch: dict[str, np.ndarray]) -> None:
    rows = np.concatenate([batch["now"], batch["next"][:, None]], axis=1)
    for window, actions in zip(rows, batch["action"], strict=True):
        assert len(set(window[:, 0])) == 1, "a window of two episodes"
        for row in window:
            assert zlib.crc32(row[:5].tobytes()) == row[5], "a torn or unwritten row"
        t = window[2, 1]
        assert window[:, 1].tolist() == [max(t - 2, 0), max(t - 1, 0), t, t + 1]
        assert not window[2, 2], "a final row as an anchor"
        assert (actions // 1000 == window[2, 0]).all()


def test_readers_in_other_processes_see_new_steps_and_never_a_torn_or_mixed_window(tmp_path: Path) -> None:
    path = str(tmp_path / "live.well")
    create(path, SCHEMA, segment_bytes=200_000)
    warm = create(tmp_path / "warm.well", SCHEMA)
    with warm.writer() as out:
        out.append({"observation": observation(0, 0, False), "action": 0})
        out.end_episode(final={"observation": observation(0, 1, True)})
    read(str(tmp_path / "warm.well"), time.monotonic() + 0.01, enough=0)  # compiled before the fork
    until = time.monotonic() + SECONDS
    readers = []
    for _ in range(2):
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(send, b"%d" % read(path, until))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os.close(send)
        readers.append((child, receive))
    record(path, until)
    for child, receive in readers:
        _, status = os.waitpid(child, 0)
        checked = int(os.read(receive, 20) or 0)
        os.close(receive)
        assert status == 0
        assert checked > ENOUGH
    assert open(path).verify().is_ok
