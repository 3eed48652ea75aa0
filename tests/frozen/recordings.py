"""Stores of which every value is a function of its step, written by public names only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import stepwell
from stepwell import Array, Bytes, Feature, Image, Schema, Store, Text, Video

FEATURES: dict[str, Feature] = {
    "key": Array((), "int64", final=True),
    "state": Array(3, "float32", names=("x", "y", "z"), final=True),
    "flag": Array((), "bool"),
    "half": Array((2, 2), "float16"),
    "record": Array((), [("a", "<i4"), ("b", "<f8")]),
    "points": Array((None, 2), "int16"),
    "text": Text(),
    "bytes": Bytes(),
    "image": Image((6, 5, 3)),
    "sizes": Image((None, None, 3)),
    "zstd": Array(3, "float64", codec="zstd", final=True),
    "zpoints": Array((None,), "int64", codec="zstd"),
    "ztext": Text(codec="zstd"),
    "lz4": Array((2, 2), "int32", codec="lz4"),
    "delta": Image((6, 5, 3), codec="delta", every=4, final=True),
    "dlz4": Image((6, 5, 1), codec="delta", compression="lz4"),
    "png": Image((5, 4, 3), codec="png", final=True),
    "png16": Image((5, 4, 1), "uint16", codec="png"),
}
LOSSY: dict[str, Feature] = {
    "jpeg": Image((16, 16, 3), codec="jpeg", quality=95, final=True),
    "tiled": Image((32, 32, 3), codec="jpeg", quality=95, tile=16),
    "video": Video((32, 32, 3), gop=3),
}
LENGTHS = (5, 1, 8, 3)


def _pixels(shape: tuple[int, ...], dtype: str, key: int) -> np.ndarray:
    return (key * 7 + np.arange(int(np.prod(shape))) * (1 + key % 3)).astype(dtype).reshape(shape)


VALUES: dict[str, Callable[[int], Any]] = {
    "key": np.int64,
    "state": lambda key: (np.arange(3) + key / 4).astype(np.float32),
    "flag": lambda key: np.bool_(key % 3 == 0),
    "half": lambda key: np.full((2, 2), key % 100 / 8, np.float16),
    "record": lambda key: np.array((key, key / 2), [("a", "<i4"), ("b", "<f8")]),
    "points": lambda key: np.full((key % 4, 2), key, np.int16),
    "text": lambda key: f"step {key} ü" * (key % 3),
    "bytes": lambda key: b"%d" % key * (key % 2),
    "image": lambda key: _pixels((6, 5, 3), "uint8", key),
    "sizes": lambda key: np.full((2 + key % 3, 3 + key % 2, 3), key % 256, np.uint8),
    "zstd": lambda key: np.arange(3) + key / 4,
    "zpoints": lambda key: np.arange(key % 3, dtype=np.int64) + key,
    "ztext": lambda key: f"step {key} ü" * (key % 3),
    "lz4": lambda key: np.full((2, 2), key, np.int32),
    "delta": lambda key: _pixels((6, 5, 3), "uint8", key),
    "dlz4": lambda key: _pixels((6, 5, 1), "uint8", key),
    "png": lambda key: _pixels((5, 4, 3), "uint8", key),
    "png16": lambda key: _pixels((5, 4, 1), "uint16", key),
    "jpeg": lambda key: np.full((16, 16, 3), 20 + key * 5 % 11 * 20, np.uint8),
    "tiled": lambda key: np.full((32, 32, 3), 20 + key * 5 % 11 * 20, np.uint8),
    "video": lambda key: np.full((32, 32, 3), 20 + key * 5 % 11 * 20, np.uint8),
}


def step(names: Any, key: int) -> dict[str, Any]:
    return {name: VALUES[name](key) for name in names}


def record(
    store: Store, *, first: int = 0, lengths: tuple[int, ...] = LENGTHS, by_step: bool = True, **options: Any
) -> None:
    """Record episodes whose keys are ``100 * episode + t``; every other one has a final row."""
    assert store.schema is not None
    names = list(store.schema)
    finals = [name for name in names if store.schema[name].final]
    with store.writer(**options) as writer:
        for number, length in enumerate(lengths, first):
            ending: dict[str, Any] = {
                "terminated": number % 2 == 0,
                "truncated": number % 2 == 1,
                "task": f"task {number}",
            }
            final = step(finals, 100 * number + length) if number % 2 == 0 else {}
            rows = [step(names, 100 * number + t) for t in range(length)]
            if by_step:
                for row in rows:
                    writer.append(row)
                writer.end_episode(final=final or None, **ending)
                continue
            columns = {name: [row[name] for row in rows] for name in names}
            for name in final:
                columns[name].append(final[name])
            writer.add_episode(columns, **ending)


def make(path: Path, features: dict[str, Feature] = FEATURES, **options: Any) -> Store:
    return stepwell.create(path, Schema(features), fps=10, metadata={"robot": "frozen"}, **options)
