"""A reader of .beton files made from the description of the format alone, and the rules that files must obey."""

import json
import struct
from collections import defaultdict
from pathlib import Path

import numpy as np

BYTES_IN_ROW = {0: 8, 1: 8, 2: 13, 3: 16, 4: 8, 5: 16, 6: 8}
ALIGNED = (0, 1, 4, 6)


class SpecFile:
    """The parts of a file: names, samples by name, and the allocation table; custom fields as types that are given."""

    def __init__(self, path: Path, customs: dict[str, int] | None = None) -> None:
        self.data = data = Path(path).read_bytes()
        version, num_fields, self.page_size, self.number, table = struct.unpack_from("<HHIQQ", data)
        assert version == 2 and table
        self.table = np.frombuffer(data[table:], "<u8").reshape(-1, 3)
        self.sizes = {int(ptr): int(size) for _, ptr, size in self.table}
        self.fields = []
        at, widest = 0, 1
        for place in range(24, 24 + 1041 * num_fields, 1041):
            kind, name, arguments = struct.unpack_from("<B16s1024s", data, place)
            text = name.split(b"\0")[0].decode("ascii")
            kind = (customs or {})[text] if kind == 255 else kind
            unit = 8 if kind in ALIGNED else 1
            at, widest = -(-at // unit) * unit, max(widest, unit)
            self.fields.append((kind, text, arguments, at))
            at += BYTES_IN_ROW[kind]
        self.row_bytes = -(-at // widest) * widest
        self.rows_start = 24 + 1041 * num_fields
        self.table_ptr = table

    def sample(self, number: int) -> dict:
        start = self.rows_start + number * self.row_bytes
        return {name: self._value(kind, arguments, start + at) for kind, name, arguments, at in self.fields}

    def ptrs(self, number: int) -> list[int]:
        start = self.rows_start + number * self.row_bytes
        places = [start + at + (5 if kind == 2 else 0) for kind, _, _, at in self.fields if kind > 1]
        return [struct.unpack_from("<Q", self.data, place)[0] for place in places]

    def _value(self, kind: int, arguments: bytes, at: int):
        if kind < 2:
            return struct.unpack_from("<d" if kind == 0 else "<q", self.data, at)[0]
        if kind == 2:
            mode, width, height, ptr = struct.unpack_from("<BHHQ", self.data, at)
            region = self.data[ptr : ptr + self.sizes[ptr]]
            return np.frombuffer(region, "u1").reshape(height, width, 3) if mode else (width, height, region)
        if kind in (3, 5):
            ptr, size = struct.unpack_from("<QQ", self.data, at)
            assert self.sizes[ptr] == size
            region = self.data[ptr : ptr + size]
            return region if kind == 3 else json.loads(region[:-1] if region[-1:] == b"\0" else None)
        (ptr,) = struct.unpack_from("<Q", self.data, at)
        shape = [size for size in struct.unpack_from("<32Q", arguments) if size]
        (length,) = struct.unpack_from("<Q", arguments, 256)
        ((_, code),) = json.loads(arguments[264 : 264 + length])
        return np.frombuffer(self.data[ptr : ptr + self.sizes[ptr]], code).reshape(shape)

    def check(self) -> None:
        """Assert the six rules of the format, and that pages are whole."""
        by_ptr, pages = defaultdict(set), defaultdict(set)
        for sample, ptr, size in self.table.tolist():
            by_ptr[ptr].add(size)
            pages[sample].add(ptr // self.page_size)
            assert size == 0 or ptr // self.page_size == (ptr + size - 1) // self.page_size, "a region crosses a page"
            assert self.rows_start + self.number * self.row_bytes <= ptr
            assert ptr + size <= self.table_ptr
        assert all(len(sizes) == 1 for sizes in by_ptr.values()), "two sizes at one place"
        assert all(len(found) == 1 for found in pages.values()), "a sample on two pages"
        expected = sorted((number, ptr) for number in range(self.number) for ptr in self.ptrs(number))
        assert sorted((sample, ptr) for sample, ptr, _ in self.table.tolist()) == expected
        assert len({name for _, name, *_ in self.fields}) == len(self.fields)
        if len(self.table):
            assert self.table_ptr % self.page_size == 0
