"""Fields as a client names them: sent as values, never as code; and who makes what of them.

::

    client    Field(source, offsets, ..., transform, decoder)
                 |  sources, offsets, seconds, span, rate, align, pad, combine, at    as JSON
    server       '-> whole arrays of what it gathers: raw rows, samples, video, computed columns
                 '-> rows as they are stored, each distinct one once: images, text
    client           decoded there, in its threads; decoders and transforms run there, too
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stepwell.codecs.codec import codec_class
from stepwell.errors import ServiceError, WindowError
from stepwell.references.file_codec import FileCodec
from stepwell.replay.history import CLUED
from stepwell.schema import Schema
from stepwell.windows.fields import Field, FieldSource, ResolvedField, as_fields, resolve

__all__ = ["fields_from_json", "fields_to_json", "is_mapped", "is_sent_stored", "reach_of", "resolve_remote"]

MAX_OFFSETS = 1 << 16
NAMES = ("source", "offsets", "seconds", "pad", "combine", "at", "tolerance_seconds")
# sent where a field has them
CLOCK_NAMES = ("span", "rate", "align")


def fields_to_json(fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return fields as JSON types, without their transforms and decoders."""
    return {
        key: {name: getattr(field, name) for name in NAMES}
        | {name: getattr(field, name) for name in CLOCK_NAMES if getattr(field, name) is not None}
        for key, field in fields.items()
    }


def fields_from_json(record: Any) -> dict[str, Field]:
    """Return the fields that a client asks for."""
    if not isinstance(record, dict) or not record or not all(isinstance(each, dict) for each in record.values()):
        raise ServiceError(f"{record!r:.100} are no fields.")
    fields = {}
    for key, each in record.items():
        if set(each) - set(CLOCK_NAMES) != set(NAMES):
            allowed = ", ".join((*NAMES, *CLOCK_NAMES))
            raise ServiceError(f"field {key!r} with {', '.join(map(str, each))}. It has {allowed}.")
        source = each["source"]
        try:
            fields[key] = Field(**{**each, "source": tuple(source) if isinstance(source, list) else source})
        except (TypeError, ValueError) as error:
            raise ServiceError(f"field {key!r}: {error}") from None
    return fields


def resolve_remote(fields: Mapping[str, Any] | None, schema: Schema, fps: float | None) -> dict[str, ResolvedField]:
    """Return fields as a server's store has them, by key.

    Raises:
        WindowError: fields that do not fit the store, or of more than `MAX_OFFSETS` offsets.
    """
    found = {}
    for key, field in as_fields(fields, list(schema)).items():
        found[key] = resolve(field, key, schema, fps)
        # before the next one takes memory
        if len(found[key].offsets) > MAX_OFFSETS:
            raise WindowError(f"field {key!r} has more than {MAX_OFFSETS:,} offsets.")
    return found


def is_sent_stored(field: ResolvedField) -> bool:
    """Return whether rows of a field are sent as they are stored, to be decoded by the client."""
    (first, *others) = field.sources
    if others or first.feature is None or first.feature.is_raw or first.is_sequential or first.kind == "rated":
        return False
    return not _is_elsewhere(first)


def is_mapped(field: ResolvedField) -> bool:
    """Return whether a client that maps the store's files reads a field at the places that come."""
    # where else windows are put the server draws; and some computed columns are the server's own numbers
    return field.field.at == "anchor" and all(
        not _is_elsewhere(each) if each.feature is not None else each.name in CLUED for each in field.sources
    )


def reach_of(fields: Iterable[ResolvedField]) -> tuple[int, int]:
    """Return the first and the last offset of any window; at most and at least 0."""
    each = list(fields)
    return min([0, *(field.min_offset for field in each)]), max([0, *(field.max_offset for field in each)])


def _is_elsewhere(source: FieldSource) -> bool:
    """Return whether rows name places in other files, and are read where these are."""
    feature = source.feature
    return feature is not None and not feature.is_raw and issubclass(codec_class(feature), FileCodec)
