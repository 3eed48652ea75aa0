"""rates: windows of a feature with a rate of its own, beside windows of as many steps of a raw one, and a copy.

One thread, stores that are cached, random anchors, the batch's memory reused, the processor's time of the thread. Both
readers copy a window by one memcpy; what a rate costs beside it is the search for times. Points of another rate are
measured, too, beside the same raw windows.

Cameras: windows of a JPEG camera with a rate beside those of as many steps of an `Image` feature with the same files,
at anchors that show the same images. Both decode each image once, so what a rate costs is the way from times to files.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
from datasets import removed
from report import Row, compare
from timing import MEMCPY, Settings, Work, time_rounds

import stepwell
from stepwell import Array, Field, Image, Samples
from stepwell.windows import WindowReader, aligned_empty

__all__ = ["run"]

NAME = "rates"
FPS, RATE, STEPS = 30, 150, 600
BATCH = 256
# values of a sample, and seconds of a window
CASES = ((3, 0.5), (16, 0.5), (16, 2.0))
# images a second, sides, and images of a window
CAMERA, SIDES, IMAGES = 60, (120, 160), 8
CAMERA_BATCH = 32


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row a case and contender."""
    for size, seconds in CASES:
        num_episodes = settings.sized(100, 2)
        with (
            removed(_rated(settings, size, num_episodes)) as rated,
            removed(_raw(settings, size, num_episodes)) as raw,
        ):
            yield from _measure(rated, raw, settings, size, seconds)
    with removed(_camera(settings, CAMERA)) as rated, removed(_camera(settings, None)) as steps:
        yield from _measure_cameras(rated, steps, settings)


def _measure_cameras(rated: stepwell.Store, steps: stepwell.Store, settings: Settings) -> Iterator[Row]:
    # step i of the one is sample 2 i of the other, which has twice as many steps
    field = Field("x", span=(-IMAGES / CAMERA, 0.0))
    contenders = {
        "JPEG samples": _decoding(rated, field, settings, 1),
        "JPEG steps": _decoding(steps, Field("x", range(-IMAGES + 1, 1)), settings, CAMERA // FPS),
    }
    rates = time_rounds(contenders, settings, clock=time.thread_time)
    case = f"camera, {IMAGES} images of {SIDES[1]} x {SIDES[0]}, batch {CAMERA_BATCH}"
    yield compare(NAME, case, rates, ours="JPEG samples", theirs="JPEG steps", unit="images/s")


def _decoding(store: stepwell.Store, field: Field, settings: Settings, stride: int) -> Work:
    """Return the reading of windows that end at every ``stride``-th step."""
    reader = WindowReader(stepwell.View(store), {"x": field})
    shape = (settings.sized(40, 2), CAMERA_BATCH)
    anchors = np.random.default_rng(1).integers(0, reader.index.num_anchors // stride, shape) * stride
    batches, memory = itertools.cycle(anchors), aligned_empty(reader.num_bytes(CAMERA_BATCH))

    def read() -> float:
        reader.read(next(batches), memory)
        return CAMERA_BATCH * IMAGES

    return read


def _camera(settings: Settings, rate: float | None) -> stepwell.Store:
    """Return a store of a camera with a rate beside steps of 30 Hz; or as the steps themselves."""
    name, fps = ("camera.well", FPS) if rate else ("frames.well", CAMERA)
    image = Image((*SIDES, 3), codec="jpeg", rate=rate)
    store = stepwell.create(settings.data / name, {"step": Array((), "int64"), "x": image}, fps=fps)
    rng, num_steps = np.random.default_rng(0), settings.sized(300, 20)
    coarse = rng.integers(0, 255, (SIDES[0] // 8, SIDES[1] // 8, 3), np.uint8)
    still = np.kron(coarse, np.ones((8, 8, 1), np.uint8))
    frames = [np.roll(still, number, axis=1) for number in range(num_steps * CAMERA // FPS)]
    with store.writer() as writer:
        if rate:
            writer.add_episode({"step": np.arange(num_steps), "x": Samples(np.stack(frames))})
        else:
            writer.add_episode({"step": np.arange(len(frames)), "x": np.stack(frames)})
    return store


def _measure(
    rated: stepwell.Store, raw: stepwell.Store, settings: Settings, size: int, seconds: float
) -> Iterator[Row]:
    count, span = round(seconds * RATE), (-seconds, 0.0)
    num_bytes = BATCH * count * size * 4
    contenders = {
        "samples": _reading(rated, Field("x", span=span), settings, num_bytes),
        "hold at 30 Hz": _reading(rated, Field("x", span=span, rate=FPS), settings, num_bytes * FPS // RATE),
        "linear at 30 Hz": _reading(
            rated, Field("x", span=span, rate=FPS, align="linear"), settings, num_bytes * FPS // RATE
        ),
        "raw steps": _reading(raw, Field("x", range(-count + 1, 1)), settings, num_bytes),
    }
    rates = time_rounds(contenders, settings, clock=time.thread_time)
    for ours in list(contenders)[:3]:
        for theirs in ("raw steps", MEMCPY):
            case = f"{ours}, {count} x {4 * size} B, batch {BATCH}"
            yield compare(NAME, case, rates, ours=ours, theirs=theirs, unit="GB/s")


def _reading(store: stepwell.Store, field: Field, settings: Settings, num_bytes: int) -> Work:
    reader = WindowReader(stepwell.View(store), {"x": field})
    shape = (settings.sized(400, 4), BATCH)
    batches = itertools.cycle(np.random.default_rng(1).integers(0, reader.index.num_anchors, shape))
    memory = aligned_empty(reader.num_bytes(BATCH))

    def read() -> float:
        reader.read(next(batches), memory)
        return num_bytes / 1e9

    return read


def _rated(settings: Settings, size: int, num_episodes: int) -> stepwell.Store:
    schema = {"step": Array((), "int64"), "x": Array(size, rate=RATE)}
    store = stepwell.create(settings.data / "rated.well", schema, fps=FPS)
    rng, count = np.random.default_rng(0), STEPS * RATE // FPS
    with store.writer() as writer:
        for _ in range(num_episodes):
            times = np.arange(count) / RATE + rng.uniform(0, 0.3 / RATE, count)
            values = rng.normal(size=(count, size)).astype(np.float32)
            writer.add_episode({"step": np.arange(STEPS), "x": Samples(values, times)})
    return store


def _raw(settings: Settings, size: int, num_episodes: int) -> stepwell.Store:
    store = stepwell.create(settings.data / "raw.well", {"x": Array(size)})
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for _ in range(num_episodes):
            writer.add_episode({"x": rng.normal(size=(STEPS * RATE // FPS, size)).astype(np.float32)})
    return store
