"""The shards that a source names: archives, and compressed ones, which are read unpacked."""

from __future__ import annotations

import os
from itertools import repeat
from urllib.parse import urlsplit

from stepwell.files.addresses import is_remote
from stepwell.formats.source_files import names_files, source_files

__all__ = ["find_shards", "names_shards"]

COMPRESSED = (".tar.gz", ".tgz")
ENDINGS = (".tar", *COMPRESSED)
UNPACKED = "gzip://"


def find_shards(source: str) -> list[str]:
    """Return the paths and addresses of shards; of compressed ones the address of what is in them.

    Args:
        source: see `stepwell.formats.source_files.source_files`.

    Raises:
        StepwellError: see there.

    Example:
        >>> find_shards("/data/{a.tar,b.tgz}")
        ['/data/a.tar', 'gzip:///data/b.tgz']
    """
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
