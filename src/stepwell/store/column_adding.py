"""Add a column to the sealed segments of a store, without touching the other columns.

::

    staging/SEGMENT/   the column's files, statistics.npz and segment.json, complete and on the disk, of every segment
        → renamed into the segments (the files they replace are kept for undo)
        → store.json with the feature     <- from here on the column is there
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import SchemaError, StepError, StoreBusyError
from stepwell.json_text import seal_json
from stepwell.schema import Feature, Schema
from stepwell.sizes import counted
from stepwell.store.beneath import check_directory
from stepwell.store.column_file import EncodedColumn, RawColumn, make_column
from stepwell.store.encoded_rows import EncodedRows
from stepwell.store.encoding import RunWriter
from stepwell.store.layout import (
    EPISODES,
    SEGMENT_JSON,
    link_file,
    locked_store,
    replace_file,
    sync_directory,
    sync_tree,
)
from stepwell.store.maintenance import keep_for_undo, maintained_store, plan_undo
from stepwell.store.manifests import read_manifest, shown_segments
from stepwell.store.sealing import recover_store, synced_files
from stepwell.store.segments import Segment
from stepwell.store.statistics import STATISTICS, load_statistics, segment_statistics, write_statistics
from stepwell.store.values import accept_column

if TYPE_CHECKING:
    from stepwell.store.episodes import Episode
    from stepwell.store.store import Store

__all__ = ["add_column"]

Columns = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class _Addition:
    """What is added: ``column`` returns the accepted column of an episode of the store."""

    store: Store
    name: str
    feature: Feature
    column: Columns
    progress: Callable[[int, int], None] | None


def add_column(
    store: Store,
    name: str,
    feature: Feature,
    values: Any,
    *,
    final: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Add a feature to a store and store its values, as new files in each sealed segment."""
    store.check_writable("add a column")
    feature = feature if final is None else feature.with_final(final)
    with _standing_still(store) as staging:
        schema = _extended(store, name, feature)
        addition = _Addition(store, name, feature, _columns_of(store, name, feature, values), progress)
        plan_undo(staging, name)
        for number in range(len(store.segments)):
            _stage_segment(addition, number, staging)
        # what undoes the rest must be there when any of it is
        sync_tree(staging)
        sync_directory(str(store.path))
        for segment in store.segments:
            _install(f"{staging}/{segment.name}", str(segment.path))
        store.replace_record(store.record.with_schema(schema))
    store.refresh()


@contextmanager
def _standing_still(store: Store) -> Iterator[str]:
    """Keep everybody from writing; yields the staging directory, with the store refreshed."""
    path = str(store.path)
    recover_store(path, store.schema)
    with maintained_store(path) as staging, locked_store(path):
        for segment, (_, is_sealed) in shown_segments(path)[0].items():
            if not is_sealed:
                raise StoreBusyError(
                    f"segment {segment} of {path} is being recorded. Close its writer first: a column can only be "
                    "added to a store that stands still."
                )
        store.refresh()
        yield staging


def _extended(store: Store, name: str, feature: Feature) -> Schema:
    if store.schema is None:
        raise SchemaError(f"{store.path} has no features yet. Give the schema to create(), or record a step first.")
    schema = store.schema.with_feature(name, feature)
    try:
        make_codec(feature)
    except SchemaError as error:
        raise SchemaError(f"feature {name!r}: {error}") from error
    return schema


def _columns_of(store: Store, name: str, feature: Feature, values: Any) -> Columns:
    """Return the function from an episode's index to its accepted column."""
    table = store.episodes
    lengths = table.rows if feature.final else table.length
    take = _taker(store, name, lengths, values)

    def column(index: int) -> Any:
        try:
            accepted = accept_column(name, feature, take(index))
        except StepError as error:
            raise StepError(f"episode {index}: {error}") from error
        if len(accepted) != lengths[index]:
            kind = "rows, the final one included" if feature.final else "steps"
            raise StepError(
                f"episode {index}: feature {name!r}: got {len(accepted)} values, it has {lengths[index]} {kind}."
            )
        return accepted

    return column


def _taker(store: Store, name: str, lengths: npt.NDArray[np.int64], values: Any) -> Columns:
    """Return the function from an episode's index to what the user gave for it."""
    if callable(values):
        function: Callable[[Episode], Any] = values
        return lambda index: function(store[index])
    if isinstance(values, Mapping):
        missing = [index for index in range(len(lengths)) if index not in values]
        if missing or len(values) != len(lengths):
            raise StepError(
                f"feature {name!r}: values of {counted(len(values), 'episode')}, episode {missing[:1] or len(lengths)} "
                f"is {'missing' if missing else 'none of the store'}. "
                f"Give one column for each of {len(lengths)} episodes."
            )
        return lambda index: values[index]
    if isinstance(values, list | tuple):
        if len(values) != len(lengths):
            raise StepError(
                f"feature {name!r}: a list of {len(values)} columns for {len(lengths)} episodes. Give one for each, "
                "or one array over all steps."
            )
        return lambda index: values[index]
    steps = np.asarray(values)
    ends = np.cumsum(lengths)
    total = int(lengths.sum())
    if steps.ndim == 0 or len(steps) != total:
        raise StepError(
            f"feature {name!r}: an array of shape {steps.shape}; all {len(lengths)} episodes have {total} rows. "
            "Give a row for each, or a list with one column an episode."
        )
    return lambda index: steps[ends[index] - lengths[index] : ends[index]]


def _stage_segment(addition: _Addition, number: int, staging: str) -> None:
    """Write all that a segment gets, on the disk, and keep what of it is replaced."""
    segment = addition.store.segments[number]
    staged = f"{staging}/{segment.name}"
    os.mkdir(staged)
    column = make_column(staged, addition.name, addition.feature, segment.num_rows)
    try:
        with _column_writer(addition.name, column) as write:
            _fill(column, write, addition, number)
    finally:
        column.close()
    _describe(staged, segment, Schema({addition.name: addition.feature}))
    keep_for_undo(staging, str(segment.path), (STATISTICS, SEGMENT_JSON))


def _fill(
    column: RawColumn | EncodedColumn, write: Callable[[int, int, Any], None], addition: _Addition, number: int
) -> None:
    """Write the column of one segment: values of the episodes that are shown, zeros for the others."""
    table = addition.store.episodes
    # a table is ordered by segment
    shown = np.arange(*np.searchsorted(table.segment, [number, number + 1]))
    index_of = dict(zip(table.record[shown].tolist(), shown.tolist(), strict=True))
    for place, record in enumerate(addition.store.segments[number].records):
        index = index_of.get(place)
        start, rows = int(record["start"]), int(record["rows"])
        if index is not None:
            values = addition.column(index)
            # a ring may have evicted the first steps of it
            gone = int(table.start[index]) - start
            if gone and not isinstance(column, RawColumn):
                write(start, gone, [_blank(addition.feature)] * gone)
            start, rows = start + gone, rows - gone
        elif isinstance(column, RawColumn):
            # rows that are not written are zeros already
            continue
        else:
            # statistics count the final row of what is hidden, too
            values = [_blank(addition.feature)] * (rows if addition.feature.final else int(record["length"]))
        write(start, rows, values)
        if index is not None and addition.progress is not None:
            addition.progress(index + 1, len(table))


@contextmanager
def _column_writer(name: str, column: RawColumn | EncodedColumn) -> Iterator[Callable[[int, int, Any], None]]:
    """Yield the function that stores an episode: its first row, how many it has, and the values of the first ones."""
    if isinstance(column, RawColumn):
        yield lambda start, rows, values: column.write_rows(start, values)
    elif column.codec.is_sequential:
        with closing(RunWriter(name, column)) as runs:
            yield lambda start, rows, values: _write_runs(runs, start, rows, values)
    else:
        yield lambda start, rows, values: _write_encoded(column, start, rows, values)


def _write_encoded(column: EncodedColumn, start: int, rows: int, values: Any) -> None:
    blobs = values.buffers if isinstance(values, EncodedRows) else map(column.encode, values)
    column.write_rows(start, chain(blobs, repeat(b"", rows - len(values))))


def _write_runs(runs: RunWriter, start: int, rows: int, values: Any) -> None:
    if isinstance(values, EncodedRows):
        runs.put_encoded(start, values)
    else:
        for row, value in enumerate(values):
            runs.put(start + row, value)
        runs.end()
    runs.put_encoded(start + len(values), [b""] * (rows - len(values)))


def _blank(feature: Feature) -> Any:
    if feature.kind in ("text", "bytes"):
        return "" if feature.kind == "text" else b""
    # the smallest image of any size has one pixel
    varying = 1 if feature.is_image_of_any_size else 0
    return np.zeros([varying if size is None else size for size in feature.shape], feature.np_dtype)


def _describe(staged: str, segment: Segment, added: Schema) -> None:
    """Write the segment's manifest, and the statistics if it has any, as they are with the added column."""
    directory = str(segment.path)
    manifest = read_manifest(f"{directory}/{SEGMENT_JSON}")
    statistics = {}
    if STATISTICS in manifest["files"]:
        link_file(f"{directory}/{EPISODES}", f"{staged}/{EPISODES}")
        found = segment_statistics(Segment(staged, added, is_trimmed=True), added)
        os.unlink(f"{staged}/{EPISODES}")
        statistics = load_statistics(directory) | found
        write_statistics(staged, statistics)
    files = manifest["files"] | synced_files(staged)
    replaced = manifest | {
        "files": dict(sorted(files.items())),
        "statistics": {name: found.to_json() for name, found in statistics.items()},
    }
    replace_file(f"{staged}/{SEGMENT_JSON}", seal_json(replaced))


def _install(staged: str, directory: str) -> None:
    """Rename the staged files into their segment, the manifest last."""
    check_directory(directory)
    for entry in sorted(Path(staged).iterdir(), key=lambda entry: entry.name == SEGMENT_JSON):
        entry.replace(f"{directory}/{entry.name}")
    sync_directory(directory)
