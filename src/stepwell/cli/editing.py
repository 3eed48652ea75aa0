"""``stepwell edit``: LeRobot datasets, in place or as new ones; of stores what has a meaning there."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import StepwellError
from stepwell.formats.conversion import convert
from stepwell.formats.opening import is_store
from stepwell.json_text import parse_json
from stepwell.lerobot.edits import (
    change_features,
    change_statistics,
    change_tasks,
    delete,
    merge,
    parts_of,
    renumber,
    rewrite,
    split,
)
from stepwell.lerobot.info import LANGUAGE
from stepwell.lerobot.language import LANGUAGE_COLUMNS
from stepwell.lerobot.metadata import Metadata, select_episodes
from stepwell.lerobot.video_edits import encode_images, reencode, retime
from stepwell.sizes import counted
from stepwell.store import Store, concatenate, open

__all__ = ["run_edit"]

# what does the work on a store that has no such edit
INSTEAD = {
    "features": "stepwell convert STORE NEW --ignore NAME, and Store.add_column",
    "tasks": "Store.add_tasks, or stepwell export STORE DST --task TEXT",
    "stats": "nothing: a store's statistics are always those of its steps",
    "reencode": "stepwell convert STORE NEW --codec FEATURE=video",
    "to-video": "stepwell convert STORE NEW --codec FEATURE=video",
    "renumber": "nothing: a store numbers its steps itself",
    "retime": "nothing: a store numbers its frames itself",
    "rewrite": "stepwell convert STORE NEW",
}


def run_edit(arguments: argparse.Namespace) -> int:
    """Edit a dataset or a store."""
    action = arguments.action
    paths: list[Path] = arguments.paths if action == "merge" else [arguments.path]
    stores = [path for path in paths if is_store(path)]
    if stores and len(stores) < len(paths):
        raise StepwellError(f"{stores[0]} is a store, others are not. Convert them first: stepwell convert.")
    if not stores:
        for done in LEROBOT[action](arguments):
            info = Metadata.load(done).info
            episodes, steps = counted(info.total_episodes, "episode"), counted(info.total_frames, "step")
            print(f"{done}: LeRobot {info.version}  {episodes}  {steps}")
    elif action not in STORES:
        raise StepwellError(f"{stores[0]} is a store: edit {action} is of LeRobot datasets. Here: {INSTEAD[action]}.")
    else:
        for done in STORES[action](arguments):
            with open(done, mode="r") as store:
                print(f"{done}: {counted(len(store), 'episode')}  {counted(store.num_steps, 'step')}")
    return 0


def _numbers(groups: Iterable[Any], count: int, where: Path) -> list[int]:
    """Return numbers of episodes, ascending, each once."""
    numbers: list[int] = select_episodes(list(groups), count, str(where)).tolist()
    return numbers


def _flat(arguments: argparse.Namespace) -> list[Any]:
    return [each for group in arguments.episodes for each in group]


def _parts(arguments: argparse.Namespace, count: int) -> dict[str, list[int]]:
    names = [name for name, _ in arguments.parts]
    if len(set(names)) < len(names):
        raise StepwellError(f"{' '.join(names)}: a part comes twice. Give each a name of its own.")
    parts = {
        name: part if isinstance(part, float) else _numbers(part, count, arguments.path)
        for name, part in arguments.parts
    }
    try:
        return parts_of(count, parts)
    except ValueError as error:
        raise StepwellError(str(error)) from error


def _delete(arguments: argparse.Namespace) -> list[Path]:
    count = len(Metadata.load(arguments.path).episodes)
    return [delete(arguments.path, _numbers(_flat(arguments), count, arguments.path), arguments.out)]


def _split(arguments: argparse.Namespace) -> list[Path]:
    parts = _parts(arguments, len(Metadata.load(arguments.path).episodes))
    try:
        return list(split(arguments.path, parts, {name: arguments.out / name for name in parts}).values())
    except ValueError as error:
        raise StepwellError(str(error)) from error


def _merge(arguments: argparse.Namespace) -> list[Path]:
    packed = not arguments.keep_files
    return [merge(arguments.paths, arguments.out, is_packed=(packed, packed))]


def _features(arguments: argparse.Namespace) -> list[Path]:
    if not arguments.add and not arguments.remove:
        raise StepwellError("nothing to do. Give --add NAME=FILE.npy or --remove NAME.")
    added = {name: _annotations(path) if name in LANGUAGE_COLUMNS else _loaded(path) for name, path in arguments.add}
    return [change_features(arguments.path, added=added, removed=arguments.remove, target=arguments.out)]


def _loaded(path: str) -> tuple[Any, Mapping[str, Any]]:
    """Return the values in a file, and the entry of their feature."""
    try:
        values = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise StepwellError(f"--add {path}: {error}. Give a file of numpy.save: a row of values a step.") from error
    if not isinstance(values, np.ndarray) or not values.ndim:
        raise StepwellError(f"--add {path}: not an array of rows. Give a file of numpy.save: a row of values a step.")
    dtype = "string" if values.dtype.kind == "U" else values.dtype.newbyteorder("=").name
    return values, {"dtype": dtype, "shape": list(values.shape[1:]) or [1], "names": None}


def _annotations(path: str) -> tuple[list[Any], Mapping[str, Any]]:
    """Return the annotations of a column of language in a file, a list a row, and the entry of the feature."""
    try:
        rows = [parse_json(line) for line in Path(path).read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise StepwellError(
            f"--add {path}: {error}. Give a file of JSON lines: a list of annotations a step."
        ) from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, list):
            raise StepwellError(f"--add {path}: line {number} is no list. Give a list of annotations a step.")
    return rows, {"dtype": LANGUAGE, "shape": [1], "names": None}


def _tasks(arguments: argparse.Namespace) -> list[Path]:
    try:
        episodes = {int(number): text for number, text in arguments.episode}
    except ValueError as error:
        raise StepwellError(f"--episode: {error}. Give N=TEXT, e.g. 3='Lift the cube'.") from error
    try:
        return [
            change_tasks(
                arguments.path,
                task=arguments.task,
                episodes=episodes,
                replaced=dict(arguments.replace),
                target=arguments.out,
            )
        ]
    except ValueError as error:
        raise error if isinstance(error, StepwellError) else StepwellError(str(error)) from error


def _stats(arguments: argparse.Namespace) -> list[Path]:
    return [change_statistics(arguments.path, cameras=arguments.cameras, target=arguments.out)]


def _encode(encode: Callable[..., Path]) -> Callable[[argparse.Namespace], list[Path]]:
    def run(arguments: argparse.Namespace) -> list[Path]:
        video = {name: _value(name, text) for name, text in arguments.option}
        cameras = arguments.camera or None
        return [encode(arguments.path, cameras, video=video, target=arguments.out, workers=arguments.workers)]

    return run


def _value(name: str, text: str) -> Any:
    """Return the value of an option of `stepwell.Video`; a preset is text."""
    try:
        return text if name == "preset" else parse_json(text)
    except ValueError:
        return text


def _delete_of_store(arguments: argparse.Namespace) -> list[Path]:
    with open(arguments.path, mode="r" if arguments.out else "a") as store:
        gone = _numbers(_flat(arguments), len(store), arguments.path)
        if arguments.out is None:
            store.delete_episodes(gone)
            store.compact()
        else:
            _copy(store, arguments.out, sorted(set(range(len(store))).difference(gone)))
    return [arguments.out or arguments.path]


def _copy(store: Store, target: Path, episodes: list[int]) -> None:
    """Make a store of some episodes: bytes are copied, since every feature stays what it is."""
    convert(store, target, dict(store.schema or {}), episodes=episodes)


def _split_of_store(arguments: argparse.Namespace) -> list[Path]:
    with open(arguments.path, mode="r") as store:
        parts = _parts(arguments, len(store))
        for name, part in parts.items():
            _copy(store, arguments.out / name, part)
    return [arguments.out / name for name in parts]


def _merge_of_stores(arguments: argparse.Namespace) -> list[Path]:
    stores = [open(path, mode="r") for path in arguments.paths]
    concatenate(arguments.out, stores).close()
    return [arguments.out]


Run = Callable[[argparse.Namespace], list[Path]]
LEROBOT: dict[str, Run] = {
    "delete": _delete,
    "split": _split,
    "merge": _merge,
    "features": _features,
    "tasks": _tasks,
    "stats": _stats,
    "reencode": _encode(reencode),
    "to-video": _encode(encode_images),
    "renumber": lambda arguments: [renumber(arguments.path, arguments.out)],
    "retime": lambda arguments: [retime(arguments.path, arguments.camera or None, target=arguments.out)],
    "rewrite": lambda arguments: [rewrite(arguments.path, arguments.out)],
}
STORES: dict[str, Run] = {"delete": _delete_of_store, "split": _split_of_store, "merge": _merge_of_stores}
