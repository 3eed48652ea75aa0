"""Damaged copies of a file, and what reading them may do: the right data or a clear error, in bounded memory."""

from __future__ import annotations

import signal
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import StepwellError

__all__ = ["DamageReport", "check_damage", "damaged_copies"]

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


def damaged_copies(data: bytes, count: int, *, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield damaged copies of a file, each different from it.

    Args:
        data: the file, at least one byte.
        count: how many copies.
        seed: the same seed gives the same copies.

    Yields:
        What was done, for messages, and the bytes.

    Example:
        >>> [told for told, _ in damaged_copies(b"0123456789", 3, seed=1)]
        ['number 0000000000000000 at byte 0', 'cut off at byte 2', 'bytes 8 to 10 overwritten by 246d']
    """
    rng = np.random.default_rng(seed)
    made = 0
    while made < count:
        told, copy = _KINDS[int(rng.integers(len(_KINDS)))](data, rng)
        if copy != data:
            made += 1
            yield told, copy


@dataclass(slots=True)
class DamageReport:
    """What became of damaged copies.

    Args:
        errors: how many were refused, by the name of the error.
        num_read: how many could be read.
        max_memory_bytes: the most that Python and numpy had at once in any of them.
    """

    errors: Counter[str] = field(default_factory=Counter)
    num_read: int = 0
    max_memory_bytes: int = 0


def check_damage(
    path: Path,
    read: Callable[[Path], Any],
    *,
    count: int,
    seed: int = 0,
    is_right: Callable[[Any], bool] | None = None,
    seconds: int = 20,
) -> DamageReport:
    """Read damaged copies of a file, and raise for the first that does what it must not.

    Args:
        path: of a good file; copies are put in its place, and it is there again at the end.
        read: opens the file and reads all of it; what it allocates counts.
        count: how many copies.
        seed: of the damage.
        is_right: whether what ``read`` returned may be: for formats whose checksums tell all damage, whether it is what
            the good file holds; None: anything may.
        seconds: that one may take.

    Returns:
        How many were refused, and by what.

    Raises:
        AssertionError: any other error than stepwell's own, wrong data, more memory than ten times the file (and
            16 MiB), or more time; says which damage did it.

    Notes:
        In the main thread only: time is measured by an alarm.
    """
    data = path.read_bytes()
    report = DamageReport()
    allowed = MEMORY_FACTOR * len(data) + MEMORY_SLACK
    try:
        for number, (told, copy) in enumerate(damaged_copies(data, count, seed=seed)):
            path.write_bytes(copy)
            _read_one(lambda: read(path), f"copy {number} of {path.name}, {told}", report, is_right, seconds)
            if report.max_memory_bytes > allowed:
                raise AssertionError(
                    f"copy {number} of {path.name}, {told}: {report.max_memory_bytes} bytes of memory for a file of "
                    f"{len(copy)}. Allowed: {allowed}."
                )
    finally:
        path.write_bytes(data)
    return report


def _read_one(
    read: Callable[[], Any],
    where: str,
    report: DamageReport,
    is_right: Callable[[Any], bool] | None,
    seconds: int,
) -> None:
    tracemalloc.start()
    try:
        with _alarm(seconds, where):
            found = read()
    except StepwellError as error:
        report.errors[type(error).__name__] += 1
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error
    else:
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


_KINDS = (_flip_bit, _cut_off, _overwrite, _overwrite_number, _zero, _remove, _repeat, _append)
