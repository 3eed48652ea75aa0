"""Rows that lie in files of somebody else's: a row of the store is a reference, 16 bytes that say where.

::

    NAME.bin   | chunk file at | chunk file at | ...       a reference a row, NAME.npy has its offsets as ever
                     |
    "set/videos/top/chunk-{chunk:03d}/file-{file:03d}.mp4"     the option `files` of a `NumberedFileCodec`
                     |
    file-003.mp4   ... the picture shown at `at` seconds       file-003.parquet   ... row number `at`

Such a column is read-only: it can be copied, and embedded in a store that needs no other files. Rows that are plain
bytes of a file have references of their own kind: `stepwell.codecs.file_spans`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec
from stepwell.errors import DecodeError, EncodeError, SchemaError
from stepwell.schema import Feature

__all__ = [
    "REFERENCE_DTYPE",
    "EmbeddedRows",
    "FileCodec",
    "NumberedFileCodec",
    "file_template",
    "make_references",
    "parse_references",
]

REFERENCE_DTYPE = np.dtype([("chunk", "<i4"), ("file", "<i4"), ("at", "<f8")])
"""A reference: numbers of the file's directory and of the file; seconds in a video file, or a row of a table."""


class EmbeddedRows(Protocol):
    """The rows of an episode as bytes that need no other files; a writer of stores takes it as it is."""

    @property
    def num_rows(self) -> int:
        """Rows that there are."""

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the rows as the feature's codec has them, first to last."""


class FileCodec(Codec):
    """A codec whose rows are references into files that are not the store's.

    To add one: subclass, implement `decode`, `embedded` and `embed`. References are of 16 bytes.

    Attributes:
        reference_maker: what makes references, said by errors.

    Notes:
        As for `Codec`. The files are looked at when a row is decoded, not before: a store can be opened without them.
        A file that was replaced is noticed by codecs that are made afterwards, which opening a store does.
    """

    reference_maker: ClassVar[str] = "stepwell.codecs.files.make_references"

    def encode(self, value: Any) -> NoReturn:
        """Refuse: nothing can be added to files that are not the store's.

        Raises:
            EncodeError: always.
        """
        raise EncodeError(
            f"codec {self.feature.codec!r} holds references into other files and cannot store new rows. Give "
            f"references, see {self.reference_maker}; or make the feature {self.embedded()!r}."
        )

    @abstractmethod
    def embedded(self) -> Feature:
        """Return the feature that holds the same rows as bytes of its own; reads no file."""

    @abstractmethod
    def embed(self, blobs: Sequence[npt.NDArray[np.uint8]]) -> EmbeddedRows:
        """Return the rows of one episode for `embedded`, without decoding and encoding them again.

        Args:
            blobs: the references, in order.

        Raises:
            DecodeError: a file that is missing or damaged.
        """


class NumberedFileCodec(FileCodec):
    """A codec of references into files that are told by the numbers of their directory and their own.

    Args:
        feature: the feature. Option ``files``: the files' path as a template of ``chunk`` and ``file``, absolute; see
            `file_template`.

    Raises:
        SchemaError: no option ``files``, or one that is no such template.
    """

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self._files = _checked_template(feature)

    def path_of(self, chunk: int, file: int) -> str:
        """Return the path of a file."""
        return self._files.format(chunk=chunk, file=file)


def file_template(directory: str, names: str) -> str:
    """Return the option ``files`` of files in a directory, whatever characters its path has.

    Args:
        directory: absolute path.
        names: of the files below it, with ``{chunk}`` and ``{file}``, e.g. ``"chunk-{chunk:03d}/file-{file:03d}.mp4"``.

    Example:
        >>> file_template("/data/{a}", "{chunk}/{file:02d}.mp4").format(chunk=1, file=7)
        '/data/{a}/1/07.mp4'
    """
    return f"{directory.replace('{', '{{').replace('}', '}}').rstrip('/')}/{names}"


def make_references(chunk: npt.ArrayLike, file: npt.ArrayLike, at: npt.ArrayLike) -> list[bytes]:
    """Return references as rows of a store.

    Args:
        chunk: int [n], number of the directory of each row's file; or one for all.
        file: int [n], number of the file; likewise.
        at: float [n], seconds in the video file, or the number of the row in the table; likewise.

    Example:
        >>> rows = make_references(0, 1, [0.0, 0.1])
        >>> len(rows), len(rows[0]), parse_references([np.frombuffer(rows[1], np.uint8)])[0]["at"].item()
        (2, 16, 0.1)
    """
    parts = np.broadcast_arrays(np.atleast_1d(chunk), file, at)
    references = np.empty(len(parts[0]), REFERENCE_DTYPE)
    for name, part in zip(REFERENCE_DTYPE.names or (), parts, strict=True):
        references[name] = part
    data, size = references.tobytes(), REFERENCE_DTYPE.itemsize
    return [data[start : start + size] for start in range(0, len(data), size)]


def parse_references(blobs: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[Any]:
    """Return rows as `REFERENCE_DTYPE` [n].

    Raises:
        DecodeError: a row that is no reference.
    """
    for blob in blobs:
        if blob.size != REFERENCE_DTYPE.itemsize:
            raise DecodeError(f"a row of {blob.size} bytes. A reference into a file has {REFERENCE_DTYPE.itemsize}.")
    return np.frombuffer(b"".join(blob.data for blob in blobs), REFERENCE_DTYPE)


def _checked_template(feature: Feature) -> str:
    """Return the option ``files``."""
    files = feature.option("files", None)
    try:
        if isinstance(files, str) and files.format(chunk=0, file=0):
            return files
    except (ValueError, LookupError, AttributeError):
        pass  # what it should be is said below
    raise SchemaError(
        f"option 'files' of codec {feature.codec!r} is {files!r}. Allowed: a path with {{chunk}} and {{file}}, such as "
        "'/data/videos/chunk-{chunk:03d}/file-{file:03d}.mp4'."
    )
