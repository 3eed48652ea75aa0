"""What reading a data set of somebody who means harm may do: nothing but give the right data, or a clear error."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import resource
import select
import shutil
import signal
import struct
import tempfile
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import StepwellError

__all__ = ["EvilCopy", "StrangersReport", "check_strangers", "evil_copies"]

MAX_TOLD = 2000
MAX_ROW_BYTES = 64 << 20


@dataclass(slots=True)
class StrangersReport:
    """What became of evil copies.

    Args:
        errors: how many were refused, by the name of the error.
        num_read: how many could be read: what was changed is not needed, or bounded by what there is.

    Example:
        >>> report = StrangersReport(num_read=3)
        >>> report.errors["FormatError"] += 2
        >>> report.num_read, dict(report.errors)
        (3, {'FormatError': 2})
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
        """Read a data set in a new process, and return what it came to."""
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
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:
        # macOS neither says how much there is nor bounds it
        return
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


LONG_NAME = "n" * 100_000
NUMBERS = (2**62, 10**10, 2**31, -1, 1e308)
UPWARDS = "../" * 24
TAR_BLOCK = 512
PNG_HEAD = struct.Struct(">II")
ZIP_ENTRY, ZIP_SIZE_PLACE = b"PK\x01\x02", 24


@dataclass(frozen=True, slots=True)
class EvilCopy:
    """One way to spoil a copy of a data set.

    Args:
        told: what is done, for messages.
        leads_out: whether it names something outside of the data set.
        change: what does it to the copy at a path.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "data")
        >>> copy = EvilCopy("a file without bytes", False, lambda folder: (folder / "data").touch())
        >>> copy.change(path.parent)
        >>> copy.leads_out, path.exists()
        (False, True)
    """

    told: str
    leads_out: bool
    change: Callable[[Path], None]


def evil_copies(source: Path, outside: Path) -> Iterator[EvilCopy]:
    """Yield the ways to spoil copies of a data set, those of each of its files.

    Args:
        source: a file, or a directory.
        outside: a good copy of it, which evil ones lead to.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.json")
        >>> path.write_text('{"name": "b"}')
        13
        >>> [copy.told for copy in evil_copies(path, Path("/outside"))][:3]
        ['a.json is a link to /dev/zero', 'a.json is a FIFO', 'a.json is a directory']
    """
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    for path in files:
        name = path.relative_to(source).as_posix() if source.is_dir() else ""
        told, target = name or source.name, outside / name if name else outside
        puts: list[tuple[str, bool, Callable[[Path], Any]]] = [
            ("a link to /dev/zero", False, partial(_put_link, Path("/dev/zero"))),
            ("a FIFO", False, os.mkfifo),
            ("a directory", False, Path.mkdir),
        ]
        if name:
            # a file that is named in full is what its user wants, link or not
            puts.insert(0, (f"a link to {target}", True, partial(_put_link, target)))
        for what, leads_out, put in puts:
            yield EvilCopy(f"{told} is {what}", leads_out, partial(_replace, name, put))
        for what, leads_out, data in _changed(path, outside):
            yield EvilCopy(f"{told}: {what}", leads_out, partial(_write, name, data))


def _put_link(target: Path, path: Path) -> None:
    path.symlink_to(target)


def _replace(name: str, put: Callable[[Path], Any], copy: Path) -> None:
    path = copy / name if name else copy
    path.unlink()
    put(path)


def _write(name: str, data: bytes, copy: Path) -> None:
    (copy / name if name else copy).write_bytes(data)


def _changed(path: Path, outside: Path) -> Iterator[tuple[str, bool, bytes]]:
    """Yield what is changed, whether it leads outside, and the file's new bytes."""
    data, name = path.read_bytes(), path.name.lower()
    names = (f"{outside}/", f"{UPWARDS}{str(outside).lstrip('/')}/")
    for suffix, change in _CHANGES.items():
        if suffix in name:
            yield from change(data, names)


def _json(data: bytes, names: tuple[str, ...]) -> Iterator[tuple[str, bool, bytes]]:
    """Change each text and number of a JSON file, or of the first line of a file of lines."""
    head, line, rest = data.partition(b"\n")
    try:
        told, tail = json.loads(data), b""
    except ValueError:
        try:
            told, tail = json.loads(head), line + rest
        except ValueError:
            return
    if tail:
        yield "its last line is nested 100,000 deep", False, head + line + b"[" * 100_000 + b"]" * 100_000 + b"\n"
    yield "nested 100,000 deep", False, b"[" * 100_000 + b"]" * 100_000
    yield "an object nested 100,000 deep", False, b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    for place, _ in _leaves(told, ()):
        if isinstance(place[-1], str):
            where, new = "/".join(map(str, place)), names[1] + place[-1]
            yield f"{where} is called {new!r}", True, json.dumps(_renamed(told, place, new)).encode() + tail
    for place, value in _leaves(told, ()):
        if isinstance(value, str):
            changes: list[tuple[bool, Any]] = [*((True, prefix + value) for prefix in names)]
            changes += [(False, f"{value}\0"), (False, LONG_NAME), (False, "..")]
        elif isinstance(value, bool) or value is None:
            continue
        else:
            changes = [(False, number) for number in NUMBERS]
        for leads_out, new in changes:
            where = "/".join(map(str, place))
            yield f"{where} is {str(new)[:60]!r}", leads_out, json.dumps(_with(told, place, new)).encode() + tail


def _leaves(node: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*place, key))
    elif isinstance(node, list):
        for number, value in enumerate(node[:4]):
            yield from _leaves(value, (*place, number))
    else:
        yield place, node


def _with(node: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[place[0]] = _with(node[place[0]], place[1:], value)
    return copy


def _renamed(node: Any, place: tuple[Any, ...], key: str) -> Any:
    """Return a copy where one key of an object is another."""
    if len(place) > 1:
        return _with(node, place[:1], _renamed(node[place[0]], place[1:], key))
    return {key if name == place[0] else name: value for name, value in node.items()}


def _tar(data: bytes, names: tuple[str, ...]) -> Iterator[tuple[str, bool, bytes]]:
    """Change name, type and size of the first members."""
    place = 0
    for _ in range(3):
        header = data[place : place + TAR_BLOCK]
        name = header[:100].rstrip(b"\0")
        if not name:
            return
        for prefix in names:
            told = prefix.encode() + name
            if len(told) < 100:
                yield f"member {told.decode()!r}", True, _with_header(data, place, {0: told.ljust(100, b"\0")})
            link = {156: b"2", 157: told[:100].ljust(100, b"\0"), 124: b"0" * 11 + b"\0"}
            yield f"member {name.decode()!r} is a link to {prefix}", True, _with_header(data, place, link)
            yield f"member {name.decode()!r} is a hard link", True, _with_header(data, place, {**link, 156: b"1"})
        yield f"member {name.decode()!r} is a FIFO", False, _with_header(data, place, {156: b"6"})
        yield f"member {name.decode()!r} of 8 GiB", False, _with_header(data, place, {124: b"77777777777\0"})
        yield f"member {name.decode()!r} of -1 bytes", False, _with_header(data, place, {124: b"\xff" * 12})
        size = int(header[124:135].rstrip(b" \0") or b"0", 8)
        place += TAR_BLOCK * (1 + -(-size // TAR_BLOCK))


def _with_header(data: bytes, place: int, fields: dict[int, bytes]) -> bytes:
    header = bytearray(data[place : place + TAR_BLOCK])
    for start, value in fields.items():
        header[start : start + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return data[:place] + bytes(header) + data[place + TAR_BLOCK :]


def _png(data: bytes, _: tuple[str, ...]) -> Iterator[tuple[str, bool, bytes]]:
    for height, width in ((32_768, 32_768), (2**31 - 1, 2**31 - 1), (0, 1)):
        head = data[:16] + PNG_HEAD.pack(width, height) + data[24:29]
        yield f"{height}x{width}", False, head + struct.pack(">I", zlib.crc32(head[12:])) + data[33:]


def _jpeg(data: bytes, _: tuple[str, ...]) -> Iterator[tuple[str, bool, bytes]]:
    place = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    if place >= 0:
        yield "65500x65500", False, data[: place + 5] + struct.pack(">HH", 65_500, 65_500) + data[place + 9 :]


def _npy(data: bytes, _: tuple[str, ...]) -> Iterator[tuple[str, bool, bytes]]:
    end = data.find(b"\n") + 1
    for shape in ("(1152921504606846976,)", "(10000000000,)", "(-1,)", "(0, 9223372036854775807, 9223372036854775807)"):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
        header += b" " * (-(len(header) + 11) % 64) + b"\n"
        yield f"shape {shape}", False, data[:8] + struct.pack("<H", len(header)) + header + data[end:]
    objects = data[:end].replace(b"<f4", b"|O ").replace(b"<f8", b"|O ").replace(b"<i8", b"|O ")
    yield "objects", False, objects + data[end:]


def _stamps(data: bytes, names: tuple[str, ...]) -> Iterator[tuple[str, bool, bytes]]:
    """Change the header of the stamps of a ring's segment, and the stamps."""
    yield from _npy(data, names)
    start = data.find(b"\n") + 1
    for told, stamp in (("-1", -1), ("2^62", 2**62), ("2^63 - 1", 2**63 - 1), ("-2^63", -(2**63)), ("0", 0)):
        word = struct.pack("<q", stamp)
        yield f"all stamps are {told}", False, data[:start] + word * ((len(data) - start) // 8)
        yield f"the first stamp is {told}", False, data[:start] + word + data[start + 8 :]
        yield f"the last stamp is {told}", False, data[:-8] + word
    yield "no stamps", False, data[:start]


def _zip(data: bytes, _: tuple[str, ...]) -> Iterator[tuple[str, bool, bytes]]:
    place = data.find(ZIP_ENTRY)
    if place >= 0:
        start = place + ZIP_SIZE_PLACE
        yield "a member of 4 GiB", False, data[:start] + struct.pack("<I", 2**32 - 2) + data[start + 4 :]
        name = place + 46
        yield "a member that leads upwards", False, data[:name] + b"../" + data[name + 3 :]


def _records(data: bytes, _: tuple[str, ...]) -> Iterator[tuple[str, bool, bytes]]:
    from stepwell.tfds.framing import masked_crc32c

    for size in (2**40, 2**63, 2**64 - 8):
        head = struct.pack("<Q", size)
        yield f"a record of {size} bytes", False, head + struct.pack("<I", masked_crc32c(head)) + data[12:]


_CHANGES: dict[str, Callable[[bytes, tuple[str, ...]], Iterator[tuple[str, bool, bytes]]]] = {
    ".json": _json,
    ".zarray": _json,
    ".zgroup": _json,
    ".tar": _tar,
    ".png": _png,
    ".jpg": _jpeg,
    ".npy": _npy,
    ".stamps": _stamps,
    ".npz": _zip,
    ".zip": _zip,
    ".tfrecord": _records,
}
