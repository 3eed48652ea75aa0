"""Files of records: TFRecord, and ArrayRecord through the ``array_record`` package.

::

    TFRecord    | length | its CRC | bytes | their CRC |  ...        8, 4, n and 4 bytes, masked CRC-32C
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from stepwell.store.beneath import FULL
from stepwell.tfds.array_records import import_array_record
from stepwell.tfds.crc32c import masked_crc32c
from stepwell.tfds.framing import FOOTER, HEADER

__all__ = ["FileFormat", "write_records"]

FileFormat = Literal["tfrecord", "array_record"]
SIZE = struct.Struct("<Q")
BUFFER_BYTES = 1 << 20


def write_records(path: str | os.PathLike[str], records: Iterable[bytes], file_format: FileFormat = "tfrecord") -> int:
    """Write a new file of records, and wait until it is on the disk.

    Args:
        path: of the file.
        records: one after the other.
        file_format: of the file.

    Returns:
        Bytes of all records, without what frames them.

    Raises:
        OSError: the disk is full, or it cannot be written.
        MissingDependencyError: array_record is not installed, for that format.

    Example:
        >>> import tempfile
        >>> path = f"{tempfile.mkdtemp()}/a.tfrecord-00000-of-00001"
        >>> write_records(path, [b"abc", b""]), os.path.getsize(path)
        (3, 35)
    """
    return _write_tfrecord(path, records) if file_format == "tfrecord" else _write_array_record(path, records)


def _write_tfrecord(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    total = 0
    with Path(path).open("wb", buffering=BUFFER_BYTES) as file:
        for record in records:
            # in three parts: a record may be as large as an episode, and needs no copy
            file.write(HEADER.pack(len(record), masked_crc32c(SIZE.pack(len(record)))))
            file.write(record)
            file.write(FOOTER.pack(masked_crc32c(record)))
            total += len(record)
        file.flush()
        os.fsync(file.fileno())
    return total


def _write_array_record(path: str | os.PathLike[str], records: Iterable[bytes]) -> int:
    total = 0
    writer = import_array_record().ArrayRecordWriter(os.fspath(path), "group_size:1")
    try:
        for record in records:
            writer.write(record)
            total += len(record)
        writer.close()
    except RuntimeError as error:
        raise _system_error(error, path) from error
    finally:
        # what was wrong is being raised
        with suppress(RuntimeError):
            writer.close()
    with Path(path).open("rb+") as file:
        os.fsync(file.fileno())
    return total


def _system_error(error: RuntimeError, path: str | os.PathLike[str]) -> OSError:
    """Return what the package tells in words as an error with its number."""
    numbers = [number for number in FULL if os.strerror(number) in str(error)]
    return OSError(numbers[0], os.strerror(numbers[0]), path) if numbers else OSError(f"{path}: {error}")
