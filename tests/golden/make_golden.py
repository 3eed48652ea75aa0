"""Writes the golden store of the current format version: `python tests/golden/make_golden.py DIRECTORY`.

Run once for each format version; what it wrote is committed and must stay readable for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from stepwell.schema import Array, Bytes, Image, Schema, Text
from stepwell.store import create

SCHEMA = Schema(
    {
        "observation.image": Image((16, 24, 3), codec="png", final=True),
        "observation.camera": Image((16, 24, 3), codec="jpeg", quality=90, final=True),
        "observation.depth": Image((16, 24), "uint16", codec="zstd", final=True),
        "observation.state": Array(3, "float32", names=("x", "y", "angle"), final=True),
        "action": Array(2, "float64"),
        "reward": Array((), "float32"),
        "contact": Array((), "bool"),
        "points": Array((None, 3), "int16"),
        "language": Text(),
        "packet": Bytes(codec="zstd"),
    }
)
LENGTHS = (5, 1, 8)


def frame(episode: int, t: int) -> np.ndarray:
    y, x = np.mgrid[0:16, 0:24]
    return np.stack([x * 10 + t, y * 15 + episode, (x + y) * 3 + t], axis=-1).astype(np.uint8)


def step(episode: int, t: int) -> dict[str, Any]:
    key = 100 * episode + t
    return {
        "observation.image": frame(episode, t),
        "observation.camera": frame(episode, t),
        "observation.depth": (frame(episode, t)[..., 0].astype(np.uint16) << 4) + key,
        "observation.state": np.array([key, -key, key / 8], np.float32),
        "action": np.array([key, key + 0.5]),
        "reward": np.float32(key / 4),
        "contact": t % 2 == 0,
        "points": np.arange(3 * (t % 4), dtype=np.int16).reshape(-1, 3) + key,
        "language": f"pick up the cube {episode}, Schritt {t} ü",
        "packet": bytes([episode, t]) * (7 * t),
    }


def episodes() -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield (episode, length, how it ended)."""
    for episode, length in enumerate(LENGTHS):
        ending = {"terminated": episode != 1, "truncated": episode == 1, "task": f"task {episode}", "seed": episode}
        yield episode, length, ending


def main() -> None:
    store = create(sys.argv[1], SCHEMA, fps=10, metadata={"robot": "golden"}, segment_bytes=10_000)
    with store.writer() as out:
        for episode, length, ending in episodes():
            for t in range(length):
                out.append(step(episode, t))
            final = {name: value for name, value in step(episode, length).items() if name.startswith("observation")}
            out.end_episode(final=final if episode != 2 else None, **ending)
        out.append(step(9, 0))
        out.discard_episode()


if __name__ == "__main__":
    main()
