"""Rows of many files, each read once: open, read, close, without Python in between.

The system calls are those of the C library; a file costs what they cost, and about half a microsecond more.
"""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from stepwell.kernels.kernel import intrinsic, kernel
from stepwell.kernels.memory import memcpy, store_u8

__all__ = ["MAX_PATH", "read_files"]

# a path and the zero after it; Linux takes no longer one
MAX_PATH = 4096
FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
SLASH = ord("/")
_INT32, _INT64, _POINTER = ir.IntType(32), ir.IntType(64), ir.PointerType(ir.IntType(8))


@intrinsic
def _open(typing_context: Any, path: Any) -> Any:
    """Return the descriptor of a file, opened for reading; -1 where it cannot be."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_INT32, [_POINTER, _INT32], var_arg=True)
        function = cgutils.get_or_insert_function(builder.module, kind, "open")
        found = builder.call(function, [builder.inttoptr(arguments[0], _POINTER), ir.Constant(_INT32, FLAGS)])
        return builder.sext(found, _INT64)

    return types.int64(types.int64), generate


@intrinsic
def _pread(typing_context: Any, descriptor: Any, target: Any, num_bytes: Any, offset: Any) -> Any:
    """Read ``num_bytes`` from ``offset`` on to the address ``target``; returns how many there were, or -1."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_INT64, [_INT32, _POINTER, _INT64, _INT64])
        function = cgutils.get_or_insert_function(builder.module, kind, "pread")
        descriptor = builder.trunc(arguments[0], _INT32)
        return builder.call(function, [descriptor, builder.inttoptr(arguments[1], _POINTER), *arguments[2:]])

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def _close(typing_context: Any, descriptor: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_INT32, [_INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "close")
        return builder.sext(builder.call(function, [builder.trunc(arguments[0], _INT32)]), _INT64)

    return types.int64(types.int64), generate


@kernel
def read_files(  # noqa: PLR0917
    directories: Any, ends: Any, names: Any, name_ends: Any, offsets: Any, sizes: Any, targets: Any, path: Any
) -> int:
    """Read a piece of each of some files of each of some directories.

    Args:
        directories: uint8 [*], their paths back to back.
        ends: int64 [n], where each of these ends.
        names: uint8 [*], the files' names, back to back.
        name_ends: int64 [k], where each of these ends.
        offsets: int64 [n, k], of the first byte.
        sizes: int64 [n, k], bytes; 0: the file is left alone.
        targets: int64 [n, k], addresses of the memory for them.
        path: uint8 [MAX_PATH], scratch memory; the longest path fits.

    Returns:
        The first directory of which a file could not be opened, or has not so many bytes; n when all were read.
    """
    buffer, start = path.ctypes.data, 0
    for n in range(len(ends)):
        length = ends[n] - start
        memcpy(buffer, directories.ctypes.data + start, length)
        start = ends[n]
        store_u8(buffer + length, SLASH)
        first = 0
        for k in range(len(name_ends)):
            size = name_ends[k] - first
            if sizes[n, k] > 0:
                memcpy(buffer + length + 1, names.ctypes.data + first, size)
                store_u8(buffer + length + 1 + size, 0)
                descriptor = _open(buffer)
                if descriptor < 0:
                    return n
                found = _pread(descriptor, targets[n, k], sizes[n, k], offsets[n, k])
                _close(descriptor)
                if found != sizes[n, k]:
                    return n
            first = name_ends[k]
    return len(ends)
