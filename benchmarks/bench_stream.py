"""stream: an epoch over files that are not cached, as those of a store much larger than memory, beside the bare disk.

Before each turn the system forgets the store's files (checked by ``mincore``), and each turn is one whole epoch of a
new loader: windows of 2 steps, batches of 64, a pooled order with ``page_cache=False``. Rates are bytes of the files a
second, each counted once, also where two windows show a row, or two blocks carry it.

"pread" reads the very same files from front to back, 1 MiB at a time: what the disk gives to a program that needs no
order. "cached" is the same loader over files that are all cached: what decoding costs where nothing waits for a disk.
"maps" are random windows through the page cache of files that are not cached and not expected to fit, two threads,
each batch announced to the system before it is read; a few of them, counted in windows, or they would take minutes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from datasets import LOW_DIM, jpeg_store, low_dim_store, photo_crops, removed
from page_cache import cached_bytes, can_forget, forget, row_files
from report import Row, compare
from timing import Rates, Settings, Work, time_rounds

import stepwell
from stepwell.order import pooled
from stepwell.windows import WindowReader

__all__ = ["run"]

NAME = "stream"
IMAGES: Mapping[str, stepwell.Feature] = {"image": stepwell.Array((96, 96, 3), dtype="uint8"), **LOW_DIM}
BATCH = 64
# of the decoded rows, which the pool holds
SHARE = 4
READ_BYTES = 1 << 20
MAPS_THREADS = 2
MAPS_BATCHES = 100
# of the files: headers and offsets of rows are read through the page cache
MOST_CACHED = 0.02
LEAST_CACHED_BYTES = 1 << 20


def run(settings: Settings) -> Iterator[Row]:
    """Yield rows of raw images with small features, and of JPEG images."""
    if not can_forget():
        yield Row(bench=NAME, case="cold files", rival="pread", skipped="the system cannot be told to forget files")
        return
    with removed(low_dim_store(settings.data / "stream.well", settings.store_bytes, IMAGES)) as store:
        num_bytes, windows = _file_bytes(row_files(store)), store.num_steps
        pool_bytes = num_bytes // SHARE
        rates = _time_raw(store, pool_bytes, settings)
    case = f"96x96 raw and {len(LOW_DIM)} small features, {num_bytes >> 20} MiB, pool {pool_bytes >> 20} MiB"
    yield compare(NAME, case, rates, ours="stepwell", theirs="pread", unit="GB/s", target=0.8)
    rates = Rates({**rates.by_name, "stepwell": rates.by_name["stepwell"] * 1e9 / num_bytes * windows})
    yield compare(NAME, f"{case}, windows", rates, ours="stepwell", theirs="maps", unit="windows/s")
    frames = photo_crops(settings.sized(4_000, 100), 224)
    with removed(jpeg_store(settings.data / "stream-jpeg.well", frames, repeats=settings.sized(2, 1))) as store:
        pool_bytes = store.num_steps * frames[0].nbytes // SHARE
        del frames
        rates = _time_jpeg(store, pool_bytes, settings)
    for rival, target in (("pread", None), ("cached", 0.9)):
        yield compare(NAME, "224x224 JPEG", rates, ours="stepwell", theirs=rival, unit="GB/s", target=target)


def _time_raw(store: stepwell.Store, pool_bytes: int, settings: Settings) -> Rates:
    files = row_files(store)
    num_bytes = _file_bytes(files)
    _check(store, pool_bytes)

    def stream() -> float:
        _run_epoch(store, pool_bytes)
        _check_cached(files)
        return num_bytes / 1e9

    with ThreadPoolExecutor(MAPS_THREADS) as threads:
        contenders = {
            "stepwell": stream,
            "pread": _reading(files),
            "maps": _mapped(store, settings.sized(MAPS_BATCHES, 4), threads),
        }
        return time_rounds(contenders, settings, before=lambda: forget(files))


def _time_jpeg(store: stepwell.Store, pool_bytes: int, settings: Settings) -> Rates:
    files = row_files(store)
    num_bytes = _file_bytes(files)
    read = _reading(files)

    def stream() -> float:
        _run_epoch(store, pool_bytes)
        _check_cached(files)
        return num_bytes / 1e9

    def cached() -> float:
        _run_epoch(store, pool_bytes, page_cache=True)
        return num_bytes / 1e9

    cold = time_rounds({"stepwell": stream, "pread": read}, settings, before=lambda: forget(files))
    warm = time_rounds({"cached": cached}, settings, before=read)
    return Rates({**cold.by_name, "cached": warm.by_name["cached"]})


def _run_epoch(store: stepwell.Store, pool_bytes: int, *, page_cache: bool = False) -> None:
    loader = _loader(store, pool_bytes, page_cache)
    key = next(iter(store.schema))
    num_windows = sum(len(batch[key]) for batch in loader)
    if num_windows != store.num_steps:
        raise RuntimeError(f"{num_windows} windows of {store.num_steps}.")


def _loader(store: stepwell.Store, pool_bytes: int, page_cache: bool) -> stepwell.Loader:
    return stepwell.Loader(store, _fields(store), batch_size=BATCH, order=pooled(pool_bytes), page_cache=page_cache)


def _fields(store: stepwell.Store) -> dict[str, Any]:
    return dict.fromkeys(store.schema, range(-1, 1))


def _reading(files: list[Path]) -> Work:
    """Return the work of reading files from front to back, in GB."""
    memory = memoryview(bytearray(READ_BYTES))

    def read_all() -> float:
        done = 0
        for path in files:
            descriptor = os.open(path, os.O_RDONLY)
            position = 0
            while count := os.preadv(descriptor, [memory], position):
                position += count
            os.close(descriptor)
            done += position
        return done / 1e9

    return read_all


def _mapped(store: stepwell.Store, num_batches: int, threads: ThreadPoolExecutor) -> Work:
    """Return the work of reading random batches of windows through maps of files that do not fit, in windows."""
    rng = np.random.default_rng(0)

    def read_random() -> float:
        reader = WindowReader(stepwell.View(store), _fields(store), memory_bytes=1)
        positions = rng.integers(0, reader.index.num_anchors, (num_batches, BATCH))
        for _ in threads.map(reader.read, positions):
            pass
        return float(positions.size)

    return read_random


def _file_bytes(files: list[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _check(store: stepwell.Store, pool_bytes: int) -> None:
    """Compare batches with plain reads of the same anchors."""
    loader = _loader(store, pool_bytes, False)
    reader = WindowReader(stepwell.View(store), _fields(store))
    order = loader.order.bind(reader.index)
    with iter(loader) as batches:
        for number in range(math.ceil(min(10 * BATCH, order.num_positions) / BATCH)):
            batch, plain = next(batches), reader.read(order.positions(0, BATCH * number, BATCH))
            for key, values in plain.items():
                np.testing.assert_array_equal(batch[key], values)


def _check_cached(files: list[Path]) -> None:
    """See that an epoch past the page cache has left nearly nothing in it."""
    most = max(MOST_CACHED * _file_bytes(files), LEAST_CACHED_BYTES)
    if (found := cached_bytes(files)) > most:
        raise RuntimeError(f"{found:,} bytes of the store are cached, more than {most:,.0f}.")
