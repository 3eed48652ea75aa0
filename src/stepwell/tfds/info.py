"""A TFDS dataset on the disk: its version, its splits and their shards, its features.

::

    mini_rlds/                                       one of these is given
      1.2.3/                                         the newest version is taken
        dataset_info.json                            name, fileFormat, splits: shardLengths, filepathTemplate
        features.json
        mini_rlds-train.tfrecord-00000-of-00001      {DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}
        episode_metadata-robot_id.labels.txt         names of the classes of episode_metadata/robot_id
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.tfds.features import Node, Placed, parse_feature

__all__ = ["FEATURES", "INFO", "DatasetInfo", "SplitInfo", "find_version", "label_names", "read_info"]

INFO, FEATURES = "dataset_info.json", "features.json"
TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
VARIABLE = re.compile(r"\{(\w+)\}")
# name, configuration, version
MAX_DEPTH = 3
# folders of images have more, and looking for a version in all of them would take long
MAX_ENTRIES = 256
MIN_DIGITS = 5
MAX_SHARDS = 10**7


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """A split of a dataset.

    Args:
        name: "train", ...
        shard_lengths: records of each file; None where the dataset does not say.
        paths: of its files.
    """

    name: str
    shard_lengths: tuple[int, ...] | None
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What a dataset says of itself.

    Args:
        directory: of the version.
        name: of the dataset.
        version: as its directory or its file says.
        file_format: "tfrecord", "array_record" or another.
        splits: by name, in the dataset's order.
        features: the tree of features.
        raw_features: features.json, as JSON has it.
        raw: dataset_info.json, as JSON has it.
    """

    directory: Path
    name: str
    version: str
    file_format: str
    splits: Mapping[str, SplitInfo]
    features: Node
    raw_features: Mapping[str, Any]
    raw: Mapping[str, Any]


def find_version(source: str) -> Path:
    """Return the directory of a version: the source, or the newest version below it.

    Raises:
        DatasetNotFoundError: no dataset there.
        FormatError: several datasets or configurations.
    """
    if "://" in source:
        raise DatasetNotFoundError(
            f"{source}: TFDS datasets are read from directories of this machine. Copy the directory of its version "
            "first, such as by gsutil -m cp -r or aws s3 cp --recursive."
        )
    place = Path(source).expanduser()
    for _ in range(MAX_DEPTH + 1):
        if (place / FEATURES).is_file():
            return place
        found = _children(place)
        if not found:
            break
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise FormatError(f"{place} has several datasets or configurations: {names}. Give the path of one of them.")
        place = found[0]
    raise DatasetNotFoundError(
        f"no TFDS dataset at {source}: no {FEATURES} there, nor in directories named by versions, such as 1.0.0. "
        "Give the directory that holds dataset_info.json and features.json."
    )


def read_info(source: str) -> DatasetInfo:
    """Return what a dataset says of itself.

    Args:
        source: directory of a version, of a configuration or of a dataset.

    Raises:
        DatasetNotFoundError: no dataset there.
        FormatError: its files are not as the format says; names the file.
    """
    directory = find_version(source)
    raw, raw_features = _read_json(directory / INFO), _read_json(directory / FEATURES)
    try:
        name, file_format = str(raw["name"]), str(raw.get("fileFormat") or "tfrecord").lower()
        splits = [_split(record, directory, name, file_format) for record in raw.get("splits", [])]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(f"{directory / INFO}: not a description of a dataset: {error!r}.") from error
    version = directory.name if VERSION.fullmatch(directory.name) else str(raw.get("version", ""))
    features = parse_feature(raw_features, str(directory / FEATURES))
    by_name = {split.name: split for split in splits}
    return DatasetInfo(directory, name, version, file_format, by_name, features, raw_features, raw)


def label_names(directory: Path, placed: Placed) -> list[str] | None:
    """Return the names of the classes of a label; None where the dataset has none.

    Raises:
        FormatError: not as many names as classes.
    """
    path = directory / f"{'-'.join(placed.path)}.labels.txt"
    try:
        names = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    names = [name for name in names if name]
    if placed.leaf.num_classes not in {None, len(names)}:
        raise FormatError(f"{path}: {len(names)} names. By {FEATURES} there are {placed.leaf.num_classes} classes.")
    return names


def _children(place: Path) -> list[Path]:
    """Return the directories that may hold the dataset: of versions the newest one only."""
    folders = _folders(place)
    versions = {path: VERSION.fullmatch(path.name) for path in folders if (path / FEATURES).is_file()}
    known = {path: tuple(map(int, found.groups())) for path, found in versions.items() if found}
    if known:
        return [max(known, key=lambda path: known[path])]
    return [path for path in folders if _has_version(path) or any(map(_has_version, _folders(path)))]


def _has_version(place: Path) -> bool:
    return any(VERSION.fullmatch(path.name) and (path / FEATURES).is_file() for path in _folders(place))


def _folders(place: Path) -> list[Path]:
    """Return the directories in one, by name; none of a directory of very many entries, which holds other data."""
    try:
        with os.scandir(place) as entries:
            found = list(islice(entries, MAX_ENTRIES + 1))
    except OSError:
        return []
    if len(found) > MAX_ENTRIES:
        return []
    return sorted(Path(entry.path) for entry in found if not entry.name.startswith(".") and entry.is_dir())


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DatasetNotFoundError(f"{path} is not there. A TFDS dataset has it since 2020.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: {error}. Copy the file again.") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path}: a {type(found).__name__} where an object of JSON belongs.")
    return found


def _split(record: Mapping[str, Any], directory: Path, name: str, file_format: str) -> SplitInfo:
    split = str(record["name"])
    lengths = None if "shardLengths" not in record else tuple(map(int, record["shardLengths"]))
    num_shards = len(lengths) if lengths is not None else int(record.get("numShards", 0))
    if (lengths and min(lengths) < 0) or not 0 <= num_shards <= MAX_SHARDS:
        raise ValueError(f"shards of split {split!r}")
    template = str(record.get("filepathTemplate") or TEMPLATE)
    values = {"DATASET": name, "SPLIT": split, "FILEFORMAT": file_format}
    paths = tuple(_path(directory, template, values, shard, num_shards) for shard in range(num_shards))
    return SplitInfo(split, lengths, paths)


def _path(directory: Path, template: str, values: Mapping[str, str], shard: int, num_shards: int) -> str:
    digits = max(MIN_DIGITS, len(str(num_shards)))
    index, total = f"{shard:0{digits}d}", f"{num_shards:0{digits}d}"
    known = {**values, "SHARD_INDEX": index, "NUM_SHARDS": total, "SHARD_X_OF_Y": f"{index}-of-{total}"}
    relative = VARIABLE.sub(lambda found: known[found[1]], template)
    if Path(relative).is_absolute() or ".." in Path(relative).parts:
        raise ValueError(f"file {relative!r}, which leads out of the dataset")
    return str(directory / relative)
