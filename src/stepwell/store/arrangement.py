"""Which segments a store shows, and in which order: by ordinal, unless ``arrangement.json`` says otherwise.

::

    {"sequence": 3,                        grows with every replacement
     "positions": {"00000009-7f3a": 2},    sorts where ordinal 2 was, whose place it took
     "hidden": ["00000002-91bc"],          on the disk, but not shown: not yet, or not any more
     "keys": {"00000004-33d0": "task-17"}, of writers with a key: after all others, by key
     "crc32": "9a1f0c22"}

The file is absent until the first compaction or the first segment with a key. It is replaced whole, so that one rename
swaps old segments for new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, StepwellError, StoreBusyError
from stepwell.store.beneath import read_file
from stepwell.store.layout import is_sealed_name, list_segments, replace_file
from stepwell.store.manifests import open_json, seal_json
from stepwell.store.segment_keys import key_of_name, list_keys, ordinals_of_keys

__all__ = [
    "ARRANGEMENT",
    "Arrangement",
    "add_key",
    "arranged_keys",
    "arranged_segments",
    "check_key",
    "read_arrangement",
    "replace_arrangement",
]

Int64s = npt.NDArray[np.int64]
Listing = TypeVar("Listing")
ARRANGEMENT = "arrangement.json"
MAX_TRIES = 1000
# of ten digits
MAX_ORDINAL = 10**10
MAX_KEY = 200


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What ``arrangement.json`` says.

    Args:
        positions: segment's name to the ordinal that it sorts by.
        hidden: names of segments that are not shown.
        sequence: how often it was replaced.
        keys: segment's name to the key of the writer that made it; segments without one come first.
    """

    positions: Mapping[str, int] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    sequence: int = 0
    keys: Mapping[str, str] = field(default_factory=dict)

    def place(self, ordinal: int, name: str) -> tuple[str, int, int, str]:
        """Return what a segment sorts by: the writer's key, its position, its ordinal, its name."""
        return self.keys.get(name, ""), self.positions.get(name, ordinal), ordinal, name

    def ordered(self, keys: Int64s) -> Int64s:
        """Return ascending keys of segments (`stepwell.store.segment_keys`) in the order of `place`."""
        if len(keys) == 0 or not (self.positions or self.keys):
            return keys
        positions = ordinals_of_keys(keys)
        _put(positions, keys, self.positions)
        ranks = np.zeros(len(keys), np.int64)
        rank_of = {key: rank for rank, key in enumerate(sorted(set(self.keys.values())), start=1)}
        _put(ranks, keys, {name: rank_of[key] for name, key in self.keys.items()})
        return keys[np.lexsort((keys, positions, ranks))]

    def has_order_of(self, other: Arrangement) -> bool:
        """Whether it orders the same segments as the other one does."""
        return self.positions == other.positions and self.keys == other.keys


def _put(target: Int64s, keys: Int64s, values: Mapping[str, int]) -> None:
    """Store the value of each named segment that is there in its place; at least one segment is there."""
    named = np.array([key_of_name(name) or -1 for name in values], np.int64)
    at = np.minimum(np.searchsorted(keys, named), len(keys) - 1)
    is_there = keys[at] == named
    target[at[is_there]] = np.array(list(values.values()), np.int64)[is_there]


def check_key(key: str) -> str:
    """Return the key of a writer; StepwellError when it is none."""
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY or any("\ud800" <= char <= "\udfff" for char in key):
        raise StepwellError(f"{key!r:.100} is no key of a writer. Give text of 1 to {MAX_KEY} characters.")
    return key


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
        new_keys: of segments that have none yet, and may not be there yet; those of the others stay.
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


def add_key(store: str, name: str, key: str) -> None:
    """Note the key of a segment that is about to be made; the caller holds the store's lock."""
    found = read_arrangement(store)
    replace_arrangement(store, found.positions, found.hidden, new_keys={name: key})


def arranged_segments(store: str) -> tuple[dict[str, tuple[int, bool]], Arrangement]:
    """Return the shown segments in their order, as `list_segments` does, and the arrangement they were listed under.

    Raises:
        CorruptSegmentError: the arrangement is damaged.
        StoreBusyError: it was replaced again and again meanwhile.
    """
    found, arrangement = _listed(store, list_segments)
    shown = [(name, state) for name, state in found.items() if name not in arrangement.hidden]
    return dict(sorted(shown, key=lambda item: arrangement.place(item[1][0], item[0]))), arrangement


def arranged_keys(store: str) -> tuple[Int64s, Int64s, Arrangement]:
    """Return the same as `arranged_segments`, as keys (see `stepwell.store.segment_keys`).

    Returns:
        Those of the shown segments in their order, int64 [S]; of open ones among them, int64 [m]; the arrangement.
    """
    (keys, opened), arrangement = _listed(store, list_keys)
    if arrangement.hidden:
        hidden = np.array([key_of_name(name) or -1 for name in arrangement.hidden], np.int64)
        keys, opened = np.setdiff1d(keys, hidden), np.setdiff1d(opened, hidden)
    return arrangement.ordered(keys), opened, arrangement


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
