"""Arrays of ``.npy`` and ``.npz`` files, whose headers alone claim no memory; dtypes of Arrow.

Source:
    numpy's "NEP 1: a simple file format for NumPy arrays"; of ``.npz`` files RFC 1951, section 3.2.5: deflate makes at
    most 1032 bytes of one.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from stepwell.codecs.decoded_sizes import WHAT_TO_SET, is_too_large
from stepwell.store.beneath import read_again

__all__ = ["MAX_RATIO", "npy_array", "npy_head", "npz_arrays", "numpy_dtype"]

MAX_RATIO = 1032
SUFFIX = ".npy"
# of Arrow's types, where NumPy has another
NAMES = {"halffloat": "float16", "float": "float32", "double": "float64"}


def npy_head(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether it is in Fortran order, and dtype of a ``.npy`` file; ValueError where it is none."""
    version = np.lib.format.read_magic(stream)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the .npy format")
    begin = stream.tell()

    def head() -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        stream.seek(begin)
        found: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(stream)
        return found

    try:
        return read_again(head)
    except ValueError:
        raise
    except Exception as error:  # numpy parses it as Python, whose parser raises whatever it likes
        raise ValueError(f"a header that is none: {error}") from error


def npy_array(data: bytes) -> npt.NDArray[Any]:
    """Return the array of a ``.npy`` file; ValueError where it is none, or claims another number of bytes."""
    stream = io.BytesIO(data)
    shape, _, dtype = npy_head(stream)
    count = int(np.prod(shape, dtype=object))
    if dtype.hasobject or count * dtype.itemsize != len(data) - stream.tell():
        raise ValueError(f"{len(data)} bytes for {shape} {dtype}")

    def read() -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        return found

    return read_again(read)


def npz_arrays(file: BinaryIO, names: Collection[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of a ``.npz`` file by name; ValueError where it is none, or claims more than it can hold."""
    try:
        num_bytes = file.seek(0, io.SEEK_END)
        with zipfile.ZipFile(file) as archive:
            return {
                member.filename.removesuffix(SUFFIX): npy_array(_member(archive, member, num_bytes))
                for member in archive.infolist()
                if names is None or member.filename.removesuffix(SUFFIX) in names
            }
    except ValueError:
        raise
    except Exception as error:  # zipfile raises errors of seven kinds, depending on the bit
        raise ValueError(f"not a .npz file: {error}") from error


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, num_bytes: int) -> bytes:
    if member.compress_size > num_bytes or member.file_size > MAX_RATIO * max(member.compress_size, 1):
        raise ValueError(f"{member.filename} claims {member.file_size} bytes in {member.compress_size} of {num_bytes}")
    if is_too_large(member.file_size, member.compress_size):
        raise ValueError(
            f"{member.filename} of {member.compress_size:,} bytes would take {member.file_size:,}. {WHAT_TO_SET}"
        )
    return archive.read(member)


def numpy_dtype(arrow_type: Any) -> np.dtype[Any] | None:
    """Return the dtype of numbers and times; None for texts, lists, times of a time zone and the like."""
    # DataType.to_pandas_dtype needs pandas in most releases of pyarrow
    from pyarrow import types

    if types.is_timestamp(arrow_type):
        return np.dtype(f"datetime64[{arrow_type.unit}]") if arrow_type.tz is None else None
    if types.is_duration(arrow_type):
        return np.dtype(f"timedelta64[{arrow_type.unit}]")
    if types.is_date(arrow_type):
        return np.dtype("datetime64[ms]")
    if types.is_integer(arrow_type) or types.is_floating(arrow_type) or types.is_boolean(arrow_type):
        return np.dtype(NAMES.get(str(arrow_type), str(arrow_type)))
    return None
