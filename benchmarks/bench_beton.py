"""beton: epochs of a .beton file in place, beside the real FFCV reading the same file.

JPEG and raw images of 256 x 256 in random order, in batches of 64, two threads each; arrays of (16, 10) float32 in
batches of 256 in every order (pooled beside FFCV's quasi-random one), where FFCV decodes in one thread and so does the
loader. All decode JPEG by libjpeg-turbo's fast transform. A turn is a whole epoch (of arrays a few), since both sides
read ahead of a batch; FFCV compiles in an epoch before. FFCV lives in an interpreter of its own, which the environment
variable STEPWELL_FFCV_PYTHON names: `make test-interop-ffcv-ready` makes one. The bare rivals, simplejpeg on as many
threads and `numpy.take`, have what they read in memory already, and write to the same buffer again and again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from asked import Asked, asked
from datasets import photo_crops
from report import Row, compare, skipped
from timing import Rates, Settings, Work, time_rounds

import stepwell
from stepwell.beton import BetonFile
from stepwell.ffcv.fields import IntField, NDArrayField, RGBImageField
from stepwell.ffcv.writer import DatasetWriter
from stepwell.formats.cache import open_in_place

__all__ = ["FFCV", "run"]

NAME = "beton"
FFCV = "STEPWELL_FFCV_PYTHON"
SIDE, SHAPE = 256, (16, 10)
NUM_IMAGES, NUM_ARRAYS = 4000, 200_000
IMAGE_BATCH, ARRAY_BATCH = 64, 256
THREADS = 2
ARRAY_EPOCHS = 3
JPEGS, RAW = "JPEG 256x256, 2 threads", "raw 256x256, 2 threads"
# by case: our order, FFCV's, the ratio to reach
CASES = {
    JPEGS: ("random", "RANDOM", 1.0),
    RAW: ("random", "RANDOM", 1.0),
    "(16, 10) float32": ("random", "RANDOM", 2.0),
    "(16, 10) float32, sequential": ("sequential", "SEQUENTIAL", 1.0),
    "(16, 10) float32, pooled": ("pooled", "QUASI_RANDOM", 1.0),
}
ARRAYS = tuple(case for case in CASES if case not in (JPEGS, RAW))
PAGE_BYTES = 8 << 20


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row for each kind of samples and rival."""
    os.environ["STEPWELL_CACHE"] = str(settings.data / "cache")
    with ffcv() as rival:
        for case in (JPEGS, RAW):
            yield from _measure_images(settings, rival, case)
        yield from _measure_arrays(settings, rival)


def _measure_images(settings: Settings, rival: Ffcv | None, case: str) -> Iterator[Row]:
    path = settings.data / "images.beton"
    images = photo_crops(settings.sized(NUM_IMAGES, 2 * IMAGE_BATCH), SIDE)
    field = RGBImageField(write_mode="jpg" if case == JPEGS else "raw")
    _write(path, {"image": field}, images)
    with ThreadPoolExecutor(THREADS) as pool:
        bare = {"simplejpeg": _bare_decoding(path, pool)} if case == JPEGS else {}
        rates = _rates(settings, rival, path, case, bare)
    yield from _rows(case, rates, list(bare), rival)
    path.unlink()


def _measure_arrays(settings: Settings, rival: Ffcv | None) -> Iterator[Row]:
    path = settings.data / "arrays.beton"
    number = settings.sized(NUM_ARRAYS, 4 * ARRAY_BATCH)
    arrays = np.random.default_rng(0).normal(size=(number, *SHAPE)).astype(np.float32)
    _write(path, {"array": NDArrayField(arrays.dtype, SHAPE)}, arrays)
    for case in ARRAYS:
        bare = {"numpy.take": _bare_taking(arrays)} if CASES[case][0] == "random" else {}
        rates = _rates(settings, rival, path, case, bare)
        yield from _rows(case, rates, list(bare), rival)
    path.unlink()


def _write(path: Path, fields: Mapping[str, Any], values: np.ndarray) -> None:
    samples = [(value, number) for number, value in enumerate(values)]
    DatasetWriter(str(path), {**fields, "label": IntField()}, page_size=PAGE_BYTES).from_indexed_dataset(samples)


def _rates(settings: Settings, rival: Ffcv | None, path: Path, case: str, bare: Mapping[str, Work]) -> Rates:
    order, theirs, _ = CASES[case]
    is_image = case not in ARRAYS
    key, batch_size, threads = ("image", IMAGE_BATCH, THREADS) if is_image else ("array", ARRAY_BATCH, 0)
    loader = stepwell.Loader(open_in_place(path), {key: key}, batch_size=batch_size, order=order, threads=threads)
    epochs = 1 if is_image else ARRAY_EPOCHS
    contenders: dict[str, Work] = {"loader": lambda: sum(len(batch[key]) for _ in range(epochs) for batch in loader)}
    if rival is not None:
        rival.check(path, key, loader.reader.read(np.arange(batch_size))[key], settings.data / "first.npy")
        opened = {"path": str(path), "field": key, "order": theirs, "batch_size": batch_size}
        rival.ask("open", **opened, workers=max(threads, 1))
        contenders["ffcv"] = lambda: rival.ask("epochs", count=epochs)["count"]
    return time_rounds({**contenders, **bare}, settings, before=lambda: None)


def _rows(case: str, rates: Rates, bare: list[str], rival: Ffcv | None) -> Iterator[Row]:
    for name in bare:
        yield compare(NAME, case, rates, ours="loader", theirs=name, unit="samples/s")
    if rival is None:
        yield from skipped(NAME, "ffcv", case)
        return
    yield compare(NAME, case, rates, ours="loader", theirs="ffcv", unit="samples/s", target=CASES[case][2])
    for name in bare:
        yield compare(NAME, f"{case}: FFCV", rates, ours="ffcv", theirs=name, unit="samples/s")


def _bare_decoding(path: Path, pool: ThreadPoolExecutor) -> Work:
    """Return the work of decoding all images in random order, a share a thread, into a buffer of each."""
    file = BetonFile(path)
    places = zip(*(part.tolist() for part in file.spans("image", file.rows())), strict=True)
    blobs = [file.read(offset, size) for offset, size in places]
    shares = np.array_split(np.random.default_rng(1).permutation(len(blobs)), THREADS)
    buffers = [np.empty((IMAGE_BATCH, SIDE, SIDE, 3), np.uint8) for _ in shares]

    def decode(share: np.ndarray, buffer: np.ndarray) -> None:
        for number, place in enumerate(share.tolist()):
            simplejpeg.decode_jpeg(blobs[place], "RGB", fastdct=True, buffer=buffer[number % IMAGE_BATCH])

    def work() -> float:
        list(pool.map(decode, shares, buffers))
        return len(blobs)

    return work


def _bare_taking(arrays: np.ndarray) -> Work:
    """Return the work of taking all arrays in random order, a batch a call, into one buffer."""
    order = np.random.default_rng(1).permutation(len(arrays))
    batches = [order[start : start + ARRAY_BATCH] for start in range(0, len(order) - ARRAY_BATCH + 1, ARRAY_BATCH)]
    buffer = np.empty((ARRAY_BATCH, *SHAPE), np.float32)

    def work() -> float:
        for batch in batches:
            np.take(arrays, batch, axis=0, out=buffer, mode="clip")
        return len(batches) * ARRAY_BATCH

    return work


class Ffcv:
    """A process that has FFCV, see ffcv_child.py."""

    def __init__(self, process: Asked) -> None:
        self.ask = process.ask

    def check(self, path: Path, field: str, ours: np.ndarray, file: Path) -> None:
        """Compare the first samples of a file with ours.

        Raises:
            AssertionError: they differ.
        """
        self.ask("open", path=str(path), field=field, order="SEQUENTIAL", batch_size=len(ours), workers=1)
        self.ask("first", path=str(file))
        np.testing.assert_array_equal(np.load(file), ours)


@contextmanager
def ffcv() -> Iterator[Ffcv | None]:
    """Lend the rival; None where `FFCV` names no interpreter."""
    python = os.environ.get(FFCV)
    if python is None:
        yield None
        return
    # numba's threads are FFCV's workers
    variables = {"NUMBA_NUM_THREADS": str(THREADS)}
    with asked(python, "ffcv_child.py", "ffcv", variables=variables) as process:
        yield Ffcv(process)
