"""Sealed segments that are written at once: from columns of many episodes, or from episodes of other segments.

A `Writer` commits step by step, so that a kill loses nothing; here nothing is there until all of it is, and an episode
costs its record and its line of metadata. Rows are copied as they are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepError
from stepwell.json_text import seal_json
from stepwell.schema import Schema
from stepwell.store.column_file import RawColumn, SegmentFiles
from stepwell.store.episodes import EPISODE_DTYPE
from stepwell.store.layout import METADATA, SEGMENTS, STORE_JSON, built_store, new_tag, replace_file, step_id
from stepwell.store.manifests import KeyNote, write_note
from stepwell.store.records import SEGMENT_BYTES, StoreRecord
from stepwell.store.sealing import write_manifest
from stepwell.store.segments import Segment
from stepwell.store.statistics import STATISTICS
from stepwell.store.values import encode_metadata

__all__ = ["Blobs", "EpisodeBlock", "KeptEpisodes", "merge_segments", "write_store"]


@dataclass(frozen=True, slots=True, eq=False)
class Blobs:
    """Encoded rows back to back."""

    data: npt.NDArray[np.uint8]  # uint8 [n], C-contiguous
    sizes: npt.NDArray[np.int64]  # int64 [rows], bytes of each; their sum is n

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeBlock:
    """Whole episodes that follow each other."""

    lengths: npt.NDArray[np.int64]  # int64 [episodes], steps of each
    # every feature's rows: an array [rows, *shape] of its dtype where it is raw, `Blobs` where it is not
    columns: Mapping[str, npt.NDArray[Any] | Blobs]
    metadata: Sequence[Mapping[str, Any]]  # what is said of each episode
    # bool [episodes], those that reached a terminal state; None: none of them
    terminated: npt.NDArray[np.bool_] | None = None
    # bool [episodes], those that were cut by something outside of them; None: none of them
    truncated: npt.NDArray[np.bool_] | None = None
    ends_shard: bool = False  # whether the next block is of another file, and begins a segment of its own


def write_store(
    path: str | os.PathLike[str],
    schema: Schema,
    blocks: Iterable[EpisodeBlock],
    *,
    fps: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    uuid: str | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> None:
    """Write a new store; it appears whole, at the end, or not at all."""
    # Its segments have no statistics of their own; they are computed on first use. Encoded rows are not checked.
    # Neither a kill nor a loss of power can leave half of it.
    record = StoreRecord(schema=schema, fps=fps, metadata=dict(metadata or {}), segment_bytes=segment_bytes)
    record = record if uuid is None else replace(record, uuid=uuid)
    with built_store(path) as target:
        left = iter(blocks)
        for ordinal in count():
            block = next(left, None)
            if block is None:
                break
            directory = f"{target}/{SEGMENTS}/{ordinal:08d}-{new_tag()}"
            _write_segment(directory, schema, ordinal, chain([block], left), segment_bytes)
        replace_file(f"{target}/{STORE_JSON}", seal_json(record.to_json()))


def _write_segment(
    directory: str, schema: Schema, ordinal: int, blocks: Iterable[EpisodeBlock], segment_bytes: int
) -> None:
    """Write a segment of the first blocks, until it is large enough or its shard ends."""
    # properties of a feature, which cost more than a small block
    kinds = {
        name: (feature.np_dtype, feature.fixed_shape) if feature.is_raw else None for name, feature in schema.items()
    }
    os.mkdir(directory)
    num_rows = 0
    with SegmentFiles(directory, schema) as files:
        for block in blocks:
            num_new = int(block.lengths.sum())
            _check(block, num_new, schema, kinds)
            for name, column in files.columns.items():
                values: Any = block.columns[name]
                if isinstance(column, RawColumn):
                    column.append_rows(values, num_new)
                else:
                    column.append_rows(values.data, values.sizes)
            files.append_episodes(_records_of(block, ordinal, num_rows), b"".join(map(encode_metadata, block.metadata)))
            num_rows += num_new
            if block.ends_shard or sum(column.num_bytes_appended for column in files.columns.values()) > segment_bytes:
                break
        files.finish()
    write_manifest(directory, schema, has_statistics=False, checksums=files.checksums)


def _check(block: EpisodeBlock, num_rows: int, schema: Schema, kinds: Mapping[str, tuple[Any, Any] | None]) -> None:
    """Raise StepError for a block whose columns do not fit the schema and its lengths."""
    if len(block.metadata) != len(block.lengths):
        raise StepError(f"{len(block.metadata)} metadata for {len(block.lengths)} episodes. Give one each.")
    for name, kind in kinds.items():
        values = block.columns.get(name)
        if kind is None:
            is_right = isinstance(values, Blobs) and len(values) == num_rows and values.sizes.sum() == len(values.data)
        else:
            wanted = kind[0], (num_rows, *kind[1])
            is_right = isinstance(values, np.ndarray) and (values.dtype, values.shape) == wanted
        if not is_right:
            raise StepError(
                f"feature {name!r}: got {_described(values)} for {num_rows} rows of {schema[name]!r}. "
                "Give an array of its dtype and shape, or Blobs where it is encoded."
            )


def _records_of(block: EpisodeBlock, ordinal: int, first: int) -> npt.NDArray[Any]:
    records = np.zeros(len(block.lengths), EPISODE_DTYPE)
    records["length"] = records["rows"] = block.lengths
    records["start"] = first + np.cumsum(block.lengths) - block.lengths
    records["origin"] = records["start"] + step_id(ordinal, 0)
    records["time_ns"] = time.time_ns()
    for name, ends in (("terminated", block.terminated), ("truncated", block.truncated)):
        if ends is not None:
            records[name] = ends
    return records


def _described(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return f"an array of {values.dtype} and shape {values.shape}"
    return "nothing" if values is None else f"{type(values).__name__} of {len(values)} rows"


@dataclass(frozen=True, slots=True)
class KeptEpisodes:
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
    sources: Sequence[KeptEpisodes],
    *,
    columns: Mapping[str, Callable[[str], Mapping[str, tuple[int, int]]]] = MappingProxyType({}),
) -> npt.NDArray[Any]:
    """Write a sealed segment of kept episodes and return their records.

    ``columns`` write features that differ; each returns the checksums that it knows.
    """
    os.mkdir(directory)
    if sources[0].key:
        write_note(directory, KeyNote(sources[0].key))
    records = np.concatenate([source.records for source in sources])
    records["start"] = np.cumsum(records["rows"]) - records["rows"]
    num_rows = int(records["rows"].sum())
    checksums: dict[str, tuple[int, int]] = {}
    with SegmentFiles(directory, schema, num_rows=num_rows, num_episodes=len(records), others=columns) as files:
        for name in schema:
            if name in columns:
                checksums.update(columns[name](f"{directory}/{name}"))
                continue
            for source in sources:
                files.append_from(source.segment, name, source.ranges())
        files.append_episodes(records, b"".join(map(_metadata, sources)))
        files.finish()
    # a ring's segments have none
    has_statistics = any((source.segment.path / STATISTICS).exists() for source in sources)
    write_manifest(directory, schema, has_statistics=has_statistics, checksums={**files.checksums, **checksums})
    return records


def _metadata(source: KeptEpisodes) -> bytes:
    """Return the lines of the kept episodes."""
    lines = source.segment.metadata_bytes().splitlines(keepends=True)
    if len(lines) != len(source.kept):
        raise CorruptSegmentError(
            f"{METADATA} of segment {source.segment.name}: {len(lines)} lines for {len(source.kept)} episodes. "
            'Run "stepwell verify PATH".'
        )
    return b"".join(line for line, kept in zip(lines, source.kept, strict=True) if kept)
