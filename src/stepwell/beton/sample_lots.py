"""Samples of an indexable dataset, or of streams, as lots: each sample has regions of its own, back to back.

::

    a sample      | image      | text | state |        a unit: one place, each region aligned, at least a byte
    lot           | unit | unit | unit ...             one buffer; cut where pages end, written as it is
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import Encoder, encode_named
from stepwell.beton.laying import FilePart, Lot, PageCursor, Target, aligned, too_large
from stepwell.beton.layout import ALLOCATION_DTYPE, row_dtype
from stepwell.errors import StepError
from stepwell.recorders.chunks import Failure
from stepwell.recorders.sources import NUM_CHUNKS

__all__ = [
    "IndexedSamples",
    "SampleLots",
    "StreamedSamples",
    "check_not_empty",
    "lots_of",
    "stream_lots",
    "values_of",
    "write_indexed",
    "write_streams",
]

LOT_BYTES = 8 << 20
MAX_LOT_SAMPLES = 1024
STREAMS_AT_ONCE = 16
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A lot in memory: its bytes, what stands in the rows, sizes int64 [n, regions a sample]."""

    data: bytearray
    cells: list[tuple[Any, ...]]
    sizes: Int64s


@dataclass(frozen=True, slots=True)
class _Units:
    """The measure of a lot: bytes of each sample, int64 [n]."""

    sizes: Int64s

    def place(self, cursor: PageCursor) -> Int64s:
        """Return where the samples go; see `stepwell.beton.laying.Measure`."""
        return cursor.take_all(self.sizes)


class SampleLots(ABC):
    """Samples that are written one by one; see `stepwell.beton.laying.Lots`."""

    noun = "sample"

    def __init__(self, encoders: Mapping[str, Encoder], page_size: int, align: int) -> None:
        self._encoders, self._page_size, self._align = dict(encoders), page_size, align
        self._fields = list(self._encoders)
        self._with_region = [name for name, encoder in self._encoders.items() if encoder.has_region]
        self._rows = row_dtype([encoder.descriptor(name) for name, encoder in self._encoders.items()])

    @abstractmethod
    def read(self, lot: Lot) -> Iterator[Any]:
        """Yield the samples of a lot."""

    def encode(self, lot: Lot, at: Callable[[int], None]) -> tuple[_Encoded, _Units]:
        """Return a lot's bytes and measure; see `Lots.encode`."""
        data, lengths, cells = bytearray(), [], []
        samples = self.read(lot)
        for sample in range(lot.start, lot.stop):
            at(sample)
            found = encode_named(self._encoders, values_of(next(samples), self._fields), sample)
            regions = [region for _, region in found if region is not None]
            lengths.append([len(region) for region in regions])
            cells.append([cell for cell, _ in found])
            self._add(data, regions, sample)
        sizes = np.array(lengths, np.int64)
        return _Encoded(data, list(zip(*cells, strict=True)), sizes), _Units(aligned(sizes, self._align).sum(axis=1))

    def write(self, lot: Lot, encoded: _Encoded, places: Int64s, part: FilePart) -> int:
        """Write a lot; see `Lots.write`."""
        reserved = aligned(encoded.sizes, self._align)
        units = reserved.sum(axis=1)
        ptrs = places[:, None] + np.cumsum(reserved, axis=1) - reserved
        self._write_data(encoded.data, units, places, part)
        rows = np.zeros(len(places), self._rows)
        columns = iter(zip(ptrs.T, encoded.sizes.T, strict=True))
        for (name, encoder), cells in zip(self._encoders.items(), encoded.cells, strict=True):
            ptr, size = next(columns) if encoder.has_region else (places, units)
            encoder.fill(rows[name], cells, ptr, size)
        table = np.empty(ptrs.shape, ALLOCATION_DTYPE)
        table["sample"] = np.arange(lot.start, lot.stop)[:, None]
        table["ptr"], table["size"] = ptrs, encoded.sizes
        part.write_samples(lot.start, rows, table)
        return len(encoded.data)

    def lot_samples(self, most: int, num_samples: int) -> int:
        """Return how many samples a lot gets; the first one is read for that."""
        try:
            encoded, _ = self.encode(self._first, lambda _: None)
        except Exception as error:
            raise Failure.of(self._first.start, error, self.noun).to_error() from error
        most = min(most, MAX_LOT_SAMPLES, -(-num_samples // NUM_CHUNKS))
        return max(1, min(most, LOT_BYTES // max(1, len(encoded.data))))

    @property
    def _first(self) -> Lot:
        return Lot(0, 0, 1)

    def _add(self, data: bytearray, regions: Sequence[Any], sample: int) -> None:
        before = len(data)
        for region in regions:
            data += region
            # as `aligned` counts
            room = -(-(len(region) or 1) // self._align) * self._align - len(region)
            if room:
                data += bytes(room)
        if len(data) - before > self._page_size:
            parts = zip(self._with_region, regions, strict=True)
            text = ", ".join(f"{name} {len(region)}" for name, region in parts)
            raise too_large(f"sample {sample}", text, len(data) - before, self._page_size)

    @staticmethod
    def _write_data(data: bytearray, units: Int64s, places: Int64s, part: FilePart) -> None:
        """Write what lies together in one go."""
        if not data:
            return
        starts = np.cumsum(units) - units
        cuts = np.flatnonzero(places[1:] != places[:-1] + units[:-1]) + 1
        firsts = np.concatenate([[0], cuts])
        stops = np.concatenate([starts[cuts], [len(data)]])
        view = memoryview(data)
        for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
            part.write(int(places[first]), view[int(starts[first]) : stop])


class IndexedSamples(SampleLots):
    """Samples of a dataset with ``dataset[i]``."""

    def __init__(
        self, dataset: Any, indices: Int64s | None, encoders: Mapping[str, Encoder], page_size: int, align: int
    ) -> None:
        super().__init__(encoders, page_size, align)
        self._dataset, self._indices = dataset, indices

    def read(self, lot: Lot) -> Iterator[Any]:
        """Yield the samples of a lot; see `SampleLots.read`."""
        for sample in range(lot.start, lot.stop):
            index = sample if self._indices is None else int(self._indices[sample])
            try:
                found = self._dataset[index]
            except (IndexError, StopIteration) as error:
                raise StepError(
                    f"the dataset has no item {index}, although its len() is {len(self._dataset)}. "
                    "Correct __len__ or __getitem__."
                ) from error
            yield found


class StreamedSamples(SampleLots):
    """Samples of several streams, each read once from its beginning; a lot's ``home`` is the number of its stream."""

    def __init__(  # noqa: PLR0917
        self,
        open_stream: Callable[[int], Iterator[Any]],
        firsts: Int64s,
        names: Sequence[str],
        encoders: Mapping[str, Encoder],
        page_size: int,
        align: int,
    ) -> None:
        super().__init__(encoders, page_size, align)
        self._open_stream, self._firsts, self._names = open_stream, firsts, list(names)
        self._streams: dict[int, Iterator[Any]] = {}

    def read(self, lot: Lot) -> Iterator[Any]:
        """Yield the samples of a lot; see `SampleLots.read`."""
        home = lot.home or 0
        first, stop = self._firsts[home : home + 2].tolist()
        if lot.start == first:
            self._streams[home] = self._open_stream(home)
        stream = self._streams[home]
        for sample in range(lot.start, lot.stop):
            try:
                found = next(stream)
            except StopIteration:
                raise self._changed(home, f"ends after {sample - first}") from None
            if sample + 1 == stop and next(self._streams.pop(home), self) is not self:
                raise self._changed(home, "has more")
            yield found

    @property
    def _first(self) -> Lot:
        home = int(np.flatnonzero(np.diff(self._firsts))[0])
        return Lot(0, 0, 1, home)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_streams": {}}

    def _changed(self, home: int, what: str) -> StepError:
        first, stop = self._firsts[home : home + 2].tolist()
        return StepError(
            f"{self._names[home]} had {stop - first} samples when they were counted, and now {what}. "
            "Let the pipeline give the same samples each time: a filter that draws at random does not."
        )


def values_of(sample: Any, names: Sequence[str]) -> Sequence[Any]:
    """Return the values of a sample, a tuple or a mapping, in the fields' order."""
    if type(sample) is tuple and len(sample) == len(names):
        return sample
    if isinstance(sample, Mapping):
        missing = [name for name in names if name not in sample]
        if missing:
            raise StepError(f"it has no {', '.join(map(repr, missing))}. It has: {', '.join(map(str, sample))}.")
        return [sample[name] for name in names]
    if isinstance(sample, str | bytes) or not hasattr(sample, "__len__") or not hasattr(sample, "__getitem__"):
        raise StepError(f"got a {type(sample).__name__}. Allowed: a tuple of {len(names)} values, or a mapping.")
    if len(sample) != len(names):
        raise StepError(f"it has {len(sample)} values, and there are {len(names)} fields: {', '.join(names)}.")
    return [sample[place] for place in range(len(names))]


def lots_of(num_samples: int, length: int) -> list[Lot]:
    """Return lots of consecutive samples."""
    starts = range(0, num_samples, length)
    return [Lot(number, start, min(start + length, num_samples)) for number, start in enumerate(starts)]


def stream_lots(firsts: Int64s, length: int, streams_at_once: int) -> list[Lot]:
    """Return lots of streams: some streams side by side, so that many workers read, whatever their number."""
    spans = []
    for group in range(0, len(firsts) - 1, streams_at_once):
        homes = range(group, min(group + streams_at_once, len(firsts) - 1))
        longest = max(int(firsts[home + 1] - firsts[home]) for home in homes)
        for done in range(0, longest, length):
            for home in homes:
                start, stop = int(firsts[home]) + done, int(firsts[home + 1])
                if start < stop:
                    spans.append((start, min(start + length, stop), home))
    return [Lot(number, start, stop, home) for number, (start, stop, home) in enumerate(spans)]


def write_indexed(
    target: Target,
    dataset: Any,
    encoders: Mapping[str, Encoder],
    *,
    indices: npt.NDArray[np.int64] | None = None,
    lot_samples: int = 1 << 30,
) -> None:
    """Write the samples of a dataset that has ``len()`` and ``dataset[i]``."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise StepError(f"the dataset is a {type(dataset).__name__}. Give one with len() and dataset[i].")
    number = len(dataset) if indices is None else len(indices)
    check_not_empty(number)
    source = IndexedSamples(dataset, indices, encoders, target.page_size, target.align)
    target.lay(source, lots_of(number, source.lot_samples(lot_samples, number)), encoders)


def write_streams(
    target: Target,
    open_stream: Callable[[int], Iterator[Any]],
    counts: Sequence[int],
    names: Sequence[str],
    encoders: Mapping[str, Encoder],
    *,
    lot_samples: int = 1 << 30,
) -> None:
    """Write the samples of several streams, one after the other in the file."""
    firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    check_not_empty(int(firsts[-1]))
    source: SampleLots = StreamedSamples(open_stream, firsts, names, encoders, target.page_size, target.align)
    length = source.lot_samples(lot_samples, int(firsts[-1]))
    target.lay(source, stream_lots(firsts, length, STREAMS_AT_ONCE), encoders)


def check_not_empty(number: int) -> None:
    """Refuse to write a file without samples."""
    if number == 0:
        raise StepError("there are no samples. A .beton file without any is one that FFCV's loader cannot iterate.")
