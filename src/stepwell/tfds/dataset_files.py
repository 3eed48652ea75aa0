"""The directory of a dataset, and its files beside the records: names of shards, ``dataset_info.json``, labels.

::

    DIRECTORY/arm/1.0.0/
      dataset_info.json          name, version, format, splits with the number of records in each shard
      features.json              the tree of features
      steps-phase.labels.txt     names of classes, a line each
      arm-train.tfrecord-00000-of-00002
      arm-train.tfrecord-00001-of-00002

The directory may be given in several ways:

::

    data/arm              data/arm/1.0.0           one of these is given; the newest version is taken
    gs://bucket/arm       gs://bucket/arm/1.0.0    likewise: file systems of fsspec have lists
                          https://host/arm/1.0.0   the version itself: HTTP has none
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from stepwell.errors import DatasetNotFoundError, FormatError, SchemaError, StepwellError
from stepwell.files.addresses import is_remote, plain_address
from stepwell.files.local_files import read_regular
from stepwell.json_text import parse_json
from stepwell.references.remote_files import local_path, opened, remote_states
from stepwell.references.remote_sources import UnreachableError, list_addresses
from stepwell.tfds.features import Fields, Node, Placed, feature_json, parse_feature, walk
from stepwell.tfds.record_files import FileFormat

__all__ = [
    "FEATURES",
    "INFO",
    "TEMPLATE",
    "VERSION",
    "DatasetInfo",
    "DatasetName",
    "Directory",
    "SplitInfo",
    "WrittenSplit",
    "check_name",
    "class_names",
    "described_by",
    "find_version",
    "label_names",
    "named_version",
    "read_info",
    "shard_name",
    "write_info",
]

INFO, FEATURES = "dataset_info.json", "features.json"
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)", re.ASCII)
WEB = ("http", "https")
# name, configuration, version
MAX_DEPTH = 3
# folders of images have more, and looking for a version in all of them would take long
MAX_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory of this machine, or of another.

    Example:
        >>> Directory("https://host/arm/1.0.0?token=1").file("features.json")
        'https://host/arm/1.0.0/features.json?token=1'
    """

    place: str

    @classmethod
    def of(cls, source: str) -> Directory:
        """Return the directory that somebody names."""
        if "://" not in source:
            return cls(str(Path(source).expanduser()))
        if not is_remote(source):
            return cls(str(Path(local_path(source)).expanduser()))
        if urlsplit(source).scheme.lower() not in WEB:
            return cls(source.rstrip("/"))
        parts = urlsplit(source)
        return cls(urlunsplit(parts._replace(path=parts.path.rstrip("/"))))

    @property
    def is_remote(self) -> bool:
        """Whether it is on another machine."""
        return is_remote(self.place)

    @property
    def name(self) -> str:
        """Its name, without those above it."""
        return (urlsplit(self.place).path if self.is_remote else self.place).rpartition("/")[2]

    def __str__(self) -> str:
        """Return what messages call it."""
        return plain_address(self.place)

    def file(self, name: str) -> str:
        """Return the path or address of a file in it."""
        if not self.is_remote:
            return str(Path(self.place, name))
        parts = urlsplit(self.place)
        if parts.scheme.lower() in WEB:
            return urlunsplit(parts._replace(path=f"{parts.path}/{quote(name)}"))
        return f"{self.place}/{name}"

    def read(self, name: str) -> bytes:
        """Return what is in a file; one of another machine is as it was when it was asked about last."""
        file = opened(self.file(name)) if self.is_remote else None
        return read_regular(self.file(name)) if file is None else file.read(0, file.num_bytes)

    def there(self, names: Iterable[str]) -> list[str]:
        """Return which files are in it; those of another machine are asked about anew."""
        return [name for name in names if self.missing([name]) is None]

    def missing(self, names: Sequence[str]) -> str | None:
        """Return what is to be said where not all of some files are in it; None where they are."""
        if not self.is_remote:
            lacking = [name for name in names if not Path(self.place, name).is_file()]
            return f"no {lacking[0]} there" if lacking else None
        try:
            remote_states([self.file(name) for name in names])
        except UnreachableError:
            raise
        except DatasetNotFoundError as error:
            return str(error)
        return None


def named_version(source: str) -> bool:
    """Whether an address of another machine ends as that of a version does.

    Example:
        >>> named_version("gs://bucket/arm/1.0.0/"), named_version("gs://bucket/arm"), named_version("arm/1.0.0")
        (True, False, False)
    """
    return is_remote(source) and "\n" not in source and VERSION.fullmatch(Directory.of(source).name) is not None


def find_version(source: str) -> Directory:
    """Return the directory of a version: the source, or the newest version below it."""
    place = Directory.of(source)
    return _find_remote(place) if "://" in source and is_remote(source) else _find_local(place)


def _find_remote(place: Directory) -> Directory:
    reason = place.missing([FEATURES, INFO])
    if reason is None:
        return place
    if urlsplit(place.place).scheme.lower() in WEB:
        raise DatasetNotFoundError(
            f"no TFDS dataset at {place}: {reason} HTTP has no lists of files: give the address of a version's "
            "directory, such as https://host/name/1.0.0."
        )
    for depth in range(1, MAX_DEPTH + 1):
        found = _below(place, depth)
        sets = {version.place.rpartition("/")[0] for version in found}
        if len(sets) > 1:
            _refuse_several(place, sorted(found.removeprefix(f"{place.place}/") for found in sets))
        if found:
            return max(found, key=_number)
    raise DatasetNotFoundError(
        f"no TFDS dataset at {place}: {reason} Nor is one in directories below that are named by versions, such as "
        "1.0.0. Give the address of the directory that holds dataset_info.json and features.json."
    )


def _below(place: Directory, depth: int) -> list[Directory]:
    """Return the directories of versions so many levels below one of a file system that has lists."""
    found = list_addresses("/".join([glob.escape(place.place), *["*"] * depth, FEATURES]))
    # lists name a path as the file system does, which may differ from the address by slashes
    tails = ["/".join(address.split("/")[-1 - depth : -1]) for address in found]
    versions = [Directory(place.file(tail)) for tail in tails]
    return [version for version in versions if VERSION.fullmatch(version.name)]


def _find_local(directory: Directory) -> Directory:
    place = Path(directory.place)
    for _ in range(MAX_DEPTH + 1):
        if (place / FEATURES).is_file():
            return Directory(str(place))
        found = _children(place)
        if not found:
            break
        if len(found) > 1:
            _refuse_several(Directory(str(place)), [path.name for path in found])
        place = found[0]
    raise DatasetNotFoundError(
        f"no TFDS dataset at {directory}: no {FEATURES} there, nor in directories named by versions, such as 1.0.0. "
        "Give the directory that holds dataset_info.json and features.json."
    )


def _refuse_several(place: Directory, names: Sequence[str]) -> None:
    raise FormatError(
        f"{place} has several datasets or configurations: {', '.join(names)}. Give the path of one of them."
    )


def _children(place: Path) -> list[Path]:
    """Return the directories that may hold the dataset: of versions the newest one only."""
    folders, versions = _look_into(place)
    if versions:
        return [max(versions, key=_number)]
    found = []
    for path in folders:
        below, versions = _look_into(path)
        if versions or any(_look_into(folder)[1] for folder in below):
            found.append(path)
    return found


def _number(version: Path | Directory) -> tuple[int, ...]:
    return tuple(map(int, version.name.split(".")))


def _look_into(place: Path) -> tuple[list[Path], list[Path]]:
    """Return the directories in one, by name, and those of versions; none of very many entries, which is other data."""
    try:
        with os.scandir(place) as entries:
            found = list(islice(entries, MAX_ENTRIES + 1))
    except OSError:
        return [], []
    folders, versions = [], []
    for entry in found if len(found) <= MAX_ENTRIES else ():
        if not entry.name.startswith(".") and entry.is_dir():
            folders.append(Path(entry.path))
            if VERSION.fullmatch(entry.name) and (folders[-1] / FEATURES).is_file():
                versions.append(folders[-1])
    return sorted(folders), versions


TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
VARIABLE = re.compile(r"\{(\w+)\}")
MIN_DIGITS = 5
MAX_SHARDS = 10**7
MAX_NAMES_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class SplitInfo:
    """A split of a dataset."""

    name: str
    shard_lengths: tuple[int, ...] | None
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """What a dataset says of itself."""

    directory: Directory
    name: str
    version: str
    file_format: str
    splits: Mapping[str, SplitInfo]
    features: Node
    raw_features: Mapping[str, Any]
    raw: Mapping[str, Any]


def read_info(source: str) -> DatasetInfo:
    """Return what a dataset says of itself."""
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
    """Return the names of the classes of a label; None where the dataset has none."""
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


# what is lower case is also how TFDS begins the names of files
NAMES = {
    "name": (re.compile(r"[a-z][a-z0-9_]*"), "lower-case letters, digits and '_', beginning with a letter"),
    "config": (re.compile(r"[A-Za-z0-9_][\w+.-]*", re.ASCII), "letters, digits, '_', '+', '.' and '-'"),
    "version": (re.compile(r"\d+\.\d+\.\d+", re.ASCII), "three numbers, such as '1.0.0'"),
    "split": (re.compile(r"[A-Za-z]\w*", re.ASCII), "letters, digits and '_', beginning with a letter"),
}


@dataclass(frozen=True, slots=True)
class DatasetName:
    """What a dataset is called.

    Example:
        >>> DatasetName("arm", "1.0.0", "wide").folder
        'arm/wide/1.0.0'
    """

    name: str
    version: str = "1.0.0"
    config: str | None = None

    def __post_init__(self) -> None:
        for kind in ("name", "version", "config"):
            if getattr(self, kind) is not None:
                check_name(kind, getattr(self, kind))

    @property
    def folder(self) -> str:
        """Where it lies below the directory of all datasets."""
        return "/".join(filter(None, [self.name, self.config, self.version]))


@dataclass(frozen=True, slots=True)
class WrittenSplit:
    """A split that was written.

    Args:
        name: of the split.
        num_bytes: of its records.
        shard_lengths: records of each shard.
    """

    name: str
    num_bytes: int
    shard_lengths: tuple[int, ...]


def check_name(kind: str, given: Any) -> None:
    """Raise StepwellError for a name that TFDS does not take; ``kind`` is a key of `NAMES`."""
    pattern, allowed = NAMES[kind]
    if not isinstance(given, str) or not pattern.fullmatch(given) or given == "all":
        raise StepwellError(f"{kind}={given!r}. Allowed: {allowed}.")


def class_names(where: str, names: Any) -> tuple[str, ...]:
    """Return the names of classes, as TFDS reads them from a file."""
    plain = [] if isinstance(names, str) else [str(label).strip() for label in names]
    if not plain or not all(plain) or len(set(plain)) < len(plain) or any("\n" in label for label in plain):
        raise SchemaError(f"{where}: labels={names!r}. Give the name of each class, no two alike, a line each.")
    return tuple(plain)


def shard_name(dataset: str, split: str, file_format: FileFormat, shard: int, num_shards: int) -> str:
    """Return the name of a file.

    Example:
        >>> shard_name("arm", "train", "tfrecord", 1, 2)
        'arm-train.tfrecord-00001-of-00002'
    """
    return f"{dataset}-{split}.{file_format}-{shard:05d}-of-{num_shards:05d}"


def write_info(
    folder: Path,
    name: DatasetName,
    splits: Sequence[WrittenSplit],
    tree: Fields,
    labels: Mapping[str, Sequence[str]],
    *,
    file_format: FileFormat,
    description: str,
) -> None:
    """Write the files that say what the shards hold."""
    told: dict[str, Any] = {"name": name.name, "version": name.version, "fileFormat": file_format}
    if name.config is not None:
        told["configName"] = name.config
    if description:
        told["description"] = description
    told["splits"] = [
        {
            "name": split.name,
            "filepathTemplate": TEMPLATE,
            "numBytes": str(split.num_bytes),
            "shardLengths": list(map(str, split.shard_lengths)),
        }
        for split in splits
    ]
    _write_json(folder / INFO, told)
    _write_json(folder / FEATURES, feature_json(tree))
    for path, names in labels.items():
        (folder / f"{path.replace('/', '-')}.labels.txt").write_text("\n".join(names) + "\n", encoding="utf-8")


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
