"""JSON text: parsed without surprises, and sealed with a checksum of its own.

A sealed file (``store.json``, ``segment.json`` and others) ends with the checksum of every byte before its last lines::

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
import re
import zlib
from collections.abc import Mapping
from typing import Any

from stepwell.errors import CorruptSegmentError

__all__ = ["open_json", "parse_json", "seal_json"]

TAIL = re.compile(rb'  "crc32": "([0-9a-f]{8})"\n\}\n')
TAIL_BYTES = len(b'  "crc32": "00000000"\n}\n')


def parse_json(text: str | bytes | bytearray) -> Any:
    """Parse JSON; ValueError also for text that is nested too deep."""
    try:
        return json.loads(text)
    except RecursionError as error:
        # its traceback is a thousand lines of the same
        raise ValueError("it is nested too deep") from error.with_traceback(None)


def seal_json(record: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON file that ends with its own checksum."""
    rest = {key: value for key, value in record.items() if key != "crc32"}
    text = json.dumps(rest, indent=2, ensure_ascii=False)
    body = f"{text[:-2]},\n" if rest else "{\n"
    data = body.encode()
    return data + f'  "crc32": "{zlib.crc32(data):08x}"\n}}\n'.encode()


def open_json(data: bytes, *, name: str = "the file") -> dict[str, Any]:
    """Return what `seal_json` was given."""
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
