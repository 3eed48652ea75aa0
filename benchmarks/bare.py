"""The bare kernel: what a reader calls for each batch, without the reader."""

from __future__ import annotations

import itertools

import numpy as np
from timing import Work

from stepwell.kernels.gather import gather
from stepwell.windows import WindowReader, aligned_empty
from stepwell.windows.plans import Layout, gather_tables, make_layout

__all__ = ["BareKernel"]


class BareKernel:
    """Call the gather kernel for batches whose places were worked out before.

    Args:
        reader: of raw fields.
        positions: int64 [k, batch size], of k batches.
    """

    def __init__(self, reader: WindowReader, positions: np.ndarray) -> None:
        fields = list(reader.fields.values())
        slots = {column.name: 2 * number for number, column in enumerate(reader.maps.columns)}
        # maps all that is going to be read
        reader.read(positions.reshape(-1)[:1])
        reader.maps.ensure(np.arange(len(reader.maps.segments)))
        # rows as they are, without a decoder: the kernel copies all
        self._tables = gather_tables(fields, lambda field, source: slots[source.name])
        self._bases = reader.maps.table.addresses
        self._maps = reader.maps
        self._layout: Layout = make_layout(fields, [self._tables], positions.shape[1])
        self._places = [reader.index.places(batch) for batch in positions]
        self._memory = aligned_empty(self._layout.num_bytes)
        self.batch_bytes = sum(int(np.prod(shape)) * dtype.itemsize for _, shape, dtype, _ in self._layout.views)

    def run(self, number: int) -> dict[str, np.ndarray]:
        """Gather a batch and return views of the memory, which the next batch overwrites."""
        tables = self._tables
        places = self._places[number]
        gather(self._layout.plans[0], tables.runs, tables.offsets, self._bases, places, self._memory)
        return {key: np.ndarray(shape, dtype, self._memory, start) for key, shape, dtype, start in self._layout.views}

    def work(self, units: float) -> Work:
        """Return a work that gathers one batch after the other, each worth ``units``."""
        plan, runs, offsets, bases, memory = (
            self._layout.plans[0], self._tables.runs, self._tables.offsets, self._bases, self._memory,
        )  # fmt: skip
        batches = itertools.cycle(self._places)

        def gather_one() -> float:
            gather(plan, runs, offsets, bases, next(batches), memory)
            return units

        return gather_one
