"""Tar archives: which files one has and where their bytes lie, read from its headers; archives that are written.

::

    | header | data ...      | header | data ... | pax | records | header | data | 0 | 0 |
      512 B    size, to 512                        a longer name, a larger size    the end

Plain archives only, whose members can be read at their places: POSIX (ustar, pax), GNU and the old form. The bytes of
one that is written follow from its members alone: no times, no owners.

Source:
    POSIX.1-2017, pax: "ustar Interchange Format"; longer names by pax records, as Python's ``tarfile`` writes them.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import DatasetNotFoundError, FormatError, StepwellError
from stepwell.files.addresses import plain_address
from stepwell.files.local_files import OpenFile
from stepwell.references.remote_files import opened

__all__ = ["TarIndex", "TarWriter", "open_archive", "read_tar_index", "tar_bytes"]

MIN_WINDOW_BYTES = 4 << 10
FIRST_WINDOW_BYTES = 64 << 10
MAX_WINDOW_BYTES = 4 << 20
# two blocks mark the end, and archivers fill up to a multiple of twenty
MAX_END_BYTES = (2 + 20) * 512
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}

Int64s = npt.NDArray[np.int64]
BLOCK = 512
BUFFER_BYTES = 1 << 20
MAX_NAME_BYTES = 100
MAX_PLAIN_SIZE = 8**11 - 1
END_BLOCKS = 2
# mode, user, group; size; time; checksum, to be filled in; plain file
HEAD = b"%b%b0000644\x000000000\x000000000\x00%011o\x0000000000000\x00        0"
TAIL = bytes(100) + b"ustar\x0000" + bytes(32 + 32) + b"0000000\x00" * 2 + bytes(155 + 12)


@dataclass(frozen=True, slots=True, eq=False)
class TarIndex:
    """The plain files of an archive, in order.

    Args:
        path: of the archive, or its address.
        names: as they are in it.
        headers: int64 [n], place of each file's header.
        offsets: int64 [n], place of its first byte.
        sizes: int64 [n], bytes of each.
        num_bytes: of the archive.
        is_cut: whether the archive ends before its end is marked; the files are those that are whole.

    Example:
        >>> import tarfile, tempfile
        >>> path = f"{tempfile.mkdtemp()}/a.tar"
        >>> with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        ...     archive.addfile(tarfile.TarInfo("0.txt"))
        >>> index = read_tar_index(path)
        >>> index.names, index.headers.tolist(), index.offsets.tolist(), index.sizes.tolist()
        (['0.txt'], [0], [512], [0])
    """

    path: str
    names: list[str]
    headers: Int64s
    offsets: Int64s
    sizes: Int64s
    num_bytes: int
    is_cut: bool = False

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<TarIndex {plain_address(self.path)}  {len(self):,} files  {self.num_bytes:,} bytes>"


class _Part(NamedTuple):
    """The files of one window: places, sizes and ends of names as `walk_headers` has them, but in the archive."""

    headers: Int64s
    offsets: Int64s
    sizes: Int64s
    ends: Int64s
    names: bytes


def open_archive(path: str) -> OpenFile:
    """Return an archive, open for reading."""
    try:
        return opened(path)
    except StepwellError:
        raise
    except FileNotFoundError as error:
        raise DatasetNotFoundError(f"no file at {plain_address(path)}. Give the path or address of a shard.") from error
    except OSError as error:
        raise FormatError(f"{plain_address(path)} cannot be read: {error.strerror}.") from error


def read_tar_index(path: str, *, file: OpenFile | None = None, allow_cut: bool = False) -> TarIndex:
    """Return which files an archive has.

    Args:
        path: of the archive, or its address.
        file: the archive, where it is open already.
        allow_cut: of one that was cut off take the files that are whole, instead of refusing it.

    Raises:
        FormatError: not an archive, one that is compressed, or damaged, or cut off, or with more behind its end: names
            the file and the byte.
        DatasetNotFoundError: it is not there.

    Example:
        >>> import io, tarfile, tempfile
        >>> path = f"{tempfile.mkdtemp()}/a.tar"
        >>> with tarfile.open(path, "w") as archive:
        ...     entry = tarfile.TarInfo("00000.txt")
        ...     entry.size = 4
        ...     archive.addfile(entry, io.BytesIO(b"well"))
        >>> index = read_tar_index(path)
        >>> index.names, index.offsets.tolist(), index.sizes.tolist()
        (['00000.txt'], [512], [4])
    """
    file = open_archive(path) if file is None else file
    num_bytes = file.num_bytes
    parts: list[_Part] = []
    is_cut = not _read_parts(file, path, num_bytes, allow_cut, parts)
    joined = [np.concatenate([np.empty(0, np.int64), *(part[k] for part in parts)]) for k in range(3)]
    names = [name for part in parts for name in _names_of(path, part)]
    is_whole = joined[1] + joined[2] <= num_bytes
    if not is_whole.all():
        first = int(np.argmin(is_whole))
        if not allow_cut:
            raise _cut_error(path, num_bytes, f"in {names[first]!r}, which begins at byte {joined[1][first]}")
        names, joined, is_cut = names[:first], [part[:first] for part in joined], True
    return TarIndex(path, names, joined[0], joined[1], joined[2], num_bytes, is_cut)


def _read_parts(file: OpenFile, path: str, num_bytes: int, allow_cut: bool, parts: list[_Part]) -> bool:
    """Append the files of the archive, a window of it at a time; return whether its end is marked."""
    from stepwell.webdataset.tar_kernels import COMPLETE, MORE, walk_headers

    place, size = 0, FIRST_WINDOW_BYTES
    memory, table, names = _memory(size)
    while True:
        if size > len(memory):
            memory, table, names = _memory(size)
        count = file.read_into(place, memory[:size]) if place < num_bytes else 0
        status, num_files, next_place = walk_headers(memory[:count], table, names)
        if num_files:
            parts.append(_part_of(table[:num_files], names, place))
        if status == COMPLETE:
            return _ends_at(file, path, place + next_place, num_bytes, allow_cut)
        if status != MORE:
            raise _bad_header(path, place + next_place, status, memory[:4].tobytes())
        if next_place == 0 and place + count < num_bytes and size < MAX_WINDOW_BYTES:
            size *= 4  # a long name that is longer than the window
            continue
        if next_place == 0 or place + next_place >= num_bytes:
            if allow_cut and place + next_place > 0:
                return False
            raise _cut_error(path, num_bytes, f"before its end was marked, behind byte {place + next_place}")
        place += next_place
        # many small files: large windows; large files: little beside their headers
        size = min(2 * size, MAX_WINDOW_BYTES) if num_files > 8 else max(size // 4, MIN_WINDOW_BYTES)


def _ends_at(file: OpenFile, path: str, end: int, num_bytes: int, allow_cut: bool) -> bool:
    """Refuse an archive that goes on behind the mark of its end; return False where one ends in too many zeros."""
    place = end
    while place < num_bytes:
        data = file.read(place, FIRST_WINDOW_BYTES)
        if not data:
            break
        if data.count(0) != len(data):
            first = place + int(np.flatnonzero(np.frombuffer(data, np.uint8))[0])
            raise FormatError(
                f"{plain_address(path)}, byte {first}: the archive goes on behind the mark of its end, zeros from byte "
                f"{end} on. Either bytes were overwritten by zeros: fetch or write it again; or several archives were "
                "put into one file: name each as a shard, or join them by tar --concatenate."
            )
        place += len(data)
    if num_bytes - end <= MAX_END_BYTES:
        return True
    if allow_cut:
        return False
    raise FormatError(
        f"{plain_address(path)}: only zeros from byte {end} to its end at byte {num_bytes}, where an archive has at "
        f"most {MAX_END_BYTES}: it was not written to its end. Fetch or write it again; allow_cut=True takes the "
        "samples that are whole."
    )


def _memory(size: int) -> tuple[npt.NDArray[np.uint8], Int64s, npt.NDArray[np.uint8]]:
    """Return a window, and what `walk_headers` writes to."""
    rows = size // 512 + 1
    return np.empty(size, np.uint8), np.empty((rows, 4), np.int64), np.empty(2 * size + 512, np.uint8)


def _part_of(table: Int64s, names: npt.NDArray[np.uint8], place: int) -> _Part:
    columns = table.T.copy()
    columns[:2] += place
    return _Part(columns[0], columns[1], columns[2], columns[3], names[: columns[3, -1]].tobytes())


def _names_of(path: str, part: _Part) -> list[str]:
    starts, ends = [0, *part.ends[:-1].tolist()], part.ends.tolist()
    if part.names.isascii():
        text = part.names.decode("ascii")
        return [text[start:end] for start, end in zip(starts, ends, strict=True)]
    found = []
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        try:
            found.append(part.names[start:end].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{plain_address(path)}, byte {part.headers[row]}: the name {part.names[start:end]!r} is not UTF-8. "
                "Write the archive again with names that are."
            ) from error
    return found


def _bad_header(path: str, place: int, status: int, head: bytes) -> FormatError:
    from stepwell.webdataset import tar_kernels as tar_headers

    packed = COMPRESSED.get(head[:2]) if place == 0 else None
    if packed is not None:
        return FormatError(
            f"{plain_address(path)} is compressed ({packed}): its files cannot be read at their places. "
            "Decompress it first; one of gzip may be called .tar.gz or .tgz instead."
        )
    told = {
        tar_headers.BAD_CHECKSUM: "no tar header, or one with another checksum",
        tar_headers.BAD_NUMBER: "a header with a size that is none",
        tar_headers.BAD_RECORD: "a long name or pax record that is none",
        tar_headers.SPARSE: "a sparse file, whose bytes do not lie in a row; write it as a plain one",
    }[status]
    return FormatError(f"{plain_address(path)}, byte {place}: {told}. The archive is damaged there, or not one.")


def _cut_error(path: str, num_bytes: int, where: str) -> FormatError:
    return FormatError(
        f"{plain_address(path)} is cut off: it ends at byte {num_bytes} {where}. Fetch or write it again; "
        "allow_cut=True takes the samples that are whole."
    )


class TarWriter:
    """Write members to an archive, one after the other."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=BUFFER_BYTES)

    def add(self, name: str, data: bytes) -> int:
        """Append a member; returns the bytes that it takes."""
        head, padding = _header(name, len(data)), bytes(-len(data) % BLOCK)
        self._file.write(head)
        self._file.write(data)
        self._file.write(padding)
        return len(head) + len(data) + len(padding)

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._file.write(bytes(END_BLOCKS * BLOCK))
        finally:
            self._file.close()


def tar_bytes(num_bytes: int) -> int:
    """Return the bytes that a member of so many takes in an archive, its header included."""
    return BLOCK + -(-num_bytes // BLOCK) * BLOCK


def _header(name: str, size: int) -> bytes:
    told = name.encode("utf-8")
    if len(told) > MAX_NAME_BYTES or size > MAX_PLAIN_SIZE or not name.isascii():
        entry = tarfile.TarInfo(name)
        entry.size = size
        return entry.tobuf(tarfile.PAX_FORMAT)
    header = HEAD % (told, bytes(MAX_NAME_BYTES - len(told)), size) + TAIL
    return b"%b%06o\x00 %b" % (header[:148], sum(header), header[156:])
