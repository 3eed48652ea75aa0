"""Arrow and Parquet files as one long table, of which runs of rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.decoded_sizes import WHAT_TO_SET, are_too_many_rows
from stepwell.errors import DecodeError, FormatError, MissingDependencyError, StepwellError
from stepwell.formats.arrays import numpy_dtype
from stepwell.formats.images import IMAGE_CODECS, check_image, image_feature, image_head
from stepwell.schema import Array, Bytes, Feature, Text
from stepwell.store.values import EncodedRows

__all__ = [
    "ArrowFiles",
    "column_feature",
    "feature_of_type",
    "is_image",
    "leaf_column",
    "leaf_names",
    "naming",
    "values_of",
]

SUFFIXES = (".arrow", ".parquet")
# of a stream of Arrow
END = b"\xff\xff\xff\xff\0\0\0\0"
PICTURE = {"bytes", "path"}


class ArrowFiles:
    """Files with the same columns, one after the other."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        sizes: list[list[int]] = []
        self._held: tuple[int, Any] | None = None
        self._mapped: tuple[str, Callable[[int], Any]] | None = None
        self.schema: Any = None
        for path in self.paths:
            with naming(path):
                schema, lengths = _look(path)
                if self.schema is not None and not schema.equals(self.schema):
                    raise FormatError(
                        f"{path} has other columns than {self.paths[0]}: {schema.names}, {self.schema.names}."
                    )
            self.schema = schema
            sizes.append(lengths)
        # every batch or row group, and in which file it is
        self._files = np.repeat(np.arange(len(sizes)), [len(each) for each in sizes])
        self._numbers = np.concatenate([np.arange(len(each)) for each in sizes]).astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum([size for each in sizes for size in each])]).astype(np.int64)
        self.file_starts: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum([sum(each) for each in sizes])])

    @property
    def num_rows(self) -> int:
        """Rows of all files."""
        return int(self._starts[-1])

    def read(self, start: int, stop: int) -> Any:
        """Return rows as a `pyarrow.Table`."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        parts = []
        while start < stop:
            table = self._part(first)
            begin = int(self._starts[first])
            parts.append(table.slice(start - begin, min(stop, begin + len(table)) - start))
            start = begin + len(table)
            first += 1
        found = parts[0] if len(parts) == 1 else self._joined(parts)
        with naming(self.paths[0]):
            # offsets of a damaged file may lead anywhere
            found.validate(full=True)
        return found

    def heads(self, count: int, most: int) -> Any:
        """Return the first rows of some batches or row groups from all over the files, as a `pyarrow.Table`."""
        numbers = np.unique(np.linspace(0, len(self._numbers) - 1, count).astype(np.int64))
        return self._joined(
            [
                self.read(int(start), int(min(start + most, stop)))
                for start, stop in zip(self._starts[numbers], self._starts[numbers + 1], strict=True)
                if stop > start
            ]
        )

    def column(self, name: str) -> Any:
        """Return one column of all rows, dotted where it is a part of a struct, as a `pyarrow.ChunkedArray`."""
        import pyarrow as pa

        chunks = []
        for path in self.paths:
            with naming(path):
                for table in self._tables_with(path, name):
                    # offsets of a damaged file may lead anywhere
                    table.validate(full=True)
                    chunks.append(leaf_column(table, name, path))
        return pa.chunked_array(chunks)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_mapped": None}

    def _part(self, number: int) -> Any:
        if self._held is None or self._held[0] != number:
            path = self.paths[int(self._files[number])]
            with naming(path):
                table = self._read_part(path, int(self._numbers[number]))
            expected = int(self._starts[number + 1] - self._starts[number])
            if len(table) != expected:
                raise FormatError(f"{path} has changed since it was opened: {len(table)} rows, not {expected}.")
            self._held = number, table
        return self._held[1]

    def _tables_with(self, path: str, name: str) -> Iterator[Any]:
        """Yield tables of a file's rows, with as little as there is beside a column."""
        import pyarrow as pa
        import pyarrow.parquet

        if path.endswith(".parquet"):
            with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
                yield file.read(columns=[name], use_threads=False)
            return
        schema, count, batch = _batches(path)
        outer = outer_name(name, schema.names, path)
        for number in range(count):
            yield pa.Table.from_batches([batch(number)]).select([outer])

    def _read_part(self, path: str, number: int) -> Any:
        import pyarrow as pa
        import pyarrow.parquet

        if path.endswith(".parquet"):
            with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
                return file.read_row_group(number, use_threads=False)
        if self._mapped is None or self._mapped[0] != path:
            self._mapped = path, _batches(path)[2]
        return pa.Table.from_batches([self._mapped[1](number)])

    def _joined(self, parts: list[Any]) -> Any:
        import pyarrow as pa

        with naming(self.paths[0]):
            return pa.concat_tables(parts)


def _look(path: str) -> tuple[Any, list[int]]:
    """Return the columns of a file, and the rows of each of its batches or row groups."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingDependencyError.of("pyarrow", "arrow") from error
    if path.endswith(".parquet"):
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            num_rows, num_bytes = file.metadata.num_rows, Path(path).stat().st_size
            if are_too_many_rows(num_rows, num_bytes):
                raise FormatError(f"{path} claims {num_rows:,} rows in {num_bytes:,} bytes. {WHAT_TO_SET}")
            lengths = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
            return file.schema_arrow, lengths
    schema, count, batch = _batches(path)
    return schema, [batch(number).num_rows for number in range(count)]


def _batches(path: str) -> tuple[Any, int, Callable[[int], Any]]:
    """Return the columns of an Arrow file, how many batches it has, and what returns one, a view of its map."""
    import pyarrow as pa

    source = pa.memory_map(path)
    try:
        reader = pa.ipc.open_file(source)
        return reader.schema, reader.num_record_batches, reader.get_batch
    except pa.ArrowInvalid:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        batches = list(stream)
        # streams are read until anything that looks like an end: of a file that was cut there are fewer rows
        whole = source.tell() == source.size()
        source.seek(max(0, source.size() - len(END)))
        if not whole or source.read(len(END)) != END:
            raise FormatError(
                f"{path} does not end where its stream of batches ends. Copy or write it again."
            ) from None
        return stream.schema, len(batches), batches.__getitem__


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Make errors of pyarrow say what was read."""
    try:
        yield
    except (StepwellError, ImportError):
        raise
    except Exception as error:  # pyarrow's own are of many kinds
        raise FormatError(f"{where}: {type(error).__name__}: {error}") from error


def is_image(kind: Any) -> bool:
    """Return whether an Arrow type is that of image files: a struct of bytes and path."""
    import pyarrow as pa

    return pa.types.is_struct(kind) and {field.name for field in kind} == PICTURE


def leaf_names(name: str, kind: Any) -> list[str]:
    """Return the dotted names of a column's parts that are no structs; images count as one."""
    import pyarrow as pa

    if not pa.types.is_struct(kind) or is_image(kind):
        return [name]
    return [leaf for field in kind for leaf in leaf_names(f"{name}.{field.name}", field.type)]


def outer_name(name: str, names: Sequence[str], where: str) -> str:
    """Return the column that holds one of a dotted name: itself, or the struct that it is a part of."""
    return _split(name, names, where)[0]


def leaf_column(table: Any, name: str, where: str) -> Any:
    """Return a column of a table as one array, of plain types."""
    import pyarrow as pa
    import pyarrow.compute

    first, rest = _split(name, table.column_names, where)
    chunks = table.column(first).combine_chunks()
    column = chunks.chunk(0) if isinstance(chunks, pa.ChunkedArray) and chunks.num_chunks else chunks
    while rest:
        names = [field.name for field in column.type] if pa.types.is_struct(column.type) else []
        part, rest = _split(rest, names, where)
        column = pyarrow.compute.struct_field(column, [names.index(part)])
    return _plain(column)


def plain_type(kind: Any) -> Any:
    """Return the type that a column of a type has once it is read; see `leaf_column`."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    return kind


def _plain(column: Any) -> Any:
    """Return an array without extension types around it, and without a dictionary."""
    import pyarrow as pa

    if isinstance(column.type, pa.BaseExtensionType):
        return _plain(column.storage)
    if pa.types.is_dictionary(column.type):
        return _plain(column.dictionary_decode())
    return column


def _split(name: str, names: Sequence[str], where: str) -> tuple[str, str]:
    """Return the longest of some names with which a dotted name begins, and the rest."""
    found = [each for each in names if name == each or name.startswith(f"{each}.")]
    if not found:
        raise FormatError(f"{where} has no column {name!r}. There are: {', '.join(names) or 'none'}.")
    part = max(found, key=len)
    return part, name[len(part) + 1 :]


def feature_of_type(kind: Any, where: str) -> Feature:
    """Return the feature that holds a value of an Arrow type."""
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
    """Return the feature that holds the rows of a column, by its type and by some rows."""
    if is_image(array.type):
        return _image_feature(_image_files(array, where), where, is_varying, channels)
    return feature_of_type(array.type if is_varying else _even_type(array), where)


def values_of(column: Any, feature: Feature, where: str, *, is_converted: bool = False) -> Any:
    """Return the rows of a column as a feature's values."""
    if feature.codec in IMAGE_CODECS:
        return _images(column, feature, where, is_converted)
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


def _images(column: Any, feature: Feature, where: str, is_converted: bool) -> EncodedRows:
    """Return image files, each of which must be as the feature says by its header."""
    files = _image_files(column, where)
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
        raise FormatError(f"{where}: all images must be JPEG, PNG or WebP: {error}") from error


def _image_files(array: Any, where: str) -> Any:
    found = array.field("bytes") if is_image(array.type) else array
    if found.null_count or array.null_count:
        raise FormatError(f"{where}: images lie in files of their own, or are missing. Embed them: to_parquet does.")
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
