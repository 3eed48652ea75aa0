"""A ``.beton`` file that is open: its fields, the rows of its samples, where their values lie and how large they are.

Only the allocation table says how many bytes lie at a ptr. A ptr may be there several times, when samples share a
region. FFCV gives an empty value the ptr of the region that comes next, so sizes of 0 count for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.fields import ArrayField, BetonField, SpanField, ValueField, field_of
from stepwell.beton.layout import ALLOCATION_DTYPE, DESCRIPTOR_BYTES, HEADER_BYTES, BetonLayout, Header, row_dtype
from stepwell.errors import DatasetNotFoundError, FormatError, SchemaError
from stepwell.files.addresses import plain_address
from stepwell.files.local_files import OpenFile, open_file, state_of
from stepwell.references.remote_files import local_path

__all__ = ["BetonFile", "RegionTable"]

SIZE = 2  # of a state
Int64s = npt.NDArray[np.int64]


class BetonFile:
    """A ``.beton`` file of version 2.

    Args:
        path: of the file, or its address: one on another machine is fetched whole.
        custom_fields: what reads fields that are not built in, by name; see `stepwell.beton.SpanField`.

    Raises:
        DatasetNotFoundError: no such file.
        FormatError: not such a file, or one that was cut off; the message names file and byte.

    Attributes:
        path: of the file.
        called: the path or address as messages show it.
        layout: where what lies.
        fields: what reads each field, by name, in the file's order.

    Example:
        >>> import tempfile
        >>> from stepwell.beton import write_beton
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> store = tiny_store(f"{folder}/a.well", lengths=[3, 5])
        >>> _ = write_beton(store, f"{folder}/a.beton", windows={"action": range(2)}, workers=1)
        >>> file = BetonFile(f"{folder}/a.beton")
        >>> len(file), list(file.fields)
        (8, ['action'])

    Notes:
        Opening reads header and fields; the allocation table is read on the first use of sizes, and 16 bytes a region
        are kept. Safe for any number of threads; of all files of a process a few are kept open.
    """

    def __init__(
        self, path: str | os.PathLike[str], custom_fields: Mapping[str, type[BetonField]] | None = None
    ) -> None:
        self.path = os.fspath(path)
        self.called = plain_address(self.path)
        self._local = local_path(self.path)
        try:
            self._state = state_of(self._local)
        except OSError as error:
            raise DatasetNotFoundError(f"no file at {self.called}: {error}.") from error
        header = Header.parse(self._opened().read(0, HEADER_BYTES), self.called)
        # a damaged number makes no read longer than the file
        head = self._opened().read(0, min(self.num_bytes, HEADER_BYTES + DESCRIPTOR_BYTES * header.num_fields))
        described = BetonLayout.parse_fields(head, header, self.called)
        self.fields: dict[str, BetonField] = {}
        for index, each in enumerate(described):
            try:
                self.fields[each.name] = field_of(each, custom_fields or {})
            except (FormatError, SchemaError) as error:
                place = HEADER_BYTES + DESCRIPTOR_BYTES * index
                raise FormatError(f"{self.called}: at byte {place}: {error}") from error
        types = {name: np.dtype(field.metadata_type) for name, field in self.fields.items()}
        self.layout = BetonLayout(header, described, row_dtype(described, types))
        self.layout.check_size(self.num_bytes, self.called)
        self._check_arrays()

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return self._state[SIZE]

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.layout.header.num_samples

    @cached_property
    def regions(self) -> RegionTable:
        """The sizes of regions; read on first use."""
        start = self.layout.header.table_ptr
        table = np.frombuffer(self.read(start, self.num_bytes - start), ALLOCATION_DTYPE)
        return RegionTable(table, self.layout, self.called)

    def rows(self, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Return what the file has of samples ``start`` to ``stop``: a structured array with the fields' names.

        Raises:
            FormatError: the file became shorter.
        """
        stop = len(self) if stop is None else stop
        size = self.layout.rows.itemsize
        data = self.read(self.layout.rows_start + start * size, (stop - start) * size)
        return np.frombuffer(data, self.layout.rows)

    def spans(self, name: str, rows: npt.NDArray[Any], start: int = 0) -> tuple[Int64s, Int64s]:
        """Return where the values of a `SpanField` lie: offset in the file and number of bytes, int64 [n] twice.

        Args:
            name: of the field.
            rows: of the samples, see `rows`.
            start: number of the first sample, for messages.

        Raises:
            FormatError: a place that is outside, or sizes that contradict each other.
        """
        field = self.fields[name]
        if not isinstance(field, SpanField):
            raise FormatError(f"{self.called}: the values of field {name!r} are no bytes of the file.")
        offsets, sizes = field.spans(rows[name], _Samples(self, name, start))
        return self._checked(name, np.asarray(offsets), np.broadcast_to(np.asarray(sizes), (len(rows),)), start)

    def values(self, name: str, rows: npt.NDArray[Any], start: int = 0) -> Any:
        """Return the values of a `ValueField`: an array [n, *shape], or a list.

        Args:
            name: of the field.
            rows: of the samples, see `rows`.
            start: number of the first sample, for messages.

        Raises:
            FormatError: another number of values than of samples.
        """
        field = self.fields[name]
        if not isinstance(field, ValueField):
            raise FormatError(f"{self.called}: the values of field {name!r} are bytes of the file. Ask for its spans.")
        found = field.values(rows[name], _Samples(self, name, start))
        if len(found) != len(rows):
            raise FormatError(
                f"{self.called}: field {name!r} has {len(found)} values for {len(rows)} samples. "
                f"{type(field).__name__}.values has to return one each."
            )
        return found

    def read(self, place: int, count: int) -> bytes:
        """Return bytes of the file.

        Raises:
            FormatError: it has none there.
        """
        if place < 0 or count < 0 or place + count > self.num_bytes:
            raise FormatError(f"{self.called}: no {count} bytes at byte {place}: it has {self.num_bytes}.")
        data = self._opened().read(place, count)
        if len(data) != count:
            raise FormatError(f"{self.called}: {len(data)} of {count} bytes at byte {place}: the file became shorter.")
        return data

    def where(self, name: str, sample: int) -> str:
        """Return what messages call a sample's field: with the byte where its row tells of it."""
        place = self.layout.rows_start + sample * self.layout.rows.itemsize + self.layout.rows.fields[name][1]  # type: ignore[index]
        return f"{self.called}: field {name!r} of sample {sample}, at byte {place},"

    def _opened(self) -> OpenFile:
        """Return the open file; a data set may have more of them than a process can keep open."""
        try:
            file = open_file(self._local, self._state)
        except OSError as error:
            raise DatasetNotFoundError(f"no file at {self.called} any more: {error}.") from error
        if file.state != self._state:
            raise FormatError(f"{self.called}: the file was changed or replaced. Open it again.")
        return file

    def _check_arrays(self) -> None:
        """Raise FormatError for an array that no page can hold."""
        page_size = self.layout.header.page_size
        for index, (name, field) in enumerate(self.fields.items()):
            if isinstance(field, ArrayField) and field.most_bytes > page_size:
                place = HEADER_BYTES + DESCRIPTOR_BYTES * index
                raise FormatError(
                    f"{self.called}: at byte {place}: field {name!r} is {field.feature}, {field.most_bytes} bytes, "
                    f"where pages have {page_size}."
                )

    def _checked(
        self, name: str, offsets: npt.NDArray[Any], sizes: npt.NDArray[Any], start: int
    ) -> tuple[Int64s, Int64s]:
        """Return offsets and sizes as int64; of empty values the offset is 0."""
        lo, hi = self.layout.rows_stop, self.layout.header.table_ptr
        if offsets.shape != sizes.shape or offsets.dtype.kind not in "iu" or sizes.dtype.kind not in "iu":
            raise FormatError(
                f"{self.called}: spans of field {name!r} are {offsets.dtype} {offsets.shape} and {sizes.dtype}. "
                f"Allowed: integers, one for each of {len(sizes)} samples."
            )
        is_wrong = (offsets < lo) | (offsets > hi) | (sizes > hi) | (sizes < 0)
        starts, lengths = (np.where(is_wrong, 0, part).astype(np.int64) for part in (offsets, sizes))
        is_wrong = (is_wrong | (starts + lengths > hi)) & (sizes != 0)
        if is_wrong.any():
            first = int(np.argmax(is_wrong))
            raise FormatError(
                f"{self.where(name, start + first)} has {sizes[first]} bytes at {offsets[first]}. Allowed: bytes "
                f"between the rows, which end at {lo}, and the allocation table, which begins at {hi}."
            )
        return np.where(sizes != 0, starts, 0), lengths

    def __repr__(self) -> str:
        return f"<BetonFile {self.called} {len(self)} samples of {', '.join(self.fields)}>"


class _Samples:
    """The file of a field's samples, see `SampleSource`."""

    def __init__(self, file: BetonFile, name: str, start: int) -> None:
        self._file, self._name, self._start = file, name, start
        self.read = file.read

    def sizes_at(self, ptrs: npt.NDArray[Any]) -> Int64s:
        """Return the size of the region at each ptr."""
        sizes = self._file.regions.sizes_at(ptrs)
        self.check(sizes > 0, lambda i: f"is at {ptrs[i]}, where the allocation table has no region.")
        return sizes

    def check_sizes(self, ptrs: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> None:
        """Raise FormatError unless the regions have these sizes; those that are empty may be anywhere."""
        found = self._file.regions.sizes_at(ptrs)
        self.check(
            (found == sizes) | (sizes == 0),
            lambda i: f"has {sizes[i]} bytes at {ptrs[i]}, where the allocation table has {found[i]}.",
        )

    def check(self, are_right: npt.NDArray[np.bool_], told: Callable[[int], str]) -> None:
        """Raise FormatError for the first sample that is not right; ``told(i)`` says why."""
        if not are_right.all():
            first = int(np.argmin(are_right))
            raise FormatError(f"{self._file.where(self._name, self._start + first)} {told(first)}")


class RegionTable:
    """The size of the region at each ptr."""

    def __init__(self, table: npt.NDArray[Any], layout: BetonLayout, path: str) -> None:
        self._path, self._table_ptr = path, layout.header.table_ptr
        filled = np.flatnonzero(table["size"])
        every = filled.size == len(table)
        ptrs, sizes = (table[name] if every else table[name][filled] for name in ("ptr", "size"))
        stop = np.uint64(self._table_ptr)
        # ptr + size may wrap around
        wrong = (ptrs < np.uint64(layout.rows_stop)) | (sizes > stop) | (ptrs > stop - np.minimum(sizes, stop))
        if wrong.any():
            first = int(np.argmax(wrong))
            raise FormatError(
                f"{self._row_name(int(filled[first]))} has {sizes[first]} bytes at {ptrs[first]}. Allowed: regions "
                f"between the rows, which end at {layout.rows_stop}, and the table, which begins at {self._table_ptr}."
            )
        self._ptrs, self._sizes = self._distinct(ptrs.astype(np.int64), sizes.astype(np.int64), filled)

    def sizes_at(self, ptrs: npt.NDArray[np.uint64]) -> Int64s:
        """Return how many bytes lie at each ptr, int64 [n]; 0 where the table has nothing."""
        if not self._ptrs.size:
            return np.zeros(len(ptrs), np.int64)
        wanted = np.minimum(ptrs, np.uint64(self._table_ptr)).astype(np.int64)
        places = np.minimum(np.searchsorted(self._ptrs, wanted), self._ptrs.size - 1)
        return np.where(self._ptrs[places] == wanted, self._sizes[places], 0)

    @property
    def arrays(self) -> tuple[Int64s, Int64s]:
        """Each ptr once, ascending, and its size; empty regions are left out."""
        return self._ptrs, self._sizes

    def _distinct(self, ptrs: Int64s, sizes: Int64s, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Return each ptr once, ascending, and its size."""
        if (ptrs[1:] < ptrs[:-1]).any():
            # one ascending run for each process that wrote: these a stable sort merges
            order = np.argsort(ptrs, kind="stable")
            ptrs, sizes, rows = ptrs[order], sizes[order], rows[order]
        is_again = np.zeros(len(ptrs), bool)
        is_again[1:] = ptrs[1:] == ptrs[:-1]
        differs = np.flatnonzero(is_again[1:] & (sizes[1:] != sizes[:-1])) + 1
        if differs.size:
            one, two = int(differs[0]) - 1, int(differs[0])
            raise FormatError(
                f"{self._row_name(int(rows[two]))} has {sizes[two]} bytes at {ptrs[two]}, where row {rows[one]} has "
                f"{sizes[one]}. Allowed: one size for what lies at one place. Write the file anew."
            )
        return (ptrs[~is_again], sizes[~is_again]) if is_again.any() else (ptrs, sizes)

    def _row_name(self, row: int) -> str:
        place = self._table_ptr + row * ALLOCATION_DTYPE.itemsize
        return f"{self._path}: row {row} of the allocation table, at byte {place},"

    def __len__(self) -> int:
        return len(self._ptrs)

    def __repr__(self) -> str:
        return f"<RegionTable {len(self)} regions of {self._path}>"
