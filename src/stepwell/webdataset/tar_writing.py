"""Archives whose bytes follow from their members alone: no times, no owners.

Source:
    POSIX.1-2017, pax: "ustar Interchange Format"; longer names by pax records, as Python's ``tarfile`` writes them.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from types import TracebackType

__all__ = ["TarWriter", "tar_bytes"]

BLOCK = 512
BUFFER_BYTES = 1 << 20
MAX_NAME_BYTES = 100
MAX_PLAIN_SIZE = 8**11 - 1
END_BLOCKS = 2
# mode, user, group; size; time; checksum, to be filled in; plain file
HEAD = b"%b%b0000644\x000000000\x000000000\x00%011o\x0000000000000\x00        0"
TAIL = bytes(100) + b"ustar\x0000" + bytes(32 + 32) + b"0000000\x00" * 2 + bytes(155 + 12)


class TarWriter:
    """Write members to an archive, one after the other.

    Args:
        path: where nothing is yet.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.tar")
        >>> with TarWriter(path) as archive:
        ...     archive.add("00000.txt", b"well")
        1024
        >>> with tarfile.open(path) as found:
        ...     found.getnames(), path.stat().st_size
        (['00000.txt'], 2048)

    Notes:
        For one thread. Not whole before it is closed without an error.
    """

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
    """Return the bytes that a member of so many takes in an archive, its header included.

    Example:
        >>> tar_bytes(1), tar_bytes(512), tar_bytes(513)
        (1024, 1024, 1536)
    """
    return BLOCK + -(-num_bytes // BLOCK) * BLOCK


def _header(name: str, size: int) -> bytes:
    told = name.encode("utf-8")
    if len(told) > MAX_NAME_BYTES or size > MAX_PLAIN_SIZE or not name.isascii():
        entry = tarfile.TarInfo(name)
        entry.size = size
        return entry.tobuf(tarfile.PAX_FORMAT)
    header = HEAD % (told, bytes(MAX_NAME_BYTES - len(told)), size) + TAIL
    return b"%b%06o\x00 %b" % (header[:148], sum(header), header[156:])
