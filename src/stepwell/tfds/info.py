"""What a TFDS dataset says of itself: its version, its splits and their shards, its features.

::

    mini_rlds/1.2.3/
      dataset_info.json                            name, fileFormat, splits: shardLengths, filepathTemplate
      features.json
      mini_rlds-train.tfrecord-00000-of-00001      {DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}
      episode_metadata-robot_id.labels.txt         names of the classes of episode_metadata/robot_id
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from stepwell.errors import DatasetNotFoundError, FormatError, StepwellError
from stepwell.json_text import parse_json
from stepwell.tfds.directories import FEATURES, INFO, VERSION, Directory, find_version
from stepwell.tfds.features import Node, Placed, parse_feature, walk

__all__ = ["TEMPLATE", "DatasetInfo", "SplitInfo", "described_by", "label_names", "read_info"]

TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
VARIABLE = re.compile(r"\{(\w+)\}")
MIN_DIGITS = 5
MAX_SHARDS = 10**7
MAX_NAMES_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """A split of a dataset.

    Args:
        name: "train", ...
        shard_lengths: records of each file; None where the dataset does not say.
        paths: of its files, or addresses.
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

    directory: Directory
    name: str
    version: str
    file_format: str
    splits: Mapping[str, SplitInfo]
    features: Node
    raw_features: Mapping[str, Any]
    raw: Mapping[str, Any]


def read_info(source: str) -> DatasetInfo:
    """Return what a dataset says of itself.

    Args:
        source: directory of a version, of a configuration or of a dataset; a path or an address.

    Raises:
        DatasetNotFoundError: no dataset there.
        FormatError: its files are not as the format says; names the file.
        MissingDependencyError: fsspec, or what it needs for the address, is not installed.
    """
    directory = find_version(source)
    raw, raw_features = _read_json(directory, INFO), _read_json(directory, FEATURES)
    try:
        name, file_format = str(raw["name"]), str(raw.get("fileFormat") or "tfrecord").lower()
        splits = [_split(record, directory, name, file_format) for record in raw["splits"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise FormatError(f"{directory}/{INFO}: not a description of a dataset: {error!r}.") from error
    version = directory.name if VERSION.fullmatch(directory.name) else str(raw.get("version", ""))
    features = parse_feature(raw_features, f"{directory}/{FEATURES}")
    by_name = {split.name: split for split in splits}
    if len(by_name) < len(splits):
        raise FormatError(f"{directory}/{INFO}: two splits have one name: {', '.join(split.name for split in splits)}.")
    return DatasetInfo(directory, name, version, file_format, by_name, features, raw_features, raw)


def described_by(info: DatasetInfo) -> list[str]:
    """Return the paths or addresses of the files that describe a dataset, sorted."""
    directory = info.directory
    if not directory.is_remote:
        return sorted(str(path) for path in Path(directory.place).iterdir() if path.suffix in {".json", ".txt"})
    labels = [_labels_file(placed) for placed in _labels(info.features)]
    return [directory.file(name) for name in sorted([FEATURES, INFO, *directory.there(labels)])]


def label_names(directory: Directory, placed: Placed) -> list[str] | None:
    """Return the names of the classes of a label; None where the dataset has none.

    Raises:
        DatasetNotFoundError: another machine does not answer.
        FormatError: not as many names as classes, or a file that cannot be read.
    """
    file = _labels_file(placed)
    if not directory.there([file]):
        return None
    try:
        # not splitlines(), which also cuts at separators that may stand in a name
        lines = directory.read(file).decode().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{directory}/{file} cannot be read: {error}. Copy the file again.") from error
    names = [name for line in lines if (name := line.strip())]
    if placed.leaf.num_classes not in {None, len(names)}:
        raise FormatError(
            f"{directory}/{file}: {len(names)} names. By {FEATURES} there are {placed.leaf.num_classes} classes."
        )
    return names


def _labels(features: Node) -> Iterator[Placed]:
    return (found for found in walk(features) if found.leaf.kind == "label")


def _labels_file(placed: Placed) -> str:
    found = f"{'-'.join(placed.path)}.labels.txt"
    if "/" in found or "\0" in found:
        raise FormatError(f"feature {'/'.join(placed.path)!r}: {found!r} is no name of a file with its labels.")
    return found


def _read_json(directory: Directory, name: str) -> Mapping[str, Any]:
    path = f"{directory}/{name}"
    try:
        found = parse_json(directory.read(name).decode())
    except StepwellError:
        raise
    except FileNotFoundError as error:
        raise DatasetNotFoundError(f"{path} is not there. A TFDS dataset has it since 2020.") from error
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: {error}. Copy the file again.") from error
    if not isinstance(found, dict):
        raise FormatError(f"{path}: a {type(found).__name__} where an object of JSON belongs.")
    return found


def _split(record: Mapping[str, Any], directory: Directory, name: str, file_format: str) -> SplitInfo:
    split = str(record["name"])
    lengths = None if "shardLengths" not in record else tuple(map(int, record["shardLengths"]))
    num_shards = len(lengths) if lengths is not None else int(record.get("numShards", 0))
    if lengths is None and "numShards" not in record:
        raise ValueError(f"split {split!r} says neither shardLengths nor numShards")
    if not num_shards and int(record.get("numBytes") or 0):
        raise ValueError(f"split {split!r} has {record['numBytes']} bytes in no files")
    if (lengths and min(lengths) < 0) or not 0 <= num_shards <= MAX_SHARDS:
        raise ValueError(f"shards of split {split!r}")
    template = str(record.get("filepathTemplate") or TEMPLATE)
    values = {"DATASET": name, "SPLIT": split, "FILEFORMAT": file_format}
    if num_shards * (len(template) + len(name) + len(split)) > MAX_NAMES_BYTES:
        raise ValueError(f"{num_shards} shards of names of thousands of letters")
    paths = tuple(_path(directory, template, values, shard, num_shards) for shard in range(num_shards))
    return SplitInfo(split, lengths, paths)


def _path(directory: Directory, template: str, values: Mapping[str, str], shard: int, num_shards: int) -> str:
    digits = max(MIN_DIGITS, len(str(num_shards)))
    index, total = f"{shard:0{digits}d}", f"{num_shards:0{digits}d}"
    known = {**values, "SHARD_INDEX": index, "NUM_SHARDS": total, "SHARD_X_OF_Y": f"{index}-of-{total}"}
    relative = VARIABLE.sub(lambda found: known[found[1]], template)
    parts = PurePosixPath(relative)
    if parts.is_absolute() or ".." in parts.parts or "\n" in relative or "\0" in relative:
        raise ValueError(f"file {relative!r}, which leads out of the dataset")
    return directory.file(relative)
