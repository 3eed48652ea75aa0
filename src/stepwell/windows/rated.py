"""Windows of features with a rate: `Clocked` says which samples a field shows, `RatedWindows` writes them.

::

    steps            |         |         |         |        t: the anchor's time
    samples      . . . . . . . . . . . . . . . . . . .
    span=(-a, 0)           [ . . . . . . . .]               native: samples that follow each other, the last by t
    rate=, seconds=          ^     ^     ^                  points: at each what `align` shows: nearest, hold, linear
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.alignment import METHODS
from stepwell.errors import CorruptSegmentError, WindowError
from stepwell.kernels.places import HI_FINAL, LO, PLACE_ROWS, ROW, SEGMENT

if TYPE_CHECKING:
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


class RatedWindows:
    """Write windows of features with a rate; thread-safe."""

    def __init__(self, sources: JoinedSources, maps: SegmentMaps, slots: Mapping[str, int]) -> None:
        self._sources, self._maps, self._slots = sources, maps, slots

    def write(  # noqa: PLR0917
        self,
        field: ResolvedField,
        source: FieldSource,
        batch: PlaceBatch,
        steps: Int64s,
        rates: npt.NDArray[np.float64],
        out: npt.NDArray[Any],
    ) -> npt.NDArray[np.bool_]:
        """Write the windows of a source, and return their padding, bool [n, K].

        Args:
            field: the field.
            source: one of its sources.
            batch: that is read.
            steps: int64 [n], number of the step that each window is put at in its episode.
            rates: float64 [n], steps a second of its store.
            out: [n * K, *shape], written.

        Raises:
            CorruptSegmentError: offsets that do not fit the files.
        """
        places = batch.at(field.field.at)
        own = np.ascontiguousarray(places[:PLACE_ROWS])
        bases, wrong = _Bases.of(batch.table, *self._slots_of(source)), -1
        for is_last in (False, True):
            wrong, mask = _read(field, source, own, steps, rates, bases, out)
            if wrong < 0 or is_last:
                break
            # maps from before an episode's last samples came
            bases = _Bases.of(self._maps.renewed(np.unique(own[SEGMENT])), *self._slots_of(source))
        if wrong >= 0:
            raise self._damaged(source, int(own[SEGMENT, wrong]), int(own[ROW, wrong]))
        if batch.chained is not None:
            for i in batch.chained.chosen.tolist():
                self._write_chained(field, source, batch, i, steps[i : i + 1], rates[i : i + 1], out, mask)
        return mask

    def _slots_of(self, source: FieldSource) -> tuple[int, int]:
        return self._slots[source.name], self._slots[source.times or source.name]

    def _damaged(self, source: FieldSource, segment: int, row: int) -> CorruptSegmentError:
        return CorruptSegmentError(
            f"{self._sources.describe(segment, row)}: the offsets of {source.times}.npy do not fit {source.times}.bin "
            f'or {source.name}.bin. Run "stepwell verify PATH".'
        )

    def _write_chained(  # noqa: PLR0917
        self,
        field: ResolvedField,
        source: FieldSource,
        batch: PlaceBatch,
        i: int,
        steps: Int64s,
        rates: npt.NDArray[np.float64],
        out: npt.NDArray[Any],
        mask: npt.NDArray[np.bool_],
    ) -> None:
        """Write a window that leaves a piece of its episode, from the rows of all pieces that it reaches."""
        assert field.clock is not None and batch.chained is not None
        places = batch.at(field.field.at)
        row, lo, hi = int(places[ROW, i]), int(places[-3, i]), int(places[-1, i])
        first, stop = (min(max(row + offset, lo), hi) for offset in (field.clock.reach[0], field.clock.reach[1] + 1))
        wanted = np.tile(np.arange(first, max(stop, first)), (places.shape[1], 1))
        segments, rows = batch.chained.cells(places[SEGMENT], wanted)
        cells = list(zip(segments[i].tolist(), rows[i].tolist(), strict=True))
        samples, times = (
            [_row_bytes(batch.table, slot, segment, own) for segment, own in cells] for slot in self._slots_of(source)
        )
        edges = np.cumsum([0, *(len(each) for each in times)], dtype=np.uint64)
        # as a segment of these rows alone
        bases, held = _Bases.around(edges, _joined(times), _joined(samples))
        place = np.zeros((PLACE_ROWS, 1), np.int64)
        place[ROW], place[LO], place[HI_FINAL] = row - first, 0, len(edges) - 1
        count = len(field.clock.points)
        wrong, marks = _read(field, source, place, steps, rates, bases, out[i * count : (i + 1) * count])
        del held
        if wrong >= 0:
            raise self._damaged(source, int(places[SEGMENT, i]), row)
        mask[i] = marks[0]


def _joined(parts: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    return np.concatenate([np.empty(0, np.uint8), *parts])


def _row_bytes(table: MapTable, slot: int, segment: int, row: int) -> npt.NDArray[np.uint8]:
    maps: Sequence[Any] = table.arrays[segment] or []
    begin, end = maps[slot][row : row + 2].tolist()
    found: npt.NDArray[np.uint8] = maps[slot + 1][begin:end]
    return found


def _read(  # noqa: PLR0917
    field: ResolvedField,
    source: FieldSource,
    places: Int64s,
    steps: Int64s,
    rates: npt.NDArray[np.float64],
    bases: _Bases,
    out: npt.NDArray[Any],
) -> tuple[int, npt.NDArray[np.bool_]]:
    """Write windows of samples; return -1 or the first anchor whose offsets do not fit, and padding, bool [n, K]."""
    from stepwell.windows.rated_kernels import copy_samples, find_points, gather_native, see_samples

    clock, is_zero = field.clock, field.pad == "zero"
    assert clock is not None and source.feature is not None
    (first, last), size, count = clock.reach, places.shape[1], len(clock.points)
    stored = source.feature.np_dtype
    is_direct = out.flags.c_contiguous and out.dtype == stored
    values = out if is_direct else np.empty(out.shape, stored)
    row_bytes = math.prod(out.shape[1:]) * stored.itemsize
    memory = values.reshape(-1).view(np.uint8).reshape(size, count * row_bytes)
    mask, seen = np.empty((size, count), np.bool_), np.empty((3, size), np.int64)
    wrong = see_samples(
        places, first, last, row_bytes, bases.offsets, bases.times, bases.time_sizes, bases.values, bases.value_sizes,
        seen,
    )  # fmt: skip
    if wrong >= 0:
        return int(wrong), mask
    if clock.method is None:
        gather_native(
            places, seen, steps, rates, clock.first_sample, count, last, *clock.span, is_zero, bases.times,
            bases.values, row_bytes, memory, mask,
        )  # fmt: skip
    else:
        samples, after = np.empty((2, size, count), np.int64)
        weights = np.empty((size, count))
        find_points(
            places, seen, steps, rates, clock.points, last, clock.grace, METHODS.index(clock.method), bases.times,
            samples, after, weights, mask,
        )  # fmt: skip
        if is_zero:
            samples[mask] = -1
        copy_samples(places[SEGMENT], samples, bases.values, row_bytes, memory)
        if clock.method == "linear":
            other = np.empty_like(values)
            memory = other.reshape(-1).view(np.uint8).reshape(size, count * row_bytes)
            copy_samples(places[SEGMENT], after, bases.values, row_bytes, memory)
            values = _mixed(values, other, weights)
    if values is not out:
        out[...] = values
    return -1, mask


def _mixed(
    before: npt.NDArray[Any], after: npt.NDArray[Any], weights: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return what lies between samples, as `stepwell.alignment.Aligned.of` mixes rows."""
    share = weights.reshape(-1, *[1] * (before.ndim - 1))
    # a sample that has no share may be NaN or infinite
    mixed: npt.NDArray[np.float64] = before * (1.0 - share) + np.where(share > 0, after, 0) * share
    return mixed
