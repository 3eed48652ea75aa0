"""Tiny stores whose every value says where it belongs."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.schema import Array, Feature, Image, Schema, Text
from stepwell.store import Store, create
from stepwell.testing.codecs import FailingCodec

__all__ = ["TINY_FEATURES", "counted_value", "random_array", "smooth_image", "tiny_store"]

TINY_FEATURES: dict[str, Feature] = {
    "observation.image": Image((16, 16, 3), final=True),
    "observation.state": Array(2, final=True),
    "action": Array(2),
    "reward": Array(),
    "task": Text(),
}


def counted_value(feature: Feature, episode: int, step: int) -> Any:
    """Return the value that `tiny_store` stores: every element is ``100 * episode + step``, as far as its dtype goes.

    Text and bytes say "episode:step"; arrays whose first dimension varies have ``step % 4`` entries.

    Example:
        >>> counted_value(Array(2), episode=3, step=7), counted_value(Text(), episode=3, step=7)
        (array([307., 307.], dtype=float32), '3:7')
    """
    if feature.kind in ("text", "bytes"):
        text = f"{episode}:{step}"
        return text if feature.kind == "text" else text.encode()
    shape = tuple(step % 4 if size is None else size for size in feature.shape)
    return np.full(shape, 100 * episode + step).astype(feature.np_dtype)


def tiny_store(
    path: str | os.PathLike[str],
    lengths: Sequence[int] = (5, 3, 8),
    *,
    schema: Schema | Mapping[str, Feature] | None = None,
    fps: float | None = 10.0,
    final: bool = True,
    segment_bytes: int = 256 << 20,
) -> Store:
    """Record a small store; episode e, step t holds `counted_value` of (e, t) in every feature.

    Args:
        path: of the directory to make, e.g. pytest's ``tmp_path / "tiny.well"``.
        lengths: steps of each episode, at most 99.
        schema: features; default `TINY_FEATURES`.
        fps: steps a second.
        final: give every episode a final row, counted as one step more, where the schema has a feature for it.
        segment_bytes: see `stepwell.create`; 1 makes a segment of every episode.

    Returns:
        The store, refreshed. Of every three episodes the first is terminated and the second truncated; the metadata of
        episode e is ``{"number": e}``.

    Raises:
        StoreExistsError: something is at the path already.

    Example:
        >>> import tempfile
        >>> store = tiny_store(f"{tempfile.mkdtemp()}/tiny.well")
        >>> len(store), store[2]["reward"].tolist()
        (3, [200.0, 201.0, 202.0, 203.0, 204.0, 205.0, 206.0, 207.0])
    """
    features = Schema(TINY_FEATURES if schema is None else schema)
    store = create(path, features, fps=fps, segment_bytes=segment_bytes)
    with FailingCodec.disarmed(), store.writer() as writer:
        for episode, length in enumerate(lengths):
            for step in range(length):
                writer.append({name: counted_value(feature, episode, step) for name, feature in features.items()})
            last = {name: counted_value(features[name], episode, length) for name in features.final_names}
            writer.end_episode(
                terminated=episode % 3 == 0,
                truncated=episode % 3 == 1,
                final=last if final and last else None,
                number=episode,
            )
    store.refresh()
    return store


def random_array(feature: Feature, seed: int, *, size: int = 3, finite: bool = False) -> npt.NDArray[Any]:
    """Return an array of a feature's dtype and shape.

    Args:
        feature: an array or an image.
        seed: equal seeds give equal arrays.
        size: the first dimension, where it varies from step to step. Images of any size have sides of 1 to 9.
        finite: keep floats finite and small. Default: any bits, NaN and infinities among them, so compare bytes.

    Example:
        >>> from stepwell.schema import Array
        >>> random_array(Array((None, 2)), seed=0, size=4).shape
        (4, 2)
    """
    rng, dtype = np.random.default_rng(seed), feature.np_dtype
    shape = _shape(feature, size, rng)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind == "U":
        return rng.integers(0, 10**6, shape).astype(dtype)
    if finite and dtype.kind in "fc":
        return rng.normal(size=shape).astype(dtype)
    return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape).copy()


def smooth_image(feature: Feature, seed: int) -> npt.NDArray[Any]:
    """Return an image of slow waves and a little noise, of an integer or float feature; of any size, sides of 1 to 63.

    Args:
        feature: height x width or height x width x channels.
        seed: equal seeds give equal images.
    """
    rng = np.random.default_rng(seed)
    shape = _shape(feature, 0, rng, most=63)
    y, x = np.mgrid[: shape[0], : shape[1]]
    phases = rng.uniform(0, 2 * math.pi, 2)
    wave = (np.sin(x / 17 + phases[0]) + np.cos(y / 13 + phases[1]) + 2) / 4
    image = np.broadcast_to(wave.reshape(*wave.shape, *[1] * (len(shape) - 2)), shape) * 0.9
    image = image + rng.uniform(0, 0.01, shape)
    most = np.iinfo(feature.np_dtype).max if feature.np_dtype.kind in "iu" else 1
    return (image * most).astype(feature.np_dtype)


def _shape(feature: Feature, size: int, rng: np.random.Generator, most: int = 9) -> tuple[int, ...]:
    """Return a shape that a step may have: sides of images of any size are drawn, other first dimensions are given."""
    if feature.is_image_of_any_size:
        height, width = rng.integers(1, most + 1, 2).tolist()
        return height, width, *(int(axis or 0) for axis in feature.shape[2:])
    return tuple(size if axis is None else axis for axis in feature.shape)
