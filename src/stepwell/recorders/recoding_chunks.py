"""Where a conversion cuts a store: chunks of consecutive episodes, each of which becomes a segment.

::

    source    | 00000000 ............ | 00000001 | 00000002 |     sealed segments
    chunks    |    0    |    1    |       2      |     3    |     whole episodes, about as many bytes each
    target    | 00000000 | 00000001 | 00000002   | 00000003 |     a segment each, whoever writes it

Where the cuts are depends on the source and the features alone, never on the number of workers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.codecs import same_rows
from stepwell.errors import StoreBusyError
from stepwell.recorders.embedded_columns import embedded_row_bytes
from stepwell.schema import Schema
from stepwell.store import Segment, Store
from stepwell.store.episodes import EpisodeTable
from stepwell.store.layout import step_id

__all__ = ["Chunk", "compacted_error", "plan_chunks"]

# chunks of which there are enough to keep many workers busy, unless they are so small that starting one costs more
NUM_CHUNKS = 64
LEAST_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive episodes that become one segment.

    Args:
        start: the first one's index in the target.
        stop: one past the last.
        ordinal: of the segment.
        parts: name of each old segment with the places of its records, in the order of episodes.
        source_indices: the episodes' indices in the source.
        num_steps: of all of them.
        hidden: ids in the target that hide what a ring had evicted of them; see `stepwell.store.maintenance`.
    """

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
) -> list[Chunk]:
    """Return the chunks: at the first end of an episode beyond the size that one shall have a new one begins.

    Args:
        store: the source.
        listing: its segments and episodes, of one moment.
        before: its schema.
        after: the target's.
        chosen: int64, ascending indices of the episodes to convert.
        embedded: names of the features that are taken in from files of somebody else's.

    Raises:
        StoreBusyError: one of them is in a segment that is still being recorded, or the store was compacted.
    """
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
    chunks: list[Chunk] = []
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
) -> Chunk:
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
    return Chunk(
        start=start,
        stop=start + len(chosen),
        ordinal=ordinal,
        parts=tuple((name, tuple(places)) for name, places in parts.items()),
        source_indices=tuple(map(int, chosen)),
        num_steps=int(table.length[chosen].sum()),
        hidden=tuple(hidden),
    )
