"""Values of a step that a writer accepts, and the errors for those that it does not.

Beside arrays and lists, a writer accepts rows that are encoded already.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, SequentialCodec, codec_class, make_codec
from stepwell.errors import DecodeError, EncodeError, FormatError, SchemaError, StepError
from stepwell.references.file_codec import FileCodec, parse_references
from stepwell.references.file_spans import rows_of
from stepwell.schema import Feature, Image, Schema
from stepwell.sizes import counted

__all__ = [
    "EncodedRows",
    "HasRows",
    "accept_column",
    "accept_columns",
    "accept_encoded",
    "accept_final",
    "acceptor",
    "check_first_row",
    "check_mapping",
    "encode_metadata",
    "encoded_of",
    "given_twice_error",
    "has_rows",
    "is_column",
    "missing_features_error",
    "row_of",
]

Buffer = bytes | memoryview
Int64s = npt.NDArray[np.int64]
OWN_PACKAGE = "stepwell.codecs."
PYTHON_VALUES = (bool, int, float, complex, list, tuple)


@runtime_checkable
class HasRows(Protocol):
    """A source of the encoded rows of an episode: `EncodedRows`, a video file."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""

    def rows(self, feature: Feature) -> Iterable[bytes]:
        """Return the rows as the feature's codec has them, first to last."""


def has_rows(values: Any) -> TypeGuard[HasRows]:
    """Return whether values are `HasRows`, for every column: ``isinstance`` of a protocol takes 10 us."""
    return not isinstance(values, np.ndarray | list) and hasattr(values, "num_rows") and hasattr(values, "rows")


class EncodedRows(Sequence[bytes]):
    r"""A column of rows that are encoded already, to be stored without being decoded.

    Args:
        blobs: a bytes object for each row, as the feature's codec makes them: for "jpeg" a JPEG file, for "png" a PNG
            file. Of a sequential codec (video, delta) the first one must begin a run.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/a.well", {"note": stepwell.Text()})
        >>> with store.writer() as writer:
        ...     episode = writer.add_episode({"note": stepwell.EncodedRows([b"left", b"right"])})
        >>> store[0]["note"]
        ['left', 'right']

    Notes:
        An immutable value. Writers decode the first row, to see that it is one of the feature, and take the others on
        trust: ``verify(deep=True)`` looks at all of them.
    """

    __slots__ = ("_blobs",)

    def __init__(self, blobs: Iterable[bytes]) -> None:
        self._blobs: tuple[Buffer, ...] = tuple(blobs)
        for row, blob in enumerate(self._blobs):
            if not isinstance(blob, bytes):
                raise StepError(f"row {row} is a {type(blob).__name__}. Give bytes, an encoded row each.")

    @classmethod
    def in_memory(cls, data: npt.NDArray[np.uint8], offsets: Int64s, sizes: Int64s) -> EncodedRows:
        """Return rows that lie in memory, which is not copied and must not change as long as they are used.

        Args:
            data: uint8 [n], contiguous.
            offsets: int64 [rows], first byte of each in the data.
            sizes: int64 [rows], its bytes.

        Raises:
            StepError: a row that does not lie within the data.

        Example:
            >>> data = np.frombuffer(b"-left-right", np.uint8)
            >>> list(EncodedRows.in_memory(data, np.array([1, 6]), np.array([4, 5])))
            [b'left', b'right']
        """
        ends = offsets + sizes
        if len(ends) and (offsets.min() < 0 or sizes.min() < 0 or ends.max() > len(data)):
            raise StepError(f"rows from byte {offsets.min()} to {ends.max()} of {len(data)}. Give what lies within.")
        view = data.data
        return cls._of(tuple(view[start:end] for start, end in zip(offsets.tolist(), ends.tolist(), strict=True)))

    @classmethod
    def _of(cls, blobs: tuple[Buffer, ...]) -> EncodedRows:
        made = cls(())
        made._blobs = blobs
        return made

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self._blobs)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(map(len, self._blobs))

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The rows, those that lie in other memory as views of it."""
        return self._blobs

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Return the rows, whatever the feature."""
        return iter(self)

    def encoded(self, feature: Feature) -> EncodedRows:
        """Return itself, whatever the feature; see `encoded_of`."""
        return self

    def __len__(self) -> int:
        return len(self._blobs)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[Any]) -> EncodedRows: ...
    def __getitem__(self, index: int | slice | Sequence[int] | npt.NDArray[Any]) -> bytes | EncodedRows:
        if isinstance(index, int | np.integer):
            return bytes(self._blobs[index])
        chosen = rows_of(index)
        if isinstance(chosen, slice):
            return self._of(self._blobs[chosen])
        return self._of(tuple(self._blobs[row] for row in np.arange(len(self))[chosen].tolist()))

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self._blobs)

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedRows, (tuple(self),)

    def __repr__(self) -> str:
        return f"<EncodedRows {counted(len(self), 'row')}, {counted(self.nbytes, 'byte')}>"


def encoded_of(given: HasRows, feature: Feature) -> EncodedRows | None:
    """Return the rows where they lie in memory as the feature has them, if ``given.encoded(feature)`` says so."""
    encoded = getattr(given, "encoded", None)
    return None if encoded is None else encoded(feature)


def accept_encoded(name: str, feature: Feature, given: HasRows) -> EncodedRows:
    """Return encoded rows of a feature once the first is found to be one."""
    if feature.is_raw:
        own = getattr(given, "feature", None)
        one = (
            "one of their codec"
            if own is None
            else f"{own!r} (stepwell.convert() makes another codec of it afterwards)"
        )
        raise StepError(
            f"feature {name!r}: got encoded rows ({given!r}), the store has {feature!r}, which is not encoded. "
            f"Give an array, or make the feature {one}."
        )
    try:
        found = encoded_of(given, feature)
        if found is None:
            found = EncodedRows(given.rows(feature))
    except (StepError, SchemaError) as error:
        raise StepError(f"feature {name!r}: {error}") from error
    if len(found) != given.num_rows:
        raise StepError(f"feature {name!r}: {given!r} has num_rows = {given.num_rows} and gave {len(found)} rows.")
    if len(found):
        try:
            _check_first(name, feature, found[0])
        except StepError as error:
            # rows of another system's files say which
            where = getattr(given, "where", None)
            if where is None:
                raise
            raise FormatError(f"{where}: {error}") from error
    return found


def row_of(column: Any, number: int) -> Any:
    """Return one value of an accepted column; of `EncodedRows` those of that one row."""
    return column[number : number + 1] if isinstance(column, EncodedRows) else column[number]


def _check_first(name: str, feature: Feature, blob: bytes) -> None:
    row = np.frombuffer(blob, np.uint8)
    try:
        if issubclass(codec_class(feature), FileCodec):
            parse_references([row])  # the file is looked at when the row is read
            return
        codec = make_codec(feature)
        if isinstance(codec, SequentialCodec) and not codec.is_sync(row):
            raise DecodeError("it needs rows before it; the first of an episode begins a run.")
        codec.check(row)
    except DecodeError as error:
        raise StepError(f"feature {name!r}: the first of the encoded rows is no row of {feature}: {error}") from error


def check_first_row(name: str, codec: Codec, value: Any) -> None:
    """Encode and decode a value by a codec that is not stepwell's own: a mistake shows before it is stored."""
    if type(codec).__module__.startswith(OWN_PACKAGE):
        return
    feature, where = codec.feature, f"codec {codec.feature.codec!r} of feature {name!r}"
    blob: Any = codec.encode(value)
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise EncodeError(f"{where}: encode returned a {type(blob).__name__}. It must return bytes.")
    row = codec.decode(np.frombuffer(blob, np.uint8))
    if feature.kind in ("text", "bytes"):
        wanted, found = str(feature.kind), type(row).__name__
        is_right = isinstance(row, str if feature.kind == "text" else bytes)
    else:
        wanted, found = _shown(np.asarray(value)), _shown(row)
        is_right = wanted == found
    if not is_right:
        raise EncodeError(f"{where}: decode returned {found}, where {wanted} was encoded. Let it return that.")


def _shown(row: Any) -> str:
    is_array = isinstance(row, np.ndarray | np.generic)
    return f"{row.dtype} {row.shape}" if is_array else f"a {type(row).__name__}"


def acceptor(name: str, feature: Feature) -> Callable[[Any], Any]:
    """Return the function that turns one value into what the column stores, or raises StepError."""
    # Numpy arrays (and what offers itself as one, such as a CPU tensor) must have the feature's dtype and shape. Python
    # numbers and lists are converted when the dtype holds them: ints into ints of enough bits and into floats, floats
    # into floats.
    if feature.kind == "text":
        return lambda value: _text(name, value)
    if feature.kind == "bytes":
        return lambda value: _bytes(name, value)
    dtype, shape = feature.np_dtype, feature.shape
    if shape == ():
        return _scalar_acceptor(name, dtype)
    if feature.is_image_of_any_size:
        return lambda value: _image(name, value, dtype, shape)
    if feature.kind == "image" and feature.rate is None:
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
    sampled = {*schema.rated, *schema.rated.values()}
    missing = [name for name in schema if name not in step and name not in sampled]
    unknown = [name for name in step if name not in schema]
    rated = [name for name in step if name in sampled]
    parts = []
    if rated and not missing and not unknown:
        return StepError(
            f"feature {', '.join(map(repr, rated))} has a rate of its own. Give its samples by append_at(feature, "
            "value, time), before the step that follows them; whole episodes as Samples(values, times)."
        )
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
            f"feature {name!r}: got shape {_shape_text(array.shape, per_step)}, "
            f"the store has {_shape_text(shape, per_step)}."
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
    sampled = {*schema.rated, *schema.rated.values()}
    accepted = [accept_column(name, feature, columns[name]) for name, feature in schema.items()]
    counts = [len(values) for values in accepted]
    count = min(counts)
    if counts.count(count) == len(counts):
        return accepted, count
    lengths = dict(zip(schema, counts, strict=True))
    extra = {name for name, length in lengths.items() if length != count}
    # the final row may hold samples, too
    named = extra - sampled
    if extra and not (
        finals and named in (set(), set(schema.final_names)) and all(lengths[name] == count + 1 for name in extra)
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
        return {name: _accept_final_value(name, schema[name], value) for name, value in final.items()}
    missing = ", ".join(repr(name) for name in names if name not in final)
    unknown = ", ".join(repr(name) for name in final if name not in names)
    parts = [f"final lacks {missing}"] * bool(missing) + [f"final has {unknown}"] * bool(unknown)
    needed = f"It needs all features with final=True: {', '.join(map(repr, names))}." if names else ""
    declared = " Declare others with final=True." if unknown else ""
    raise StepError(f"{' and '.join(parts)}. {needed}{declared}")


def _accept_final_value(name: str, feature: Feature, value: Any) -> Any:
    if not has_rows(value):
        return acceptor(name, feature)(value)
    rows = accept_encoded(name, feature, value)
    if len(rows) != 1:
        raise StepError(f"feature {name!r}: {len(rows)} encoded rows as a final row. Give one.")
    return rows


def given_twice_error(features: Mapping[str, Any]) -> StepError:
    """Return the error for a call with a mapping of values and with keywords, which are none of its options."""
    names = ", ".join(map(repr, features))
    return StepError(f"a mapping of values, and {names} beside it. Give all features in one way, and options by name.")


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


def _shape_text(shape: tuple[int | None, ...], per_step: bool) -> str:
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
