"""Small .beton files built byte by byte from the format's description, not by stepwell's own writer."""

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stepwell.beton import SpanField, ValueField
from stepwell.schema import Array, Text

PAGE = 1 << 16


@dataclass
class Built:
    """A file in the making: fields as (type id, name, arguments), rows as packed bytes, regions by place."""

    fields: list = field(default_factory=list)
    rows: list = field(default_factory=list)
    page_size: int = PAGE
    regions: bytearray = field(default_factory=bytearray)
    table: list = field(default_factory=list)

    def put(self, sample: int, data: bytes) -> int:
        """Store a region, return how far behind the first page's beginning it lies."""
        place = len(self.regions)
        self.table.append((sample, place, len(data)))
        self.regions += data or b"\0"
        return place

    def start(self) -> int:
        rows = b"".join(self.rows)
        return -(-(24 + 1041 * len(self.fields) + len(rows)) // self.page_size) * self.page_size

    def write(self, path: Path, num_samples: int) -> Path:
        head = b"".join(struct.pack("<B16s1024s", *each) for each in self.fields)
        body = head + b"".join(self.rows)
        start = self.start()
        pages = bytes(self.regions).ljust(-(-len(self.regions) // self.page_size) * self.page_size, b"\0")
        table = b"".join(struct.pack("<QQQ", sample, start + place, size) for sample, place, size in self.table)
        stop = start + len(pages) if pages else 24 + len(body)
        data = struct.pack("<HHIQQ", 2, len(self.fields), self.page_size, num_samples, stop) + body
        path.write_bytes((data.ljust(start, b"\0") + pages if pages else data) + table)
        return path


def array_arguments(shape: tuple, code: str) -> bytes:
    text = json.dumps([["", code]]).encode()
    return struct.pack("<32Q", *shape, *[0] * (32 - len(shape))) + struct.pack("<Q", len(text)) + text


def write_arrays(path: Path, arrays: np.ndarray, name: bytes = b"array", type_id: int = 4, gap: int = 0) -> Path:
    """A file with one field of arrays, and an int."""
    built = Built([(type_id, name, array_arguments(arrays.shape[1:], arrays.dtype.str)), (1, b"number", b"")])
    built.rows = [bytes(16)] * len(arrays)
    start = built.start()
    for sample, value in enumerate(arrays):
        built.regions += bytes(gap)
        place = built.put(sample, value.tobytes())
        built.rows[sample] = struct.pack("<Qq", start + place, sample)
    return built.write(path, len(arrays))


def write_values(
    path: Path, values: list, type_id: int = 3, name: bytes = b"value", shares_empty: bool = False
) -> Path:
    """A file with one field of bytes (3) or json (5); empty ones at the place of the next, as FFCV does, if wanted."""
    built = Built([(type_id, name, b"")], [bytes(16)] * len(values))
    start = built.start()
    for sample, value in enumerate(values):
        if shares_empty and not value:
            place = len(built.regions)
            built.table.append((sample, place, 0))
        else:
            place = built.put(sample, value)
        built.rows[sample] = struct.pack("<QQ", start + place, len(value))
    return built.write(path, len(values))


def write_images(path: Path, images: list, name: bytes = b"image") -> Path:
    """A file with one field of images and an int; an image is (mode, height, width, bytes)."""
    built = Built([(2, name, b""), (1, b"label", b"")], [bytes(24)] * len(images))
    start = built.start()
    for sample, (mode, height, width, data) in enumerate(images):
        place = built.put(sample, data)
        built.rows[sample] = struct.pack("<BHHQ3xq", mode, width, height, start + place, sample)
    return built.write(path, len(images))


def write_custom(path: Path, type_id: int = 255, name: bytes = b"word") -> Path:
    """A file with a custom field whose row holds 4 letters and a number."""
    built = Built([(type_id, name, b"ab"), (0, b"weight", b"")])
    built.rows = [
        struct.pack("<4sI", word, number) + struct.pack("<d", 0.5) for number, word in enumerate((b"left", b"up"))
    ]
    return built.write(path, 2)


class SequenceField(SpanField):
    """The field of rl_shared.beton: frames start to end of an episode of 4x4 float64 images."""

    metadata_type = np.dtype([("ptr", "<u8"), ("start", "<u4"), ("end", "<u4")])
    feature = Array((5, 4, 4), "float64")

    def spans(self, rows, file):
        return rows["ptr"] + 128 * rows["start"].astype(np.uint64), 128 * (rows["end"] - rows["start"])


class WordField(ValueField):
    """The field of `write_custom`: a text that stands in the row."""

    metadata_type = np.dtype([("word", "S4"), ("number", "<u4")])
    feature = Text()

    def __init__(self, arguments):
        self.suffix = arguments[:2].decode()

    def values(self, rows, file):
        return [f"{word.decode()}-{self.suffix}" for word in rows["word"]]
