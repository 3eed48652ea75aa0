"""Stream batches and say how fast: windows a second, GB a second, and both beside memcpy measured in the same run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["StreamReport", "batch_bytes", "measure_memcpy", "stream"]

MEMCPY_BYTES = 64 << 20
MEMCPY_REPEATS = 7


@dataclass(frozen=True, slots=True)
class StreamReport:
    """What a stream of batches took; the first batch, which may compile kernels and fill pools, is kept apart.

    Args:
        num_windows: samples after the first batch.
        num_bytes: of those samples, decoded.
        seconds: wall time for them.
        first_batch_seconds: wall time until the first batch was there.
        memcpy_gb_per_s: what copying 64 MiB reached in the same run.
    """

    num_windows: int
    num_bytes: int
    seconds: float
    first_batch_seconds: float
    memcpy_gb_per_s: float

    @property
    def windows_per_second(self) -> float:
        """Samples a second."""
        return self.num_windows / self.seconds if self.seconds else 0.0

    @property
    def gb_per_s(self) -> float:
        """Decoded gigabytes a second."""
        return self.num_bytes / self.seconds / 1e9 if self.seconds else 0.0

    @property
    def memcpy_ratio(self) -> float:
        """Share of memcpy's speed."""
        return self.gb_per_s / self.memcpy_gb_per_s

    def to_json(self) -> dict[str, float]:
        """Return the report as JSON types."""
        return {
            "windows": self.num_windows,
            "bytes": self.num_bytes,
            "seconds": self.seconds,
            "first_batch_seconds": self.first_batch_seconds,
            "windows_per_second": self.windows_per_second,
            "gb_per_s": self.gb_per_s,
            "memcpy_gb_per_s": self.memcpy_gb_per_s,
            "memcpy_ratio": self.memcpy_ratio,
        }

    def __str__(self) -> str:
        return (
            f"{self.windows_per_second:,.0f} windows/s   {self.gb_per_s:.2f} GB/s   "
            f"{self.memcpy_ratio:.2f} of memcpy ({self.memcpy_gb_per_s:.1f} GB/s)"
        )


def stream(loader: Iterable[Mapping[str, Any]], bar: Any, *, max_seconds: float = float("inf")) -> StreamReport:
    """Take batches until the loader ends or the time is up.

    Args:
        loader: gives batches of arrays, samples along the first axis.
        bar: a progress bar, moved by samples.
        max_seconds: stop after the first batch that ends later than this.
    """
    memcpy = measure_memcpy()
    num_windows = num_bytes = 0
    begun = time.perf_counter()
    started = ended = begun
    for number, batch in enumerate(loader):
        ended = time.perf_counter()
        samples = len(next(iter(batch.values())))
        bar.update(samples)
        if number == 0:
            started = ended
            continue
        num_windows += samples
        num_bytes += batch_bytes(batch)
        if ended - started > max_seconds:
            break
    return StreamReport(num_windows, num_bytes, ended - started, started - begun, memcpy)


def batch_bytes(batch: Mapping[str, Any]) -> int:
    """Return the bytes of a batch's arrays; rows of varying size are counted one by one."""
    return sum(_value_bytes(value) for value in batch.values())


def measure_memcpy() -> float:
    """Return how many GB a second one thread copies between two warm arrays of 64 MiB: the median of seven copies."""
    source, target = np.ones(MEMCPY_BYTES, np.uint8), np.zeros(MEMCPY_BYTES, np.uint8)
    times = []
    for _ in range(MEMCPY_REPEATS):
        begun = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begun)
    return MEMCPY_BYTES / float(np.median(times)) / 1e9


def _value_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.dtype == object:
        return sum(_value_bytes(item) for item in value.ravel())
    if isinstance(value, str | bytes):
        return len(value)
    return int(getattr(value, "nbytes", 0))
