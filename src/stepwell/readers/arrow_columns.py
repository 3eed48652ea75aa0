"""Columns of Arrow tables by dotted names: those of a struct are columns of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stepwell.errors import FormatError, StepwellError

__all__ = ["is_picture", "leaf_column", "leaf_names", "naming", "outer_name", "plain_type"]

PICTURE = {"bytes", "path"}


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


def is_picture(kind: Any) -> bool:
    """Return whether an Arrow type is that of picture files: a struct of bytes and path."""
    import pyarrow as pa

    return pa.types.is_struct(kind) and {field.name for field in kind} == PICTURE


def leaf_names(name: str, kind: Any) -> list[str]:
    """Return the dotted names of a column's parts that are no structs; pictures count as one.

    Args:
        name: of the column.
        kind: its `pyarrow.DataType`.

    Example:
        >>> import pyarrow as pa
        >>> leaf_names("obs", pa.struct({"pos": pa.struct({"x": pa.int8()}), "t": pa.int8()}))
        ['obs.pos.x', 'obs.t']
    """
    import pyarrow as pa

    if not pa.types.is_struct(kind) or is_picture(kind):
        return [name]
    return [leaf for field in kind for leaf in leaf_names(f"{name}.{field.name}", field.type)]


def outer_name(name: str, names: Sequence[str], where: str) -> str:
    """Return the column that holds one of a dotted name: itself, or the struct that it is a part of.

    Raises:
        FormatError: there is none.
    """
    return _split(name, names, where)[0]


def leaf_column(table: Any, name: str, where: str) -> Any:
    """Return a column of a table as one array, of plain types.

    Args:
        table: `pyarrow.Table`.
        name: dotted; the names of columns and of parts of structs may have dots themselves.
        where: for messages.

    Raises:
        FormatError: there is none.
    """
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
    """Return an array without a type of somebody's own around it, and without a dictionary."""
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
