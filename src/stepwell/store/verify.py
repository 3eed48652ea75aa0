"""Verify a store: every byte of the sealed segments against its checksum, every table against its rules.

Nothing is changed, nothing is trusted, and nothing that lies on the disk makes it crash: what cannot be read is a
finding. The work is a list of checks that run on any thread in any order; what a check raises becomes a finding about
its file. Files are read in pieces and never mapped where their length is in doubt: a touch beyond the end of a map
would kill the process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, SequentialCodec, codec_class, make_codec
from stepwell.errors import CorruptSegmentError, StepwellError
from stepwell.files.addresses import plain_address
from stepwell.files.local_files import map_descriptor
from stepwell.json_text import parse_json
from stepwell.references.file_codec import ListedFileCodec, files_of
from stepwell.references.span_files import problem_of
from stepwell.references.trusted_paths import Trust, check_reach, is_reached
from stepwell.schema import Feature, Schema
from stepwell.sizes import counted
from stepwell.store.beneath import (
    check_directory,
    header_bytes,
    header_size,
    list_directory,
    open_file,
    parse_header_size,
)
from stepwell.store.commit import CommitRecord
from stepwell.store.decode import StoredRows
from stepwell.store.episodes import (
    EPISODE_DTYPE,
    check_lane_records,
    check_records,
    is_episodes_header,
    is_lanes_header,
)
from stepwell.store.lanes import EPISODES_SO_FAR, LANE_MARKS, LANE_STEPS, MARK, STEP_WORDS, check_marks, check_steps
from stepwell.store.layout import (
    CLOCK,
    DELETED,
    EPISODES,
    MAX_ROWS,
    METADATA,
    NEW_PREFIX,
    OPEN_SUFFIX,
    PROGRESS,
    RESTORE,
    SEGMENT_JSON,
    SEGMENTS,
    STORE_JSON,
    column_files,
    parse_segment_name,
)
from stepwell.store.maintenance import read_deleted
from stepwell.store.manifests import ARRANGEMENT_JSON, has_listed_files, read_manifest, read_store_manifest
from stepwell.store.marks import MARKS, read_marks
from stepwell.store.records import reaching, read_record
from stepwell.store.ring import LATEST
from stepwell.store.sealing import file_checksum
from stepwell.store.snapshot import TABLE, check_table
from stepwell.store.statistics import STATISTICS, load_statistics

if TYPE_CHECKING:
    from stepwell.store.store import Store

__all__ = ["Finding", "Report", "verify_store"]

OFFSET = np.dtype("<u8")
STAMP = np.dtype("<i8")
CHUNK_ROWS = 1 << 19
MAX_LINE_BYTES = 1 << 26
NUM_THREADS = 8
SMALL_BYTES = 1 << 20
ADVICE = ' Run "stepwell verify PATH".'


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it was written."""

    file: str  # its path below the store, with ``/``; of one of others, in which rows lie, its whole path or address
    problem: str  # the stored value, the found one, and a remedy

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `verify_store`."""

    path: str  # of the store
    num_segments: int  # segments that were looked at, open ones included
    num_bytes: int  # bytes that were compared with a checksum
    findings: tuple[Finding, ...]  # at most one a file, in the order of segments; none when all is well
    num_files: int = 0  # files of others that rows lie in, which were compared with what they were

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


def verify_store(
    store: Store | str | os.PathLike[str],
    *,
    deep: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check every file of a store."""
    # Sealed segments are compared with their checksums, byte by byte, and their tables are checked; of open ones only
    # whether what they committed is there. Files of other systems that hold rows are compared with
    # their recorded size and time, and not read. Safe while others write.
    # Runs on up to 8 threads, a small store on this one; holds 4 MiB a thread.
    path, trust = (Path(store), None) if isinstance(store, str | os.PathLike) else (store.path, store.trust)
    schema, checks = _store_checks(path, trust)
    segments = list(_segment_paths(path, checks))
    for segment in segments:
        checks.extend(_listed_checks(segment, schema, deep))
    files = list(file_checks(schema))
    findings = _run([*checks, *files], path, progress)
    num_bytes = sum(check.num_bytes for check in checks)
    return Report(str(path), len(segments), num_bytes, tuple(findings), len(files))


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to check: `run` raises where `file` is not as it should be; `where` names a file of another system."""

    file: Path
    run: Callable[[], object]
    num_bytes: int = 0
    where: str = ""


def _run(checks: list[Check], root: Path, progress: Callable[[int, int], None] | None) -> list[Finding]:
    """Run the checks; of each file the first finding counts, in the order of the checks."""
    total = sum(check.num_bytes for check in checks)
    done = 0
    findings: dict[str, Finding] = {}
    # threads take longer to hand over a check of a small file than to run it
    threads = min(NUM_THREADS, os.cpu_count() or 1) if total > SMALL_BYTES else 0
    with ThreadPoolExecutor(threads or 1, thread_name_prefix="stepwell-verify") as pool:
        for check, problem in zip(checks, (pool.map if threads else map)(_problem_of, checks), strict=True):
            if problem is not None:
                file = check.where or os.path.relpath(check.file, root).replace(os.sep, "/")
                findings.setdefault(file, Finding(file, problem))
            done += check.num_bytes
            if progress is not None and check.num_bytes:
                progress(done, total)
    return list(findings.values())


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


def _failed(file: Path, problem: str | Exception) -> Check:
    def fail() -> None:
        raise CorruptSegmentError(problem) if isinstance(problem, str) else problem

    return Check(file, fail)


def _store_checks(path: Path, trust: Trust) -> tuple[Schema | None, list[Check]]:
    """Return the store's features, if they can be read, and the checks of its own files."""
    checks = [
        Check(path / STORE_JSON, lambda: read_record(str(path)).schema),
        Check(path / DELETED, lambda: read_deleted(str(path))),
        Check(path / MARKS, lambda: read_marks(str(path / MARKS))),
        Check(path / ARRANGEMENT_JSON, lambda: read_store_manifest(str(path))),
        Check(path / TABLE, lambda: check_table(str(path))),
    ]
    try:
        return reaching(read_record(str(path)), str(path), trust).schema, checks
    except Exception:  # whatever it is, the first check finds it again
        return None, checks


def _segment_paths(path: Path, checks: list[Check]) -> Iterator[Path]:
    """Yield the segments' directories by name; adds a check that fails for what is none."""
    try:
        entries = sorted(list_directory(path / SEGMENTS))
    except (CorruptSegmentError, OSError) as error:
        checks.append(_failed(path / SEGMENTS, str(error)))
        return
    for entry in entries:
        if parse_segment_name(entry) is not None:
            yield path / SEGMENTS / entry
        elif not entry.startswith(NEW_PREFIX):
            checks.append(_failed(path / SEGMENTS / entry, "not a segment. Remove it, if it is not needed."))


def _listed_checks(path: Path, schema: Schema | None, deep: bool) -> list[Check]:
    try:
        return list(_segment_checks(path, schema, deep))
    except OSError as error:
        # gone since it was listed: evicted or compacted
        return [] if not os.path.lexists(path) else [_failed(path, str(error))]
    except CorruptSegmentError as error:
        return [_failed(path, str(error))]


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


def file_checks(schema: Schema | None) -> Iterator[Check]:
    """Yield a check of each file that features list, up to the first that references may not lead to; none is read."""
    seen: set[tuple[str, str]] = set()
    for feature in (schema or {}).values():
        for path, line in _listed(feature):
            # features of one data set list the same ones
            if (path, line) not in seen:
                seen.add((path, line))
                check = functools.partial(_check_state, path, line, feature.reach)
                yield Check(Path(path), check, where=plain_address(path))
            if not is_reached(path, feature.reach):
                # the finding about the others would be the same
                break


def _listed(feature: Feature) -> Iterator[tuple[str, str]]:
    """Yield the files that a feature lists, with the recorded state of each; none of an unknown codec."""
    try:
        if feature.is_raw or not issubclass(codec_class(feature), ListedFileCodec):
            return
        files = files_of(feature)
    except StepwellError:
        # a codec that this process does not have; decoding says what is wrong with options
        return
    yield from files.recorded_states()


def _check_state(path: str, line: str, reach: tuple[str, ...] | None) -> None:
    check_reach(path, reach)
    problem = problem_of(path, line)
    if problem is not None:
        raise CorruptSegmentError(problem)


def sealed_checks(path: Path, schema: Schema | None, *, deep: bool = False) -> Iterator[Check]:
    """Yield the checks of a sealed segment: checksums first, then what the files say."""
    try:
        manifest = read_manifest(str(path / SEGMENT_JSON))
    except (CorruptSegmentError, OSError) as error:
        yield _failed(path / SEGMENT_JSON, error)
        manifest = {"files": {}}
        with suppress(CorruptSegmentError, OSError):
            # numbers from the records, whose own check reports damage
            records = _read_sealed_records(path)
            manifest |= {"episodes": len(records), "rows": _num_rows(records)}
    files = manifest["files"]
    yield from _checksum_checks(path, files)
    if files:
        yield from _unlisted(path, files, schema)
    yield Check(path / EPISODES, functools.partial(_check_sealed_episodes, path, manifest))
    yield Check(path / STATISTICS, functools.partial(load_statistics, path))
    if "rows" not in manifest:
        return
    num_rows = manifest["rows"]
    yield Check(path / METADATA, functools.partial(_check_metadata, path, manifest["episodes"]))
    if CLOCK in files:
        yield Check(path / CLOCK, functools.partial(_check_clock, path, num_rows))
    if LANE_MARKS in files:
        yield Check(path / LANE_STEPS, functools.partial(_check_lane_steps, path, None))
        yield Check(path / LANE_MARKS, functools.partial(_check_lane_marks, path, num_rows))
    for name, feature in (schema or {}).items():
        yield Check(path / f"{name}.npy", functools.partial(_check_sealed_column, path, name, feature, num_rows))
        if not feature.is_raw:
            blobs = path / f"{name}.bin"
            yield Check(blobs, functools.partial(_check_blobs, path, name))
            if deep:
                yield Check(blobs, functools.partial(_check_decoding, path, name, feature), _size(blobs))


def open_checks(path: Path, schema: Schema | None) -> Iterator[Check]:
    """Yield the checks of a segment that may have a live writer: that what it committed is there."""
    try:
        progress = CommitRecord.open(str(path / PROGRESS))
        # rows before episodes: see progress.py
        rows, episodes, lanes = progress.rows, progress.episodes, progress.lanes
        progress.close()
    except FileNotFoundError:
        # sealed meanwhile; or a loss of power came before anything of it was promised
        return
    except (CorruptSegmentError, OSError) as error:
        yield _failed(path / PROGRESS, error)
        return
    if rows == episodes == 0:
        return
    if lanes[0]:
        yield Check(path / LANE_STEPS, functools.partial(_check_lane_steps, path, rows))
        yield Check(path / EPISODES, functools.partial(_check_open_lanes, path, rows, lanes))
        rows = lanes[0] * lanes[1]
    else:
        yield Check(path / EPISODES, functools.partial(_check_open_episodes, path, episodes, rows))
    if os.path.lexists(path / CLOCK):
        yield Check(path / CLOCK, functools.partial(_check_clock, path, rows))
    for name, feature in (schema or {}).items():
        yield Check(path / f"{name}.npy", functools.partial(_check_open_column, path, name, feature, rows))


def _checksum_checks(path: Path, files: dict[str, Any]) -> Iterator[Check]:
    for name, entry in files.items():
        file = path / name
        yield Check(file, functools.partial(_check_bytes, file, entry["bytes"], entry["crc32"]), entry["bytes"])


def _check_bytes(file: Path, num_bytes: int, crc32: str) -> None:
    if not os.path.lexists(file):
        raise CorruptSegmentError(f"missing; it had {num_bytes} bytes. {RESTORE}")
    size = _size(file)
    if size != num_bytes:
        raise CorruptSegmentError(f"{num_bytes} bytes were stored, it has {size}. {RESTORE}")
    computed = f"{file_checksum(str(file))[1]:08x}"
    if computed != crc32:
        raise CorruptSegmentError(f"crc32 {crc32} stored, {computed} computed. {RESTORE}")


def _unlisted(path: Path, files: dict[str, Any], schema: Schema | None) -> Iterator[Check]:
    """Yield a failed check for every file that is there and should not be, or is not listed and should be."""
    for name in sorted(set(list_directory(path)) - set(files) - {SEGMENT_JSON, PROGRESS}):
        problem = f"not listed in {SEGMENT_JSON}. Remove it, if it is not needed."
        yield _failed(path / name, problem)
    needed = {EPISODES, METADATA}
    for name, feature in (schema or {}).items():
        needed.update(column_files(name, feature))
    for name in sorted(needed - set(files)):
        yield _failed(path / name, f"{SEGMENT_JSON} does not list it. {RESTORE}")


def _read_records(path: Path, num_records: int) -> npt.NDArray[Any]:
    with open(open_file(path / EPISODES), "rb") as file:
        file.seek(header_size(EPISODE_DTYPE, ()))
        data = file.read(num_records * EPISODE_DTYPE.itemsize)
    if len(data) < num_records * EPISODE_DTYPE.itemsize:
        raise CorruptSegmentError(f"{num_records} episodes were stored, it has {len(data)} bytes of them. {RESTORE}")
    return np.frombuffer(data, EPISODE_DTYPE)


def _read_sealed_records(path: Path) -> npt.NDArray[Any]:
    size = _size(path / EPISODES) - header_size(EPISODE_DTYPE, ())
    if size < 0 or size % EPISODE_DTYPE.itemsize:
        raise CorruptSegmentError(f"its {_size(path / EPISODES)} bytes are not whole records. {RESTORE}")
    return _read_records(path, size // EPISODE_DTYPE.itemsize)


def _check_sealed_episodes(path: Path, manifest: dict[str, Any]) -> None:
    records, has_lanes = _checked_records(path)
    found = {"episodes": len(records), "rows": _num_rows(records)}
    listed = {key: manifest.get(key, number) for key, number in found.items()}
    if has_lanes:
        # there may be rows that no episode has
        found["rows"] = max(found["rows"], listed["rows"])
    if listed != found:
        raise CorruptSegmentError(f"it has {found}, {SEGMENT_JSON} says {listed}. {RESTORE}")


def _checked_records(path: Path) -> tuple[npt.NDArray[Any], bool]:
    """Return the records of a sealed segment, which can be, and whether it has lanes."""
    records = _read_sealed_records(path)
    with open(open_file(path / EPISODES), "rb") as file:
        head = file.read(header_size(EPISODE_DTYPE, ()))
    has_lanes = is_lanes_header(head, len(records))
    if has_lanes:
        check_lane_records(records, path.name, MAX_ROWS)
    elif is_episodes_header(head, len(records)):
        check_records(records, path.name)
    else:
        raise CorruptSegmentError(f"its .npy header is not that of {len(records)} episode records. {RESTORE}")
    return records, has_lanes


def _num_rows(records: npt.NDArray[Any]) -> int:
    return int((records["start"] + records["rows"]).max(initial=0))


def _read_npy(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...], count: int) -> npt.NDArray[Any]:
    """Read the first entries of an ``.npy`` file."""
    num_bytes = count * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if _size(file) < header_size(dtype, shape) + num_bytes:
        raise CorruptSegmentError(f"{count} entries were stored, it has {_size(file)} bytes. {RESTORE}")
    with open(open_file(file), "rb") as opened:
        opened.seek(header_size(dtype, shape))
        return np.frombuffer(opened.read(num_bytes), dtype).reshape(count, *shape)


def _read_lane_steps(path: Path, count: int | None) -> npt.NDArray[np.int64]:
    """Read the lines of vector steps; ``count`` is how many were committed, None: all of a sealed segment."""
    dtype, shape = np.dtype("<i8"), (STEP_WORDS,)
    file = path / LANE_STEPS
    if count is None:
        count = (_size(file) - header_size(dtype, shape)) // (STEP_WORDS * dtype.itemsize)
        _check_header(file, dtype, shape, count)
    return _read_npy(file, dtype, shape, count)


def _check_lane_steps(path: Path, count: int | None) -> None:
    check_steps(_read_lane_steps(path, count), path.name)


def _check_lane_marks(path: Path, num_rows: int) -> None:
    _check_header(path / LANE_MARKS, MARK, (), num_rows)
    check_marks(
        _read_npy(path / LANE_MARKS, MARK, (), num_rows),
        _read_sealed_records(path),
        len(_read_lane_steps(path, None)),
        path.name,
    )


def _check_open_lanes(path: Path, num_steps: int, lanes: tuple[int, int]) -> None:
    num_episodes = int(_read_lane_steps(path, num_steps)[-1, EPISODES_SO_FAR])
    records = _read_records(path, num_episodes)
    num_rows = lanes[0] * lanes[1]
    check_lane_records(records, path.name, num_rows)
    check_marks(_read_npy(path / LANE_MARKS, MARK, (), num_rows), records, num_steps, path.name, is_open=True)
    _check_lines(path, num_episodes)


def _check_metadata(path: Path, num_episodes: int) -> None:
    lines = 0
    with open(open_file(path / METADATA), "rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            if not isinstance(parse_json(line), dict):
                raise CorruptSegmentError(f"line {lines + 1} is not a JSON object. {RESTORE}")
            lines += 1
    if lines != num_episodes:
        raise CorruptSegmentError(f"{lines} lines for {num_episodes} episodes. {RESTORE}")


def _check_clock(path: Path, num_rows: int) -> None:
    with open(open_file(path / CLOCK), "rb") as file:
        start = parse_header_size(file.read(10), CLOCK)
        file.seek(start)
        stamps = np.frombuffer(file.read(num_rows * STAMP.itemsize), STAMP)
    if len(stamps) < num_rows:
        raise CorruptSegmentError(f"{num_rows} stamps were stored, it has {len(stamps)}. {RESTORE}")
    falls = np.flatnonzero(stamps[1:] < stamps[:-1])
    if len(falls) or (num_rows and not 0 <= stamps[0] <= stamps[-1] < LATEST):
        near = int(falls[0]) + 1 if len(falls) else 0
        raise CorruptSegmentError(f"its stamps are no times that never fall, near row {near}. {RESTORE}")


def _check_sealed_column(path: Path, name: str, feature: Feature, num_rows: int) -> None:
    file = path / f"{name}.npy"
    dtype, shape = (feature.np_dtype, feature.fixed_shape) if feature.is_raw else (OFFSET, ())
    count = num_rows if feature.is_raw else num_rows + 1
    _check_header(file, dtype, shape, count)
    row_bytes = feature.row_bytes if feature.is_raw else OFFSET.itemsize
    expected = header_size(dtype, shape) + count * row_bytes
    if _size(file) != expected:
        raise CorruptSegmentError(f"{expected} bytes are needed for {num_rows} rows, it has {_size(file)}. {RESTORE}")
    if not feature.is_raw:
        _check_offsets(file, header_size(dtype, shape), count)


def _check_blobs(path: Path, name: str) -> None:
    with open(open_file(path / f"{name}.npy"), "rb") as file:
        file.seek(-OFFSET.itemsize, os.SEEK_END)
        end = int.from_bytes(file.read(), "little")
    size = _file_size(path / f"{name}.bin")
    if size != end:
        raise CorruptSegmentError(f"its rows end at byte {end}, it has {size}. {RESTORE}")


def _check_header(file: Path, dtype: np.dtype[Any], shape: tuple[int, ...], count: int) -> None:
    expected = header_bytes(dtype, shape, count)
    with open(open_file(file), "rb") as opened:
        if opened.read(len(expected)) != expected:
            raise CorruptSegmentError(f"its .npy header is not that of {dtype} {(count, *shape)}. {RESTORE}")


def _check_offsets(file: Path, start: int, count: int) -> int:
    """Return the last of ``count`` offsets; they must begin at 0 and never fall."""
    last = 0
    with open(open_file(file), "rb") as opened:
        opened.seek(start)
        for first in range(0, count, CHUNK_ROWS):
            wanted = min(CHUNK_ROWS, count - first)
            offsets = np.frombuffer(opened.read(wanted * OFFSET.itemsize), OFFSET)
            if len(offsets) < wanted:
                raise CorruptSegmentError(f"{count} offsets were stored, it has {first + len(offsets)}. {RESTORE}")
            if (first == 0 and offsets[0] != 0) or offsets[0] < last or np.any(offsets[1:] < offsets[:-1]):
                raise CorruptSegmentError(f"its offsets do not rise from 0 on, near row {first}. {RESTORE}")
            last = int(offsets[-1])
    return last


def _check_decoding(path: Path, name: str, feature: Feature) -> None:
    try:
        records, _ = _checked_records(path)
        _check_sealed_column(path, name, feature, _num_rows(records))
        _check_blobs(path, name)
    except (CorruptSegmentError, OSError):
        return  # rows that cannot be found; other checks say why
    codec = make_codec(feature)
    offsets = _map(path / f"{name}.npy")[header_size(OFFSET, ()) :].view(OFFSET)
    blobs = _map(path / f"{name}.bin")
    if isinstance(codec, SequentialCodec):
        problems = list(_run_problems(StoredRows(name, codec, offsets, blobs, len(offsets) - 1), feature, records))
    else:
        problems = list(_row_problems(codec, offsets, blobs, feature, records))
    if problems:
        what = counted(len(problems), "run" if codec.is_sequential else "row")
        raise CorruptSegmentError(f"{what} cannot be decoded, the first is {problems[0]} {RESTORE}")


def _row_problems(
    codec: Codec, offsets: npt.NDArray[Any], blobs: npt.NDArray[np.uint8], feature: Feature, records: npt.NDArray[Any]
) -> Iterator[str]:
    for record in records:
        rows = record["rows"] if feature.final or feature.rate is not None else record["length"]
        for row in range(int(record["start"]), int(record["start"] + rows)):
            try:
                codec.decode(blobs[int(offsets[row]) : int(offsets[row + 1])])
            except Exception as error:  # a user's own codec may raise anything
                yield f"row {row}: {error}"


def _run_problems(stored: StoredRows, feature: Feature, records: npt.NDArray[Any]) -> Iterator[str]:
    """Yield a problem a run that cannot be decoded, and one an episode that does not begin with a run."""
    for episode, record in enumerate(records):
        start, count = int(record["start"]), int(record["rows"] if feature.final else record["length"])
        row, stop = start, start + count
        if count and not stored.is_sync(start):
            yield f"row {start}, which begins episode {episode} of the segment and no run."
            row = next((later for later in range(start + 1, stop) if stored.is_sync(later)), stop)
        while row < stop:
            end = min(stop, stored.run_of(row)[1])
            try:
                for _ in stored.values(range(row, end)):
                    pass
            except Exception as error:  # a user's own codec may raise anything
                yield f"that of episode {episode} of the segment, steps {row - start} to {end - 1 - start}: {error}"
            row = end


def _check_open_episodes(path: Path, num_episodes: int, num_rows: int) -> None:
    records = _read_records(path, num_episodes)
    check_records(records, path.name)
    _check_lines(path, num_episodes)


def _check_lines(path: Path, num_episodes: int) -> None:
    lines = 0
    with open(open_file(path / METADATA), "rb") as file:
        while lines < num_episodes and file.readline(MAX_LINE_BYTES).endswith(b"\n"):
            lines += 1
    if lines < num_episodes:
        raise CorruptSegmentError(f"{num_episodes} episodes were committed, {METADATA} has {lines} lines.")


def _check_open_column(path: Path, name: str, feature: Feature, num_rows: int) -> None:
    file = path / f"{name}.npy"
    with open(open_file(file), "rb") as opened:
        start = parse_header_size(opened.read(10), file.name)
    need = num_rows * feature.row_bytes if feature.is_raw else (num_rows + 1) * OFFSET.itemsize
    if _size(file) - start < need:
        raise CorruptSegmentError(f"{num_rows} committed rows are {need} bytes, it has {_size(file) - start}.")
    if not feature.is_raw:
        end = _check_offsets(file, start, num_rows + 1)
        if _size(path / f"{name}.bin") < end:
            raise CorruptSegmentError(f"its rows end at byte {end} of {name}.bin, which is shorter.")


def _size(file: Path) -> int:
    """Return about how long a file is; 0 when there is none."""
    with suppress(OSError):
        return os.lstat(file).st_size
    return 0


def _file_size(file: Path) -> int:
    descriptor = open_file(file)
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _map(file: Path) -> npt.NDArray[np.uint8]:
    descriptor = open_file(file)
    try:
        return map_descriptor(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
