"""Pictures in parquet files: a row of the store says in which file and row the picture lies."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, choice_option, make_codec, register_codec
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.lerobot.parquet_row_groups import RowGroups, Stamp, stamp_of
from stepwell.references.file_codec import EmbeddedRows, NumberedFileCodec
from stepwell.references.span_files import difference, lines_of
from stepwell.schema import Feature

__all__ = ["PILLOW_FORMATS", "ParquetImageCodec", "picture_format"]

REFERENCE = struct.Struct("<iid")
PILLOW_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
SIGNATURES = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff"}
# shared by all codecs of a process, since each reader of a store makes its own
_ROW_GROUPS = RowGroups()


def picture_format(head: bytes) -> str | None:
    r"""Return "png" or "jpeg" by a file's first bytes; None for anything else.

    Example:
        >>> picture_format(b"\xff\xd8\xff\xe0")
        'jpeg'
    """
    return next((name for name, signature in SIGNATURES.items() if head.startswith(signature)), None)


@register_codec
class ParquetImageCodec(NumberedFileCodec):
    """References into parquet files: chunk, file, and the row there, of a column of picture files."""

    name: ClassVar[str] = "parquet-image"
    option_names: ClassVar[tuple[str, ...] | None] = ("files", "column", "format", "states")

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self._column = feature.option("column", None)
        if not isinstance(self._column, str) or not self._column:
            raise SchemaError(f"option 'column' of codec {feature.codec!r} is {self._column!r}. Allowed: a name.")
        self._format = choice_option(feature, "format", "png", tuple(SIGNATURES))
        self._codecs: dict[str, Codec] = {self._format: make_codec(self.embedded())}
        self._stamps: dict[tuple[int, int], Stamp] = {}

    def embedded(self) -> Feature:
        """Return the feature that holds the pictures' files; see `FileCodec.embedded`."""
        return self._stored_as(self._format)

    def embed(self, blobs: Sequence[npt.NDArray[np.uint8]]) -> EmbeddedRows:
        """Return the pictures' files as they are; one of another format is encoded anew. See `FileCodec.embed`."""
        return _Pictures(self, list(blobs))

    def decode(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Return the picture; see `Codec.decode`."""
        out = np.empty(self.feature.fixed_shape, self.feature.np_dtype)
        self.decode_into(blob, out)
        return out

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode the picture into `out`; see `Codec.decode_into`."""
        file = self.file_of(blob)
        try:
            self._decode_file(file, out)
        except DecodeError as error:
            raise DecodeError(f"{self._where(blob)}: {error}") from error

    def decode_crop(
        self, blob: npt.NDArray[np.uint8], box: tuple[int, int, int, int], size: tuple[int, int]
    ) -> npt.NDArray[Any]:
        """Return the pixels of a part; see `Codec.decode_crop`."""
        file = self.file_of(blob)
        codec = self._codec_of(file)
        if codec is not None:
            # what it refuses may be read whole; if not, that says why
            with suppress(DecodeError):
                return codec.decode_crop(file, box, size)
        return super().decode_crop(blob, box, size)

    def file_of(self, blob: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the bytes of the picture's file, a read-only view."""
        chunk, file, row = _parse(blob)
        stamp = self._stamps.get((chunk, file))
        if stamp is None:
            stamp = self._stamps[chunk, file] = self._stamp_of(chunk, file)
        found = _ROW_GROUPS.row(stamp, self._column, row)
        if not len(found):
            raise DecodeError(f"{self._where(blob)} has no bytes: the picture was left in a file of its own.")
        return found

    def _stamp_of(self, chunk: int, file: int) -> Stamp:
        """Return what tells a file from others, which is as it was when references were made."""
        path = self.reached(chunk, file)
        stamp = stamp_of(path)
        told = difference(path, self._noted.get(f"{chunk} {file}", ""), stamp[1])
        if told is not None:
            raise DecodeError(f"{path}: {told}")
        return stamp

    @functools.cached_property
    def _noted(self) -> dict[str, str]:
        """What is noted of files, by their two numbers."""
        parts = (line.rsplit(" ", 2) for line in lines_of(self.feature.option("states", "")))
        return {numbers: " ".join(state) for numbers, *state in parts}

    def as_embedded(self, blob: npt.NDArray[np.uint8]) -> bytes:
        """Return a picture as `embedded` has it."""
        file = self.file_of(blob)
        if picture_format(file[:8].tobytes()) == self._format:
            return file.tobytes()
        return self._codecs[self._format].encode(self.decode(blob))

    def _decode_file(self, file: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        codec = self._codec_of(file)
        if codec is None:
            out[...] = _decode_other(file, self.feature)
            return
        try:
            codec.decode_into(file, out)
        except DecodeError as error:
            # what the codec complains of others may read
            try:
                out[...] = _decode_other(file, self.feature)
            except (DecodeError, MissingDependencyError):
                raise error from None

    def _codec_of(self, file: npt.NDArray[np.uint8]) -> Codec | None:
        found = picture_format(file[:8].tobytes())
        if found is None:
            return None
        codec = self._codecs.get(found)
        if codec is None:
            codec = self._codecs[found] = make_codec(self._stored_as(found))
        return codec

    def _stored_as(self, codec: str) -> Feature:
        return replace(self.feature, codec=codec, options=())

    def _where(self, blob: npt.NDArray[np.uint8]) -> str:
        chunk, file, row = _parse(blob)
        return f"{self.path_of(chunk, file)}, row {row} of column {self._column!r}"


class _Pictures:
    """The picture files of an episode."""

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
            raise SchemaError(f"the pictures are {own!r}, not {feature!r}. Make the feature like them.")
        return map(self._codec.as_embedded, self._blobs)


def _parse(blob: npt.NDArray[np.uint8]) -> tuple[int, int, int]:
    try:
        chunk, file, at = REFERENCE.unpack(blob.data)
    except struct.error as error:
        raise DecodeError(f"a row of {blob.size} bytes. A reference into a file has {REFERENCE.size}.") from error
    if not at.is_integer():
        raise DecodeError(f"a reference to row {at}. Allowed: whole numbers.")
    return chunk, file, int(at)


def _decode_other(file: npt.NDArray[np.uint8], feature: Feature) -> npt.NDArray[Any]:
    """Return the pixels of a picture as Pillow reads it."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingDependencyError(
            f"the picture begins with {file[:4].tobytes()!r}: it is neither PNG nor JPEG. Type: pip install pillow"
        ) from error
    try:
        # others are read by programs, or are lists of files
        with Image.open(io.BytesIO(file.tobytes()), formats=PILLOW_FORMATS) as picture:
            if (picture.height, picture.width) != feature.fixed_shape[:2]:
                # before memory is taken for it
                raise DecodeError(
                    f"a picture of {picture.height}x{picture.width}, where the feature has {feature.fixed_shape}."
                )
            pixels = np.asarray(picture)
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise DecodeError(f"a picture of {file.size} bytes: {error}.") from error
    if pixels.size != np.prod(feature.fixed_shape) or pixels.shape[:2] != feature.fixed_shape[:2]:
        raise DecodeError(f"a picture of shape {pixels.shape}, where the feature has {feature.fixed_shape}.")
    return pixels.reshape(feature.fixed_shape)
