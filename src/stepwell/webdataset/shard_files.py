"""Shards that a source names, compressed ones unpacked, and ``_info.json`` beside them.

::

    {"splits": {"train": {"num_samples": 9, "filenames": ["train-000000.tar", ...], "shard_lengths": [5, 4]}},
     "samples": "steps", "features": {"jpg": "image"}, "crc32": 270412345}

These are timm's names and lengths of shards; of those that stepwell wrote the features, too. A file that is there is
either right or an error: without it features would have other names, and lost samples would go unnoticed.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import repeat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stepwell.errors import FormatError
from stepwell.files.addresses import is_remote
from stepwell.files.local_files import read_regular
from stepwell.formats.source_paths import MAGIC, named_texts, names_files, source_files, warn_of_gaps
from stepwell.json_text import parse_json

__all__ = [
    "INFO",
    "check_length",
    "check_shards",
    "find_shards",
    "info_bytes",
    "info_path",
    "names_shards",
    "read_infos",
    "told_names",
    "told_samples",
]

COMPRESSED = (".tar.gz", ".tgz")
ENDINGS = (".tar", *COMPRESSED)
UNPACKED = "gzip://"
INFO = "_info.json"
SAMPLES = ("steps", "episodes")
CHECKSUM = "crc32"
# what stepwell writes beside timm's splits
OWN = ("samples", "features")


def find_shards(source: str) -> list[str]:
    """Return the paths and addresses of shards; of compressed ones the address of what is in them."""
    paths = source_files(source, ENDINGS)
    # a call for each of 10^5 paths takes long
    if "://" not in source and not any(map(str.endswith, paths, repeat(COMPRESSED))):
        return paths
    return [_unpacked(path) if _is_compressed(path) else path for path in paths]


def names_shards(source: str) -> bool:
    """Whether a source may name shards; cheap."""
    return names_files(source, ENDINGS)


def _is_compressed(path: str) -> bool:
    return (urlsplit(path).path if is_remote(path) else path).endswith(COMPRESSED)


def _unpacked(path: str) -> str:
    return UNPACKED + (path if "://" in path else os.path.abspath(path))  # noqa: PTH100  a link stays one


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """The content of an ``_info.json``."""

    path: Path
    # ending, in lower case, to the name of the feature
    features: Mapping[str, str] = field(default_factory=dict)
    # "steps" or "episodes"; None where it is not given
    samples: str | None = None
    # name of a shard's file to its number of samples
    lengths: Mapping[str, int] = field(default_factory=dict)


Infos = Mapping[str, ShardInfo]
"""Directory of shards to its ``_info.json``."""


def info_path(shard: str) -> Path | None:
    """Return where ``_info.json`` of a shard is; None of one on another machine."""
    path = shard.removeprefix("gzip://")
    return None if "://" in path and is_remote(path) else Path(path).with_name(INFO)


def _read_info(shard: str) -> ShardInfo | None:
    """Return what ``_info.json`` beside a shard tells; None where there is none."""
    path = info_path(shard)
    try:
        data = None if path is None else read_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error.strerror}.") from error
    if path is None or data is None:
        return None
    try:
        return _parsed(path, data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path} is damaged, or not what timm and stepwell write beside shards: {error}. Fetch or write it again, "
            "or take it away: then features are called as endings are, and nothing is compared with it."
        ) from error


def _parsed(path: Path, data: bytes) -> ShardInfo:
    told = parse_json(data)
    if not isinstance(told, dict):
        raise ValueError(f"a {type(told).__name__} where an object belongs")
    if CHECKSUM in told and told.pop(CHECKSUM) != _checksum(told):
        raise ValueError(f'its {CHECKSUM} differs. If it was edited on purpose, take "{CHECKSUM}" out')
    lacking = [name for name in OWN if name not in told]
    if len(lacking) == 1:
        raise ValueError(f"it has no {lacking[0]!r}")
    samples, features = told.get("samples"), told.get("features", {})
    if "samples" in told and samples not in SAMPLES:
        raise ValueError(f"samples is {samples!r}, where {' or '.join(SAMPLES)} belongs")
    if not all(isinstance(name, str) for name in features.values()):
        raise ValueError("features that have no names")
    lengths: dict[str, int] = {}
    for name, split in told.get("splits", {}).items():
        lengths |= _lengths(name, split)
    return ShardInfo(path, {ending.lower(): name for ending, name in features.items()}, samples, lengths)


def _lengths(name: str, split: Mapping[str, Any]) -> dict[str, int]:
    files, lengths = split.get("filenames"), split.get("shard_lengths")
    if files is None or lengths is None:
        return {}
    if len(files) != len(lengths) or not all(isinstance(file, str) for file in files):
        raise ValueError(f"split {name!r} has {len(files)} file names and {len(lengths)} lengths")
    if not all(type(length) is int and length >= 0 for length in lengths):
        raise ValueError(f"split {name!r} has lengths that are no numbers of samples")
    if split.get("num_samples", sum(lengths)) != sum(lengths):
        raise ValueError(f"split {name!r} has {split['num_samples']} samples, and its shards {sum(lengths)}")
    return dict(zip(files, lengths, strict=True))


def read_infos(paths: Iterable[str]) -> Infos:
    """Return what ``_info.json`` tells in each directory of shards that has one."""
    shards = {_folder(path): path for path in paths}
    return {folder: info for folder, path in shards.items() if (info := _read_info(path)) is not None}


def told_names(path: str, infos: Infos) -> Mapping[str, str]:
    """Return the names of features by ending that ``_info.json`` beside a shard has."""
    info = infos.get(_folder(path))
    return {} if info is None else info.features


def check_length(path: str, count: int, infos: Infos) -> None:
    """Refuse a shard that has another number of samples than ``_info.json`` beside it tells."""
    info = infos.get(_folder(path))
    told = count if info is None else info.lengths.get(path.rpartition("/")[2], count)
    if info is not None and told != count:
        raise FormatError(
            f"{path} has {count} samples, {info.path} says {told}. Fetch or write the shard again; if the shard is "
            f"right, mend {INFO}, or take it away."
        )


def check_shards(source: str | Sequence[str], paths: Sequence[str], infos: Infos) -> None:
    """Refuse a directory or pattern that lacks shards of its ``_info.json``; warn of gaps in their numbers."""
    there = {path.rpartition("/")[2] for path in paths}
    for text in named_texts(source):
        is_folder = os.path.isdir(text)  # noqa: PTH112  paths are text here
        folder = os.path.abspath(text if is_folder else os.path.dirname(text))  # noqa: PTH100, PTH120
        info = infos.get(folder)
        if not (is_folder or MAGIC.search(text)):
            continue
        if info is None or not info.lengths:
            own = [path.rpartition("/")[2] for path in paths if _folder(path) == folder and "[" not in text]
            warn_of_gaps(folder, own, f"name them one by one, {folder}/{{A,B}}.tar")
            continue
        pattern = "*" if is_folder else os.path.basename(text)  # noqa: PTH119
        lost = [name for name in info.lengths if fnmatchcase(name, pattern) and name not in there]
        if lost:
            raise FormatError(
                f"{folder}/{lost[0]} is not there, and {info.path} lists it. Fetch it; or name the shards that are "
                f"wanted one by one, {folder}/{{A,B}}.tar."
            )


def info_bytes(splits: Mapping[str, Any], samples: str, features: Mapping[str, str]) -> bytes:
    """Return the file's bytes."""
    told = {"splits": splits, "samples": samples, "features": features}
    return json.dumps({**told, CHECKSUM: _checksum(told)}, indent=1).encode("utf-8")


def told_samples(source: str) -> str | None:
    """Return what samples are, "steps" or "episodes", as ``_info.json`` in a directory or beside a shard tells."""
    if is_remote(source) or "\0" in source:
        return None
    place = Path(source.split("\n", maxsplit=1)[0].split("::", maxsplit=1)[0])
    try:
        told = parse_json(read_regular((place if place.is_dir() else place.parent) / INFO))
    except (OSError, ValueError):
        return None  # the reader says what is wrong
    found = told.get("samples") if isinstance(told, dict) else None
    return found if isinstance(found, str) else None


def _checksum(told: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(told, sort_keys=True).encode("utf-8"))


def _folder(path: str) -> str:
    """Return the directory of a shard, absolute; of one on another machine its address up to the name."""
    folder = path.removeprefix("gzip://").rpartition("/")[0]
    return folder if is_remote(path) else os.path.abspath(folder)  # noqa: PTH100  a link stays one
