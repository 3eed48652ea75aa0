"""What a release promised to keep: compared with what was frozen, or frozen anew.

    STEPWELL_FREEZE=1 pytest tests/frozen      writes expected/*.json as the code is now

Freeze anew only what was changed on purpose, and say so in CHANGELOG.md.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

EXPECTED = Path(__file__).parent / "expected"


def load(name: str) -> dict[str, Any]:
    """Return what is frozen under a name; nothing while it is frozen anew."""
    return {} if _is_freezing() else json.loads((EXPECTED / f"{name}.json").read_text())


def check(name: str, found: dict[str, Any]) -> None:
    """Compare what was found with what is frozen under a name; both are what JSON can say."""
    if _is_freezing():
        lines = [f"{json.dumps(key)}: {json.dumps(found[key], sort_keys=True)}" for key in sorted(found)]
        (EXPECTED / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    expected, found = load(name), json.loads(json.dumps(found))
    if found != expected:
        raise AssertionError(f"{name}.json was frozen otherwise:\n" + "\n".join(differences(expected, found)[:20]))


def _is_freezing() -> bool:
    return bool(os.environ.get("STEPWELL_FREEZE"))


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = sorted(expected.keys() | found.keys())
        return [line for key in keys for line in differences(expected.get(key), found.get(key), f"{where}/{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            line
            for number, (one, other) in enumerate(zip(expected, found, strict=True))
            for line in differences(one, other, f"{where}/{number}")
        ]
    return [] if expected == found else [f"{where}: frozen {expected!r}, now {found!r}"]


def digest(*values: Any) -> str:
    """Return 16 hexadecimal digits over dtypes, shapes and values."""
    sha = hashlib.sha256()
    for value in values:
        if isinstance(value, np.ndarray) and value.dtype == object:
            sha.update(
                repr([np.asarray(each).tolist() for each in value.ravel()]).encode() + repr(value.shape).encode()
            )
        elif isinstance(value, np.ndarray):
            sha.update(f"{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
        elif isinstance(value, bytes):
            sha.update(value)
        else:
            sha.update(repr(value).encode())
    return sha.hexdigest()[:16]
