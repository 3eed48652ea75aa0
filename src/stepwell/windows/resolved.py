"""A field against a store's schema: which columns it reads, and the shape, dtype and offsets of what comes out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Decoder, codec_class
from stepwell.errors import FeatureNotFoundError, SchemaError, WindowError
from stepwell.schema import Feature, Schema
from stepwell.windows.fields import Field, as_fields

__all__ = ["VIRTUAL_DTYPES", "ResolvedField", "Source", "resolve", "resolve_all", "resolve_fields", "schema_of"]

Kind = Literal["raw", "encoded", "converted", "ragged", "virtual"]

# what every store has without storing it
VIRTUAL_DTYPES: dict[str, np.dtype[Any]] = {
    "step_id": np.dtype(np.int64),
    "store_index": np.dtype(np.int64),
    "episode_index": np.dtype(np.int64),
    "step_index": np.dtype(np.int64),
    "timestamp": np.dtype(np.float32),
    "is_first": np.dtype(np.bool_),
    "is_last": np.dtype(np.bool_),
    "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True)
class Source:
    """One column that a field reads.

    Args:
        name: of the feature, or of the virtual source.
        kind: "raw" rows, "encoded" rows of a fixed decoded shape, rows "converted" by a decoder (of fixed shape or
            images of any size), "ragged" ones, or "virtual".
        dtype: of an element that comes out.
        shape: of one step that comes out; (None, ...) when ragged.
        is_final: whether windows may reach an episode's final row.
        feature: as the (first) schema has it; None for a virtual source.
        is_sequential: whether rows must be decoded from a sync row on, in any store.
        decoder: of the field.
        is_of_one_shape: whether all rows, in all stores, have one shape before the decoder.
    """

    name: str
    kind: Kind
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    is_final: bool
    feature: Feature | None
    is_sequential: bool = False
    decoder: Decoder | None = None
    is_of_one_shape: bool = True

    @property
    def is_drawn(self) -> bool:
        """Whether its decoder makes something else of a row for each window."""
        return self.decoder is not None and self.decoder.is_random

    @property
    def is_holdable(self) -> bool:
        """Whether rows can be held of which every window takes what it shows."""
        return self.kind != "ragged" and (self.is_of_one_shape or not self.is_drawn)

    @property
    def row_bytes(self) -> int:
        """Bytes of one decoded step; 0 when it varies."""
        return 0 if self.kind == "ragged" else math.prod(int(n or 0) for n in self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedField:
    """A field whose every number is known.

    Args:
        key: of the batch.
        field: as it was given.
        sources: its columns, in the field's order.
        offsets: int64 [K], steps from the anchor, the window flattened.
        step_shape: of one step of the output; (None, ...) when ragged.
        dtype: of the output; object when ragged.

    Attributes:
        window_shape: shape of the offsets, () without a time axis.
        has_mask: whether the batch has ``<key>_is_pad``.
        keys: of the batch: its own, and its mask's.
        is_step: whether it is the anchor's step alone, which no padding concerns.
        is_computed: whether it is one computed column, around the anchor.
    """

    key: str
    field: Field
    sources: tuple[Source, ...]
    offsets: npt.NDArray[np.int64]
    step_shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    # every batch asks for these
    window_shape: tuple[int, ...] = dataclass_field(init=False)
    has_mask: bool = dataclass_field(init=False)
    keys: tuple[str, ...] = dataclass_field(init=False)
    is_step: bool = dataclass_field(init=False)
    is_computed: bool = dataclass_field(init=False)

    def __post_init__(self) -> None:
        set_value = object.__setattr__
        set_value(self, "window_shape", self.field.window_shape)
        is_step = self.window_shape == () and int(self.offsets[0]) == 0
        is_computed = len(self.sources) == 1 and self.sources[0].kind == "virtual"
        set_value(self, "has_mask", self.pad != "drop" and not is_step)
        set_value(self, "is_step", is_step and self.field.at == "anchor")
        set_value(self, "is_computed", is_computed and self.field.at == "anchor")
        set_value(self, "keys", (self.key, self.mask_key) if self.has_mask else (self.key,))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: window, then step; a ragged field's cells are objects."""
        return self.window_shape if self.is_ragged else self.window_shape + tuple(int(n or 0) for n in self.step_shape)

    @property
    def pad(self) -> str:
        """The padding rule: "edge", "zero" or "drop"."""
        return self.field.pad

    @property
    def min_offset(self) -> int:
        """The earliest step of the window."""
        return int(self.offsets.min())

    @property
    def max_offset(self) -> int:
        """The latest step of the window."""
        return int(self.offsets.max())

    @property
    def is_ragged(self) -> bool:
        """Whether the output is an object array: a text, bytes or array of its own size in each cell."""
        return self.sources[0].kind == "ragged"

    @property
    def is_held(self) -> bool:
        """Whether a pool may hold its rows: they lie around the anchor, and have one size."""
        return all(source.is_holdable for source in self.sources) and self.field.at == "anchor"

    @property
    def is_encoded(self) -> bool:
        """Whether a row must be decoded."""
        return any(source.kind in {"encoded", "converted", "ragged"} for source in self.sources)

    @property
    def mask_key(self) -> str:
        """The mask's key."""
        return f"{self.key}_is_pad"

    @property
    def num_bytes(self) -> int:
        """Decoded bytes of one sample, the mask not counted; 0 when ragged."""
        return len(self.offsets) * sum(source.row_bytes for source in self.sources)


def resolve(field: Field, key: str, schema: Schema, fps: float | None) -> ResolvedField:
    """Return a field as one store has it.

    Args:
        field: what to read.
        key: of the batch, named in errors.
        schema: of the store.
        fps: of the store, or None.

    Raises:
        WindowError: sources that cannot be combined, seconds that are no steps, a virtual source without its fps.
        FeatureNotFoundError: no such feature and no such virtual source.
    """
    try:
        sources = tuple(_source(name, schema, fps, field.decoder) for name in field.sources)
        offsets = np.array(field.step_offsets(fps), dtype=np.int64)
        step_shape = _step_shape(field, sources)
    except FeatureNotFoundError as error:
        raise FeatureNotFoundError(f"field {key!r}: {error}") from None
    except WindowError as error:
        raise WindowError(f"field {key!r}: {error}") from None
    dtype = np.dtype(object) if sources[0].kind == "ragged" else sources[0].dtype
    return ResolvedField(key, field, sources, offsets, step_shape, dtype)


def resolve_all(field: Field, key: str, stores: Sequence[tuple[Schema, float | None]]) -> ResolvedField:
    """Return a field as several stores have it together: codecs may differ, dtypes, shapes and offsets may not.

    Args:
        field: what to read.
        key: of the batch, named in errors.
        stores: schema and fps of each, at least one.

    Raises:
        WindowError: as `resolve`, or the stores do not agree.
    """
    each = [resolve(field, key, schema, fps) for schema, fps in stores]
    first = each[0]
    for other in each[1:]:
        if not np.array_equal(first.offsets, other.offsets):
            raise WindowError(f"field {key!r}: its seconds are different steps in the stores, whose fps differ.")
        for a, b in zip(first.sources, other.sources, strict=True):
            if (a.dtype, a.shape, a.is_final, a.feature is None) != (b.dtype, b.shape, b.is_final, b.feature is None):
                raise WindowError(
                    f"field {key!r}: the stores do not agree on {a.name!r}: {_describe(a)} here, {_describe(b)} there."
                    f"{_advice(a)}"
                )
    sources = tuple(_merged([one.sources[i] for one in each]) for i in range(len(first.sources)))
    return ResolvedField(key, field, sources, first.offsets, first.step_shape, first.dtype)


def resolve_fields(fields: Mapping[str, Any] | None, stores: Sequence[Any]) -> dict[str, ResolvedField]:
    """Return fields as several stores have them together, by key.

    Args:
        fields: key to `Field`, name of a feature, or offsets; None: every feature of the first store at the anchor.
        stores: at least one.

    Raises:
        WindowError: as `resolve_all`, or a store without features.
        FeatureNotFoundError: no such feature.
    """
    known = [(schema_of(store), store.fps) for store in stores]
    return {key: resolve_all(field, key, known) for key, field in as_fields(fields, list(known[0][0])).items()}


def schema_of(store: Any) -> Schema:
    """Return the schema of a store that is to be read.

    Raises:
        WindowError: it has none yet.
    """
    if store.schema is None:
        raise WindowError(
            f"{store.path} has no features yet: they are known with its first step. Write one first, or name them: "
            "create(path, schema)."
        )
    schema: Schema = store.schema
    return schema


def _source(name: str, schema: Schema, fps: float | None, decoder: Decoder | None) -> Source:
    if name in schema:
        feature = schema[name]
        if decoder is not None:
            return _converted(name, feature, decoder)
        kind: Kind = "ragged" if feature.is_ragged else "raw" if feature.is_raw else "encoded"
        is_sequential = kind == "encoded" and codec_class(feature).is_sequential
        return Source(name, kind, feature.np_dtype, feature.shape, feature.final, feature, is_sequential)
    if name not in VIRTUAL_DTYPES:
        raise FeatureNotFoundError(
            f"no feature {name!r}. There are: {', '.join(schema)}; and computed ones: {', '.join(VIRTUAL_DTYPES)}."
        )
    if decoder is not None:
        raise WindowError(f"{name!r} is computed, not stored: there is nothing to decode. Leave out the decoder.")
    if name == "timestamp" and not fps:
        raise WindowError("'timestamp' needs the store's fps, and it has none. Use 'step_index'.")
    return Source(name, "virtual", VIRTUAL_DTYPES[name], (), False, None)


def _converted(name: str, feature: Feature, decoder: Decoder) -> Source:
    if feature.is_ragged and not feature.is_image_of_any_size:
        raise WindowError(f"{name!r} varies in size from step to step: a decoder needs a fixed shape, or images.")
    try:
        shape, dtype = decoder.output(feature)
    except SchemaError as error:
        raise WindowError(
            f"decoder {decoder!r} of {name!r}: {error} Its output() must tell the one shape that comes out."
        ) from error
    is_sequential = not feature.is_raw and codec_class(feature).is_sequential
    return Source(
        name,
        "converted",
        np.dtype(dtype),
        tuple(shape),
        feature.final,
        feature,
        is_sequential,
        decoder,
        is_of_one_shape=not feature.is_ragged,
    )


def _merged(sources: Sequence[Source]) -> Source:
    """Return the source that asks for the most work: where one store has to decode, the batch path decodes."""
    found = next((source for source in sources if source.kind == "encoded"), sources[0])
    shapes = {source.feature.shape for source in sources if source.feature is not None}
    return replace(
        found,
        is_sequential=any(source.is_sequential for source in sources),
        is_of_one_shape=found.is_of_one_shape and len(shapes) <= 1,
    )


def _step_shape(field: Field, sources: tuple[Source, ...]) -> tuple[int | None, ...]:
    first = sources[0]
    if field.combine is None:
        return first.shape
    for source in sources:
        if source.kind == "ragged":
            raise WindowError(f"{source.name!r} varies in size from step to step and cannot be combined with others.")
        if source.dtype != first.dtype:
            raise WindowError(
                f"{first.name!r} is {first.dtype} and {source.name!r} is {source.dtype}: dtypes must agree."
            )
    if field.combine == "stack":
        if any(source.shape != first.shape for source in sources):
            raise WindowError(
                f"shapes {[source.shape for source in sources]} must agree to be stacked. Use combine='concat'."
            )
        return (len(sources), *first.shape)
    if any(source.shape == () or source.shape[1:] != first.shape[1:] for source in sources):
        raise WindowError(
            f"shapes {[source.shape for source in sources]} cannot be joined along their first axis: "
            "scalars have none (stack them), and the other axes must agree."
        )
    return (sum(int(source.shape[0] or 0) for source in sources), *first.shape[1:])


def _advice(source: Source) -> str:
    """Return how images of several sizes are read together."""
    is_plain = source.feature is not None and source.feature.kind == "image" and source.decoder is None
    return f" Images of several sizes become alike by Field({source.name!r}, decoder=Resize(...))." if is_plain else ""


def _describe(source: Source) -> str:
    final = ", with a final row" if source.is_final else ""
    return f"{source.dtype} {source.shape}{final}" if source.feature is not None else "computed"
