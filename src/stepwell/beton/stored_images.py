"""Codecs of RGB images of ``.beton`` files: "beton-image" leaves them where they are, "jpeg-or-raw" holds them.

The size of an image stands in the file's table of samples, not in front of its bytes: so the row says it.

::

    "beton-image"   | file  size            0 offset |        a JPEG file of `size` bytes
                    | file  height width    1 offset |        height x width x 3 bytes of pixels; 1 is the highest bit

    "jpeg-or-raw"   FF D8 ...                                       a JPEG file
                    00 | uint16 height | uint16 width | pixels      plain, little-endian sizes, C order
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, choice_option, register_codec
from stepwell.codecs.jpeg import JpegCodec
from stepwell.codecs.raw import SIDES, bytes_of
from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.references.file_codec import ListedFileCodec, files_of, left_in_files
from stepwell.references.file_spans import SPAN_DTYPE
from stepwell.references.span_files import FilesOfBatch, PathLike, SpanFiles, common_root, paths_of
from stepwell.schema import Feature, Image

__all__ = [
    "BetonImageCodec",
    "BetonImages",
    "JpegOrRawCodec",
    "beton_image_feature",
    "jpeg_codec_like",
    "make_image_references",
    "raw_row",
]

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
    """Return the feature whose rows are images of these files, left there."""
    return left_in_files(feature, NAME, paths)


def make_image_references(file: int, rows: npt.NDArray[Any], offsets: Int64s, sizes: Int64s) -> Blob:
    """Return references to images of one file."""
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
    """References to images of ``.beton`` files, JPEG files or plain pixels."""

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


RAW_HEAD = struct.Struct("<BHH")
RAW_MARK = 0
MAX_SIDE = 65535


def raw_row(pixels: bytes | npt.NDArray[np.uint8], height: int, width: int) -> bytes:
    """Return a plain image as a row of the codec."""
    return RAW_HEAD.pack(RAW_MARK, height, width) + bytes(pixels)


def jpeg_codec_like(feature: Feature) -> JpegCodec:
    """Return the codec of a feature's rows that are JPEG files."""
    if not feature.is_rgb_image:
        raise SchemaError(
            f"codec {feature.codec!r} cannot store {feature.np_dtype.name} {feature.shape}. Allowed: uint8, RGB images."
        )
    return JpegCodec(Image(feature.shape, codec="jpeg", dct=feature.option("dct", "exact")))


@register_codec
class JpegOrRawCodec(Codec):
    """JPEG files and plain pixels in one column; new rows are stored plain, so that nothing is lost."""

    name: ClassVar[str] = "jpeg-or-raw"
    option_names: ClassVar[tuple[str, ...] | None] = ("dct",)
    decoding_options: ClassVar[tuple[str, ...]] = ("dct",)

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self._jpeg = jpeg_codec_like(feature)
        self._size = None if feature.is_ragged else feature.fixed_shape[:2]

    def encode(self, value: Any) -> bytes:
        """Return the image as plain pixels; see `Codec.encode`."""
        image = np.ascontiguousarray(value, np.uint8)
        height, width = image.shape[:2]
        if max(height, width) > MAX_SIDE:
            raise StepError(f"an image of {height}x{width}. Allowed: sides of 1 to {MAX_SIDE}.")
        return raw_row(bytes_of(image), height, width)

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the image; see `Codec.decode`."""
        return self._pixels(blob).copy() if _is_raw(blob) else self._jpeg.decode(blob)

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Copy or decode the image into `out`; see `Codec.decode_into`."""
        if not _is_raw(blob):
            self._jpeg.decode_into(blob, out)
            return
        pixels = self._pixels(blob)
        if pixels.shape != out.shape:
            raise DecodeError(f"a plain image of shape {pixels.shape}, where {out.shape} is wanted.")
        out[...] = pixels

    def decode_crop(
        self, blob: npt.NDArray[np.uint8], box: tuple[int, int, int, int], size: tuple[int, int]
    ) -> npt.NDArray[np.uint8]:
        """Return the pixels of a part; see `Codec.decode_crop`."""
        if not _is_raw(blob):
            return self._jpeg.decode_crop(blob, box, size)
        top, left, height, width = box
        return self._pixels(blob)[top : top + height, left : left + width]

    def image_size(self, blob: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Return height and width as the row's head tells them; see `Codec.image_size`."""
        if not _is_raw(blob):
            return self._jpeg.image_size(blob)
        height, width = self._pixels(blob).shape[:2]
        return height, width

    def _pixels(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the pixels of a plain row, a view of it."""
        height, width = RAW_HEAD.unpack_from(blob.data)[1:] if blob.size >= RAW_HEAD.size else (0, 0)
        wanted = self._size or (height, width)
        if (height, width) != wanted or not height * width or blob.size != RAW_HEAD.size + height * width * 3:
            raise DecodeError(
                f"a plain row of {blob.size} bytes, whose head tells of an image of {height}x{width}, where the "
                f"feature is {self.feature.shape}."
            )
        return blob[RAW_HEAD.size :].reshape(height, width, 3)


def _is_raw(blob: npt.NDArray[np.uint8]) -> bool:
    return blob.size > 0 and blob[0] == RAW_MARK
