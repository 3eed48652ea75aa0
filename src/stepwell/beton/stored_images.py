"""RGB images of ``.beton`` files, left where they are: plain pixels of several sizes, or JPEG files among them.

What an image is stands in the file's table of samples, not in front of its bytes: so the reference says it.

::

    NAME.bin    | file  size            0 offset |       a JPEG file of `size` bytes
                | file  height width    1 offset |       height x width x 3 bytes of pixels; 1 is the highest bit
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.beton.jpeg_or_raw import jpeg_codec_like, raw_row
from stepwell.codecs.codec import choice_option, register_codec
from stepwell.codecs.jpeg import JpegCodec
from stepwell.codecs.raw import SIDES, bytes_of
from stepwell.errors import DecodeError, SchemaError
from stepwell.references.file_codec import ListedFileCodec, files_of, left_in_files
from stepwell.references.file_spans import SPAN_DTYPE
from stepwell.references.span_files import FilesOfBatch, PathLike, SpanFiles, common_root, paths_of
from stepwell.schema import Feature

__all__ = ["BetonImageCodec", "BetonImages", "beton_image_feature", "make_image_references"]

NAME = "beton-image"
PLAIN = "raw"
STORED = ("jpeg-or-raw", PLAIN)
REFERENCE = struct.Struct("<IIQ")
IS_PLAIN = 1 << 63
CHANNELS = 3

_Made = TypeVar("_Made")

Blob = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]


def beton_image_feature(feature: Feature, paths: Sequence[str]) -> Feature:
    """Return the feature whose rows are images of these files, left there.

    Args:
        feature: as a store would hold them: of codec "jpeg-or-raw", or "raw" where all are plain.
        paths: of all files that rows may lie in; a reference's ``file`` counts in them.

    Raises:
        SchemaError: a path has a line break.
    """
    return left_in_files(feature, NAME, paths)


def make_image_references(file: int, rows: npt.NDArray[Any], offsets: Int64s, sizes: Int64s) -> Blob:
    """Return references to images of one file.

    Args:
        file: its number.
        rows: [n], with ``mode`` (1: plain), ``height`` and ``width`` of each image.
        offsets: int64 [n], place of each image's first byte.
        sizes: int64 [n], its bytes.

    Returns:
        uint8 [n, 16].
    """
    is_plain = rows["mode"] == 1
    references = np.empty(len(rows), SPAN_DTYPE)
    references["file"] = file
    references["size"] = np.where(is_plain, rows["height"].astype(np.int64) << 16 | rows["width"], sizes)
    references["offset"] = offsets.astype(np.uint64) | np.where(is_plain, np.uint64(IS_PLAIN), np.uint64(0))
    return references.view(np.uint8).reshape(-1, REFERENCE.size)


def _image_bytes(spans: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    sizes = spans["size"].astype(np.int64)
    return np.where(spans["offset"] >= np.uint64(IS_PLAIN), CHANNELS * (sizes >> 16) * (sizes & 0xFFFF), sizes)


@register_codec
class BetonImageCodec(ListedFileCodec):
    """References to images of ``.beton`` files, JPEG files or plain pixels.

    Args:
        feature: an RGB image of uint8, of fixed size or any. Options: ``root``, ``files``, ``states``, see
            `ListedFileCodec`; ``format``, the codec that would hold them, "jpeg-or-raw" (default), or "raw" where all
            are plain; ``dct``, as of codec "jpeg". `beton_image_feature` makes such a feature.

    Raises:
        SchemaError: an option that is missing or wrong.
        MissingDependencyError: simplejpeg is not installed.

    Notes:
        As for `stepwell.references.file_spans.FileSpanCodec`. Of a crop of plain pixels only its rows are read.
    """

    name: ClassVar[str] = NAME
    option_names: ClassVar[tuple[str, ...] | None] = ("dct", "files", "format", "root", "states")
    reference_maker: ClassVar[str] = "stepwell.beton.stored_images.make_image_references"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        own = tuple(option for option in feature.options if option[0] == "dct")
        self._embedded = replace(feature, codec=choice_option(feature, "format", STORED[0], STORED), options=own)
        self._jpeg = jpeg_codec_like(feature) if self._embedded.codec != PLAIN else None
        self._size = None if feature.is_ragged else feature.fixed_shape[:2]

    def decode(self, blob: Blob) -> npt.NDArray[np.uint8]:
        """Return the image; see `Codec.decode`."""
        found = self._parse(blob)
        if not found.is_plain:
            return self._made(found, JpegCodec.decode)
        out = np.empty((found.height, found.width, CHANNELS), np.uint8)
        self._files.read_into(found.file, found.offset, bytes_of(out))
        return out

    def decode_into(self, blob: Blob, out: npt.NDArray[Any]) -> None:
        """Read or decode the image into `out`; see `Codec.decode_into`."""
        self._decode_into(blob, out)

    def _decode_into(self, blob: Blob, out: npt.NDArray[Any], files: FilesOfBatch | None = None) -> None:
        found = self._parse(blob)
        if not found.is_plain:
            self._made(found, lambda jpeg, data: jpeg.decode_into(data, out), files)
            return
        if out.shape != (found.height, found.width, CHANNELS):
            raise DecodeError(f"an image of {found.height}x{found.width}, where shape {out.shape} is wanted.")
        self._files.read_into(found.file, found.offset, bytes_of(out))

    def batch_decoder(self) -> Callable[[Blob, npt.NDArray[Any]], None]:
        """Return what decodes the images of a batch, which looks at each file once; see `Codec.batch_decoder`."""
        return partial(self._decode_into, files=FilesOfBatch(self._files))

    def decode_crop(self, blob: Blob, box: tuple[int, int, int, int], size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Return the pixels of a part; see `Codec.decode_crop`."""
        found = self._parse(blob)
        if not found.is_plain:
            return self._made(found, lambda jpeg, data: jpeg.decode_crop(data, box, size))
        top, left, height, width = box
        pixels = self._files.read(*found.lines(top, height)).reshape(height, found.width, CHANNELS)
        # the thread's memory is read into again by the next row
        return pixels[:, left : left + width].copy()

    def image_size(self, blob: Blob) -> tuple[int, int]:
        """Return height and width; of a JPEG file its header is read. See `Codec.image_size`."""
        found = self._parse(blob)
        return (found.height, found.width) if found.is_plain else self._made(found, JpegCodec.image_size)

    def embedded(self) -> Feature:
        """Return the feature that holds the same images; see `FileCodec.embedded`."""
        return self._embedded

    def embed(self, blobs: Sequence[Blob]) -> BetonImages:
        """Return the images of an episode as they are; see `FileCodec.embed`."""
        if isinstance(blobs, np.ndarray) and blobs.shape[1:] == (REFERENCE.size,):
            references = blobs
        else:
            checked = [_checked(blob) for blob in blobs]
            references = np.concatenate([np.empty(0, np.uint8), *checked]).reshape(-1, REFERENCE.size)
        return BetonImages(self._files.paths, references, self._files.states, self._files.reach)

    @classmethod
    def bytes_in_files(cls, references: Blob) -> int:
        """Return how many bytes images have in their files; see `ListedFileCodec.bytes_in_files`."""
        whole = references[: references.size // REFERENCE.size * REFERENCE.size]
        return int(_image_bytes(whole.view(SPAN_DTYPE)).sum())

    def _parse(self, blob: Blob) -> _Place:
        found = _Place.of(blob)
        if found.is_plain and self._size is not None and (found.height, found.width) != self._size:
            raise DecodeError(
                f"a plain image of {found.height}x{found.width}, where the feature is {self.feature.shape}."
            )
        return found

    def _made(
        self, found: _Place, make: Callable[[JpegCodec, Blob], _Made], files: FilesOfBatch | None = None
    ) -> _Made:
        """Return what is made of a JPEG file; errors say where it lies."""
        if self._jpeg is None:
            raise DecodeError(f'{found.where(self._files)}: no plain image, where the option format is "{PLAIN}".')
        data = (files or self._files).read(found.file, found.offset, found.num_bytes)
        try:
            return make(self._jpeg, data)
        except DecodeError as error:
            raise DecodeError(f"{found.where(self._files)}: {error}") from error


@dataclass(frozen=True, eq=False)
class BetonImages:
    """The images of an episode that lie in ``.beton`` files; a store copies their bytes, or refers to them.

    Args:
        paths: of the files.
        references: uint8 [n, 16], see `make_image_references`.
        states: what the files were when the references were made, see `noted_states`; "" where that was
            just now.
        reach: where the files may lie, see `stepwell.references.trusted_paths`; None: anywhere.
    """

    paths: Sequence[PathLike]
    references: Blob
    states: str = ""
    reach: tuple[str, ...] | None = None

    @property
    def num_rows(self) -> int:
        """Images that there are."""
        return len(self.references)

    @property
    def nbytes(self) -> int:
        """Bytes of all images, in their files."""
        return int(_image_bytes(np.ascontiguousarray(self.references).reshape(-1).view(SPAN_DTYPE)).sum())

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the rows as a feature has them: of codec "jpeg-or-raw" or "raw", or references, of "beton-image".

        Raises:
            SchemaError: none of them, references into other files, or JPEG files where they should be plain.
            DecodeError: a file that is gone, or ends before an image does.
        """
        if feature.codec == NAME:
            if files_of(feature).paths != paths_of(*common_root(self.paths)):
                raise SchemaError(
                    f"images of {', '.join(map(str, self.paths))}, which are not the files of the feature."
                )
            return (row.tobytes() for row in self.references)
        if feature.codec not in STORED:
            raise SchemaError(f"the images are rows of codec {' or '.join(STORED)}, not {feature!r}.")
        files = SpanFiles(self.paths, self.states, self.reach)
        return (_Place.of(row).as_stored(files, feature) for row in self.references)

    def __repr__(self) -> str:
        return f"<BetonImages {self.num_rows:,} rows>"


@dataclass(frozen=True, slots=True)
class _Place:
    """A reference, parsed."""

    file: int
    offset: int
    num_bytes: int
    is_plain: bool
    height: int
    width: int

    @classmethod
    def of(cls, blob: Blob) -> _Place:
        file, size, place = REFERENCE.unpack(_checked(blob).data)
        if not place & IS_PLAIN:
            return cls(file, place, size, False, 0, 0)
        height, width = size >> 16, size & 0xFFFF
        if not height * width:
            raise DecodeError(f"a reference to a plain image of {height}x{width}. Allowed: sides of 1 to 65535.")
        return cls(file, place ^ IS_PLAIN, height * width * CHANNELS, True, height, width)

    def lines(self, top: int, height: int) -> tuple[int, int, int]:
        """Return file, offset and bytes of some lines of pixels."""
        line = self.width * CHANNELS
        return self.file, self.offset + top * line, height * line

    def as_stored(self, files: SpanFiles, feature: Feature) -> bytes:
        """Return the image as a row of a codec that holds it."""
        data = files.read(self.file, self.offset, self.num_bytes)
        if feature.codec == PLAIN:
            if not self.is_plain:
                raise SchemaError(f'{self.where(files)}: a JPEG file is no row of codec "{PLAIN}".')
            return (SIDES.pack(self.height, self.width) if feature.is_ragged else b"") + data.tobytes()
        return raw_row(data, self.height, self.width) if self.is_plain else data.tobytes()

    def where(self, files: SpanFiles) -> str:
        """Return what messages call it."""
        return f"{files.called(self.file)}, byte {self.offset}"


def _checked(blob: Blob) -> Blob:
    if blob.size != REFERENCE.size:
        raise DecodeError(f"a row of {blob.size} bytes. A reference to an image has {REFERENCE.size}.")
    return blob
