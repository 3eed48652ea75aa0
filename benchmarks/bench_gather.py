"""gather: the window kernel alone, beside a copy of memory.

One thread, a page-cached store of 2 GB, random anchors, the batch's memory reused. The kernel reads each window from
another place of 2 GB and writes to memory that is warm in the cache; the reference is a plain copy of 64 MiB in the
same run, which reads and writes in order but fits in no cache. So small windows, which wait for memory, lose to it,
and large ones can win. `GB/s` counts the bytes of the windows once, as it does those of the copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from bare import BareKernel
from datasets import column_of, low_dim_store, removed
from report import Row, compare
from timing import MEMCPY, Settings, time_rounds

import stepwell
from stepwell.windows import WindowReader

__all__ = ["run"]

NAME = "gather"
TARGET = 0.85
NUM_BATCHES = 400


class Column(NamedTuple):
    """Rows of one size, and how they are read: (window, batch size)."""

    name: str
    feature: stepwell.Feature
    reads: tuple[tuple[int, int], ...]


COLUMNS = (
    Column("68B", stepwell.Array(17), ((16, 256), (64, 256))),
    Column("1KiB", stepwell.Array(256), ((1, 256), (4, 256))),
    Column("27.6KB", stepwell.Array((96, 96, 3), dtype="uint8"), ((1, 256), (2, 64), (2, 256))),
)


def run(settings: Settings) -> Iterator[Row]:
    """Yield a row a case: kernel against memcpy."""
    for column in COLUMNS:
        path = settings.data / f"gather-{column.name}.well"
        with removed(low_dim_store(path, settings.store_bytes, {"x": column.feature})) as store:
            for window, batch_size in column.reads:
                yield _measure(store, settings, f"{column.name} x {window}, batch {batch_size}", window, batch_size)


def _measure(store: stepwell.Store, settings: Settings, case: str, window: int, batch_size: int) -> Row:
    field = stepwell.Field("x", range(window), pad="drop")
    reader = WindowReader(stepwell.View(store), {"x": field})
    num_batches = settings.sized(NUM_BATCHES, 4)
    positions = np.random.default_rng(1).integers(0, reader.index.num_anchors, (num_batches, batch_size))
    kernel = BareKernel(reader, positions)
    _check(store, kernel, reader, positions, window)
    rates = time_rounds({"kernel": kernel.work(kernel.batch_bytes / 1e9)}, settings)
    return compare(NAME, case, rates, ours="kernel", theirs=MEMCPY, unit="GB/s", target=TARGET)


def _check(store: stepwell.Store, kernel: BareKernel, reader: WindowReader, positions: np.ndarray, window: int) -> None:
    """Compare one batch with what numpy reads from the same file."""
    rows = reader.index.places(positions[0])[2]
    expected = column_of(store, "x")[rows[:, None] + np.arange(window)]
    np.testing.assert_array_equal(kernel.run(0)["x"], expected)
