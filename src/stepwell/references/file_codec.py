"""Rows that lie in files of other systems: a row of the store is a reference, 16 bytes that say where.

::

    NAME.bin   | chunk file at | chunk file at | ...       a reference a row, NAME.npy has its offsets as ever
                     |
    "set/videos/top/chunk-{chunk:03d}/file-{file:03d}.mp4"     the option `files` of a `NumberedFileCodec`
                     |
    file-003.mp4   ... the frame shown at `at` seconds       file-003.parquet   ... row number `at`

Such a column is read-only: it can be copied, and embedded in a store that needs no other files. Rows that are plain
bytes of a file have references of their own kind, and their features list the files: `ListedFileCodec`.
"""

from __future__ import annotations

import json
import os
import re
import struct
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from string import Formatter
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec
from stepwell.errors import DecodeError, EncodeError, SchemaError
from stepwell.json_text import parse_json
from stepwell.references.span_files import PathLike, SpanFiles, common_root, lines_of, paths_of
from stepwell.references.trusted_paths import check_reach
from stepwell.schema import Feature

__all__ = [
    "REFERENCE",
    "REFERENCE_DTYPE",
    "EmbeddedRows",
    "FileCodec",
    "ListedFileCodec",
    "NumberedFileCodec",
    "file_template",
    "files_of",
    "left_in_files",
    "make_references",
    "noted_dataset",
    "noting_states",
    "parse_references",
    "template_of",
]

REFERENCE_DTYPE = np.dtype([("chunk", "<i4"), ("file", "<i4"), ("at", "<f8")])
"""A reference: numbers of the file's directory and of the file; seconds in a video file, or a row of a table."""
REFERENCE = struct.Struct("<iid")
"""The same, of one row."""

NUMBERS = ("chunk", "file")
# zeros before a number; a width without a bound would take memory
NUMBER_FORMAT = re.compile(r"(0?[0-9]{1,2})?d?")


class EmbeddedRows(Protocol):
    """The rows of an episode as bytes that need no other files; a writer of stores takes it as it is."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the rows as the feature's codec has them, first to last."""


class FileCodec(Codec):
    """A codec whose rows are references into files that are not the store's.

    To add one: subclass, implement `decode`, `embedded` and `embed`. References are of 16 bytes.

    Attributes:
        reference_maker: the function that makes references, named by errors.

    Notes:
        As for `Codec`. The files are looked at when a row is decoded, not before: a store can be opened without them.
        A file that was replaced is noticed by codecs that are made afterwards, which opening a store does.
    """

    is_reference: ClassVar[bool] = True
    reference_maker: ClassVar[str] = "stepwell.references.file_codec.make_references"

    def encode(self, value: Any) -> NoReturn:
        """Refuse: nothing can be added to files that are not the store's.

        Raises:
            EncodeError: always.
        """
        raise EncodeError(
            f"codec {self.feature.codec!r} holds references into other files and cannot store new rows. Give "
            f"references, see {self.reference_maker}; or make the feature {self.embedded()!r}."
        )

    def check_reach(self, path: str) -> None:
        """Refuse a file that references of this store may not lead to; to be called before it is opened.

        Args:
            path: of the file, or its address.

        Raises:
            UntrustedFileError: its user did not allow it.
        """
        check_reach(path, self.feature.reach)

    @abstractmethod
    def embedded(self) -> Feature:
        """Return the feature that holds the same rows as bytes of its own; reads no file."""

    @abstractmethod
    def embed(self, blobs: Sequence[npt.NDArray[np.uint8]]) -> EmbeddedRows:
        """Return the rows of one episode for `embedded`, without decoding and encoding them again.

        Args:
            blobs: the references, in order; of rows that stand alone those of several episodes, as uint8 [n, 16].

        Raises:
            DecodeError: a file that is missing or damaged.
        """


class NumberedFileCodec(FileCodec):
    """A codec of references into files that are named by the numbers of their directory and their own.

    Option ``dataset``: what the data set was when the references were made, see `noted_dataset`.
    """

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self._files = template_of(feature)
        self._dataset = _parse_dataset(feature)
        self._reached: dict[tuple[int, int], str] = {}

    def path_of(self, chunk: int, file: int) -> str:
        """Return the path of a file, for messages."""
        return self._files.format(chunk=chunk, file=file)

    def reached(self, chunk: int, file: int) -> str:
        """Return the path of a file that is going to be read."""
        path = self._reached.get((chunk, file))
        if path is None:
            path = self.path_of(chunk, file)
            self.check_reach(path)
            self._reached[chunk, file] = path
        return path

    def check_dataset(self) -> None:
        """Refuse files of a data set that has taken the place of the one that references were made for.

        To be called after a file was opened: a data set that is replaced later does not change what is open.

        Raises:
            DecodeError: it was replaced, as by an edit in place.
        """
        if self._dataset is None:
            return
        root, name, *noted = self._dataset
        self.check_reach(f"{root}/{name}")
        try:
            inode, *found = _dataset_state(root, name)
        except OSError:
            return  # it was moved away: a file that is not there says so itself
        # one that grows keeps its directory, one that was copied back its file
        if inode != noted[0] and found != noted[1:]:
            raise DecodeError(f"{root} was edited in place, or replaced, after it was opened. Open it again.")


class ListedFileCodec(FileCodec):
    """A codec of references into files that its feature lists."""

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self._files = files_of(feature)

    @classmethod
    @abstractmethod
    def bytes_in_files(cls, references: npt.NDArray[np.uint8]) -> int:
        """Return how many bytes rows have in their files."""


def left_in_files(feature: Feature, codec: str, paths: Sequence[PathLike]) -> Feature:
    """Return a feature of references to rows of another one that lie in files."""
    root, files = common_root(paths)
    options = {**dict(feature.options), "root": root, "files": files, "format": feature.codec}
    return replace(feature, codec=codec, options=tuple(sorted(options.items())), codec_module=None)


def noting_states(feature: Feature, states: str) -> Feature:
    """Return a feature of references that says what its files were when these were made."""
    return replace(feature, options=tuple(sorted({**dict(feature.options), "states": states}.items())))


def noted_dataset(root: str, name: str) -> str:
    """Return the option ``dataset``: which directory a data set is, and the state of a file that changes with it.

    Args:
        root: the data set's directory.
        name: of the file, from there.
    """
    return json.dumps([root, name, *_dataset_state(root, name)])


def _dataset_state(root: str, name: str) -> tuple[int, int, int]:
    """Return the directory's inode, and the file's bytes and time of the last change (ns)."""
    status = os.stat(f"{root}/{name}")  # noqa: PTH116  all else here are texts
    return os.stat(root).st_ino, status.st_size, status.st_mtime_ns  # noqa: PTH116


def _parse_dataset(feature: Feature) -> list[Any] | None:
    text = feature.option("dataset", None)
    if text is None:
        return None
    try:
        found = parse_json(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if not isinstance(found, list) or list(map(type, found)) != [str, str, int, int, int]:
        raise SchemaError(f"option 'dataset' of codec {feature.codec!r} is {str(text)[:40]!r}. See noted_dataset.")
    return found


def files_of(feature: Feature) -> SpanFiles:
    """Return the files that a feature lists."""
    options = dict(feature.options)
    root, files, states = options.get("root"), options.get("files"), options.get("states", "")
    if not isinstance(root, str) or not isinstance(files, str) or not files or not isinstance(states, str):
        raise SchemaError(
            f"options root={root!r}, files={str(files)[:40]!r}, states={str(states)[:40]!r} of codec "
            f"{feature.codec!r}. Allowed: texts, and at least one file; see left_in_files."
        )
    paths = paths_of(root, files)
    if states and len(lines_of(states)) != len(paths):
        raise SchemaError(f"codec {feature.codec!r}: states of {len(lines_of(states))} files, where {len(paths)} are.")
    return SpanFiles(paths, states, feature.reach)


def file_template(directory: str, names: str) -> str:
    """Return the option ``files`` of files in a directory, whatever characters its path has."""
    return f"{directory.replace('{', '{{').replace('}', '}}').rstrip('/')}/{names}"


def make_references(chunk: npt.ArrayLike, file: npt.ArrayLike, at: npt.ArrayLike) -> list[bytes]:
    """Return references as rows of a store."""
    parts = np.broadcast_arrays(np.atleast_1d(chunk), file, at)
    references = np.empty(len(parts[0]), REFERENCE_DTYPE)
    for name, part in zip(REFERENCE_DTYPE.names or (), parts, strict=True):
        references[name] = part
    data, size = references.tobytes(), REFERENCE_DTYPE.itemsize
    return [data[start : start + size] for start in range(0, len(data), size)]


def parse_references(blobs: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[Any]:
    """Return rows as `REFERENCE_DTYPE` [n]."""
    if isinstance(blobs, np.ndarray) and blobs.shape[1:] == (REFERENCE_DTYPE.itemsize,):
        return np.ascontiguousarray(blobs).reshape(-1).view(REFERENCE_DTYPE)
    for blob in blobs:
        if blob.size != REFERENCE_DTYPE.itemsize:
            raise DecodeError(f"a row of {blob.size} bytes. A reference into a file has {REFERENCE_DTYPE.itemsize}.")
    return np.frombuffer(b"".join(blob.data for blob in blobs), REFERENCE_DTYPE)


def template_of(feature: Feature) -> str:
    """Return the option ``files`` of a `NumberedFileCodec`: a path with numbers in it."""
    files = feature.option("files", None)
    try:
        parts = list(Formatter().parse(files)) if isinstance(files, str) else []
        if parts and all(
            name is None or (name in NUMBERS and NUMBER_FORMAT.fullmatch(form or "") and not conversion)
            for _, name, form, conversion in parts
        ):
            return str(files)
    except ValueError:
        pass  # what it should be is said below
    raise SchemaError(
        f"option 'files' of codec {feature.codec!r} is {files!r}. Allowed: a path with {{chunk}} and {{file}}, such as "
        "'/data/videos/chunk-{chunk:03d}/file-{file:03d}.mp4'."
    )
