"""Records of TFRecord files, found and checked: CRC-32C by the processor's own instruction, else by eight tables.

The instruction takes three cycles and one can begin each cycle, so three stretches are summed at a time. What follows
from the bytes before a stretch is added afterwards: a CRC is linear, and passing ``n`` zero bytes a fixed matrix::

    |---- a ----|---- b ----|---- c ----|     crc = shift2(a) ^ shift1(b) ^ c

Source:
    RFC 3720, appendix B.4 (the polynomial and test values).
"""

from __future__ import annotations

import platform
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.core import config

from stepwell.kernels.kernel import intrinsic, kernel
from stepwell.kernels.memory import load_u8, load_u64

__all__ = ["BAD_DATA", "BAD_HEADER", "HAS_INSTRUCTION", "TOO_LONG", "crc32c", "crc32c_by_tables", "scan_records"]

POLYNOMIAL = 0x82F63B78
# stretches: long ones for what comes in megabytes, short ones for what is left and for small records
LONG, SHORT = 4096, 256

Table = npt.NDArray[np.uint32]


def _has_instruction() -> bool:
    # who compiles for another processor, by numba's variables, gets the tables: what it has cannot be asked
    if config.CPU_NAME or config.CPU_FEATURES:
        return False
    name = {"x86_64": "sse4.2", "amd64": "sse4.2", "aarch64": "crc", "arm64": "crc"}.get(platform.machine().lower())
    return name is not None and bool(llvm.get_host_cpu_features().get(name, False))


HAS_INSTRUCTION = _has_instruction()
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")


def _byte_tables() -> Table:
    """Return uint32 [8, 256]: what a byte does to the CRC when 0 to 7 zero bytes follow it."""
    rows = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        rows = np.where(rows & 1, (rows >> 1) ^ np.uint32(POLYNOMIAL), rows >> 1).astype(np.uint32)
    tables = [rows]
    for _ in range(7):
        tables.append((rows[tables[-1] & 0xFF] ^ (tables[-1] >> 8)).astype(np.uint32))
    return np.stack(tables)


def _applied(operator: Table, values: Table) -> Table:
    """Return values passed through an operator: uint32 [32], what becomes of each bit."""
    out = np.zeros_like(values)
    for bit in range(32):
        out ^= np.where((values >> np.uint32(bit)) & 1, operator[bit], np.uint32(0)).astype(np.uint32)
    return out


def _shift_tables(num_bytes: int) -> Table:
    """Return uint32 [4, 256]: what passing that many zero bytes, a power of two, makes of each byte of a CRC."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    operator = (BYTES[0][bits & 0xFF] ^ (bits >> 8)).astype(np.uint32)
    for _ in range(num_bytes.bit_length() - 1):
        operator = _applied(operator, operator)
    values = np.arange(256, dtype=np.uint32)
    return np.stack([_applied(operator, values << np.uint32(8 * byte)) for byte in range(4)])


BYTES = _byte_tables()
BY_LONG, BY_SHORT = _shift_tables(LONG), _shift_tables(SHORT)


@intrinsic
def _add_u64(typing_context: Any, crc: Any, value: Any) -> Any:
    """Return the CRC after eight more bytes, by the processor's instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        int32, int64 = ir.IntType(32), ir.IntType(64)
        if IS_X86:
            kind, name = ir.FunctionType(int64, (int64, int64)), "llvm.x86.sse42.crc32.64.64"
            return builder.call(builder.module.declare_intrinsic(name, fnty=kind), arguments)
        kind, name = ir.FunctionType(int32, (int32, int64)), "llvm.aarch64.crc32cx"
        crc32 = builder.trunc(arguments[0], int32)
        found = builder.call(builder.module.declare_intrinsic(name, fnty=kind), (crc32, arguments[1]))
        return builder.zext(found, int64)

    return types.int64(types.int64, types.int64), generate


@kernel
def _shifted(crc: Any, table: Any) -> Any:
    """Return what a CRC is after the zero bytes of a table."""
    return np.int64(
        table[0, crc & 0xFF] ^ table[1, (crc >> 8) & 0xFF] ^ table[2, (crc >> 16) & 0xFF] ^ table[3, (crc >> 24) & 0xFF]
    )


@kernel
def _add_byte(crc: Any, byte: Any) -> Any:
    return np.int64(BYTES[0, (crc ^ byte) & 0xFF]) ^ (crc >> 8)


@kernel
def _add_three(crc: Any, address: Any, length: Any, table: Any) -> Any:
    """Return the CRC after three stretches of a length."""
    second, third = np.int64(0), np.int64(0)
    for place in range(address, address + length, 8):
        crc = _add_u64(crc, load_u64(place))
        second = _add_u64(second, load_u64(place + length))
        third = _add_u64(third, load_u64(place + 2 * length))
    return _shifted(_shifted(crc, table) ^ second, table) ^ third


@kernel
def _by_instruction(crc: Any, address: Any, end: Any) -> Any:
    """Return the CRC after the bytes from one address to another; the CRC as it runs, not inverted."""
    while address + 3 * LONG <= end:
        crc = _add_three(crc, address, LONG, BY_LONG)
        address += 3 * LONG
    while address + 3 * SHORT <= end:
        crc = _add_three(crc, address, SHORT, BY_SHORT)
        address += 3 * SHORT
    while address + 8 <= end:
        crc = _add_u64(crc, load_u64(address))
        address += 8
    while address < end:
        crc = _add_byte(crc, load_u8(address))
        address += 1
    return crc


@kernel
def _by_tables(crc: Any, address: Any, end: Any) -> Any:
    """The same, for any processor: eight bytes at a time, each through a table of its own."""
    while address + 8 <= end:
        word = load_u64(address) ^ crc
        crc = np.int64(
            BYTES[7, word & 0xFF]
            ^ BYTES[6, (word >> 8) & 0xFF]
            ^ BYTES[5, (word >> 16) & 0xFF]
            ^ BYTES[4, (word >> 24) & 0xFF]
            ^ BYTES[3, (word >> 32) & 0xFF]
            ^ BYTES[2, (word >> 40) & 0xFF]
            ^ BYTES[1, (word >> 48) & 0xFF]
            ^ BYTES[0, (word >> 56) & 0xFF]
        )
        address += 8
    while address < end:
        crc = _add_byte(crc, load_u8(address))
        address += 1
    return crc


_add = _by_instruction if HAS_INSTRUCTION else _by_tables


@kernel
def crc32c(crc: Any, address: Any, num_bytes: Any) -> Any:
    """Return the CRC-32C of what a CRC is of and the bytes at an address; 0 is that of no bytes."""
    return _add(np.int64(crc) ^ 0xFFFFFFFF, address, address + num_bytes) ^ 0xFFFFFFFF


@kernel
def crc32c_by_tables(crc: Any, address: Any, num_bytes: Any) -> Any:
    """Return the same without the processor's instruction."""
    return _by_tables(np.int64(crc) ^ 0xFFFFFFFF, address, address + num_bytes) ^ 0xFFFFFFFF


HEADER, FOOTER = 12, 4
BAD_HEADER, BAD_DATA, TOO_LONG = 1, 2, 3
MASK_DELTA = 0xA282EAD8


@kernel
def _masked(crc: Any) -> Any:
    return (((crc >> 15) | (crc << 17) & 0xFFFFFFFF) + MASK_DELTA) & 0xFFFFFFFF


@kernel
def _load_u32(address: Any) -> Any:
    return load_u8(address) | load_u8(address + 1) << 8 | load_u8(address + 2) << 16 | load_u8(address + 3) << 24


@kernel
def scan_records(data: Any, left: Any, is_checked: Any, out: Any) -> Any:
    """Find the records that begin in a piece of a file.

    Args:
        data: uint8 [n], which begins with a record.
        left: bytes of the file from there to its end.
        is_checked: whether records themselves are checked: one that is not whole is left for the next piece. Else
            their headers only, and the last one may reach beyond the piece.
        out: int64 [most, 2], written: place and size of each record in the piece.

    Returns:
        How many were found, where the next one begins, and what is wrong there, or 0.
    """
    base, count, place = data.ctypes.data, 0, np.int64(0)
    while count < len(out) and place + HEADER <= data.size:
        size = load_u64(base + place)
        if _masked(crc32c(0, base + place, 8)) != _load_u32(base + place + 8):
            return count, place, BAD_HEADER
        if size < 0 or size > left - place - HEADER - FOOTER:
            return count, place, TOO_LONG
        end = place + HEADER + size
        if is_checked:
            if end + FOOTER > data.size:
                break
            if _masked(crc32c(0, base + place + HEADER, size)) != _load_u32(base + end):
                return count, place, BAD_DATA
        out[count, 0], out[count, 1] = place + HEADER, size
        count += 1
        place = end + FOOTER
    return count, place, 0
