"""Statistics of features: of a column, of a segment, of any selection of episodes.

They are per element of a step of at most 256 elements, per channel of an image, else one overall. A sealed segment
stores its own: moments and quantiles in ``segment.json`` for people, everything with the sketches in
``statistics.npz`` for merging. A selection merges the statistics of the segments that it holds whole, and reads the
rows of the others. Segments of a ring have none: most are evicted before they are needed.

Values are sorted block by block, which separates NaN and infinities and gives the quantiles; sums are float64 about
the median, so nothing overflows and nothing cancels. numpy alone: the sort is the cost, and a recorder need not wait
for numba.
"""

from __future__ import annotations

import io
import itertools
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import (
    CorruptSegmentError,
    DecodeError,
    FeatureNotFoundError,
    SchemaError,
    StoreAccessError,
    StoreFileError,
    did_you_mean,
)
from stepwell.schema import Feature, Schema
from stepwell.store.beneath import open_file, read_again
from stepwell.store.episodes import EpisodeTable
from stepwell.store.layout import replace_file
from stepwell.store.segments import Segment
from stepwell.store.sketch import Sketch, merge_sketches, sketch_counts, sketch_sorted
from stepwell.store.statistics_table import StatisticsTable, statistics_text

__all__ = [
    "STATISTICS",
    "EpisodeSelection",
    "FeatureStatistics",
    "aggregate",
    "column_statistics",
    "has_statistics",
    "load_statistics",
    "merge_all",
    "sample_rows",
    "segment_statistics",
    "statistics_shape",
    "stream_statistics",
    "write_statistics",
]

STATISTICS = "statistics.npz"
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# the sketches of this many parts are in memory at once
MERGE_PARTS = 128
# a larger step has one statistic overall
MAX_ELEMENTS = 256
# Limits of sampling, see `sample_rows`. Pixels of a few dozen frames say as much as those of hundreds, whose decoding
# would take a third of an import.
MAX_FRAMES = 256
MIN_STEPS = 32
MAX_DECODED_STEPS = 16384
MAX_SAMPLED_VALUES = 1 << 25
MAX_SAMPLED_PIXELS = 1 << 23
# values that are sorted at once, and that are summed at once
BLOCK_VALUES = 1 << 22
CHUNK_VALUES = 1 << 16
# squares of values between its inverse and this neither overflow nor vanish
SAFE_SQUARE = 1e140

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Extremes = Floats | Ints | npt.NDArray[np.uint64]
Counts = tuple[int, int, int]
# min, max (ints where they are ints), mean and std
Moments = tuple[float, float, float, float]
NO_MOMENTS: Moments = (math.nan, math.nan, math.nan, math.nan)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureStatistics:
    """The statistics of one feature over any selection of steps."""

    # Fields are numpy scalars when the shape is (). An immutable value; safe to share between threads and processes,
    # picklable.

    count: Ints  # int64 [*shape], finite values; the other fields are of these only
    num_nan: Ints  # int64 [*shape]
    num_inf: Ints  # int64 [*shape], of either sign
    # float64 [*shape], NaN where nothing was counted; of int64 and uint64 that dtype, exact, where something was
    min: Extremes
    max: Extremes  # like ``min``
    mean: Floats  # float64 [*shape]
    std: Floats  # float64 [*shape], of the population (divided by count)
    sketches: tuple[Sketch, ...]  # one `Sketch` an element of shape, in C order
    is_sampled: bool = False  # whether only some of the steps were counted, evenly spaced: see `sample_rows`

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every field: the feature's, (channels,) or ()."""
        return self.count.shape

    def quantile(self, fraction: float) -> Floats:
        """Return the value below which a fraction of the values lie: float64 [*shape]."""
        # Exact for at most 256 distinct values; see `Sketch` for the error otherwise.
        if not 0 <= fraction <= 1:
            raise ValueError(f"quantile fraction {fraction} is not between 0 and 1.")
        return np.array([sketch.quantile(fraction)[0] for sketch in self.sketches]).reshape(self.shape)[()]

    @property
    def quantiles(self) -> dict[str, Floats]:
        """The quantiles at 1, 10, 50, 90 and 99 %, as "q01", "q10", "q50", "q90", "q99"."""
        fractions = list(QUANTILES.values())
        columns = np.array([sketch.quantile(fractions) for sketch in self.sketches]).reshape(-1, len(fractions)).T
        return {name: column.reshape(self.shape)[()] for name, column in zip(QUANTILES, columns, strict=True)}

    def to_json(self) -> dict[str, Any]:
        """Return everything but the sketches as JSON types; NaN becomes None."""
        record: dict[str, Any] = {"sampled": True} if self.is_sampled else {}
        for name in ("count", "num_nan", "num_inf"):
            record[name] = getattr(self, name).tolist()
        for name in ("min", "max", "mean", "std"):
            record[name] = _nan_to_none(getattr(self, name).tolist())
        return record | {name: _nan_to_none(value.tolist()) for name, value in self.quantiles.items()}

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return everything as a few arrays, for `numpy.savez`."""
        # np.concatenate takes no empty list, and a feature may have no elements
        sketches = (sketch_counts([]), *self.sketches)
        arrays = {
            "is_sampled": np.array(self.is_sampled),
            "counts": np.stack([self.count, self.num_nan, self.num_inf]),
            "moments": np.stack([np.asarray(each, np.float64) for each in (self.min, self.max, self.mean, self.std)]),
            "num_points": np.array([len(sketch.values) for sketch in self.sketches], np.int64),
            "values": np.concatenate([sketch.values for sketch in sketches]),
            "weights": np.concatenate([sketch.weights for sketch in sketches]),
            "is_exact": np.concatenate([sketch.is_exact for sketch in sketches]),
        }
        return arrays | ({"extremes": np.stack([self.min, self.max])} if self.min.dtype.kind in "iu" else {})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> FeatureStatistics:
        """Return the statistics that `to_arrays` took apart."""
        # behind the last end nothing is left
        cuts = np.cumsum(arrays["num_points"])
        pieces = [np.split(arrays[name], cuts)[:-1] for name in ("values", "weights", "is_exact")]
        sketches = tuple(Sketch(*piece) for piece in zip(*pieces, strict=True))
        count, num_nan, num_inf = arrays["counts"]
        low, high, mean, std = arrays["moments"]
        # those of 64-bit integers that a float64 would round; older files do not have them
        low, high = arrays.get("extremes", (low, high))
        return cls(count, num_nan, num_inf, low, high, mean, std, sketches, bool(arrays["is_sampled"]))

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> FeatureStatistics:
        """Return the statistics of no values."""
        zero, nan = np.zeros(shape, np.int64)[()], np.full(shape, np.nan)[()]
        return cls(zero, zero, zero, nan, nan, nan, nan, (sketch_counts([]),) * math.prod(shape))

    def __repr__(self) -> str:
        sampled = ", sampled" if self.is_sampled else ""
        head = f"<FeatureStatistics {self.shape}, {int(self.count.max(initial=0))} values{sampled}>"
        return f"{head}\n{statistics_text(self)}"


def merge_all(parts: Iterable[FeatureStatistics]) -> FeatureStatistics:
    """Return the statistics of the values of all parts."""
    merged = [_merge_few(few) for few in _batches(parts, MERGE_PARTS)]
    if not merged:
        raise ValueError(
            "no statistics to merge. Give at least one; FeatureStatistics.empty(shape) is that of no values."
        )
    return merged[0] if len(merged) == 1 else merge_all(merged)


def _combine(counts: Ints, means: Floats, stds: Floats) -> tuple[Floats, Floats]:
    """Return mean and std of the whole from those of k parts, each [k, ...]."""
    # T. Chan, G. Golub and R. LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979;
    # about the mean of the largest part, and scaled, so that equal parts stay equal and huge ones do not overflow
    total = counts.sum(axis=0)
    shares = counts / np.maximum(total, 1)
    means, stds = np.where(counts > 0, means, 0.0), np.where(counts > 0, stds, 0.0)
    exponents = np.frexp(np.maximum(np.abs(means), stds).max(axis=0))[1]
    means, stds = np.ldexp(means, -exponents), np.ldexp(stds, -exponents)
    reference = np.take_along_axis(means, np.argmax(counts, axis=0)[None], axis=0)[0]
    mean = reference + (shares * (means - reference)).sum(axis=0)
    variance = (shares * (np.square(stds) + np.square(means - mean))).sum(axis=0)
    nothing = total == 0
    return (
        np.where(nothing, np.nan, np.ldexp(mean, exponents)),
        np.where(nothing, np.nan, np.ldexp(np.sqrt(variance), exponents)),
    )


def _batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of ``size``; the last list may be shorter."""
    batch = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _merge_few(parts: Sequence[FeatureStatistics]) -> FeatureStatistics:
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        raise SchemaError(f"statistics of shapes {sorted(shapes)} cannot be merged. They must be of one feature.")
    filled = [part for part in parts if part.count.any() or part.num_nan.any() or part.num_inf.any()]
    if len(filled) <= 1:
        return (filled or parts)[0]
    counts, means, stds = (np.stack([getattr(part, name) for part in filled]) for name in ("count", "mean", "std"))
    mean, std = _combine(counts, means, stds)
    return FeatureStatistics(
        count=counts.sum(axis=0),
        num_nan=np.sum([part.num_nan for part in filled], axis=0),
        num_inf=np.sum([part.num_inf for part in filled], axis=0),
        min=np.fmin.reduce([part.min for part in filled]),
        max=np.fmax.reduce([part.max for part in filled]),
        mean=mean,
        std=std,
        sketches=tuple(merge_sketches(column) for column in zip(*(part.sketches for part in filled), strict=True)),
        is_sampled=any(part.is_sampled for part in filled),
    )


def _nan_to_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_nan_to_none(item) for item in value]
    return None if math.isnan(value) else value


def has_statistics(feature: Feature) -> bool:
    """Whether a feature has statistics: arrays and images of bools, integers and floats, and nothing else."""
    return feature.kind in ("array", "image") and feature.np_dtype.kind in "biuf"


def statistics_shape(feature: Feature) -> tuple[int, ...]:
    """Return the shape that a feature's statistics have."""
    if feature.kind == "image":
        return tuple(size for size in feature.sample.shape[2:] if size is not None)
    sizes = tuple(size for size in feature.shape if size is not None)
    return sizes if math.prod(sizes) <= MAX_ELEMENTS else ()


def sample_rows(feature: Feature, num_rows: int) -> Ints | None:
    """Return which rows are counted, evenly spaced with the first and the last; None when all of them are."""
    # raw features of at most 256 elements a step are always counted whole
    elements = math.prod(size for size in feature.shape if size is not None)
    if feature.is_raw and feature.kind != "image" and elements <= MAX_ELEMENTS:
        return None
    most = MAX_SAMPLED_PIXELS if feature.kind == "image" else MAX_SAMPLED_VALUES
    limit = max(MIN_STEPS, most // max(elements, 1))
    if feature.is_image_of_any_size:
        limit = MIN_STEPS
    elif feature.kind == "image":
        limit = min(limit, MAX_FRAMES)
    elif not feature.is_raw:
        limit = min(limit, MAX_DECODED_STEPS)
    return None if num_rows <= limit else np.linspace(0, num_rows - 1, limit).round().astype(np.int64)


def column_statistics(
    array: npt.NDArray[Any], feature: Feature, *, mask: npt.NDArray[np.bool_] | None = None
) -> FeatureStatistics:
    """Return the statistics of the rows of a raw column that `mask` counts; reads block by block."""
    if 0 in feature.shape:
        return FeatureStatistics.empty(statistics_shape(feature))
    num_rows = len(array) if mask is None else int(np.count_nonzero(mask))
    chosen = sample_rows(feature, num_rows)
    shape = statistics_shape(feature)
    if chosen is None:
        blocks = _masked_blocks(array, mask, _rows_a_block(feature))
    else:
        rows = chosen if mask is None else np.flatnonzero(mask)[chosen]
        blocks = (array[few] for few in np.array_split(rows, -(-len(rows) // _rows_a_block(feature))))
    parts = (_block_statistics(block, shape, chosen is not None) for block in blocks)
    return merge_all(itertools.chain([FeatureStatistics.empty(shape)], parts))


def stream_statistics(
    values: Iterable[npt.NDArray[Any]], feature: Feature, *, is_sampled: bool = False
) -> FeatureStatistics:
    """Return the statistics of decoded steps; each is copied before the next one, so a buffer may be reused."""
    shape = statistics_shape(feature)
    if 0 in feature.shape:
        return FeatureStatistics.empty(shape)
    if feature.np_dtype.itemsize == 1:
        return _byte_statistics(values, feature.np_dtype, shape, is_sampled)
    blocks = _batches((value.reshape(-1, *shape).copy() for value in values), _rows_a_block(feature))
    parts = (_block_statistics(np.concatenate(block), shape, is_sampled) for block in blocks)
    return merge_all(itertools.chain([FeatureStatistics.empty(shape)], parts))


def _rows_a_block(feature: Feature) -> int:
    if feature.is_image_of_any_size:
        return 1
    return max(1, BLOCK_VALUES // math.prod(size for size in feature.shape if size is not None))


def _masked_blocks(
    array: npt.NDArray[Any], mask: npt.NDArray[np.bool_] | None, rows: int
) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, len(array), rows):
        block = array[start : start + rows]
        yield block if mask is None else block[mask[start : start + rows]]


def _block_statistics(block: npt.NDArray[Any], shape: tuple[int, ...], is_sampled: bool) -> FeatureStatistics:
    """Return the statistics of [..., *shape]."""
    if block.dtype.itemsize == 1:
        return _byte_statistics([block], block.dtype, shape, is_sampled)
    columns = block.reshape(-1, math.prod(shape)).T
    is_integer = block.dtype.kind in "iu" and block.dtype.itemsize == 8 and block.size > 0
    extremes = block.dtype.newbyteorder("=") if is_integer else np.dtype(np.float64)
    return _of_columns([_sorted_column(column) for column in _sort_columns(columns)], shape, is_sampled, extremes)


def _of_columns(
    found: list[tuple[Counts, Moments, Sketch]],
    shape: tuple[int, ...],
    is_sampled: bool,
    extremes: np.dtype[Any] = np.dtype(np.float64),  # noqa: B008
) -> FeatureStatistics:
    counts = np.array([column[0] for column in found], np.int64).T.reshape(3, *shape)
    # an array each: one of ints and floats together would round the ints
    low, high = (np.array([column[1][i] for column in found], extremes).reshape(shape)[()] for i in (0, 1))
    mean, std = (np.array([column[1][i] for column in found], np.float64).reshape(shape)[()] for i in (2, 3))
    sketches = tuple(column[2] for column in found)
    return FeatureStatistics(counts[0], counts[1], counts[2], low, high, mean, std, sketches, is_sampled)


def _byte_statistics(
    blocks: Iterable[npt.NDArray[Any]], dtype: np.dtype[Any], shape: tuple[int, ...], is_sampled: bool
) -> FeatureStatistics:
    """Count bools, int8 and uint8 by value: exact, and faster than sorting; nothing of the blocks is kept."""
    counts = np.zeros((math.prod(shape), 256), np.int64)
    for block in blocks:
        for place, column in enumerate(block.view(np.uint8).reshape(-1, len(counts)).T):
            for start in range(0, len(column), CHUNK_VALUES):
                counts[place] += np.bincount(column[start : start + CHUNK_VALUES], minlength=256)
    is_signed = dtype.kind == "i"
    if is_signed:
        counts = np.roll(counts, 128, axis=1)
    return _of_columns([_counted_column(mine, -128 if is_signed else 0) for mine in counts], shape, is_sampled)


def _counted_column(counts: Ints, first: int) -> tuple[Counts, Moments, Sketch]:
    sketch = sketch_counts(counts, first)
    total = sketch.count
    if total == 0:
        return (0, 0, 0), NO_MOMENTS, sketch
    mean = float(sketch.values @ sketch.weights) / total
    std = math.sqrt(float(np.square(sketch.values - mean) @ sketch.weights) / total)
    return (total, 0, 0), (float(sketch.values[0]), float(sketch.values[-1]), mean, std), sketch


def _sort_columns(columns: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the columns in native byte order and in memory order, each sorted: -inf, numbers, inf, NaN."""
    dtype = columns.dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        dtype = np.dtype(np.float32 if dtype.itemsize == 2 else np.float64)
    # float128 beyond the range of float64 becomes inf, and is counted as such
    with np.errstate(over="ignore"):
        found = np.array(columns, dtype, order="C")
    found.sort(axis=1)
    return found


def _sorted_column(column: npt.NDArray[Any]) -> tuple[Counts, Moments, Sketch]:
    begin, end, num_nan = 0, len(column), 0
    if column.dtype.kind == "f":
        infinity = column.dtype.type(np.inf)
        begin = int(np.searchsorted(column, -infinity, "right"))
        end = int(np.searchsorted(column, infinity, "left"))
        num_nan = len(column) - int(np.searchsorted(column, infinity, "right"))
    counts = (end - begin, num_nan, len(column) - num_nan - (end - begin))
    finite = column[begin:end]
    if len(finite) == 0:
        return counts, NO_MOMENTS, sketch_counts([])
    return counts, (finite[0].item(), finite[-1].item(), *_moments(finite)), sketch_sorted(finite)


def _moments(values: npt.NDArray[Any]) -> tuple[float, float]:
    """Return mean and std of finite, sorted values, chunk by chunk, so that each stays in the cache."""
    # about the median, which is never further than one std from the mean: one pass, and at most half a bit cancels
    largest = max(abs(float(values[0])), abs(float(values[-1])))
    exponent = 0 if largest == 0 or 1 / SAFE_SQUARE < largest < SAFE_SQUARE else math.frexp(largest)[1]
    median = math.ldexp(float(values[len(values) // 2]), -exponent)
    total = squares = 0.0
    for start in range(0, len(values), CHUNK_VALUES):
        deviations = values[start : start + CHUNK_VALUES].astype(np.float64)
        if exponent:
            np.ldexp(deviations, -exponent, out=deviations)
        deviations -= median
        total += float(deviations.sum())
        squares += float(np.square(deviations, out=deviations).sum())
    rest = total / len(values)
    std = math.sqrt(max(squares / len(values) - rest * rest, 0.0))
    return math.ldexp(median + rest, exponent), math.ldexp(std, exponent)


class EpisodeSelection(NamedTuple):
    """Episodes of one store, as it was at one moment."""

    schema: Schema | None
    segments: Sequence[Segment]
    table: EpisodeTable


def segment_statistics(
    segment: Segment,
    schema: Schema,
    names: Iterable[str] | None = None,
    *,
    episodes: npt.NDArray[Any] | EpisodeTable | None = None,
) -> dict[str, FeatureStatistics]:
    """Compute the statistics of a segment from the rows of `episodes` (default: all ended ones, without discarded)."""
    wanted = set(schema if names is None else names)
    chosen = {name: feature for name, feature in schema.items() if name in wanted and has_statistics(feature)}
    records: Any = _shown(segment.episodes) if episodes is None else _columns(episodes)
    masks: dict[bool, npt.NDArray[np.bool_]] = {}
    for final in {feature.final for feature in chosen.values()}:
        lengths = records["rows"] if final else records["length"]
        masks[final] = _row_mask(segment.num_rows, records["start"], lengths)
    return {name: _feature_statistics(segment, name, feature, masks[feature.final]) for name, feature in chosen.items()}


def aggregate(parts: Iterable[EpisodeSelection], names: Iterable[str] | None = None) -> StatisticsTable:
    """Return the statistics of selections; of no episodes a count of 0 and NaN. Whole sealed segments are not read."""
    wanted = None if names is None else list(names)
    found: dict[str, list[FeatureStatistics]] = {}
    parts = list(parts)
    known = {name for part in parts for name in part.schema or ()}
    if known and wanted is not None and not known.issuperset(wanted):
        unknown = [name for name in wanted if name not in known]
        told = did_you_mean(unknown[0], known)
        raise FeatureNotFoundError(
            f"no feature {', '.join(map(repr, unknown))}.{told} There are: {', '.join(sorted(known))}."
        )
    for part in parts:
        for some in _selected(part, wanted):
            for name, statistics in some.items():
                found.setdefault(name, []).append(statistics)
    merged = {name: merge_all(several) for name, several in found.items()}
    for part in parts:
        for name, feature in (part.schema or {}).items():
            if name not in merged and has_statistics(feature) and (wanted is None or name in wanted):
                # no episode has it
                merged[name] = FeatureStatistics.empty(statistics_shape(feature))
    labels = {
        name: feature.names
        for part in parts
        for name, feature in (part.schema or {}).items()
        if feature.names is not None
    }
    return StatisticsTable(merged, labels)


def write_statistics(directory: str | Path, statistics: Mapping[str, FeatureStatistics]) -> None:
    """Write ``statistics.npz`` of a segment; the same statistics give the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, found in statistics.items():
            for field, array in found.to_arrays().items():
                entry = io.BytesIO()
                np.lib.format.write_array(entry, array, allow_pickle=False)
                # a ZipInfo of its own: numpy.savez would write the time of day
                archive.writestr(zipfile.ZipInfo(f"{name}/{field}.npy"), entry.getvalue())
    replace_file(f"{directory}/{STATISTICS}", buffer.getvalue(), sync=False)


def load_statistics(directory: str | Path, names: Iterable[str] | None = None) -> dict[str, FeatureStatistics]:
    """Read ``statistics.npz`` of a segment; empty where there is none."""
    path = Path(directory) / STATISTICS

    def read() -> dict[str, FeatureStatistics]:
        with open(open_file(path), "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _read_archive(arrays, names)

    try:
        # a list: an iterator is used up by the first try
        names = None if names is None else list(names)
        return read_again(read)
    except FileNotFoundError:
        return {}
    except (StoreFileError, StoreAccessError):
        raise
    except Exception as error:  # zipfile raises errors of seven kinds, depending on the bit
        raise CorruptSegmentError(f'{path}: damaged ({error}). Run "stepwell verify PATH".') from error


def _read_archive(arrays: Mapping[str, npt.NDArray[Any]], names: Iterable[str] | None) -> dict[str, FeatureStatistics]:
    fields: dict[str, list[str]] = {}
    for key in arrays:
        name, _, field = key.rpartition("/")
        fields.setdefault(name, []).append(field)
    wanted = list(fields) if names is None else [name for name in names if name in fields]
    return {
        name: FeatureStatistics.from_arrays({field: arrays[f"{name}/{field}"] for field in fields[name]})
        for name in wanted
    }


def _selected(part: EpisodeSelection, names: list[str] | None) -> Iterator[dict[str, FeatureStatistics]]:
    schema, segments, table = part
    if schema is None:
        return
    order = np.argsort(table.segment, kind="stable")
    indices, starts = np.unique(table.segment[order], return_index=True)
    for index, mine in zip(indices, np.split(order, starts[1:]), strict=False):
        segment = segments[index]
        episodes = table.take(mine)
        stored = load_statistics(segment.path, names) if _is_whole(segment, episodes) else {}
        missing = [name for name in (schema if names is None else names) if name not in stored]
        yield stored | segment_statistics(segment, schema, missing, episodes=episodes)


def _is_whole(segment: Segment, episodes: EpisodeTable) -> bool:
    shown = _shown(segment.episodes)
    return segment.is_sealed and np.array_equal(np.unique(episodes.start), shown["start"])


def _shown(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    shown: npt.NDArray[Any] = records[~records["discarded"]]
    return shown


def _columns(episodes: npt.NDArray[Any] | EpisodeTable) -> Any:
    if isinstance(episodes, EpisodeTable):
        return {"start": episodes.start, "length": episodes.length, "rows": episodes.rows}
    return episodes


def _row_mask(num_rows: int, starts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    changes = np.zeros(num_rows + 1, np.int32)
    np.add.at(changes, starts, 1)
    np.subtract.at(changes, starts + lengths, 1)
    mask: npt.NDArray[np.bool_] = np.cumsum(changes[:-1], dtype=np.int32) > 0
    return mask


def _feature_statistics(
    segment: Segment, name: str, feature: Feature, mask: npt.NDArray[np.bool_]
) -> FeatureStatistics:
    if feature.is_raw:
        data = segment.raw_map(name)[: segment.num_rows * feature.row_bytes]
        rows = data.view(feature.np_dtype).reshape(segment.num_rows, *feature.fixed_shape)
        return column_statistics(rows, feature, mask=None if mask.all() else mask)
    valid = np.flatnonzero(mask)
    sample = sample_rows(feature, len(valid))
    chosen = valid if sample is None else valid[sample]
    rows, stored = chosen.tolist(), segment.stored_rows(name)
    try:
        stored.check_sizes(rows)
        return stream_statistics(stored.values(rows), feature, is_sampled=sample is not None)
    except CorruptSegmentError as error:
        # offsets that lie elsewhere: like bytes that are no row they keep no segment from being sealed
        raise DecodeError(str(error)) from error
