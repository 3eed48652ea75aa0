"""Edits of LeRobot directories: episodes, features, tasks, statistics; in place, or as a new dataset.

::

    root ──> Metadata ──> Edit ──> hidden directory ──> root     in place: it takes the root's place, all at once
                                                    └─> target   a new dataset: it appears whole, or not at all

In place, files that stay are hard links; the old directory is removed when the new one has its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.errors import (
    DatasetNotFoundError,
    EpisodeNotFoundError,
    FeatureNotFoundError,
    SchemaError,
    StepError,
    StepwellError,
    StoreBusyError,
)
from stepwell.files.exchanging import BEFORE
from stepwell.formats.reader import warn_of_left_out
from stepwell.lerobot.appending import cameras_of, finish_append, locked_dataset
from stepwell.lerobot.depth import depth_of
from stepwell.lerobot.editing import Chosen, Edit, Values
from stepwell.lerobot.in_place import open_in_place
from stepwell.lerobot.info import FORMAT_ENTRIES, INFO_PATH, FeatureInfo, sizes_of
from stepwell.lerobot.meta_files import SUBTASK_INDEX, further_task_columns, open_parquet, read_subtasks
from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.parquet_writing import place_file
from stepwell.lerobot.samples import check_rates
from stepwell.lerobot.staging import is_being_recorded
from stepwell.lerobot.statistics import stored_entries
from stepwell.lerobot.writing import write_dataset
from stepwell.references.file_codec import noted_dataset
from stepwell.store.layout import built_directory, check_is_outside, replaced_directory

__all__ = [
    "Place",
    "change_features",
    "change_statistics",
    "change_tasks",
    "chosen_places",
    "delete",
    "edited",
    "merge",
    "parts_of",
    "renumber",
    "rewrite",
    "split",
    "states_of",
]

Place = str | os.PathLike[str]
# what an edit writes itself, of either version; all else is carried along
WRITTEN = re.compile(
    r"data/.*\.parquet|videos/.*\.mp4|meta/(info\.json|stats\.json|statistics\.npz|(sub)?tasks\.(parquet|jsonl)"
    r"|episodes(_stats)?\.jsonl|episodes/.*\.parquet)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Target:
    """The hidden directory that an edit is written to."""

    path: Path
    is_in_place: bool


@contextmanager
def edited(
    root: Place, target: Place | None, *, carries: bool = True, states: Mapping[Path, str] | None = None
) -> Iterator[Target]:
    """Yield the directory that takes the place of a dataset at the end, or becomes a new one.

    Args:
        root: of the dataset that is edited.
        target: of the new one; None: in the place of the old one.
        carries: whether a new one gets the files of the old one that no edit writes, but for hidden ones.
        states: of the datasets that are read, from before their metadata were, see `states_of`; default: as it is now.

    Raises:
        StoreBusyError: another program writes to the dataset, or has changed one meanwhile.
    """
    path = Path(root).absolute()
    if is_being_recorded(path):
        raise StoreBusyError(f"{path} is being recorded, or a recording of it was not finalized. Finalize it first.")
    if not (path / INFO_PATH).is_file():
        before = Path(BEFORE.format(path))
        told = f" An edit was killed while it took its place: move {before} back." if before.exists() else ""
        raise DatasetNotFoundError(f"no LeRobot dataset at {path}: there is no {INFO_PATH}.{told}")
    if target is not None and Path(target).absolute() != path:
        check_is_outside(target, [path])
        found = states_of([path]) if states is None else states
        with built_directory(target) as hidden, _unchanged(found):
            yield Target(Path(hidden), is_in_place=False)
            if carries:
                _carry(path, Path(hidden), _other_files(path, hidden=False), link=False)
        return
    finish_append(path)
    # the states are those under the lock
    with (
        locked_dataset(path),
        replaced_directory(path) as hidden,
        _unchanged(states_of([path]) if states is None else states),
    ):
        yield Target(Path(hidden), is_in_place=True)
        _carry(path, Path(hidden), _other_files(path), link=True)


def states_of(roots: Iterable[Place]) -> dict[Path, str]:
    """Return what becomes another when a dataset is edited, extended or replaced, by its directory."""
    found = {}
    for root in roots:
        # where there is none, its metadata say so
        with suppress(OSError):
            found[Path(root).absolute()] = noted_dataset(str(Path(root).absolute()), INFO_PATH)
    return found


@contextmanager
def _unchanged(states: Mapping[Path, str]) -> Iterator[None]:
    """Refuse what was made of datasets that others changed meanwhile, and say so where it failed for this reason."""
    try:
        yield
    except (StepwellError, OSError):
        _check_unchanged(states)
        raise
    _check_unchanged(states)


def _check_unchanged(states: Mapping[Path, str]) -> None:
    for path, state in states.items():
        if states_of([path]).get(path) != state:
            raise StoreBusyError(
                f"{path} was changed meanwhile, and numbers may mean other episodes. Nothing was edited: try again."
            )


def _other_files(root: Path, *, hidden: bool = True) -> Iterator[str]:
    """Yield the names of files and links of a root that no edit writes: a card, for instance."""
    for folder, folders, files in os.walk(root):
        if not hidden:
            folders[:] = [name for name in folders if not name.startswith(".")]
        for name in [*folders, *(name for name in files if hidden or not name.startswith("."))]:
            file = Path(folder, name)
            found = file.relative_to(root).as_posix()
            if (file.is_file() or file.is_symlink()) and not WRITTEN.fullmatch(found):
                yield found


def _carry(root: Path, target: Path, names: Iterable[str], *, link: bool) -> None:
    """Link or copy files of a root; links to no file are made anew."""
    for name in names:
        file, new = root / name, target / name
        if os.path.lexists(new):
            continue
        if file.is_file():
            place_file(file, new, link=link)
        else:
            new.parent.mkdir(parents=True, exist_ok=True)
            new.symlink_to(file.readlink())


def _warn_of_lost(metadata: Metadata) -> None:
    """Name what an edit of a dataset does not keep."""
    info, found = metadata.info, set()
    for path in metadata.data_files(range(len(metadata.episodes))):
        with open_parquet(path) as file:
            found |= set(file.schema_arrow.names) - info.raw["features"].keys()
    lost = {
        "columns of data files": found,
        "columns of tasks": further_task_columns(metadata.root, info),
        "entries of meta/stats.json": stored_entries(metadata.root).keys() - info.raw["features"].keys(),
    }
    for what, names in lost.items():
        warn_of_left_out(f"{metadata.root}: {what}", sorted(names), "since meta/info.json has no such features")


def _apply(root: Place, target: Place | None, make: Callable[[Metadata, bool], Edit]) -> Path:
    with edited(root, target) as place:
        metadata = Metadata.load(root)
        edit = make(metadata, place.is_in_place)
        _warn_of_lost(metadata)
        edit.write(place.path)
    return Path(root if target is None else target).absolute()


def _all_of(metadata: Metadata) -> list[Chosen]:
    return [Chosen(0, place) for place in range(len(metadata.episodes))]


def chosen_places(metadata: Metadata, episodes: Iterable[int]) -> list[int]:
    """Return numbers of episodes, ascending, each once; raises EpisodeNotFoundError."""
    found, count = sorted(set(episodes)), len(metadata.episodes)
    unknown = [number for number in found if not 0 <= number < count]
    if unknown:
        raise EpisodeNotFoundError(f"no episode {unknown[0]} in {metadata.root}. Allowed: 0 to {count - 1}.")
    return found


def _used_texts(metadata: Metadata, places: Iterable[int]) -> list[str]:
    """Return the texts of episodes' tasks, in the order of the dataset."""
    used = {text for place in places for text in metadata.episodes.tasks[place]}
    return [text for text in dict.fromkeys(metadata.tasks) if text in used]


def _part(metadata: Metadata, places: Sequence[int], *, link: bool) -> Edit:
    """Return the edit that leaves only some episodes."""
    if not places:
        raise StepwellError(f"no episode of {metadata.root} would be left. Leave at least one.")
    return Edit(
        [metadata],
        [Chosen(0, place) for place in places],
        metadata.info.features,
        _used_texts(metadata, places),
        link=link,
    )


def delete(root: Place, episodes: Iterable[int], target: Place | None = None) -> Path:
    """Delete episodes; the others are numbered anew, and tasks that none of them has are left out.

    Args:
        root: directory of the dataset.
        episodes: numbers.
        target: of a new dataset without them; None: in place.

    Returns:
        The directory of the result.

    Raises:
        EpisodeNotFoundError: no such episode.
        StepwellError: none would be left.
    """

    def make(metadata: Metadata, is_in_place: bool) -> Edit:
        gone = set(chosen_places(metadata, episodes))
        return _part(metadata, [n for n in range(len(metadata.episodes)) if n not in gone], link=is_in_place)

    return _apply(root, target, make)


def parts_of(count: int, parts: Mapping[str, float | Iterable[int]]) -> dict[str, list[int]]:
    """Return the episodes of each part: numbers as they are, fractions one after the other.

    Example:
        >>> parts_of(10, {"train": 0.75, "val": 0.25})
        {'train': [0, 1, 2, 3, 4, 5, 6], 'val': [7, 8, 9]}
        >>> parts_of(10, {"a": [3], "b": [1, 2]})
        {'a': [3], 'b': [1, 2]}
    """
    fractions = {name: part for name, part in parts.items() if isinstance(part, float)}
    if fractions and (len(fractions) < len(parts) or sum(fractions.values()) > 1 + 1e-9):
        told = ", ".join(f"{name}={part}" for name, part in parts.items())
        raise ValueError(f"parts {told}. Allowed: all episodes or all fractions. Split fractions must sum to <= 1.0.")
    if not fractions:
        return {name: list(part) for name, part in parts.items() if not isinstance(part, float)}
    found, start = {}, 0
    for number, (name, fraction) in enumerate(fractions.items(), 1):
        # what rounding leaves is the last one's, if it is asked for
        is_last = number == len(fractions)
        stop = count if is_last and sum(fractions.values()) > 1 - 1e-9 else start + int(count * fraction)
        found[name] = list(range(start, stop))
        start = stop
    return found


def split(root: Place, parts: Mapping[str, Iterable[int]], targets: Mapping[str, Place]) -> dict[str, Path]:
    """Write parts of a dataset as datasets of their own, each of which appears whole.

    Args:
        root: directory of the dataset, which stays as it is.
        parts: numbers of episodes, by name; no episode is in two.
        targets: directories, by name.

    Returns:
        The directories.

    Raises:
        EpisodeNotFoundError: no such episode.
        ValueError: an episode in several parts, or a part without one.
    """
    states = states_of([root])
    metadata = Metadata.load(root)
    places = {name: chosen_places(metadata, part) for name, part in parts.items()}
    numbers = [number for part in places.values() for number in part]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"Episodes cannot appear in multiple splits: {_repeated(numbers)} does.")
    for name, part in places.items():
        if not part:
            raise ValueError(f"Split {name!r} has no episodes. Give it some, or leave it out.")
    found = {}
    for name, part in places.items():
        with edited(root, targets[name], states=states) as place:
            _part(metadata, part, link=False).write(place.path)
        found[name] = Path(targets[name]).absolute()
    return found


def _repeated(numbers: Sequence[int]) -> int:
    return next(number for number in numbers if numbers.count(number) > 1)


def merge(
    roots: Sequence[Place],
    target: Place,
    *,
    is_packed: tuple[bool, bool] = (True, True),
    sizes_mb: tuple[float, float] | None = None,
    chunks_size: int | None = None,
) -> Path:
    """Write the episodes of several datasets as one, in their order.

    Args:
        roots: directories of datasets of one version, rate, robot and set of features.
        target: directory of the result.
        is_packed: whether small mp4 files, and small data files, are joined.
        sizes_mb: of data and of mp4 files, from which on they are not added to; default: of the first dataset.
        chunks_size: files a directory.

    Raises:
        SchemaError: datasets that do not fit together; the message names what differs.
    """
    if not roots:
        raise ValueError("No datasets to merge. Give at least one.")
    check_is_outside(target, roots)
    states = states_of(roots)
    datasets = [Metadata.load(root) for root in roots]
    for other in datasets[1:]:
        _check_alike(datasets[0], other)
    subtasks = _merged_subtasks(datasets)
    for each in datasets:
        _warn_of_lost(each)
        known = datasets[0].info.raw
        entries = sorted(
            name for name, value in each.info.raw.items() if name not in FORMAT_ENTRIES and value != known.get(name)
        )
        warn_of_left_out(f"{each.root}: entries of {INFO_PATH}", entries, "since those of the first dataset are kept")
        others = sorted(_other_files(each.root, hidden=False))
        warn_of_left_out(f"{each.root}: files", others, "since each of the datasets that are merged may have its own")
    episodes = [Chosen(n, place) for n, each in enumerate(datasets) for place in range(len(each.episodes))]
    with edited(roots[0], target, carries=False, states=states) as place:
        if place.is_in_place:
            raise StepwellError(f"{target} is one of the datasets that are merged. Give another directory.")
        Edit(
            datasets,
            episodes,
            datasets[0].info.features,
            list(dict.fromkeys(text for each in datasets for text in each.tasks if text)),
            entries={key: _merged_entry(key, datasets) for key in datasets[0].info.video_keys},
            subtasks=subtasks,
            recomputed=frozenset({SUBTASK_INDEX} if subtasks else ()),
            is_packed=is_packed,
            sizes_mb=sizes_mb,
            chunks_size=chunks_size,
        ).write(place.path)
    return Path(target).absolute()


def _check_alike(first: Metadata, other: Metadata) -> None:
    for what, one, two in (
        ("version", first.info.version, other.info.version),
        ("fps", first.info.fps, other.info.fps),
        ("robot_type", first.info.robot_type, other.info.robot_type),
        ("features", sorted(first.info.features), sorted(other.info.features)),
    ):
        if one != two:
            raise SchemaError(
                f"Same {what} is expected, but got {what}={two!r} in {other.root}, {one!r} in {first.root}. Datasets "
                "are merged that have the same."
            )
    for name, info in first.info.features.items():
        if (info.dtype, info.shape) != (other.info.features[name].dtype, other.info.features[name].shape):
            there = other.info.features[name]
            raise SchemaError(
                f"Same features is expected, but got {name!r} as {there.dtype} {list(there.shape)} in {other.root}, "
                f"{info.dtype} {list(info.shape)} in {first.root}."
            )
        there = other.info.features[name]
        if None not in (info.names, there.names) and info.names != there.names and not info.is_camera:
            raise SchemaError(
                f"Same features is expected, but got {name!r} with names {there.names} in {other.root}, {info.names} "
                f"in {first.root}. Where they mean the same, write the same into {INFO_PATH}."
            )
        mine, theirs = (depth_of(each.info.features[name].raw) for each in (first, other))
        if theirs != mine:
            raise SchemaError(
                f"{name!r} has depths that {other.root} means otherwise, {theirs}, than {first.root}, {mine}. "
                "Datasets are merged that have the same codes and units."
            )
    check_rates(first.info.features, other.info.features, str(other.root))


def _merged_subtasks(datasets: Sequence[Metadata]) -> list[str]:
    """Return the texts of subtasks of datasets that differ in them; none where they are the same."""
    if SUBTASK_INDEX not in datasets[0].info.features:
        return []
    lists = [read_subtasks(each.root) for each in datasets]
    if all(each == lists[0] for each in lists):
        return []
    for each, texts in zip(datasets, lists, strict=True):
        if texts is None:
            raise SchemaError(
                f"{each.root} has no meta/subtasks.parquet, and others do: its subtask_index would name their texts. "
                f"Add the file, or remove {SUBTASK_INDEX} first: stepwell edit features."
            )
    return list(dict.fromkeys(text for texts in lists for text in texts or ()))


def _merged_entry(key: str, datasets: Sequence[Metadata]) -> dict[str, Any]:
    """Return what info.json says of a camera of several datasets: null where they differ."""
    entries = [dict(each.info.features[key].raw) for each in datasets]
    facts = [dict(each.get("info") or {}) for each in entries]
    names = list(dict.fromkeys(name for each in facts for name in each))
    merged: dict[str, Any] = {}
    for name in names:
        values = [each.get(name) for each in facts]
        is_same = all(value == values[0] for value in values)
        merged[name] = values[0] if is_same else {} if isinstance(values[0], dict) else None
    depth = depth_of(entries[0])
    if depth is not None and depth.quantization is not None:
        # one of them may leave out what is LeRobot's default, or mark depth maps in the old way
        merged |= {"is_depth_map": True, **depth.quantization.info()}
        merged.pop("video.is_depth_map", None)
    return {**entries[0], "info": merged} if names else entries[0]


def change_features(
    root: Place,
    *,
    added: Mapping[str, tuple[Values, Mapping[str, Any]]] | None = None,
    removed: Iterable[str] = (),
    target: Place | None = None,
) -> Path:
    """Add features, and remove some.

    Args:
        root: directory of the dataset.
        added: by name: values of all rows, [frames, *shape], or a function of (row, episode_index, frame_index); and
            the entry of info.json: ``{"dtype": "float32", "shape": [1], "names": None}``.
        removed: names; not those of the five index columns.
        target: of a new dataset; None: in place.

    Raises:
        FeatureNotFoundError: a name that is not there.
        SchemaError: a feature that is there already, of another kind than numbers and text, or of other shape.
    """

    def make(metadata: Metadata, is_in_place: bool) -> Edit:
        features = dict(metadata.info.features)
        for name in removed:
            if name not in features:
                raise FeatureNotFoundError(f"Feature {name!r} not found. There are: {', '.join(features)}.")
            if features.pop(name).is_index:
                raise SchemaError(f"Cannot remove required features: {name!r} is one that every dataset has.")
        for name, (values, entry) in (added or {}).items():
            features[name] = _new_feature(metadata, features, name, values, entry)
        return Edit(
            [metadata],
            _all_of(metadata),
            features,
            metadata.tasks,
            added={name: values for name, (values, _) in (added or {}).items()},
            link=is_in_place,
        )

    return _apply(root, target, make)


def _new_feature(
    metadata: Metadata, features: Mapping[str, FeatureInfo], name: str, values: Any, entry: Mapping[str, Any]
) -> FeatureInfo:
    if name in features:
        raise SchemaError(
            f"Feature {name!r} already exists in {metadata.root}. Remove it first, or choose another name."
        )
    plain = {"dtype": str(entry["dtype"]), "shape": list(entry["shape"]), "names": entry.get("names")}
    raw = {**metadata.info.raw, "features": {**metadata.info.raw["features"], name: plain}}
    info = type(metadata.info).parse(raw, f"feature {name!r}").features[name]
    if info.is_camera:
        raise SchemaError(f"feature {name!r} is a camera. Only numbers and text can be added.")
    if not callable(values) and len(values) != int(metadata.episodes.length.sum()):
        raise SchemaError(
            f"feature {name!r}: {len(values)} values, where the dataset has {int(metadata.episodes.length.sum())} rows."
        )
    return info


def change_tasks(
    root: Place,
    *,
    task: str | None = None,
    episodes: Mapping[int, str] | None = None,
    replaced: Mapping[str, str] | None = None,
    target: Place | None = None,
) -> Path:
    """Give steps other tasks; the texts are sorted then, and each has one number.

    Args:
        root: directory of the dataset.
        task: of all steps that the others say nothing of.
        episodes: the task of whole episodes, by number.
        replaced: texts in the place of texts, wherever these are.
        target: of a new dataset; None: in place.

    Raises:
        EpisodeNotFoundError: no such episode.
        ValueError: a text that no task has.

    Notes:
        With none of them nothing but the numbers change: of a text that has several, one is left.
    """

    def make(metadata: Metadata, is_in_place: bool) -> Edit:
        own, other = dict(episodes or {}), dict(replaced or {})
        chosen_places(metadata, own)
        unknown = sorted(set(other).difference(metadata.tasks))
        if unknown:
            raise ValueError(f"Task replacements reference unknown tasks: {unknown}. There are: {metadata.tasks}.")

        def retask(number: int, text: str | None) -> str | None:
            if number in own:
                return own[number]
            if text in other:
                return other[text]
            return text if task is None else task

        records = metadata.episodes
        found = {retask(n, text) for n in range(len(records)) for text in records.tasks[n] or (None,)}
        texts = sorted(text for text in found if text is not None)
        if any(not isinstance(text, str) or not text for text in texts):
            raise StepError("a task is a text, and not an empty one.")
        return Edit([metadata], _all_of(metadata), metadata.info.features, texts, retask, link=is_in_place)

    return _apply(root, target, make)


def renumber(root: Place, target: Place | None = None) -> Path:
    """Number rows, episodes and tasks anew, each text once; write times, spans and totals as these follow from them.

    Files whose rows are right stay as they are; rows of no episode are left out.
    """

    def make(metadata: Metadata, is_in_place: bool) -> Edit:
        texts = list(dict.fromkeys(text for text in metadata.tasks if text))
        return Edit([metadata], _all_of(metadata), metadata.info.features, texts, link=is_in_place)

    return _apply(root, target, make)


def change_statistics(
    root: Place,
    *,
    features: Iterable[str] | None = None,
    cameras: bool = False,
    summed: Mapping[str, Any] | None = None,
    target: Place | None = None,
) -> Path:
    """Compute the statistics again, of the dataset and of each episode.

    Args:
        root: directory of the dataset.
        features: names; default all numeric features.
        cameras: whether cameras are looked at, too: 16,384 images of each at most.
        summed: entries of stats.json that are known, by name.
        target: of a new dataset; None: in place.
    """

    def make(metadata: Metadata, is_in_place: bool) -> Edit:
        infos = metadata.info.features
        unknown = [name for name in features or () if name not in infos]
        if unknown:
            raise FeatureNotFoundError(f"no feature {unknown[0]!r}. There are: {', '.join(infos)}.")
        names = {name for name, info in infos.items() if not info.is_text and (cameras or not info.is_camera)}
        wanted = frozenset(names if features is None else features)
        return Edit(
            [metadata],
            _all_of(metadata),
            infos,
            metadata.tasks,
            recomputed=wanted,
            summed=summed or {},
            link=is_in_place,
        )

    return _apply(root, target, make)


def rewrite(root: Place, target: Place | None = None, *, progress: bool | None = None) -> Path:
    """Write all of a dataset anew: meta/, index columns, times, spans and statistics as they are computed.

    Packets and image files stay as they are, where an mp4 file can hold them. What a reader of the dataset sees is what
    is written: it must be one that stepwell opens. Further columns of the table of episodes, further entries of
    ``meta/info.json`` and further files stay; what does not is named in a `LeftOutWarning`.
    """
    with edited(root, target) as place:
        _write_anew(root, place.path, progress)
    return Path(root if target is None else target).absolute()


def _write_anew(root: Place, target: Path, progress: bool | None) -> None:
    metadata = Metadata.load(root)
    info = metadata.info
    _warn_of_lost(metadata)
    data_mb, video_mb = sizes_of(info.raw)
    # within, where the lock of the target keeps it, and what a kill leaves goes with it
    made = target / "new"
    with open_in_place(metadata, progress=False) as store:
        write_dataset(
            store,
            made,
            version="v3.0" if info.is_v3 else "v2.1",
            cameras=cameras_of(info),
            robot_type=info.robot_type,
            data_files_mb=data_mb,
            video_files_mb=video_mb,
            chunks_size=info.chunks_size,
            progress=progress,
        )
    for entry in made.iterdir():
        entry.rename(target / entry.name)
    made.rmdir()
