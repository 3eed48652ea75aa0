"""Signatures: what the columns of a table's items are, given as any of the field's specs, kept as values."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import MissingDependencyError

__all__ = [
    "TensorSpec",
    "as_array",
    "as_spec",
    "dtype_text",
    "import_tensorflow",
    "import_tree",
    "leaf_array",
    "shape_text",
    "sizes_of",
    "specs_of",
    "to_tensorflow",
]

# what TensorFlow calls them, where that is not numpy's name
DTYPE_NAMES = {"float16": "half", "float32": "float", "float64": "double", "object": "string"}


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """Shape and dtype of one column of an item; None in the shape: any size.

    Args:
        shape: of the column, with its steps as the first dimension where it has several; None: any.
        dtype: of numpy; object: strings of bytes.
        name: for messages.
    """

    shape: tuple[int | None, ...] | None
    dtype: np.dtype[Any]
    name: str | None = None

    def __eq__(self, other: object) -> bool:
        """Return whether shape and dtype are those of another spec, of any framework."""
        try:
            theirs = as_spec(other)
        except ValueError:
            return NotImplemented
        return (self.shape, self.dtype) == (theirs.shape, theirs.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def admits(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
        """Return whether an array of this dtype and shape is one of these."""
        return dtype == self.dtype and self.admits_shape(shape)

    def admits_shape(self, shape: tuple[int | None, ...]) -> bool:
        """Return whether arrays of a shape may be of this one."""
        return self.shape is None or (
            len(shape) == len(self.shape)
            and all(None in {mine, theirs} or mine == theirs for mine, theirs in zip(self.shape, shape, strict=True))
        )

    @property
    def text(self) -> str:
        """Dtype and shape, as errors of Reverb name them."""
        return f"({dtype_text(self.dtype)}, {shape_text(self.shape)})"


def import_tree() -> Any:
    """Return dm-tree, which says in which order nests are flattened."""
    try:
        import tree
    except ImportError as error:
        raise MissingDependencyError.of("dm-tree", "reverb") from error
    return tree


def import_tensorflow() -> Any:
    """Return TensorFlow where it has been imported before; else None."""
    found = sys.modules.get("tensorflow")
    return found if hasattr(found, "data") else None


def dtype_text(dtype: np.dtype[Any]) -> str:
    """Return what Reverb's errors call a dtype."""
    return DTYPE_NAMES.get(str(dtype), str(dtype))


def shape_text(shape: tuple[int | None, ...] | None) -> str:
    """Return a shape as Reverb's errors show it."""
    return "<unknown>" if shape is None else f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def as_spec(leaf: Any) -> TensorSpec:
    """Return the spec of a leaf: an array, a scalar, or what has ``shape`` and ``dtype``, of any framework.

    Raises:
        ValueError: it has neither.
    """
    if isinstance(leaf, TensorSpec):
        return leaf
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        try:
            array = as_array(leaf)
        except TypeError:
            raise ValueError(f"{leaf!r:.100} is no spec: it has no shape and dtype.") from None
        return TensorSpec(array.shape, array.dtype)
    return TensorSpec(sizes_of(shape), _numpy_dtype(dtype), getattr(leaf, "name", None) or None)


def sizes_of(shape: Any) -> tuple[int | None, ...] | None:
    """Return a shape of any framework; None: not even the number of dimensions is known."""
    sizes = getattr(shape, "dims", shape)
    if sizes is None:
        return None
    numbers = [getattr(size, "value", size) for size in sizes]
    return tuple(None if number is None else int(number) for number in numbers)


def to_tensorflow(spec: TensorSpec) -> Any:
    """Return a spec as one of TensorFlow where it has been imported; else as it is."""
    tensorflow = import_tensorflow()
    if tensorflow is None:
        return spec
    dtype = tensorflow.string if spec.dtype == object else spec.dtype
    return tensorflow.TensorSpec(spec.shape, dtype, spec.name)


def specs_of(nest: Any) -> list[TensorSpec]:
    """Return the specs of a signature, in dm-tree's order."""
    return [as_spec(leaf) for leaf in import_tree().flatten(nest)]


def as_array(value: Any) -> npt.NDArray[Any]:
    """Return a value as a numpy array of numbers or bools, or an array of objects that holds one string of bytes.

    Raises:
        TypeError: a value of another kind.
    """
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, str | bytes | np.str_ | np.bytes_):
        text = value.encode() if isinstance(value, str) else bytes(value)
        array = np.empty((), object)
        array[()] = text
        return array
    array = np.asarray(value)
    if array.dtype.kind in "SUO" and array.ndim == 0:
        return as_array(array.item())
    if array.dtype.kind not in "biufc":
        raise TypeError(f"{array.dtype} of {value!r:.100} cannot be stored. Allowed: numbers, bools, a str or bytes.")
    return array


def leaf_array(leaf: Any) -> npt.NDArray[Any]:
    """Return a leaf of an element as an array; of bytes one of objects, since numpy's own drop zeros at the end."""
    return np.asarray(leaf, object if isinstance(leaf, bytes) else None)


def _numpy_dtype(dtype: Any) -> np.dtype[Any]:
    named = getattr(dtype, "as_numpy_dtype", None)
    text = str(dtype).removeprefix("torch.") if named is None else ""
    try:
        found = np.dtype(named if named is not None else text if type(dtype).__module__ == "torch" else dtype)
    except TypeError as error:
        raise ValueError(f"{dtype!r:.100} is no dtype of numpy.") from error
    return np.dtype(object) if found.kind in "SUO" else found
