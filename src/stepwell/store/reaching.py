"""What the references of a store may lead to: it depends on where the store lies, and on what its user says."""

from __future__ import annotations

import os
from dataclasses import replace

from stepwell.files.addresses import cache_directory
from stepwell.references.trusted_paths import Trust, reach_of
from stepwell.schema import Schema
from stepwell.store.records import StoreRecord

__all__ = ["is_of_cache", "reaching"]

# of a store in the cache: the folders of its reader and of its data set
CACHE_FOLDERS = 2


def reaching(record: StoreRecord, path: str, trust: Trust) -> StoreRecord:
    """Return the record of a store whose features know where their references may lead.

    Args:
        record: as it was read.
        path: of the store.
        trust: what its user allows.
    """
    if record.schema is None or all(feature.is_raw for feature in record.schema.values()):
        return record
    reach = None if trust is True or is_of_cache(path) else reach_of(trust)
    return replace(
        record, schema=Schema({name: replace(feature, reach=reach) for name, feature in record.schema.items()})
    )


def is_of_cache(path: str) -> bool:
    """Return whether a store lies where `stepwell.open` of an address puts those that it makes."""
    folder, levels = os.path.dirname(os.path.realpath(path)), CACHE_FOLDERS
    for _ in range(levels):
        folder = os.path.dirname(folder)
    return folder == os.path.realpath(cache_directory())
