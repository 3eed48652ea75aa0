"""What must be true of a segment's files, as a list of checks that can run on any thread in any order.

A check raises when what it says is not true; whatever it raises becomes a finding about its file. Files are read in
pieces and never
mapped where their length is in doubt: a touch beyond the end of a map would kill the process.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, SequentialCodec, make_codec
from stepwell.errors import CorruptSegmentError
from stepwell.files.mapping import map_descriptor
from stepwell.json_text import parse_json
from stepwell.schema import Feature, Schema
from stepwell.store.beneath import list_directory, open_file
from stepwell.store.clock import LATEST
from stepwell.store.commit import CommitRecord
from stepwell.store.counting import counted
from stepwell.store.episodes import EPISODE_DTYPE, check_records, is_episodes_header, num_ended_rows
from stepwell.store.layout import CLOCK, EPISODES, METADATA, PROGRESS, SEGMENT_JSON
from stepwell.store.manifests import RESTORE, read_manifest
from stepwell.store.npy import header_bytes, header_size, parse_header_size
from stepwell.store.runs import RunReader
from stepwell.store.sealing import file_checksum
from stepwell.store.statistics import STATISTICS, load_statistics

__all__ = ["Check", "open_checks", "sealed_checks"]

OFFSET = np.dtype("<u8")
STAMP = np.dtype("<i8")
CHUNK_ROWS = 1 << 19
MAX_LINE_BYTES = 1 << 26


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to check.

    Args:
        file: what a finding is about.
        run: raises when it is not as it should be; the message is the problem.
        num_bytes: how much is read, about; for progress.
        where: what a finding calls the file, if it is none of the store's.
    """

    file: Path
    run: Callable[[], object]
    num_bytes: int = 0
    where: str = ""


def sealed_checks(path: Path, schema: Schema | None, *, deep: bool = False) -> Iterator[Check]:
    """Yield the checks of a sealed segment: checksums first, then what the files say.

    Args:
        path: its directory.
        schema: the store's features; None when they are not known, and then columns are compared with their
            checksums only.
        deep: whether to decode every encoded row, too.
    """
    try:
        manifest = read_manifest(str(path / SEGMENT_JSON))
    except (CorruptSegmentError, OSError) as error:
        yield _failed(path / SEGMENT_JSON, error)
        manifest = {"files": {}}
    files = manifest["files"]
    yield from _checksum_checks(path, files)
    if files:
        yield from _unlisted(path, files, schema)
    yield Check(path / EPISODES, functools.partial(_check_sealed_episodes, path, manifest))
    yield Check(path / METADATA, functools.partial(_check_metadata, path, manifest.get("episodes")))
    if CLOCK in files:
        yield Check(path / CLOCK, functools.partial(_check_clock, path, manifest.get("rows")))
    yield Check(path / STATISTICS, functools.partial(load_statistics, path))
    num_rows = manifest.get("rows")
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
        rows, episodes = progress.rows, progress.episodes
        progress.close()
    except FileNotFoundError:
        # sealed meanwhile; or a loss of power came before anything of it was promised
        return
    except (CorruptSegmentError, OSError) as error:
        yield _failed(path / PROGRESS, error)
        return
    if rows == episodes == 0:
        return
    yield Check(path / EPISODES, functools.partial(_check_open_episodes, path, episodes, rows))
    if os.path.lexists(path / CLOCK):
        yield Check(path / CLOCK, functools.partial(_check_clock, path, rows))
    for name, feature in (schema or {}).items():
        yield Check(path / f"{name}.npy", functools.partial(_check_open_column, path, name, feature, rows))


def _failed(file: Path, error: Exception) -> Check:
    def fail() -> None:
        raise error

    return Check(file, fail)


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
        problem = f"not listed in {SEGMENT_JSON}. Remove it, if nobody needs it."
        yield _failed(path / name, CorruptSegmentError(problem))
    needed = {EPISODES, METADATA}
    for name, feature in (schema or {}).items():
        needed |= {f"{name}.npy"} if feature.is_raw else {f"{name}.npy", f"{name}.bin"}
    for name in sorted(needed - set(files)):
        yield _failed(path / name, CorruptSegmentError(f"{SEGMENT_JSON} does not list it. {RESTORE}"))


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
    records = _read_sealed_records(path)
    with open(open_file(path / EPISODES), "rb") as file:
        if not is_episodes_header(file.read(header_size(EPISODE_DTYPE, ())), len(records)):
            raise CorruptSegmentError(f"its .npy header is not that of {len(records)} episode records. {RESTORE}")
    check_records(records, path.name)
    found = {"episodes": len(records), "rows": num_ended_rows(records)}
    told = {key: manifest.get(key, number) for key, number in found.items()}
    if told != found:
        raise CorruptSegmentError(f"it has {found}, {SEGMENT_JSON} tells of {told}. {RESTORE}")


def _check_metadata(path: Path, num_episodes: int | None) -> None:
    if num_episodes is None:
        num_episodes = len(_read_sealed_records(path))
    lines = 0
    with open(open_file(path / METADATA), "rb") as file:
        while line := file.readline(MAX_LINE_BYTES):
            if not isinstance(parse_json(line), dict):
                raise CorruptSegmentError(f"line {lines + 1} is not a JSON object. {RESTORE}")
            lines += 1
    if lines != num_episodes:
        raise CorruptSegmentError(f"{lines} lines for {num_episodes} episodes. {RESTORE}")


def _check_clock(path: Path, num_rows: int | None) -> None:
    if num_rows is None:
        num_rows = num_ended_rows(_read_sealed_records(path))
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


def _check_sealed_column(path: Path, name: str, feature: Feature, num_rows: int | None) -> None:
    if num_rows is None:
        num_rows = num_ended_rows(_read_sealed_records(path))
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
        records = _read_sealed_records(path)
        check_records(records, path.name)
        _check_sealed_column(path, name, feature, num_ended_rows(records))
        _check_blobs(path, name)
    except (CorruptSegmentError, OSError):
        return  # rows that cannot be found; other checks say why
    codec = make_codec(feature)
    offsets = _map(path / f"{name}.npy")[header_size(OFFSET, ()) :].view(OFFSET)
    blobs = _map(path / f"{name}.bin")
    if isinstance(codec, SequentialCodec):
        problems = list(_run_problems(RunReader(codec, offsets, blobs, len(offsets) - 1), feature, records))
    else:
        problems = list(_row_problems(codec, offsets, blobs, feature, records))
    if problems:
        what = counted(len(problems), "run" if codec.is_sequential else "row")
        raise CorruptSegmentError(f"{what} cannot be decoded, the first is {problems[0]} {RESTORE}")


def _row_problems(
    codec: Codec, offsets: npt.NDArray[Any], blobs: npt.NDArray[np.uint8], feature: Feature, records: npt.NDArray[Any]
) -> Iterator[str]:
    for record in records:
        rows = record["rows"] if feature.final else record["length"]
        for row in range(int(record["start"]), int(record["start"] + rows)):
            try:
                codec.decode(blobs[int(offsets[row]) : int(offsets[row + 1])])
            except Exception as error:  # a user's own codec may raise anything
                yield f"row {row}: {error}"


def _run_problems(reader: RunReader, feature: Feature, records: npt.NDArray[Any]) -> Iterator[str]:
    """Yield a problem a run that cannot be decoded, and one an episode that does not begin with a run."""
    for episode, record in enumerate(records):
        start, count = int(record["start"]), int(record["rows"] if feature.final else record["length"])
        row, stop = start, start + count
        if count and not reader.is_sync(start, start + 1)[0]:
            yield f"row {start}, which begins episode {episode} of the segment and no run."
            row += 1 + int(np.argmax(np.append(reader.is_sync(start + 1, stop), True)))
        while row < stop:
            end = min(stop, reader.bounds(row)[1])
            try:
                for _ in reader.values(range(row, end)):
                    pass
            except Exception as error:  # a user's own codec may raise anything
                yield f"that of episode {episode} of the segment, steps {row - start} to {end - 1 - start}: {error}"
            row = end


def _check_open_episodes(path: Path, num_episodes: int, num_rows: int) -> None:
    records = _read_records(path, num_episodes)
    check_records(records, path.name)
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
