"""Columns of Arrow tables as values of features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, FormatError
from stepwell.formats.arrays import numpy_dtype
from stepwell.formats.images import IMAGE_CODECS, check_image, image_feature, image_head
from stepwell.readers.arrow_columns import is_picture, plain_type
from stepwell.schema import Array, Bytes, Feature, Text
from stepwell.store.values import EncodedRows

__all__ = ["column_feature", "feature_of_type", "values_of"]


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

    inner, shape, is_ragged = plain_type(kind), list[int | None](), False
    if pa.types.is_string(inner) or pa.types.is_large_string(inner):
        return Text()
    if pa.types.is_binary(inner) or pa.types.is_large_binary(inner):
        return Bytes()
    if _is_list(inner) and not pa.types.is_fixed_size_list(inner):
        inner, shape, is_ragged = inner.value_type, [None], True
    while pa.types.is_fixed_size_list(inner):
        shape.append(inner.list_size)
        inner = inner.value_type
    dtype = numpy_dtype(inner)
    if dtype is None:
        what = "text, bytes and lists of numbers"
        raise FormatError(f"{where} is of Arrow's type {kind}. Read are numbers, bool, times, {what}.")
    return Array((None, *shape[1:]) if is_ragged else tuple(shape), dtype)


def column_feature(array: Any, where: str, *, is_varying: bool = False, channels: int | None = None) -> Feature:
    """Return the feature that holds the rows of a column, by its type and by some rows.

    Args:
        array: `pyarrow.Array` of some rows: lists that all have one length are arrays; of pictures the files say of
            which codec they are, and of which size.
        where: for messages.
        is_varying: whether lengths and sizes differ from row to row, though they do not in these.
        channels: that pictures are to have; default: as many as one of these has.

    Raises:
        FormatError: no feature holds them.
    """
    if is_picture(array.type):
        return _image_feature(_picture_files(array, where), where, is_varying, channels)
    return feature_of_type(array.type if is_varying else _even_type(array), where)


def values_of(column: Any, feature: Feature, where: str, *, is_converted: bool = False) -> Any:
    """Return the rows of a column as a feature's values.

    Args:
        column: `pyarrow.Array`.
        feature: what a row is; of codec "jpeg", "png" or "image-file" the rows are such files.
        where: for messages.
        is_converted: whether somebody asked for the channels that pictures have, see `check_image`.

    Returns:
        [n, *shape]; a list where the feature is ragged; `EncodedRows` of pictures.

    Raises:
        FormatError: a row is missing, or is no value of the feature.
    """
    if feature.codec in IMAGE_CODECS:
        return _pictures(column, feature, where, is_converted)
    _check_whole(column, where)
    if feature.kind in ("text", "bytes"):
        return column.to_pylist()
    if not feature.is_ragged:
        return _numbers(column, feature.fixed_shape, feature, where)
    sizes = _lengths(column)
    rows = _numbers(column.flatten(), tuple(int(size or 0) for size in feature.shape[1:]), feature, where)
    return np.split(rows, np.cumsum(sizes)[:-1])


def _numbers(column: Any, shape: tuple[int, ...], feature: Feature, where: str) -> npt.NDArray[Any]:
    """Return lists within lists as an array: all lists of a level must be as long as the feature says."""
    import pyarrow as pa

    count, levels = len(column), list[int]()
    _check_whole(column, where)
    while _is_list(column.type):
        is_fixed = pa.types.is_fixed_size_list(column.type)
        sizes = {column.type.list_size} if is_fixed else set(np.unique(_lengths(column)).tolist())
        if len(sizes) > 1:
            raise FormatError(f"{where} has lists of {min(sizes)} to {max(sizes)} values, the feature is {feature}.")
        levels += sizes
        column = column.flatten()
        _check_whole(column, where)
    values = column.to_numpy(zero_copy_only=False)
    # Minari writes arrays of several dimensions as flat lists
    is_flat = levels == [int(np.prod(shape, dtype=np.int64))]
    if count and tuple(levels) != shape and not is_flat:
        raise FormatError(f"{where} has rows of {tuple(levels)} values, the feature is {feature}.")
    if values.dtype != feature.np_dtype and not np.can_cast(values.dtype, feature.np_dtype, "safe"):
        raise FormatError(f"{where} holds {values.dtype}, the feature is {feature}.")
    found: npt.NDArray[Any] = values.astype(feature.np_dtype, copy=False).reshape(count, *shape)
    return found


def _pictures(column: Any, feature: Feature, where: str, is_converted: bool) -> EncodedRows:
    """Return the files of pictures, each of which must be as the feature says by its header."""
    files = _picture_files(column, where)
    for number, blob in enumerate(_blobs(files)):
        try:
            check_image(blob, feature, is_converted=is_converted)
        except DecodeError as error:
            raise FormatError(f"{where}, row {number}: {error}") from error
    return EncodedRows(map(bytes, files.to_pylist()))


def _image_feature(files: Any, where: str, is_varying: bool, channels: int | None) -> Feature:
    try:
        return image_feature(map(image_head, _blobs(files)), where, is_varying=is_varying, channels=channels)
    except DecodeError as error:
        raise FormatError(f"{where}: all pictures must be JPEG, PNG or WebP: {error}") from error


def _picture_files(array: Any, where: str) -> Any:
    found = array.field("bytes") if is_picture(array.type) else array
    if found.null_count or array.null_count:
        raise FormatError(f"{where}: pictures lie in files of their own, or are missing. Embed them: to_parquet does.")
    return found


def _blobs(files: Any) -> Iterator[npt.NDArray[np.uint8]]:
    return (np.frombuffer(scalar.as_buffer(), np.uint8) for scalar in files)


def _even_type(array: Any) -> Any:
    """Return an array's type, of lists that all have the same length as lists of that size."""
    import pyarrow as pa

    kind = array.type
    if not _is_list(kind):
        return kind
    sizes = [kind.list_size] if pa.types.is_fixed_size_list(kind) else np.unique(_lengths(array)).tolist()
    is_even = len(sizes) == 1 and sizes[0] > 0
    return pa.list_(_even_type(array.flatten()), int(sizes[0]) if is_even else -1)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _lengths(array: Any) -> npt.NDArray[np.int64]:
    """Return the lengths of the lists of an array, 0 where one is missing."""
    import pyarrow.compute

    return np.asarray(pyarrow.compute.list_value_length(array).fill_null(0)).astype(np.int64)


def _check_whole(array: Any, where: str) -> None:
    if array.null_count:
        raise FormatError(f"{where} has {array.null_count} rows or values that are missing. Every step needs one.")
