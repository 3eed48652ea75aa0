"""Data sets for the parallel recording; a module of its own, so that spawned workers can import them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from stepwell import Array, Bytes, Image, Schema, Text
from stepwell.recorders import EpisodeData

SCHEMA = Schema(
    {
        "observation.image": Image((16, 16, 3), codec="png", final=True),
        "observation.points": Array((None, 2), "float32", final=True),
        "action": Array(2, "float32"),
        "task": Text(),
        "blob": Bytes(),
    }
)

MARKED = Schema({"action": Array(2, "float32"), "note": Text()})


def rich_episode(index: int) -> EpisodeData:
    """Images, ragged arrays, texts and bytes, and a final observation."""
    rng = np.random.default_rng(index)
    length = 1 + index % 5
    columns = {
        "observation": {
            "image": rng.integers(0, 255, (length + 1, 16, 16, 3), dtype=np.uint8),
            "points": [rng.random((rng.integers(0, 4), 2), dtype=np.float32) for _ in range(length + 1)],
        },
        "action": rng.random((length, 2), dtype=np.float32),
        "task": ["push" * (t % 3) for t in range(length)],
        "blob": [bytes([t, index]) for t in range(length)],
    }
    return EpisodeData(columns, terminated=index % 2 == 0, truncated=index % 3 == 0, metadata={"index": index})


class RichEpisodes:
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> EpisodeData:
        return rich_episode(index)


class Episodes:
    """Small episodes; at one item, what a subclass does."""

    def __init__(self, length: int = 40, at: int = -1) -> None:
        self.length = length
        self.at = at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        if index == self.at:
            return self.strange(index)
        return {"action": np.full((2 + index % 3, 2), index, np.float32)}

    def strange(self, index: int):
        raise NotImplementedError


class RaisingEpisodes(Episodes):
    def strange(self, index):
        return 1 // (index - index)


class ShortEpisodes(Episodes):
    """Says that it is longer than it is."""

    def strange(self, index):
        raise IndexError(index)


class WrongEpisodes(Episodes):
    def strange(self, index):
        return {"action": np.zeros((3, 2), np.float64)}


class KilledEpisodes(Episodes):
    def strange(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


class ExitingEpisodes(Episodes):
    def strange(self, index):
        os._exit(3)


class UnpicklableEpisodes(Episodes):
    def __reduce__(self):
        raise TypeError("an open file cannot be sent")


class UnloadableEpisodes(Episodes):
    def __reduce__(self):
        return refuse, ()


class SlowEpisodes(Episodes):
    """Writes down who reads it, and takes its time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(400)
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / str(os.getpid())).touch()
        time.sleep(0.05)
        return super().__getitem__(index)


def refuse():
    raise RuntimeError("cannot be loaded here")


class Samples:
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        return np.full((16, 16, 3), index % 256, np.uint8), index % 10


class MarkedEpisodes(Episodes):
    """Writes down which episodes were read, takes its time, and counts what it is told."""

    identity = "marked"

    def __init__(self, folder: Path, length: int = 12, seconds: float = 0.0, at: int = -1) -> None:
        super().__init__(length, at)
        self.folder, self.seconds = folder, seconds
        self.prepared: list[list[tuple[int, int]]] = []

    def __getitem__(self, index):
        with (self.folder / "read").open("a") as file:
            file.write(f"{index}\n")
        time.sleep(self.seconds)
        action = super().__getitem__(index)["action"]
        return EpisodeData({"action": action, "note": [f"{index}"] * len(action)}, metadata={"index": index})

    def strange(self, index):
        raise ValueError("not readable")

    def prepare(self, spans):
        self.prepared.append(list(spans))

    def forget(self, start, stop):
        with (self.folder / "forgotten").open("a") as file:
            file.write(f"{start}:{stop}\n")
