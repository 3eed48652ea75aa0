"""``tf.train.Example``: a mapping of keys to lists of bytes, float32 or int64, as the bytes of a protobuf message.

::

    record ──ExampleKeys.locate──> Examples ──┬── floats(key)  float32 [n]
    (several at once)                         ├── ints(key)    any integers or bool [n]
                                              └── spans(key)   offsets and sizes of byte strings, nothing copied

Source:
    example.proto and feature.proto of TensorFlow; the encoding of Protocol Buffers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError

__all__ = ["ExampleKeys", "Examples", "Spans", "encode_example"]

Int64s = npt.NDArray[np.int64]
Uint8s = npt.NDArray[np.uint8]

KINDS = ("absent", "bytes", "float", "int64")
KIND, START, STOP, COUNT, PACKED = range(5)
# tags of fields with a length: number * 8 + 2
FIRST, SECOND = b"\x0a", b"\x12"
LISTS = {"bytes": b"\x0a", "float": b"\x12", "int64": b"\x1a"}


class Spans(NamedTuple):
    """Where byte strings lie.

    Args:
        offsets: int64 [n], first byte of each in the data that was parsed.
        sizes: int64 [n].
    """

    offsets: Int64s
    sizes: Int64s


class ExampleKeys:
    """The keys of examples that are wanted; others are skipped.

    Example:
        >>> blob = encode_example({"action": np.float32([1, 2]), "task": [b"push"]})
        >>> found = ExampleKeys(["action", "reward"]).locate(np.frombuffer(blob, np.uint8))
        >>> found.floats("action"), found.kinds("reward")
        (array([1., 2.], dtype=float32), {'absent'})

    Notes:
        An immutable value; thread-safe and picklable.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self.names = tuple(keys)
        encoded = [key.encode() for key in keys]
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)
        self._edges = np.cumsum([0, *map(len, encoded)], dtype=np.int64)

    def locate(
        self, data: Uint8s, starts: Int64s | None = None, stops: Int64s | None = None, where: str = "the example"
    ) -> Examples:
        """Return where the lists of all keys lie in one example, or in several.

        Args:
            data: uint8 [size], contiguous.
            starts: int64 [n], first byte of each example; default: the data is one.
            stops: int64 [n], one past its last byte.
            where: said by errors.
        """
        from stepwell.tfds.example_kernels import NUM_LOCATION, locate_lists

        starts = np.zeros(1, np.int64) if starts is None else starts
        stops = np.array([data.size], np.int64) if stops is None else stops
        # one type for the kernels, whoever may write to the data
        data = data.view()
        data.flags.writeable = False
        found = np.empty((len(starts), len(self.names), NUM_LOCATION), np.int64)
        fault = int(locate_lists(data, starts, stops, self._bytes, self._edges, found))
        if fault >= 0:
            raise FormatError(
                f"{where}: byte {fault} begins no part of a tf.train.Example. The record is damaged, or it is no "
                "example: write it again."
            )
        return Examples(data, self.names, found, where)


class Examples:
    """Examples that were parsed.

    Args:
        data: uint8 [size], the bytes of all.
        names: of the keys.
        locations: int64 [n, k, 5], as the kernel has them.
        where: said by errors.

    Notes:
        Immutable; thread-safe. It keeps the data alive; arrays that its methods return are copies.
    """

    def __init__(self, data: Uint8s, names: Sequence[str], locations: Int64s, where: str = "the example") -> None:
        self.data, self._locations, self._where = data, locations, where
        self._places = {name: place for place, name in enumerate(names)}

    def __len__(self) -> int:
        return len(self._locations)

    def counts(self, key: str) -> Int64s:
        """Return how many values each example has of a key, int64 [n]; 0 where it is absent."""
        return self._locations[:, self._places[key], COUNT]

    def has(self, key: str) -> npt.NDArray[np.bool_]:
        """Return which examples have a list of a key, bool [n]."""
        found: npt.NDArray[np.bool_] = self._locations[:, self._places[key], KIND] != 0
        return found

    def kinds(self, key: str) -> set[str]:
        """Return of which kinds the lists of a key are: "bytes", "float", "int64", or "absent"."""
        return {KINDS[kind] for kind in np.unique(self._locations[:, self._places[key], KIND])}

    def floats(self, key: str) -> npt.NDArray[np.float32]:
        """Return the numbers of a key, of all examples one after the other: float32 [sum of `counts`]."""
        from stepwell.tfds.example_kernels import fill_floats

        found = self._lists(key, "float")
        out = np.empty(int(found[:, COUNT].sum()), np.float32)
        fill_floats(self.data, *_bounds(found), out)
        return out

    def ints(self, key: str, dtype: npt.DTypeLike = np.int64) -> npt.NDArray[Any]:
        """Return the numbers of a key, of all examples one after the other.

        Args:
            key: of the lists.
            dtype: of integers, or bool; of uint64 the 64 bits are taken as they are.
        """
        from stepwell.tfds.example_kernels import fill_ints

        found, wanted = self._lists(key, "int64"), np.dtype(dtype)
        is_bool = wanted == np.bool_
        out = np.empty(int(found[:, COUNT].sum()), np.uint8 if is_bool else wanted)
        fault = int(fill_ints(self.data, *_bounds(found), out, is_bool))
        if fault >= 0:
            raise FormatError(
                f"{self._where}, {key!r}: the number at byte {fault} is none of {wanted}, which features.json says."
            )
        return out.view(np.bool_) if is_bool else out

    def spans(self, key: str) -> Spans:
        """Return where the byte strings of a key lie in `data`, of all examples one after the other."""
        from stepwell.tfds.example_kernels import fill_bytes

        found = self._lists(key, "bytes")
        offsets, sizes = np.empty((2, int(found[:, COUNT].sum())), np.int64)
        fill_bytes(self.data, *_bounds(found), offsets, sizes)
        return Spans(offsets, sizes)

    def strings(self, key: str) -> list[bytes]:
        """Return the byte strings of a key themselves; see `spans`."""
        spans = self.spans(key)
        ends = (spans.offsets + spans.sizes).tolist()
        return [self.data[start:end].tobytes() for start, end in zip(spans.offsets.tolist(), ends, strict=True)]

    def _lists(self, key: str, kind: str) -> Int64s:
        """Return the locations of the lists of a key, int64 [n, 5], which are of a kind or absent."""
        found = self._locations[:, self._places[key]]
        other = self.kinds(key) - {kind, "absent"}
        if other:
            raise FormatError(
                f"{self._where}, {key!r}: a list of {' and '.join(sorted(other))}. By features.json it is one of "
                f"{kind}: the files are of another version than features.json."
            )
        return found

    def __repr__(self) -> str:
        return f"<Examples {len(self)} of {len(self._places)} keys, {self.data.size} bytes>"


def encode_example(features: Mapping[str, npt.NDArray[Any] | Sequence[bytes]]) -> bytes:
    r"""Return the bytes of a ``tf.train.Example``.

    Args:
        features: key to an array of floats (stored as float32), of integers or bool (as int64; uint64 by its bits), of
            any shape, flattened; or to a sequence of byte strings.

    Example:
        >>> encode_example({"a": [b"x"]})
        b'\n\x0c\n\n\n\x01a\x12\x05\n\x03\n\x01x'
    """
    entries: list[bytes] = []
    for key, values in features.items():
        kind, parts = _list_parts(values)
        size = sum(map(len, parts))
        head = FIRST + _varint(len(key.encode())) + key.encode()
        body = LISTS[kind] + _varint(size)
        feature = SECOND + _varint(len(body) + size) + body
        entries += [FIRST, _varint(len(head) + len(feature) + size), head, feature, *parts]
    return b"".join([FIRST, _varint(sum(map(len, entries))), *entries])


def _list_parts(values: Any) -> tuple[str, list[bytes]]:
    """Return of which kind a list is, and the bytes of its message in parts."""
    if not isinstance(values, np.ndarray):
        return "bytes", [part for value in values for part in (FIRST, _varint(len(value)), bytes(value))]
    if values.dtype.kind == "f":
        packed = np.ascontiguousarray(values, "<f4").tobytes()
        return "float", [FIRST, _varint(len(packed)), packed] if packed else []
    packed = _varints(values.reshape(-1))
    return "int64", [FIRST, _varint(len(packed)), packed] if packed else []


def _varints(values: npt.NDArray[Any]) -> bytes:
    from stepwell.tfds.example_kernels import varint_size, write_varints

    plain = np.ascontiguousarray(values).astype(np.int64, copy=False)
    out = np.empty(int(varint_size(plain)), np.uint8)
    write_varints(plain, out)
    return out.tobytes()


def _varint(value: int) -> bytes:
    """Return a length as a varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bounds(found: Int64s) -> tuple[Int64s, Int64s]:
    return np.ascontiguousarray(found[:, START]), np.ascontiguousarray(found[:, STOP])
