"""The features of the model test: each value is a function of the step's key."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from stepwell import Array, Bytes, Feature, Image, Text, Video


def _pixels(*shape: int, dtype: str = "uint8") -> Callable[[int], Any]:
    count = int(np.prod(shape))
    return lambda key: (key * 7 + np.arange(count) * (1 + key % 3)).astype(dtype).reshape(shape)


def _grey(*shape: int) -> Callable[[int], Any]:
    # neighbours differ by more than the tolerance of a lossy codec
    return lambda key: np.full(shape, 20 + key * 5 % 11 * 20, np.uint8)


def _floats(size: int, factor: float) -> Callable[[int], Any]:
    return lambda key: (key * factor + np.arange(size)).astype(np.float32)


# name: the feature but for `final`, the value of a key, how far a value may be off
FEATURES: dict[str, tuple[Callable[..., Feature], Callable[[int], Any], int]] = {
    "vec": (lambda **o: Array(3, **o), _floats(3, 1.5), 0),
    "zvec": (lambda **o: Array(3, codec="zstd", **o), _floats(3, 2.5), 0),
    "two": (lambda **o: Array(2, "float16", **o), lambda key: np.array([key % 2048, -(key % 7)], np.float16), 0),
    "flag": (lambda **o: Array((), "bool", **o), lambda key: np.bool_(key % 3 == 0), 0),
    "lz4": (lambda **o: Array((2, 2), "int32", codec="lz4", **o), lambda key: np.full((2, 2), key, np.int32), 0),
    "delta": (lambda **o: Image((6, 5, 3), codec="delta", every=4, **o), _pixels(6, 5, 3), 0),
    "dlz4": (lambda **o: Image((6, 5, 1), codec="delta", compression="lz4", **o), _pixels(6, 5, 1), 0),
    "png": (lambda **o: Image((5, 4, 3), codec="png", **o), _pixels(5, 4, 3), 0),
    "png16": (lambda **o: Image((5, 4, 1), "uint16", codec="png", **o), _pixels(5, 4, 1, dtype="uint16"), 0),
    "jpeg": (lambda **o: Image((16, 16, 3), codec="jpeg", quality=95, **o), _grey(16, 16, 3), 4),
    "video": (lambda **o: Video((32, 32, 3), gop=3, **o), _grey(32, 32, 3), 8),
    "ragged": (lambda **o: Array((None, 2), "int16", **o), lambda key: np.full((key % 4, 2), key, np.int16), 0),
    "rzstd": (lambda **o: Array((None,), "int64", codec="zstd", **o), lambda key: np.arange(key % 3) + key, 0),
    "sizes": (
        lambda **o: Image((None, None, 3), codec="png", **o),
        lambda key: np.full((3 + key % 3, 4 + key % 2, 3), key % 256, np.uint8),
        0,
    ),
    "text": (Text, lambda key: f"step {key} " * (key % 3), 0),
    "bytes": (Bytes, lambda key: b"%d" % key * (key % 2), 0),
    "ztext": (lambda **o: Text(codec="zstd", **o), lambda key: f"z{key}" * (key % 5), 0),
}
# that one field may combine: of one dtype, the first two of one shape
COMBINED = ("vec", "zvec")


@cache
def value_of(name: str, key: int) -> Any:
    return np.int64(key) if name == "key" else FEATURES[name][1](key)


def tolerance_of(name: str) -> int:
    return 0 if name == "key" or name not in FEATURES else FEATURES[name][2]


def make_feature(name: str, is_final: bool) -> Feature:
    return Array((), "int64", final=True) if name == "key" else FEATURES[name][0](final=is_final)


def blank_of(name: str) -> Any:
    """Return what padding with zeros shows."""
    feature = make_feature(name, False)
    if feature.kind in ("text", "bytes"):
        return "" if feature.kind == "text" else b""
    return np.zeros([size or 0 for size in feature.shape], feature.np_dtype)


def assert_same(found: Any, expected: Any, tolerance: int, what: str) -> None:
    if isinstance(expected, str | bytes):
        assert found == expected, f"{what}: {found!r}, expected {expected!r}"
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), f"{what}: {found.shape} {found.dtype}"
    if tolerance:
        off = int(np.abs(found.astype(int) - expected).max(initial=0))
        assert off <= tolerance, f"{what}: off by {off}"
    else:
        assert np.array_equal(found, expected), f"{what}: {found.tolist()}, expected {expected.tolist()}"
