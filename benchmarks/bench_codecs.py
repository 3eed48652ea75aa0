"""codecs: a camera by every codec for it: bytes, PSNR, and rows in sequence and at random, beside JPEG.

A camera that pans over a photo, with the noise of a sensor (`videos.pan_frames`): 240 steps of 224 x 224, one episode.
Each codec has a store of its own. Rows are read by `WindowReader`, as in a loader of one thread: all steps in order, a
step each, in batches of 60; and windows of two steps (-1, 0) at random, each read by itself, so that no two share what
is decoded for them. In sequence each row is decoded once, as by a pooled order.

Bytes are those of the column's files; `ratio` is JPEG's bytes over theirs. PSNR is that of all rows together, infinite
where nothing is lost (given as 99 dB); it is a figure, not a speed, and its `ratio` is ours over JPEG's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from report import Row, compare, within
from timing import Settings, Work, memcpy_gb_per_s, time_rounds
from videos import FPS, pan_frames

import stepwell
from stepwell.windows import View, WindowReader

__all__ = ["run"]

NAME = "codecs"
JPEG, RIVAL = "jpeg", "jpeg, quality 90"
NUM_STEPS, SIZE = 240, 224
BATCH, NUM_WINDOWS = 60, 8
# what PSNR is given as where nothing is lost, since JSON has no infinity
EXACT_DB = 99.0
SHAPE = (SIZE, SIZE, 3)
FEATURES: Mapping[str, stepwell.Feature] = {
    JPEG: stepwell.Image(SHAPE, codec="jpeg", quality=90),
    "h264, gop 2": stepwell.Video(SHAPE, gop=2),
    "h264, gop 10": stepwell.Video(SHAPE, gop=10),
    "h264, gop 30": stepwell.Video(SHAPE, gop=30),
    "hevc, gop 30": stepwell.Video(SHAPE, encoder="hevc", gop=30),
    "av1, gop 2": stepwell.Video(SHAPE, encoder="av1", gop=2),
    "av1, gop 30": stepwell.Video(SHAPE, encoder="av1", gop=30),
    "png": stepwell.Image(SHAPE, codec="png"),
}


def run(settings: Settings) -> Iterator[Row]:
    """Yield for each codec the rows of bytes and PSNR, then those of speeds."""
    frames = np.stack(list(pan_frames(settings.sized(NUM_STEPS, BATCH), SIZE)))
    stores: dict[str, stepwell.Store] = {}
    for name, feature in FEATURES.items():
        try:
            stores[name] = _store(settings, name, feature, frames)
        except stepwell.MissingDependencyError as error:
            yield Row(bench=NAME, case=name, rival=RIVAL, skipped=str(error))
    if JPEG in stores:
        yield from _sizes(stores, frames, memcpy_gb_per_s(settings))
        yield from _speeds(stores, settings)


def _store(settings: Settings, name: str, feature: stepwell.Feature, frames: np.ndarray) -> stepwell.Store:
    store = stepwell.create(settings.data / f"{name.replace(', ', '-').replace(' ', '')}.well", {"x": feature}, fps=FPS)
    with store.writer() as writer:
        writer.add_episode({"x": frames})
    store.refresh()
    return store


def _sizes(stores: Mapping[str, stepwell.Store], frames: np.ndarray, memcpy: float) -> Iterator[Row]:
    sizes = {name: _bytes_a_row(store) for name, store in stores.items()}
    quality = {name: _decibels(store, frames) for name, store in stores.items()}
    for name in stores:
        bytes_row = within(NAME, f"{name}, bytes a row", RIVAL, [sizes[name]], sizes[JPEG], unit="bytes")
        yield replace(bytes_row, memcpy_gb_per_s=memcpy)
        psnr = within(NAME, f"{name}, PSNR", RIVAL, [quality[name]], quality[JPEG], unit="dB")
        yield replace(psnr, ratio=quality[name] / quality[JPEG], memcpy_gb_per_s=memcpy)


def _speeds(stores: Mapping[str, stepwell.Store], settings: Settings) -> Iterator[Row]:
    for action, make_work in {"in sequence": _in_sequence, "2 steps at random": _at_random}.items():
        rates = time_rounds({name: make_work(store) for name, store in stores.items()}, settings)
        for name in (name for name in stores if name != JPEG):
            yield replace(compare(NAME, f"{name}, {action}", rates, ours=name, theirs=JPEG, unit="rows/s"), rival=RIVAL)


def _bytes_a_row(store: stepwell.Store) -> float:
    files = [segment.path / f"x.{suffix}" for segment in store.segments for suffix in ("npy", "bin")]
    return sum(file.stat().st_size for file in files) / store.num_steps


def _decibels(store: stepwell.Store, frames: np.ndarray) -> float:
    error = float(np.mean((store[0]["x"].astype(np.float32) - frames) ** 2, dtype=np.float64))
    return 10 * float(np.log10(255**2 / error)) if error else EXACT_DB


def _in_sequence(store: stepwell.Store) -> Work:
    reader = WindowReader(View(store), {"x": 0})
    starts = itertools.cycle(range(0, store.num_steps, BATCH))

    def work() -> float:
        start = next(starts)
        return float(len(reader.read(np.arange(start, start + BATCH))["x"]))

    return work


def _at_random(store: stepwell.Store) -> Work:
    reader = WindowReader(View(store), {"x": [-1, 0]})
    rng = np.random.default_rng(0)

    def work() -> float:
        for anchor in rng.integers(1, store.num_steps, NUM_WINDOWS):
            reader.read(np.array([anchor]))
        return 2.0 * NUM_WINDOWS

    return work
