"""Segments made of segments: compaction, concatenation, checkpoints and added columns.

**Compaction** writes sealed segments with deleted or discarded episodes, and runs of small ones, again::

    copy what is kept into staging/     →  arrangement.json: the new ones are hidden
    rename them into segments/          →  arrangement.json: the old ones are hidden   <- the swap, one rename
    remove the old ones                 →  arrangement.json: nothing is hidden

A process that finds hidden segments without a live owner removes them: before the swap that undoes the compaction,
after it that finishes it. See design/002-compaction.md. A ring is not rewritten, since what is deleted or discarded in
it counts until its time comes: what is wholly beyond its capacity is removed.

**Concatenation** links the segments of several stores into a new one, under new ordinals.

**A checkpoint** links the sealed segments of one store, and copies the committed rows of those that are being recorded.

**Adding a column** leaves the other columns as they are::

    staging/SEGMENT/   the column's files, statistics.npz and segment.json, complete and on the disk, of every segment
        → renamed into the segments (the files they replace are kept for undo)
        → store.json with the feature     <- from here on the column is there
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import SchemaError, StepError, StoreBusyError
from stepwell.json_text import seal_json
from stepwell.references.trusted_paths import Trust
from stepwell.schema import Feature, Schema
from stepwell.sizes import counted
from stepwell.store.beneath import check_directory, list_directory, system_errors
from stepwell.store.bulk_writing import KeptEpisodes, merge_segments
from stepwell.store.column_file import EncodedColumn, RawColumn, SegmentFiles, make_column
from stepwell.store.commit import CommitRecord
from stepwell.store.encoding import RunWriter
from stepwell.store.lanes import LaneState
from stepwell.store.layout import (
    DELETED,
    EPISODES,
    LOCK,
    METADATA,
    OPEN_SUFFIX,
    PROGRESS,
    SEGMENT_JSON,
    SEGMENTS,
    STORE_JSON,
    built_store,
    check_is_outside,
    column_files,
    copy_file,
    link_file,
    list_segments,
    locked_store,
    new_tag,
    replace_file,
    reserve_ordinals,
    split_id,
    step_id,
    sync_directory,
    sync_tree,
)
from stepwell.store.maintenance import (
    keep_for_undo,
    maintained_store,
    moved_ids,
    plan_undo,
    read_deleted,
    replace_deleted,
)
from stepwell.store.manifests import (
    ordered_segments,
    read_manifest,
    read_store_manifest,
    replace_store_manifest,
    shown_segments,
    write_note,
)
from stepwell.store.marks import MARKS, carry_marks
from stepwell.store.records import BirthLog, StoreRecord, births_of, read_record, runs_of
from stepwell.store.ring import evicted_ids
from stepwell.store.sealing import recover_store, synced_files
from stepwell.store.segments import Segment
from stepwell.store.statistics import STATISTICS, load_statistics, segment_statistics, write_statistics
from stepwell.store.values import EncodedRows, accept_column

if TYPE_CHECKING:
    from stepwell.store.episodes import Episode
    from stepwell.store.store import Store

__all__ = ["add_column", "checkpoint_store", "compact_store", "concatenate"]

Ids = npt.NDArray[np.int64]

# a segment below this part of the size of a full one is merged with its neighbours
SMALL_PART = 4
Columns = Callable[[int], Any]


@dataclass(frozen=True, slots=True)
class _Replacement:
    """Old segments, and the new one in their place."""

    sources: Sequence[KeptEpisodes]
    ordinal: int
    name: str
    num_bytes: int
    moved: tuple[Ids, Ids, Ids]  # of the kept episodes: first steps' ids before, steps, first steps' ids after

    @property
    def has_episodes(self) -> bool:
        return len(self.moved[0]) > 0


def compact_store(store: Store, *, progress: Callable[[int, int], None] | None = None) -> int:
    """Free the space of deleted and discarded episodes, and merge neighbouring small segments."""
    store.check_writable("compact it")
    store.refresh()
    path, schema = str(store.path), store.schema
    if schema is None:
        return 0
    recover_store(path, schema)
    if store.capacity is not None:
        return _evict(store)
    try:
        with maintained_store(path) as staging:
            replaced = _build(path, staging, schema, store.record.segment_bytes, progress)
            old = [source.segment for one in replaced for source in one.sources]
            freed = sum(_directory_bytes(str(segment.path)) for segment in old) - sum(one.num_bytes for one in replaced)
            if replaced:
                _swap(path, staging, replaced)
    finally:
        # also where the swap was made, and something failed after it
        store.refresh()
    return freed


def _evict(store: Store) -> int:
    """Remove what a ring does not show any more; returns the bytes freed."""
    store.refresh()
    sizes = {}
    for segment in store.segments:
        # a writer may remove it just now
        with suppress(FileNotFoundError):
            sizes[segment.name] = _directory_bytes(str(segment.path))
    gone = store.evictor.evict()
    store.refresh()
    return sum(sizes.get(name, 0) for name in gone)


def _build(
    path: str, staging: str, schema: Schema, segment_bytes: int, progress: Callable[[int, int], None] | None
) -> list[_Replacement]:
    """Write all new segments into the staging directory."""
    with locked_store(path) as lock:
        groups = _plan(path, schema, segment_bytes)
        first = reserve_ordinals(path, lock, len(groups)) if groups else 0
    built = []
    for number, group in enumerate(groups):
        built.append(_build_one(staging, schema, group, first + number))
        if progress is not None:
            progress(number + 1, len(groups))
    return built


def _build_one(staging: str, schema: Schema, sources: Sequence[KeptEpisodes], ordinal: int) -> _Replacement:
    name = f"{ordinal:08d}-{new_tag()}"
    before = np.concatenate([_first_ids(one.segment.ordinal, one.records) for one in sources])
    if len(before) == 0:
        return _Replacement(sources, ordinal, name, 0, (before, before, before))
    records = merge_segments(f"{staging}/{name}", schema, sources)
    moved = before, records["length"].copy(), _first_ids(ordinal, records)
    return _Replacement(sources, ordinal, name, _directory_bytes(f"{staging}/{name}"), moved)


def _plan(path: str, schema: Schema, segment_bytes: int) -> list[list[KeptEpisodes]]:
    """Return the groups of neighbouring segments that become one new segment each."""
    shown, manifest = ordered_segments(path)
    hidden = read_deleted(path)
    groups: list[list[KeptEpisodes]] = []
    run: list[KeptEpisodes] = []
    run_bytes, run_key = 0, ""
    for name, (_, is_sealed) in shown.items():
        source = None
        if is_sealed:
            source = _source(f"{path}/{SEGMENTS}/{name}", schema, hidden, manifest.keys.get(name, ""))
        size = 0 if source is None else _kept_bytes(source, schema)
        is_large = size * SMALL_PART >= segment_bytes or run_bytes >= segment_bytes
        key = "" if source is None else source.key
        if source is None or is_large or key != run_key:
            groups.append(run)
            run, run_bytes, run_key = [], 0, key
        if source is not None:
            run.append(source)
            # one that is large ends its run at once
            run_bytes += size if size * SMALL_PART < segment_bytes else segment_bytes
    groups.append(run)
    return [group for group in groups if len(group) > 1 or (group and not group[0].kept.all())]


def _source(directory: str, schema: Schema, hidden: Ids, key: str) -> KeptEpisodes:
    segment = Segment(directory, schema)
    is_hidden = np.isin(_first_ids(segment.ordinal, segment.records), hidden)
    kept = ~segment.records["discarded"] & ~is_hidden
    return KeptEpisodes(segment, kept, key if segment.note is None else segment.note.key)


def _first_ids(ordinal: int, records: npt.NDArray[Any]) -> Ids:
    return step_id(np.full(len(records), ordinal, np.int64), records["start"])


def _kept_bytes(source: KeptEpisodes, schema: Schema) -> int:
    """Return the bytes of the columns' kept rows, about; what a writer compares with ``segment_bytes``."""
    path, total = str(source.segment.path), 0
    for name, feature in schema.items():
        for file in column_files(name, feature):
            total += os.stat(f"{path}/{file}").st_size
    return total * source.num_rows // max(1, source.segment.num_rows)


def _swap(path: str, staging: str, replaced: Sequence[_Replacement]) -> None:
    """Show the new segments instead of the old ones; the old ones are removed when the staging directory is."""
    new = [one for one in replaced if one.has_episodes]
    positions = dict(read_store_manifest(path).positions)
    with locked_store(path):
        replace_store_manifest(path, positions, [one.name for one in new])
        _carry_births(path, new)
    for one in new:
        os.rename(f"{staging}/{one.name}", f"{path}/{SEGMENTS}/{one.name}")
    sync_directory(f"{path}/{SEGMENTS}")
    for one in new:
        first = one.sources[0].segment
        positions[one.name] = positions.get(first.name, first.ordinal)
    with locked_store(path):
        _carry_deletions(path, new)
        old = [source.segment.name for one in replaced for source in one.sources]
        replace_store_manifest(path, positions, old)


def _carry_births(path: str, new: Sequence[_Replacement]) -> None:
    """Take note of where the episodes of new segments were first written, if any were in another store."""
    record = read_record(path)
    if not record.births or not new:
        return
    there = np.array([ordinal for ordinal, _ in list_segments(path).values()], np.int64)
    log = BirthLog.continued(record, there)
    for one in new:
        parts = [(record, source.segment.ordinal, np.flatnonzero(source.kept)) for source in one.sources]
        log.add(one.ordinal, runs_of(parts))
    record = replace(record, births=log.end(new[-1].ordinal + 1))
    replace_file(f"{path}/{STORE_JSON}", seal_json(record.to_json()))


def _carry_deletions(path: str, new: Sequence[_Replacement]) -> None:
    """Delete, under their new ids, episodes deleted while they were copied; forget ids of segments long gone."""
    deleted = read_deleted(path)
    if len(deleted) == 0:
        return
    # those of the old segments stay until the next time: a reader may still have the old segments listed
    there = np.array([ordinal for ordinal, _ in list_segments(path).values()], np.int64)
    kept = deleted[np.isin(split_id(deleted)[0], there)]
    moved = [moved_ids(deleted, *one.moved) for one in new]
    replace_deleted(path, np.concatenate([kept, *moved]))


def _directory_bytes(path: str) -> int:
    with os.scandir(path) as entries:
        return sum(entry.stat().st_size for entry in entries)


def concatenate(
    path: str | os.PathLike[str],
    stores: Sequence[Store],
    *,
    link: bool = True,
    metadata: Mapping[str, Any] | None = None,
) -> Store:
    """Make a new store of the episodes of several, store by store.

    Args:
        path: of the new store; nothing may be there. It appears whole or not at all.
        stores: at least one, all with the same features and fps. What counts is what they have on the disk now.
        link: whether sealed files are hard links, which cost no space; False, or another file system: copies.
        metadata: of the new store; default: that of all stores together, which must agree on the keys they share.

    Returns:
        The new store, open for writing, with a uuid of its own. Step ids are new, ``origin`` is kept; deleted episodes
        stay deleted. It is no ring: of rings it shows the steps that they show now.

    Raises:
        SchemaError: no stores, or other features, fps or metadata in one of them than in the first.
        StoreBusyError: a store is still being recorded, or was compacted meanwhile; the message names it.
        StoreExistsError: something is at the path.
        StepwellError: the path lies in one of the stores.
        DiskFullError: no space; nothing is left at the path.

    Example:
        >>> import tempfile, stepwell
        >>> folder = tempfile.mkdtemp()
        >>> parts = []
        >>> for k in range(2):
        ...     store = stepwell.create(f"{folder}/{k}.well")
        ...     with store.writer() as writer:
        ...         episode = writer.add_episode({"action": [k, k]})
        ...     parts.append(store)
        >>> whole = concatenate(f"{folder}/whole.well", parts)
        >>> [episode["action"].tolist() for episode in whole]
        [[0, 0], [1, 1]]
    """
    from stepwell.store.opening import open

    for store in stores:
        if isinstance(store, str | os.PathLike):
            raise SchemaError(f"{os.fspath(store)!r} is not a store. Open it first: stepwell.open(path).")
    check_is_outside(path, [store.path for store in stores])
    record = _joined_record([(store.path, read_record(str(store.path))) for store in stores], metadata)
    with built_store(path) as target, system_errors(target, is_writing=True):
        deleted = [np.empty(0, np.int64)]
        ordinal, log = 0, BirthLog(record.uuid)
        for store in stores:
            source = str(store.path)
            mapping = {} if record.schema is None else _take_store(source, target, ordinal, record.schema, link=link)
            gone = [read_deleted(source), evicted_ids(source)]
            deleted.append(_renumbered(np.concatenate(gone), mapping))
            ordinal += len(mapping)
            _take_births(log, read_record(source), mapping)
        if any(map(len, deleted)):
            replace_deleted(target, np.concatenate(deleted))
        carry_marks(stores, target)
        record = replace(record, births=log.end(ordinal))
        replace_file(f"{target}/{STORE_JSON}", seal_json(record.to_json()))
    return open(path, trust=_joined_trust(stores))


def _joined_record(parts: Sequence[tuple[Path, StoreRecord]], metadata: Mapping[str, Any] | None) -> StoreRecord:
    """Return the record of the new store; SchemaError when the stores do not go together."""
    if not parts:
        raise SchemaError("no stores to concatenate. Give at least one.")
    first_path, first = parts[0]
    for path, record in parts[1:]:
        if record.schema != first.schema:
            raise SchemaError(f"{path} has {record.schema}, {first_path} has {first.schema}. They must be equal.")
        if record.fps != first.fps:
            raise SchemaError(f"{path} has fps={record.fps}, {first_path} has fps={first.fps}. They must be equal.")
    joined = dict(metadata) if metadata is not None else _joined_metadata(parts)
    new = StoreRecord(schema=first.schema, fps=first.fps, metadata=joined)
    has_lanes = any(record.has_lanes for _, record in parts)
    return replace(new, segment_bytes=first.segment_bytes, sync=first.sync, has_lanes=has_lanes)


def _joined_trust(stores: Sequence[Store]) -> Trust:
    """Return what references of all stores may lead to; everything where those of each may."""
    reaches = [feature.reach for store in stores for feature in (store.schema or {}).values() if not feature.is_raw]
    given = [reach for reach in reaches if reach is not None]
    return True if not given else [root for reach in given for root in reach]


def _joined_metadata(parts: Sequence[tuple[Path, StoreRecord]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for path, record in parts:
        for key, value in record.metadata.items():
            if joined.setdefault(key, value) != value:
                raise SchemaError(
                    f"metadata {key!r} is {value!r} in {path} and {joined[key]!r} before it. "
                    "Say what it shall be: concatenate(..., metadata={...})."
                )
    return joined


def _take_store(source: str, target: str, first: int, schema: Schema, *, link: bool) -> dict[int, int]:
    """Link all segments of a store under ordinals from ``first`` on; returns old to new ordinals."""
    mapping: dict[int, int] = {}
    shown, _ = ordered_segments(source)
    for name, (old, is_sealed) in shown.items():
        if not is_sealed:
            raise StoreBusyError(
                f"segment {name} of {source} is still being recorded. Close its writer (if that died: open the store "
                "for writing once), or concatenate a checkpoint of the store."
            )
        mapping[old] = first + len(mapping)
        try:
            _take_segment(
                f"{source}/{SEGMENTS}/{name}", target, mapping[old], name.partition("-")[2], schema, link=link
            )
        except FileNotFoundError as error:
            raise StoreBusyError(f"segment {name} of {source} was compacted meanwhile. Try again.") from error
    return mapping


def _take_segment(directory: str, target: str, ordinal: int, tag: str, schema: Schema, *, link: bool) -> None:
    """Link a sealed segment's files; its manifest is a new file, since it has the ordinal."""
    name = f"{ordinal:08d}-{tag}"
    copy = f"{target}/{SEGMENTS}/{name}"
    check_directory(directory)
    manifest = read_manifest(f"{directory}/{SEGMENT_JSON}")
    wanted = set(_segment_files(schema))
    files = {file: entry for file, entry in manifest["files"].items() if file in wanted}
    _link_files(directory, copy, files, link=link)
    changed = manifest | {"name": name, "ordinal": ordinal, "files": files}
    replace_file(f"{copy}/{SEGMENT_JSON}", seal_json(changed), sync=False)


def _link_files(directory: str, copy: str, files: Iterable[str], *, link: bool = True) -> None:
    os.mkdir(copy)
    for file in files:
        link_file(f"{directory}/{file}", f"{copy}/{file}", link=link)


def _take_births(log: BirthLog, record: StoreRecord, mapping: Mapping[int, int]) -> None:
    """Take note of where the episodes of a store's segments were first written."""
    within: dict[int, list[int]] = {}
    for ordinal, first, _ in record.births:
        within.setdefault(ordinal, []).append(first)
    for old, new in mapping.items():
        firsts = np.array(sorted({0, *within.get(old, [])}), np.int64)
        uuids, numbers = births_of(record, np.full(len(firsts), old, np.int64), firsts)
        log.add(new, [(first, uuids[number]) for first, number in zip(firsts.tolist(), numbers.tolist(), strict=True)])


def _segment_files(schema: Schema) -> Iterator[str]:
    yield from (EPISODES, METADATA, STATISTICS)
    for name, feature in schema.items():
        yield from column_files(name, feature)


def _renumbered(ids: Ids, mapping: Mapping[int, int]) -> Ids:
    ordinals, rows = split_id(ids)
    known = np.isin(ordinals, list(mapping))
    moved = np.array([mapping[int(ordinal)] for ordinal in ordinals[known]], np.int64)
    return step_id(moved, rows[known])


def checkpoint_store(store: Store, path: str | os.PathLike[str], *, add: Callable[[str], None] | None = None) -> Path:
    """Make a store at ``path`` that is this one as it is on the disk now, with the same uuid and the same step ids."""
    store.check_writable("checkpoint it")
    source = str(store.path)
    with built_store(path) as target, system_errors(target, is_writing=True):
        # under the lock no column is added, no segment begun and none compacted away
        with locked_store(source):
            for file in (STORE_JSON, DELETED, MARKS):
                with suppress(FileNotFoundError):
                    link_file(f"{source}/{file}", f"{target}/{file}")
            copy_file(f"{source}/{LOCK}", f"{target}/{LOCK}")
            schema = read_record(source).schema
            if schema is not None:
                _checkpoint_segments(source, target, schema)
        recover_store(target, schema)
        if add is not None:
            add(target)
    return Path(path).absolute()


def _checkpoint_segments(source: str, target: str, schema: Schema) -> None:
    shown, manifest = ordered_segments(source)
    for name in shown:
        _checkpoint_segment(f"{source}/{SEGMENTS}/{name}", f"{target}/{SEGMENTS}/{name}", schema)
    if manifest.sequence or manifest.positions:
        keys = {name: key for name, key in manifest.keys.items() if name in shown}
        replace_store_manifest(target, manifest.positions, (), new_keys=keys)


def _checkpoint_segment(base: str, target: str, schema: Schema) -> None:
    """Take a segment, under its open name or its sealed one; an empty one vanishes when its writer is closed."""
    try:
        segment = Segment(base + OPEN_SUFFIX, schema)
        if segment.is_sealed:
            _link_sealed(str(segment.path), target)
        else:
            _copy_committed(segment, target + OPEN_SUFFIX, schema)
    except FileNotFoundError:
        # sealed and renamed before, or meanwhile
        for half in (target, target + OPEN_SUFFIX):
            shutil.rmtree(half, ignore_errors=True)
        if os.path.isdir(base):
            _link_sealed(base, target)


def _link_sealed(directory: str, target: str) -> None:
    files = sorted(list_directory(directory))
    _link_files(directory, target, [name for name in files if name != PROGRESS and not name.endswith(".tmp")])


def _copy_committed(segment: Segment, target: str, schema: Schema) -> None:
    """Copy what an open segment has committed, as the segment of a dead writer."""
    if segment.lane_state is not None:
        _copy_lanes(segment, segment.lane_state, target)
        return
    os.mkdir(target)
    rows, records, clock = segment.num_rows, segment.records, segment.clock_map()
    with SegmentFiles(target, schema, has_clock=clock is not None) as files:
        for name in schema:
            files.append_from(segment, name, [(0, rows)])
        if files.stamps is not None and clock is not None:
            files.stamps.append_rows(clock[:rows], rows)
        files.append_episodes(records, b"".join(segment.metadata_bytes().splitlines(keepends=True)[: len(records)]))
        files.finish()
    if segment.note is not None:
        write_note(target, segment.note)
    progress = CommitRecord.create(f"{target}/{PROGRESS}", is_owned=False)
    progress.carry(*segment.carried)
    progress.commit_episode(len(records), rows)
    progress.close()


def _copy_lanes(segment: Segment, state: LaneState, target: str) -> None:
    """Copy the files of an open segment with lanes as they are: what was not committed before, recovery takes back."""
    os.mkdir(target)
    source = str(segment.path)
    for file in sorted(set(list_directory(source)) - {PROGRESS}):
        copy_file(f"{source}/{file}", f"{target}/{file}")
    lanes = len(state.counts), state.capacity
    progress = CommitRecord.create(f"{target}/{PROGRESS}", is_owned=False, lanes=lanes)
    progress.commit_rows(state.num_steps)
    progress.close()


@dataclass(frozen=True, slots=True)
class _Addition:
    """A column to add: ``column`` returns the accepted column of an episode of the store."""

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
    if feature.rate is not None:
        raise SchemaError(f"feature {name!r} has a rate: columns that are added have a value a step. Record it anew.")
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
    num_rows = segment.num_rows
    if segment.has_lanes:
        if not addition.feature.is_raw:
            raise SchemaError(
                f"feature {addition.name!r}: {segment.path} was recorded by a vector writer, whose rows have one size. "
                "Give codec='raw' and a shape that does not vary, or convert the store first."
            )
        # all, also those behind the last episode
        num_rows = read_manifest(f"{segment.path}/{SEGMENT_JSON}")["rows"]
    column = make_column(staged, addition.name, addition.feature, num_rows)
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
