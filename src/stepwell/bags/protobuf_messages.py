"""Messages of protobuf, read by the descriptors that an MCAP file holds.

::

    schema     FileDescriptorSet: the files of a type and of those that it is made of
    message    foxglove.CompressedImage { timestamp, frame_id, data, format }

A descriptor is data: no code is made of it.

Source: mcap.dev, "Well-known schema encodings"; the documentation of protobuf, "Self-describing messages".
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.errors import DecodeError, FormatError, MissingDependencyError

__all__ = ["ProtobufReader"]

MAX_DEPTH = 16
MAX_DESCRIPTOR = 16 << 20
# by the numbers of descriptor.proto: double, float, int64, uint64, int32, fixed64, fixed32, bool, ...
DTYPES = {
    1: "float64", 2: "float32", 3: "int64", 4: "uint64", 5: "int32", 6: "uint64", 7: "uint32", 8: "bool",
    13: "uint32", 14: "int32", 15: "int32", 16: "int64", 17: "int32", 18: "int64",
}  # fmt: skip
BYTES, MESSAGE = 12, 11


class ProtobufReader:
    """Reads messages of one type.

    Args:
        name: of the type, "foxglove.CompressedImage".
        descriptors: a serialized ``FileDescriptorSet``.

    Raises:
        FormatError: descriptors that are damaged, or do not have the type.
        MissingDependencyError: protobuf is not installed.
    """

    def __init__(self, name: str, descriptors: bytes) -> None:
        self.name = name
        try:
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        except ImportError as error:
            raise MissingDependencyError.of("protobuf", "mcap") from error
        if len(descriptors) > MAX_DESCRIPTOR:
            raise FormatError(f"{name}: descriptors of {len(descriptors):,} bytes. Allowed: {MAX_DESCRIPTOR:,}.")
        try:
            files = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file}
            pool = descriptor_pool.DescriptorPool()
            _add_all(pool, files)
            self._type = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        except Exception as error:  # protobuf raises errors of four kinds
            raise FormatError(f"{name}: its descriptors are damaged: {type(error).__name__}: {error}") from error

    def read(self, data: bytes) -> dict[str, Any]:
        """Return a message: numbers, texts, arrays of numbers, lists, and messages within it as dicts."""
        try:
            return _values(self._type.FromString(data), 0)
        except DecodeError:
            raise
        except Exception as error:
            raise DecodeError(f"a message of {self.name} that is damaged: {error}") from error


def _add_all(pool: Any, files: dict[str, Any]) -> None:
    """Add files to a pool, each after those that it imports."""
    while files:
        ready = [name for name, file in files.items() if not any(each in files for each in file.dependency)]
        if not ready:
            raise ValueError(f"{', '.join(files)} import each other in a circle")
        for name in ready:
            pool.Add(files.pop(name))


def _values(message: Any, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise DecodeError(f"messages within messages, {MAX_DEPTH} deep.")
    return {field.name: _value(getattr(message, field.name), field, depth) for field in message.DESCRIPTOR.fields}


def _value(value: Any, field: Any, depth: int) -> Any:
    is_list = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
    dtype = DTYPES.get(field.type)
    if is_list:
        if dtype is not None:
            return np.array(value, dtype)
        return [None] * len(value) if field.type == MESSAGE else [str(each) for each in value]
    if dtype is not None:
        return np.dtype(dtype).type(value)
    if field.type == MESSAGE:
        return _values(value, depth + 1)
    return np.frombuffer(value, np.uint8) if field.type == BYTES else value
