"""Damaged copies of a file, and what reading them may do: the right data or a clear error, in bounded memory."""

from __future__ import annotations

import re
import signal
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import StepwellError

__all__ = ["DAMAGES", "DamageReport", "check_damage", "damaged_copies"]

# what lengths, counts and places become where they do most harm
EXTREMES = tuple(
    value.to_bytes(size, order)
    for size in (4, 8)
    for value in (0, 1, (1 << 8 * size - 1) - 1, 1 << 8 * size - 1, (1 << 8 * size) - 1)
    for order in ("little", "big")
)
MEMORY_FACTOR = 10
# interpreter, imports and tables that every reader has, whatever the file
MEMORY_SLACK = 16 << 20


def damaged_copies(
    data: bytes, count: int, *, seed: int = 0, kinds: Collection[str] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Yield damaged copies of a file, each different from it.

    Args:
        data: the file, at least one byte.
        count: how many copies.
        seed: the same seed gives the same copies.
        kinds: of damage, some of `DAMAGES`; default: all but "names" and "joined".

    Yields:
        What was done, for messages, and the bytes.

    Example:
        >>> [told for told, _ in damaged_copies(b"0123456789", 3, seed=1)]
        ['number 0000000000000000 at byte 0', 'cut off at byte 2', 'bytes 8 to 10 overwritten by 246d']
        >>> list(damaged_copies(b'{"name": 12}', 1, kinds=["names"]))
        [("letter 'e' of 'name' is 'w'", b'{"namw": 12}')]
    """
    rng = np.random.default_rng(seed)
    chosen = [_KINDS[kind] for kind in (USUAL if kinds is None else kinds)]
    made = tried = 0
    while made < count and tried < 100 * (count + 1):
        tried += 1
        told, copy = chosen[int(rng.integers(len(chosen)))](data, rng)
        if copy != data:
            made += 1
            yield told, copy


@dataclass(slots=True)
class DamageReport:
    """What became of damaged copies.

    Args:
        errors: how many were refused, by the name of the error.
        num_read: how many could be read without a word.
        max_memory_bytes: the most that Python and numpy had at once in any of them.
        warnings: how many were read with a warning, by its name.

    Example:
        >>> report = DamageReport(num_read=3)
        >>> report.errors["FormatError"] += 2
        >>> report.num_read, dict(report.errors)
        (3, {'FormatError': 2})
    """

    errors: Counter[str] = field(default_factory=Counter)
    num_read: int = 0
    max_memory_bytes: int = 0
    warnings: Counter[str] = field(default_factory=Counter)


def check_damage(
    path: Path,
    read: Callable[[Path], Any],
    *,
    count: int,
    seed: int = 0,
    is_right: Callable[[Any], bool] | None = None,
    seconds: int = 20,
    kinds: Collection[str] | None = None,
) -> DamageReport:
    """Read damaged copies of a file, or of a dataset of files, and raise for the first that does what it must not.

    Args:
        path: of a good file; copies are put in its place, and it is there again at the end. Of a directory each copy
            has one file damaged, any of those in it and below.
        read: opens the file and reads all of it; what it allocates counts.
        count: how many copies.
        seed: of the damage.
        is_right: whether what ``read`` returned may be: for formats whose checksums tell all damage, whether it is what
            the good file holds; None: anything may. What is read with a warning is not looked at.
        seconds: that one may take.
        kinds: of damage, some of `DAMAGES`; see `damaged_copies`.

    Returns:
        How many were refused, and by what.

    Raises:
        AssertionError: any other error than stepwell's own, wrong data, more memory than ten times the file (and
            16 MiB), or more time; says which damage did it.

    Example:
        >>> import tempfile
        >>> from stepwell.errors import FormatError
        >>> path = Path(f"{tempfile.mkdtemp()}/a.txt")
        >>> _ = path.write_text("9")
        >>> def read(path):
        ...     if (data := path.read_bytes()) != b"9":
        ...         raise FormatError(f"{path} holds {data!r}.")
        >>> report = check_damage(path, read, count=5)
        >>> report.num_read, sum(report.errors.values()), path.read_text()
        (0, 5, '9')

    Notes:
        In the main thread only: time is measured by an alarm.
    """
    report = DamageReport()
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    allowed = MEMORY_FACTOR * sum(file.stat().st_size for file in files) + MEMORY_SLACK
    for number, (file, told, copy) in enumerate(_damages(files, count, seed, USUAL if kinds is None else kinds)):
        where = f"copy {number} of {file.relative_to(path.parent)}, {told}"
        data = file.read_bytes()
        try:
            if copy is None:
                file.unlink()
            else:
                file.write_bytes(copy)
            _read_one(lambda: read(path), where, report, is_right, seconds)
        finally:
            file.write_bytes(data)
        if report.max_memory_bytes > allowed:
            raise AssertionError(f"{where}: {report.max_memory_bytes} bytes of memory. Allowed: {allowed}.")
    return report


def _damages(
    files: list[Path], count: int, seed: int, kinds: Collection[str]
) -> Iterator[tuple[Path, str, bytes | None]]:
    """Yield what is to be damaged, how, and the copy; None: the file goes."""
    rng = np.random.default_rng(seed)
    others = [kind for kind in kinds if kind != MISSING]
    if len(files) == 1 and len(others) == len(kinds):
        yield from ((files[0], *each) for each in damaged_copies(files[0].read_bytes(), count, seed=seed, kinds=kinds))
        return
    full = [file for file in files if file.stat().st_size]
    for number in range(count):
        file = full[int(rng.integers(len(full)))]
        if len(others) < len(kinds) and rng.integers(len(kinds)) == 0:
            yield file, MISSING, None
        else:
            yield from (
                (file, *each) for each in damaged_copies(file.read_bytes(), 1, seed=seed + number, kinds=others)
            )


def _read_one(
    read: Callable[[], Any],
    where: str,
    report: DamageReport,
    is_right: Callable[[Any], bool] | None,
    seconds: int,
) -> None:
    tracemalloc.start()
    try:
        with warnings.catch_warnings(record=True) as told, _alarm(seconds, where):
            warnings.simplefilter("always")
            found = read()
    except StepwellError as error:
        report.errors[type(error).__name__] += 1
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    else:
        named = [warning.category.__name__ for warning in told if issubclass(warning.category, UserWarning)]
        if named:
            report.warnings[named[0]] += 1
            return
        report.num_read += 1
        if is_right is not None and not is_right(found):
            raise AssertionError(f"{where}: it was read, and what came is wrong.")
    finally:
        report.max_memory_bytes = max(report.max_memory_bytes, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


@contextmanager
def _alarm(seconds: int, where: str) -> Iterator[None]:
    def ring(number: int, frame: Any) -> None:
        raise AssertionError(f"{where}: not done after {seconds} s.")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


Damage = tuple[str, bytes]


def _span(data: bytes, rng: np.random.Generator, most: int = 64) -> tuple[int, int]:
    start = int(rng.integers(len(data)))
    return start, min(len(data), start + int(rng.integers(1, most + 1)))


def _flip_bit(data: bytes, rng: np.random.Generator) -> Damage:
    place, bit = int(rng.integers(len(data))), int(rng.integers(8))
    return f"bit {bit} of byte {place} is flipped", data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def _cut_off(data: bytes, rng: np.random.Generator) -> Damage:
    place = int(rng.integers(len(data)))
    return f"cut off at byte {place}", data[:place]


def _overwrite(data: bytes, rng: np.random.Generator) -> Damage:
    start, stop = _span(data, rng)
    new = rng.bytes(stop - start)
    return f"bytes {start} to {stop} overwritten by {new[:8].hex()}", data[:start] + new + data[stop:]


def _overwrite_number(data: bytes, rng: np.random.Generator) -> Damage:
    new = EXTREMES[int(rng.integers(len(EXTREMES)))][: len(data)]
    # numbers that say where and how much lie in front and at the end more often than anywhere
    limit = len(data) if rng.random() < 0.5 else min(len(data), 4096)
    start = int(rng.integers(limit))
    start = len(data) - start if rng.random() < 0.25 else start
    copy = bytearray(data)
    copy[start : start + len(new)] = new[: max(0, len(data) - start)]
    return f"number {new.hex()} at byte {start}", bytes(copy)


def _zero(data: bytes, rng: np.random.Generator) -> Damage:
    start, stop = _span(data, rng, 4096)
    return f"bytes {start} to {stop} are zeros", data[:start] + bytes(stop - start) + data[stop:]


def _remove(data: bytes, rng: np.random.Generator) -> Damage:
    start, stop = _span(data, rng)
    return f"bytes {start} to {stop} are removed", data[:start] + data[stop:]


def _repeat(data: bytes, rng: np.random.Generator) -> Damage:
    start, stop = _span(data, rng, 1024)
    return f"bytes {start} to {stop} come twice", data[:stop] + data[start:]


def _append(data: bytes, rng: np.random.Generator) -> Damage:
    more = rng.bytes(int(rng.integers(1, 64)))
    return f"{len(more)} bytes more", data + more


def _zero_page(data: bytes, rng: np.random.Generator) -> Damage:
    size = PAGES[int(rng.integers(len(PAGES)))]
    start = int(rng.integers(-(-len(data) // size))) * size
    stop = min(len(data), start + size)
    return f"page of zeros from byte {start} to {stop}", data[:start] + bytes(stop - start) + data[stop:]


def _cut_page(data: bytes, rng: np.random.Generator) -> Damage:
    place = int(rng.integers(-(-len(data) // PAGES[0]))) * PAGES[0]
    return f"cut off at byte {place}", data[:place]


def _join(data: bytes, rng: np.random.Generator) -> Damage:
    return "the whole file comes twice", data + data


def _rename(data: bytes, rng: np.random.Generator) -> Damage:
    texts = [found for found in TEXT.finditer(data) if found[1]]
    if not texts:
        return _flip_bit(data, rng)
    found = texts[int(rng.integers(len(texts)))]
    place = int(rng.integers(found.start(1), found.end(1)))
    old, new = data[place : place + 1], LETTERS[int(rng.integers(len(LETTERS)))]
    told = f"letter {old.decode(errors='replace')!r} of {found[1].decode(errors='replace')!r} is {chr(new)!r}"
    return told, data[:place] + bytes([new]) + data[place + 1 :]


PAGES = (512, 4096)
TEXT = re.compile(rb'"([^"\\\n]{0,200})"')
LETTERS = b"abcdefghijklmnopqrstuvwxyz0123456789"
_KINDS = {
    "bit": _flip_bit,
    "cut": _cut_off,
    "bytes": _overwrite,
    "number": _overwrite_number,
    "zeros": _zero,
    "removed": _remove,
    "repeated": _repeat,
    "appended": _append,
    "page": _zero_page,
    "cut page": _cut_page,
    "joined": _join,
    "names": _rename,
}
USUAL = ("bit", "cut", "bytes", "number", "zeros", "removed", "repeated", "appended")
MISSING = "missing"
DAMAGES = (*_KINDS, MISSING)
"""Kinds of damage: a bit, a cut, overwritten bytes or numbers, zeros, a gap, a repetition, more bytes; a page of zeros,
a cut between pages, the file twice; a letter within quotes; and, of a directory's files, one that is missing."""
