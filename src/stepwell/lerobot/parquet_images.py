"""Images in parquet files: a row of a store refers to the file and the row there; row groups are read whole, and kept.

::

    row 130 of the file ── ends 50 100 150 ──> row group 2, row 30 of it ── held? ──> its bytes
                                                      | no: read by the first thread, others wait for it
                                                      v
                                                 least recently used ones go until it fits
"""

from __future__ import annotations

import functools
import io
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, choice_option, make_codec, register_codec
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.files.local_files import FileState, state_of
from stepwell.files.shared_cache import SharedCache
from stepwell.formats.images import SIGNATURES
from stepwell.lerobot.meta_files import import_pyarrow, parquet_errors
from stepwell.references.file_codec import REFERENCE, EmbeddedRows, NumberedFileCodec, parse_references
from stepwell.references.span_files import difference, lines_of
from stepwell.schema import Feature

__all__ = [
    "PILLOW_FORMATS",
    "ParquetImageCodec",
    "RowGroup",
    "RowGroups",
    "Stamp",
    "TableFile",
    "depth_file_kind",
    "png_or_jpeg",
    "stamp_of",
]

MAX_BYTES = 256 << 20
FILES_BYTES = 64 << 20
# what pyarrow makes of a footer takes several times its bytes in the file; an open file counts, too
FOOTER_GROWTH = 4
LEAST_FILE_BYTES = 1 << 20
BATCH_ROWS = 64
MAX_READING = 4

Stamp = tuple[str, FileState]
"""A file as it was when it was looked at: its path and state."""
Key = tuple[Stamp, str, int]

_ALL: weakref.WeakSet[RowGroups] = weakref.WeakSet()


def stamp_of(path: str) -> Stamp:
    """Return what tells a file from one that takes its place."""
    try:
        return path, state_of(path)
    except OSError as error:
        raise DecodeError(
            f"{path} cannot be opened: {error.strerror}. Is the data set where it was, and whole?"
        ) from error


@dataclass(frozen=True, slots=True, eq=False)
class RowGroup:
    """The byte strings of one column in one row group."""

    first_rows: npt.NDArray[np.int64]  # int64 [parts], the row of the group at which each part begins
    parts: list[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]]  # int64 offsets [rows + 1] and uint8 bytes of each
    num_bytes: int  # what it takes

    def row(self, row: int) -> npt.NDArray[np.uint8]:
        """Return a row's bytes, a read-only view; empty where it has none."""
        part = int(np.searchsorted(self.first_rows, row, "right")) - 1 if len(self.parts) > 1 else 0
        offsets, data = self.parts[part]
        at = row - int(self.first_rows[part])
        return data[offsets[at] : offsets[at + 1]]


class TableFile:
    """An open parquet file."""

    def __init__(self, path: str) -> None:
        open_file = import_pyarrow().parquet.ParquetFile
        self.path = path
        self._lock = threading.Lock()
        try:
            self._file = open_file(path, pre_buffer=False, page_checksum_verification=True)
        except parquet_errors() as error:
            raise DecodeError(f"{path} cannot be opened as a parquet file: {error}.") from error
        footer = self._file.metadata
        self.num_bytes = max(LEAST_FILE_BYTES, FOOTER_GROWTH * int(footer.serialized_size))
        self._ends = np.cumsum([footer.row_group(i).num_rows for i in range(footer.num_row_groups)], dtype=np.int64)

    def place_of(self, row: int) -> tuple[int, int]:
        """Return the row group of a row, and the row's number there."""
        num_rows = int(self._ends[-1]) if len(self._ends) else 0
        if not 0 <= row < num_rows:
            raise DecodeError(f"{self.path} has {num_rows} rows, none with number {row}. Open the data set again.")
        group = int(np.searchsorted(self._ends, row, "right"))
        return group, row - (int(self._ends[group - 1]) if group else 0)

    def read(self, column: str, group: int) -> RowGroup:
        """Read the byte strings of a column: of binary type, or the field ``bytes`` of a struct."""
        import pyarrow as pa

        leaf = self._leaf(column)
        try:
            with self._lock:
                chunks = self._chunks(leaf, group)
            arrays = [chunk.field("bytes") if pa.types.is_struct(chunk.type) else chunk for chunk in chunks]
            return _row_group([array.cast(pa.large_binary()) for array in arrays if len(array)])
        except parquet_errors() as error:
            raise DecodeError(f"{self.path}, row group {group}, column {column!r}: {error}.") from error

    def _chunks(self, leaf: str, group: int) -> list[Any]:
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group, columns=[leaf], use_threads=False)
            return list(table.column(0).chunks)
        except pa.ArrowNotImplementedError:
            # a struct with more than 2 GiB of bytes cannot be read in one piece
            batches = self._file.iter_batches(BATCH_ROWS, row_groups=[group], columns=[leaf], use_threads=False)
            return [batch.column(0) for batch in batches]

    def _leaf(self, column: str) -> str:
        import pyarrow as pa

        schema = self._file.schema_arrow
        number = schema.get_field_index(column)
        kind = schema.field(number).type if number >= 0 else None
        if kind is not None and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            return column
        if kind is not None and pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            return f"{column}.bytes"
        raise DecodeError(
            f"{self.path}: column {column!r} is {kind or 'not there'}. Allowed: binary, or a struct with bytes."
        )


class RowGroups:
    """The row groups that were used last, and the open files that they are of."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.kept: SharedCache[Key, RowGroup] = SharedCache(max_bytes, lambda group: group.num_bytes)
        self._files: SharedCache[tuple[int, Stamp], TableFile] = SharedCache(FILES_BYTES, lambda file: file.num_bytes)
        self.num_read = 0
        self._renew()
        _ALL.add(self)

    def row(self, stamp: Stamp, column: str, row: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of one row."""
        # pyarrow's readers share what a fork copies in an unknown state
        file = self._files.get((os.getpid(), stamp), lambda: TableFile(stamp[0]))
        group, at = file.place_of(row)
        key = (stamp, column, group)
        held = self.kept.find(key)
        return (self.kept.get(key, lambda: self._read(file, column, group)) if held is None else held).row(at)

    def _read(self, file: TableFile, column: str, group: int) -> RowGroup:
        with self._reading:
            found = file.read(column, group)
        self.num_read += 1
        return found

    def _renew(self) -> None:
        self._reading = threading.BoundedSemaphore(MAX_READING)


def _row_group(arrays: list[Any]) -> RowGroup:
    """Return large binary arrays of Arrow as what numpy shows of their memory."""
    parts = []
    for array in arrays:
        _, offsets, data = array.buffers()
        edges = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        parts.append((edges, np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)))
    sizes = [len(array) for array in arrays]
    first_rows = np.cumsum([0, *sizes[:-1]], dtype=np.int64) if sizes else np.empty(0, np.int64)
    return RowGroup(first_rows, parts, sum(offsets.nbytes + data.nbytes for offsets, data in parts))


def _after_fork() -> None:
    for groups in list(_ALL):
        groups._renew()


os.register_at_fork(after_in_child=_after_fork)


PILLOW_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
# shared by all codecs of a process, since each reader of a store makes its own
_ROW_GROUPS = RowGroups()


def png_or_jpeg(head: bytes) -> str | None:
    """Return "png" or "jpeg" by a file's first bytes; None for anything else."""
    for name in ("png", "jpeg"):
        if head.startswith(SIGNATURES[name]):
            return name
    return None


def depth_file_kind(file: bytes) -> tuple[int, int, str]:
    """Return height, width and dtype, "uint16" or "float32", of a depth map's file that is no PNG: a TIFF file."""
    with _opened(np.frombuffer(file, np.uint8)) as image:
        return image.height, image.width, "float32" if image.mode == "F" else "uint16"


@register_codec
class ParquetImageCodec(NumberedFileCodec):
    """References into parquet files: chunk, file, and the row there, of a column of image files."""

    name: ClassVar[str] = "parquet-image"
    option_names: ClassVar[tuple[str, ...] | None] = ("files", "column", "format", "states")

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self._column = feature.option("column", None)
        if not isinstance(self._column, str) or not self._column:
            raise SchemaError(f"option 'column' of codec {feature.codec!r} is {self._column!r}. Allowed: a name.")
        self._format = choice_option(feature, "format", "png", ("png", "jpeg", "zstd"))
        self._codecs: dict[str, Codec] = {self._format: make_codec(self.embedded())}
        self._stamps: dict[tuple[int, int], Stamp] = {}
        # what every row asks for
        self._signature = SIGNATURES.get(self._format)
        self._shape, self._is_float = feature.fixed_shape, feature.np_dtype.kind == "f"

    def embedded(self) -> Feature:
        """Return the feature that holds the image files; see `FileCodec.embedded`."""
        return self._stored_as(self._format)

    def embed(self, blobs: Sequence[npt.NDArray[np.uint8]]) -> EmbeddedRows:
        """Return the image files as they are; one of another format is encoded again. See `FileCodec.embed`."""
        return _Images(self, list(blobs))

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the image; see `Codec.decode`."""
        out = np.empty(self.feature.fixed_shape, self.feature.np_dtype)
        self.decode_into(blob, out)
        return out

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the image into `out`; see `Codec.decode_into`."""
        file = self.file_of(blob)
        codec = self._codec_of(file)
        try:
            if codec is None:
                # whole numbers of 32 bits are those of 16
                np.copyto(out, self._decode_other(file), casting="same_kind")
                return
            codec.decode_into(file, out)
        except DecodeError as error:
            if codec is not None:
                # Pillow reads some files that the codec refuses
                with suppress(DecodeError, MissingDependencyError):
                    out[...] = self._decode_other(file)
                    return
            raise DecodeError(f"{self._where(blob)}: {error}") from error

    def decode_crop(
        self, blob: npt.NDArray[np.uint8], box: tuple[int, int, int, int], size: tuple[int, int]
    ) -> npt.NDArray[Any]:
        """Return the pixels of a part; see `Codec.decode_crop`."""
        file = self.file_of(blob)
        codec = self._codec_of(file)
        if codec is not None:
            # files that it refuses may be read whole, or that raises the reason
            with suppress(DecodeError):
                return codec.decode_crop(file, box, size)
        return super().decode_crop(blob, box, size)

    def file_of(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the bytes of the image file, a read-only view."""
        if blob.size != REFERENCE.size:
            parse_references([blob])  # says what is wrong
        chunk, file, row = REFERENCE.unpack(blob.data)
        if not row.is_integer():
            raise DecodeError(f"a reference to row {row}. Allowed: whole numbers.")
        stamp = self._stamps.get((chunk, file))
        if stamp is None:
            stamp = self._stamps[chunk, file] = self._stamp_of(chunk, file)
        found = _ROW_GROUPS.row(stamp, self._column, int(row))
        if not len(found):
            raise DecodeError(f"{self._where(blob)} has no bytes: the image was left in a file of its own.")
        return found

    def _stamp_of(self, chunk: int, file: int) -> Stamp:
        """Return the path and state of a file, which is as it was when references were made."""
        path = self.reached(chunk, file)
        stamp = stamp_of(path)
        change = difference(path, self._noted.get(f"{chunk} {file}", ""), stamp[1])
        if change is not None:
            raise DecodeError(f"{path}: {change}")
        return stamp

    @functools.cached_property
    def _noted(self) -> dict[str, str]:
        """The noted states of files, by their two numbers."""
        parts = (line.rsplit(" ", 2) for line in lines_of(self.feature.option("states", "")))
        return {numbers: " ".join(state) for numbers, *state in parts}

    def as_embedded(self, blob: npt.NDArray[np.uint8]) -> bytes:
        """Return an image as `embedded` has it."""
        file = self.file_of(blob)
        if png_or_jpeg(file[:8].tobytes()) == self._format:
            return file.tobytes()
        return self._codecs[self._format].encode(self.decode(blob))

    def _codec_of(self, file: npt.NDArray[np.uint8]) -> Codec | None:
        """Return the codec of a file, by its first bytes; None for other formats than PNG and JPEG."""
        head = file[:8].tobytes()
        if self._signature is not None and head.startswith(self._signature):
            return self._codecs[self._format]
        if self._is_float:
            # neither PNG nor JPEG holds floats
            return None
        found = png_or_jpeg(head)
        if found is not None and found not in self._codecs:
            self._codecs[found] = make_codec(self._stored_as(found))
        return None if found is None else self._codecs[found]

    def _decode_other(self, file: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the pixels of an image as Pillow reads it."""
        with _opened(file) as image:
            if (image.height, image.width) != self._shape[:2]:
                # before memory is taken for it
                raise DecodeError(f"an image of {image.height}x{image.width}, where the feature has {self._shape}.")
            pixels = np.asarray(image)
        if pixels.dtype.kind == "f" and not self._is_float:
            raise DecodeError(
                f"an image of floats, where the feature is {self.feature.np_dtype.name}, as the first one."
            )
        if pixels.size != np.prod(self._shape) or pixels.shape[:2] != self._shape[:2]:
            raise DecodeError(f"an image of shape {pixels.shape}, where the feature has {self._shape}.")
        return pixels.reshape(self._shape)

    def _stored_as(self, codec: str) -> Feature:
        return replace(self.feature, codec=codec, options=())

    def _where(self, blob: npt.NDArray[np.uint8]) -> str:
        chunk, file, row = REFERENCE.unpack(blob.data)
        return f"{self.path_of(chunk, file)}, row {int(row)} of column {self._column!r}"


class _Images:
    """The image files of an episode."""

    def __init__(self, codec: ParquetImageCodec, blobs: list[npt.NDArray[np.uint8]]) -> None:
        self._codec, self._blobs = codec, blobs

    @property
    def num_rows(self) -> int:
        """Rows that there are."""
        return len(self._blobs)

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the files, first to last."""
        own = self._codec.embedded()
        if (feature.codec, feature.shape, feature.dtype) != (own.codec, own.shape, own.dtype):
            raise SchemaError(f"the images are {own!r}, not {feature!r}. Make the feature like them.")
        return map(self._codec.as_embedded, self._blobs)


@contextmanager
def _opened(file: npt.NDArray[np.uint8]) -> Iterator[Any]:
    """Give an image file as Pillow opens it."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingDependencyError(
            f"the image begins with {file[:4].tobytes()!r}: it is neither PNG nor JPEG. Type: pip install pillow"
        ) from error
    try:
        # others are read by programs, or are lists of files
        with Image.open(io.BytesIO(file.tobytes()), formats=PILLOW_FORMATS) as image:
            yield image
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise DecodeError(f"an image of {file.size} bytes: {error}.") from error
