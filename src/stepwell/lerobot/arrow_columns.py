"""Columns of Arrow as numpy has them: the values of nested lists of even lengths are one array, without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.store.bulk_writing import Blobs

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["array_of", "text_of"]


def array_of(column: pa.ChunkedArray, dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> npt.NDArray[Any]:
    """Return a column of numbers.

    Args:
        column: plain numbers or bools; lists of fixed or varying type, nested; or an extension or dictionary of these.
        dtype: wanted; the column's may be another one of the same kind (float64 for float32).
        shape: of a row, () for a scalar, which may also be a list of one.
        where: what messages call it.

    Returns:
        [rows, *shape] of ``dtype``; a view of the column's memory, read-only, where nothing has to be converted.

    Raises:
        FormatError: missing values, lists of other lengths, or another type.
    """
    array, sizes = _one_array(column), []
    while True:
        _check_is_whole(array, where)
        array, size = _flattened(array, where)
        if size is None:
            break
        sizes.append(size)
    if tuple(sizes) not in ({shape, (1,)} if shape == () else {shape}) and len(column):
        raise FormatError(f"{where} has rows of shape {tuple(sizes)}. {_features_say(dtype, shape)}")
    try:
        values = array.to_numpy(zero_copy_only=False)
    except (NotImplementedError, ValueError) as error:
        raise FormatError(f"{where} is of type {column.type}. {_features_say(dtype, shape)}") from error
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise FormatError(f"{where} is of type {column.type}. {_features_say(dtype, shape)}")
    return np.asarray(values, dtype).reshape(len(column), *shape)


def text_of(column: pa.ChunkedArray, where: str) -> Blobs:
    """Return a column of strings, as UTF-8.

    Raises:
        FormatError: missing values, or not strings.
    """
    import pyarrow as pa

    array = _one_array(column)
    _check_is_whole(array, where)
    kind = array.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise FormatError(f'{where} is of type {column.type}. meta/info.json says "string".')
    array = array.cast(pa.large_string())
    _, offsets, data = array.buffers()
    edges = (
        np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1] if len(array) else np.zeros(1)
    )
    edges = edges.astype(np.int64)
    whole = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    return Blobs(whole[edges[0] : edges[-1]], np.diff(edges))


def _one_array(column: pa.ChunkedArray) -> Any:
    """Return a column as one array of its plain type."""
    import pyarrow as pa

    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        raise FormatError(f"a column of {column.nbytes} bytes is too large for one array.")
    while isinstance(array.type, pa.BaseExtensionType) or pa.types.is_dictionary(array.type):
        array = array.storage if isinstance(array.type, pa.BaseExtensionType) else array.dictionary_decode()
    return array


def _flattened(array: Any, where: str) -> tuple[Any, int | None]:
    """Return the values of lists and the length that all of them have; of anything else itself and None."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        return array.flatten(), int(kind.list_size)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return array, None
    lengths = np.diff(np.asarray(array.offsets))
    size = int(lengths[0]) if len(lengths) else 0
    if (lengths != size).any():
        row = int(np.argmax(lengths != size))
        raise FormatError(f"{where} has a list of {lengths[row]} values where others have {size}.")
    return array.flatten(), size


def _check_is_whole(array: Any, where: str) -> None:
    if array.null_count:
        raise FormatError(f"{where}: {array.null_count} of {len(array)} values are missing (null).")


def _features_say(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"meta/info.json says {dtype.name} of shape {shape or (1,)}."
