"""Numba intrinsics on plain addresses: copy, fill, fetch ahead, load and store bytes of any type.

They make one compiled kernel serve every dtype and every row size: a row is an address and a number of bytes. An
address is an int64 here, since that is what numpy tables of addresses hold without a conversion in the kernel.

Notes:
    Nothing here checks bounds. Callers check episodes against mapped sizes once, when they map, and never per row.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from stepwell.kernels.kernel import intrinsic

__all__ = [
    "STREAM_BYTES",
    "commit_u64",
    "end_stream",
    "load_f64",
    "load_u8",
    "load_u32",
    "load_u64",
    "memcpy",
    "memset",
    "prefetch",
    "store_u8",
    "store_u32",
    "store_u64",
    "stream",
]

# written at a time past the caches: a line of them
STREAM_BYTES = 64

_BYTE_POINTER = ir.PointerType(ir.IntType(8))
_FALSE = ir.Constant(ir.IntType(1), 0)


@intrinsic
def memcpy(typing_context: Any, target: Any, source: Any, num_bytes: Any) -> Any:
    """Copy ``num_bytes`` from address ``source`` to address ``target``; the two must not overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = builder.inttoptr(arguments[0], _BYTE_POINTER)
        source_pointer = builder.inttoptr(arguments[1], _BYTE_POINTER)
        copy = builder.module.declare_intrinsic("llvm.memcpy", [_BYTE_POINTER, _BYTE_POINTER, ir.IntType(64)])
        builder.call(copy, (to, source_pointer, arguments[2], _FALSE))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@intrinsic
def memset(typing_context: Any, target: Any, value: Any, num_bytes: Any) -> Any:
    """Set ``num_bytes`` bytes from address ``target`` on to ``value`` (uint8)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to = builder.inttoptr(arguments[0], _BYTE_POINTER)
        fill = builder.module.declare_intrinsic("llvm.memset", [_BYTE_POINTER, ir.IntType(64)])
        builder.call(fill, (to, arguments[1], arguments[2], _FALSE))
        return context.get_dummy_value()

    return types.void(types.int64, types.uint8, types.int64), generate


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask the processor for the cache line at ``address``; harmless for any address, mapped or not."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _BYTE_POINTER)
        int32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), (_BYTE_POINTER, int32, int32, int32))
        fetch = cgutils.get_or_insert_function(builder.module, kind, f"llvm.prefetch.{_BYTE_POINTER.intrinsic_name}")
        # read access, keep in every cache level, data cache
        builder.call(fetch, (pointer, int32(0), int32(3), int32(1)))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def load_u64(typing_context: Any, address: Any) -> Any:
    """Return the uint64 at ``address``, aligned or not, as an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        return builder.load(pointer, align=1)

    return types.int64(types.int64), generate


@intrinsic
def load_f64(typing_context: Any, address: Any) -> Any:
    """Return the float64 at ``address``, aligned or not."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.DoubleType()))
        return builder.load(pointer, align=1)

    return types.float64(types.int64), generate


@intrinsic
def load_u32(typing_context: Any, address: Any) -> Any:
    """Return the uint32 at ``address``, aligned, as an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.load(builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(32))))
        return builder.zext(word, ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def load_u8(typing_context: Any, address: Any) -> Any:
    """Return the byte at ``address``, as an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte = builder.load(builder.inttoptr(arguments[0], _BYTE_POINTER))
        return builder.zext(byte, ir.IntType(64))

    return types.int64(types.int64), generate


@intrinsic
def store_u8(typing_context: Any, address: Any, value: Any) -> Any:
    """Write one byte at ``address``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _BYTE_POINTER))
        return context.get_dummy_value()

    return types.void(types.int64, types.uint8), generate


@intrinsic
def store_u32(typing_context: Any, address: Any, value: Any) -> Any:
    """Write the low four bytes of an int64 at ``address``, aligned, in one store."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.trunc(arguments[1], ir.IntType(32))
        builder.store(word, builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(32))))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def store_u64(typing_context: Any, address: Any, value: Any) -> Any:
    """Write an int64 at ``address``, aligned."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64))))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def commit_u64(typing_context: Any, address: Any, value: Any) -> Any:
    """Write an int64 at ``address``, aligned, in one store that other processes see after all stores before it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.PointerType(ir.IntType(64)))
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def stream(typing_context: Any, target: Any, source: Any) -> Any:
    """Copy `STREAM_BYTES` to a multiple of them past the caches, which do not read first what is written over.

    To be followed by `end_stream`, before anybody else is told of it. For what the caches do not hold until it is used.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        line = ir.PointerType(ir.VectorType(ir.IntType(64), STREAM_BYTES // 8))
        values = builder.load(builder.inttoptr(arguments[1], line), align=4)
        store = builder.store(values, builder.inttoptr(arguments[0], line), align=STREAM_BYTES)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def end_stream(typing_context: Any) -> Any:
    """Let what `stream` wrote be seen by others before anything that is written afterwards."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate
