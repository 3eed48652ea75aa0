"""Conversion: a new store of the same episodes, in which some features are stored another way.

What a chunk of episodes is, `recoding_chunks` says; a worker writes one with `recoding_jobs`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from stepwell.codecs import make_codec, same_rows
from stepwell.errors import SchemaError
from stepwell.files.addresses import local_path
from stepwell.json_text import seal_json
from stepwell.recorders.chunks import num_workers, run_chunks
from stepwell.recorders.conversion_reports import ConvertedFeature, ConvertReport
from stepwell.recorders.distortion import Distortion
from stepwell.recorders.embedded_columns import embedded_feature
from stepwell.recorders.recoded_columns import RecodedColumn
from stepwell.recorders.recoding_chunks import Chunk, plan_chunks
from stepwell.recorders.recoding_jobs import Recoding, codec_modules
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature, Schema
from stepwell.store import Store, open
from stepwell.store.layout import STORE_JSON, built_store, replace_file
from stepwell.store.maintenance import episode_indices, replace_deleted
from stepwell.store.records import BirthLog, StoreRecord, runs_of

__all__ = ["convert", "converted_feature"]


def convert(
    source: Store | str | os.PathLike[str],
    target: str | os.PathLike[str],
    features: Mapping[str, Feature | str] = MappingProxyType({}),
    *,
    workers: int | None = None,
    episodes: Any = None,
    progress: bool | None = None,
) -> ConvertReport:
    """Make a new store of the same episodes, in which some features are stored by another codec.

    Episodes keep their order, ends, metadata and ``origin``, so that a split is the same in both stores. The features
    that are not named are copied as they lie on the disk. Each row that was encoded is decoded again and compared.
    Rows that lie in files of somebody else's, as in a LeRobot data set that is read in place, become the target's own:
    their packets and image files are taken in as they are, unless the feature is named with another codec.

    Args:
        source: a store, or its path. Deleted episodes are left behind.
        target: path of the new store; nothing may be there. It appears whole or not at all: a killed conversion leaves
            a hidden directory beside it, which the next try at the same path removes.
        features: name to codec ("jpeg", with its default options) or feature (``Image((96, 96, 3), codec="jpeg",
            quality=90)``), of which codec and options count: dtype and shape must be the same. Where both are what the
            source has already, or options differ only in how rows are decoded (``dct`` of JPEG), the bytes are copied.
            None at all: where rows are to be taken in from other files.
        workers: number of processes; default one a processor, 0 or 1 converts in this process. The new segments are the
            same, byte by byte, for every number.
        episodes: an index, indices, a slice or a bool mask: only these; default all.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.

    Returns:
        What became of each feature: bytes, ratio, PSNR.

    Raises:
        FeatureNotFoundError: a name that the source does not have.
        SchemaError: a codec that cannot store the feature, or a feature of another dtype or shape; nothing was written.
        StoreBusyError: an episode is still being recorded, or the source was compacted meanwhile.
        StoreExistsError: something is at the target.
        WorkerError: an episode that could not be converted; the message names it and says why.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> store = tiny_store(f"{folder}/raw.well")
        >>> report = convert(store, f"{folder}/small.well", {"observation.image": "zstd"}, workers=1)
        >>> report.features["observation.image"].psnr_db, stepwell.open(report.path).schema["observation.image"].codec
        (inf, 'zstd')

    Notes:
        Memory is bounded: a worker holds a few batches of decoded rows of 32 MiB. Damage of the source that no codec
        sees is copied: verify it first. In a script, more than one worker needs an ``if __name__ == "__main__":``
        guard.
    """
    local_path(target)
    began = time.perf_counter()
    num_processes = num_workers(workers)
    with nullcontext(source) if isinstance(source, Store) else open(source) as store:
        before = _schema_of(store)
        after, embedded = _converted_schema(before, features)
        listing = store.listing
        chosen = episode_indices(store, listing[1], slice(None) if episodes is None else episodes)
        chunks = plan_chunks(store, listing, before, after, chosen, embedded)
        record = _record_of(store, after, chunks)
        with built_store(target) as hidden:
            job = Recoding(str(store.path), hidden, before, after, codec_modules(before, after), embedded)
            num_rows = len(job.converted) * sum(chunk.num_steps for chunk in chunks)
            results = run_chunks(job, chunks, workers=num_processes, total=num_rows, unit="rows", progress=progress)
            evicted = [step for chunk in chunks for step in chunk.hidden]
            if evicted:
                replace_deleted(hidden, np.array(evicted, np.int64))
            replace_file(f"{hidden}/{STORE_JSON}", seal_json(record.to_json()))
    return ConvertReport(
        path=Path(target),
        num_episodes=len(chosen),
        num_steps=sum(chunk.num_steps for chunk in chunks),
        seconds=time.perf_counter() - began,
        features={name: _joined(job, name, [result[name] for result in results]) for name in after},
    )


def _record_of(store: Store, schema: Schema, chunks: Sequence[Chunk]) -> StoreRecord:
    """Return the target's record: another store, recorded the same way, that knows where its episodes come from."""
    told = store.record
    new = StoreRecord(schema=schema, fps=told.fps, metadata=dict(told.metadata))
    log = BirthLog(new.uuid)
    for chunk in chunks:
        log.add(chunk.ordinal, runs_of([(told, int(name.partition("-")[0]), places) for name, places in chunk.parts]))
    return replace(new, segment_bytes=told.segment_bytes, sync=told.sync, births=log.end(len(chunks)))


def _schema_of(store: Store) -> Schema:
    if store.schema is None:
        raise SchemaError(f"{store.path} has no features yet: there is nothing to convert. Record a step first.")
    return store.schema


def _converted_schema(schema: Schema, features: Mapping[str, Feature | str]) -> tuple[Schema, frozenset[str]]:
    """Return the target's schema, and which features are embedded; raises what says why it cannot be."""
    own = {name: embedded_feature(feature) for name, feature in schema.items()}
    embedded = {name: feature for name, feature in own.items() if feature is not None and name not in features}
    if not features and not embedded:
        raise SchemaError(f"no features to convert. Name at least one of {', '.join(schema)}, with its new codec.")
    changed = {**schema, **embedded}
    for name, given in features.items():
        try:
            changed[name] = converted_feature(schema[name], given)
        except SchemaError as error:
            raise SchemaError(f"feature {name!r}: {error}") from error
    taken = {name for name in features if (found := own[name]) is not None and same_rows(found, changed[name])}
    return Schema(changed), frozenset({*embedded, *taken})


def converted_feature(old: Feature, given: Feature | str) -> Feature:
    """Return a feature with another codec.

    Args:
        old: the feature as it is.
        given: name of a codec, or a feature of the same dtype and shape, of which codec and options count.

    Raises:
        SchemaError: the codec cannot store the feature, or it is another one.
    """
    if isinstance(given, str):
        new = replace(old, codec=given, options=(), codec_module=None)
    elif isinstance(given, Feature):
        is_alike = given.kind == old.kind or {given.kind, old.kind} == {"array", "image"}
        if not is_alike or (given.dtype, given.shape) != (old.dtype, old.shape):
            raise SchemaError(
                f"it is {old.kind} {old.dtype} {old.shape}, not {given.kind} {given.dtype} {given.shape}. "
                "A conversion changes codec and options only."
            )
        new = replace(old, kind=given.kind, codec=given.codec, options=given.options, codec_module=given.codec_module)
    else:
        raise SchemaError(f"got a {type(given).__name__}. Give the name of a codec, or a feature.")
    make_codec(old)
    if isinstance(make_codec(new), FileCodec):
        raise SchemaError(
            f"codec {new.codec!r} holds references into other files. Give one that holds its rows itself."
        )
    return new


def _joined(job: Recoding, name: str, columns: Sequence[RecodedColumn]) -> ConvertedFeature:
    """Return what became of a feature over all chunks."""
    before, after, is_copied = job.before[name], job.after[name], name not in job.converted or name in job.embedded
    lost = [column.distortion for column in columns if column.distortion is not None]
    return ConvertedFeature(
        before=before,
        after=after,
        bytes_before=sum(column.bytes_before for column in columns),
        bytes_after=sum(column.bytes_after for column in columns),
        distortion=None if is_copied else Distortion.joined(lost),
    )
