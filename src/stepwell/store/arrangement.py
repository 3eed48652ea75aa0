"""Which segments a store shows, and in which order: by ordinal, unless ``arrangement.json`` says otherwise.

::

    {"sequence": 3,                        grows with every replacement
     "positions": {"00000009-7f3a": 2},    sorts where ordinal 2 was, whose place it took
     "hidden": ["00000002-91bc"],          on the disk, but not shown: not yet, or not any more
     "keys": {"00000004-33d0": "task-17"}, of segments without a note of their key, as older releases wrote them
     "crc32": "9a1f0c22"}

The file is absent until the first compaction. It is replaced whole, so that one rename swaps old segments for new ones.
Segments of writers with a key come after all others, by key; see `stepwell.store.writer_keys`.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepwellError, StoreBusyError
from stepwell.store.beneath import read_file
from stepwell.store.layout import (
    OPEN_SUFFIX,
    SEGMENTS,
    is_sealed_name,
    key_of_name,
    list_keys,
    list_segments,
    ordinals_of_keys,
    replace_file,
    without,
)
from stepwell.store.manifests import open_json, seal_json
from stepwell.store.writer_keys import check_key, find_note

__all__ = [
    "ARRANGEMENT",
    "Arrangement",
    "Ranked",
    "arranged_segments",
    "read_arrangement",
    "replace_arrangement",
    "shown_keys",
    "shown_segments",
]

Int64s = npt.NDArray[np.int64]
Listing = TypeVar("Listing")
ARRANGEMENT = "arrangement.json"
MAX_TRIES = 1000
# of ten digits
MAX_ORDINAL = 10**10


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What ``arrangement.json`` says.

    Args:
        positions: segment's name to the ordinal that it sorts by.
        hidden: names of segments that are not shown.
        sequence: how often it was replaced.
        keys: name of a segment without a note to the key of the writer that made it.
    """

    positions: Mapping[str, int] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    sequence: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)

    def position(self, ordinal: int, name: str) -> tuple[int, int, str]:
        """Return what a segment sorts by among those of its key: its position, its ordinal, its name."""
        return self.positions.get(name, ordinal), ordinal, name

    def ordered(self, segments: Int64s, known: Ranked, written: Mapping[int, str]) -> Int64s:
        """Return segments, as numbers (`stepwell.store.layout`), by key, position and ordinal.

        Args:
            segments: int64 [S], ascending.
            known: the keys that the store's table has of some of them.
            written: segment to the key of its writer, where its own note says so.
        """
        if len(segments) == 0 or not (self.positions or self.keys or written or known.texts):
            return segments
        positions = ordinals_of_keys(segments)
        _put(positions, segments, {_number(name): position for name, position in self.positions.items()})
        ranks = known.ranks_of(segments)
        between = np.zeros(len(segments), np.int64)
        others = {_number(name): key for name, key in self.keys.items()} | dict(written)
        if others:
            # without a walk over all that the table has: what it has not comes between two of its keys
            places = {number: _place(known.texts, key) for number, key in others.items()}
            new = {others[number] for number, place in places.items() if place % 2}
            fresh = {key: rank for rank, key in enumerate(sorted(new))}
            _put(ranks, segments, places)
            _put(between, segments, {number: fresh.get(key, 0) for number, key in others.items()})
        return segments[np.lexsort((segments, positions, between, ranks))]

    def segments_of(self, key: str) -> list[int]:
        """Return the segments that have a key here, as numbers."""
        return [_number(name) for name, text in self.keys.items() if text == key]

    def has_order_of(self, other: Arrangement) -> bool:
        """Whether it orders the same segments as the other one does."""
        return self.positions == other.positions and self.keys == other.keys


class Ranked(Protocol):
    """Keys of writers that are sorted already."""

    texts: Sequence[str]  # ascending, each once

    def ranks_of(self, segments: Int64s) -> Int64s:
        """Return twice one more than the place of each segment's key in ``texts``, int64 [S]; 0: none is known."""


def _number(name: str) -> int:
    number = key_of_name(name)
    return -1 if number is None else number


def _place(texts: Sequence[str], text: str) -> int:
    """Return where a key comes among others: an even number where it is one of them."""
    place = bisect_left(texts, text)
    return 2 * place + 1 + (place < len(texts) and texts[place] == text)


def _put(target: Int64s, segments: Int64s, values: Mapping[int, int]) -> None:
    """Store the value of each segment that is there in its place; at least one segment is there."""
    named = np.fromiter(values, np.int64, len(values))
    at = np.minimum(np.searchsorted(segments, named), len(segments) - 1)
    is_there = segments[at] == named
    target[at[is_there]] = np.fromiter(values.values(), np.int64, len(values))[is_there]


def read_arrangement(store: str) -> Arrangement:
    """Read the arrangement of the store at ``store``; CorruptSegmentError when it is damaged."""
    return _parse(_read(store), store)


def replace_arrangement(
    store: str,
    positions: Mapping[str, int],
    hidden: Iterable[str],
    *,
    new_keys: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Replace the arrangement; the caller holds the store's lock. Positions and keys of segments gone are dropped.

    Args:
        store: path of the store.
        positions: see `Arrangement`.
        hidden: see `Arrangement`.
        new_keys: of segments that have neither one here nor a note; those of the others stay.
    """
    there, before = list_segments(store), read_arrangement(store)
    record: dict[str, Any] = {
        "sequence": before.sequence + 1,
        "positions": {name: position for name, position in sorted(positions.items()) if name in there},
        "hidden": sorted(hidden),
    }
    keys = {name: key for name, key in before.keys.items() if name in there} | dict(new_keys)
    if keys:
        record["keys"] = dict(sorted(keys.items()))
    replace_file(f"{store}/{ARRANGEMENT}", seal_json(record))


def shown_segments(store: str) -> tuple[dict[str, tuple[int, bool]], Arrangement]:
    """Return the shown segments, as `list_segments` does, and the arrangement they were listed under.

    Those without a key, and all of a ring, are in their order.

    Raises:
        CorruptSegmentError: the arrangement is damaged.
        StoreBusyError: it was replaced again and again meanwhile.
    """
    found, arrangement = _listed(store, list_segments)
    shown = [(name, state) for name, state in found.items() if name not in arrangement.hidden]
    return dict(sorted(shown, key=lambda item: arrangement.position(item[1][0], item[0]))), arrangement


def arranged_segments(store: str) -> tuple[dict[str, tuple[int, bool]], Arrangement]:
    """Return the same as `shown_segments`, those with a key in their order, too: looks into each segment.

    Raises:
        CorruptSegmentError: the arrangement, or the note of a key, is damaged.
        StoreBusyError: the arrangement was replaced again and again meanwhile.
    """
    shown, arrangement = shown_segments(store)
    keys = {}
    for name, (_, is_sealed) in shown.items():
        note = find_note(f"{store}/{SEGMENTS}/{name}" + ("" if is_sealed else OPEN_SUFFIX))
        keys[name] = arrangement.keys.get(name, "") if note is None else note.key
    return dict(sorted(shown.items(), key=lambda item: keys[item[0]])), arrangement


def shown_keys(store: str) -> tuple[Int64s, Int64s, Arrangement]:
    """Return the same as `shown_segments`, as numbers (see `stepwell.store.layout`).

    Returns:
        The shown segments, int64 [S], ascending; open ones among them, int64 [m]; the arrangement.
    """
    (keys, opened), arrangement = _listed(store, list_keys)
    if arrangement.hidden:
        hidden = np.array(list(map(_number, arrangement.hidden)), np.int64)
        hidden.sort()
        keys, opened = without(keys, hidden), without(opened, hidden)
    return keys, opened, arrangement


def _listed(store: str, look: Callable[[str], Listing]) -> tuple[Listing, Arrangement]:
    """Return what a look at the directory finds, and the arrangement before it, which was the same after it."""
    for _ in range(MAX_TRIES):
        before = _read(store)
        found = look(store)
        if _read(store) == before:
            return found, _parse(before, store)
    raise StoreBusyError(f"{ARRANGEMENT} of {store} was replaced {MAX_TRIES} times during as many listings. Try again.")


def _read(store: str) -> bytes | None:
    try:
        return read_file(f"{store}/{ARRANGEMENT}")
    except FileNotFoundError:
        return None


@lru_cache(maxsize=4)
def _parse(data: bytes | None, store: str) -> Arrangement:
    if data is None:
        return Arrangement()
    path = os.path.join(store, ARRANGEMENT)
    record = open_json(data, name=path)
    try:
        positions = {_checked(name): _ordinal(position) for name, position in record["positions"].items()}
        keys = {_checked(name): check_key(key) for name, key in record.get("keys", {}).items()}
        return Arrangement(positions, frozenset(map(_checked, record["hidden"])), int(record["sequence"]), keys)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, StepwellError) as error:
        raise CorruptSegmentError(f"{path} is not an arrangement: {error!r}.") from error


def _checked(name: Any) -> str:
    """Return the name of a segment: what is hidden is removed, so that it may be nothing else."""
    if not is_sealed_name(name):
        raise ValueError(f"{name!r:.100} is no name of a segment")
    return str(name)


def _ordinal(position: Any) -> int:
    if not isinstance(position, int) or not 0 <= position < MAX_ORDINAL:
        raise ValueError(f"{position!r:.100} is no ordinal")
    return position
