"""Samples of features with a rate: as users give and get them, and on their way to the rows of steps.

A row of the main clock holds the samples that came since the row before, so that what lies on the disk is a ragged
column, and one of times::

    steps (10 fps)       0         0.1        0.2        0.3       row i: samples in (t of row i - 1, t of row i]
    samples (25 Hz)      0   .04 .08 | .12 .16 .2 | .24 .28        what came after the last step stays with its row,
    rows                [0] [.04 .08] [.12 .16 .2 .24 .28]         or lies in the final row, where there is one
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, make_codec
from stepwell.codecs.sampled import SampledCodec, joined_samples, sample_edges
from stepwell.errors import CorruptSegmentError, DecodeError, StepError
from stepwell.schema import Feature, Schema, times_name
from stepwell.sizes import counted
from stepwell.store.decode import Bytes, StoredRows
from stepwell.store.values import EncodedRows, accept_column, accept_encoded, acceptor, check_first_row, has_rows

if TYPE_CHECKING:
    from stepwell.store.segments import Segment

__all__ = [
    "PendingSamples",
    "Samples",
    "StoredSamples",
    "cut_into_rows",
    "read_samples",
    "read_times",
    "refuse_rates",
    "rows_of_episode",
    "sample_ends",
]

Floats = npt.NDArray[np.float64]
Rows = dict[str, list[npt.NDArray[Any]]]
"""Name of a column (of samples or of their times) to the entries of each row."""
# what binary fractions spoil
ROUNDING = 1e-9
TIME_BYTES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The samples of a feature with a rate, of one episode: what ``episode["tactile"]`` is, and ``add_episode`` takes.

    Args:
        values: array [N, *shape of a sample]; of a feature with a codec also `EncodedRows`, a sample each.
        times: float64 [N], seconds since the episode's first step, ascending; or the first one's time alone: the others
            follow it at the feature's rate. Default: from 0 on.

    Example:
        >>> samples = Samples(np.zeros((3, 2), np.float32), [0.0, 0.01, 0.02])
        >>> len(samples), samples
        (3, <Samples 3 of float32 (2,), 0 to 0.02 s>)
    """

    values: npt.NDArray[Any]
    times: Any = 0.0

    def __post_init__(self) -> None:
        if not has_rows(self.values):
            object.__setattr__(self, "values", np.asarray(self.values))
        object.__setattr__(self, "times", np.asarray(self.times))
        if not has_rows(self.values) and not self.values.ndim:
            raise StepError("samples of a single number. Give values [N, ...].")

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        span = f", {self.times[0]:g} to {self.times[-1]:g} s" if self.times.ndim == 1 and len(self.times) else ""
        of = "encoded rows" if has_rows(self.values) else f"{self.values.dtype} {self.values.shape[1:]}"
        return f"<Samples {len(self)} of {of}{span}>"


class _Taker:
    """Accept samples of a feature as its rows hold them: arrays, or objects, the bytes that its codec makes of each."""

    def __init__(self, name: str, feature: Feature) -> None:
        self.name, self.sample, self._rate = name, feature.sample, float(feature.rate or 1.0)
        self._codec: Codec | None = None if feature.codec == "raw" else make_codec(self.sample)
        self._is_checked = False
        shape, dtype = (feature.sample_shape, feature.np_dtype) if self._codec is None else ((), np.dtype(object))
        self.empty: npt.NDArray[Any] = np.empty((0, *shape), dtype)

    def take(self, value: Any, time: Any, *, are_several: bool = False) -> tuple[npt.NDArray[Any], Floats]:
        """Return accepted values and times [n] of one sample or several."""
        if has_rows(value):
            encoded = accept_encoded(self.name, self.sample, value)
            return _objects(encoded), _accept_times(self.name, self._rate, time, len(encoded))
        values = self._accepted(value, are_several)
        times = _accept_times(self.name, self._rate, time, len(values))
        return (values if self._codec is None else self._encoded(self._codec, values)), times

    def _accepted(self, value: Any, are_several: bool) -> npt.NDArray[Any]:
        """Return accepted values, [n, *shape]."""
        name, shape, ndim = self.name, self.sample.fixed_shape, np.ndim(value)
        if ndim != len(shape) + 1 and (are_several or ndim != len(shape)):
            allowed = f"[n, {', '.join(map(str, shape))}]" if shape else "[n]"
            one = "" if are_several else f", or one of shape {shape}"
            raise StepError(f"feature {name!r}: got values of shape {np.shape(value)}. Allowed: {allowed}{one}.")
        if ndim == len(shape):
            values = np.asarray(acceptor(name, self.sample)(value), self.sample.np_dtype)[None]
        else:
            values = accept_column(name, self.sample, value)
        # it waits, and the caller may use its array again
        is_shared = self._codec is None and (values is value or np.may_share_memory(values, value))
        return values.copy() if is_shared else values

    def _encoded(self, codec: Codec, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if len(values) and not self._is_checked:
            check_first_row(self.name, codec, values[0, ...])
            self._is_checked = True
        return _objects([codec.encode(values[i, ...]) for i in range(len(values))])


def _objects(blobs: Sequence[bytes]) -> npt.NDArray[Any]:
    """Return bytes as an array of objects, which NumPy would cut at zeros."""
    found = np.empty(len(blobs), object)
    found[:] = list(blobs)
    return found


@dataclass(slots=True, eq=False)
class _Pending:
    """What was given of one feature since the last step."""

    taker: _Taker
    values: list[npt.NDArray[Any]] = field(default_factory=list)
    times: list[Floats] = field(default_factory=list)
    last: float = 0.0  # time of the last one, and of the last step that is stored
    step: float = -1.0

    def joined(self) -> tuple[npt.NDArray[Any], Floats]:
        """Return all values and times, which stay joined."""
        if len(self.times) != 1:
            self.values = [np.concatenate([self.taker.empty, *self.values])]
            self.times = [np.concatenate([np.empty(0), *self.times])]
        return self.values[0], self.times[0]


class PendingSamples:
    """Samples that wait for the step that follows them."""

    def __init__(self, schema: Schema, fps: float | None) -> None:
        self._schema, self._fps = schema, checked_fps(schema, fps)
        self._pending = {name: _Pending(_Taker(name, schema[name])) for name in schema.rated}
        self._times = schema.rated
        # what a step has no value of
        self.columns = frozenset({*schema.rated, *schema.rated.values()})

    def __bool__(self) -> bool:
        return any(each.times for each in self._pending.values())

    @property
    def names(self) -> str:
        """The features of which samples wait, for people."""
        return ", ".join(repr(name) for name, each in self._pending.items() if each.times)

    def add(self, name: str, value: Any, time: Any) -> None:
        """Take samples of a feature; see `Writer.append_at`."""
        each = self._pending.get(name)
        if each is None:
            rated = ", ".join(self._pending) or "none here"
            raise StepError(f"feature {name!r} has no rate. append_at takes: {rated}; `append` stores the others.")
        values, times = each.taker.take(value, time)
        if not len(times):
            return
        first, last = float(times[0]), each.last if each.times else -1.0
        if first <= each.step:
            raise StepError(
                f"feature {name!r}: time {first:g} s is not after the last step, of {each.step:g} s, which is stored "
                "already. Give samples before the step that follows them; times count from the episode's first step."
            )
        if first <= last:
            raise StepError(f"feature {name!r}: time {first:g} s is not after the sample before, of {last:g} s.")
        each.values.append(values)
        each.times.append(times)
        each.last = float(times[-1])

    def columns_of(self, first: int, count: int) -> dict[str, Any]:
        """Return what `rows` does as columns of steps that are given at once."""
        found = self.rows(first, count)
        schema = self._schema
        return {
            name: _encoded_rows(schema[name], rows) if name in schema.rated else rows for name, rows in found.items()
        }

    def rows(self, first: int, count: int) -> Rows:
        """Return what belongs to the steps from number ``first`` of the episode on, a row each."""
        ends = np.arange(first, first + count) / self._fps
        found: Rows = {}
        for name, each in self._pending.items():
            values, times = each.joined()
            edges = np.searchsorted(times, ends, side="right").tolist()
            found[name], found[self._times[name]] = _cut(values, [0, *edges]), _cut(times, [0, *edges])
        return found

    def rest(self, num_steps: int, *, is_cut: bool = False) -> tuple[Rows, int]:
        """Return what came after the last of so many steps, and how many samples lie after the episode's end.

        Raises:
            StepError: there are such; with ``is_cut`` they are left out.
        """
        end = num_steps / self._fps * (1 + ROUNDING)
        found: Rows = {}
        num_after = 0
        for name, each in self._pending.items():
            values, times = each.joined()
            stop = int(np.searchsorted(times, end, side="right"))
            if stop < len(times) and not is_cut:
                raise _after_the_end(name, len(times) - stop, float(times[-1]), num_steps, self._fps)
            num_after += len(times) - stop
            found[name], found[self._times[name]] = [values[:stop]], [times[:stop]]
        return found, num_after

    def stored(self, num_steps: int) -> None:
        """Let go of what belongs to the first ``num_steps`` steps of the episode: it is stored."""
        step = (num_steps - 1) / self._fps
        for each in self._pending.values():
            values, times = each.joined()
            start = int(np.searchsorted(times, step, side="right"))
            each.values, each.times = ([values[start:]], [times[start:]]) if start < len(times) else ([], [])
            each.step = step

    def extended(self) -> None:
        """Let go of all: it is stored with the last step, though the episode may go on."""
        for each in self._pending.values():
            if each.times:
                each.values, each.times, each.step = [], [], each.last

    def clear(self) -> None:
        """Begin with another episode."""
        for each in self._pending.values():
            each.values, each.times, each.last, each.step = [], [], 0.0, -1.0


def checked_fps(schema: Schema, fps: float | None) -> float:
    """Return the steps a second of a store whose schema may have rates."""
    if fps is None and schema.rated:
        raise StepError(
            f"feature {', '.join(map(repr, schema.rated))} has a rate: times count in steps of the main clock, and the "
            "store has no fps. Give it to create(path, schema, fps=...)."
        )
    return 1.0 if fps is None else float(fps)


def refuse_rates(schema: Schema, what: str) -> None:
    """Refuse a schema with rates where samples cannot be stored."""
    if schema.rated:
        raise StepError(
            f"feature {', '.join(map(repr, schema.rated))} has a rate, and {what} stores a value a step. Record by "
            "store.writer(), a writer for each environment."
        )


def rows_of_episode(schema: Schema, fps: float | None, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an episode with those of `Samples` as rows of its steps.

    Columns that come as rows already (lists with one array of samples a row, `EncodedRows`), with their times, are left
    as they are.

    Raises:
        StepError: samples, or rows of them, that do not fit their times, and times that `Writer.append_at` refuses.
    """
    found = dict(columns)
    rated = {name: times for name, times in schema.rated.items() if not _are_rows(columns, name, times)}
    for name in schema.rated.keys() - rated.keys():
        found |= _checked_rows(name, schema, columns)
    num_rows = [_num_rows(name, values) for name, values in found.items() if name not in {*rated, *rated.values()}]
    if not rated or not num_rows:
        return found
    missing = [name for name in rated if name not in columns]
    if missing:
        raise StepError(
            f"feature {', '.join(map(repr, missing))} is missing. Give stepwell.Samples(values, times), of no samples "
            "where there are none."
        )
    length, most = min(num_rows), max(num_rows)
    for name, times in rated.items():
        values, at = _of_samples(name, schema[name], columns[name], columns.get(times))
        own = cut_into_rows(name, values, at, length, checked_fps(schema, fps), has_final=most == length + 1)
        found[name], found[times] = _encoded_rows(schema[name], own[0]), own[1]
    return found


def _encoded_rows(feature: Feature, rows: list[npt.NDArray[Any]]) -> Any:
    """Return rows of samples as a column is given: as they are, or encoded."""
    return rows if feature.codec == "raw" else EncodedRows(map(joined_samples, rows))


def cut_into_rows(  # noqa: PLR0917
    name: str, values: npt.NDArray[Any], times: Floats, num_steps: int, fps: float, has_final: bool = False
) -> tuple[list[npt.NDArray[Any]], list[Floats]]:
    """Return the samples and the times of each row of an episode of so many steps.

    Raises:
        StepError: samples after its end.
    """
    end = num_steps / fps * (1 + ROUNDING)
    stop = int(np.searchsorted(times, end, side="right"))
    if stop < len(times):
        raise _after_the_end(name, len(times) - stop, float(times[-1]), num_steps, fps)
    edges = np.searchsorted(times, np.arange(num_steps) / fps, side="right").tolist()
    edges = [0, *edges, len(times)] if has_final else [0, *edges[:-1], len(times)]
    return _cut(values, edges), _cut(times, edges)


def read_samples(segment: Segment, name: str, feature: Feature, start: int, stop: int, *, is_open: bool) -> Samples:
    """Return the samples of the rows [start, stop) of an episode, raw ones as views of the files.

    Raises:
        CorruptSegmentError: there are not as many samples as times.
        DecodeError: a sample that its codec refuses.
    """
    data, edges, times = _find_samples(segment, name, feature, start, stop, is_open=is_open)
    shape, count = feature.sample_shape, len(times)
    if edges is None:
        return Samples(data[: count * _sample_bytes(feature)].view(feature.np_dtype).reshape(count, *shape), times)
    codec, values = make_codec(feature.sample), np.empty((count, *shape), feature.np_dtype)
    for number, (begin, end) in enumerate(edges[:count]):
        try:
            codec.decode_into(data[begin:end], values[number, ...])
        except DecodeError as error:
            raise DecodeError(
                f"segment {segment.name}: {name}.bin, sample {number} of rows {start} to {stop - 1}: {error}"
            ) from error
    return Samples(values, times)


def read_times(segment: Segment, name: str, feature: Feature, start: int, stop: int, *, is_open: bool) -> Floats:
    """Return the times of the samples of the rows [start, stop) of an episode, a view of the file.

    Raises:
        CorruptSegmentError: there are not as many samples as times.
    """
    return _find_samples(segment, name, feature, start, stop, is_open=is_open)[2]


def _find_samples(
    segment: Segment, name: str, feature: Feature, start: int, stop: int, *, is_open: bool
) -> tuple[Bytes, list[tuple[int, int]] | None, Floats]:
    """Return the bytes of the samples of rows, where encoded ones begin and end, and their times."""
    parts, num_bytes = [], []
    for column in (name, times_name(name)):
        begin, end = segment.offsets_map(column)[[start, stop]].tolist()
        parts.append(segment.blob_map(column)[begin:end])
        num_bytes.append(end - begin)
    samples, times = parts
    edges, is_whole = None, True
    if feature.codec == "raw":
        size = _sample_bytes(feature)
        num_samples, is_whole = len(samples) // size, num_bytes[0] % size == 0
    else:
        edges, is_whole = sample_edges(samples)
        num_samples = len(edges)
    count = min(num_samples, len(times) // TIME_BYTES)
    is_whole &= num_bytes == [len(samples), count * TIME_BYTES]
    if not is_open and not (is_whole and num_samples == count):
        raise CorruptSegmentError(
            f"segment {segment.name}: {name}.bin and {times_name(name)}.bin do not have as many samples as times of "
            f'rows {start} to {stop}. Run "stepwell verify PATH".'
        )
    found = times[: count * TIME_BYTES].view("<f8")
    if is_open:
        # what comes after the last step is written before the episode's end, which a dead writer never came to
        falls = np.flatnonzero(~(np.diff(found) > 0))
        count = int(falls[0]) + 1 if len(falls) else count
    return samples, edges, found[:count]


def _sample_bytes(feature: Feature) -> int:
    """Return the bytes of a sample of a raw feature with a rate."""
    return math.prod(feature.sample_shape) * feature.np_dtype.itemsize


def sample_ends(feature: Feature, row: Bytes) -> list[int]:
    """Return where the whole samples of a row end."""
    if feature.codec != "raw":
        return [stop for _, stop in sample_edges(row)[0]]
    size = _sample_bytes(feature)
    return list(range(size, len(row) + 1, size))


class StoredSamples(StoredRows):
    """The samples of a feature with a rate of one segment, in the place of its rows, by their numbers in it."""

    __slots__ = ("_size", "_starts")

    def __init__(  # noqa: PLR0917
        self,
        name: str,
        feature: Feature,
        offsets: npt.NDArray[np.uint64],
        blobs: Bytes,
        starts: npt.NDArray[np.uint64],
        num_rows: int,
    ) -> None:
        is_raw = feature.codec == "raw"
        # plain samples lie back to back: no offsets say where
        super().__init__(name, make_codec(feature.sample), None if is_raw else offsets[: num_rows + 1], blobs, num_rows)
        self._size = _sample_bytes(feature) if is_raw else 0
        # offsets of the times, 8 bytes each, of each row
        self._starts = starts[: num_rows + 1]

    def edges(self, first: int, stop: int) -> list[int]:
        """Return where a sample begins and ends in the blobs, which is checked."""
        assert stop == first + 1
        if self.offsets is None:
            begin, end = first * self._size, stop * self._size
            if end > self.num_bytes:
                raise self._damaged()
            return [begin, end]
        row = int(self._starts.searchsorted(np.uint64(first * TIME_BYTES), "right")) - 1
        if not 0 <= row < self.num_rows:
            raise self._damaged()
        number = first - int(self._starts[row]) // TIME_BYTES
        begin, end = int(self.offsets[row]), int(self.offsets[row + 1])
        if not 0 <= begin <= end <= self.num_bytes or number < 0:
            raise self._damaged()
        edges, _ = sample_edges(self.blobs[begin:end], number + 1)
        if len(edges) <= number:
            raise self._damaged()
        return [begin + edge for edge in edges[number]]

    def _damaged(self) -> CorruptSegmentError:
        return CorruptSegmentError(
            f'{self.file}: the samples of {self.name}.bin do not fit their times. Run "stepwell verify PATH".'
        )


def _are_rows(columns: Mapping[str, Any], name: str, times: str) -> bool:
    return all(isinstance(columns.get(each), list) or has_rows(columns.get(each)) for each in (name, times))


def _checked_rows(name: str, schema: Schema, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows of samples and of their times, lists or encoded, which fit each other."""
    feature, times = schema[name], times_name(name)
    found = {each: columns[each] for each in (name, times)}
    for each, given in found.items():
        if has_rows(given):
            found[each] = accept_encoded(each, schema[each], given)
    counts = [_num_samples(name, feature, found[name]), _num_samples(times, schema[times], found[times])]
    if counts[0] != counts[1]:
        raise StepError(
            f"feature {name!r}: rows of samples and rows of times that are not as many. Give "
            "stepwell.Samples(values, times)."
        )
    if counts[1] and -1 not in counts[1]:
        rows = found[times]
        is_encoded = isinstance(rows, EncodedRows)
        at = np.frombuffer(b"".join(rows), "<f8") if is_encoded else np.concatenate([np.ravel(row) for row in rows])
        _accept_times(name, float(feature.rate or 1.0), at, sum(counts[1]))
    return found


def _num_samples(name: str, feature: Feature, rows: Any) -> list[int]:
    """Return the number of samples of each row; -1 of a value that is no array, which is refused later."""
    if not isinstance(rows, EncodedRows):
        return [len(row) if np.ndim(row) else -1 for row in rows]
    codec, counts = make_codec(feature), []
    size = 0 if isinstance(codec, SampledCodec) else math.prod(feature.sample_shape) * feature.np_dtype.itemsize
    for number, blob in enumerate(rows.buffers):
        try:
            row = np.frombuffer(blob, np.uint8)
            counts.append(len(codec.edges(row)) if isinstance(codec, SampledCodec) else len(blob) // size)
        except DecodeError as error:
            raise StepError(f"feature {name!r}, row {number}: {error}") from error
        if size and len(blob) % size:
            raise StepError(f"feature {name!r}, row {number}: {len(blob)} bytes, of samples of {size} each.")
    return counts


def _num_rows(name: str, values: Any) -> int:
    if has_rows(values):
        return int(values.num_rows)
    try:
        return len(values)
    except TypeError as error:
        raise StepError(
            f"feature {name!r}: got a {type(values).__name__}. Give an array [n, ...] or a list of n values."
        ) from error


def _of_samples(name: str, feature: Feature, given: Any, times: Any) -> tuple[npt.NDArray[Any], Floats]:
    if not isinstance(given, Samples):
        raise StepError(
            f"feature {name!r} has a rate: got a {type(given).__name__}. Give stepwell.Samples(values, times)."
        )
    values, found = _Taker(name, feature).take(given.values, given.times, are_several=True)
    if times is not None and not np.array_equal(np.asarray(times), found):
        raise StepError(f"feature {name!r}: its times were given twice, and differ. Leave out the column of times.")
    return values, found


def _accept_times(name: str, rate: float, time: Any, count: int) -> Floats:
    """Return the accepted times of so many samples, [n]."""
    try:
        times = np.array(time, np.float64)
    except (TypeError, ValueError) as error:
        raise StepError(f"feature {name!r}: time {time!r} is no number of seconds.") from error
    if times.ndim == 0:
        times = times + np.arange(count) / rate
    if times.shape != (count,):
        raise StepError(f"feature {name!r}: {counted(count, 'value')} and times of shape {times.shape}.")
    if len(times) and not (np.isfinite(times).all() and times[0] >= 0):
        raise StepError(
            f"feature {name!r}: times from {times.min():g} to {times.max():g} s. Allowed: 0 or more, counted from the "
            "episode's first step."
        )
    if len(times) > 1 and (np.diff(times) <= 0).any():
        row = int(np.argmax(np.diff(times) <= 0))
        raise StepError(f"feature {name!r}: time {times[row + 1]:g} s is not after the one before, {times[row]:g} s.")
    return times


def _cut(array: npt.NDArray[Any], edges: Sequence[int]) -> list[npt.NDArray[Any]]:
    return [array[start:stop] for start, stop in pairwise(edges)]


def _after_the_end(name: str, count: int, last: float, num_steps: int, fps: float) -> StepError:
    return StepError(
        f"feature {name!r}: {counted(count, 'sample')} after the episode's end, the last one at {last:g} s: "
        f"{counted(num_steps, 'step')} at {fps:g} fps are {num_steps / fps:g} s. Times count in seconds from the "
        "episode's first step; append the steps that are missing, or discard_episode()."
    )
