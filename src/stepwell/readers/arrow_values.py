"""Columns of Arrow tables as values of features."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from stepwell.codecs import make_codec
from stepwell.codecs.parquet_images import picture_format
from stepwell.errors import FormatError, StepwellError
from stepwell.schema import Array, Bytes, Feature, Image, Text
from stepwell.store.encoded_rows import EncodedRows

__all__ = ["column_feature", "feature_of_type", "naming", "picture_bytes", "values_of"]


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Make errors of pyarrow say what was read.

    Args:
        where: the file, and what of it.

    Raises:
        FormatError: whatever pyarrow raises.
    """
    try:
        yield
    except (StepwellError, ImportError):
        raise
    except Exception as error:  # pyarrow's own are of many kinds
        raise FormatError(f"{where}: {type(error).__name__}: {error}") from error


def feature_of_type(kind: Any, where: str) -> Feature:
    """Return the feature that holds a value of an Arrow type.

    Args:
        kind: `pyarrow.DataType`; lists of fixed size are arrays, others ragged ones.
        where: for messages.

    Raises:
        FormatError: no feature holds it.

    Example:
        >>> import pyarrow as pa
        >>> print(feature_of_type(pa.list_(pa.float32(), 3), "a"), feature_of_type(pa.list_(pa.int64()), "a"))
        raw 3 float32 raw ? int64
    """
    import pyarrow as pa

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Text()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Bytes()
    shape: list[int | None] = []
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind = kind.value_type
    is_ragged = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if is_ragged and not shape:
        inner = feature_of_type(kind.value_type, where)
        if inner.kind == "array" and not inner.is_ragged:
            return Array((None, *inner.fixed_shape), inner.np_dtype)
    if not is_ragged:
        try:
            return Array(tuple(shape), np.dtype(kind.to_pandas_dtype()))
        except (NotImplementedError, TypeError):
            pass  # told below
    raise FormatError(f"{where} is of Arrow's type {kind}. Read are numbers, bool, text, bytes and lists of numbers.")


def column_feature(column: Any, where: str) -> Feature:
    """Return the feature that holds the rows of a column, by its type and by its first rows.

    Args:
        column: `pyarrow.ChunkedArray` of the first rows: lists that all have one length are arrays; of pictures the
            files say of which codec they are, and of which size.
        where: for messages.

    Raises:
        FormatError: no feature holds them.
    """
    array = _whole(column)
    if _is_picture(array.type):
        return _picture_feature(picture_bytes(array, where), where)
    return feature_of_type(_plain_type(array), where)


def picture_bytes(array: Any, where: str) -> Any:
    """Return the files of pictures, of structs {bytes, path} or of plain binary.

    Raises:
        FormatError: a picture that is not in the table, but in a file of its own.
    """
    found = array.field("bytes") if _is_picture(array.type) else array
    if found.null_count or array.null_count:
        raise FormatError(f"{where}: pictures lie in files of their own, or are missing. Embed them: to_parquet does.")
    return found


def _is_picture(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_struct(kind) and {field.name for field in kind} == {"bytes", "path"}


def _picture_feature(files: Any, where: str) -> Feature:
    blobs = [np.frombuffer(scalar.as_buffer(), np.uint8) for scalar in files]
    codec = picture_format(blobs[0][:8].tobytes())
    if codec is None:
        raise FormatError(f"{where}: the first picture is neither PNG nor JPEG. Leave the column out: ignore=.")
    reader = make_codec(Image((None, None, 3), codec=codec))
    sizes = {reader.image_size(blob) for blob in blobs}
    height, width = (sizes.pop() or (None, None)) if len(sizes) == 1 else (None, None)
    return Image((height, width, 3), codec=codec)


def _plain_type(array: Any) -> Any:
    """Return an array's type, of lists that all have the same length as lists of that size."""
    import pyarrow as pa

    kind = array.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return kind
    lengths = np.unique(np.diff(np.asarray(array.offsets)))
    if len(lengths) != 1 or not lengths[0]:
        return kind
    return pa.list_(_plain_type(array.flatten()), int(lengths[0]))


def _whole(column: Any) -> Any:
    array = column.combine_chunks()
    return array.chunk(0) if hasattr(array, "chunks") and array.num_chunks else array


def values_of(column: Any, feature: Feature, where: str) -> Any:
    """Return the rows of a column as a feature's values.

    Args:
        column: `pyarrow.Array`.
        feature: what a row is; of codec "jpeg" or "png" the rows are such files.
        where: for messages.

    Returns:
        [n, *shape]; a list where the feature is ragged; `EncodedRows` of pictures.

    Raises:
        FormatError: a row is missing, or is no value of the feature.
    """
    import pyarrow as pa

    if column.null_count:
        raise FormatError(f"{where} has {column.null_count} rows without a value. Every step needs one.")
    if feature.codec in ("jpeg", "png"):
        return EncodedRows(bytes(blob) for blob in column.to_pylist())
    if feature.kind in ("text", "bytes"):
        return column.to_pylist()
    if feature.is_ragged:
        return [np.asarray(row, feature.np_dtype).reshape(-1, *feature.shape[1:]) for row in column.to_pylist()]
    count = len(column)
    while pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type):
        column = column.flatten()
    values = column.to_numpy(zero_copy_only=False)
    if column.null_count or values.size != count * int(np.prod(feature.fixed_shape, dtype=np.int64)):
        raise FormatError(f"{where} has {values.size} values in {count} rows, the feature is {feature}.")
    if values.dtype != feature.np_dtype and not np.can_cast(values.dtype, feature.np_dtype, "same_kind"):
        raise FormatError(f"{where} holds {values.dtype}, the feature is {feature}.")
    return values.astype(feature.np_dtype, copy=False).reshape(count, *feature.fixed_shape)
