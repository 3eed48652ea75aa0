"""What libhdf5 may not come back from, done by a process of its own: a damaged HDF5 file cannot hold up this one."""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from stepwell.errors import FormatError, MissingDependencyError, UntrustedFileError
from stepwell.json_text import parse_json

__all__ = ["SILENT_SECONDS", "read_attributes", "read_varying", "survey"]

SILENT_SECONDS = 60.0
"""How long the process may say nothing before its file counts as damaged; it begins to answer in milliseconds."""

PIECE_BYTES = 1 << 20
_CHILD: list[tuple[int, subprocess.Popen[bytes]]] = []
_TURN = [threading.Lock()]


def survey(path: str) -> list[str]:
    """Look through all groups and datasets of a file, and return the names at its top.

    Args:
        path: of the file.

    Raises:
        FormatError: it is no HDF5 file, or libhdf5 does not come back from a part of it.
        UntrustedFileError: a part of it lies in another file.
        MissingDependencyError: h5py is not installed.
    """
    told, _ = _ask(path, "the file", {"ask": "survey"})
    names: list[str] = told["names"]
    return names


def read_varying(path: str, name: str, start: int | None, stop: int | None) -> list[bytes]:
    """Return values of a dataset whose elements vary in length.

    Args:
        path: of the file.
        name: of the dataset.
        start: the first row; None: the dataset is one value.
        stop: the row after the last.

    Raises:
        FormatError: it cannot be read, or libhdf5 does not come back from it.
    """
    told, rest = _ask(path, name, {"ask": "values", "start": start, "stop": stop})
    values, place = [], 0
    for size in told["sizes"]:
        values.append(rest[place : place + size])
        place += size
    return values


def read_attributes(path: str, name: str) -> dict[str, Any]:
    """Return the attributes of a group or dataset, as JSON has them.

    Args:
        path: of the file.
        name: of the group or dataset.

    Raises:
        FormatError: as `read_varying` does.
    """
    told, _ = _ask(path, name, {"ask": "attributes"})
    found: dict[str, Any] = told["attributes"]
    return found


def _ask(path: str, name: str, more: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    if find_spec("h5py") is None:
        raise MissingDependencyError.of("h5py", "hdf5")
    # threads may have readers of their own, but there is one process that answers
    with _TURN[0]:
        return _answer(path, name, more)


def _answer(path: str, name: str, more: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    child = _running()
    try:
        _send(child, json.dumps({"path": os.path.abspath(path), "name": name, **more}).encode() + b"\n")  # noqa: PTH100  links stay
        line, rest = _line(child)
        told: dict[str, Any] = parse_json(line)
        missing = sum(told.get("sizes", ())) - len(rest)
        while missing > 0:
            part = _piece(child)
            missing -= len(part)
            rest += part
    except (OSError, EOFError, TimeoutError) as error:
        end_child()
        raise FormatError(f"{path}, {name}: {error or type(error).__name__}. The file is damaged.") from error
    except BaseException:
        # of one that was interrupted, what still comes would be taken for the next answer
        end_child()
        raise
    if "outside" in told:
        raise UntrustedFileError(
            f"{path}: {told['outside']}, another file, which was not read. If you know where it comes from, copy what "
            "it leads to into one file, with h5copy or h5repack."
        )
    if "error" in told:
        raise FormatError(f"{path}, {name}: {told['error']}. It is damaged, or not the file that it should be.")
    return told, bytes(rest)


def _send(child: subprocess.Popen[bytes], request: bytes) -> None:
    assert child.stdin is not None
    rest = memoryview(request)
    while rest:
        rest = rest[child.stdin.write(rest) :]


def _line(child: subprocess.Popen[bytes]) -> tuple[bytes, bytearray]:
    """Return the first line of an answer, and what came after it."""
    found = bytearray()
    while b"\n" not in found:
        found += _piece(child)
        # an empty line says that it goes on
        del found[: len(found) - len(found.lstrip(b"\n"))]
    line, _, rest = found.partition(b"\n")
    return bytes(line), bytearray(rest)


def _piece(child: subprocess.Popen[bytes]) -> bytes:
    """Return the next bytes that a process writes.

    Raises:
        TimeoutError: there are none for `SILENT_SECONDS`.
        EOFError: it has ended.
    """
    assert child.stdout is not None
    until = time.monotonic() + SILENT_SECONDS
    while True:
        ready, _, _ = select.select([child.stdout], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise TimeoutError(f"libhdf5 did not come back from it within {SILENT_SECONDS:g} s")
        part = os.read(child.stdout.fileno(), PIECE_BYTES)
        if not part:
            raise EOFError("libhdf5 ended the process that read it")
        return part


def _running() -> subprocess.Popen[bytes]:
    """Return this process's reader, started if there is none."""
    if _CHILD and (_CHILD[0][0] != os.getpid() or _CHILD[0][1].poll() is not None):
        end_child()
    if not _CHILD:
        command = [sys.executable, "-m", "stepwell.readers.hdf5_child"]
        pipe = subprocess.PIPE
        # a buffer would be a fork's, too, which writes what is in it when it lets go of the pipe
        child = subprocess.Popen(command, bufsize=0, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        _CHILD.append((os.getpid(), child))
    return _CHILD[0][1]


def end_child() -> None:
    """End the process; the next request starts another."""
    while _CHILD:
        owner, child = _CHILD.pop()
        if owner == os.getpid():
            with suppress(OSError):
                child.kill()
            child.communicate()
        else:
            _leave(child)


def _leave(child: subprocess.Popen[bytes]) -> None:
    """Let go of a process that a fork has from its parent, which goes on with it."""
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            pipe.close()
    # it is not this process's to wait for
    child.returncode = 0


def _take_turns_anew() -> None:
    """Forget who had a turn: a thread of the parent that a fork does not have."""
    _TURN[0] = threading.Lock()


atexit.register(end_child)
os.register_at_fork(after_in_child=_take_turns_anew)
