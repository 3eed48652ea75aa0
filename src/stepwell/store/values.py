"""Values of a step that a writer accepts, and the errors for those that it does not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepError
from stepwell.schema import Feature, Image, Schema
from stepwell.store.encoded_rows import accept_encoded, has_rows

__all__ = [
    "accept_column",
    "accept_columns",
    "accept_final",
    "acceptor",
    "check_mapping",
    "encode_metadata",
    "is_column",
    "missing_features_error",
]

PYTHON_VALUES = (bool, int, float, complex, list, tuple)


def acceptor(name: str, feature: Feature) -> Callable[[Any], Any]:
    """Return the function that turns one value into what the column stores, or raises StepError.

    Numpy arrays (and what offers itself as one, such as a CPU tensor) must have the feature's dtype and shape. Python
    numbers
    and lists are converted when the dtype holds them: ints into ints of enough bits and into floats, floats into
    floats.
    """
    if feature.kind == "text":
        return lambda value: _text(name, value)
    if feature.kind == "bytes":
        return lambda value: _bytes(name, value)
    dtype, shape = feature.np_dtype, feature.shape
    if shape == ():
        return _scalar_acceptor(name, dtype)
    if feature.is_image_of_any_size:
        return lambda value: _image(name, value, dtype, shape)
    if feature.kind == "image":
        advice = f" A feature {Image((None, None, *shape[2:]))!r} takes images of any size."
        return lambda value: _array(name, value, dtype, shape, advice=advice)
    return lambda value: _array(name, value, dtype, shape)


def accept_column(name: str, feature: Feature, values: Any) -> Any:
    """Return a whole column: an array [n, *shape], a list of values of a ragged feature, or `EncodedRows`."""
    if has_rows(values):
        return accept_encoded(name, feature, values)
    if isinstance(values, str | os.PathLike) and feature.kind in ("array", "image"):
        advice = f"stepwell.VideoFile({os.fspath(values)!r})" if feature.codec == "video" else "an array"
        raise StepError(f"feature {name!r}: got a {type(values).__name__}. Give {advice}, steps first.")
    dtype = feature.np_dtype
    if type(values) is np.ndarray and values.dtype == dtype and values.shape[1:] == feature.shape and values.ndim:
        return np.ascontiguousarray(values)
    if feature.is_ragged:
        accept = acceptor(name, feature)
        if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
            raise StepError(f"feature {name!r}: got a {type(values).__name__}. Give a list with one value a step.")
        return [accept(value) for value in values]
    if isinstance(values, list | tuple) and values and not isinstance(values[0], PYTHON_VALUES):
        accept = acceptor(name, feature)
        return np.stack([accept(value) for value in values])
    return _array(name, values, dtype, (None, *feature.shape), per_step=False)


def missing_features_error(schema: Schema, step: Mapping[str, Any]) -> StepError:
    """Return the error for a step whose names are not those of the schema."""
    missing = [name for name in schema if name not in step]
    unknown = [name for name in step if name not in schema]
    parts = []
    if missing:
        parts.append(f"feature {', '.join(map(repr, missing))} is missing")
    if unknown:
        parts.append(f"feature {', '.join(map(repr, unknown))} is not in the schema")
    return StepError(f"{' and '.join(parts)}. The store has: {', '.join(schema)}.")


def _scalar_acceptor(name: str, dtype: np.dtype[Any]) -> Callable[[Any], Any]:
    """Return the acceptor of a scalar feature: the common Python types pass without being made arrays."""
    # a type of numpy is one dtype, but those of strings, records and times are many
    passing: set[type] = {dtype.type} if dtype.kind in "biufc" else set()
    ranged: set[type] = {int}
    least, greatest = 1.0, 0.0
    if dtype.kind == "b":
        passing.add(bool)
    elif dtype.kind in "fc":
        ranged |= {float, np.float64}
        least, greatest = float(np.finfo(dtype).min), float(np.finfo(dtype).max)
        if greatest >= sys.float_info.max:
            passing |= {float, np.float64}
    elif dtype.kind in "iu":
        least, greatest = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def accept(value: Any) -> Any:
        kind = type(value)
        if kind in passing or (kind in ranged and least <= value <= greatest):
            return value
        return _array(name, value, dtype, ())

    return accept


def _array(
    name: str,
    value: Any,
    dtype: np.dtype[Any],
    shape: tuple[int | None, ...],
    *,
    per_step: bool = True,
    advice: str = "",
) -> npt.NDArray[Any]:
    if isinstance(value, PYTHON_VALUES) and type(value) in (*PYTHON_VALUES, np.float64, np.complex128):
        array = _from_python(name, value, dtype, shape)
    else:
        if value is None:
            raise StepError(f"feature {name!r}: got None, the store has {dtype}. Every step needs a value.")
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise StepError(f"feature {name!r}: got a {type(value).__name__} that is no array: {error}") from error
        if array.dtype != dtype and not _is_held(
            array.dtype, dtype, is_scalar=isinstance(value, np.generic | str | bytes)
        ):
            raise StepError(
                f"feature {name!r}: got dtype {array.dtype}, the store has {dtype}. "
                f"Convert it, e.g. {_conversion(array, dtype)}."
            )
        if array.dtype != dtype:
            array = array.astype(dtype)
    if len(array.shape) != len(shape) or any(
        want not in (None, got) for got, want in zip(array.shape, shape, strict=True)
    ):
        raise StepError(
            f"feature {name!r}: got shape {_shown(array.shape, per_step)}, the store has {_shown(shape, per_step)}."
            f"{advice}"
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _image(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """Return an image of any size, which has a pixel at least."""
    image = _array(name, value, dtype, shape)
    if image.size == 0:
        raise StepError(f"feature {name!r}: got an image of shape {image.shape}. Allowed: sides of 1 or more.")
    return image


def _conversion(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> str:
    """Return how values become those of a feature: pixels of 0 to 1 would all be black as they are."""
    is_unit = array.dtype.kind == "f" and dtype == np.uint8 and array.size and array.min() >= 0 and array.max() <= 1
    return "(value * 255).astype('uint8')" if is_unit else f"value.astype({str(dtype)!r})"


def _is_held(found: np.dtype[Any], dtype: np.dtype[Any], *, is_scalar: bool) -> bool:
    """Whether a feature's dtype takes another one: a scalar's when it loses nothing, an array's of other byte order."""
    if is_scalar and dtype.kind in "US":
        return found.kind == dtype.kind and found.itemsize <= dtype.itemsize
    return bool(np.can_cast(found, dtype, "safe" if is_scalar else "equiv"))


def _from_python(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise StepError(
            f"feature {name!r}: got a {type(value).__name__} of uneven lists, the store has {dtype}."
        ) from error
    if array.size == 0 and array.ndim == 1:
        return np.empty((0, *(n or 0 for n in shape[1:])), dtype)
    if dtype.names is not None:
        try:
            return np.array(value, dtype)
        except (TypeError, ValueError) as error:
            raise StepError(f"feature {name!r}: {value!r} does not fit dtype {dtype}.") from error
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if array.size and (array.min() < limits.min or array.max() > limits.max):
            raise StepError(f"feature {name!r}: {value!r} is outside of {dtype} [{limits.min}, {limits.max}].")
        is_held = True
    elif dtype.kind in "US":
        is_held = _is_held(array.dtype, dtype, is_scalar=True)
    else:
        is_held = array.dtype.kind not in "OUSV" and np.can_cast(array.dtype, dtype, "same_kind")
    if not is_held:
        raise StepError(f"feature {name!r}: got a {type(value).__name__} of {array.dtype}, the store has {dtype}.")
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError as error:
        raise StepError(f"feature {name!r}: {value!r} is outside of {dtype}.") from error


def accept_columns(schema: Schema, columns: Mapping[str, Any], *, finals: bool) -> tuple[list[Any], int]:
    """Return accepted columns in the schema's order and the number of steps."""
    if columns.keys() != schema.keys():
        raise missing_features_error(schema, columns)
    accepted = [accept_column(name, feature, columns[name]) for name, feature in schema.items()]
    counts = [len(values) for values in accepted]
    count = min(counts)
    if counts.count(count) == len(counts):
        return accepted, count
    lengths = dict(zip(schema, counts, strict=True))
    extra = {name for name, length in lengths.items() if length != count}
    if extra and not (
        finals and extra == set(schema.final_names) and all(lengths[name] == count + 1 for name in extra)
    ):
        found = ", ".join(f"{name!r} {length}" for name, length in lengths.items())
        finals_here = ", ".join(schema.final_names) or "none here"
        allowed = f" Only features with final=True ({finals_here}) may have one more, all of them."
        raise StepError(f"columns of different lengths: {found}.{allowed if finals else ''}")
    return accepted, count


def accept_final(schema: Schema, final: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accepted values of a final row; StepError when it has other features than those with ``final``."""
    names = schema.final_names
    if final.keys() == set(names):
        return {name: acceptor(name, schema[name])(value) for name, value in final.items()}
    missing = ", ".join(repr(name) for name in names if name not in final)
    unknown = ", ".join(repr(name) for name in final if name not in names)
    parts = [f"final lacks {missing}"] * bool(missing) + [f"final has {unknown}"] * bool(unknown)
    needed = f"It needs all features with final=True: {', '.join(map(repr, names))}." if names else ""
    declared = " Declare others with final=True." if unknown else ""
    raise StepError(f"{' and '.join(parts)}. {needed}{declared}")


def check_mapping(given: Any) -> None:
    """Raise StepError for what is no mapping of names to values."""
    if not isinstance(given, Mapping):
        raise StepError(f"got a {type(given).__name__}. Give a mapping of feature names to values, or keywords.")


def is_column(values: Any) -> bool:
    """Whether something may be a column: it has a length, and values by number."""
    # an array of no dimensions has a __len__ that raises
    if has_rows(values):
        return True
    return hasattr(values, "__len__") and hasattr(values, "__getitem__") and getattr(values, "ndim", 1) > 0


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise StepError(f"feature {name!r}: got a {type(value).__name__}, the store has text. Give a str.")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise StepError(
                f"feature {name!r}: a text with a lone surrogate, U+{ord(value[error.start]):04X} at {error.start}, is "
                'not UTF-8. Mend it first, e.g. text.encode("utf-8", "replace").decode().'
            ) from error
    return value


def _bytes(name: str, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise StepError(f"feature {name!r}: got a {type(value).__name__}, the store has bytes. Give a bytes object.")
    return bytes(value)


def _shown(shape: tuple[int | None, ...], per_step: bool) -> str:
    text = "(" + ", ".join("?" if n is None else str(n) for n in shape) + ("," if len(shape) == 1 else "") + ")"
    return text if per_step else f"{text} (steps first)"


def encode_metadata(metadata: Mapping[str, Any]) -> bytes:
    """Return an episode's metadata as a line of JSON; StepError names values that JSON cannot hold."""
    if not metadata:
        return b"{}\n"
    try:
        return json.dumps(dict(metadata), default=_plain, ensure_ascii=False, allow_nan=True).encode("utf-8") + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise StepError(
            f"episode metadata {sorted(map(str, metadata))}: {error}. Allowed: what JSON and numpy numbers hold."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be stored")
