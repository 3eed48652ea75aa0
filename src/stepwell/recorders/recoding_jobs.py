"""The job of one worker of a conversion: write a chunk of episodes as one segment, merged of parts of old ones."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import ClassVar

import numpy as np

from stepwell.codecs.codec import codec_class, same_rows
from stepwell.recorders.chunks import ITEM, NUM_ITEMS
from stepwell.recorders.embedded_columns import embed_column
from stepwell.recorders.recoded_columns import EpisodeRows, RecodedColumn, recode_column, stored_bytes
from stepwell.recorders.recoding_chunks import Chunk, compacted_error
from stepwell.schema import Schema
from stepwell.store import Segment
from stepwell.store.bulk_writing import KeptEpisodes, merge_segments
from stepwell.store.layout import SEGMENTS

__all__ = ["Recoding", "Result", "codec_modules"]

Result = dict[str, RecodedColumn]


@dataclass(frozen=True, slots=True)
class Recoding:
    """What every worker needs to write any chunk.

    Args:
        source: path of the old store.
        target: path of the new one, hidden as yet.
        before: the old schema.
        after: the new one.
        modules: that register the codecs, for a process that has not imported them.
        embedded: names of the features whose rows lie in files of somebody else's, and are taken in as they are.
    """

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

    def write(self, chunk: Chunk, counters: MutableSequence[int]) -> Result:
        """Write one chunk as one segment."""
        counters[ITEM] = chunk.source_indices[0]

        def advance(episode: EpisodeRows, rows: int) -> None:
            counters[ITEM] = episode.source_index
            counters[NUM_ITEMS] += rows

        try:
            return self._write(chunk, advance)
        except FileNotFoundError as error:
            raise compacted_error(self.source, error) from error

    def _write(self, chunk: Chunk, advance: Callable[[EpisodeRows, int], None]) -> Result:
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

    def _tag(self, chunk: Chunk) -> str:
        """Return the segment's four digits: others for another source or other features, the same the next time."""
        told = repr((chunk.parts, list(self.after.items())))
        return f"{zlib.crc32(told.encode()) & 0xFFFF:04x}"


def codec_modules(*schemas: Schema) -> tuple[str, ...]:
    """Return the modules that register the codecs of some features."""
    classes = {codec_class(feature) for schema in schemas for feature in schema.values()}
    # a worker imports the main module under another name, and by itself
    return tuple(sorted({known.__module__ for known in classes} - {"__main__"}))


def _episodes(chunk: Chunk, sources: Sequence[KeptEpisodes]) -> Iterator[EpisodeRows]:
    records = ((source.segment, record) for source in sources for record in source.records)
    for place, (segment, record) in enumerate(records):
        start, length, rows = int(record["start"]), int(record["length"]), int(record["rows"])
        yield EpisodeRows(segment, start, length, rows, chunk.start + place, chunk.source_indices[place])
