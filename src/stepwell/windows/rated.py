"""Windows of features with a rate: `Clocked` says which samples a field shows, `RatedWindows` writes them.

::

    steps            |         |         |         |        t: the anchor's time
    samples      . . . . . . . . . . . . . . . . . . .
    span=(-a, 0)           [ . . . . . . . .]               native: samples that follow each other, the last by t
    rate=, seconds=          ^     ^     ^                  points: at each what `align` shows: nearest, hold, linear
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.alignment import METHODS
from stepwell.errors import CorruptSegmentError, WindowError
from stepwell.kernels.places import HI_FINAL, LO, PLACE_ROWS, ROW, SEGMENT
from stepwell.store.decode import RowError, decode_rows
from stepwell.store.samples import StoredSamples

if TYPE_CHECKING:
    from stepwell.codecs import Codec
    from stepwell.windows.decode import Decoded
    from stepwell.windows.fields import Field, FieldSource, ResolvedField
    from stepwell.windows.maps import MapTable, SegmentMaps
    from stepwell.windows.reader import PlaceBatch
    from stepwell.windows.sources import JoinedSources

__all__ = ["Clocked", "RatedWindows", "clocked", "merged", "span_indices"]

Int64s = npt.NDArray[np.int64]
# a sample is there while it is no more periods of its feature's rate beside the window, or the point it is shown at
GRACE = 2.0
# what binary fractions spoil of a step
ROUNDING = 1e-9
MAX_SAMPLES = 1 << 24
# steps or samples from the anchor
MAX_REACH = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class Clocked:
    """Which samples of a feature with a rate a field shows.

    Attributes:
        points: float64 [K], seconds from the anchor's time; of native windows the nominal ones.
        method: one of `stepwell.alignment.METHODS`; None: native.
        first_sample: of native windows, counted from the last sample at or before the anchor's time.
        span: seconds between which a sample of a native window is no padding.
        grace: seconds that a sample may lie from the point that it is shown at.
        reach: first and last step that a window sees, counted from the anchor.
    """

    points: npt.NDArray[np.float64]
    method: str | None
    first_sample: int
    span: tuple[float, float]
    grace: float
    reach: tuple[int, int]

    @property
    def offsets(self) -> Int64s:
        """Steps that stand for the points, int64 [K]: between the first and the last one is all that is read."""
        return np.rint(np.linspace(*self.reach, len(self.points))).astype(np.int64)


def span_indices(span: tuple[float, float], rate: float) -> range:
    """Return which ticks of a clock lie in a span: those after its begin, up to its end; tick 0 is the anchor's.

    Raises:
        WindowError: there is none.

    Example:
        >>> span_indices((-0.1, 0.0), 30)
        range(-2, 1)
    """
    first, last = (round(seconds * rate) for seconds in span)
    if not 0 < last - first <= MAX_SAMPLES:
        raise WindowError(
            f"span={span} holds {last - first} samples at {rate:g} a second. Allowed: 1 to {MAX_SAMPLES:,}."
        )
    return range(first + 1, last + 1)


def clocked(field: Field, rate: float, fps: float | None) -> Clocked:
    """Return which samples of a feature with a rate a field shows, in a store of so many steps a second."""
    if not fps:
        raise WindowError("features with a rate need the store's fps, and it has none.")
    is_native = field.span is not None and field.rate is None and field.align is None
    grace = GRACE / rate
    if field.span is not None:
        wanted = field.rate or rate
        ticks = span_indices(field.span, wanted)
        points, first = np.array(ticks) / wanted, ticks[0]
        begin, end = field.span
    else:
        given: Any = field.seconds
        if given is None:
            given = np.asarray(0 if field.offsets is None else field.offsets) / fps
        points, first = np.array(given, np.float64).reshape(-1), 0
        begin, end = float(points.min()), float(points.max())
    method = None if is_native else field.align or "hold"
    looks_ahead = method in {"nearest", "linear"} or (is_native and end > 0)
    low = math.floor((begin - grace) * fps + ROUNDING)
    high = math.ceil((end + grace * looks_ahead) * fps - ROUNDING)
    reach = min(low, 0), max(high, 0) if is_native else high
    if max(map(abs, (*reach, first))) > MAX_REACH:
        raise WindowError(
            f"its window lies {begin:g} to {end:g} s from the anchor. Allowed: at most {MAX_REACH:,} steps or samples."
        )
    return Clocked(points, method, first, (begin - grace, end + grace), grace, reach)


def merged(clocks: Sequence[Clocked], rates: Sequence[float | None]) -> Clocked:
    """Return the clock of a field that several stores have, whose rates and steps a second may differ.

    Raises:
        WindowError: windows of samples as they are, of several rates; points that are other times in other stores.
    """
    first = clocks[0]
    if len({len(clock.points) for clock in clocks}) > 1 or (first.method is None and len(set(rates)) > 1):
        raise WindowError(
            f"the stores have it at rates of {sorted(set(rates), key=str)} a second, so that windows differ in length. "
            "Give rate=..., for the same points in all of them."
        )
    if any(not np.array_equal(first.points, clock.points) for clock in clocks):
        raise WindowError(
            "the stores differ in fps or rate, so that it shows other points in time of each. Give seconds=..., or "
            "span=... with rate=..."
        )
    grace = max(clock.grace for clock in clocks)
    reach = min(clock.reach[0] for clock in clocks), max(clock.reach[1] for clock in clocks)
    return replace(first, grace=grace, reach=reach)


@dataclass(frozen=True, slots=True, eq=False)
class _Bases:
    """Where offsets, times and samples of each segment lie: addresses, and bytes that are mapped, int64 [S] each."""

    offsets: Int64s
    times: Int64s
    time_sizes: Int64s
    values: Int64s
    value_sizes: Int64s

    @classmethod
    def of(cls, table: MapTable, slot: int, times_slot: int) -> _Bases:
        bases, sizes = table.addresses, table.sizes
        rows = bases[times_slot], bases[times_slot + 1], sizes[times_slot + 1], bases[slot + 1], sizes[slot + 1]
        return cls(*rows)

    @classmethod
    def around(cls, *arrays: npt.NDArray[Any]) -> tuple[_Bases, tuple[npt.NDArray[Any], ...]]:
        """Return the bases of one segment of offsets, times and samples, and the arrays, which must outlive them."""
        (offsets, _), times, samples = ((each.__array_interface__["data"][0], each.nbytes) for each in arrays)
        return cls(*(np.array([number]) for number in (offsets, *times, *samples))), arrays


@dataclass(frozen=True, slots=True, eq=False)
class _Windows:
    """The windows of a source that are read: where they are put, and of which samples."""

    field: ResolvedField
    source: FieldSource
    places: Int64s  # int64 [6, n]
    steps: Int64s  # int64 [n], number of the step that each is put at in its episode
    rates: npt.NDArray[np.float64]  # float64 [n], steps a second of its store
    draws: npt.NDArray[Any] | None  # of a decoder that draws, [n, ...]


class RatedWindows:
    """Write windows of features with a rate; thread-safe."""

    def __init__(self, sources: JoinedSources, maps: SegmentMaps, slots: Mapping[str, int]) -> None:
        self._sources, self._maps, self._slots = sources, maps, slots
        # columns whose samples are plain in all stores
        self._plain = {
            column.name for column in maps.columns if all(feature.codec == "raw" for feature in column.features)
        }

    def write(  # noqa: PLR0917
        self,
        field: ResolvedField,
        source: FieldSource,
        batch: PlaceBatch,
        steps: Int64s,
        rates: npt.NDArray[np.float64],
        out: npt.NDArray[Any],
        draws: npt.NDArray[Any] | None = None,
    ) -> npt.NDArray[np.bool_]:
        """Write the windows of a source, and return their padding, bool [n, K].

        Args:
            field: the field.
            source: one of its sources.
            batch: that is read.
            steps: int64 [n], number of the step that each window is put at in its episode.
            rates: float64 [n], steps a second of its store.
            out: [n * K, *shape], written.
            draws: of a decoder that draws, [n, ...].

        Raises:
            CorruptSegmentError: offsets that do not fit the files, of times or of samples.
            RowError: a sample that cannot be decoded; its index is that of a cell, its rows are numbers of samples.
        """
        places = batch.at(field.field.at)
        own = np.ascontiguousarray(places[:PLACE_ROWS])
        windows, table = _Windows(field, source, own, steps, rates, draws), batch.table
        try:
            mask = self._read(windows, table, batch.decoded.setdefault(source.name, {}), out)
        except CorruptSegmentError:
            # maps from before an episode's last samples came
            table = self._maps.renewed(np.unique(own[SEGMENT]))
            mask = self._read(windows, table, {}, out)
        if batch.chained is not None:
            for i in batch.chained.chosen.tolist():
                self._write_chained(windows, batch, i, out, mask)
        return mask

    def _is_copied(self, source: FieldSource) -> bool:
        """Whether samples are copied as they are, in all stores."""
        return source.decoder is None and source.name in self._plain

    def _read(self, windows: _Windows, table: MapTable, done: Decoded, out: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        slot, times_slot = self._slots_of(windows.source)
        bases = _Bases.of(table, slot, times_slot)
        if self._is_copied(windows.source):
            return self._written(windows, bases, _Copying(bases, windows), out)

        def stored(segment: int) -> StoredSamples:
            # kept by the table for as long as its maps
            num_rows, key = int(table.num_rows[segment]), (slot + 1, segment)
            found = table.stored.get(key)
            if not isinstance(found, StoredSamples) or found.num_rows != num_rows:
                maps: Sequence[Any] = table.arrays[segment] or []
                feature = self._maps.feature_of(windows.source.name, segment)
                of_column = maps[slot], maps[slot + 1], maps[times_slot]
                found = table.stored[key] = StoredSamples(windows.source.name, feature, *of_column, num_rows)
            return found

        return self._written(windows, bases, _Decoding(windows, stored, done), out)

    def _written(
        self, windows: _Windows, bases: _Bases, samples: _Copying | _Decoding, out: npt.NDArray[Any]
    ) -> npt.NDArray[np.bool_]:
        wrong, mask = _write(windows, bases, samples, out)
        if wrong >= 0:
            raise self._damaged(windows, wrong)
        return mask

    def _slots_of(self, source: FieldSource) -> tuple[int, int]:
        return self._slots[source.name], self._slots[source.times or source.name]

    def _damaged(self, windows: _Windows, wrong: int) -> CorruptSegmentError:
        segment, row = windows.places[[SEGMENT, ROW], wrong].tolist()
        source = windows.source
        return CorruptSegmentError(
            f"{self._sources.describe(segment, row)}: the offsets of {source.times}.npy do not fit {source.times}.bin "
            f'or {source.name}.bin. Run "stepwell verify PATH".'
        )

    def _write_chained(
        self, windows: _Windows, batch: PlaceBatch, i: int, out: npt.NDArray[Any], mask: npt.NDArray[np.bool_]
    ) -> None:
        """Write a window that leaves a piece of its episode, from the rows of all pieces that it reaches."""
        field, source = windows.field, windows.source
        assert field.clock is not None and batch.chained is not None
        places = batch.at(field.field.at)
        row, lo, hi = int(places[ROW, i]), int(places[-3, i]), int(places[-1, i])
        first, stop = (min(max(row + offset, lo), hi) for offset in (field.clock.reach[0], field.clock.reach[1] + 1))
        wanted = np.tile(np.arange(first, max(stop, first)), (places.shape[1], 1))
        segments, rows = batch.chained.cells(places[SEGMENT], wanted)
        cells = list(zip(segments[i].tolist(), rows[i].tolist(), strict=True))
        (samples, ends), (times, time_ends) = (
            _joined([_row_bytes(batch.table, slot, segment, own) for segment, own in cells])
            for slot in self._slots_of(source)
        )
        # as a segment of these rows alone
        bases, held = _Bases.around(time_ends, times, samples)
        place = np.zeros((PLACE_ROWS, 1), np.int64)
        place[ROW], place[LO], place[HI_FINAL] = row - first, 0, len(cells)
        only = slice(i, i + 1)
        draws = None if windows.draws is None else windows.draws[only]
        window = replace(windows, places=place, steps=windows.steps[only], rates=windows.rates[only], draws=draws)
        count = len(field.clock.points)
        if self._is_copied(source):
            found: _Copying | _Decoding = _Copying(bases, window)
        else:
            feature = self._maps.feature_of(source.name, int(places[SEGMENT, i]))
            stored = StoredSamples(source.name, feature, ends, samples, time_ends, len(cells))
            found = _Decoding(window, lambda _: stored, {})
        try:
            wrong, marks = _write(window, bases, found, out[i * count : (i + 1) * count])
        except RowError as error:
            error.index += i * count
            raise
        del held
        if wrong >= 0:
            raise self._damaged(windows, i)
        mask[i] = marks[0]


def _joined(parts: Sequence[npt.NDArray[np.uint8]]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """Return rows one after the other, and their offsets."""
    edges = np.cumsum([0, *(len(each) for each in parts)], dtype=np.uint64)
    return np.concatenate([np.empty(0, np.uint8), *parts]), edges


def _row_bytes(table: MapTable, slot: int, segment: int, row: int) -> npt.NDArray[np.uint8]:
    maps: Sequence[Any] = table.arrays[segment] or []
    begin, end = maps[slot][row : row + 2].tolist()
    found: npt.NDArray[np.uint8] = maps[slot + 1][begin:end]
    return found


class _Copying:
    """Samples that are copied as they are."""

    def __init__(self, bases: _Bases, windows: _Windows) -> None:
        assert windows.source.feature is not None
        self.dtype, self.row_bytes = windows.source.feature.np_dtype, windows.source.feature.row_bytes
        self._bases, self._segments = bases, windows.places[SEGMENT]

    def write(self, samples: Int64s, out: npt.NDArray[Any]) -> None:
        """Write samples, int64 [n, K] of the windows' segments, -1 zeros, to [n * K, *shape]."""
        from stepwell.windows.rated_kernels import copy_samples

        memory = _bytes_of(out, len(samples))
        copy_samples(self._segments, samples, self._bases.values, self.row_bytes, memory)


class _Decoding:
    """Samples that are decoded, each distinct one once for all windows of a batch that show it."""

    # what the kernels take for the size of a sample: any number that fits will do, `StoredSamples` checks each
    row_bytes = 8

    def __init__(self, windows: _Windows, stored: Callable[[int], StoredSamples], done: Decoded) -> None:
        self._windows, self._stored, self._done = windows, stored, done
        feature, decoder = windows.source.feature, windows.source.decoder
        assert feature is not None
        self.dtype = feature.np_dtype if decoder is None else np.dtype(decoder.output(feature)[1])

    def write(self, samples: Int64s, out: npt.NDArray[Any]) -> None:
        """Write samples, int64 [n, K] of the windows' segments, -1 zeros, to [n * K, *shape]."""
        if not out[:1].size:
            return
        windows, count = self._windows, samples.shape[1]
        segments, wanted = np.repeat(windows.places[SEGMENT], count), samples.reshape(-1)
        order = np.lexsort((wanted, segments))
        ways: dict[Codec, Any] = {}
        for members in np.split(order, np.flatnonzero(np.diff(segments[order])) + 1):
            there = members[wanted[members] >= 0]
            if len(there):
                self._decode(int(segments[there[0]]), there, wanted[there].tolist(), out, ways)
        out[wanted < 0] = np.zeros((), out.dtype)

    def _decode(
        self,
        segment: int,
        members: npt.NDArray[np.intp],
        rows: list[int],
        out: npt.NDArray[Any],
        ways: dict[Codec, Any],
    ) -> None:
        """Decode ascending samples of one segment."""
        windows, stored = self._windows, self._stored(segment)
        if stored.codec not in ways:
            ways[stored.codec] = stored.codec.batch_decoder()
        draws = None if windows.draws is None else windows.draws[members // len(windows.field.offsets)]
        outs = [out[i, ...] for i in members.tolist()]
        known = self._done.setdefault(segment, {})
        try:
            decode_rows(stored, rows, outs, windows.source.decoder, draws, known, ways[stored.codec])
        except RowError as error:
            if isinstance(error.cause, CorruptSegmentError):
                raise error.cause from None
            error.index = int(members[error.index])
            raise


def _write(
    windows: _Windows, bases: _Bases, source: _Copying | _Decoding, out: npt.NDArray[Any]
) -> tuple[int, npt.NDArray[np.bool_]]:
    """Write windows of samples; return -1 or the first anchor whose offsets do not fit, and padding, bool [n, K]."""
    from stepwell.windows.rated_kernels import find_native, find_points, gather_native, see_samples

    field, places, steps, rates = windows.field, windows.places, windows.steps, windows.rates
    clock, is_zero = field.clock, field.pad == "zero"
    assert clock is not None
    (first, last), size, count = clock.reach, places.shape[1], len(clock.points)
    is_linear = clock.method == "linear"
    is_direct = out.flags.c_contiguous and out.dtype == source.dtype and not is_linear
    values = out if is_direct else np.empty(out.shape, source.dtype)
    mask, seen = np.empty((size, count), np.bool_), np.empty((3, size), np.int64)
    is_copied = isinstance(source, _Copying)
    # of encoded samples the times alone say how many there are
    held = (bases.values, bases.value_sizes) if is_copied else (bases.times, bases.time_sizes)
    wrong = see_samples(
        places, first, last, source.row_bytes, bases.offsets, bases.times, bases.time_sizes, *held, seen
    )
    if wrong >= 0:
        return int(wrong), mask
    if clock.method is None and isinstance(source, _Copying):
        gather_native(
            places, seen, steps, rates, clock.first_sample, count, last, *clock.span, is_zero, bases.times,
            bases.values, source.row_bytes, _bytes_of(values, size), mask,
        )  # fmt: skip
    else:
        samples, after = np.empty((2, size, count), np.int64)
        weights = np.zeros((size, count))
        if clock.method is None:
            find_native(
                places, seen, steps, rates, clock.first_sample, last, *clock.span, bases.times, samples, mask,
            )  # fmt: skip
        else:
            find_points(
                places, seen, steps, rates, clock.points, last, clock.grace, METHODS.index(clock.method), bases.times,
                samples, after, weights, mask,
            )  # fmt: skip
        if is_zero:
            samples[mask] = -1
        source.write(samples, values)
        if is_linear:
            other = np.empty_like(values)
            source.write(after, other)
            values = _mixed(values, other, weights)
    if values is not out:
        out[...] = values
    return -1, mask


def _bytes_of(values: npt.NDArray[Any], size: int) -> npt.NDArray[np.uint8]:
    """Return the memory of windows, uint8 [n, bytes of one]."""
    return values.reshape(-1).view(np.uint8).reshape(size, values.nbytes // size if size else 0)


def _mixed(
    before: npt.NDArray[Any], after: npt.NDArray[Any], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return what lies between samples, as `stepwell.alignment.Aligned.of` mixes rows."""
    share = weights.reshape(-1, *[1] * (before.ndim - 1))
    # a sample that has no share may be NaN or infinite
    mixed: npt.NDArray[np.float64] = before * (1.0 - share) + np.where(share > 0, after, 0) * share
    return mixed
