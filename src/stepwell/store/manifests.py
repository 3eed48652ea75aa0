"""JSON files that notice when one of their bytes changes: ``store.json``, ``segment.json`` and others.

::

    {
      "rows": 12,
      ...
      "crc32": "9a1f0c22"        zlib.crc32 of every byte before this line
    }

The checksum is over the bytes, not over the values, so that a reader in any language can check it without having to
write JSON as Python does. The last lines have exactly one form, so that a change of theirs is noticed as well.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from typing import Any

from stepwell.errors import CorruptSegmentError
from stepwell.json_text import parse_json
from stepwell.store.beneath import read_file
from stepwell.store.layout import SEGMENT_JSON

__all__ = ["RESTORE", "has_listed_files", "open_json", "read_manifest", "seal_json"]

TAIL = re.compile(rb'  "crc32": "([0-9a-f]{8})"\n\}\n')
RESTORE = "Restore it from a copy, or remove the segment."
CRC = re.compile(r"[0-9a-f]{8}")
# of a file in a segment: no path, and nothing that is hidden
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
TAIL_BYTES = len(b'  "crc32": "00000000"\n}\n')


def seal_json(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON file that ends with its own checksum.

    Args:
        record: JSON types; a field "crc32" of its own is replaced.

    Returns:
        UTF-8, indented by two spaces.

    Example:
        >>> print(seal_json({"rows": 12}).decode(), end="")
        {
          "rows": 12,
          "crc32": "3e385bfd"
        }
    """
    rest = {key: value for key, value in record.items() if key != "crc32"}
    text = json.dumps(rest, indent=2, ensure_ascii=False)
    body = f"{text[:-2]},\n" if rest else "{\n"
    data = body.encode()
    return data + f'  "crc32": "{zlib.crc32(data):08x}"\n}}\n'.encode()


def open_json(data: bytes, *, name: str = "the file") -> dict[str, Any]:
    """Return what `seal_json` was given.

    Args:
        data: the whole file.
        name: what the error calls it.

    Raises:
        CorruptSegmentError: a byte was changed, is missing, or is too many.
    """
    tail = TAIL.fullmatch(data[-TAIL_BYTES:])
    if tail is None:
        raise CorruptSegmentError(
            f"{name}: its {len(data)} bytes do not end with a checksum, so it is cut short or damaged. "
            'Run "stepwell verify PATH".'
        )
    stored, computed = tail[1].decode(), f"{zlib.crc32(data[:-TAIL_BYTES]):08x}"
    if stored != computed:
        raise CorruptSegmentError(f'{name}: crc32 {stored} stored, {computed} computed. Run "stepwell verify PATH".')
    try:
        record = parse_json(data)
    except ValueError as error:
        raise CorruptSegmentError(f"{name}: the checksum is right, but it is not JSON ({error}).") from error
    if not isinstance(record, dict):
        raise CorruptSegmentError(f"{name}: the checksum is right, but it is not a JSON object.")
    record.pop("crc32", None)
    return record


def read_manifest(path: str) -> dict[str, Any]:
    """Return what a ``segment.json`` says.

    Returns:
        "rows" and "episodes", ints; "files", name to "bytes" and "crc32", each of a file in the segment's directory;
        and whatever else there is.

    Raises:
        FileNotFoundError: there is none.
        CorruptSegmentError: it is damaged, or names files that are none of a segment's.
    """
    manifest = open_json(read_file(path), name=path)
    files = manifest.get("files")
    entries = files.values() if isinstance(files, dict) else [None]
    is_whole = all(isinstance(manifest.get(key), int) for key in ("rows", "episodes")) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("bytes"), int)
        and CRC.fullmatch(str(entry.get("crc32"))) is not None
        for entry in entries
    )
    if not is_whole:
        raise CorruptSegmentError(f'{path} lacks "rows", "episodes", or "files" with "bytes" and "crc32". {RESTORE}')
    for name in files or ():
        if not FILE_NAME.fullmatch(name):
            raise CorruptSegmentError(f"{path} lists {name!r:.200}, which is no file of a segment. {RESTORE}")
    return manifest


def has_listed_files(directory: str) -> bool:
    """Return whether a segment has a manifest, and every file that it lists; of a damaged one that is not known: True.

    A manifest comes after the bytes of all files are on the disk, but a loss of power may have kept its name and not
    theirs.
    """
    try:
        files = read_manifest(f"{directory}/{SEGMENT_JSON}")["files"]
    except FileNotFoundError:
        return False
    except CorruptSegmentError:
        return True
    return all(os.path.lexists(f"{directory}/{name}") for name in files)
