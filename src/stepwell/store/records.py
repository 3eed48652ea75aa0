"""The record ``store.json``: features, the capacity of a ring, and the stores where episodes were first written.

``origin`` alone is an id of the store in which an episode was first written, and two stores that were recorded alike
have the same ones. That is the store that holds it, unless ``store.json`` says otherwise: a concatenation and a
conversion hold episodes of others, and compaction of such a store moves them::

    "births": [[0, 0, "c0ffee..."],       from record 0 of the segment with ordinal 0 on: episodes of that store
               [2, 7, "beef..."],         from its record 7 on: of that one
               [5, 0, "abcd..."]]         what is recorded from here on: of the store itself
"""

from __future__ import annotations

import copy
import os
import uuid as uuids
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, SchemaError, StepwellError, StoreNotFoundError, StoreVersionError
from stepwell.files.addresses import cache_directory, nothing_at
from stepwell.json_text import open_json
from stepwell.references.trusted_paths import Trust, reach_of
from stepwell.schema import Schema
from stepwell.sizes import counted, parse_bytes
from stepwell.store.beneath import read_file
from stepwell.store.layout import FORMAT, FORMAT_VERSION, LANES_VERSION, MAX_ROWS, STORE_JSON, step_id

__all__ = [
    "SEGMENT_BYTES",
    "Birth",
    "BirthLog",
    "Capacity",
    "StoreRecord",
    "Sync",
    "births_of",
    "fixed_row_bytes",
    "is_of_cache",
    "reaching",
    "read_record",
    "runs_of",
]

Sync = Literal["none", "episode", "step"]

Int64s = npt.NDArray[np.int64]
Unit = Literal["steps", "bytes"]

# of a store in the cache: the folders of its reader and of its data set
CACHE_FOLDERS = 2
SEGMENT_BYTES = 256 << 20
OFFSET_BYTES = 8
# stores that lie in a directory which is none
MAX_SHOWN = 5
ALLOWED = 'Give a number of steps, such as 100_000, or a size, such as "20 GB"; None keeps everything.'
# from a record of the segment with an ordinal on, episodes were first written in the store with a uuid
Birth = tuple[int, int, str]
# what fields of store.json hold
FIELDS: dict[str, tuple[type, ...]] = {
    "fps": (int, float, type(None)),
    "metadata": (dict,),
    "segment_bytes": (int,),
    "sync": (str,),
    "uuid": (str,),
}


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of steps or bytes that a ring keeps."""

    # how many, at least 1
    amount: int
    # "steps" or "bytes"
    unit: Unit

    @classmethod
    def parse(cls, capacity: int | str | Capacity) -> Capacity:
        """Return the capacity that a user means: an int is a number of steps, a text a size in bytes."""
        if isinstance(capacity, Capacity):
            return capacity
        if isinstance(capacity, str):
            try:
                return cls(parse_bytes("capacity", capacity, error=SchemaError), "bytes")
            except SchemaError:
                raise SchemaError(f"capacity={capacity!r} is no size. {ALLOWED}") from None
        if not isinstance(capacity, int | np.integer) or isinstance(capacity, bool) or capacity < 1:
            raise SchemaError(f"capacity={capacity!r} cannot be. {ALLOWED}")
        return cls(int(capacity), "steps")

    def check(self, schema: Schema) -> None:
        """Raise SchemaError when not even one step of ``schema`` fits."""
        least = fixed_row_bytes(schema)
        if self.unit == "bytes" and self.amount < least:
            raise SchemaError(
                f"capacity of {counted(self.amount, 'byte')}: a step takes at least {counted(least, 'byte')} "
                f"({', '.join(schema)}). Give more, or a number of steps."
            )

    def to_json(self) -> dict[str, int]:
        """Return it as ``store.json`` has it: ``{"steps": n}`` or ``{"bytes": n}``."""
        return {self.unit: self.amount}

    @classmethod
    def from_json(cls, record: Mapping[str, Any] | None) -> Capacity | None:
        """Return what `to_json` made; TypeError or ValueError when it is something else."""
        if record is None:
            return None
        ((name, amount),) = record.items()
        unit: Unit = "steps" if name == "steps" else "bytes"
        if name != unit or not isinstance(amount, int) or amount < 1:
            raise TypeError(f"capacity {record!r}")
        return cls(amount, unit)

    def __str__(self) -> str:
        return counted(self.amount, self.unit.removesuffix("s"))


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """The record of a store."""

    # its features; None until the first step
    schema: Schema | None = None
    # steps a second, or None
    fps: float | None = None
    # free, JSON types
    metadata: dict[str, Any] = field(default_factory=dict)
    # a segment is sealed at the first end of an episode beyond this size
    segment_bytes: int = SEGMENT_BYTES
    # when writers wait for the disk, by default
    sync: Sync = "none"
    # of a ring; None keeps everything
    capacity: Capacity | None = None
    # its identity
    uuid: str = field(default_factory=lambda: uuids.uuid4().hex)
    # where its episodes were first written in other stores
    births: tuple[Birth, ...] = ()
    # whether segments may have lanes, which earlier releases cannot read
    has_lanes: bool = False

    def with_schema(self, schema: Schema) -> StoreRecord:
        """Return the record with another schema."""
        return replace(self, schema=schema)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON types."""
        return {
            "format": FORMAT,
            "version": LANES_VERSION if self.has_lanes else FORMAT_VERSION,
            "uuid": self.uuid,
            "fps": self.fps,
            "sync": self.sync,
            "segment_bytes": self.segment_bytes,
            "capacity": None if self.capacity is None else self.capacity.to_json(),
            "metadata": self.metadata,
            "features": None if self.schema is None else self.schema.to_json(),
            **({"births": [list(birth) for birth in self.births]} if self.births else {}),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any], path: str) -> StoreRecord:
        """Return the record that `to_json` wrote."""
        if record.get("format") != FORMAT:
            raise StoreNotFoundError(f"{path} is not the record of a stepwell store.")
        if record["version"] > LANES_VERSION:
            raise StoreVersionError(
                f"{path} has format version {record['version']}, this stepwell reads up to {LANES_VERSION}. "
                "Upgrade stepwell."
            )
        features = record["features"]
        for name, kinds in FIELDS.items():
            if not isinstance(record[name], kinds) or isinstance(record[name], bool):
                raise TypeError(f"{name} is {record[name]!r:.100}")
        if record["sync"] not in get_args(Sync) or record["segment_bytes"] < 1:
            raise ValueError(f"sync is {record['sync']!r:.100}, segment_bytes {record['segment_bytes']}")
        return cls(
            schema=None if features is None else Schema.from_json(features),
            fps=record["fps"],
            metadata=record["metadata"],
            segment_bytes=record["segment_bytes"],
            sync=record["sync"],
            # stores that are older than rings do not say
            capacity=Capacity.from_json(record.get("capacity")),
            uuid=record["uuid"],
            births=_births(record.get("births", [])),
            has_lanes=record["version"] >= LANES_VERSION,
        )


def _births(entries: list[Any]) -> tuple[Birth, ...]:
    births = tuple((int(ordinal), int(first), str(uuid)) for ordinal, first, uuid in entries)
    is_sound = all(0 <= ordinal <= 1 << 31 and 0 <= first < 1 << 32 for ordinal, first, _ in births)
    places = [birth[:2] for birth in births]
    if not is_sound or any(second <= first for first, second in pairwise(places)):
        raise ValueError('"births" are not ordinals, records and uuids in order')
    return births


def read_record(path: str) -> StoreRecord:
    """Read ``store.json``; StoreNotFoundError, StoreVersionError of a newer format, or CorruptSegmentError."""
    file = f"{path}/{STORE_JSON}"
    try:
        data = read_file(file)
    except (FileNotFoundError, CorruptSegmentError) as error:
        if isinstance(error, CorruptSegmentError) and os.path.isdir(path):
            raise
        raise StoreNotFoundError(f"no store at {path}: {_why_none(path)}") from None
    record = _parse_record(data, file)
    # free metadata are the caller's to change
    return replace(record, metadata=copy.deepcopy(record.metadata))


def _why_none(path: str) -> str:
    if not os.path.lexists(path):
        told = nothing_at(path)
        return told if told.endswith("?") else f"{told} Make one with stepwell.create()."
    stores: list[str] = []
    with suppress(OSError):
        names = islice(sorted(os.listdir(path)), MAX_SHOWN * 100)
        stores = list(islice((name for name in names if os.path.isfile(f"{path}/{name}/{STORE_JSON}")), MAX_SHOWN))
    return f"there is no {STORE_JSON}. " + (
        f"There are stores in it: {', '.join(stores)}." if stores else "Make one with stepwell.create()."
    )


@lru_cache(maxsize=8)
def _parse_record(data: bytes, file: str) -> StoreRecord:
    try:
        return StoreRecord.from_json(open_json(data, name=file), file)
    except StepwellError as error:
        if not isinstance(error, SchemaError):
            raise
        raise CorruptSegmentError(f"{file} is not the record of a store: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptSegmentError(f"{file} is not the record of a store: {error!r}.") from error


class BirthLog:
    """Collect the entries of ``births`` of the store with the uuid ``own``."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._entries: list[Birth] = []

    @classmethod
    def continued(cls, record: StoreRecord, there: Int64s) -> BirthLog:
        """Return the log of a store, without entries that no segment needs any more."""
        log = cls(record.uuid)
        there = np.sort(there)
        ends = [*record.births[1:], (MAX_ROWS, 0, "")]
        for (ordinal, first, uuid), (last, until, _) in zip(record.births, ends, strict=bool(record.births)):
            # segments of others are all made already; of the store's own any may be yet to come
            stop = last + (until > 0)
            if uuid == record.uuid or np.searchsorted(there, ordinal) < np.searchsorted(there, stop):
                log.add(ordinal, [(first, uuid)])
        return log

    def add(self, ordinal: int, runs: Iterable[tuple[int, str]]) -> None:
        """Add the next segment, by the record at which each run of episodes of one store begins, and its uuid."""
        for first, uuid in runs:
            if self._entries and self._entries[-1][:2] == (ordinal, first):
                # what was to be recorded from there on
                self._entries.pop()
            if uuid != (self._entries[-1][2] if self._entries else self._own):
                self._entries.append((ordinal, first, uuid))

    def end(self, ordinal: int) -> tuple[Birth, ...]:
        """Return the entries; segments from an ordinal on are to be recorded in the store itself."""
        self.add(ordinal, [(0, self._own)])
        return tuple(self._entries)


def births_of(record: StoreRecord, ordinals: Int64s, records: Int64s) -> tuple[list[str], Int64s]:
    """Return uuids of the stores that episodes were first written in, and each one's number among them, int64 [n]."""
    known = {uuid: number for number, uuid in enumerate(dict.fromkeys([record.uuid, *(b[2] for b in record.births)]))}
    uuids = list(known)
    if not record.births:
        return uuids, np.zeros(len(ordinals), np.int64)
    numbers = np.array([0, *(known[uuid] for _, _, uuid in record.births)], np.int64)
    firsts = np.array([step_id(ordinal, first) for ordinal, first, _ in record.births], np.int64)
    return uuids, numbers[np.searchsorted(firsts, step_id(ordinals, records), side="right")]


def runs_of(parts: Sequence[tuple[StoreRecord, int, npt.ArrayLike]]) -> list[tuple[int, str]]:
    """Return the runs, for `BirthLog.add`, of a segment made of parts: of a store, an ordinal there, its records."""
    runs: list[tuple[int, str]] = []
    done = 0
    for record, ordinal, given in parts:
        places = np.asarray(given, np.int64)
        uuids, numbers = births_of(record, np.full(len(places), ordinal, np.int64), places)
        heads = np.flatnonzero(np.diff(numbers, prepend=-1))
        runs += [
            (done + head, uuids[number]) for head, number in zip(heads.tolist(), numbers[heads].tolist(), strict=True)
        ]
        done += len(places)
    return runs


def fixed_row_bytes(schema: Schema) -> int:
    """Return the bytes of a row but for its encoded values: raw features, and an offset for each encoded one."""
    return sum(feature.row_bytes if feature.is_raw else OFFSET_BYTES for feature in schema.values())


def reaching(record: StoreRecord, path: str, trust: Trust) -> StoreRecord:
    """Return the record of a store whose features know where their references may lead."""
    if record.schema is None or record.schema.is_raw:
        return record
    reach = None if trust is True or is_of_cache(path) else reach_of(trust)
    return replace(record, schema=record.schema.reaching(reach))


def is_of_cache(path: str) -> bool:
    """Return whether a store lies where `stepwell.open` of an address puts those that it makes."""
    folder, levels = os.path.dirname(os.path.realpath(path)), CACHE_FOLDERS
    for _ in range(levels):
        folder = os.path.dirname(folder)
    return folder == os.path.realpath(cache_directory())
