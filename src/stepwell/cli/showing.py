"""``stepwell show``: one episode or one step for people, or an episode's images on a sheet."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.cli.inspecting import metadata_text
from stepwell.cli.sheets import Row, Tile, displayable, write_sheet
from stepwell.errors import EpisodeNotFoundError, FeatureNotFoundError
from stepwell.store import Episode, Store, open
from stepwell.store.tables import counted

__all__ = ["describe_value", "run_show", "value_to_json"]

SHEET_COLUMNS = 6
MAX_SHOWN = 16
MAX_JSON_ELEMENTS = 1024
MAX_TEXT = 200


def run_show(arguments: argparse.Namespace) -> int:
    """Print an episode or a step, or write the sheet of its images."""
    index, step = arguments.where
    with open(arguments.path, mode="r") as store:
        episode = store[index]
        if arguments.out is not None:
            write_episode_sheet(store, episode, arguments.out, arguments.feature, arguments.tiles)
            print(arguments.out)
        elif step is None:
            _print_episode(episode, arguments.json)
        else:
            _print_step(episode, step, arguments.json)
    return 0


def write_episode_sheet(store: Store, episode: Episode, out: Path, feature: str | None, num_tiles: int) -> None:
    """Write a contact sheet of evenly spaced images of an episode.

    Args:
        feature: the image feature; None for the store's first.
        num_tiles: at most so many images, at least one.

    Raises:
        FeatureNotFoundError: the store has no images, or the feature is none.
    """
    images = [name for name, known in (store.schema or {}).items() if known.kind == "image"]
    name = feature or next(iter(images), "")
    if name not in images:
        which = f"no image feature {name!r}" if name else "no image feature to draw"
        raise FeatureNotFoundError(f"{which}. There are: {', '.join(images) or 'none'}.")
    frames = episode[name]
    steps = np.unique(np.linspace(0, len(frames) - 1, max(1, num_tiles)).round().astype(int))
    labels = [f"step {step}" if step < episode.length else "after the last step" for step in steps]
    tiles = [Tile(displayable(frames[step]), label) for step, label in zip(steps, labels, strict=True)]
    rows = [Row(tiles[start : start + SHEET_COLUMNS]) for start in range(0, len(tiles), SHEET_COLUMNS)]
    title = f"{store.path.name}   episode {episode.index}   {counted(episode.length, 'step')}"
    write_sheet(out, rows, title=title, subtitle=f"{name}   {metadata_text(episode.metadata)}")


def describe_value(value: Any) -> str:
    """Return one step's value for people: small ones in full, large ones by type, shape and range."""
    if isinstance(value, str):
        return json.dumps(value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…", ensure_ascii=False)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
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


def _print_episode(episode: Episode, as_json: bool) -> None:
    features = {name: episode[name] for name in episode.keys()}  # noqa: SIM118 - an episode is no mapping to iterate
    record = {
        "episode_index": episode.index,
        "length": episode.length,
        "terminated": bool(episode.terminated),
        "truncated": bool(episode.truncated),
        "interrupted": bool(episode.interrupted),
        "metadata": episode.metadata,
    }
    if as_json:
        print(
            json.dumps(
                {**record, "features": {name: _column_shape(column) for name, column in features.items()}}, indent=2
            )
        )
        return
    ended = [name for name in ("terminated", "truncated", "interrupted") if record[name]]
    print(f"episode {episode.index}  {counted(episode.length, 'step')}  {' and '.join(ended) or 'no ending recorded'}")
    for key, value in episode.metadata.items():
        print(f"  {key} = {json.dumps(value)}")
    width = max(map(len, features))
    for name, column in features.items():
        print(f"  {name:<{width}}  {_describe_column(column)}")


def _print_step(episode: Episode, step: int, as_json: bool) -> None:
    position = step + episode.length if step < 0 else step
    if not 0 <= position < episode.length:
        raise EpisodeNotFoundError(
            f"no step {step} in episode {episode.index}, which has {episode.length}. "
            f"Allowed: {-episode.length} to {episode.length - 1}."
        )
    values = {name: episode[name][position] for name in episode.keys()}  # noqa: SIM118 - as above
    if as_json:
        record = {name: value_to_json(value) for name, value in values.items()}
        print(json.dumps({"episode_index": episode.index, "step_index": position, "values": record}, indent=2))
        return
    print(f"episode {episode.index}  step {position} of {episode.length}")
    width = max(map(len, values))
    for name, value in values.items():
        print(f"  {name:<{width}}  " + describe_value(value).replace("\n", "\n" + " " * (width + 4)))


def _column_shape(column: Any) -> Any:
    return (
        {"dtype": str(column.dtype), "shape": list(column.shape)}
        if isinstance(column, np.ndarray)
        else {"rows": len(column)}
    )


def _describe_column(column: Any) -> str:
    if not isinstance(column, np.ndarray):
        return f"{counted(len(column), 'row')}, the first: {describe_value(column[0])}" if len(column) else "no rows"
    return describe_value(column) if column.size > MAX_SHOWN else f"{column.dtype} {describe_value(column)}"
