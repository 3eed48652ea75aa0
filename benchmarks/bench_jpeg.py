"""jpeg: the loader over JPEG frames, beside bare libjpeg-turbo on the same number of threads.

Frames with the statistics of photos, quality 90, 4:2:0, batches of 64 frames in random order, one frame an anchor, so
that each side decodes each frame once. The rival calls simplejpeg for a list of frames, bytes and order at hand, into
one buffer that it uses again and again: no store, no order, no new batches. "1 thread" is the loader that builds in
the consumer; of "2 threads" each side has two that decode, while the main thread waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import simplejpeg
from datasets import jpeg_store, photo_crops, removed
from report import Row, compare
from timing import Settings, Work, time_rounds

import stepwell

__all__ = ["bare_decoding", "blobs_of", "run"]

NAME = "jpeg"
TARGET = 0.9
BATCH = 64
# enough that one turn does not go round in a cache
NUM_FRAMES = {96: 20_000, 224: 8_000}
BATCHES_A_CALL = 8


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row for each size of frames and number of threads."""
    for size, num_frames in NUM_FRAMES.items():
        frames = photo_crops(settings.sized(num_frames, 2 * BATCH), size)
        with removed(jpeg_store(settings.data / f"jpeg-{size}.well", frames)) as store:
            for threads in (1, 2):
                yield _measure(store, settings, size, threads)


def _measure(store: stepwell.Store, settings: Settings, size: int, threads: int) -> Row:
    # with one thread, nothing but the consumer
    loader = stepwell.Loader(
        store, {"image": "image"}, batch_size=BATCH, order="random", epochs=None, threads=0 if threads == 1 else threads
    )
    batches = iter(loader)
    blobs = blobs_of(store)
    _check(loader, blobs)

    def take() -> float:
        next(batches)
        return BATCH

    with ThreadPoolExecutor(threads) as pool:
        bare = bare_decoding(blobs, size, threads, pool)
        rates = time_rounds({"loader": take, "simplejpeg": bare}, settings)
    plural = "s" if threads > 1 else ""
    return compare(
        NAME,
        f"{size}x{size}, {threads} thread{plural}",
        rates,
        ours="loader",
        theirs="simplejpeg",
        unit="frames/s",
        target=TARGET,
    )


def bare_decoding(blobs: list[bytes], size: int, threads: int, pool: ThreadPoolExecutor) -> Work:
    """Return the work of decoding batches in random order, one share a thread, each into its own buffer."""
    order = itertools.cycle(np.random.default_rng(1).permutation(len(blobs)).tolist())
    buffers = [np.empty((BATCH, size, size, 3), np.uint8) for _ in range(threads)]

    def decode(chosen: list[bytes], buffer: np.ndarray) -> None:
        for number, blob in enumerate(chosen):
            simplejpeg.decode_jpeg(blob, "RGB", buffer=buffer[number % BATCH])

    def work() -> float:
        count = BATCHES_A_CALL * BATCH
        shares = [[blobs[next(order)] for _ in range(count)] for _ in range(threads)]
        if threads == 1:
            decode(shares[0], buffers[0])
        else:
            list(pool.map(decode, shares, buffers))
        return count * threads

    return work


def blobs_of(store: stepwell.Store) -> list[bytes]:
    """Return the frames of a store of one segment as they are stored."""
    (segment,) = store.segments
    offsets, data = segment.offsets_map("image"), segment.blob_map("image")
    return [bytes(data[offsets[row] : offsets[row + 1]]) for row in range(segment.num_rows)]


def _check(loader: stepwell.Loader, blobs: list[bytes]) -> None:
    """Compare frames of the loader's reader with those of the rival."""
    positions = np.arange(min(BATCH, len(blobs)))
    ours = loader.reader.read(positions)["image"]
    np.testing.assert_array_equal(ours, [simplejpeg.decode_jpeg(blobs[p], "RGB") for p in positions])
