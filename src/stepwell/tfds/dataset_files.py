"""The files of a TFDS dataset beside its records: names of shards, ``dataset_info.json``, ``features.json``, labels.

::

    DIRECTORY/arm/1.0.0/
      dataset_info.json          name, version, format, splits with the number of records in each shard
      features.json              the tree of features
      steps-phase.labels.txt     names of classes, a line each
      arm-train.tfrecord-00000-of-00002
      arm-train.tfrecord-00001-of-00002
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.errors import SchemaError, StepwellError
from stepwell.tfds.directories import FEATURES, INFO
from stepwell.tfds.features import Fields, feature_json
from stepwell.tfds.info import TEMPLATE
from stepwell.tfds.record_writing import FileFormat

__all__ = ["DatasetName", "WrittenSplit", "check_name", "class_names", "shard_name", "write_info"]

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

    Args:
        name: of the dataset.
        version: three numbers.
        config: of several that share a name; None: there is one.

    Raises:
        StepwellError: one that TFDS does not take.

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
    """Return the names of classes, as TFDS reads them from a file.

    Args:
        where: said by errors.
        names: as somebody gives them.

    Raises:
        SchemaError: they cannot be told apart in a file of a line each.
    """
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
    """Write the files that say what the shards hold.

    Args:
        folder: of the version.
        name: of the dataset.
        splits: in order.
        tree: the features.
        labels: names of classes by the path of their feature.
        file_format: of the shards.
        description: for people.
    """
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
