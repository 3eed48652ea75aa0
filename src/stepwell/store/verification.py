"""Verify a store: every byte of the sealed segments against its checksum, every table against its rules.

Nothing is changed, nothing is trusted, and nothing that lies on the disk makes it crash: what cannot be read is a
finding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stepwell.errors import CorruptSegmentError, StepwellError
from stepwell.references.trusted_paths import Trust
from stepwell.schema import Schema
from stepwell.store.arrangement import ARRANGEMENT, read_arrangement
from stepwell.store.beneath import check_directory, list_directory
from stepwell.store.counting import counted
from stepwell.store.deletion import read_deleted
from stepwell.store.file_checks import file_checks
from stepwell.store.layout import (
    DELETED,
    NEW_PREFIX,
    OPEN_SUFFIX,
    PROGRESS,
    SEGMENTS,
    STORE_JSON,
    parse_segment_name,
)
from stepwell.store.manifests import has_listed_files
from stepwell.store.reaching import reaching
from stepwell.store.records import read_record
from stepwell.store.segment_checks import Check, open_checks, sealed_checks
from stepwell.store.segment_table import TABLE, check_table

__all__ = ["Finding", "Report", "verify_segment", "verify_store"]

NUM_THREADS = 8
ADVICE = ' Run "stepwell verify PATH".'


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was written.

    Args:
        file: its path below the store, with ``/``; of one of others, in which rows lie, its whole path or address.
        problem: what is stored, what was found, what to do.
    """

    file: str
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Report:
    """What `verify_store` found.

    Args:
        path: of the store.
        num_segments: segments that were looked at, open ones included.
        num_bytes: bytes that were compared with a checksum.
        findings: at most one a file, in the order of segments; none when all is well.
        num_files: files of others that rows lie in, which were compared with what they were.
    """

    path: str
    num_segments: int
    num_bytes: int
    findings: tuple[Finding, ...]
    num_files: int = 0

    @property
    def is_ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        looked = f"{self.path}: {counted(self.num_segments, 'segment')}, {counted(self.num_bytes, 'byte')}"
        if self.num_files:
            looked += f", {counted(self.num_files, 'file')} in place"
        if self.is_ok:
            return f"{looked}, all as written"
        damaged = counted(len(self.findings), "damaged file")
        return "\n".join([f"{looked}, {damaged}", *(f"  {found}" for found in self.findings)])


class HasPath(Protocol):
    """What a `Store` has."""

    @property
    def path(self) -> Path:
        """Its directory."""

    @property
    def trust(self) -> Trust:
        """What its references may lead to."""


def verify_store(
    store: HasPath | str | os.PathLike[str],
    *,
    deep: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check every file of a store.

    Sealed segments are compared with their checksums, byte by byte, and their tables are checked; of open ones only
    whether what they committed is there. Files of others that rows were left in are compared with what is noted of
    them, size and time, and not read. Safe while others write.

    Args:
        store: a store, or the path of one, also of one that does not open any more.
        deep: whether to decode every encoded row, too, those in files of others among them.
        progress: called with (bytes done, bytes in all), in this thread.

    Returns:
        What was found; never raises for what is on the disk.

    Notes:
        Runs on up to 8 threads; holds 4 MiB a thread.
    """
    path, trust = (Path(store), None) if isinstance(store, str | os.PathLike) else (store.path, store.trust)
    schema, checks = _store_checks(path, trust)
    segments = list(_segment_paths(path, checks))
    for segment in segments:
        checks.extend(_listed_checks(segment, schema, deep))
    files = list(file_checks(schema))
    findings = _run([*checks, *files], path, progress)
    num_bytes = sum(check.num_bytes for check in checks)
    return Report(str(path), len(segments), num_bytes, tuple(findings), len(files))


def verify_segment(path: str | os.PathLike[str], schema: Schema | None = None, *, deep: bool = False) -> list[Finding]:
    """Check the files of one segment, sealed or open.

    Args:
        path: its directory, below ``segments`` of a store.
        schema: the store's features; without it columns are compared with their checksums only.
        deep: whether to decode every encoded row, too.

    Returns:
        What was found; never raises for what is on the disk.
    """
    directory = Path(path).absolute()
    return _run(_listed_checks(directory, schema, deep), directory.parent.parent, None)


def _listed_checks(path: Path, schema: Schema | None, deep: bool) -> list[Check]:
    try:
        return list(_segment_checks(path, schema, deep))
    except OSError as error:
        # gone since it was listed: evicted or compacted
        return [] if not os.path.lexists(path) else [_failing(path, str(error))]
    except CorruptSegmentError as error:
        return [_failing(path, str(error))]


def _segment_checks(path: Path, schema: Schema | None, deep: bool) -> Iterator[Check]:
    is_open = path.name.endswith(OPEN_SUFFIX)
    if is_open and not os.path.lexists(path):
        # sealed since it was listed
        path = path.with_name(path.name.removesuffix(OPEN_SUFFIX))
        is_open = False
    if not os.path.lexists(path):
        return
    check_directory(path)
    # one that was killed between the removal of its commit record and its renaming is sealed but for its name
    if is_open and (os.path.lexists(path / PROGRESS) or not has_listed_files(str(path))):
        yield from open_checks(path, schema)
    else:
        yield from sealed_checks(path, schema, deep=deep)


def _store_checks(path: Path, trust: Trust) -> tuple[Schema | None, list[Check]]:
    """Return the store's features, if they can be read, and the checks of its own files."""
    checks = [
        Check(path / STORE_JSON, lambda: _read_json(path)),
        Check(path / DELETED, lambda: read_deleted(str(path))),
        Check(path / ARRANGEMENT, lambda: read_arrangement(str(path))),
        Check(path / TABLE, lambda: check_table(str(path))),
    ]
    try:
        return reaching(read_record(str(path)), str(path), trust).schema, checks
    except Exception:  # whatever it is, the first check finds it again
        return None, checks


def _read_json(path: Path) -> Schema | None:
    return read_record(str(path)).schema


def _segment_paths(path: Path, checks: list[Check]) -> Iterator[Path]:
    """Yield the segments' directories by name; adds a check that fails for what is none."""
    try:
        entries = sorted(list_directory(path / SEGMENTS))
    except (CorruptSegmentError, OSError) as error:
        checks.append(_failing(path / SEGMENTS, str(error)))
        return
    for entry in entries:
        if parse_segment_name(entry) is not None:
            yield path / SEGMENTS / entry
        elif not entry.startswith(NEW_PREFIX):
            checks.append(_failing(path / SEGMENTS / entry, "not a segment. Remove it, if nobody needs it."))


def _failing(file: Path, problem: str) -> Check:
    def fail() -> Any:
        raise CorruptSegmentError(problem)

    return Check(file, fail)


def _run(checks: list[Check], root: Path, progress: Callable[[int, int], None] | None) -> list[Finding]:
    """Run the checks on threads; of each file the first finding counts, in the order of the checks."""
    total = sum(check.num_bytes for check in checks)
    done = 0
    findings: dict[str, Finding] = {}
    with ThreadPoolExecutor(min(NUM_THREADS, os.cpu_count() or 1), thread_name_prefix="stepwell-verify") as pool:
        for check, problem in zip(checks, _problems(pool, checks), strict=True):
            if problem is not None:
                file = check.where or os.path.relpath(check.file, root).replace(os.sep, "/")
                findings.setdefault(file, Finding(file, problem))
            done += check.num_bytes
            if progress is not None and check.num_bytes:
                progress(done, total)
    return list(findings.values())


def _problems(pool: ThreadPoolExecutor, checks: Iterable[Check]) -> Iterator[str | None]:
    return pool.map(_problem_of, checks)


def _problem_of(check: Check) -> str | None:
    try:
        check.run()
    except StepwellError as error:
        return None if _is_gone(check.file) else str(error).replace(ADVICE, " Restore it from a copy.")
    except FileNotFoundError:
        return None if not check.file.parent.exists() else "missing. Restore it from a copy, or remove the segment."
    except Exception as error:  # garbage on the disk may raise anything, and must not end the verification
        return f"cannot be read: {type(error).__name__}: {error}"
    return None


def _is_gone(file: Path) -> bool:
    """Whether the file's segment was sealed or compacted away since it was listed."""
    return file.parent.parent.name == SEGMENTS and not file.parent.exists()
