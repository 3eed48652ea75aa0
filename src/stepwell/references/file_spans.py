r"""Rows that are spans of other files: so many bytes from a place on, as they lie in a tar, a .beton, a TFRecord file.

::

    NAME.bin    | file size offset | file size offset | ...     16 bytes a row, `SPAN_DTYPE`
                     |
    options     root = "/data/set", files = "train-00.tar\ntrain-01.tar", format = "jpeg"
                     |
    train-01.tar    ...|......the bytes of a JPEG file.......|...

What the bytes are says ``format``: the codec whose rows they are, "raw" for plain ones. A `Reader` gives such a column
as `FileSpans`: it is copied into a store, or left where it is where the store's feature is a `span_feature`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, SequentialCodec, codec_class, make_codec, register_codec
from stepwell.codecs.raw import bytes_of
from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.references.file_codec import FileCodec, ListedFileCodec, files_of, left_in_files
from stepwell.references.span_files import FilesOfBatch, PathLike, SpanFiles, number_of
from stepwell.schema import Feature

__all__ = ["SPAN_DTYPE", "FileSpanCodec", "FileSpans", "make_spans", "rows_of", "span_feature"]

SPAN_DTYPE = np.dtype([("file", "<u4"), ("size", "<u4"), ("offset", "<u8")])
"""A span: number of the file, bytes, and the place of the first one."""

SPAN = struct.Struct("<IIQ")
NAME = "file-span"
OWN_OPTIONS = ("root", "files", "states", "format")
MAX_ROW_BYTES = 2**32 - 1
MAX_OFFSET = 2**63 - 1 - MAX_ROW_BYTES

Int64s = npt.NDArray[np.int64]
Blob = npt.NDArray[np.uint8]


def span_feature(feature: Feature, paths: Sequence[PathLike]) -> Feature:
    """Return the feature whose rows are those of another one, left in these files.

    Args:
        feature: what the bytes are, as a store would hold them: ``Image(..., codec="jpeg")``, ``Array((16, 10))``,
            ``Text()``.
        paths: of all files that rows may lie in, or addresses; a span's ``file`` counts in them.

    Raises:
        SchemaError: rows of this codec cannot lie in other files, or a path has a line break.

    Example:
        >>> from stepwell.schema import Image
        >>> print(span_feature(Image((96, 96, 3), codec="jpeg"), ["/data/a.tar", "/data/b.tar"]))
        file-span 96x96x3 uint8
    """
    made = left_in_files(feature, NAME, paths)
    _inner(made)
    return made


def make_spans(file: npt.ArrayLike, offsets: npt.ArrayLike, sizes: npt.ArrayLike) -> Blob:
    """Return references as rows of a store."""
    parts = np.broadcast_arrays(np.atleast_1d(np.asarray(offsets)), file, sizes)
    spans = np.empty(parts[0].shape, SPAN_DTYPE)
    for name, part, most in zip(
        ("offset", "file", "size"), parts, (MAX_OFFSET, MAX_ROW_BYTES, MAX_ROW_BYTES), strict=True
    ):
        if part.size and not 0 <= int(part.min()) <= int(part.max()) <= most:
            raise StepError(f"spans with {name} {part.min()} to {part.max()}. Allowed: 0 to {most}.")
        spans[name] = part
    return spans.view(np.uint8).reshape(-1, SPAN.size)


@register_codec
class FileSpanCodec(ListedFileCodec):
    """References to spans of files, whose bytes are rows of another codec.

    Args:
        feature: of any kind that the other codec stores. Options: ``root``, ``files``, ``states``, see
            `ListedFileCodec`; ``format``, the codec of the bytes; and the options of that codec. `span_feature` makes
            such a feature.

    Example:
        >>> import tempfile
        >>> from stepwell.schema import Array
        >>> path = f"{tempfile.mkdtemp()}/numbers.bin"
        >>> np.arange(6, dtype="<f4").tofile(path)
        >>> codec = make_codec(span_feature(Array(2), [path]))
        >>> codec.decode(make_spans(0, 8, 8)[0])
        array([2., 3.], dtype=float32)

    Notes:
        As for `FileCodec`; files are compared with what they were when the references were made, see
        `stepwell.references.span_files.SpanFiles`. Plain rows are read into the batch, others into memory of the thread
        and decoded from there.
    """

    name: ClassVar[str] = NAME
    reference_maker: ClassVar[str] = "stepwell.references.file_spans.make_spans"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self._inner = _inner(feature)
        self._is_plain = self._inner.feature.is_raw
        self._row_bytes = feature.row_bytes if self._is_plain else -1
        if self._is_plain and self._row_bytes:
            self.stored_row_bytes = SPAN.size
            # what is fetched first may take seconds
            self.only_copies = "://" not in feature.option("root", "") and "://" not in feature.option("files", "")

    def decode(self, blob: Blob) -> Any:
        """Return the row; see `Codec.decode`."""
        return self._made(blob, self._inner.decode)

    def decode_into(self, blob: Blob, out: npt.NDArray[Any]) -> None:
        """Read or decode the row into `out`; see `Codec.decode_into`."""
        if not self._is_plain:
            self._made(blob, lambda data: self._inner.decode_into(data, out))
            return
        file, size, offset = _span_of(blob)
        if size != self._row_bytes:
            raise DecodeError(
                f"{self._files.called(file)}, byte {offset}: a row of {size} bytes, where the feature's shape has "
                f"{self._row_bytes}."
            )
        self._files.read_into(file, offset, bytes_of(out))

    def batch_decoder(self) -> Callable[[Blob, npt.NDArray[Any]], None]:
        """Return what decodes the rows of a batch, which looks at each file once; see `Codec.batch_decoder`."""
        if self._is_plain:
            return self.decode_into
        files, decode_into = FilesOfBatch(self._files), self._inner.batch_decoder()

        def decode(blob: Blob, out: npt.NDArray[Any]) -> None:
            file, size, offset = _span_of(blob)
            data = files.read(file, offset, size)
            try:
                decode_into(data, out)
            except DecodeError as error:
                raise self._located(error, file, offset) from error

        return decode

    def decode_rows(self, rows: Blob, out: npt.NDArray[Any]) -> None:
        """Copy plain rows out of mapped files; see `Codec.decode_rows`."""
        if not len(rows):
            return
        spans = rows.view(SPAN_DTYPE)[:, 0]
        # held until the rows are copied
        maps = self._files.addresses_of(spans["file"])
        memory = out.reshape(len(rows), -1).view(np.uint8)
        offsets = spans["offset"].view(np.int64)
        if maps.is_large:
            # pages that are not in memory are fetched all at once, instead of one at a time
            _announce_kernel()(maps.bases.take(spans["file"], mode="clip") + offsets, spans["size"].astype(np.int64))
        wrong = _copy_kernel()(spans["file"], spans["size"], offsets, maps.bases, maps.sizes, memory)
        if wrong >= 0:
            self.decode_into(rows[wrong], out[wrong, ...])
            raise DecodeError(f"span {rows[wrong].view(SPAN_DTYPE)[0]} cannot be copied.")

    def decode_crop(self, blob: Blob, box: tuple[int, int, int, int], size: tuple[int, int]) -> npt.NDArray[Any]:
        """Return the pixels of a part; see `Codec.decode_crop`."""

        def crop(data: Blob) -> npt.NDArray[Any]:
            part = self._inner.decode_crop(data, box, size)
            # the thread's memory is read into again by the next row
            return part.copy() if np.may_share_memory(part, data) else part

        found: npt.NDArray[Any] = self._made(blob, crop)
        return found

    def image_size(self, blob: Blob) -> tuple[int, int] | None:
        """Return height and width of an image; see `Codec.image_size`."""
        if not self.feature.is_ragged:
            return super().image_size(blob)
        found: tuple[int, int] | None = self._made(blob, self._inner.image_size)
        return found

    def embedded(self) -> Feature:
        """Return the feature that holds the same bytes; see `FileCodec.embedded`."""
        return self._inner.feature

    def embed(self, blobs: Sequence[Blob]) -> FileSpans:
        """Return the bytes of an episode's rows; see `FileCodec.embed`."""
        if isinstance(blobs, np.ndarray) and blobs.shape[1:] == (SPAN.size,):
            spans = np.ascontiguousarray(blobs).reshape(-1).view(SPAN_DTYPE)
        else:
            spans = np.array([_span_of(blob) for blob in blobs], SPAN_DTYPE)
        files = self._files
        return FileSpans(self._inner.feature, files.paths, spans["file"], spans["offset"], spans["size"], files.states)

    @classmethod
    def bytes_in_files(cls, references: Blob) -> int:
        """Return how many bytes rows have in their files; see `ListedFileCodec.bytes_in_files`."""
        whole = references[: references.size // SPAN.size * SPAN.size]
        return int(whole.view(SPAN_DTYPE)["size"].sum(dtype=np.int64))

    def _made(self, blob: Blob, make: Callable[[Blob], Any]) -> Any:
        """Return what is made of the bytes of a row; errors say where they lie."""
        file, size, offset = _span_of(blob)
        data = self._files.read(file, offset, size)
        try:
            return make(data)
        except DecodeError as error:
            raise self._located(error, file, offset) from error

    def _located(self, error: DecodeError, file: int, offset: int) -> DecodeError:
        return DecodeError(f"{self._files.called(file)}, byte {offset}: {error}")


@dataclass(frozen=True, eq=False)
class FileSpans:
    """The rows of an episode that lie in files: as a reader gives them.

    A store copies their bytes, or refers to them, as its feature says.

    Args:
        feature: what the bytes are, as a store would hold them: ``Image(..., codec="jpeg")``, ``Array((16, 10))``,
            ``Text()``.
        paths: of files, or addresses; may name more than these rows lie in.
        file: number of the file in ``paths``; int64 [n], or one for all.
        offsets: int64 [n], place of each row's first byte.
        sizes: int64 [n], bytes of each row.
        states: what the files were when the places were found, see `noted_states`; "" where they were found
            just now.

    Raises:
        StepError: numbers that no file has, or other numbers of offsets than of sizes.

    Example:
        >>> import pathlib, tempfile
        >>> from stepwell.schema import Text
        >>> path = pathlib.Path(tempfile.mkdtemp(), "words.txt")
        >>> count = path.write_text("left right")
        >>> list(FileSpans(Text(), [str(path)], 0, [0, 5], [4, 5]).rows(Text()))
        [b'left', b'right']

    Notes:
        An immutable value; files are read when rows are decoded, by any thread.
    """

    feature: Feature
    paths: Sequence[PathLike]
    file: npt.ArrayLike
    offsets: npt.ArrayLike
    sizes: npt.ArrayLike
    states: str = ""

    def __post_init__(self) -> None:
        offsets, sizes = np.asarray(self.offsets, np.int64).reshape(-1), np.asarray(self.sizes, np.int64).reshape(-1)
        if len(offsets) != len(sizes) or np.size(self.file) not in (1, len(sizes)):
            raise StepError(
                f"{len(offsets)} offsets, {len(sizes)} sizes and {np.size(self.file)} files. Give one each a row."
            )
        file = np.broadcast_to(np.asarray(self.file, np.int64).reshape(-1), sizes.shape)
        if len(file) and not 0 <= int(file.min()) <= int(file.max()) < len(self.paths):
            raise StepError(f"spans in files {file.min()} to {file.max()}, of {len(self.paths)} paths.")
        for name, values in (("file", file), ("offsets", offsets), ("sizes", sizes)):
            object.__setattr__(self, name, values)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return np.size(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, in their files."""
        return int(np.sum(self.sizes))

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, rows: slice | npt.ArrayLike) -> FileSpans:
        """Return some of the rows, which are not read."""
        chosen = rows_of(rows)
        file, offsets, sizes = (np.asarray(part)[chosen] for part in (self.file, self.offsets, self.sizes))
        return replace(self, file=file, offsets=offsets, sizes=sizes)

    def references(self) -> Blob:
        """Return references, uint8 [n, 16], for a `span_feature` of the same paths."""
        return make_spans(self.file, self.offsets, self.sizes)

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the rows as a feature has them: their bytes, or references where it is a `span_feature`.

        Raises:
            SchemaError: neither of them, or a span feature of other files.
            DecodeError: a file that is gone, or ends before a row does.
        """
        is_left = feature.codec == NAME
        codec = feature.option("format", "") if is_left else feature.codec
        if (codec, feature.shape, feature.dtype) != (self.feature.codec, self.feature.shape, self.feature.dtype):
            raise SchemaError(f"the rows are {self.feature!r}, not {feature!r}. Make the feature like them.")
        if is_left:
            return map(bytes, self._referred(feature))
        files, spans = FilesOfBatch(self._files()), zip(*self._numbers(), strict=True)
        return (files.read(file, offset, size).tobytes() for file, offset, size in spans)

    def array(self) -> npt.NDArray[Any]:
        """Return plain rows: [n, *shape] of a raw feature's dtype.

        Raises:
            SchemaError: the feature is not raw, or of varying shape.
            DecodeError: a file that is gone, or ends before a row does, or a row of another size.
        """
        if not self.feature.is_raw:
            raise SchemaError(f"{self.feature!r} is no plain array: its rows have to be decoded one by one.")
        out = np.empty((self.num_rows, *self.feature.fixed_shape), self.feature.np_dtype)
        files, row_bytes, memory = self._files(), self.feature.row_bytes, bytes_of(out)
        for start, stop in self._runs():
            file, offset, size = (int(np.atleast_1d(part)[start]) for part in (self.file, self.offsets, self.sizes))
            if size != row_bytes:
                raise DecodeError(
                    f"{files.called(file)}, byte {offset}: a row of {size} bytes, where {self.feature} has {row_bytes}."
                )
            files.read_into(file, offset, memory[start * row_bytes : stop * row_bytes])
        return out

    def _files(self) -> SpanFiles:
        return SpanFiles(self.paths, self.states, self.feature.reach)

    def _numbers(self) -> list[list[int]]:
        return [np.asarray(part).tolist() for part in (self.file, self.offsets, self.sizes)]

    def _runs(self) -> list[tuple[int, int]]:
        """Return ranges of rows that follow each other in one file, and are of one size."""
        if self.num_rows == 1:
            # a sample, of millions
            return [(0, 1)]
        file, offsets, sizes = (np.asarray(part) for part in (self.file, self.offsets, self.sizes))
        is_next = (np.diff(file) == 0) & (np.diff(sizes) == 0) & (np.diff(offsets) == sizes[:-1])
        edges = [0, *(np.flatnonzero(~is_next) + 1).tolist(), len(sizes)]
        return [(start, stop) for start, stop in pairwise(edges) if stop > start]

    def _referred(self, feature: Feature) -> Blob:
        """Return references to the files of a span feature, which may be numbered otherwise."""
        root, files, file = feature.option("root", ""), feature.option("files", ""), np.asarray(self.file)
        if not len(file) or (file == file[0]).all():
            theirs: Any = number_of(self.paths[file[0]], root, files) if len(file) else 0
        else:
            used, places = np.unique(file, return_inverse=True)
            theirs = np.array([number_of(self.paths[number], root, files) for number in used.tolist()])[places]
        return make_spans(theirs, self.offsets, self.sizes)

    def __repr__(self) -> str:
        return f"<FileSpans {self.num_rows:,} rows of {self.feature}, {self.nbytes:,} bytes>"


def rows_of(rows: slice | npt.ArrayLike) -> slice | npt.NDArray[Any]:
    """Return what chooses rows of an array: a slice, or indices or a mask as an array."""
    if isinstance(rows, slice):
        return rows
    chosen = np.asarray(rows) if np.size(rows) else np.zeros(0, np.int64)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iub":
        raise IndexError(f"rows {rows!r}. Give a slice, a list of indices or a mask: rows[:-1], rows[[0, 2]].")
    return chosen


@functools.cache
def _copy_kernel() -> Any:
    """Return the kernel; looked up once, where an import for every batch would take as long as it does."""
    from stepwell.kernels.spans import copy_spans

    return copy_spans


@functools.cache
def _announce_kernel() -> Any:
    """Return the kernel; see `_copy_kernel`."""
    from stepwell.kernels.spans import announce

    return announce


def _inner(feature: Feature) -> Codec:
    """Return the codec of the bytes that spans refer to."""
    files_of(feature)
    options = dict(feature.options)
    inner = options.get("format")
    if not isinstance(inner, str):
        raise SchemaError(
            f"option format={inner!r} of codec {NAME!r}. Allowed: the codec of the bytes; see "
            "stepwell.references.file_spans.span_feature."
        )
    options = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    found = replace(feature, codec=inner, options=tuple(sorted(options.items())))
    if issubclass(codec_class(found), FileCodec | SequentialCodec):
        raise SchemaError(
            f"rows of codec {inner!r} cannot lie in other files: they refer to others. Allowed: codecs of rows that "
            "stand alone, such as raw, jpeg, png, zstd."
        )
    return make_codec(found)


def _span_of(blob: Blob) -> tuple[int, int, int]:
    """Return file, size and offset of a reference."""
    try:
        return SPAN.unpack(blob.data)
    except struct.error as error:
        raise DecodeError(f"a row of {blob.size} bytes. A reference into a file has {SPAN.size}.") from error
