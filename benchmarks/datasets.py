"""The stores that are measured: made with stepwell's own writer, of values that look like real ones."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import stepwell

__all__ = [
    "LOW_DIM",
    "ONE_SEGMENT",
    "column_of",
    "jpeg_store",
    "low_dim_store",
    "photo_crops",
    "recycle_pages",
    "removed",
]

# 68 + 24 + 4 + 4 + 1 bytes a step: HalfCheetah
LOW_DIM: Mapping[str, stepwell.Feature] = {
    "observation": stepwell.Array(17),
    "action": stepwell.Array(6),
    "reward": stepwell.Array(),
    "discount": stepwell.Array(),
    "terminated": stepwell.Array(dtype="bool"),
}
ONE_SEGMENT = 1 << 40
NOISE_BYTES = 64 << 20
PAGE_BYTES = 16 << 20


def low_dim_store(path: Path, num_bytes: int, features: Mapping[str, stepwell.Feature] = LOW_DIM) -> stepwell.Store:
    """Record a store of raw arrays, of episodes of uneven length.

    It is one segment, so that rivals that know nothing of segments can map the very same files, and it is cached as
    the system caches what it reads from a disk.

    Args:
        path: to make it at.
        num_bytes: of all columns together.
        features: raw ones.
    """
    rng = np.random.default_rng(0)
    step_bytes = sum(feature.row_bytes for feature in features.values())
    lengths = _episode_lengths(num_bytes // step_bytes, rng, longest=max(40, NOISE_BYTES // step_bytes))
    noise = {name: _noise(feature, int(lengths.max()), rng) for name, feature in features.items()}
    store = stepwell.create(path, stepwell.Schema(features), segment_bytes=ONE_SEGMENT)
    with store.writer() as writer:
        for number, length in enumerate(lengths.tolist()):
            # episodes begin with different values: a window of the wrong one is found out
            shift = number % (len(next(iter(noise.values()))) - length + 1)
            writer.add_episode({name: values[shift : shift + length] for name, values in noise.items()})
    store.refresh()
    _reread(store)
    return store


def jpeg_store(path: Path, frames: np.ndarray, *, repeats: int = 1) -> stepwell.Store:
    """Record frames, uint8 [n, height, width, 3], as JPEG of quality 90 and 4:2:0, in episodes of 100."""
    image = stepwell.Image(frames.shape[1:], codec="jpeg", quality=90, subsampling="420")
    store = stepwell.create(path, stepwell.Schema({"image": image}), segment_bytes=ONE_SEGMENT)
    with store.writer() as writer:
        for start in list(range(0, len(frames), 100)) * repeats:
            writer.add_episode({"image": frames[start : start + 100]})
    store.refresh()
    return store


def photo_crops(num_frames: int, size: int) -> np.ndarray:
    """Return square crops of one image with the statistics of a photo, uint8 [n, size, size, 3].

    The power of natural images falls with the frequency to about the second power (Field 1987: 1.6 to 3), and colours
    mostly vary together. At quality 90 these crops take as many bytes as those of photos: 4 KiB at 96, 16 KiB at 224.
    """
    picture, state = _photo()
    rng = np.random.default_rng()
    rng.bit_generator.state = state
    corners = rng.integers(0, len(picture) - size, size=(num_frames, 2))
    return np.stack([picture[y : y + size, x : x + size] for y, x in corners.tolist()])


@cache
def _photo() -> tuple[np.ndarray, dict[str, Any]]:
    """Return the picture, uint8 [1024, 1024, 3], and the state of the generator that drew it."""
    rng = np.random.default_rng(0)
    side = 1024
    frequency = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None])
    frequency[0, 0] = np.inf
    planes = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(4, side, side))) / frequency**1.4, s=(side, side))
    planes /= planes.std(axis=(1, 2), keepdims=True)
    picture = 128 + 55 * planes[0][..., None] + 12 * np.moveaxis(planes[1:], 0, -1)
    # in memory too: crops of planes would be stacked as planes
    picture = np.ascontiguousarray(np.clip(picture, 0, 255).astype(np.uint8))
    return picture, rng.bit_generator.state


def column_of(store: stepwell.Store, name: str) -> np.ndarray:
    """Return a raw column of a store of one segment, mapped as anyone can, every page touched: [rows, *shape]."""
    (segment,) = store.segments
    column = np.load(segment.path / f"{name}.npy", mmap_mode="r")
    column.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE].max()
    return column


def recycle_pages(directory: Path, num_bytes: int) -> None:
    """Write a file and delete it.

    A virtual machine backs a page of memory when it is first touched, which takes longer than writing to it. After
    this, new files are made of pages that were touched before, as on a machine that has run for a while.
    """
    path = directory / "pages"
    with path.open("wb") as file:
        for _ in range(0, num_bytes, PAGE_BYTES):
            file.write(bytes(PAGE_BYTES))
    path.unlink()


@contextmanager
def removed(store: stepwell.Store) -> Iterator[stepwell.Store]:
    """Lend a store and delete it afterwards."""
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(store.path)


def _reread(store: stepwell.Store) -> None:
    """Let the system forget the files of a store, and read them from the disk again as those recorded earlier.

    It caches what it reads in large pages where it can, and what is written a little at a time in small ones, which
    random windows of small features take a quarter longer to read.
    """
    for segment in store.segments:
        for path in segment.path.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                if hasattr(os, "posix_fadvise"):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                while file.read(PAGE_BYTES):
                    pass


def _noise(feature: stepwell.Feature, num_steps: int, rng: np.random.Generator) -> np.ndarray:
    shape: Any = (num_steps, *feature.shape)
    if feature.np_dtype.kind == "f":
        return rng.standard_normal(shape, dtype=np.float32).astype(feature.np_dtype)
    return rng.integers(0, 2 if feature.np_dtype.kind == "b" else 256, shape).astype(feature.np_dtype)


def _episode_lengths(num_steps: int, rng: np.random.Generator, longest: int) -> np.ndarray:
    """Return lengths of episodes with a sum of about ``num_steps``: log-normal around 1,000, as of real tasks."""
    longest = min(longest, 4000)
    median = max(20, longest // 4)
    draws = rng.lognormal(np.log(median), 0.5, size=2 * num_steps // median + 8)
    lengths = np.clip(draws.astype(np.int64), 20, longest)
    return lengths[: int(np.searchsorted(np.cumsum(lengths), num_steps)) + 1]
