"""Arrow and Parquet files as one long table, of which runs of rows are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.decoded_sizes import WHAT_TO_SET, are_too_many_rows
from stepwell.errors import FormatError, MissingDependencyError
from stepwell.readers.arrow_columns import leaf_column, naming, outer_name

__all__ = ["ArrowFiles"]

SUFFIXES = (".arrow", ".parquet")
# of a stream of Arrow
END = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowFiles:
    """Files with the same columns, one after the other.

    Args:
        paths: of Parquet files, or of Arrow files (streams, as `datasets` writes them, or with a footer).

    Raises:
        FormatError: a damaged file, or columns that differ.
        MissingDependencyError: pyarrow is not installed.

    Notes:
        One thread. Pickled without what is held. Of Parquet files the row groups of the last read are kept; Arrow files
        are mapped, and rows are views of the map.
    """

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
        """Return rows as a `pyarrow.Table`.

        Raises:
            FormatError: a file is damaged.
        """
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
        """Return the first rows of some batches or row groups from all over the files, as a `pyarrow.Table`.

        Args:
            count: of them, the first among them.
            most: rows of each.
        """
        numbers = np.unique(np.linspace(0, len(self._numbers) - 1, count).astype(np.int64))
        return self._joined(
            [
                self.read(int(start), int(min(start + most, stop)))
                for start, stop in zip(self._starts[numbers], self._starts[numbers + 1], strict=True)
                if stop > start
            ]
        )

    def column(self, name: str) -> Any:
        """Return one column of all rows, dotted where it is a part of a struct, as a `pyarrow.ChunkedArray`.

        Raises:
            FormatError: a file is damaged, or has no such column.
        """
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
