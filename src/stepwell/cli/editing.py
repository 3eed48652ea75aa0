"""``stepwell edit``, ``rm``, ``split``, ``merge``: LeRobot datasets and stores, in place or as new ones."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.cli.inspecting import check_spelling, open_at
from stepwell.cli.terminal import ask, print_folded
from stepwell.errors import StepwellError, StoreBusyError, StoreExistsError
from stepwell.formats.conversion import convert
from stepwell.formats.opening import is_store, recognised
from stepwell.json_text import parse_json
from stepwell.lerobot.auditing import is_lerobot
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
from stepwell.schema import Feature
from stepwell.sizes import counted, human_bytes, ranges_of
from stepwell.store import Store, concatenate, open
from stepwell.windows import View
from stepwell.windows.comparing import compare

__all__ = ["run_edit", "run_rm"]

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
# columns of LeRobot that number rows, episodes and tasks: those of a part are its own
NUMBERING = frozenset({"index", "episode_index", "task_index"})
# ranges of episodes in a question
MAX_RANGES = 8


def run_edit(arguments: argparse.Namespace) -> int:
    """Edit a dataset or a store."""
    action = arguments.action
    paths: list[Path] = arguments.paths if action == "merge" else [arguments.path]
    stores = _stores_of(paths)
    if stores and action not in STORES:
        raise StepwellError(f"{stores[0]} is a store: edit {action} is of LeRobot datasets. Here: {INSTEAD[action]}.")
    for done in (STORES if stores else LEROBOT)[action](arguments):
        print_folded(_line(done))
    return 0


def _stores_of(paths: list[Path]) -> list[Path]:
    """Return the paths where all are stores, none where all are LeRobot datasets."""
    for path in paths:
        check_spelling(path)
    stores = [path for path in paths if is_store(path)]
    if stores and len(stores) < len(paths):
        other = next(path for path in paths if path not in stores)
        raise StepwellError(
            f"{stores[0]} is a store, {other} is none. Convert it first: stepwell convert {other} NEW.well"
        )
    for path in paths if not stores else ():
        if not is_lerobot(path):
            told = recognised(path)
            known = f": it looks like {told}" if isinstance(told, str) else ""
            raise StepwellError(
                f"{path} is neither a store nor a directory of LeRobot{known}. Make a store of what is read in place "
                f"with stepwell convert {path} NEW.well"
            )
    return stores


def _line(path: Path) -> str:
    if is_store(path):
        with open(path, mode="r") as store:
            return f"{path}: {counted(len(store), 'episode')}  {counted(store.num_steps, 'step')}"
    info = Metadata.load(path).info
    episodes, steps = counted(info.total_episodes, "episode"), counted(info.total_frames, "step")
    return f"{path}: LeRobot {info.version}  {episodes}  {steps}"


def _numbers(groups: Iterable[Any], count: int, where: Path) -> list[int]:
    """Return numbers of episodes, ascending, each once."""
    # negative ones count from the end, as those of show do
    chosen = [each + count if isinstance(each, int) and -count <= each < 0 else each for each in groups]
    numbers: list[int] = select_episodes(chosen, count, str(where)).tolist()
    return numbers


def _flat(arguments: argparse.Namespace) -> list[Any]:
    return [each for group in arguments.episodes for each in group]


def run_rm(arguments: argparse.Namespace) -> int:
    """Delete episodes in place, after a question."""
    path = arguments.path
    if not arguments.episodes and arguments.where is None:
        arguments.parser.error("give EPISODES, or --where CONDITION: nothing was deleted.")
    is_own = bool(_stores_of([path]))
    # without a cache for it, a dataset of LeRobot is looked at in place
    with open(path, mode="a") if is_own else open_at(path) as store:
        view = View(store)
        count, num_steps = view.num_episodes, view.num_steps
        if arguments.episodes:
            view = view.select(_numbers(_flat(arguments), count, path))
        if arguments.where is not None:
            view = view.select(where=arguments.where)
        gone = _ended(view, path, is_chosen=arguments.where is not None)
        num_gone = int(store.episodes.length[gone].sum())
        if gone and not arguments.yes:
            what = f"{len(gone):,} of {counted(count, 'episode')} ({num_gone:,} of {counted(num_steps, 'step')})"
            ask(arguments.parser, f"Delete {what} of {path}: {_ranges(gone)}? They cannot be had back.")
        if not is_own and [*Metadata.load(path).episodes.length] != store.episodes.length.tolist():
            raise StoreBusyError(f"{path} was changed meanwhile, and numbers may mean other episodes. Ask again.")
        num_freed = _delete_in_place(store if is_own else None, path, gone)
    record = {"path": str(path), "episodes": gone, "num_deleted": len(gone), "num_left": count - len(gone)}
    if arguments.json:
        print(json.dumps({**record, "bytes_freed": num_freed}))
    else:
        freed = f"; {human_bytes(num_freed)} freed" if num_freed else ""
        print_folded(f"{path}: {counted(len(gone), 'episode')} deleted, {count - len(gone):,} left{freed}")
    return 0


def _ended(view: View, path: Path, *, is_chosen: bool) -> list[int]:
    """Return the episodes that can be deleted: one that is still recorded stays where a condition chose it."""
    numbers = view.episode_index.tolist()
    is_open = view.parts[0].table.is_open[numbers]
    recorded = [number for number, is_so in zip(numbers, is_open, strict=True) if is_so]
    if not recorded:
        return list(numbers)
    told = f"{'episode' if len(recorded) == 1 else 'episodes'} {_ranges(recorded)} of {path}"
    if not is_chosen:
        raise StoreBusyError(
            f"{told}: still being recorded, so nothing was deleted. Leave it out, or wait until its writer ends it."
        )
    print_folded(f"{told}: still being recorded, and left out", sys.stderr)
    return [number for number in numbers if number not in set(recorded)]


def _delete_in_place(store: Store | None, path: Path, gone: list[int]) -> int | None:
    """Delete episodes of a store, or of a LeRobot dataset; return the bytes freed where that is known."""
    if not gone:
        return 0
    if store is None:
        delete(path, gone)
        return None
    store.delete_episodes(gone)
    try:
        return store.compact()
    except StoreBusyError as error:
        print_folded(f"They are deleted, and their space is freed by the next Store.compact(): {error}", sys.stderr)
        return 0


def _ranges(numbers: list[int]) -> str:
    """Return the first ranges of ascending numbers as ``rm`` takes them.

    Example:
        >>> _ranges([0, 3, 4, 5, 6, 9])
        '0, 3:7, 9'
    """
    told = ranges_of(numbers)
    return ", ".join([*told[:MAX_RANGES], *(["..."] if len(told) > MAX_RANGES else [])])


def _parts(arguments: argparse.Namespace, count: int) -> dict[str, list[int]]:
    names = [name for name, _ in arguments.parts]
    if len(set(names)) < len(names):
        raise StepwellError(f"{' '.join(names)}: a part comes twice. Give each a name of its own.")
    parts = {
        name: part if isinstance(part, float) else _numbers(part, count, arguments.path)
        for name, part in arguments.parts
    }
    try:
        found = parts_of(count, parts)
    except ValueError as error:
        raise StepwellError(str(error)) from error
    if arguments.seed is None:
        return found
    fractions = [part for part in parts.values() if isinstance(part, float)]
    if len(fractions) < len(parts):
        raise StepwellError("--seed is of fractions, such as train=0.9 val=0.1. Leave it out, the episodes are named.")
    with open_at(arguments.path) as store:
        views = View(store).split(*fractions, seed=arguments.seed)
        return {name: view.episode_index.tolist() for name, view in zip(parts, views, strict=True)}


def _delete(arguments: argparse.Namespace) -> list[Path]:
    count = len(Metadata.load(arguments.path).episodes)
    return [delete(arguments.path, _numbers(_flat(arguments), count, arguments.path), arguments.out)]


def _split(arguments: argparse.Namespace) -> list[Path]:
    parts = _parts(arguments, len(Metadata.load(arguments.path).episodes))
    targets = {name: arguments.out / name for name in parts}
    _check_parts(parts)
    left = _parts_left(arguments.path, parts, targets)
    try:
        if left:
            split(arguments.path, {name: parts[name] for name in left}, {name: targets[name] for name in left})
    except ValueError as error:
        raise StepwellError(str(error)) from error
    return list(targets.values())


def _check_parts(parts: Mapping[str, list[int]]) -> None:
    """Refuse parts that share an episode, or have none, before anything is written."""
    owners: dict[int, str] = {}
    for name, part in parts.items():
        if not part:
            raise StepwellError(f"part {name!r} has no episodes. Give it some, or leave it out.")
        for number in part:
            other = owners.setdefault(number, name)
            if other != name:
                raise StepwellError(f"episode {number} is in {other!r} and in {name!r}. Give it to one part.")


def _parts_left(path: Path, parts: Mapping[str, list[int]], targets: Mapping[str, Path]) -> list[str]:
    """Return the parts that are not there yet: those of an interrupted split are kept where they are whole."""
    left = []
    for name, target in targets.items():
        if not target.exists() or (target.is_dir() and not any(target.iterdir())):
            left.append(name)
            continue
        if not (is_store(target) or is_lerobot(target)) or not _is_part(path, parts[name], target):
            raise StoreExistsError(
                f"{target} is there already, and is not this part of {path}. Choose another directory, or remove it."
            )
        print_folded(f"{target} is there already, and stays as it is", sys.stderr)
    return left


def _is_part(path: Path, part: list[int], target: Path) -> bool:
    """Return whether a directory holds some episodes of a store or dataset, by all but their pictures."""
    with open_at(path) as store, open_at(target) as made:
        schema: Mapping[str, Feature] = store.schema or {}
        names = [name for name, feature in schema.items() if feature.kind != "image" and name not in NUMBERING]
        views = View(store).select(part), View(made)
        return compare(*views, features=names, with_metadata=is_store(path)).is_equal


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
            _delete_in_place(store, arguments.path, gone)
        else:
            _copy(store, arguments.out, sorted(set(range(len(store))).difference(gone)))
    return [arguments.out or arguments.path]


def _copy(store: Store, target: Path, episodes: list[int]) -> None:
    """Make a store of some episodes: bytes are copied, since every feature stays what it is."""
    convert(store, target, dict(store.schema or {}), episodes=episodes)


def _split_of_store(arguments: argparse.Namespace) -> list[Path]:
    with open(arguments.path, mode="r") as store:
        parts = _parts(arguments, len(store))
        targets = {name: arguments.out / name for name in parts}
        _check_parts(parts)
        for name in _parts_left(arguments.path, parts, targets):
            _copy(store, targets[name], parts[name])
    return list(targets.values())


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
