"""How the fields of a ``.beton`` file are read: one class for each type, and the classes that users register.

::

    a sample's row ──> ValueField.values   numbers in the row, or numbers that are computed from it
                  └──> SpanField.spans     where in the file its bytes are; they stay there

Images of all sizes; JPEG files are decoded by the "fast" transform, to the pixels that FFCV shows::

    modes in the rows     all of one size            of several sizes
    JPEG                  Image((H, W, 3), "jpeg")   Image((None, None, 3), "jpeg")
    raw                   Image((H, W, 3))           Image((None, None, 3)), in place "beton-image": rows know the sizes
    both                  "jpeg-or-raw"              "jpeg-or-raw", in place "beton-image" likewise
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.beton.layout import IMAGE_ROW, JPEG_MODE, PTR_ROW, RAW_MODE, SIZED_ROW, FieldDescriptor, FieldType
from stepwell.errors import FormatError
from stepwell.schema import Array, Bytes, Feature, Image, Text

__all__ = [
    "BetonField",
    "ImageField",
    "ImageKind",
    "SampleSource",
    "SpanField",
    "ValueField",
    "field_modules",
    "field_of",
    "register_beton_field",
    "stays_as_image",
]

CHANNELS = 3

Spans = tuple[npt.NDArray[Any], npt.NDArray[Any]]


class SampleSource(Protocol):
    """The file of a field's samples, as the field sees it; errors name file, field and sample."""

    def sizes_at(self, ptrs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the size of the region at each ptr, int64 [n]; raise FormatError where there is none."""

    def check_sizes(self, ptrs: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> None:
        """Raise FormatError unless the regions have these sizes; those that are empty may be anywhere."""

    def check(self, are_right: npt.NDArray[np.bool_], told: Callable[[int], str]) -> None:
        """Raise FormatError for the first sample that is not right; ``told(i)`` goes on after "field of sample"."""

    def read(self, place: int, count: int) -> bytes:
        """Return bytes of the file; raise FormatError where it has none."""


class BetonField(ABC):
    """A type of field: what a sample's row holds of it, and the feature that it becomes.

    To add one, subclass `SpanField` or `ValueField`.

    Args:
        arguments: 1024 bytes, what the file says of the field; what its writer put there.

    Attributes:
        metadata_type: numpy dtype of what a row holds, of the class or set by ``__init__``; as FFCV's field has it.
        feature: what the values are, as a store holds them.

    Example:
        >>> field = FloatValues(b"")
        >>> isinstance(field, BetonField), field.metadata_type, str(field.feature)
        (True, '<f8', 'raw scalar float64')

    Notes:
        One instance reads all samples of a file; keep no state that a call changes.
    """

    metadata_type: npt.DTypeLike
    feature: Feature

    def __init__(self, arguments: bytes) -> None:  # noqa: B027  most have none
        pass


class SpanField(BetonField):
    """A type of field whose values are bytes of the file, as the feature's codec has them.

    Example:
        >>> class Half(SpanField):
        ...     '''The first half of arrays of 8 floats.'''
        ...     metadata_type, feature = "<u8", Array(4)
        ...     def spans(self, rows, file):
        ...         return rows, 16
        >>> Half(b"").spans(np.array([4096], "<u8"), None)
        (array([4096], dtype=uint64), 16)
    """

    @abstractmethod
    def spans(self, rows: npt.NDArray[Any], file: SampleSource) -> tuple[npt.NDArray[Any], npt.ArrayLike]:
        """Return where the values of samples lie.

        Args:
            rows: [n], of `metadata_type`: what the samples' rows hold.
            file: in which they are; ``file.sizes_at(ptrs)`` says how large regions are.

        Returns:
            Integers [n] twice: first byte in the file, and number of bytes (or one number for all). They are checked
            afterwards: bytes are between the file's rows and its allocation table, whatever the ptr.
        """


class ValueField(BetonField):
    """A type of field whose values stand in the rows, or are made from bytes of the file.

    Example:
        >>> class Switch(ValueField):
        ...     '''Bytes, of which 0 is off.'''
        ...     metadata_type, feature = "u1", Array((), "bool")
        ...     def values(self, rows, file):
        ...         return rows != 0
        >>> Switch(b"").values(np.array([0, 1, 255], "u1"), None).tolist()
        [False, True, True]
    """

    @abstractmethod
    def values(self, rows: npt.NDArray[Any], file: SampleSource) -> Any:
        """Return the values of samples.

        Args:
            rows: [n], of `metadata_type`: what the samples' rows hold.
            file: in which they are; ``file.read(ptr, size)`` returns bytes of it.

        Returns:
            [n, *shape] of the feature's dtype; of a feature whose size varies a list of n values.
        """


_REGISTRY: dict[int | str, type[BetonField]] = {}


def register_beton_field(key: int | str, field: type[BetonField]) -> type[BetonField]:
    """Say how a type of custom field is read, in all files.

    Args:
        key: its type id, 7 to 255, or the name of a field. FFCV writes 255 for every custom field, so that names tell
            them apart.
        field: a subclass of `SpanField` or `ValueField`, in a module that can be imported: workers have to.

    Returns:
        The class.

    Raises:
        FormatError: the id of a built-in type, or another class has the key.
    """
    if isinstance(key, int) and not len(_BUILT_IN) <= key <= FieldType.CUSTOM:
        raise FormatError(f"type {key} of .beton fields. Allowed: {len(_BUILT_IN)} to 255, or the name of a field.")
    known = _REGISTRY.get(key)
    if known is not None and (known.__module__, known.__qualname__) != (field.__module__, field.__qualname__):
        raise FormatError(
            f"fields {key!r} of .beton files are read by {known.__module__}.{known.__qualname__} already."
        )
    _REGISTRY[key] = field
    return field


def field_modules(custom_fields: Mapping[str, type[BetonField]]) -> list[str]:
    """Return the files in which custom fields are defined, given ones and registered ones: what they say may change."""
    kinds = [*custom_fields.values(), *_REGISTRY.values()]
    found = {getattr(sys.modules.get(kind.__module__), "__file__", None) for kind in kinds}
    return sorted(path for path in found if path is not None and Path(path).is_file())


def field_of(descriptor: FieldDescriptor, custom_fields: Mapping[str, type[BetonField]]) -> BetonField:
    """Return what reads a field."""
    name, type_id = descriptor.name, descriptor.type_id
    found = custom_fields.get(name) or _REGISTRY.get(name) or _REGISTRY.get(type_id)
    if found is not None:
        field = found(descriptor.arguments)
        _check_custom(name, field)
        return field
    if type_id not in _BUILT_IN:
        kind = "a custom field" if type_id == FieldType.CUSTOM else "no type that FFCV has built in"
        raise FormatError(
            f"field {name!r} is of type {type_id}, {kind}. Say how it is read: subclass stepwell.beton.SpanField or "
            f"ValueField, then give custom_fields={{{name!r}: YourField}}, or call register_beton_field({name!r}, "
            "YourField) in a module that is imported (on the command line, --import MODULE)."
        )
    if type_id in (FieldType.NDARRAY, FieldType.TENSOR):
        return ArrayField(descriptor.array_type())
    built_in: BetonField = _BUILT_IN[type_id](descriptor.arguments)
    return built_in


def _check_custom(name: str, field: Any) -> None:
    if not isinstance(field, SpanField | ValueField):
        raise FormatError(f"field {name!r} is read by a {type(field).__name__}. Allowed: a SpanField or a ValueField.")
    if not isinstance(getattr(field, "feature", None), Feature) or not hasattr(field, "metadata_type"):
        raise FormatError(f"{type(field).__name__}, which reads field {name!r}, has no feature or no metadata_type.")


class FloatValues(ValueField):
    """A float64 in the row."""

    metadata_type: npt.DTypeLike = "<f8"
    feature: Feature = Array((), "float64")

    def values(self, rows: npt.NDArray[Any], file: SampleSource) -> npt.NDArray[Any]:
        """Return the numbers; see `ValueField.values`."""
        return rows


class IntValues(ValueField):
    """An int64 in the row."""

    metadata_type: npt.DTypeLike = "<i8"
    feature: Feature = Array((), "int64")

    def values(self, rows: npt.NDArray[Any], file: SampleSource) -> npt.NDArray[Any]:
        """Return the numbers; see `ValueField.values`."""
        return rows


class ByteSpans(SpanField):
    """Bytes of any length."""

    metadata_type: npt.DTypeLike = SIZED_ROW
    feature: Feature = Bytes()

    def spans(self, rows: npt.NDArray[Any], file: SampleSource) -> Spans:
        """Return where the bytes are; see `SpanField.spans`."""
        file.check_sizes(rows["ptr"], rows["size"])
        return rows["ptr"], rows["size"]


class JsonField(SpanField):
    """A text of JSON and a NUL, which is left out."""

    metadata_type: npt.DTypeLike = SIZED_ROW
    feature: Feature = Text()

    def spans(self, rows: npt.NDArray[Any], file: SampleSource) -> Spans:
        """Return where the texts are; see `SpanField.spans`."""
        file.check_sizes(rows["ptr"], rows["size"])
        return rows["ptr"], rows["size"] - (rows["size"] > 0)


class ArrayField(SpanField):
    """An array of one shape and dtype, at any address: an ndarray or a tensor."""

    metadata_type: npt.DTypeLike = PTR_ROW

    def __init__(self, array_type: tuple[tuple[int, ...], np.dtype[Any]]) -> None:
        shape, dtype = array_type
        self.feature = Array(shape, dtype)
        self.num_bytes = math.prod(shape) * dtype.itemsize
        # one without elements may have sizes beside the 0 that numpy cannot have
        self.most_bytes = math.prod(max(1, size) for size in shape) * dtype.itemsize

    def spans(self, rows: npt.NDArray[Any], file: SampleSource) -> Spans:
        """Return where the arrays are; see `SpanField.spans`."""
        sizes = np.full(len(rows), self.num_bytes)
        file.check_sizes(rows, sizes)
        return rows, sizes


class ImageField(SpanField):
    """RGB images: JPEG files, or plain pixels, each row as its mode says."""

    metadata_type: npt.DTypeLike = IMAGE_ROW
    feature: Feature = Image((None, None, 3), codec="jpeg-or-raw")

    def spans(self, rows: npt.NDArray[Any], file: SampleSource) -> Spans:
        """Return where the files or pixels are; see `SpanField.spans`."""
        modes, heights, widths = rows["mode"], rows["height"].astype(np.int64), rows["width"].astype(np.int64)
        file.check(
            (modes <= RAW_MODE) & (heights > 0) & (widths > 0),
            lambda i: (
                f"is an image of {heights[i]}x{widths[i]} of mode {modes[i]}. Allowed: sides of 1 or more, mode 0 "
                "(JPEG) or 1 (raw)."
            ),
        )
        sizes = file.sizes_at(rows["ptr"])
        file.check_sizes(rows["ptr"], np.where(modes == RAW_MODE, heights * widths * CHANNELS, sizes))
        return rows["ptr"], sizes


_BUILT_IN: dict[int, Any] = {
    FieldType.FLOAT: FloatValues,
    FieldType.INT: IntValues,
    FieldType.IMAGE: ImageField,
    FieldType.BYTES: ByteSpans,
    FieldType.NDARRAY: ArrayField,
    FieldType.JSON: JsonField,
    FieldType.TENSOR: ArrayField,
}


MIXED_CODEC = "jpeg-or-raw"


@dataclass(frozen=True, slots=True)
class ImageKind:
    """What is true of some images."""

    modes: frozenset[int] = frozenset()
    shape: tuple[int, int] | None = None

    @classmethod
    def of(cls, rows: npt.NDArray[Any]) -> ImageKind:
        """Return the kind of images, by what the samples' rows hold of them, [n] of `IMAGE_ROW`."""
        if not len(rows):
            return cls()
        sides = {name: (int(rows[name].min()), int(rows[name].max())) for name in ("mode", "height", "width")}
        is_fixed = all(sides[name][0] == sides[name][1] for name in ("height", "width"))
        return cls(frozenset(sides["mode"]), (sides["height"][0], sides["width"][0]) if is_fixed else None)

    def merged(self, other: ImageKind) -> ImageKind:
        """Return the kind of both sets of images together."""
        if not self.modes or not other.modes:
            return other if not self.modes else self
        return ImageKind(self.modes | other.modes, self.shape if self.shape == other.shape else None)

    @property
    def feature(self) -> Feature:
        """The images as a store holds them."""
        shape = (*(self.shape or (None, None)), 3)
        if self.modes == {RAW_MODE}:
            return Image(shape)
        # as FFCV decodes them
        return Image(shape, codec="jpeg" if self.modes <= {JPEG_MODE} else MIXED_CODEC, dct="fast")


def stays_as_image(feature: Feature) -> bool:
    """Whether the bytes of images do not say what they are, so that the references have to: see "beton-image"."""
    return feature.codec == MIXED_CODEC or (feature.codec == "raw" and feature.is_ragged)
