"""Statistics as LeRobot has them: its keys and shapes, and the values that the data have.

::

    feature            shape of min, max, mean, std, q01 ... q99        count
    float32 [1]        (1,)                                             rows
    float32 [14]       (14,)                                            rows
    int64 [2, 3]       (3,), over the rows and the first axis;          rows
                       of v2.1 (2, 3): an entry for each element
    camera             (3, 1, 1), of each channel, in [0, 1]            images that were looked at
    depth map          (1, 1, 1), in the unit that was recorded         likewise, and some of their pixels
    string             none

LeRobot up to 0.4.4 squares uint8 pixels as uint8, so that a camera's std is 0, and takes the mean of the episodes'
quantiles for the dataset's. Here sums are float64 and quantiles are read from sketches that can be merged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, FormatError
from stepwell.formats.source_episodes import as_view, episodes_of, schema_of
from stepwell.lerobot.depth import Depth, depth_entry, depth_of
from stepwell.lerobot.info import DatasetInfo, FeatureInfo
from stepwell.lerobot.meta_files import (
    WHAT_TO_DO,
    episode_paths,
    open_parquet,
    parse_line,
    read_columns,
    read_json,
    read_lines,
    said,
    whole_number,
)
from stepwell.schema import Array, Feature, Image
from stepwell.store.statistics import FeatureStatistics, column_statistics, has_statistics, merge_all, stream_statistics

if TYPE_CHECKING:
    from stepwell.store import Store
    from stepwell.windows import View

__all__ = [
    "EPISODES_STATS_LINES",
    "MAX_IMAGES",
    "STATS_PATH",
    "EpisodeStatistics",
    "Statistics",
    "StatisticsSum",
    "as_lerobot",
    "depth_summary",
    "image_stride",
    "image_summary",
    "info_of",
    "is_summed",
    "merged",
    "numeric_statistics",
    "numeric_summary",
    "read_statistics",
    "sampled_steps",
    "statistics_of",
    "stats_of_lines",
    "stored_entries",
    "summaries_of",
]

Statistics = dict[str, dict[str, npt.NDArray[Any]]]
"""By feature, then by key: "min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"."""

STATS_PATH = "meta/stats.json"
EPISODES_STATS_LINES = "meta/episodes_stats.jsonl"
MERGED = ("min", "max", "mean", "std", "count")
MAX_IMAGES = 16384
MAX_WIDTH = 256
WHITE = 255.0
# sides of images from which pixels are left out, and about how many are left
LEAST_THINNED, THINNED_SIDE = 300, 150
MERGED_PARTS = 64
WAITING_VALUES = 1 << 20
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# squares of larger ones overflow
SAFE_SQUARE = 1e140


def statistics_of(
    view: View | Store, names: Iterable[str] | None = None, *, per_element: bool = False, max_images: int = MAX_IMAGES
) -> Statistics:
    """Compute the statistics of a selection of episodes, as ``meta/stats.json`` of a LeRobot dataset has them.

    Args:
        view: a store, or some of its episodes; final rows do not count.
        names: of features; default all that have statistics: arrays and uint8 images of fixed shape.
        per_element: of arrays of several axes an entry for each element, as in v2.1; else one along the last axis.
        max_images: of a camera, evenly spaced in each episode; where there are more, some are left out, and ``count``
            says how many were looked at. At least one an episode is.

    Returns:
        By name, float64 arrays; ``count`` int64 [1].

    Raises:
        FeatureNotFoundError: a name that the store does not have.
        SchemaError: stores of different features in one view.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> store = tiny_store(f"{tempfile.mkdtemp()}/tiny.well", lengths=(4,))
        >>> found = statistics_of(store)
        >>> found["action"]["mean"].tolist(), found["observation.image"]["max"].shape
        ([1.5, 1.5], (3, 1, 1))
    """
    chosen = _chosen(schema_of(view), names)
    found = summaries_of(view, chosen, per_element=per_element, max_images=max_images)
    return {name: as_lerobot(found[name], info_of(name, chosen[name])) for name in chosen if name in found}


def summaries_of(
    view: View | Store, features: Mapping[str, Feature], *, per_element: bool = False, max_images: int = MAX_IMAGES
) -> dict[str, FeatureStatistics]:
    """Summarise the columns of a selection of episodes; see `statistics_of`."""
    episodes = list(episodes_of(view))
    stride = image_stride(sum(episode.length for episode in episodes), max_images)
    total = StatisticsSum(per_element=per_element)
    depths = _depths(as_view(view), features)
    for episode in episodes:
        steps = sampled_steps(episode.length, stride)
        for name, feature in features.items():
            if name in depths:
                total.add({name: depth_summary(episode.images(name, feature, steps), depths[name])})
            elif feature.kind == "image":
                total.add({name: image_summary(episode.images(name, feature, steps), feature)})
            else:
                total.add_rows(name, episode.read(name))
    return total.result()


def numeric_summary(values: npt.NDArray[Any], *, per_element: bool = False) -> FeatureStatistics:
    """Summarise a numeric column, whatever its width."""
    shape = values.shape[1:] or (1,)
    width = math.prod(shape) if per_element else shape[-1]
    rows = values.reshape(-1, width)
    parts = [
        column_statistics(rows[:, begin : begin + MAX_WIDTH], Array(min(MAX_WIDTH, width - begin), rows.dtype))
        for begin in range(0, width, MAX_WIDTH)
    ]
    return _side_by_side(parts, shape if per_element else (width,))


def numeric_statistics(values: npt.NDArray[Any], *, per_element: bool = False) -> dict[str, npt.NDArray[Any]]:
    """Compute the statistics of a few numeric rows: those of `numeric_summary`, which cannot be added up."""
    shape = values.shape[1:] or (1,)
    rows = values.reshape(-1, math.prod(shape) if per_element else shape[-1]).astype(np.float64)
    if not np.isfinite(rows).all() or np.abs(rows).max() > SAFE_SQUARE:
        info = FeatureInfo("", values.dtype.name, shape, None, {})
        return as_lerobot(numeric_summary(values, per_element=per_element), info)
    mean = rows.mean(axis=0)
    # once more about the mean: of a constant nothing is left
    mean += (rows - mean).mean(axis=0)
    found = {"min": rows.min(axis=0), "max": rows.max(axis=0), "mean": mean, "std": _std(rows - mean)}
    found["count"] = np.array([len(values)], np.int64)
    found |= zip(QUANTILES, np.quantile(rows, list(QUANTILES.values()), axis=0), strict=True)
    wanted = shape if per_element else shape[-1:]
    return {key: value if key == "count" else value.reshape(wanted) for key, value in found.items()}


def image_summary(images: Iterable[npt.NDArray[np.uint8]], feature: Feature) -> FeatureStatistics:
    """Summarise images: of shape (3,), one entry a channel, 0 to 255; grey ones have three equal channels."""
    found = stream_statistics(images, feature)
    return found if found.shape == (3,) else _side_by_side([found] * 3, (3,))


def depth_summary(images: Iterable[npt.NDArray[Any]], depth: Depth) -> FeatureStatistics:
    """Summarise rows of a depth map, in the unit that was recorded: of shape (1,), of large ones some of the pixels."""
    few = (depth.values(thinned(image.reshape(*image.shape[:2], 1))) for image in images)
    first = next(few, None)
    if first is None:
        return FeatureStatistics.empty((1,))
    return stream_statistics(itertools.chain([first], few), Image(first.shape, "float32"))


def thinned(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return every n-th row and column of an image, as LeRobot has them: about 150 of the longer side."""
    longer = max(image.shape[:2])
    step = 1 if longer < LEAST_THINNED else longer // THINNED_SIDE
    return image[::step, ::step]


def _depths(view: View, features: Mapping[str, Feature]) -> dict[str, Depth]:
    """Return what the rows of depth maps mean."""
    entries = (view.stores[0].metadata.get("lerobot", {}).get("info") or {}).get("features", {})
    found = {}
    for name, feature in features.items():
        own = depth_entry(feature)
        depth = None if own is None else depth_of(entries.get(name, own)) or depth_of(own)
        if depth is not None:
            found[name] = depth
    return found


def image_stride(num_steps: int, max_images: int = MAX_IMAGES) -> int:
    """Return about every how many-th image is looked at, so that they are not more than a number."""
    return max(1, -(-num_steps // max_images))


def sampled_steps(length: int, stride: int) -> npt.NDArray[np.int64]:
    """Return the steps of an episode whose images are looked at: each the middle of as many equal parts."""
    count = -(-length // stride)
    return (2 * np.arange(count, dtype=np.int64) + 1) * length // (2 * count)


def as_lerobot(found: FeatureStatistics, info: FeatureInfo) -> dict[str, npt.NDArray[Any]]:
    """Return a summary with LeRobot's keys, in its shapes and units."""
    values = {"min": found.min, "max": found.max, "mean": found.mean, "std": found.std}
    values |= found.quantiles
    arrays: dict[str, npt.NDArray[Any]] = {key: np.asarray(value, np.float64) for key, value in values.items()}
    if info.is_camera:
        scale = 1.0 if info.is_depth else WHITE
        arrays = {key: (value / scale).reshape(-1, 1, 1) for key, value in arrays.items()}
    counted = int((found.count + found.num_nan + found.num_inf).max(initial=0))
    count = np.array([counted // _values_a_row(found, info)], np.int64)
    first = ("min", "max", "mean", "std")
    rest = {key: value for key, value in arrays.items() if key not in first}
    return {key: arrays[key] for key in first} | {"count": count} | rest


def info_of(name: str, feature: Feature) -> FeatureInfo:
    """Return LeRobot's form of a feature that has statistics."""
    shape = feature.fixed_shape or (1,)
    if (depth := depth_entry(feature)) is not None:
        return FeatureInfo(name, depth["dtype"], tuple(depth["shape"]), None, depth)
    is_camera = feature.kind == "image"
    dtype = "image" if is_camera else feature.np_dtype.name
    return FeatureInfo(name, dtype, (*shape[:2], 3) if is_camera else shape, None, {})


class StatisticsSum:
    """Summaries of episodes, added up one by one; equal to the summary of all their rows together."""

    def __init__(self, *, per_element: bool = False) -> None:
        self._levels: dict[str, list[list[FeatureStatistics]]] = {}
        self._per_element = per_element
        # summarised many episodes at a time: a summary costs more than the few rows of one
        self._rows: dict[str, list[npt.NDArray[Any]]] = {}
        self._num_waiting: dict[str, int] = {}

    def add_rows(self, name: str, values: npt.NDArray[Any]) -> None:
        """Add rows of a numeric feature; ``values``, [n, *shape], are copied."""
        self._rows.setdefault(name, []).append(np.array(values))
        self._num_waiting[name] = self._num_waiting.get(name, 0) + values.size
        if self._num_waiting[name] >= WAITING_VALUES:
            self._summarise(name)

    def add(self, parts: Mapping[str, FeatureStatistics]) -> None:
        """Add the summaries of one part, by feature."""
        for name, part in parts.items():
            levels = self._levels.setdefault(name, [[]])
            levels[0].append(part)
            for place, level in enumerate(levels):
                if len(level) < MERGED_PARTS:
                    break
                if place + 1 == len(levels):
                    levels.append([])
                levels[place + 1].append(merge_all(level))
                level.clear()

    def result(self) -> dict[str, FeatureStatistics]:
        """Return the summaries of all that was added."""
        for name in self._rows:
            self._summarise(name)
        return {
            name: merge_all(part for level in reversed(levels) for part in level)
            for name, levels in self._levels.items()
        }

    def _summarise(self, name: str) -> None:
        if self._rows[name]:
            rows = np.concatenate(self._rows[name])
            self._rows[name], self._num_waiting[name] = [], 0
            self.add({name: numeric_summary(rows, per_element=self._per_element)})


def _chosen(schema: Mapping[str, Feature], names: Iterable[str] | None) -> dict[str, Feature]:
    wanted = list(schema) if names is None else list(names)
    unknown = [name for name in wanted if name not in schema]
    if unknown:
        raise FeatureNotFoundError(f"no feature {', '.join(map(repr, unknown))}. There are: {', '.join(schema)}.")
    return {name: schema[name] for name in wanted if is_summed(schema[name])}


def is_summed(feature: Feature) -> bool:
    """Whether a feature has statistics here: numbers of fixed shape, depth maps, uint8 images of 1 or 3 channels."""
    if feature.kind == "image" and depth_entry(feature) is None:
        return feature.np_dtype == np.uint8 and feature.shape[2:] in ((), (1,), (3,))
    return has_statistics(feature) and not feature.is_ragged and 0 not in feature.shape


def _std(deviations: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.sqrt(np.square(deviations).mean(axis=0))
    return found


def _values_a_row(found: FeatureStatistics, info: FeatureInfo) -> int:
    """Return how many values of a row are counted in one entry."""
    if info.is_depth:
        return math.prod(thinned(np.empty(info.feature.fixed_shape, np.bool_)).shape)
    if info.is_camera:
        return math.prod(info.shape[:2])
    return max(1, math.prod(info.shape) // math.prod(found.shape))


def _side_by_side(parts: Sequence[FeatureStatistics], shape: tuple[int, ...]) -> FeatureStatistics:
    """Return the summaries of neighbouring columns as one."""

    def joined(name: str) -> npt.NDArray[Any]:
        return np.concatenate([np.ravel(getattr(part, name)) for part in parts]).reshape(shape)

    return FeatureStatistics(
        count=joined("count"),
        num_nan=joined("num_nan"),
        num_inf=joined("num_inf"),
        min=joined("min"),
        max=joined("max"),
        mean=joined("mean"),
        std=joined("std"),
        sketches=tuple(sketch for part in parts for sketch in part.sketches),
        is_sampled=any(part.is_sampled for part in parts),
    )


def read_statistics(root: Path, info: DatasetInfo, episodes: EpisodeStatistics) -> Statistics | None:
    """Return the statistics of a whole dataset, None where it stores none."""
    if info.version == "v2.1":
        return episodes.merged()
    path = root / STATS_PATH
    return _parsed(read_json(path), str(path)) if path.exists() else None


def stored_entries(root: Path) -> dict[str, Any]:
    """Return the entries of ``meta/stats.json`` as they are; none where there is none, or it cannot be read."""
    with suppress(FormatError, OSError):
        found = read_json(root / STATS_PATH)
        return found if isinstance(found, dict) else {}
    return {}


def merged(parts: Iterable[Mapping[str, Any]], where: str) -> Statistics | None:
    """Return the statistics of several episodes together, None of no episode; quantiles cannot be merged."""
    rows: dict[str, list[list[Any]]] = {}
    for part in parts:
        if not isinstance(part, dict):
            raise FormatError(f"{where} is not statistics. Allowed: an object, feature by feature. {WHAT_TO_DO}")
        for feature, found in part.items():
            try:
                rows.setdefault(feature, []).append([found[name] for name in MERGED])
            except (KeyError, TypeError, IndexError) as error:
                raise FormatError(f"{where}: {feature!r} lacks some of {', '.join(MERGED)}. {WHAT_TO_DO}") from error
    return {feature: _merged_feature(feature, values, where) for feature, values in rows.items()} or None


def _merged_feature(feature: str, rows: Sequence[Sequence[Any]], where: str) -> dict[str, npt.NDArray[np.float64]]:
    columns = zip(MERGED, zip(*rows, strict=True), strict=True)
    arrays = [_array(column, f"{where}: {name} of {feature!r}") for name, column in columns]
    low, high, mean, std, counts = arrays
    try:
        weights = counts.reshape(len(rows), *[1] * (mean.ndim - 1))
        # features with infinities have no mean: NaN
        with np.errstate(all="ignore"):
            whole = (mean * weights).sum(0) / weights.sum()
            variance = ((std**2 + (mean - whole) ** 2) * weights).sum(0) / weights.sum()
            deviation = np.sqrt(variance)
    except ValueError as error:
        raise FormatError(
            f"{where}: shapes of {feature!r} do not fit together ({said(error)}). Allowed: a count of shape [1], all "
            f"others of one shape. {WHAT_TO_DO}"
        ) from error
    return dict(zip(MERGED, (low.min(0), high.max(0), whole, deviation, counts.sum(0)), strict=True))


def _parsed(raw: Any, where: str) -> Statistics:
    """Return statistics from JSON types."""
    if not isinstance(raw, dict) or not all(isinstance(found, dict) for found in raw.values()):
        raise FormatError(f"{where} is not statistics. Allowed: an object of objects, feature by feature. {WHAT_TO_DO}")
    return {
        feature: {name: _array(value, f"{where}: {name} of {feature!r}") for name, value in found.items()}
        for feature, found in raw.items()
    }


def _array(value: Any, where: str) -> npt.NDArray[np.float64]:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(f"{where} is not an array of numbers: {said(error)}. {WHAT_TO_DO}") from error


class EpisodeStatistics:
    """The stored statistics of single episodes, read on first use."""

    def __init__(self, root: Path, info: DatasetInfo) -> None:
        self._root, self._info = root, info
        self._lines: list[str] | None = None
        self._tables: list[Any] | None = None

    def of(self, place: int) -> Statistics | None:
        """Return those of one episode, None where the dataset stores none."""
        if self._info.is_v3:
            return self._of_v3(place)
        return self._of_v21(place) if self._info.version == "v2.1" else None

    def merged(self) -> Statistics | None:
        """Return those of all episodes of v2.1 together; None where the dataset stores none."""
        path = self._root / EPISODES_STATS_LINES
        if not path.exists():
            return None
        numbers: list[int] = []

        def parts() -> Iterator[Any]:
            for number, stats in stats_of_lines(path):
                numbers.append(number)
                yield stats

        found = merged(parts(), str(path))
        if sorted(numbers) != list(range(len(numbers))):
            raise FormatError(f"{path} does not have each episode once. {WHAT_TO_DO}")
        return found

    def _of_v21(self, place: int) -> Statistics | None:
        path = self._root / EPISODES_STATS_LINES
        if self._lines is None:
            self._lines = read_lines(path) if path.exists() else []
        # each is long to parse, and nearly always they are in order
        nearest = [*self._lines[place : place + 1], *self._lines]
        records = (parse_line(line, number, path) for number, line in enumerate(nearest, place + 1))
        for record in records:
            if record.get("episode_index") == place:
                return _parsed(record.get("stats"), str(path))
        return None

    def _of_v3(self, place: int) -> Statistics | None:
        for path, table in self._v3_tables():
            if place < len(table):
                return _from_row(table, place, path)
            place -= len(table)
        return None

    def _v3_tables(self) -> list[Any]:
        if self._tables is None:
            self._tables = [(path, _stats_table(path)) for path in episode_paths(self._root)]
        return self._tables


def stats_of_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield each episode's number and its statistics as JSON; one at a time, since all together are large."""
    for number, line in enumerate(read_lines(path), 1):
        record = parse_line(line, number, path)
        yield whole_number(record, "episode_index", path), record.get("stats")


def _stats_table(path: Path) -> Any:
    with open_parquet(path) as file:
        # a column that is always there counts the rows where there are no statistics
        names = [name for name in file.schema_arrow.names if name.startswith("stats/")]
        return read_columns(file, path, [*names, "dataset_from_index"])


def _from_row(table: Any, row: int, path: Path) -> Statistics | None:
    found: Statistics = {}
    for column in table.column_names[:-1]:
        feature, _, name = column.removeprefix("stats/").rpartition("/")
        value = table.column(column)[row].as_py()
        if value is not None:
            found.setdefault(feature, {})[name] = _array(value, f"{path}: {column}")
    return found or None
