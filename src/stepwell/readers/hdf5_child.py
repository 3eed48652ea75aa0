"""A process that looks at HDF5 files and reads their heaps, for one that must not wait for ever.

In a damaged file libhdf5 may run round in circles, in groups and in the heaps of values of varying length, and nothing
in the same process can stop it. See `stepwell.readers.hdf5`, which asks.

::

    request   {"path": ..., "name": ..., "ask": "values", "start": 0, "stop": 5}       JSON, a message of a socket
    answer    {"sizes": [3, 0, 7, ...]}, and a message of the bytes, back to back
              or {"attributes": {...}}, {"names": [...]}, {"outside": ...}, {"error": ...}; empty while it goes on
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

__all__ = ["answer", "main"]

MAX_DEPTH = 32
HEARTBEAT = 1000
# times that groups are come to which were seen before: links to groups above would go on without end
MOST_AGAIN = 10_000


def main() -> None:
    """Answer requests until there are no more."""
    connection = Connection(int(sys.argv[1]))
    held: dict[str, Any] = {}
    with suppress(EOFError, ConnectionError):
        while True:
            answer(json.loads(connection.recv_bytes()), held, connection)


class OutsideError(Exception):
    """A part of a file lies in another one."""


def answer(request: dict[str, Any], held: dict[str, Any], target: Connection) -> None:
    """Write the answer to a request."""
    values: list[bytes] = []
    try:
        file = _opened(request["path"], held)
        told: dict[str, Any]
        if request["ask"] == "values":
            values = list(_values(file[request["name"]], request["start"], request["stop"]))
            told = {"sizes": [len(value) for value in values]}
        elif request["ask"] == "attributes":
            node = file[request["name"]]
            told = {"attributes": {name: _plain(node.attrs[name]) for name in node.attrs}}
        else:
            _survey(file, target)
            told = {"names": list(file)}
    except OutsideError as error:
        told, values = {"outside": str(error)}, []
    except Exception as error:
        told, values = {"error": f"{type(error).__name__}: {error}"}, []
    target.send_bytes(json.dumps(told).encode())
    if "sizes" in told:
        target.send_bytes(b"".join(values))


def _opened(path: str, held: dict[str, Any]) -> Any:
    import h5py

    if path not in held:
        for file in held.values():
            file.close()
        held.clear()
        held[path] = h5py.File(path, "r")
    return held[path]


def _survey(file: Any, target: Connection) -> None:
    """Look at everything that readers look at, so that libhdf5 hangs here if it does."""
    import h5py

    pending = [(file, 0)]
    seen: set[int] = set()
    count = again = 0
    while pending:
        group, depth = pending.pop()
        place = h5py.h5o.get_info(group.id).addr
        again += place in seen
        if again > MOST_AGAIN:
            raise ValueError(f"{group.name}: groups are linked more than {MOST_AGAIN} times")
        seen.add(place)
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise OutsideError(f"{group.name.rstrip('/')}/{name} is a link to {link.filename!r}")
            if not isinstance(link, h5py.HardLink | h5py.SoftLink):
                raise OutsideError(f"{group.name.rstrip('/')}/{name} is a link of a kind of its own")
            node = group[name]
            if isinstance(node, h5py.Dataset):
                _check_is_inside(node)
                node.id.get_storage_size()
            elif depth < MAX_DEPTH:
                pending.append((node, depth + 1))
            count += 1
            if count % HEARTBEAT == 0:
                target.send_bytes(b"")


def _check_is_inside(dataset: Any) -> None:
    if dataset.external:
        raise OutsideError(f"{dataset.name} has its rows in {dataset.external[0][0]!r}")
    if dataset.is_virtual:
        # "." is the file itself
        files = [source.file_name for source in dataset.virtual_sources() if source.file_name != "."]
        if files:
            raise OutsideError(f"{dataset.name} has its rows in {files[0]!r}")


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
