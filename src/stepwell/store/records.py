"""What ``store.json`` says of a store."""

from __future__ import annotations

import os
import uuid as uuids
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, get_args

from stepwell.errors import CorruptSegmentError, SchemaError, StepwellError, StoreNotFoundError, StoreVersionError
from stepwell.schema import Schema
from stepwell.store.beneath import read_file
from stepwell.store.capacity import Capacity
from stepwell.store.layout import FORMAT, FORMAT_VERSION, STORE_JSON
from stepwell.store.manifests import open_json

__all__ = ["SEGMENT_BYTES", "Birth", "StoreRecord", "Sync", "read_record"]

Sync = Literal["none", "episode", "step"]

SEGMENT_BYTES = 256 << 20
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
class StoreRecord:
    """The record of a store.

    Args:
        schema: its features; None until the first step.
        fps: steps a second, or None.
        metadata: free, JSON types.
        segment_bytes: a segment is sealed at the first end of an episode beyond this size.
        sync: when writers wait for the disk, unless told otherwise.
        capacity: of a ring; None keeps everything.
        uuid: its identity.
        births: where its episodes were first written in other stores, see `stepwell.store.births`.
    """

    schema: Schema | None = None
    fps: float | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    segment_bytes: int = SEGMENT_BYTES
    sync: Sync = "none"
    capacity: Capacity | None = None
    uuid: str = field(default_factory=lambda: uuids.uuid4().hex)
    births: tuple[Birth, ...] = ()

    def with_schema(self, schema: Schema) -> StoreRecord:
        """Return the record with another schema."""
        return replace(self, schema=schema)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON types."""
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
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
        if record["version"] > FORMAT_VERSION:
            raise StoreVersionError(
                f"{path} has format version {record['version']}, this stepwell reads up to {FORMAT_VERSION}. "
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
        )


def _births(entries: list[Any]) -> tuple[Birth, ...]:
    births = tuple((int(ordinal), int(first), str(uuid)) for ordinal, first, uuid in entries)
    is_sound = all(0 <= ordinal <= 1 << 31 and 0 <= first < 1 << 32 for ordinal, first, _ in births)
    places = [birth[:2] for birth in births]
    if not is_sound or any(second <= first for first, second in pairwise(places)):
        raise ValueError('"births" are not ordinals, records and uuids in order')
    return births


def read_record(path: str) -> StoreRecord:
    """Read ``store.json`` of the store at ``path``.

    Raises:
        StoreNotFoundError: there is none.
        StoreVersionError: of a newer format.
        CorruptSegmentError: damaged.
    """
    file = f"{path}/{STORE_JSON}"
    try:
        data = read_file(file)
    except (FileNotFoundError, CorruptSegmentError) as error:
        if isinstance(error, CorruptSegmentError) and os.path.isdir(path):
            raise
        raise StoreNotFoundError(
            f"no store at {path}: there is no {STORE_JSON}. Make one with stepwell.create()."
        ) from None
    try:
        return StoreRecord.from_json(open_json(data, name=file), file)
    except StepwellError as error:
        if not isinstance(error, SchemaError):
            raise
        raise CorruptSegmentError(f"{file} is not the record of a store: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptSegmentError(f"{file} is not the record of a store: {error!r}.") from error
