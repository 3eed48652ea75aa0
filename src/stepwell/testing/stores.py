"""Tiny stores whose every value says where it belongs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepwell.schema import Array, Feature, Image, Schema, Text
from stepwell.store import Store, create
from stepwell.testing.codecs import FailingCodec

__all__ = ["TINY_FEATURES", "counted_value", "tiny_store"]

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
