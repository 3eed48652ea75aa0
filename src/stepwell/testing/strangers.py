"""What reading a data set of somebody who means harm may do: nothing but give the right data, or a clear error."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import resource
import select
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import StepwellError
from stepwell.testing.evil import EvilCopy, evil_copies

__all__ = ["StrangersReport", "check_strangers"]

MAX_TOLD = 2000
MAX_ROW_BYTES = 64 << 20


@dataclass(slots=True)
class StrangersReport:
    """What became of evil copies.

    Args:
        errors: how many were refused, by the name of the error.
        num_read: how many could be read: what was changed is not needed, or bounded by what there is.
    """

    errors: Counter[str] = field(default_factory=Counter)
    num_read: int = 0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a process that read a copy came to: an error's name, or a digest of what it returned."""

    error: str | None = None
    is_own: bool = True
    told: str = ""
    digest: str = ""


def check_strangers(
    source: str | os.PathLike[str],
    read: Callable[[Path], Any] | str,
    *,
    count: int | None = None,
    seed: int = 0,
    seconds: float = 30,
    memory_bytes: int = 1 << 30,
) -> StrangersReport:
    """Read copies of a data set that were made to do harm, and raise for the first that does any.

    Args:
        source: a good data set, small: a file, or a directory. It is copied.
        read: opens the data set at a path and returns its values: arrays, texts, numbers, lists and dicts of them. It
            runs in a process of its own, with an empty cache. Or the name of a reader, whose address `stepwell.open`
            opens, and all episodes are read.
        count: how many of the copies that `evil_copies` makes, drawn at random; None: all.
        seed: of the draw.
        seconds: that one may take.
        memory_bytes: that reading may take beyond what this process has; rows that say themselves how large they are
            may take 64 MiB.

    Returns:
        How many were refused, and by what.

    Raises:
        AssertionError: any other error than stepwell's own; a process that ended, took too long or too much memory; a
            file outside of the data set that was read or changed. It says which copy did it.

    Notes:
        Processes are forked: of the threads that this one has, none is there. POSIX only.
    """
    report, source = StrangersReport(), Path(source)
    with tempfile.TemporaryDirectory(prefix="stepwell-strangers-") as folder:
        place = Path(folder).resolve()
        outside = place / "outside" / source.name
        _copy(source, outside)
        copies = list(evil_copies(source, outside))
        if count is not None and count < len(copies):
            chosen = np.random.default_rng(seed).choice(len(copies), count, replace=False)
            copies = [copies[number] for number in sorted(chosen.tolist())]
        before = _state(outside)
        child = _Child(partial(_read_all, read) if isinstance(read, str) else read, place, seconds, memory_bytes)
        # what is imported and compiled for it children have then
        child.warm_up(outside)
        good = child.read(_made(source, place, None), "the good one")
        if good.error is not None:
            raise AssertionError(f"{source}: the good data set cannot be read: {good.told}")
        for copy in copies:
            where = f"a copy of {source.name} where {copy.told}"
            outcome = child.read(_made(source, place, copy), where)
            if _state(outside) != before:
                raise AssertionError(f"{where}: a file outside of it was changed.")
            if outcome.error is not None:
                if not outcome.is_own:
                    raise AssertionError(f"{where}: {outcome.told}")
                report.errors[outcome.error] += 1
                continue
            report.num_read += 1
            if copy.leads_out:
                _check_is_not_read(child, outside, outcome, where)
    return report


def _check_is_not_read(child: _Child, outside: Path, outcome: _Outcome, where: str) -> None:
    """Raise where the same is not read when there is nothing outside."""
    away = outside.with_name("away")
    outside.rename(away)
    try:
        again = child.read(child.last, where)
    finally:
        away.rename(outside)
    if (again.error, again.digest) != (outcome.error, outcome.digest):
        raise AssertionError(f"{where}: what lies outside of it was read.")


def _read_all(reader: str, path: Path) -> Any:
    """Return all that a data set holds, by its address."""
    from stepwell.formats.opening import open

    with open(f"{reader}://{path}") as store:
        return store.metadata, [
            (episode.metadata, {name: episode[name] for name in store.schema or ()}) for episode in store
        ]


def _made(source: Path, place: Path, copy: EvilCopy | None) -> Path:
    target = place / "set" / source.name
    shutil.rmtree(target.parent, ignore_errors=True)
    _copy(source, target)
    if copy is not None:
        copy.change(target)
    return target


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def _state(folder: Path) -> dict[str, str]:
    """Return names and contents of all that lies beside the good copy."""
    files = sorted(path for path in folder.parent.rglob("*") if path.is_file())
    return {str(path): hashlib.blake2b(path.read_bytes()).hexdigest() for path in files}


class _Child:
    """Reads in processes that can be ended, with memory that is bounded.

    Args:
        read: as `check_strangers` takes it.
        place: a directory for caches.
        seconds: for one process.
        memory_bytes: for one process.
    """

    def __init__(self, read: Callable[[Path], Any], place: Path, seconds: float, memory_bytes: int) -> None:
        self._read, self._place, self._seconds, self._memory_bytes = read, place, seconds, memory_bytes
        self.last = place

    def warm_up(self, path: Path) -> None:
        """Read a data set in this process, whatever comes of it."""
        before = dict(os.environ)
        os.environ |= self._environment(self._place / "warm")
        try:
            with contextlib.suppress(Exception):
                _add(hashlib.blake2b(), self._read(path))
        finally:
            os.environ.clear()
            os.environ |= before

    def _environment(self, cache: Path) -> dict[str, str]:
        return {"STEPWELL_CACHE": str(cache), "STEPWELL_MAX_ROW_BYTES": str(MAX_ROW_BYTES), "STEPWELL_TRUST": ""}

    def read(self, path: Path, where: str) -> _Outcome:
        """Read a data set in a new process, and return what it came to.

        Raises:
            AssertionError: it ended without an answer, or did not come back.
        """
        self.last = path
        cache = self._place / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        receiving, sending = os.pipe()
        number = os.fork()
        if number == 0:
            os.close(receiving)
            self._answer(path, cache, sending)
        os.close(sending)
        try:
            outcome: _Outcome = pickle.loads(self._received(receiving, number, where))
            return outcome
        finally:
            os.close(receiving)

    def _received(self, receiving: int, number: int, where: str) -> bytes:
        until, data = time.monotonic() + self._seconds, b""
        try:
            while True:
                if not select.select([receiving], [], [], max(0.0, until - time.monotonic()))[0]:
                    raise AssertionError(f"{where}: not done after {self._seconds} s.")
                part = os.read(receiving, 1 << 16)
                if not part:
                    break
                data += part
        finally:
            with contextlib.suppress(ProcessLookupError):
                # what it started is in its group
                os.killpg(number, signal.SIGKILL)
            _, status = os.waitpid(number, 0)
        if not data:
            raise AssertionError(f"{where}: the process that read it was ended, status {status}.")
        return data

    def _answer(self, path: Path, cache: Path, sending: int) -> None:
        """Read, write the outcome and end: this process never returns."""
        outcome = _Outcome("it was ended", is_own=False)
        try:
            os.setpgid(0, 0)
            os.environ |= self._environment(cache)
            _bound_memory(self._memory_bytes)
            digest = hashlib.blake2b()
            _add(digest, self._read(path))
            outcome = _Outcome(digest=digest.hexdigest())
        except StepwellError as error:
            outcome = _Outcome(type(error).__name__, told=str(error)[:MAX_TOLD])
        except BaseException:
            outcome = _Outcome("another error", is_own=False, told=traceback.format_exc()[-MAX_TOLD:])
        finally:
            os.write(sending, pickle.dumps(outcome))
            os._exit(0)


def _bound_memory(num_bytes: int) -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + num_bytes,) * 2)


def _add(digest: Any, value: Any) -> None:
    """Take values into a digest, whatever they are nested in."""
    if isinstance(value, Mapping):
        for key in value:
            _add(digest, str(key))
            _add(digest, value[key])
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.shape} {value.dtype}".encode())
        digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data if value.size else b"")
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        for part in value:
            _add(digest, part)
    else:
        digest.update(value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogateescape"))
