"""TFRecord files: where their records lie, and the records, their CRCs checked.

::

    | u64 size | u32 crc of it | record 0 | u32 crc | u64 size | u32 crc of it | record 1 | u32 crc | ...

`index_records` goes from size to size, or reads all once and checks the records, too; `read_records` checks those that
it reads, and so does `read_next`, which needs no index. Nothing is ever skipped: what is damaged is an error that names
the file, the record and the byte.

Source:
    TFRecord of TensorFlow, ``lib/io/record_writer.h``.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.files.local_files import OpenFile, open_file, state_of

__all__ = [
    "RecordIndex",
    "crc32c",
    "framed",
    "index_records",
    "is_compressed",
    "masked",
    "masked_crc32c",
    "read_next",
    "read_records",
]

MASK_DELTA = 0xA282EAD8


def crc32c(data: bytes | memoryview | npt.NDArray[Any], crc: int = 0) -> int:
    """Return the CRC-32C of bytes.

    Args:
        data: contiguous bytes, or an array of any dtype.
        crc: of the bytes before them; default: there are none.

    Example:
        >>> hex(crc32c(b"123456789")), crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
        ('0xe3069283', True)

    Source:
        RFC 3720, appendix B.4.

    Notes:
        Runs without the GIL. By the processor's instruction (SSE4.2, ARMv8) as fast as google-crc32c, which is not
        needed; else by tables.
    """
    from stepwell.tfds.record_kernels import crc32c as add

    plain = data.view(np.uint8).reshape(-1) if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    return int(add(crc, plain.ctypes.data, plain.nbytes))


def masked_crc32c(data: bytes | memoryview | npt.NDArray[Any]) -> int:
    """Return the masked CRC-32C of bytes.

    Example:
        >>> hex(masked_crc32c(b"123456789"))
        '0xc78ab0e5'

    Source:
        The TFRecord format: a CRC of bytes that hold CRCs says little, a masked one does not.
    """
    return masked(crc32c(data))


def masked(crc: int) -> int:
    """Return a CRC as it is stored: rotated by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


HEADER, FOOTER = struct.Struct("<QI"), struct.Struct("<I")
FRAME_BYTES = HEADER.size + FOOTER.size
# read at once; of a file of long records, that are not checked, only what holds a header
PIECE_BYTES = 1 << 20
HEADER_PIECE_BYTES = 4096
LONG_BYTES = 1 << 17
BAD_HEADER = "its size is not what its CRC says; the file is damaged, or no TFRecord file"
BAD_DATA = "its bytes are not what its CRC says; the file is damaged"
CUT_OFF = "the file ends before the record does"
# by the kernel's numbers
_FAULTS = {1: BAD_HEADER, 2: BAD_DATA, 3: CUT_OFF}
# of gzip, and of zlib at its levels
MAGICS = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")

Int64s = npt.NDArray[np.int64]
Uint8s = npt.NDArray[np.uint8]


class RecordIndex(NamedTuple):
    """Where the records of a file lie.

    Args:
        offsets: int64 [n], first byte of each record.
        sizes: int64 [n], its bytes.
    """

    offsets: Int64s
    sizes: Int64s

    def __len__(self) -> int:
        return len(self.offsets)


def framed(record: bytes) -> bytes:
    """Return a record as it stands in a file.

    Example:
        >>> len(framed(b"abc"))
        19
    """
    size = struct.pack("<Q", len(record))
    return size + FOOTER.pack(masked_crc32c(size)) + record + FOOTER.pack(masked_crc32c(record))


def is_compressed(path: str) -> bool:
    """Return whether a file of records is compressed as a whole, by gzip or zlib."""
    head = _opened(path).read(0, HEADER.size)
    is_plain = len(head) == HEADER.size and HEADER.unpack(head)[1] == masked_crc32c(head[:8])
    return not is_plain and head[:2] in MAGICS


def index_records(path: str, *, is_checked: bool) -> RecordIndex:
    """Return where the records of a file lie.

    Notes:
        Holds 1 MiB of the file, and 16 bytes a record.
    """
    from stepwell.tfds.record_kernels import scan_records

    file = _opened(path)
    memory = np.empty(PIECE_BYTES, np.uint8)
    found = np.empty((PIECE_BYTES // FRAME_BYTES + 1, 2), np.int64)
    parts = [found[:0].copy()]
    place, count, wanted = 0, 0, PIECE_BYTES
    while place < file.num_bytes:
        left = file.num_bytes - place
        piece = memory[: file.read_into(place, memory[: min(wanted, left)])]
        number, behind, fault = scan_records(piece, left, is_checked, found)
        if fault:
            raise _fault(path, count + number, place + behind, _FAULTS[fault])
        if not number:
            size = _check_long(file, path, count, place)
            found[0] = HEADER.size, size
            number, behind = 1, FRAME_BYTES + size
        parts.append(np.add(found[:number], (place, 0)))
        place, count = place + behind, count + number
        is_long = not is_checked and found[number - 1, 1] > LONG_BYTES
        wanted = HEADER_PIECE_BYTES if is_long else PIECE_BYTES
    rows = np.concatenate(parts)
    return RecordIndex(np.ascontiguousarray(rows[:, 0]), np.ascontiguousarray(rows[:, 1]))


def read_records(path: str, index: RecordIndex, first: int, stop: int, *, is_checked: bool = True) -> Uint8s:
    """Return the bytes of records that follow each other, headers and all, from the first one's header on."""
    from stepwell.tfds.record_kernels import scan_records

    file = _opened(path)
    place = int(index.offsets[first]) - HEADER.size
    out = np.empty(int(index.offsets[stop - 1] + index.sizes[stop - 1]) + FOOTER.size - place, np.uint8)
    if place + out.size > file.num_bytes or file.read_into(place, out) < out.size:
        raise _fault(path, first, place, "the file was cut off since its records were looked up")
    if is_checked:
        found = np.empty((stop - first, 2), np.int64)
        count, behind, fault = scan_records(out, out.size, True, found)
        if fault or not np.array_equal(found[:, 0] + place, index.offsets[first:stop]):
            raise _fault(path, first + count, place + behind, _FAULTS.get(fault, BAD_HEADER))
    return out


def read_next(path: str, place: int, number: int, most: int, *, is_checked: bool = True) -> tuple[Uint8s, Int64s]:
    """Return bytes of a file from a record on, and the whole records in them that are not damaged.

    Args:
        path: of the file.
        place: of the record's header.
        number: of the record.
        most: bytes to read.
        is_checked: whether each is compared with its CRC; those of sizes always are.

    Returns:
        uint8 [m], and int64 [n, 2]: place in them and size of each record; none where the first one is longer.
    """
    from stepwell.tfds.record_kernels import scan_records

    file = _opened(path)
    left = file.num_bytes - place
    out = np.empty(max(0, min(most, left)), np.uint8)
    if out.size and file.read_into(place, out) < out.size:
        raise _fault(path, number, place, "the file was cut off since it was opened")
    found = np.empty((out.size // FRAME_BYTES + 1, 2), np.int64)
    count, behind, fault = scan_records(out, left, is_checked, found)
    if fault and not count:
        raise _fault(path, number, place + behind, _FAULTS[fault])
    if count and found[count - 1].sum() + FOOTER.size > out.size:
        count -= 1
    return out, found[:count].copy()


def _opened(path: str) -> OpenFile:
    try:
        return open_file(path, state_of(path))
    except OSError as error:
        raise DatasetNotFoundError(f"{path}: {error.strerror}. All files of the dataset must be there.") from error


def _check_long(file: OpenFile, path: str, number: int, place: int) -> int:
    """Check a record that is longer than a piece, in pieces; return its size."""
    head = file.read(place, HEADER.size)
    if len(head) < HEADER.size:
        raise _fault(path, number, place, CUT_OFF)
    size = int(HEADER.unpack(head)[0])
    memory = np.empty(PIECE_BYTES, np.uint8)
    crc, at = 0, place + HEADER.size
    end = at + size
    while at < end:
        count = file.read_into(at, memory[: min(PIECE_BYTES, end - at)])
        if not count:
            raise _fault(path, number, place, CUT_OFF)
        crc = crc32c(memory[:count], crc)
        at += count
    if file.read(end, FOOTER.size) != FOOTER.pack(masked(crc)):
        raise _fault(path, number, place, BAD_DATA)
    return size


def _fault(path: str, number: int, place: int, what: str) -> FormatError:
    return FormatError(f"{path}: record {number}, byte {place}: {what}. Copy or write the file again.")
