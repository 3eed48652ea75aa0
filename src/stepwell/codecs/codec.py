"""The interface of a codec, and the registry that finds one by name.

A codec turns one step of one feature into bytes and back. It sees one row at a time and keeps nothing between rows, so
random access costs one row. To add one: subclass `Codec`, implement its three methods, call `register_codec`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import SchemaError
from stepwell.schema import Feature

__all__ = ["Codec", "codec_names", "make_codec", "register_codec"]

_REGISTRY: dict[str, type[Codec]] = {}
# codecs that come with stepwell are imported on first use, so that `import stepwell` does not load their libraries
_BUILT_IN = {"raw": "raw", "zstd": "zstd", "jpeg": "jpeg", "png": "png"}


class Codec(ABC):
    """How one row of one feature becomes bytes and back.

    Args:
        feature: the feature; the codec reads its options from ``feature.option(name, default)``.

    Raises:
        SchemaError: the codec cannot store such a feature, or an option is out of range.
        MissingDependencyError: the library it stands on is not installed.

    Notes:
        One instance is used by many threads at once: keep no state that a call changes. Instances are not pickled.
    """

    name: ClassVar[str]

    def __init__(self, feature: Feature) -> None:
        self.feature = feature

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return one row as bytes.

        Args:
            value: an array of the feature's dtype and shape, C-contiguous; str for text, bytes for bytes.
        """

    @abstractmethod
    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return one row: a new array, a str or a bytes object, as `encode` took it.

        Args:
            blob: uint8 [n], what `encode` returned; a view of the file's map, not to be kept.

        Raises:
            DecodeError: the bytes are not a row of this codec.
        """

    @abstractmethod
    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode one row of a feature of fixed shape into the batch's own memory.

        Args:
            blob: as for `decode`.
            out: C-contiguous, of the feature's dtype and shape; for a scalar feature 0-d: ``batch[i, ...]``, because
                ``batch[i]`` is a copy.

        Raises:
            DecodeError: the bytes are not a row of this codec, or have another shape.
        """


def register_codec(codec: type[Codec]) -> type[Codec]:
    """Make a codec known under its ``name``; may be used as a class decorator.

    Raises:
        SchemaError: another codec has the name.
    """
    known = _REGISTRY.get(codec.name)
    if codec.name in _BUILT_IN and not codec.__module__.startswith("stepwell.codecs."):
        raise SchemaError(f"codec name {codec.name!r} is taken by stepwell's own. Choose another.")
    if known is not None and (known.__module__, known.__qualname__) != (codec.__module__, codec.__qualname__):
        raise SchemaError(
            f"codec name {codec.name!r} is taken by {known.__module__}.{known.__qualname__}. Choose another."
        )
    _REGISTRY[codec.name] = codec
    return codec


def codec_names() -> tuple[str, ...]:
    """Return the names that a feature's ``codec`` may have."""
    return tuple(sorted({*_BUILT_IN, *_REGISTRY}))


def make_codec(feature: Feature) -> Codec:
    """Return the codec of a feature.

    Raises:
        SchemaError: no such codec, or it cannot store the feature.
        MissingDependencyError: its library is not installed.
    """
    if feature.codec not in _REGISTRY and feature.codec in _BUILT_IN:
        import importlib

        importlib.import_module(f"stepwell.codecs.{_BUILT_IN[feature.codec]}")
    if feature.codec not in _REGISTRY:
        raise SchemaError(
            f"no codec {feature.codec!r}. There are: {', '.join(codec_names())}. "
            "If it is your own, import the module that calls register_codec first."
        )
    return _REGISTRY[feature.codec](feature)
