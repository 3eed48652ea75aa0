"""What the page and exported files show of an episode: its cameras, its numbers, and facts about both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.schema import Feature
from stepwell.store import Episode, Store
from stepwell.store.marks import key_of_episode
from stepwell.viewer.listing import end_of

__all__ = [
    "DEFAULT_FPS",
    "cameras_of",
    "describe_episode",
    "is_camera",
    "is_drawn",
    "names_of_axes",
    "numbers_of",
    "schema_of",
]

# steps a second of files where neither their user nor the store says it
DEFAULT_FPS = 10
# numbers of a step that are drawn, and steps that are sent as they are
MAX_WIDTH, MAX_STEPS = 64, 20_000


def schema_of(store: Store) -> Mapping[str, Feature]:
    """Return the features of a store; none while it has no schema."""
    return {} if store.schema is None else store.schema


def is_camera(feature: Feature) -> bool:
    """Whether rows are images of bytes: grey, RGB or RGBA."""
    shape = feature.shape
    return feature.kind == "image" and feature.dtype == "|u1" and len(shape) == 3 and shape[-1] in (1, 3, 4)


def is_drawn(feature: Feature) -> bool:
    """Whether rows are drawn as curves: numbers, 1 to MAX_WIDTH a step."""
    if feature.kind != "array" or None in feature.shape or feature.np_dtype.kind not in "biuf":
        return False
    return 1 <= _width(feature) <= MAX_WIDTH


def cameras_of(schema: Mapping[str, Feature]) -> list[str]:
    """Return the names of the cameras."""
    return [name for name in schema if is_camera(schema[name])]


def names_of_axes(name: str, feature: Feature) -> list[str]:
    """Return a name for each number of a step: the feature's names, else numbers; of one number the feature's name."""
    width = _width(feature)
    if feature.names and len(feature.names) == width:
        return list(feature.names)
    return [str(axis) for axis in range(width)] if width > 1 else [name]


def describe_episode(store: Store, episode: Episode) -> dict[str, Any]:
    """Return what the page needs to know of an episode before its rows, as JSON types."""
    schema = schema_of(store)
    drawn = {name: schema[name] for name in schema if is_drawn(schema[name])}
    metadata = dict(episode.metadata)
    return {
        "id": key_of_episode(store, episode.index),
        "mark": str(metadata.pop("mark", "")),
        "note": str(metadata.pop("note", "")),
        "length": episode.length,
        "fps": store.fps,
        "end": end_of(store.episodes, episode.index),
        "metadata": json.dumps(metadata, default=str, ensure_ascii=False),
        "cameras": cameras_of(schema),
        "widths": {name: _width(feature) for name, feature in drawn.items()},
        "numbers": {name: feature.names for name, feature in drawn.items()},
    }


def numbers_of(episode: Episode, name: str) -> npt.NDArray[np.float32]:
    """Return float32 [places, width]: every step, or by turns the least and largest of each span of steps."""
    values = np.asarray(episode.read_rows(name, 0, episode.length), np.float32).reshape(episode.length, -1)
    if len(values) > MAX_STEPS:
        starts = np.arange(0, len(values), -(-len(values) // (MAX_STEPS // 2)))
        both = [np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)]
        values = np.stack(both, axis=1).reshape(-1, values.shape[1])
    return values.astype("<f4")


def _width(feature: Feature) -> int:
    return math.prod(size or 0 for size in feature.shape)
