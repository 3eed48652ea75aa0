"""rates: windows of a feature with a rate of its own, beside windows of as many steps of a raw one, and a copy.

One thread, stores that are cached, random anchors, the batch's memory reused, the processor's time of the thread. Both
readers copy a window by one memcpy; what a rate costs beside it is the search for times. Points of another rate are
measured, too, beside the same raw windows.
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
from stepwell import Array, Field, Samples
from stepwell.windows import WindowReader, aligned_empty

__all__ = ["run"]

NAME = "rates"
FPS, RATE, STEPS = 30, 150, 600
BATCH = 256
# values of a sample, and seconds of a window
CASES = ((3, 0.5), (16, 0.5), (16, 2.0))


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row a case and contender."""
    for size, seconds in CASES:
        num_episodes = settings.sized(100, 2)
        with (
            removed(_rated(settings, size, num_episodes)) as rated,
            removed(_raw(settings, size, num_episodes)) as raw,
        ):
            yield from _measure(rated, raw, settings, size, seconds)


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
