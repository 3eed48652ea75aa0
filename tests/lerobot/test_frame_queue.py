"""Frames on their way into a store: in order, copied, and nothing after an error."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.codecs.png import PngCodec
from stepwell.lerobot.frame_queue import FrameQueue

PNG = {"camera": stepwell.Image((8, 8), codec="png"), "note": stepwell.Text(), "done": stepwell.Array((), "bool")}
PLAIN = {"camera": stepwell.Image((8, 8)), "note": stepwell.Text(), "done": stepwell.Array((), "bool")}


def step(number: int) -> dict[str, Any]:
    return {"camera": np.full((8, 8), number, np.uint8), "note": f"step {number}", "done": number % 2 == 0}


def opened(path: Path, features: Any, queue_bytes: int = 1 << 20) -> tuple[stepwell.Store, stepwell.Writer, FrameQueue]:
    store = stepwell.create(path, features)
    writer = store.writer()
    assert store.schema is not None
    return store, writer, FrameQueue(writer, store.schema, queue_bytes)


def close(writer: stepwell.Writer, queue: FrameQueue) -> None:
    queue.close()
    writer.end_episode()
    writer.close()


@pytest.mark.parametrize("features", [PNG, PLAIN], ids=["png", "raw"])
@pytest.mark.parametrize("queue_bytes", [0, 1 << 20])
def test_steps_are_stored_in_order_and_copied(tmp_path: Path, features: Any, queue_bytes: int) -> None:
    store, writer, queue = opened(tmp_path / "a.well", features, queue_bytes)
    reused = np.empty((8, 8), np.uint8)
    for number in range(50):
        reused[:] = number
        queue.put({**step(number), "camera": reused})
    close(writer, queue)
    episode = store[0]
    assert np.array_equal(np.asarray(episode["camera"])[:, 0, 0], np.arange(50))
    assert episode["note"] == [f"step {number}" for number in range(50)]
    assert episode["done"].tolist() == [number % 2 == 0 for number in range(50)]


def test_wait_returns_when_all_is_stored(tmp_path: Path) -> None:
    store, writer, queue = opened(tmp_path / "a.well", PNG)
    for number in range(20):
        queue.put(step(number))
    queue.wait()
    store.refresh()
    assert store.num_steps == 20
    close(writer, queue)


def test_an_error_is_raised_until_its_episode_is_dropped_and_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, writer, queue = opened(tmp_path / "a.well", PNG)
    encode = PngCodec.encode

    def broken(codec: PngCodec, value: Any) -> bytes:
        if value[0, 0] == 3:
            raise MemoryError("no room for a picture")
        return encode(codec, value)

    with monkeypatch.context() as patch:
        patch.setattr(PngCodec, "encode", broken)
        for number in range(3):
            queue.put(step(number))
        queue.wait()
        queue.put(step(3))
        for _ in range(2):
            with pytest.raises(MemoryError, match="no room"):
                queue.wait()
        with pytest.raises(MemoryError, match="no room"):
            queue.put(step(4))
    queue.drop()
    queue.put(step(5))
    close(writer, queue)
    assert store[0]["note"] == ["step 0", "step 1", "step 2", "step 5"]


def test_a_full_queue_waits_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, writer, queue = opened(tmp_path / "a.well", PNG, queue_bytes=0)
    encode, gate, begun = PngCodec.encode, threading.Event(), []

    def slow(codec: PngCodec, value: Any) -> bytes:
        begun.append(int(value[0, 0]))
        assert gate.wait(30)
        return encode(codec, value)

    with monkeypatch.context() as patch:
        patch.setattr(PngCodec, "encode", slow)
        queue.put(step(0))
        queue.put(step(1))
        third = threading.Thread(target=queue.put, args=(step(2),))
        third.start()
        third.join(0.1)
        assert third.is_alive()
        assert 2 not in begun
        gate.set()
        third.join()
        close(writer, queue)
    assert store[0]["note"] == ["step 0", "step 1", "step 2"]
