"""How many files of others rows of a store were left in, and what these rows take there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.codecs import SequentialCodec, codec_class
from stepwell.errors import StepwellError
from stepwell.references.file_codec import (
    REFERENCE_DTYPE,
    FileCodec,
    ListedFileCodec,
    NumberedFileCodec,
    files_of,
    template_of,
)
from stepwell.references.file_states import noted_bytes
from stepwell.references.trusted_paths import check_reach
from stepwell.schema import Feature

if TYPE_CHECKING:
    from stepwell.store import Segment, Store

__all__ = ["FilesInPlace", "file_codec_of", "files_in_place", "in_place_bytes"]


@dataclass(frozen=True, slots=True)
class FilesInPlace:
    """The files of others that rows of a store were left in.

    Args:
        num_files: how many they are.
        num_bytes: what they had when references into them were made; have now, where that is not noted.
    """

    num_files: int
    num_bytes: int


def file_codec_of(feature: Feature) -> type[FileCodec] | None:
    """Return the codec of a feature whose rows are references into files of others; None of any other feature."""
    if feature.is_raw:
        return None
    try:
        kind = codec_class(feature)
    except StepwellError:
        # a codec that this process does not have
        return None
    return kind if issubclass(kind, FileCodec) else None


def files_in_place(store: Store) -> FilesInPlace | None:
    """Return how many files rows of a store were left in, and their bytes; None where there are none."""
    sizes: dict[str, int] = {}
    seen = set()
    for name, feature in (store.schema or {}).items():
        kind = file_codec_of(feature)
        if kind is not None and issubclass(kind, ListedFileCodec):
            options = tuple(feature.option(option, "") for option in ("root", "files", "states"))
            # features of one data set list the same ones
            if options not in seen:
                seen.add(options)
                sizes.update((path, noted_bytes(line)) for path, line in files_of(feature).noted())
        elif kind is not None and issubclass(kind, NumberedFileCodec):
            sizes.update(_numbered_sizes(store, name, feature))
    return FilesInPlace(len(sizes), sum(sizes.values())) if sizes else None


def in_place_bytes(store: Store, name: str, feature: Feature) -> int | None:
    """Return the bytes that rows of a feature have in files of others; None where that cannot be told without reading.

    Args:
        store: the store.
        name: of the feature.
        feature: it.
    """
    kind = file_codec_of(feature)
    if kind is None:
        return None
    if issubclass(kind, ListedFileCodec):
        return sum(kind.bytes_in_files(_references(segment, name)) for segment in store.segments)
    # a file of video has one camera, a table has other columns, too
    is_all = issubclass(kind, NumberedFileCodec) and issubclass(kind, SequentialCodec)
    return sum(_numbered_sizes(store, name, feature).values()) if is_all else None


def _numbered_sizes(store: Store, name: str, feature: Feature) -> Mapping[str, int]:
    """Return the files that references lead to, with their bytes; 0 of one that is not there."""
    places: set[tuple[int, int]] = set()
    for segment in store.segments:
        references = _references(segment, name).view(REFERENCE_DTYPE)
        where = references[["chunk", "file"]]
        # rows of one file follow each other
        is_other = (np.diff(where["chunk"]) != 0) | (np.diff(where["file"]) != 0)
        firsts = np.flatnonzero(np.concatenate([[len(where) > 0], is_other]))
        places.update(tuple(place) for place in where[firsts].tolist())
    template, sizes = template_of(feature), {}
    for chunk, file in places:
        path = template.format(chunk=chunk, file=file)
        sizes[path] = 0
        # nothing is told of a file that references may not lead to
        with suppress(OSError):
            check_reach(path, feature.reach)
            sizes[path] = os.stat(path).st_size
    return sizes


def _references(segment: Segment, name: str) -> Any:
    """Return the references of a segment back to back, uint8 [16 n]."""
    try:
        blobs = segment.blob_map(name)
    except FileNotFoundError:
        # compacted away since the store was refreshed
        return np.empty(0, np.uint8)
    size = REFERENCE_DTYPE.itemsize
    return blobs[: min(len(blobs) // size, segment.num_rows) * size]
