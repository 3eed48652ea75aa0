"""Concatenation: one new store of the episodes of several, at the cost of links."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import SchemaError, StoreBusyError
from stepwell.json_text import seal_json
from stepwell.references.trusted_paths import Trust
from stepwell.schema import Schema
from stepwell.store.beneath import check_directory, system_errors
from stepwell.store.building import built_store
from stepwell.store.deletion import read_deleted, replace_deleted
from stepwell.store.ids import split_id, step_id
from stepwell.store.layout import EPISODES, METADATA, SEGMENT_JSON, SEGMENTS, STORE_JSON, link_file, replace_file
from stepwell.store.manifests import ordered_segments, read_manifest
from stepwell.store.records import BirthLog, StoreRecord, births_of, read_record
from stepwell.store.ring import evicted_ids
from stepwell.store.statistics import STATISTICS

if TYPE_CHECKING:
    from stepwell.store.store import Store

__all__ = ["concatenate"]


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

    record = _joined_record([(store.path, read_record(str(store.path))) for store in stores], metadata)
    with built_store(path) as target, system_errors(target, is_writing=True):
        deleted = [np.empty(0, np.int64)]
        ordinal, log = 0, BirthLog(record.uuid)
        for store in stores:
            source = str(store.path)
            mapping = {} if record.schema is None else _take_store(source, target, ordinal, record.schema, link=link)
            gone = [read_deleted(source), evicted_ids(source)]
            deleted.append(_moved_ids(np.concatenate(gone), mapping))
            ordinal += len(mapping)
            _take_births(log, read_record(source), mapping)
        if any(map(len, deleted)):
            replace_deleted(target, np.concatenate(deleted))
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
    return replace(new, segment_bytes=first.segment_bytes, sync=first.sync)


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
    """Link a sealed segment's files; its manifest is a new file, since it tells the ordinal."""
    name = f"{ordinal:08d}-{tag}"
    copy = f"{target}/{SEGMENTS}/{name}"
    os.mkdir(copy)
    check_directory(directory)
    manifest = read_manifest(f"{directory}/{SEGMENT_JSON}")
    wanted = set(_segment_files(schema))
    files = {file: entry for file, entry in manifest["files"].items() if file in wanted}
    for file in files:
        link_file(f"{directory}/{file}", f"{copy}/{file}", link=link)
    told = manifest | {"name": name, "ordinal": ordinal, "files": files}
    replace_file(f"{copy}/{SEGMENT_JSON}", seal_json(told), sync=False)


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
        yield f"{name}.npy"
        if not feature.is_raw:
            yield f"{name}.bin"


def _moved_ids(ids: npt.NDArray[np.int64], mapping: Mapping[int, int]) -> npt.NDArray[np.int64]:
    ordinals, rows = split_id(ids)
    known = np.isin(ordinals, list(mapping))
    moved = np.array([mapping[int(ordinal)] for ordinal in ordinals[known]], np.int64)
    return step_id(moved, rows[known])
