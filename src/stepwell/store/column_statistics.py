"""The statistics of a column: per element of a step of at most 256 elements, per channel of an image, else one overall.

Values are sorted block by block, which sets NaN and infinities apart and gives the quantiles; sums are float64 about
the median, so nothing overflows and nothing cancels. numpy alone: its sort is the cost, and a recorder
need not wait for numba.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.schema import Feature
from stepwell.store.feature_statistics import FeatureStatistics, batches, merge_all
from stepwell.store.sketch import Sketch, sketch_counts, sketch_sorted

__all__ = ["column_statistics", "has_statistics", "sample_rows", "statistics_shape", "stream_statistics"]

MAX_ELEMENTS = 256
MAX_FRAMES = 256
MIN_STEPS = 32
MAX_DECODED_STEPS = 16384
MAX_SAMPLED_VALUES = 1 << 25
# pixels of a few dozen frames tell as much as those of hundreds, whose decoding would take a third of an import
MAX_SAMPLED_PIXELS = 1 << 23
BLOCK_VALUES = 1 << 22
CHUNK_VALUES = 1 << 16
SAFE_SQUARE = 1e140

Ints = npt.NDArray[np.int64]
Counts = tuple[int, int, int]
# min, max (ints where they are ints), mean and std
Moments = tuple[float, float, float, float]
NO_MOMENTS: Moments = (math.nan, math.nan, math.nan, math.nan)


def has_statistics(feature: Feature) -> bool:
    """Whether a feature has statistics: arrays and images of bools, integers and floats, and nothing else."""
    return feature.kind in ("array", "image") and feature.np_dtype.kind in "biuf"


def statistics_shape(feature: Feature) -> tuple[int, ...]:
    """Return the shape that a feature's statistics have.

    Example:
        >>> from stepwell.schema import Array, Image
        >>> statistics_shape(Image((96, 96, 3))), statistics_shape(Array(7)), statistics_shape(Array(1000))
        ((3,), (7,), ())
        >>> statistics_shape(Array((None, 3)))
        (3,)
    """
    if feature.kind == "image":
        return tuple(size for size in feature.shape[2:] if size is not None)
    sizes = tuple(size for size in feature.shape if size is not None)
    return sizes if math.prod(sizes) <= MAX_ELEMENTS else ()


def sample_rows(feature: Feature, num_rows: int) -> Ints | None:
    """Return which rows are counted, or None when all of them are.

    Raw features of at most 256 elements a step are always counted whole. Of images at most 256 frames and 2**23 values
    are, of other encoded features at most 16,384 steps, and of these and of larger arrays at most 2**25 values (but 32
    steps of either, and of images of any size no more): evenly spaced, the first and the last included.
    """
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
    """Return the statistics of a raw column; reads it block by block.

    Args:
        array: [n, *feature.shape], of the feature's dtype; may be a map.
        feature: one that `has_statistics`.
        mask: bool [n], rows to count; default all. Rows are sampled as `sample_rows` says.

    Example:
        >>> from stepwell.schema import Array
        >>> column_statistics(np.array([1.0, 2.0, 6.0, np.nan]), Array((), "float64"))
        <FeatureStatistics (), 3 values>
    """
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
    """Return the statistics of decoded steps, e.g. of an encoded feature; all that are given are counted.

    Args:
        values: of each step the array; copied before the next one is asked for, so a buffer may be reused.
        feature: one that `has_statistics`.
        is_sampled: whether the caller left steps out.
    """
    shape = statistics_shape(feature)
    if 0 in feature.shape:
        return FeatureStatistics.empty(shape)
    if feature.np_dtype.itemsize == 1:
        return _byte_statistics(values, feature.np_dtype, shape, is_sampled)
    blocks = batches((value.reshape(-1, *shape).copy() for value in values), _rows_a_block(feature))
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
    """Return mean and std of finite, sorted values, chunk by chunk, so that each stays in the cache.

    About the median, which is never further than one std from the mean: one pass, and no more than half a bit cancels.
    """
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
