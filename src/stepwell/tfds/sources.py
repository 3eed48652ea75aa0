"""What is written: a view for each split, its features, and the names of classes that an import left in the store."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from stepwell.errors import EpisodeNotFoundError, SchemaError
from stepwell.formats.source_episodes import as_view, schema_of
from stepwell.schema import Schema
from stepwell.store import Store
from stepwell.tfds.dataset_files import check_name
from stepwell.tfds.metadata_columns import MetadataColumn, metadata_columns
from stepwell.tfds.naming import METADATA, STEPS
from stepwell.tfds.step_columns import StepColumn, own_name, step_columns
from stepwell.windows import View

__all__ = ["Source", "entries_of", "steps_of", "views_of"]

Source = Store | View | str | os.PathLike[str]
Names = Mapping[str, Sequence[str]]
ENTRY = f"{METADATA}."
# what an import of several splits says of each episode: where it is written it is in a split again
SPLIT_ENTRY = "tfds_split"


def views_of(source: Source | Mapping[str, Source], split: str) -> dict[str, View]:
    """Return the view of each split.

    Args:
        source: as `stepwell.tfds.write_rlds` takes it.
        split: what a single source is.

    Raises:
        StepwellError: a name that TFDS does not take.
        EpisodeNotFoundError: no splits at all.
    """
    views = {name: as_view(one) for name, one in (source if isinstance(source, Mapping) else {split: source}).items()}
    for name in views:
        check_name("split", name)
    if not views:
        raise EpisodeNotFoundError("no splits. Give a mapping of at least one name to a store or view.")
    return views


def steps_of(
    views: Mapping[str, View], features: Collection[str] | None, labels: Names | None, **choices: Any
) -> tuple[StepColumn, ...]:
    """Return the columns of steps, which all splits have; see `step_columns`.

    Raises:
        SchemaError: splits of different features.
    """
    first, *others = (_chosen(schema_of(view), features) for view in views.values())
    for split, schema in zip(list(views)[1:], others, strict=True):
        if schema != first:
            raise SchemaError(f"split {split!r} has other features than those before it. Choose equal ones: features=.")
    told = {path.removeprefix(f"{STEPS}/"): names for path, names in _told(views).items()}
    found = {name: told[path] for name in first if (path := own_name(name).replace(".", "/")) in told}
    own = {name: names for name, names in (labels or {}).items() if not name.startswith(ENTRY)}
    kept = {name: names for name, names in found.items() if first[name].np_dtype == "<i8" and not first[name].shape}
    return step_columns(first, features=features, labels={**kept, **own}, **choices)


def entries_of(
    views: Mapping[str, View], names: Collection[str] | None, labels: Names | None
) -> tuple[MetadataColumn, ...]:
    """Return how the metadata of the episodes are written; see `metadata_columns`."""
    own = {
        name.removeprefix(ENTRY).replace(".", "/"): given
        for name, given in (labels or {}).items()
        if name.startswith(ENTRY)
    }
    prefix = f"{METADATA}/"
    told = {path.removeprefix(prefix): given for path, given in _told(views).items() if path.startswith(prefix)}
    found = metadata_columns(_metadata(views), names, own)
    return tuple(
        column.with_labels(told[column.path])
        if column.path in told and column.labels is None and column.may_have_labels
        else column
        for column in found
        if names is not None or column.path != SPLIT_ENTRY
    )


def _metadata(views: Mapping[str, View]) -> Iterator[Mapping[str, Any]]:
    for view in views.values():
        for part in view.parts:
            yield from (part.table.metadata(i) for i in part.indices.tolist() if part.table.length[i])


def _told(views: Mapping[str, View]) -> Names:
    """Return the names of classes that an import of a TFDS dataset left, by the paths that it had."""
    told = next(iter(views.values())).stores[0].metadata.get("tfds")
    labels = told.get("labels") if isinstance(told, Mapping) else None
    return labels if isinstance(labels, Mapping) else {}


def _chosen(schema: Schema, features: Collection[str] | None) -> Schema:
    if features is None or isinstance(features, str):
        return schema
    found = {name: feature for name, feature in schema.items() if name in features}
    return Schema(found) if len(found) == len(set(features)) else schema
