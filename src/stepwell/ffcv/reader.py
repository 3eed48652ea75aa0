"""Files as FFCV's `Reader` shows them, and what reads their regions from compiled code; stores by the same names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.beton.layout import ALLOCATION_DTYPE, DESCRIPTOR_BYTES, HEADER_BYTES, BetonLayout, Header, row_dtype
from stepwell.beton.reading import RegionTable
from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.ffcv.fields import FIELD_OF_TYPE, Field, FloatField, IntField, NDArrayField, RGBImageField
from stepwell.ffcv.pipeline import Compiler
from stepwell.files.addresses import SCHEME
from stepwell.formats.cache import open_in_place
from stepwell.formats.opening import open as open_store
from stepwell.references.remote_files import local_path
from stepwell.schema import Feature
from stepwell.store.store import Store
from stepwell.windows import View

__all__ = ["MemoryManager", "OSCacheManager", "ProcessCacheManager", "Reader", "StoreReader", "reader_of"]

HEADER_DTYPE = np.dtype(
    {
        "names": ["version", "num_fields", "page_size", "num_samples", "alloc_table_ptr"],
        "formats": ["<u2", "<u2", "<u4", "<u8", "<u8"],
    }
)
DESCRIPTOR_DTYPE = np.dtype([("type_id", "u1"), ("name", "u1", 16), ("arguments", "u1", 1024)])
TABLE_DTYPE = np.dtype([("sample_id", "<u8"), ("ptr", "<u8"), ("size", "<u8")])
SIDES = np.dtype([("height", "<i8"), ("width", "<i8")])
SUFFIX = ".beton"


class Reader:
    """A ``.beton`` file, by FFCV's names.

    Args:
        fname: path of the file, or its address.
        custom_handlers: the class of each field that is not built in, by name.

    Raises:
        DatasetNotFoundError: no such file.
        FormatError: not such a file, one that was cut off, or a custom field without a class.

    Attributes:
        num_samples: of the file; `page_size` and `num_fields` as well.
        field_names: in the file's order.
        handlers: the field of each name.
        metadata: the samples' rows, whose parts are ``f0``, ``f1``, ... in the fields' order; read-only.
        alloc_table: sample_id, ptr and size of each region; read-only.
    """

    def __init__(self, fname: str | os.PathLike[str], custom_handlers: Mapping[str, type[Field]] | None = None) -> None:
        self.file_name = os.fspath(fname)
        local = local_path(self.file_name)
        try:
            self.memory: npt.NDArray[np.uint8] = np.asarray(np.memmap(local, np.uint8, "r"))
        except FileNotFoundError as error:
            raise DatasetNotFoundError(f"no file at {self.file_name}.") from error
        except ValueError as error:
            raise FormatError(f"{self.file_name}: an empty file, where a .beton file has a header.") from error
        head = Header.parse(self.memory[:HEADER_BYTES].tobytes(), self.file_name)
        stop = HEADER_BYTES + DESCRIPTOR_BYTES * head.num_fields
        described = BetonLayout.parse_fields(self.memory[:stop].tobytes(), head, self.file_name)
        self.header = self.memory[:HEADER_BYTES].view(HEADER_DTYPE)[0]
        self.field_descriptors = self.memory[HEADER_BYTES:stop].view(DESCRIPTOR_DTYPE)
        self.num_samples, self.page_size, self.num_fields = head.num_samples, head.page_size, head.num_fields
        self.field_names = [each.name for each in described]
        self.handlers: dict[str, Field] = {}
        custom = custom_handlers or {}
        for each, descriptor in zip(described, self.field_descriptors, strict=True):
            self.handlers[each.name] = self._handler(each.name, descriptor, custom.get(each.name))
        self.has_custom_fields = any(each.type_id not in FIELD_OF_TYPE for each in described)
        rows = row_dtype(described, {name: np.dtype(field.metadata_type) for name, field in self.handlers.items()})
        self.layout = BetonLayout(head, described, rows)
        self.layout.check_size(self.memory.size, self.file_name)
        self.metadata_type = np.dtype([("", field.metadata_type) for field in self.handlers.values()], align=True)
        # a copy is aligned, for code that numba compiles
        self.metadata = self.memory[self.layout.rows_start : self.layout.rows_stop].copy().view(self.metadata_type)
        self.metadata.setflags(write=False)
        self.alloc_table = self.memory[head.table_ptr :].view(TABLE_DTYPE)

    def rows_of(self, name: str) -> npt.NDArray[Any]:
        """Return a field's part of the samples' rows."""
        return self.metadata[f"f{self.field_names.index(name)}"]

    @cached_property
    def view(self) -> View | None:
        """The samples as stepwell's loader reads them; None where a custom field is among them."""
        if self.has_custom_fields:
            return None
        return View(open_in_place(self.file_name, reader="beton"))

    @cached_property
    def regions(self) -> RegionTable:
        """The sizes of regions."""
        return RegionTable(self.alloc_table.view(ALLOCATION_DTYPE), self.layout, self.file_name)

    @cached_property
    def pages(self) -> npt.NDArray[np.int64]:
        """The page of each sample's first region, int64 [n]; without regions it is that of the sample before."""
        if not len(self.alloc_table):
            raise FormatError(
                f"{self.file_name}: quasi-random order is by pages of data, and all its fields are numbers, which "
                "have none. Use OrderOption.RANDOM."
            )
        samples, ptrs = self.alloc_table["sample_id"].astype(np.int64), self.alloc_table["ptr"]
        known = samples < self.num_samples
        pages = np.full(self.num_samples, -1, np.int64)
        order = np.argsort(ptrs[known], kind="stable")[::-1]
        pages[samples[known][order]] = (ptrs[known][order] // np.uint64(self.page_size)).astype(np.int64)
        last = np.maximum.accumulate(np.where(pages >= 0, np.arange(len(pages)), 0))
        return np.asarray(pages[last])

    def _handler(self, name: str, descriptor: Any, custom: type[Field] | None) -> Field:
        found = custom or FIELD_OF_TYPE.get(int(descriptor["type_id"]))
        if found is None:
            raise FormatError(
                f"{self.file_name}: field {name!r} is a custom field. Say how it is read: "
                f"custom_fields={{{name!r}: its class}}."
            )
        return found.from_binary(descriptor["arguments"])


class StoreReader:
    """A store's features as FFCV's fields: numbers, arrays and images of RGB; each step is a sample.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self.view = View(store)
        self.file_name = str(store.path)
        self._features = dict(store.schema or {})
        fields = {name: _field_of(feature) for name, feature in self._features.items()}
        self.handlers = {name: field for name, field in fields.items() if field is not None}
        self.field_names = list(self.handlers)
        self.num_samples = self.view.num_steps

    def rows_of(self, name: str) -> npt.NDArray[Any] | None:
        """Return the sides of a feature's images, where it has one size; a store has no rows of samples."""
        shape = self._features[name].shape
        if not isinstance(self.handlers[name], RGBImageField) or None in shape:
            return None
        sides: npt.NDArray[Any] = np.array([shape[:2]], np.int64).view(SIDES)[0]
        return sides

    @property
    def pages(self) -> npt.NDArray[np.int64]:
        """A page of 1024 steps each, int64 [n]."""
        return np.arange(self.num_samples, dtype=np.int64) // 1024


def reader_of(fname: str | os.PathLike[str], custom_fields: Mapping[str, type[Field]]) -> Reader | StoreReader:
    """Return what reads a ``.beton`` file, a store, or what else an address names."""
    path = os.fspath(fname)
    if SCHEME.match(path) and not path.partition("?")[0].endswith(SUFFIX):
        return StoreReader(open_store(path))
    if path.startswith("beton://"):
        path = path.removeprefix("beton://")
    elif not SCHEME.match(path) and Path(path).is_dir():
        return StoreReader(open_store(path, mode="r"))
    return Reader(path, custom_fields)


class MemoryManager:
    """What reads the regions of a file: through a map of it, whatever ``os_cache`` says.

    Args:
        reader: of the file.
    """

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    @cached_property
    def state(self) -> tuple[npt.NDArray[Any], ...]:
        """What reading takes: the file, uint8 [n]; each ptr once, ascending, and its size, uint64."""
        ptrs, sizes = (part.astype(np.uint64) for part in self.reader.regions.arrays)
        table = self.reader.alloc_table
        empty = np.setdiff1d(table["ptr"][table["size"] == 0], ptrs)
        places = np.searchsorted(ptrs, empty)
        return self.reader.memory, np.insert(ptrs, places, empty), np.insert(sizes, places, np.uint64(0))

    @cached_property
    def page_to_samples(self) -> dict[int, set[int]]:
        """The samples that have regions on each page, for orders of users' own."""
        return self._sets(0, 1)

    @cached_property
    def sample_to_pages(self) -> dict[int, set[int]]:
        """The pages of each sample's regions, for orders of users' own."""
        return self._sets(1, 0)

    def _sets(self, key: int, value: int) -> dict[int, set[int]]:
        """Return what of (page, sample) goes with what."""
        table = self.reader.alloc_table
        pairs = table["ptr"] // np.uint64(self.reader.page_size), table["sample_id"]
        found: dict[int, set[int]] = {}
        for each, other in zip(pairs[key].tolist(), pairs[value].tolist(), strict=True):
            found.setdefault(each, set()).add(other)
        return found

    def schedule_epoch(self, batches: Any) -> MemoryManager:
        """Return a context whose ``state`` is what reading takes; nothing is to be prepared."""
        return self

    def start_batch(self, batch: int) -> None:
        """Begin a batch; nothing is to be done."""

    def compile_reader(self) -> Callable[..., Any]:
        """Return a function of (ptr, state): the bytes that lie there, uint8 [n], to be called from compiled code."""

        def read(address: Any, mem_state: Any) -> Any:
            place = np.searchsorted(mem_state[1], address)
            if place >= len(mem_state[1]) or mem_state[1][place] != address:
                raise ValueError("no region of the file begins there")
            return mem_state[0][address : address + mem_state[2][place]]

        return Compiler.compile(read)

    def __enter__(self) -> MemoryManager:
        return self

    def __exit__(self, *error: object) -> None:
        pass


OSCacheManager = ProcessCacheManager = MemoryManager


def _field_of(feature: Feature) -> Field | None:
    """Return the field that is like a feature; None where FFCV has none."""
    if feature.is_rgb_image:
        return RGBImageField()
    if feature.is_ragged or feature.np_dtype.kind not in "biuf":
        return None
    if feature.fixed_shape:
        return NDArrayField(feature.np_dtype, feature.fixed_shape)
    return FloatField() if feature.np_dtype.kind == "f" else IntField()
