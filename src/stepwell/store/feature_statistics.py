"""What the values of one feature are like, and how the statistics of parts become those of the whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import SchemaError
from stepwell.store.sketch import Sketch, merge_sketches, sketch_counts

__all__ = ["FeatureStatistics", "batches", "merge", "merge_all"]

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# the sketches of this many parts are held at once
MERGE_PARTS = 128

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Extremes = Floats | Ints | npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class FeatureStatistics:
    """What the values of one feature are like, over any selection of steps.

    Args:
        count: int64 [*shape], finite values; the other fields are of these only.
        num_nan: int64 [*shape].
        num_inf: int64 [*shape], of either sign.
        min: float64 [*shape], NaN where nothing was counted; of int64 and uint64 that dtype, exact, where something
            was.
        max: like ``min``.
        mean: float64 [*shape].
        std: float64 [*shape], of the population (divided by count).
        sketches: one `Sketch` an element of shape, in C order.
        is_sampled: whether only some of the steps were counted, evenly spaced: see `sample_rows`.

    Notes:
        Fields are numpy scalars when the shape is (). An immutable value; safe to share between threads and
        processes, picklable.
    """

    count: Ints
    num_nan: Ints
    num_inf: Ints
    min: Extremes
    max: Extremes
    mean: Floats
    std: Floats
    sketches: tuple[Sketch, ...]
    is_sampled: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every field: the feature's, (channels,) or ()."""
        return self.count.shape

    def quantile(self, fraction: float) -> Floats:
        """Return the value below which a fraction of the values lie: float64 [*shape].

        Exact for at most 256 distinct values; see `Sketch` for the error otherwise.

        Raises:
            ValueError: a fraction outside [0, 1].
        """
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
        return f"<FeatureStatistics {self.shape}, {int(self.count.max(initial=0))} values{sampled}>"


def merge(a: FeatureStatistics, b: FeatureStatistics) -> FeatureStatistics:
    """Return the statistics of the values of both.

    Associative: exactly for counts, min and max, to rounding for mean and std, within the rank error of `Sketch` for
    quantiles.

    Raises:
        SchemaError: statistics of features of different shapes.
    """
    return merge_all([a, b])


def merge_all(parts: Iterable[FeatureStatistics]) -> FeatureStatistics:
    """Return the statistics of the values of all parts.

    Better than `merge` one by one: sketches are compressed once.

    Args:
        parts: one or more; consumed a few at a time.

    Raises:
        SchemaError: statistics of features of different shapes.
        ValueError: no parts.
    """
    merged = [_merge_few(few) for few in batches(parts, MERGE_PARTS)]
    if not merged:
        raise ValueError(
            "no statistics to merge. Give at least one; FeatureStatistics.empty(shape) is that of no values."
        )
    return merged[0] if len(merged) == 1 else merge_all(merged)


def _combine(counts: Ints, means: Floats, stds: Floats) -> tuple[Floats, Floats]:
    """Return mean and std of the whole from those of k parts, each [k, ...].

    Source: T. Chan, G. Golub and R. LeVeque, Updating formulae and a pairwise algorithm for computing sample
    variances, 1979; about the mean of the largest part, and scaled, so that equal parts stay equal and huge ones do
    not overflow.
    """
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


def batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of ``size``, the last one shorter."""
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
