"""Conversion: a new store of the same episodes, in which some features are stored another way.

::

    source    | 00000000 ............ | 00000001 | 00000002 |     sealed segments
    chunks    |    0    |    1    |       2      |     3    |     whole episodes, about as many bytes each
    target    | 00000000 | 00000001 | 00000002   | 00000003 |     a segment each, written by any worker

The cuts depend on the source and the features alone, never on the number of workers.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, MutableSequence, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec, same_rows
from stepwell.codecs.codec import codec_class
from stepwell.errors import SchemaError, StoreBusyError
from stepwell.files.addresses import local_path
from stepwell.json_text import seal_json
from stepwell.recorders.chunks import ITEM, NUM_ITEMS, num_workers, run_chunks
from stepwell.recorders.conversion_reports import ConvertedFeature, ConvertReport, Distortion
from stepwell.recorders.recoded_columns import (
    EpisodeInSegment,
    RecodedColumn,
    embed_column,
    embedded_feature,
    embedded_row_bytes,
    recode_column,
    stored_bytes,
)
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature, Schema
from stepwell.store import Segment, Store, open
from stepwell.store.bulk_writing import KeptEpisodes, merge_segments
from stepwell.store.episodes import EpisodeTable
from stepwell.store.layout import SEGMENTS, STORE_JSON, built_store, replace_file, step_id
from stepwell.store.maintenance import episode_indices, replace_deleted
from stepwell.store.records import BirthLog, StoreRecord, runs_of

__all__ = [
    "EpisodeChunk",
    "Recoding",
    "Result",
    "codec_modules",
    "compacted_error",
    "convert",
    "converted_feature",
    "plan_chunks",
]


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
    Rows that lie in other files, as in a LeRobot data set that is read in place, become the target's own:
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


def _record_of(store: Store, schema: Schema, chunks: Sequence[EpisodeChunk]) -> StoreRecord:
    """Return the target's record: another store, recorded the same way, that knows where its episodes come from."""
    old = store.record
    new = StoreRecord(schema=schema, fps=old.fps, metadata=dict(old.metadata))
    log = BirthLog(new.uuid)
    for chunk in chunks:
        log.add(chunk.ordinal, runs_of([(old, int(name.partition("-")[0]), places) for name, places in chunk.parts]))
    return replace(new, segment_bytes=old.segment_bytes, sync=old.sync, births=log.end(len(chunks)))


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
    """Return a feature with another codec."""
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


# chunks of which there are enough to keep many workers busy, unless they are so small that starting one costs more
NUM_CHUNKS = 64
LEAST_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class EpisodeChunk:
    """Consecutive episodes that become one segment."""

    start: int
    stop: int
    ordinal: int
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    source_indices: tuple[int, ...]
    num_steps: int
    hidden: tuple[int, ...]


def plan_chunks(  # noqa: PLR0917
    store: Store,
    listing: tuple[Sequence[Segment], EpisodeTable],
    before: Schema,
    after: Schema,
    chosen: npt.NDArray[np.int64],
    embedded: Collection[str] = (),
) -> list[EpisodeChunk]:
    """Return the chunks: at the first end of an episode beyond the size that one shall have a new one begins."""
    segments, table = listing
    for number in np.unique(table.segment[chosen]):
        if not segments[number].is_sealed:
            raise StoreBusyError(
                f"segment {segments[number].name} of {store.path} is still being recorded. Close its writer, or "
                "convert a checkpoint of the store."
            )
    try:
        row_bytes = {
            number: _row_bytes(segments[number], before, after, embedded) for number in set(table.segment[chosen])
        }
    except FileNotFoundError as error:
        raise compacted_error(str(store.path), error) from error
    sizes = [int(table.rows[index] * row_bytes[table.segment[index]]) for index in chosen]
    limit = min(store.record.segment_bytes, max(LEAST_CHUNK_BYTES, sum(sizes) // NUM_CHUNKS))
    chunks: list[EpisodeChunk] = []
    start, total = 0, 0
    for place, size in enumerate(sizes):
        total += size
        if total >= limit or place + 1 == len(sizes):
            chunks.append(_chunk(segments, table, chosen[start : place + 1], start, len(chunks)))
            start, total = place + 1, 0
    return chunks


def compacted_error(source: str, error: FileNotFoundError) -> StoreBusyError:
    """Return what to say of a file of the source that was there when the conversion was planned."""
    return StoreBusyError(f"{source} was compacted meanwhile: {error.filename} is gone. Try again.")


def _row_bytes(segment: Segment, before: Schema, after: Schema, embedded: Collection[str]) -> float:
    """Return how many bytes a row takes: decoded where it will be converted, on the disk where it is copied."""
    total = 0.0
    for name, feature in before.items():
        if name in embedded:
            total += embedded_row_bytes(segment, name, feature)
        elif not feature.is_ragged and (feature.is_raw or not same_rows(feature, after[name])):
            total += feature.row_bytes
        else:
            total += 8 + (segment.path / f"{name}.bin").stat().st_size / max(1, segment.num_rows)
    return total


def _chunk(
    segments: Sequence[Segment], table: EpisodeTable, chosen: npt.NDArray[np.int64], start: int, ordinal: int
) -> EpisodeChunk:
    parts: dict[str, list[int]] = {}
    hidden, row = [], 0
    for index in chosen:
        segment, place = segments[table.segment[index]], int(table.record[index])
        parts.setdefault(segment.name, []).append(place)
        # all of its rows are copied: those that are shown may be decoded with the ones before
        gone = int(table.start[index] - segment.records["start"][place])
        if gone:
            hidden.append(step_id(ordinal, row + gone))
        row += gone + int(table.rows[index])
    return EpisodeChunk(
        start=start,
        stop=start + len(chosen),
        ordinal=ordinal,
        parts=tuple((name, tuple(places)) for name, places in parts.items()),
        source_indices=tuple(map(int, chosen)),
        num_steps=int(table.length[chosen].sum()),
        hidden=tuple(hidden),
    )


Result = dict[str, RecodedColumn]


@dataclass(frozen=True, slots=True)
class Recoding:
    """What every worker needs to write any chunk."""

    noun: ClassVar[str] = "episode"
    source: str
    target: str
    before: Schema
    after: Schema
    modules: tuple[str, ...]
    embedded: frozenset[str] = frozenset()

    @property
    def converted(self) -> list[str]:
        """Names of the features that are not copied."""
        return [name for name in self.after if not same_rows(self.before[name], self.after[name])]

    def write(self, chunk: EpisodeChunk, counters: MutableSequence[int]) -> Result:
        """Write one chunk as one segment."""
        counters[ITEM] = chunk.source_indices[0]

        def advance(episode: EpisodeInSegment, rows: int) -> None:
            counters[ITEM] = episode.source_index
            counters[NUM_ITEMS] += rows

        try:
            return self._write(chunk, advance)
        except FileNotFoundError as error:
            raise compacted_error(self.source, error) from error

    def _write(self, chunk: EpisodeChunk, advance: Callable[[EpisodeInSegment, int], None]) -> Result:
        for module in self.modules:
            import_module(module)
        sources = [self._open(name, places) for name, places in chunk.parts]
        episodes = list(_episodes(chunk, sources))
        directory = f"{self.target}/{SEGMENTS}/{chunk.ordinal:08d}-{self._tag(chunk)}"
        found: Result = {}

        def recode(name: str, stem: str) -> Mapping[str, tuple[int, int]]:
            write = embed_column if name in self.embedded else recode_column
            found[name] = write(stem, self.before[name], self.after[name], episodes, advance)
            return found[name].checksums

        columns = {name: partial(recode, name) for name in self.converted}
        merge_segments(directory, self.after, sources, columns=columns)
        for name in self.after:
            if name not in found:
                size = stored_bytes(episodes, name, self.before[name])
                found[name] = RecodedColumn(size, size, None)
        return found

    def _open(self, name: str, places: Sequence[int]) -> KeptEpisodes:
        segment = Segment(f"{self.source}/{SEGMENTS}/{name}", self.before)
        kept = np.zeros(len(segment.records), bool)
        kept[list(places)] = True
        return KeptEpisodes(segment, kept)

    def _tag(self, chunk: EpisodeChunk) -> str:
        """Return the segment's four digits: others for another source or other features, the same the next time."""
        content = repr((chunk.parts, list(self.after.items())))
        return f"{zlib.crc32(content.encode()) & 0xFFFF:04x}"


def codec_modules(*schemas: Schema) -> tuple[str, ...]:
    """Return the modules that register the codecs of some features."""
    classes = {codec_class(feature) for schema in schemas for feature in schema.values()}
    # a worker imports the main module under another name, and by itself
    return tuple(sorted({known.__module__ for known in classes} - {"__main__"}))


def _episodes(chunk: EpisodeChunk, sources: Sequence[KeptEpisodes]) -> Iterator[EpisodeInSegment]:
    records = ((source.segment, record) for source in sources for record in source.records)
    for place, (segment, record) in enumerate(records):
        start, length, rows = int(record["start"]), int(record["length"]), int(record["rows"])
        yield EpisodeInSegment(segment, start, length, rows, chunk.start + place, chunk.source_indices[place])
