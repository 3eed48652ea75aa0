"""``stepwell show``: one episode or one step for people, or an episode's images on a sheet."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.cli.inspecting import metadata_text, name_of
from stepwell.cli.opening import open_given
from stepwell.cli.sheets import Row, Tile, displayable, write_sheet
from stepwell.errors import EpisodeNotFoundError, FeatureNotFoundError, StepwellError
from stepwell.schema import Feature
from stepwell.sizes import counted
from stepwell.store import Episode, Store

__all__ = ["describe_value", "run_show", "value_to_json"]

SHEET_COLUMNS = 6
MAX_SHOWN = 16
MAX_JSON_ELEMENTS = 1024
MAX_TEXT = 200
MAX_READ_BYTES = 1 << 30


def run_show(arguments: argparse.Namespace) -> int:
    """Print an episode or a step, or write the sheet of its images."""
    index, step = arguments.where
    with open_given(arguments) as store:
        episode = store[index]
        if arguments.out is not None:
            if step is not None:
                raise StepwellError(f"--out draws a whole episode: give {index}, not {index}:{step}.")
            title = name_of(arguments.path)
            write_episode_sheet(store, episode, arguments.out, arguments.feature, arguments.tiles, title=title)
            print(arguments.out)
        elif step is None:
            _print_episode(store, episode, arguments.json)
        else:
            _print_step(store, episode, step, arguments.json)
    return 0


def write_episode_sheet(
    store: Store, episode: Episode, out: Path, feature: str | None, num_tiles: int, *, title: str
) -> None:
    """Write a contact sheet of evenly spaced images of an episode.

    Args:
        feature: the image feature; None for the store's first.
        num_tiles: at most so many images, at least one.
        title: the store's name.

    Raises:
        FeatureNotFoundError: the store has no images, or the feature is none.
    """
    schema: Mapping[str, Feature] = store.schema or {}
    images = [name for name, known in schema.items() if known.kind == "image"]
    name = feature or next(iter(images), "")
    if name not in images:
        which = f"no image feature {name!r}" if name else "no image feature to draw"
        raise FeatureNotFoundError(f"{which}. There are: {', '.join(images) or 'none'}.")
    num_rows = _num_rows(episode, schema[name])
    steps = np.unique(np.linspace(0, num_rows - 1, max(1, num_tiles)).round().astype(int))
    labels = [f"step {step}" if step < episode.length else "after the last step" for step in steps]
    tiles = [Tile(displayable(_row(episode, name, s)), label) for s, label in zip(steps, labels, strict=True)]
    rows = [Row(tiles[start : start + SHEET_COLUMNS]) for start in range(0, len(tiles), SHEET_COLUMNS)]
    heading = f"{title}   episode {episode.index}   {counted(episode.length, 'step')}"
    write_sheet(out, rows, title=heading, subtitle=f"{name}   {metadata_text(episode.metadata)}")


def describe_value(value: Any) -> str:
    """Return one step's value for people: small ones in full, large ones by type, shape and range."""
    if isinstance(value, str):
        return json.dumps(value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…", ensure_ascii=False)
    if isinstance(value, bytes):
        return counted(len(value), "byte")
    array = np.asarray(value)
    if array.size <= MAX_SHOWN or array.dtype.names:
        return np.array2string(array, precision=4, separator=", ", max_line_width=100)
    shape = "x".join(map(str, array.shape))
    if array.dtype.kind not in "biuf":
        return f"{array.dtype} {shape}"
    return f"{array.dtype} {shape}  min {array.min():g}  mean {array.mean():.4g}  max {array.max():g}"


def value_to_json(value: Any) -> Any:
    """Return one step's value as JSON types; large arrays and bytes as what they are, not as their elements."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return {"bytes": len(value)}
    array = np.asarray(value)
    if array.size <= MAX_JSON_ELEMENTS and array.dtype.kind in "biufSU":
        return _finite(array.tolist())
    return {"dtype": str(array.dtype), "shape": list(array.shape)}


def _finite(value: Any) -> Any:
    """Return nested lists with None for what JSON has no number for, and bytes as text."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _num_rows(episode: Episode, feature: Feature) -> int:
    return episode.length + (1 if feature.final and episode.has_final else 0)


def _row(episode: Episode, name: str, step: int) -> Any:
    """Return one row of an episode, without decoding those that it does not need."""
    return episode.read_rows(name, step, step + 1)[0]


def _print_episode(store: Store, episode: Episode, as_json: bool) -> None:
    schema: Mapping[str, Feature] = store.schema or {}
    record = {
        "episode_index": episode.index,
        "length": episode.length,
        "terminated": bool(episode.terminated),
        "truncated": bool(episode.truncated),
        "interrupted": bool(episode.interrupted),
        "metadata": episode.metadata,
    }
    if as_json:
        shapes = {name: _column_shape(_num_rows(episode, feature), feature) for name, feature in schema.items()}
        print(json.dumps({**record, "features": shapes}, indent=2))
        return
    ended = [name for name in ("terminated", "truncated", "interrupted") if record[name]]
    print(f"episode {episode.index}  {counted(episode.length, 'step')}  {' and '.join(ended) or 'no ending recorded'}")
    for key, value in episode.metadata.items():
        print(f"  {key} = {json.dumps(value)}")
    width = max(map(len, schema))
    for name, feature in schema.items():
        print(f"  {name:<{width}}  {_describe_feature(episode, name, feature)}")


def _print_step(store: Store, episode: Episode, step: int, as_json: bool) -> None:
    position = step + episode.length if step < 0 else step
    if not 0 <= position < episode.length:
        raise EpisodeNotFoundError(
            f"no step {step} in episode {episode.index}, which has {episode.length}. "
            f"Allowed: {-episode.length} to {episode.length - 1}."
        )
    values = {name: _row(episode, name, position) for name in store.schema or ()}
    if as_json:
        record = {name: value_to_json(value) for name, value in values.items()}
        print(json.dumps({"episode_index": episode.index, "step_index": position, "values": record}, indent=2))
        return
    print(f"episode {episode.index}  step {position} of {episode.length}")
    width = max(map(len, values))
    for name, value in values.items():
        print(f"  {name:<{width}}  " + describe_value(value).replace("\n", "\n" + " " * (width + 4)))


def _column_shape(num_rows: int, feature: Feature) -> Any:
    if feature.is_ragged:
        return {"rows": num_rows}
    return {"dtype": str(feature.np_dtype), "shape": [num_rows, *feature.fixed_shape]}


def _describe_feature(episode: Episode, name: str, feature: Feature) -> str:
    num_rows = _num_rows(episode, feature)
    if feature.is_ragged:
        first = describe_value(_row(episode, name, 0)) if num_rows else ""
        return f"{counted(num_rows, 'row')}, the first: {first}" if num_rows else "no rows"
    if num_rows * feature.row_bytes <= MAX_READ_BYTES:
        return _describe_column(episode[name])
    shape = "x".join(map(str, (num_rows, *feature.fixed_shape)))
    return f"{feature.np_dtype} {shape}, too large to sum up; a step of it is shown by EPISODE:STEP"


def _describe_column(column: np.ndarray[Any, Any]) -> str:
    return describe_value(column) if column.size > MAX_SHOWN else f"{column.dtype} {describe_value(column)}"
