"""Write some episodes of sealed segments into one new segment: rows are copied, not encoded again unless told so."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError
from stepwell.schema import Feature, Schema
from stepwell.store.beneath import open_file
from stepwell.store.columns import write_all
from stepwell.store.episodes import EPISODE_DTYPE
from stepwell.store.key_notes import KeyNote, write_note
from stepwell.store.layout import EPISODES, METADATA
from stepwell.store.npy import header_bytes
from stepwell.store.sealing import write_manifest
from stepwell.store.segments import Segment
from stepwell.store.statistics import STATISTICS

__all__ = ["Source", "merge_segments"]

OFFSET = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class Source:
    """Episodes of a sealed segment that are kept.

    Args:
        segment: where they are.
        kept: bool [episodes], of its records.
        key: of its writer, which all that is merged has; empty: none.
    """

    segment: Segment
    kept: npt.NDArray[np.bool_]
    key: str = ""

    @property
    def records(self) -> npt.NDArray[Any]:
        """The kept episodes' records."""
        chosen: npt.NDArray[Any] = self.segment.records[self.kept]
        return chosen

    @property
    def num_rows(self) -> int:
        """Rows that are kept."""
        return int(self.records["rows"].sum())

    def ranges(self) -> list[tuple[int, int]]:
        """Return the kept rows as half-open ranges, as few as there can be."""
        found: list[tuple[int, int]] = []
        for start, rows in zip(self.records["start"].tolist(), self.records["rows"].tolist(), strict=True):
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], start + rows)
            else:
                found.append((start, start + rows))
        return found


def merge_segments(
    directory: str,
    schema: Schema,
    sources: Sequence[Source],
    *,
    columns: Mapping[str, Callable[[str], None]] = MappingProxyType({}),
) -> npt.NDArray[Any]:
    """Write a sealed segment of the kept episodes of ``sources``.

    Args:
        directory: to be made; named as a sealed segment is.
        schema: the new segment's features; the sources have the same, but for those of ``columns``.
        sources: at least one episode is kept.
        columns: name of each feature that is not copied, and what writes its files: called with their path, but for
            the suffix.

    Returns:
        The new episode records, in the order of the sources'.

    Raises:
        DiskFullError: no space.
        CorruptSegmentError: a source is damaged.
    """
    os.mkdir(directory)
    if sources[0].key:
        write_note(directory, KeyNote(sources[0].key))
    for name, feature in schema.items():
        if name in columns:
            columns[name](f"{directory}/{name}")
        elif feature.is_raw:
            _merge_raw(f"{directory}/{name}.npy", name, feature, sources)
        else:
            _merge_encoded(f"{directory}/{name}", name, sources)
    records = _merge_records(f"{directory}/{EPISODES}", sources)
    _merge_metadata(f"{directory}/{METADATA}", sources)
    # a ring's segments have none
    has_statistics = any((source.segment.path / STATISTICS).exists() for source in sources)
    write_manifest(directory, schema, sync=True, has_statistics=has_statistics)
    return records


def _merge_raw(path: str, name: str, feature: Feature, sources: Sequence[Source]) -> None:
    size = feature.row_bytes
    num_rows = sum(source.num_rows for source in sources)
    with _Output(path) as output:
        output.write(header_bytes(feature.np_dtype, feature.fixed_shape, num_rows))
        for source in sources:
            rows = source.segment.raw_map(name)
            for start, stop in source.ranges():
                output.write(rows[start * size : stop * size].data)


def _merge_encoded(stem: str, name: str, sources: Sequence[Source]) -> None:
    sizes: list[npt.NDArray[np.uint64]] = [np.zeros(1, OFFSET)]
    with _Output(f"{stem}.bin") as output:
        for source in sources:
            offsets, blobs = source.segment.offsets_map(name), source.segment.blob_map(name)
            for start, stop in source.ranges():
                mine = offsets[start : stop + 1]
                if np.any(mine[1:] < mine[:-1]) or int(mine[-1]) > len(blobs):
                    raise CorruptSegmentError(
                        f"{name}.npy of segment {source.segment.name}: the offsets of rows {start} to {stop} do not "
                        f'fit {name}.bin. Run "stepwell verify PATH".'
                    )
                sizes.append(np.diff(mine))
                output.write(blobs[int(mine[0]) : int(mine[-1])].data)
    merged = np.cumsum(np.concatenate(sizes), dtype=OFFSET)
    with _Output(f"{stem}.npy") as output:
        output.write(header_bytes(OFFSET, (), len(merged)))
        output.write(merged.view(np.uint8).data)


def _merge_records(path: str, sources: Sequence[Source]) -> npt.NDArray[Any]:
    records = np.concatenate([source.records for source in sources])
    records["start"] = np.cumsum(records["rows"]) - records["rows"]
    with _Output(path) as output:
        output.write(header_bytes(EPISODE_DTYPE, (), len(records)))
        output.write(records.tobytes())
    return records


def _merge_metadata(path: str, sources: Sequence[Source]) -> None:
    with _Output(path) as output:
        for source in sources:
            lines = source.segment.metadata_bytes().splitlines(keepends=True)
            if len(lines) != len(source.kept):
                raise CorruptSegmentError(
                    f"{METADATA} of segment {source.segment.name}: {len(lines)} lines for {len(source.kept)} episodes. "
                    'Run "stepwell verify PATH".'
                )
            output.write(b"".join(line for line, kept in zip(lines, source.kept, strict=True) if kept))


class _Output:
    """A new file that is written from front to back; DiskFullError when there is no room."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._end = 0

    def write(self, data: bytes | memoryview) -> None:
        write_all(self._descriptor, data, self._end, self._path)
        self._end += len(data)

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)
