"""Copies of a data set as somebody might make them who means harm: names, links, FIFOs and sizes.

::

    set/a.json    every text in it: /outside/..., ../../outside/..., with NUL, 100,000 letters; every number: 2^62, -1
    set/a.tar     members of such names, links, FIFOs, of 8 GiB
    set/a.png     of 2^30 pixels, its checksum right; .jpg, .npy, .zip and records of TFRecord files likewise
    set/a.stamps  of a ring's segment: shapes, stamps of all times
    set/any       a link to the same file outside, a link to /dev/zero, a FIFO, a directory
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["EvilCopy", "evil_copies"]

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
    from stepwell.tfds.crc32c import masked_crc32c

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
