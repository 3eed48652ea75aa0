"""Views as a few bytes: which episodes of which segments, in place of the episodes themselves.

::

    a part of a view                                    packed
      table     a row of 13 numbers an episode    -->   ordinals of segments, records of each, a bit a record: shown?
                episodes that are cut or open     -->   as they are: one a segment at most
      indices   the chosen ones                   -->   a bit an episode, or nothing: all
      (all that is chosen)                        -->   16 digits, compared when it is unpacked

Sealed segments do not change, and of one that is written only the end does: whatever opens the store later finds the
records where they were, however much came or was deleted since. What was compacted away or evicted is missed, and said.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.store.episodes import EpisodeTable
from stepwell.store.layout import ordinals_of_keys
from stepwell.store.snapshot import MetadataLines, SegmentList, columns_of

if TYPE_CHECKING:
    from stepwell.store import Store

__all__ = ["Packed", "pack_episodes", "pack_numbers", "unpack_episodes", "unpack_numbers"]

Int64s = npt.NDArray[np.int64]
COLUMNS = [field.name for field in fields(EpisodeTable) if field.name not in {"segment", "read_metadata"}]
DIGESTED = ("start", "length", "rows", "origin")


class Packed(NamedTuple):
    """Episodes of a store, to be found again in it.

    Args:
        num_episodes: E, that the table has.
        ordinals: of the segments that they are in, packed int64 [S].
        counts: how many records of each are meant, packed int64 [S].
        shown: which records are episodes of the table, packed bool.
        others: int64 [m], numbers of episodes that are not as their records.
        columns: of those, by name; ``segment`` counts in ``ordinals``.
        chosen: which episodes are chosen, packed bool; None: all.
        digest: of the chosen ones.
    """

    num_episodes: int
    ordinals: bytes
    counts: bytes
    shown: bytes
    others: Int64s
    columns: dict[str, npt.NDArray[Any]]
    chosen: bytes | None
    digest: bytes


def pack_episodes(segments: SegmentList, table: EpisodeTable, indices: Int64s) -> Packed:
    """Return episodes of a store as a few bytes.

    Args:
        segments: of the snapshot.
        table: its episodes.
        indices: int64 [n], ascending, the chosen ones.
    """
    records, counts = segments.records()
    numbers, owners = np.unique(table.segment, return_inverse=True)
    places = (np.cumsum(counts) - counts)[table.segment] + table.record
    # of an open episode there is no record yet, or one of what it became
    is_other = table.is_open | (table.record >= counts[table.segment])
    for name, column in columns_of(_taken(records, np.where(is_other, 0, places))).items():
        is_other |= getattr(table, name) != column
    if (np.diff(places[~is_other]) <= 0).any():
        is_other[:] = True
    plain, others = np.flatnonzero(~is_other), np.flatnonzero(is_other)
    need = np.zeros(len(numbers), np.int64)
    np.maximum.at(need, owners[plain], table.record[plain] + 1)
    shown = np.zeros(int(need.sum()), np.bool_)
    shown[(np.cumsum(need) - need)[owners[plain]] + table.record[plain]] = True
    columns = {name: getattr(table, name)[others] for name in COLUMNS}
    return Packed(
        num_episodes=len(table),
        ordinals=_pack(np.diff(ordinals_of_keys(segments.keys[numbers]), prepend=0)),
        counts=_pack(need),
        shown=_pack_bits(shown),
        others=others,
        columns=columns | {"segment": owners[others]},
        chosen=None if len(indices) == len(table) else _pack_bits(np.isin(np.arange(len(table)), indices)),
        digest=_digest(ordinals_of_keys(segments.keys), table, indices),
    )


def unpack_episodes(store: Store, packed: Packed) -> tuple[SegmentList, EpisodeTable, Int64s]:
    """Return what `pack_episodes` took: the segments that the store has now, the table over them, and the chosen ones.

    Args:
        store: as it is now.
        packed: of it, or of a store that this one is a copy of.

    Raises:
        WindowError: a chosen episode is not in the store any more, or is another one.
    """
    segments = store.segments
    records, counts = segments.records()
    there, need = ordinals_of_keys(segments.keys), _unpack(packed.counts)
    numbers = _found(there, np.cumsum(_unpack(packed.ordinals)))
    numbers[(numbers >= 0) & (counts[numbers] < need) if len(counts) else numbers >= 0] = -1
    shown = np.flatnonzero(_unpack_bits(packed.shown, int(need.sum())))
    owners = np.repeat(np.arange(len(need)), need)[shown]
    within = shown - (np.cumsum(need) - need)[owners]
    starts, own = np.cumsum(counts) - counts, numbers[owners]
    places = np.where(own >= 0, (starts[own] if len(starts) else own) + within, 0)
    plain = np.delete(np.arange(packed.num_episodes), packed.others)
    found = columns_of(_taken(records, places))
    found |= {"segment": own.astype(np.int32), "record": within, "is_open": np.zeros(len(own), np.bool_)}
    others = packed.columns | {"segment": numbers[packed.columns["segment"]]}
    columns: dict[str, npt.NDArray[Any]] = {}
    for name, values in found.items():
        columns[name] = np.empty(packed.num_episodes, values.dtype)
        columns[name][plain], columns[name][packed.others] = values, others[name]
    metadata = MetadataLines()
    table = EpisodeTable(
        **columns,
        read_metadata=lambda segment, record: metadata.read(segments[segment], record),
    )
    chosen = packed.chosen
    is_chosen = np.ones(len(table), np.bool_) if chosen is None else _unpack_bits(chosen, len(table))
    indices = np.flatnonzero(is_chosen)
    if (table.segment[indices] < 0).any():
        raise WindowError(
            f"segments of a view of {store.path} were removed before it was unpickled. Make the view anew."
        )
    if _digest(there, table, indices) != packed.digest:
        raise WindowError(f"{store.path} has other episodes than a view of it that was pickled. Make the view anew.")
    return segments, table, indices


def pack_numbers(episodes: Any) -> Any:
    """Return numbers or a mask of episodes in few bytes; as they are where some count from the end."""
    if episodes is None or isinstance(episodes, int | np.integer | slice | range):
        return episodes
    array = np.asarray(episodes)
    if array.ndim != 1 or array.dtype.kind not in "biu" or (array < 0).any():
        return episodes
    if array.dtype == np.bool_:
        return _PackedNumbers(_pack_bits(array), len(array), True)
    mask = np.zeros(int(array.max(initial=-1)) + 1, np.bool_)
    mask[array] = True
    return _PackedNumbers(_pack_bits(mask), len(mask), False) if mask.sum() == len(array) else episodes


def unpack_numbers(packed: Any) -> Any:
    """Return what `pack_numbers` took, as numbers or a mask that mean the same."""
    if not isinstance(packed, _PackedNumbers):
        return packed
    mask = _unpack_bits(packed.bits, packed.length)
    return mask if packed.is_mask else np.flatnonzero(mask)


class _PackedNumbers(NamedTuple):
    bits: bytes
    length: int
    is_mask: bool


def _found(there: Int64s, ordinals: Int64s) -> Int64s:
    """Return the number of the segment with each ordinal, -1 where there is none."""
    if len(there) == 0:
        return np.full(len(ordinals), -1, np.int64)
    order = np.argsort(there, kind="stable")
    at = order[np.minimum(np.searchsorted(there[order], ordinals), len(there) - 1)]
    return np.where(there[at] == ordinals, at, -1)


def _taken(records: npt.NDArray[Any], places: Int64s) -> npt.NDArray[Any]:
    if len(records) == 0:
        return np.zeros(len(places), records.dtype)
    if len(places) == len(records) and (np.diff(places) == 1).all():
        return records
    return records[places]


def _digest(ordinals: Int64s, table: EpisodeTable, indices: Int64s) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    is_all = len(indices) == len(table)
    for column in (ordinals[table.segment] if len(ordinals) else table.segment, *(getattr(table, n) for n in DIGESTED)):
        found.update(np.ascontiguousarray(column if is_all else column[indices], np.int64).data)
    return found.digest()


def _pack(values: Int64s) -> bytes:
    # the bytes of equal weight together: most of them are zeros
    return zlib.compress(np.ascontiguousarray(values.astype("<i8").view(np.uint8).reshape(-1, 8).T).data)


def _unpack(data: bytes) -> Int64s:
    planes = np.frombuffer(zlib.decompress(data), np.uint8).reshape(8, -1)
    return np.ascontiguousarray(planes.T).view("<i8").reshape(-1)


def _pack_bits(mask: npt.NDArray[np.bool_]) -> bytes:
    return zlib.compress(np.packbits(mask).data)


def _unpack_bits(data: bytes, count: int) -> npt.NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(zlib.decompress(data), np.uint8), count=count).astype(np.bool_)
