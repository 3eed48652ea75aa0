"""Conversion: a new store of the same episodes, in which some features are stored another way.

::

    source    | 00000000 ............ | 00000001 | 00000002 |     sealed segments
    chunks    |    0    |    1    |       2      |     3    |     whole episodes, about as many bytes each
    target    | 00000000 | 00000001 | 00000002   | 00000003 |     a segment each, written by any worker

The cuts depend on the source and the features alone, never on the number of workers.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
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
from stepwell.json_text import open_json, seal_json
from stepwell.recorders.chunks import ITEM, NUM_ITEMS, Workers, num_workers, run_chunks
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
from stepwell.recorders.resuming import RESULTS, Plan, Unfinished, segment_maker
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature, Schema
from stepwell.store import Segment, Store
from stepwell.store.beneath import read_file
from stepwell.store.bulk_writing import KeptEpisodes, merge_segments
from stepwell.store.episodes import EpisodeTable
from stepwell.store.layout import (
    SEGMENTS,
    STORE_JSON,
    built_store,
    remove_segments,
    replace_file,
    step_id,
    sync_directory,
)
from stepwell.store.maintenance import episode_indices, replace_deleted
from stepwell.store.marks import carry_marks
from stepwell.store.records import BirthLog, StoreRecord, runs_of

__all__ = [
    "Codecs",
    "EpisodeChunk",
    "Recoding",
    "Result",
    "codec_modules",
    "convert_store",
    "converted_schema",
    "image_names",
    "joined_features",
    "plan_chunks",
    "read_results",
]

# in the metadata of a data set that is read in place: where it lies, and how references into it are made
OF_REFERENCES = ("root", "tolerance")
# features by name, as a codec or as a feature with its codec and options; or one codec of all images
Codecs = Mapping[str, Feature | str] | str


def convert_store(
    store: Store,
    target: str | os.PathLike[str],
    features: Codecs = MappingProxyType({}),
    *,
    workers: Workers = None,
    episodes: Any = None,
    resume: bool = False,
    progress: bool | None = None,
) -> ConvertReport:
    """Convert a store; see `stepwell.convert`."""
    local_path(target)
    began = time.perf_counter()
    num_workers(workers)
    before = _schema_of(store)
    after, embedded = _schema_to_be(before, features, is_part=episodes is not None)
    listing = store.listing
    chosen = episode_indices(store, listing[1], slice(None) if episodes is None else episodes)
    chunks = plan_chunks(store, listing, before, after, chosen, embedded)
    with _target_of(store, target, after, chunks, resume=resume) as (place, done):
        job = Recoding(str(store.path), place, before, after, codec_modules(before, after), embedded)
        num_rows = [len(job.converted) * chunk.num_steps for chunk in chunks]
        run_chunks(
            job,
            [chunk for chunk in chunks if chunk.ordinal not in done],
            workers=workers,
            total=sum(num_rows),
            unit="rows",
            progress=progress,
            num_done=sum(num_rows[ordinal] for ordinal in done),
            target=place,
        )
        results = read_results(place)
    return ConvertReport(
        path=Path(target),
        num_episodes=len(chosen),
        num_steps=sum(chunk.num_steps for chunk in chunks),
        seconds=time.perf_counter() - began,
        features=joined_features(job, results),
    )


@contextmanager
def _target_of(
    store: Store, target: str | os.PathLike[str], schema: Schema, chunks: list[EpisodeChunk], *, resume: bool
) -> Iterator[tuple[str, Collection[int]]]:
    """Yield the directory of the new store and the chunks that are there; at the end it is a store like any other."""
    hidden = np.unique(np.array([step for chunk in chunks for step in chunk.hidden], np.int64))
    if not resume:
        with built_store(target) as place:
            yield place, ()
            shutil.rmtree(f"{place}/{RESULTS}", ignore_errors=True)
            if len(hidden):
                replace_deleted(place, hidden)
            _write_record(store, place, schema, chunks)
        return
    with Unfinished(target, _plan_of(store, schema, chunks), hidden) as unfinished:
        place = str(unfinished.store.path)
        chunks[:] = [replace(chunk, tag=unfinished.plan.tag(chunk.ordinal)) for chunk in chunks]
        yield place, unfinished.finished
        _write_record(store, place, schema, chunks, unfinished.store.uuid)
    unfinished.store.close()


def _plan_of(store: Store, schema: Schema, chunks: Sequence[EpisodeChunk]) -> Plan:
    """Return what a conversion that is interrupted is known by."""
    sizes = [chunk.stop - chunk.start for chunk in chunks]
    told = zlib.crc32(repr([chunk.parts for chunk in chunks]).encode())
    return Plan(
        f"store {store.uuid}, {sum(sizes)} episodes {told:08x}",
        sum(sizes),
        max(sizes, default=1),
        schema,
        store.fps,
        _own_metadata(store),
        tuple(chunk.start for chunk in chunks),
    )


def _own_metadata(store: Store) -> dict[str, Any]:
    """Return the metadata of a store that needs no other files: without the place of the data set it refers to."""
    found = dict(store.metadata)
    for name, told in found.items():
        if store.address is not None and isinstance(told, dict):
            found[name] = {key: value for key, value in told.items() if key not in OF_REFERENCES}
    return found


def _write_record(
    store: Store, place: str, schema: Schema, chunks: Sequence[EpisodeChunk], uuid: str | None = None
) -> None:
    """Write the target's record: another store, recorded the same way, that knows where its episodes come from."""
    old = store.record
    new = StoreRecord(schema=schema, fps=old.fps, metadata=_own_metadata(store))
    new = new if uuid is None else replace(new, uuid=uuid)
    log = BirthLog(new.uuid)
    for chunk in chunks:
        log.add(chunk.ordinal, runs_of([(old, int(name.partition("-")[0]), places) for name, places in chunk.parts]))
    carry_marks([store], place)
    new = replace(new, segment_bytes=old.segment_bytes, sync=old.sync, births=log.end(len(chunks)))
    replace_file(f"{place}/{STORE_JSON}", seal_json(new.to_json()))


def _schema_of(store: Store) -> Schema:
    if store.schema is None:
        raise SchemaError(f"{store.path} has no features yet: there is nothing to convert. Record a step first.")
    return store.schema


def converted_schema(schema: Schema, features: Codecs) -> Schema:
    """Return the schema of a store that is made of rows that come by another one.

    Example:
        >>> from stepwell.schema import Array, Image
        >>> print(converted_schema(Schema({"top": Image((8, 8, 3), codec="png"), "action": Array(2)}), "jpeg")["top"])
        jpeg 8x8x3 uint8
    """
    changed = dict(schema)
    for name, given in _by_name(schema, features).items():
        old = schema[name]
        # a codec that it has already, without options, means: as it is
        changed[name] = old if given == old.codec else _converted_feature(name, old, given)
    return Schema(changed)


def image_names(schema: Schema) -> list[str]:
    """Return the features that are images."""
    names = [name for name, feature in schema.items() if feature.kind == "image"]
    if not names:
        raise SchemaError(f"no images to store by another codec. Say of which feature: {', '.join(schema)}.")
    return names


def _by_name(schema: Schema, features: Codecs) -> Mapping[str, Feature | str]:
    return dict.fromkeys(image_names(schema), features) if isinstance(features, str) else features


def _schema_to_be(schema: Schema, features: Codecs, *, is_part: bool) -> tuple[Schema, frozenset[str]]:
    """Return the schema of what is made of a store, and which features are embedded."""
    named = _by_name(schema, features)
    own = {name: embedded_feature(feature) for name, feature in schema.items()}
    embedded = {name: feature for name, feature in own.items() if feature is not None and name not in named}
    # some of the episodes are another store, all of them would be a copy
    if not named and not embedded and not is_part:
        raise SchemaError(f"no features to convert. Name at least one of {', '.join(schema)}, with its new codec.")
    changed = {**schema, **embedded}
    for name, given in named.items():
        changed[name] = _converted_feature(name, schema[name], given)
    taken = {name for name in named if (found := own[name]) is not None and same_rows(found, changed[name])}
    return Schema(changed), frozenset({*embedded, *taken})


def _converted_feature(name: str, old: Feature, given: Feature | str) -> Feature:
    try:
        return _with_codec(old, given)
    except SchemaError as error:
        raise SchemaError(f"feature {name!r}: {error}") from error


def _with_codec(old: Feature, given: Feature | str) -> Feature:
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


def joined_features(job: Recoding, results: Sequence[Result]) -> dict[str, ConvertedFeature]:
    """Return what became of each feature over all chunks."""
    return {name: _joined(job, name, [result[name] for result in results]) for name in job.after}


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
    hidden: tuple[int, ...] = ()
    # of the segment; None: by what is in it
    tag: str | None = None


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

    def write(self, chunk: EpisodeChunk, counters: MutableSequence[int]) -> None:
        """Write one chunk as one segment."""
        counters[ITEM] = chunk.source_indices[0]

        def advance(episode: EpisodeInSegment, rows: int) -> None:
            counters[ITEM] = episode.source_index
            counters[NUM_ITEMS] += rows

        with segment_maker(self.target):
            self.write_segment(chunk, advance)

    def write_segment(self, chunk: EpisodeChunk, advance: Callable[[EpisodeInSegment, int], None]) -> None:
        """Write one chunk as one segment, and note what became of its features; it appears whole."""
        unfinished = Path(self.target, RESULTS)
        unfinished.mkdir(exist_ok=True)
        made = unfinished / f"{chunk.ordinal:08d}-{chunk.tag or self._tag(chunk)}"
        # of a process that was killed
        shutil.rmtree(made, ignore_errors=True)
        try:
            result = self._merge(str(made), chunk, advance)
        except FileNotFoundError as error:
            raise compacted_error(self.source, error) from error
        _note_result(unfinished / f"{chunk.ordinal:08d}.json", result)
        # a worker that died when it had done all but say so
        remove_segments(self.target, [made.name])
        made.rename(f"{self.target}/{SEGMENTS}/{made.name}")
        sync_directory(f"{self.target}/{SEGMENTS}")

    def _merge(self, directory: str, chunk: EpisodeChunk, advance: Callable[[EpisodeInSegment, int], None]) -> Result:
        for module in self.modules:
            import_module(module)
        sources = [self._open(name, places) for name, places in chunk.parts]
        episodes = list(_episodes(chunk, sources))
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


def _note_result(path: Path, result: Result) -> None:
    """Keep what became of a chunk's features for the report, which a later call may make."""
    noted = {name: {**asdict(column), "checksums": {}} for name, column in result.items()}
    replace_file(str(path), seal_json(noted))


def read_results(store: str) -> list[Result]:
    """Return what became of the features of all chunks."""
    found = []
    for path in sorted(Path(store, RESULTS).glob("*.json")):
        noted = open_json(read_file(str(path)), name=str(path))
        found.append({name: _column_of(column) for name, column in noted.items()})
    return found


def _column_of(noted: Mapping[str, Any]) -> RecodedColumn:
    lost = noted["distortion"]
    return RecodedColumn(noted["bytes_before"], noted["bytes_after"], None if lost is None else Distortion(**lost))


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
