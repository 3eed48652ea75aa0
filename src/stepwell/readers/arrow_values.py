"""Columns of Arrow tables as values of features."""

from __future__ import annotations

from typing import Any

import numpy as np

from stepwell.errors import FormatError
from stepwell.schema import Array, Bytes, Feature, Text
from stepwell.store.encoded_rows import EncodedRows

__all__ = ["feature_of_type", "values_of"]


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
