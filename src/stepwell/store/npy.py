"""``.npy`` files that grow: a header of constant length, rewritten when the number of rows is known.

Source: numpy's NEP 1 (format version 1.0): magic, version, uint16 length, a Python literal padded with spaces to a
multiple of 64.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError

__all__ = ["header_bytes", "header_size", "parse_header_size", "read_again"]

MAGIC = b"\x93NUMPY\x01\x00"
PREFIX = len(MAGIC) + 2
ALIGN = 128
# room for any number of rows, so that the header's length does not depend on it
WIDEST_ROWS = 10**13
MAX_TRIES = 10

Found = TypeVar("Found")


def header_size(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> int:
    """Return the length in bytes of the header of an array [rows, *shape], whatever ``rows`` is."""
    return -(-(PREFIX + len(_literal(dtype, (WIDEST_ROWS, *shape))) + 1) // ALIGN) * ALIGN


def header_bytes(dtype: npt.DTypeLike, shape: tuple[int, ...], num_rows: int) -> bytes:
    """Return the header of an array [num_rows, *shape] in C order."""
    size = header_size(dtype, shape)
    text = _literal(dtype, (num_rows, *shape)).encode("latin1")
    return MAGIC + struct.pack("<H", size - PREFIX) + text.ljust(size - PREFIX - 1) + b"\n"


def parse_header_size(head: bytes, name: str) -> int:
    """Return where the data of a ``.npy`` file begins, from its first bytes."""
    if len(head) < PREFIX or head[: len(MAGIC)] != MAGIC:
        raise CorruptSegmentError(f'{name}: the .npy header is damaged. Run "stepwell verify PATH".')
    return PREFIX + int(struct.unpack("<H", head[len(MAGIC) : PREFIX])[0])


def _literal(dtype: npt.DTypeLike, shape: tuple[int, ...]) -> str:
    return f"{{'descr': {_descr(np.dtype(dtype))}, 'fortran_order': False, 'shape': {shape!r}, }}"


@functools.lru_cache(maxsize=256)
def _descr(dtype: np.dtype[Any]) -> str:
    return repr(np.lib.format.dtype_to_descr(dtype))


def read_again(read: Callable[[], Found]) -> Found:
    """Return what a function reads by numpy from ``.npy`` headers; it is called again where another thread interfered.

    numpy reads them by ``ast.literal_eval``. Before Python 3.12 all threads of a process share the depth that it counts
    while it builds the tree (CPython issue 106905): where threads change places meanwhile, a good header is a
    SystemError.
    """
    for _ in range(MAX_TRIES - 1):
        try:
            return read()
        except SystemError:
            continue
    return read()
