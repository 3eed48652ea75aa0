"""Datasets for the writer; a module of its own, so that spawned workers can import them."""

import os
import signal
import time
from pathlib import Path

import numpy as np


def rich_sample(index: int) -> tuple:
    rng = np.random.default_rng(index)
    return (
        rng.integers(0, 255, (8 + index % 5, 12, 3), dtype=np.uint8),
        index - 3,
        float(rng.normal()),
        bytes(rng.integers(0, 255, index % 4, dtype=np.uint8)),
        {"index": index, "text": "ä\0" * (index % 3)},
        rng.normal(size=(4, 3)).astype("f4"),
    )


class Samples:
    """Rich samples; at one of them, what a subclass does."""

    def __init__(self, length: int = 60, at: int = -1) -> None:
        self.length, self.at = length, at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple:
        return self.strange(index) if index == self.at else rich_sample(index)

    def strange(self, index: int) -> tuple:
        raise NotImplementedError


class RaisingSamples(Samples):
    def strange(self, index):
        return 1 // (index - index)


class ShortSamples(Samples):
    def strange(self, index):
        raise IndexError(index)


class StoppingSamples(Samples):
    def strange(self, index):
        raise StopIteration


class KilledSamples(Samples):
    def strange(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


class ExitingSamples(Samples):
    def strange(self, index):
        os._exit(3)


class FewerValues(Samples):
    def strange(self, index):
        return rich_sample(index)[:-1]


class WrongValues(Samples):
    def strange(self, index):
        return (*rich_sample(index)[:-1], np.zeros((4, 3), "f8"))


class SlowSamples(Samples):
    """Writes down who reads it, and takes its time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(4000)
        self.folder = folder

    def __getitem__(self, index):
        (self.folder / str(os.getpid())).touch()
        time.sleep(0.02)
        return rich_sample(index)
