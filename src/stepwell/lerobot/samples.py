"""Features with a rate in LeRobot's format, which has values a frame: the samples that came since the frame before.

::

    store                       dataset, K: the most samples of any frame
    tactile       samples       tactile       [K, *shape] a frame, then zeros     info: {"rate": 150.0}
    tactile_time  seconds       tactile_time  [K] a frame, then -1
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError, SchemaError
from stepwell.formats.source_episodes import SourceEpisode
from stepwell.lerobot.info import FeatureInfo
from stepwell.schema import MAX_RATE, Array, Feature, Schema, times_name
from stepwell.store.samples import Samples, read_samples, read_times

if TYPE_CHECKING:
    from stepwell.lerobot.schema_mapping import Column

__all__ = [
    "FramedSamples",
    "check_clock",
    "check_rates",
    "names_with_times",
    "rates_of",
    "samples_of_frames",
    "with_rates",
]

NO_SAMPLE = -1.0
# LeRobot's (1,) is a scalar's shape
LEAST = 2


class FramedSamples:
    """The features with a rate of what is written, as frames hold them.

    Args:
        schema: of the store.
        episodes: that are written.
        least: by name in the store, the samples a frame of the dataset that is appended to has room for.
    """

    def __init__(self, schema: Schema, episodes: Sequence[SourceEpisode], least: Mapping[str, int]) -> None:
        self._schema = schema
        self._room = {
            name: max([LEAST, least.get(name, 0), *(_most(episode, times) for episode in episodes)])
            for name, times in schema.rated.items()
        }

    @property
    def schema(self) -> Schema:
        """The schema with features of fixed shape in the place of those with a rate."""
        features: dict[str, Feature] = dict(self._schema)
        for name, times in self._schema.rated.items():
            feature = self._schema[name]
            features[name] = Array((self._room[name], *feature.sample_shape), feature.np_dtype, names=feature.names)
            features[times] = Array((self._room[name],), "float64")
        return Schema(features)

    def read(self, episode: SourceEpisode, name: str) -> Any:
        """Return the frames of a feature in an episode: with a rate, the samples of each, [T, K, ...]."""
        rated = self._schema.rated_of(name)
        if rated is None:
            return episode.read(name)
        start, stop = episode.start, episode.start + episode.length + episode.has_final
        place = episode.segment, rated, self._schema[rated], start, stop
        if name == rated:
            values, fill = read_samples(*place, is_open=False).values, 0.0
        else:
            values, fill = read_times(*place, is_open=False), NO_SAMPLE
        counts = _counts(episode, self._schema.rated[rated])
        out = np.full((episode.length, self._room[rated], *values.shape[1:]), fill, values.dtype)
        frames = np.repeat(np.arange(episode.length), counts)
        out[frames, np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)] = values
        return out


def with_rates(columns: Sequence[Column], schema: Schema) -> tuple[Column, ...]:
    """Return the columns of a dataset with the rates of those that have one in what describes them."""
    found = []
    for column in columns:
        rate = schema[column.source].rate if column.source in schema else None
        raw = column.info.raw if rate is None else {**column.info.raw, "info": {"rate": rate}}
        found.append(column if rate is None else replace(column, info=replace(column.info, raw=raw)))
    return tuple(found)


def rates_of(features: Mapping[str, FeatureInfo]) -> dict[str, float]:
    """Return the rates of the features of a dataset that `with_rates` described, and whose times are there."""
    found = {}
    for name, info in features.items():
        about, times = info.raw.get("info"), features.get(times_name(name))
        rate = about.get("rate") if isinstance(about, Mapping) else None
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 < rate < MAX_RATE:
            continue
        is_alike = times is not None and times.dtype == "float64" and times.shape == info.shape[:1] != (1,)
        if is_alike and not info.is_camera and not info.is_text:
            found[name] = float(rate)
    return found


def check_rates(features: Mapping[str, FeatureInfo], others: Mapping[str, FeatureInfo], what: str) -> None:
    """Refuse samples of another rate than those of a dataset that they are put to.

    Args:
        features: of the dataset.
        others: what is put to it.
        what: that is, for people.

    Raises:
        SchemaError: it is of another rate.
    """
    rates, others_rates = rates_of(features), rates_of(others)
    for name in rates.keys() & others.keys():
        if others_rates.get(name) != rates[name]:
            theirs = f"at {others_rates[name]:g} Hz" if name in others_rates else "without a rate"
            raise SchemaError(
                f"{name!r} has samples at {rates[name]:g} Hz, and {what} has them {theirs}. A dataset has one rate of "
                "a feature: leave it out, or give it another name."
            )


def samples_of_frames(name: str, values: npt.NDArray[Any], times: npt.NDArray[np.float64]) -> Samples:
    """Return the samples of frames, [T, K, ...] and [T, K]."""
    is_there = times >= 0
    if not (np.diff(times[is_there]) > 0).all():
        raise FormatError(f"{times_name(name)!r}: times of samples that do not ascend.")
    return Samples(values[is_there], times[is_there])


def names_with_times(
    schema: Schema, features: Collection[str] | None, rename: Mapping[str, str] | None
) -> tuple[Collection[str] | None, dict[str, str]]:
    """Return features and their new names with those of the times of features with a rate."""
    renamed = dict(rename or {})
    for name, times in schema.rated.items():
        if name in renamed:
            renamed.setdefault(times, times_name(renamed[name]))
        if features is not None and name in features and times not in features:
            features = [*features, times]
    return features, renamed


def check_clock(schema: Schema, fps: float | None, own: float | None) -> None:
    """Refuse another number of frames a second than the steps have, by which times count."""
    if schema.rated and fps is not None and fps != own:
        raise SchemaError(f"fps={fps} of a store of {own} with features with a rate: their times would be others.")


def _counts(episode: SourceEpisode, times: str) -> npt.NDArray[np.int64]:
    """Return the samples of each frame; those of the final row are the last frame's."""
    stop = episode.start + episode.length + episode.has_final
    edges = episode.segment.offsets_map(times)[episode.start : stop + 1].astype(np.int64) // 8
    counts = np.diff(edges)
    counts[episode.length - 1] += counts[episode.length :].sum()
    return counts[: episode.length]


def _most(episode: SourceEpisode, times: str) -> int:
    return int(_counts(episode, times).max(initial=0))
