"""A process that reads texts, blobs and attributes of HDF5 files, for one that must not wait for ever.

HDF5 keeps values of varying length in heaps; in a damaged one libhdf5 may run round in circles, and nothing in the same
process can stop it. See `stepwell.readers.hdf5_varying`, which asks.

::

    stdin   {"path": ..., "name": ..., "start": 0, "stop": 5}        a line of JSON a request
    stdout  {"sizes": [3, 0, 7, ...]}  and the bytes, back to back    or {"attributes": {...}}, or {"error": ...}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

__all__ = ["answer", "main"]


def main() -> None:
    """Answer requests until there are no more."""
    source, target = sys.stdin.buffer, sys.stdout.buffer
    held: dict[str, Any] = {}
    for line in source:
        answer(json.loads(line), held, target)


def answer(request: dict[str, Any], held: dict[str, Any], target: BinaryIO) -> None:
    """Write the answer to a request.

    Args:
        request: path of the file, name of the dataset or group; "start" and "stop" of rows, null of a single value;
            without both its attributes are asked for.
        held: the file that is open, by path.
        target: written.
    """
    values: list[bytes] = []
    try:
        node = _opened(request["path"], held)[request["name"]]
        if "start" in request:
            values = list(_values(node, request["start"], request["stop"]))
            told: dict[str, Any] = {"sizes": [len(value) for value in values]}
        else:
            told = {"attributes": {name: _plain(node.attrs[name]) for name in node.attrs}}
    except Exception as error:
        told, values = {"error": f"{type(error).__name__}: {error}"}, []
    target.write(json.dumps(told).encode() + b"\n")
    target.writelines(values)
    target.flush()


def _opened(path: str, held: dict[str, Any]) -> Any:
    import h5py

    if path not in held:
        for file in held.values():
            file.close()
        held.clear()
        held[path] = h5py.File(path, "r")
    return held[path]


def _values(dataset: Any, start: int | None, stop: int | None) -> Iterator[bytes]:
    rows = [dataset[()]] if start is None else dataset[start:stop]
    for value in rows:
        yield value if isinstance(value, bytes) else np.ascontiguousarray(value, np.uint8).tobytes()


def _plain(value: Any) -> Any:
    """Return an attribute as JSON has it; what it has not as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


if __name__ == "__main__":
    main()
