"""What a recorder takes as a frame, and what it says of one that does not fit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell.codecs.png import PngCodec
from stepwell.errors import StepError
from stepwell.lerobot.recording import FrameQueue, FrameReader
from stepwell.schema import Array, Image, Schema, Text

SCHEMA = Schema(
    {
        "observation.images.top": Image((4, 6, 3), codec="png"),
        "observation.state": Array(2),
        "next.reward": Array((), "float32"),
        "next.done": Array((), "bool"),
        "count": Array((2, 3), "int64"),
        "note": Text(),
        "timestamp": Array((), "float32"),
        "task_index": Array((), "int64"),
    }
)
PICTURE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def frame(**changes: Any) -> dict[str, Any]:
    whole = {
        "observation.images.top": PICTURE,
        "observation.state": np.array([0.5, -1], np.float32),
        "next.reward": np.array([2.5], np.float32),
        "next.done": np.array([True]),
        "count": np.arange(6).reshape(2, 3),
        "note": "left hand",
        "task": "push",
    }
    return {**whole, **{name.replace("__", "."): value for name, value in changes.items()}}


def read(**changes: Any) -> dict[str, Any]:
    return FrameReader(SCHEMA).read(frame(**changes))[0]


def test_a_frame_gives_every_feature_and_the_task_apart() -> None:
    step, task = FrameReader(SCHEMA).read(frame())
    assert task == "push"
    assert list(step) == [name for name in SCHEMA if name not in ("timestamp", "task_index")]
    assert step["next.reward"] == np.float32(2.5)
    assert step["next.done"]
    assert np.array_equal(step["observation.images.top"], PICTURE)


def test_a_frame_is_not_changed() -> None:
    given_frame = frame()
    FrameReader(SCHEMA).read(given_frame)
    assert given_frame.keys() == frame().keys()


@pytest.mark.parametrize(
    "scalar", [2.5, np.float32(2.5), np.array(2.5, np.float32), np.array([2.5], np.float32), [2.5], (np.float32(2.5),)]
)
def test_what_lerobot_calls_shape_1_may_be_given_as_a_scalar(scalar: Any) -> None:
    assert read(next__reward=scalar)["next.reward"] == np.float32(2.5)


@pytest.mark.parametrize("shape", [(4, 6, 1), (1, 4, 6)])
@pytest.mark.parametrize("divisor", [1, np.float32(255)])
def test_a_grey_picture_is_one_of_equal_colours(shape: tuple[int, ...], divisor: Any) -> None:
    grey = PICTURE[..., 0]
    given_picture = grey.reshape(shape) if divisor == 1 else grey.reshape(shape) / divisor
    found = read(observation__images__top=given_picture)["observation.images.top"]
    assert np.array_equal(found, np.stack([grey] * 3, axis=-1))


@pytest.mark.parametrize("kind", ["channels first", "float32", "float64", "float16", "first and float", "strided"])
def test_pictures_may_come_as_lerobot_takes_them(kind: str) -> None:
    units = PICTURE / 255
    pictures = {
        "channels first": PICTURE.transpose(2, 0, 1),
        "float32": units.astype(np.float32),
        "float64": units,
        "float16": units.astype(np.float16),
        "first and float": np.ascontiguousarray(units.transpose(2, 0, 1), np.float32),
        "strided": np.repeat(PICTURE, 2, axis=1)[:, ::2],
    }
    found = read(observation__images__top=pictures[kind])["observation.images.top"]
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    assert np.array_equal(found, PICTURE)


def test_pictures_of_pil_and_tensors_may_be_given() -> None:
    pil = pytest.importorskip("PIL.Image")
    torch = pytest.importorskip("torch")
    for picture in (pil.fromarray(PICTURE), torch.from_numpy(PICTURE), torch.from_numpy(PICTURE).permute(2, 0, 1)):
        assert np.array_equal(read(observation__images__top=picture)["observation.images.top"], PICTURE)
    assert np.array_equal(read(observation__state=torch.tensor([1.0, 2.0]))["observation.state"], [1, 2])


@given(st.floats(0, 1, width=32))
def test_a_float_becomes_the_nearest_byte(value: float) -> None:
    found = read(observation__images__top=np.full((4, 6, 3), value, np.float32))["observation.images.top"]
    assert abs(int(found[0, 0, 0]) - value * 255) <= 0.5 + 1e-4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"observation__state": np.zeros(3, np.float32)}, "'observation.state': got shape (3,)"),
        ({"observation__state": np.zeros(2)}, "'observation.state': got dtype float64, the store has float32"),
        ({"observation__state": None}, "'observation.state': got None"),
        ({"next__reward": np.zeros(2, np.float32)}, "'next.reward': got shape (2,)"),
        ({"next__done": 1.5}, "'next.done'"),
        ({"count": np.zeros((3, 2), np.int64)}, "'count': got shape (3, 2)"),
        ({"note": 5}, "'note': got a int"),
        ({"observation__images__top": PICTURE[:3]}, "'observation.images.top': got shape (3, 6, 3)"),
        ({"observation__images__top": PICTURE.astype(np.int64)}, "'observation.images.top': got dtype int64"),
        ({"observation__images__top": PICTURE / 50}, "'observation.images.top': got floats of 0 to"),
        ({"observation__images__top": np.full((4, 6, 3), np.nan)}, "'observation.images.top': got floats of nan"),
        ({"observation__images__top": "top.png"}, "'observation.images.top': got dtype <U7"),
        ({"observation__images__top": None}, "'observation.images.top': got None"),
        ({"task": 3}, "'task': got a int, the store has text"),
        ({"task": "\ud800"}, "'task': a text with a lone surrogate"),
        ({"wrist": 1}, "'wrist' no feature of the dataset"),
        ({"timestamp": 0.1}, "'timestamp' computed: leave it out"),
        ({"index": 3, "episode_index": 0}, "'index', 'episode_index' computed"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(StepError) as caught:
        read(**changes)
    assert told in str(caught.value)


def test_what_is_missing_is_named() -> None:
    without = {name: value for name, value in frame().items() if name not in ("task", "note")}
    with pytest.raises(StepError, match="'note', 'task' missing"):
        FrameReader(SCHEMA).read(without)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(StepError, match="got a list"):
        FrameReader(SCHEMA).read([1, 2])  # type: ignore[arg-type]


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
