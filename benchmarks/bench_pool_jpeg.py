"""pool_jpeg: an epoch of windows of 4 JPEG frames in a pooled order, beside decoding per sample and bare libjpeg-turbo.

Frames of 224 x 224 with the statistics of photos, quality 90, 4:2:0, in episodes of 100; batches of 64 windows of 4
steps, two threads, a pool of a sixth of the decoded frames. "random" is the same loader on the same threads in an
order without a pool, so that each window decodes its four frames, as FFCV does. "simplejpeg" are two bare threads that
decode frames into one buffer each: a frame counts once for the loader, however many windows show it, so that the ratio
says how much of what two cores can decode ends up in batches. Single frames are in the same two orders: windows share
nothing there, and a pool would cost a copy.

Each turn of a loader is a whole epoch of a new one, from the first row decoded to the last batch and in memory that is
touched for the first time, so that nothing is built ahead in another's turn; that of "random" is over some of the
episodes, or it would take four times as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from bench_jpeg import bare_decoding, blobs_of
from datasets import jpeg_store, photo_crops, removed
from report import Row, compare
from timing import Settings, time_rounds

import stepwell
from stepwell.order import pooled

__all__ = ["run"]

NAME = "pool_jpeg"
SIZE, BATCH, THREADS = 224, 64, 2
WINDOW, SINGLE = range(4), range(1)
FRAME_BYTES = SIZE * SIZE * 3
# the store has each of them twice
NUM_FRAMES = 8_000
# the pool holds this share of the frames
SHARE = 6
# a block is an episode
BLOCK_FRAMES = 102
# of which "random" reads an epoch
SAMPLED_EPISODES = 80


def run(settings: Settings) -> Iterator[Row]:
    """Yield the row of decoding per sample, that of bare decoding, and that of single frames."""
    frames = photo_crops(settings.sized(NUM_FRAMES, 100), SIZE)
    with removed(jpeg_store(settings.data / "pool-jpeg.well", frames, repeats=2)) as store:
        del frames
        _check(store)
        sampled = stepwell.View(store).select(range(min(SAMPLED_EPISODES, store.num_episodes)))
        with_pool = _order(store)

        def run_epoch(view: stepwell.View, order: str | stepwell.order.Order, window: range = WINDOW) -> float:
            return float(sum(len(batch["image"]) for batch in _loader(view, order, window)))

        with ThreadPoolExecutor(THREADS) as pool:
            contenders = {
                "pooled": lambda: run_epoch(stepwell.View(store), with_pool),
                "random": lambda: run_epoch(sampled, "random"),
                "single pooled": lambda: run_epoch(stepwell.View(store), with_pool, SINGLE),
                "single random": lambda: run_epoch(stepwell.View(store), "random", SINGLE),
                "simplejpeg": bare_decoding(blobs_of(store), SIZE, THREADS, pool),
            }
            rates = time_rounds(contenders, settings)
    case = f"{len(WINDOW)} steps of {SIZE}x{SIZE}, {THREADS} threads"
    yield compare(NAME, f"{case}, windows", rates, ours="pooled", theirs="random", unit="windows/s", target=3.0)
    yield compare(
        NAME, f"{case}, distinct frames", rates, ours="pooled", theirs="simplejpeg", unit="frames/s", target=0.85
    )
    case = f"single frames of {SIZE}x{SIZE}, {THREADS} threads, pooled"
    yield compare(NAME, case, rates, ours="single pooled", theirs="single random", unit="frames/s", target=1.0)


def _order(store: stepwell.Store) -> stepwell.order.Pooled:
    num_bytes = store.num_steps // SHARE * FRAME_BYTES
    return pooled(num_bytes, blocks=max(4, num_bytes // (BLOCK_FRAMES * FRAME_BYTES)))


def _loader(view: stepwell.View, order: str | stepwell.order.Order, window: range) -> stepwell.Loader:
    fields = {"image": stepwell.Field("image", window)}
    return stepwell.Loader(view, fields, batch_size=BATCH, order=order, threads=THREADS)


def _check(store: stepwell.Store) -> None:
    """Compare batches of the pooled loader with plain reads of the same anchors."""
    loader = _loader(stepwell.View(store), _order(store), WINDOW)
    order = _order(store).bind(loader.reader.index)
    for number, batch in enumerate(itertools.islice(loader, 3)):
        plain = loader.reader.read(order.positions(0, BATCH * number, BATCH))
        np.testing.assert_array_equal(batch["image"], plain["image"])
