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
from stepwell.schema import Schema
from stepwell.store.column_file import SegmentFiles
from stepwell.store.layout import METADATA
from stepwell.store.sealing import write_manifest
from stepwell.store.segments import Segment
from stepwell.store.statistics import STATISTICS
from stepwell.store.writer_keys import KeyNote, write_note

__all__ = ["Source", "merge_segments"]


@dataclass(frozen=True, slots=True)
class Source:
    """Episodes of a sealed segment that are kept."""

    # where they are
    segment: Segment
    # bool [episodes], of its records
    kept: npt.NDArray[np.bool_]
    # of its writer, which all that is merged has; empty: none
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
    """Write a sealed segment of kept episodes and return their records; ``columns`` write features that differ."""
    os.mkdir(directory)
    if sources[0].key:
        write_note(directory, KeyNote(sources[0].key))
    records = np.concatenate([source.records for source in sources])
    records["start"] = np.cumsum(records["rows"]) - records["rows"]
    num_rows = int(records["rows"].sum())
    with SegmentFiles(directory, schema, num_rows=num_rows, num_episodes=len(records), others=columns) as files:
        for name in schema:
            if name in columns:
                columns[name](f"{directory}/{name}")
                continue
            for source in sources:
                files.append_from(source.segment, name, source.ranges())
        files.append_episodes(records, b"".join(map(_metadata, sources)))
        files.finish()
    # a ring's segments have none
    has_statistics = any((source.segment.path / STATISTICS).exists() for source in sources)
    write_manifest(directory, schema, sync=True, has_statistics=has_statistics, checksums=files.checksums)
    return records


def _metadata(source: Source) -> bytes:
    """Return the lines of the kept episodes."""
    lines = source.segment.metadata_bytes().splitlines(keepends=True)
    if len(lines) != len(source.kept):
        raise CorruptSegmentError(
            f"{METADATA} of segment {source.segment.name}: {len(lines)} lines for {len(source.kept)} episodes. "
            'Run "stepwell verify PATH".'
        )
    return b"".join(line for line, kept in zip(lines, source.kept, strict=True) if kept)
