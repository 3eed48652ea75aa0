"""crop_jpeg: single JPEG images of 512 x 384 through the loader, each a random resized crop to 224 x 224.

The rival decodes the same files whole, with bare simplejpeg (libjpeg-turbo) on as many threads into a buffer that it
uses again and again, and neither crops nor resizes. The loader, in random order and batches of 64, decodes what a crop
needs, cuts it out and resizes it (by area, as FFCV does; parts of 0.08 to 1 of the area, ratios of 3/4 to 4/3). A turn
of the loader is a few epochs with threads of its own: none works in the rival's turn. "tiled" files have the option
tile=32 and the same pixels; files "of any size" are the plain ones, of a feature that leaves each row its own size.

A row is the loader's ratio to the rival; the target is 1.2 times the ratio of FFCV, which was measured elsewhere and
follows from

- FFCV's rate on such images (512 x 384, quality 90, 55 KB, random order, RandomResizedCrop 224): 812 images/s with one
  worker, 1538 with two;
- bare simplejpeg on the same machine, measured at two other sizes: 213.7 us for 224 x 224 of 15.8 KiB, 1030.9 us for
  480 x 640 of 69.5 KiB with one thread, 137 and 588 us an image with two. A time of (a x pixels + b x bytes) through
  both is 0.75 ms for this size with one thread, 0.43 ms with two.

So FFCV reaches 0.61 of bare libjpeg-turbo with one worker, 0.66 with two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import simplejpeg
from datasets import ONE_SEGMENT, photo_crops, removed
from report import Row, compare
from timing import Settings, Work, time_rounds

import stepwell
from stepwell.transforms import RandomResizedCrop

__all__ = ["run"]

NAME = "crop_jpeg"
HEIGHT, WIDTH, SIZE = 384, 512, 224
BATCH, TOY_BATCH = 64, 32
NUM_IMAGES = 512
# a turn: long enough that beginning and end, when not all threads have work, hardly count
EPOCHS = 4
# photos as they come have 62 KB at quality 90
CONTRAST = 0.8
SIZED, ANY_SIZE = (HEIGHT, WIDTH, 3), (None, None, 3)
KINDS = {"plain": (SIZED, 0), "tiled": (SIZED, 32), "of any size": (ANY_SIZE, 0)}
FFCV_RATIOS = {1: 0.61, 2: 0.66}
TARGET = 1.2


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row for each kind of files and number of threads."""
    images = _images(settings.sized(NUM_IMAGES, TOY_BATCH))
    for kind, (shape, tile) in KINDS.items():
        name = f"crop-jpeg-{kind.replace(' ', '-')}.well"
        with removed(_store(settings.data / name, images, shape, tile)) as store:
            for threads in FFCV_RATIOS:
                yield _measure(store, settings, kind, threads)


def _images(num_images: int) -> np.ndarray:
    squares = photo_crops(num_images, WIDTH)[:, :HEIGHT]
    images = np.empty_like(squares)
    # one by one: all at once are many times their memory as floats
    for image, square in zip(images, squares, strict=True):
        image[...] = np.rint(128 + CONTRAST * (square.astype(np.float32) - 128))
    return images


def _store(path: Path, images: np.ndarray, shape: tuple[int | None, ...], tile: int) -> stepwell.Store:
    image = stepwell.Image(shape, codec="jpeg", quality=90, subsampling="420", tile=tile)
    store = stepwell.create(path, stepwell.Schema({"image": image}), segment_bytes=ONE_SEGMENT)
    with store.writer() as writer:
        writer.add_episode({"image": images})
    store.refresh()
    return store


def _measure(store: stepwell.Store, settings: Settings, kind: str, threads: int) -> Row:
    field = stepwell.Field("image", decoder=RandomResizedCrop(SIZE, interpolation="area"))
    batch, epochs = settings.sized(BATCH, TOY_BATCH), settings.sized(EPOCHS, 1)
    loader = stepwell.Loader(
        store, {"image": field}, batch_size=batch, order="random", epochs=epochs, threads=0 if threads == 1 else threads
    )
    _check(loader, store, batch)

    def take() -> float:
        return float(sum(len(batch["image"]) for batch in loader))

    with ThreadPoolExecutor(threads) as pool:
        rates = time_rounds({"loader": take, "simplejpeg": _bare(store, batch, threads, pool)}, settings)
    return compare(
        NAME,
        f"{WIDTH}x{HEIGHT} to {SIZE}x{SIZE}, {kind}, {threads} thread{'s' * (threads > 1)}",
        rates,
        ours="loader",
        theirs="simplejpeg",
        unit="images/s",
        target=round(TARGET * FFCV_RATIOS[threads], 3),
    )


def _bare(store: stepwell.Store, batch: int, threads: int, pool: ThreadPoolExecutor) -> Work:
    """Return the work of decoding whole images in random order, one share a thread, each into its own buffer."""
    blobs = _blobs(store)
    order = itertools.cycle(np.random.default_rng(1).permutation(len(blobs)).tolist())
    buffers = [np.empty((HEIGHT, WIDTH, 3), np.uint8) for _ in range(threads)]

    def decode(chosen: list[bytes], buffer: np.ndarray) -> None:
        for blob in chosen:
            simplejpeg.decode_jpeg(blob, "RGB", buffer=buffer)

    def work() -> float:
        shares = [[blobs[next(order)] for _ in range(batch)] for _ in range(threads)]
        list(map(decode, shares, buffers) if threads == 1 else pool.map(decode, shares, buffers))
        return batch * threads

    return work


def _blobs(store: stepwell.Store) -> list[bytes]:
    (segment,) = store.segments
    offsets, data = segment.offsets_map("image"), segment.blob_map("image")
    return [bytes(data[offsets[row] : offsets[row + 1]]) for row in range(segment.num_rows)]


def _check(loader: stepwell.Loader, store: stepwell.Store, batch: int) -> None:
    """Compare the mean colour of the crops with that of the images they were taken of."""
    images = np.stack(list(store[0]["image"]))
    crops = np.concatenate([made["image"] for made in itertools.islice(loader, len(images) // batch)])
    assert crops.shape == (len(images), SIZE, SIZE, 3)
    np.testing.assert_allclose(crops.mean(axis=(0, 1, 2)), images.mean(axis=(0, 1, 2)), atol=6)
