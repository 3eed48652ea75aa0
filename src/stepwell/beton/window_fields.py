"""Windows of a store as fields of a ``.beton`` file: which FFCV field each becomes, and what its samples share.

::

    a number a step                               IntField, FloatField: in the row
    array of one size, any window                 NDArrayField; a run of rows that samples share    `SharedRows`
    raw images of one size                        NDArrayField with a time axis, RGBImageField without
    JPEG files, images of any size, text, bytes   RGBImageField, BytesField: one for each offset, named NAME_0, NAME_1;
                                                  a step's row is one region, whatever windows it is in
    combined or computed columns                  NDArrayField, each window by itself
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np

from stepwell.beton.encoding import ArrayEncoder, BytesEncoder, Encoder, FloatEncoder, IntEncoder, check_names
from stepwell.beton.layout import RAW_MODE
from stepwell.beton.pictures import ImageEncoder
from stepwell.beton.shared_rows import SharedRows, stride_of
from stepwell.errors import SchemaError
from stepwell.schema import Feature
from stepwell.windows.fields import ResolvedField

__all__ = ["OutField", "RowRegions", "SharedColumn", "WindowPlan", "plan_windows"]


@dataclass(frozen=True, slots=True)
class SharedColumn:
    """Rows of one feature of fixed size, in the order of `SharedRows`.

    Args:
        source: name of the feature.
        dtype: of an element, as it is written.
        row_bytes: of a row, as it is written.
        rows: their order.
        is_zero: whether rows outside of an episode are zeros; else the nearest of its rows.
        is_final: whether windows may reach the final row.
    """

    source: str
    dtype: np.dtype[Any]
    row_bytes: int
    rows: SharedRows
    is_zero: bool
    is_final: bool


@dataclass(frozen=True, slots=True)
class RowRegions:
    """Rows of one feature that are a region each.

    Args:
        source: name of the feature.
        encoder: of a row.
        offsets: of all windows over it.
        is_final: whether windows may reach the final row.
    """

    source: str
    encoder: Encoder
    offsets: tuple[int, ...]
    is_final: bool


@dataclass(frozen=True, slots=True)
class OutField:
    """A field of the file.

    Args:
        name: in the file.
        encoder: its kind.
        kind: "cell": in the row; "read": each window by itself; "shared": a run of a `SharedColumn`; "region": a row
            of `RowRegions`.
        key: of the windows.
        number: of its column or of its regions, in the plan.
        offset: "shared": of the window's first step; "region": of its only one.
        cell: what stands in the row beside the ptr.
    """

    name: str
    encoder: Encoder
    kind: Literal["cell", "read", "shared", "region"]
    key: str
    number: int = -1
    offset: int = 0
    cell: Any = None

    @property
    def array(self) -> ArrayEncoder:
        """The encoder of a field that is read."""
        return cast("ArrayEncoder", self.encoder)


@dataclass(slots=True)
class WindowPlan:
    """All fields of a file, and what they share.

    Args:
        fields: in the file's order.
        columns: rows that windows are runs of.
        regions: rows that are a region each.
    """

    fields: list[OutField] = field(default_factory=list)
    columns: list[SharedColumn] = field(default_factory=list)
    regions: list[RowRegions] = field(default_factory=list)

    @property
    def encoders(self) -> dict[str, Encoder]:
        """Of the fields, by name."""
        return {each.name: each.encoder for each in self.fields}

    @property
    def read_keys(self) -> set[str]:
        """Keys of what is read window by window."""
        return {each.key.removesuffix("_is_pad") for each in self.fields if each.kind in ("cell", "read")}

    @property
    def read_fields(self) -> list[OutField]:
        """Arrays that are written window by window."""
        return [each for each in self.fields if each.kind == "read"]

    @property
    def window_bytes(self) -> list[int]:
        """Bytes of a window of each of these."""
        return [each.array.num_bytes for each in self.read_fields]

    @property
    def with_region(self) -> list[OutField]:
        """The fields that have a region."""
        return [each for each in self.fields if each.encoder.has_region]


def plan_windows(
    fields: Mapping[str, ResolvedField],
    rename: Mapping[str, str],
    image_encoder: Callable[[Feature], ImageEncoder],
    *,
    masks: bool,
) -> WindowPlan:
    """Return how windows are written.

    Args:
        fields: of the windows, by key.
        rename: keys to names in the file.
        image_encoder: how the RGB images of a feature are written.
        masks: whether ``<key>_is_pad`` becomes a field, too.

    Raises:
        SchemaError: a field or name that a file cannot hold.
    """
    unknown = [key for key in rename if key not in fields and key.removesuffix("_is_pad") not in fields]
    if unknown:
        raise SchemaError(f"rename= has {unknown[0]!r}, which is not among the fields: {', '.join(fields)}.")
    plan = WindowPlan()
    for key, resolved in fields.items():
        try:
            for out in _out_fields(plan, resolved, image_encoder):
                plan.fields.append(replace(out, name=rename.get(key, key) + out.name))
        except SchemaError as error:
            raise SchemaError(f"field {key!r}: {error}") from error
        if masks and resolved.has_mask:
            name = rename.get(f"{key}_is_pad", f"{rename.get(key, key)}_is_pad")
            encoder = ArrayEncoder(resolved.window_shape or (1,), np.bool_)
            plan.fields.append(OutField(name, encoder, "read", f"{key}_is_pad"))
    check_names([out.name for out in plan.fields], "rename={name: shorter name}")
    plan.columns = [_spread(plan, number, column) for number, column in enumerate(plan.columns)]
    return plan


def _out_fields(
    plan: WindowPlan, resolved: ResolvedField, image_encoder: Callable[[Feature], ImageEncoder]
) -> Iterator[OutField]:
    """Yield the fields of a key, named by what follows the key; columns and regions are added to the plan."""
    _check(resolved)
    feature = resolved.sources[0].feature
    is_plain = feature is not None and len(resolved.sources) == 1 and resolved.sources[0].decoder is None
    if feature is None or not is_plain:
        yield _read_field(resolved)
        return
    if feature.is_rgb_image:
        encoder = image_encoder(feature)
        is_plain_pixels = encoder.write_mode == "raw" and encoder.max_resolution is None and not feature.is_ragged
        if not is_plain_pixels:
            yield from _region_fields(plan, resolved, feature, encoder)
        elif resolved.window_shape == ():
            height, width = feature.fixed_shape[:2]
            yield _shared_field(plan, resolved, encoder, feature, (RAW_MODE, width, height))
        else:
            yield _shared_field(plan, resolved, _array_encoder(resolved), feature)
    elif feature.kind in ("text", "bytes"):
        yield from _region_fields(plan, resolved, feature, BytesEncoder())
    elif feature.is_ragged:
        raise SchemaError(f"{feature}: {_why_not(feature)}")
    elif resolved.shape == () and _cell_encoder(resolved) is not None:
        yield _read_field(resolved)
    else:
        yield _shared_field(plan, resolved, _array_encoder(resolved), feature)


def _check(resolved: ResolvedField) -> None:
    given = resolved.field
    if given.transforms:
        raise SchemaError("transforms are applied when a file is read. Leave them out.")
    if given.at != "anchor":
        raise SchemaError(f"at={given.at!r} is drawn anew in every epoch, and a file holds one. Leave it out.")
    if any(source.is_drawn for source in resolved.sources):
        raise SchemaError("a decoder that draws makes something else in every epoch, and a file holds one.")


def _read_field(resolved: ResolvedField) -> OutField:
    encoder = _cell_encoder(resolved) if resolved.shape == () else None
    if encoder is not None:
        return OutField("", encoder, "cell", resolved.key)
    return OutField("", _array_encoder(resolved), "read", resolved.key)


def _cell_encoder(resolved: ResolvedField) -> Encoder | None:
    """Return the encoder of a number that stands in the row; None: int64 and float64 cannot hold it."""
    dtype = resolved.dtype
    if dtype.kind in "bi" or (dtype.kind == "u" and dtype.itemsize < 8):
        return IntEncoder()
    return FloatEncoder() if dtype.kind == "f" and dtype.itemsize <= 8 else None


def _array_encoder(resolved: ResolvedField) -> ArrayEncoder:
    dtype = resolved.dtype
    if dtype.kind not in "biufc":
        raise SchemaError(f"FFCV cannot decode arrays of dtype {dtype}. Leave it out.")
    # FFCV cannot decode float16, and waits for ever; float32 holds the same values
    return ArrayEncoder(resolved.shape or (1,), np.float32 if dtype.kind == "f" and dtype.itemsize == 2 else dtype)


def _shared_field(
    plan: WindowPlan, resolved: ResolvedField, encoder: Encoder, feature: Feature, cell: Any = None
) -> OutField:
    offsets = tuple(resolved.offsets.tolist())
    dtype = encoder.dtype if isinstance(encoder, ArrayEncoder) else feature.np_dtype
    row_bytes = feature.row_bytes // feature.np_dtype.itemsize * dtype.itemsize
    column = SharedColumn(
        resolved.sources[0].name, dtype, row_bytes, SharedRows(offsets), resolved.pad == "zero", feature.final
    )
    number = next((i for i, other in enumerate(plan.columns) if _can_share(column, other)), len(plan.columns))
    if number == len(plan.columns):
        plan.columns.append(column)
    elif offsets[0] < plan.columns[number].rows.offsets[0]:
        plan.columns[number] = column
    return OutField("", encoder, "shared", resolved.key, number, offsets[0], cell)


def _can_share(one: SharedColumn, two: SharedColumn) -> bool:
    """Whether windows are runs of the same rows: equal steps between them, and as many, as one place has one size."""
    first, second = one.rows.offsets, two.rows.offsets
    is_alike = replace(one, rows=two.rows) == two and len(first) == len(second)
    is_moved = len({b - a for a, b in zip(first, second, strict=False)}) == 1
    return is_alike and is_moved and (stride_of(first) is not None or first == second)


def _spread(plan: WindowPlan, number: int, column: SharedColumn) -> SharedColumn:
    """Return a column with the rows of the latest window over it, too."""
    latest = max(out.offset for out in plan.fields if out.kind == "shared" and out.number == number)
    return replace(column, rows=SharedRows(column.rows.offsets, latest - column.rows.offsets[0]))


def _region_fields(plan: WindowPlan, resolved: ResolvedField, feature: Feature, encoder: Encoder) -> Iterator[OutField]:
    if resolved.pad == "zero" and not resolved.is_step:
        raise SchemaError(f'pad="zero" of {feature}: there is no file of zeros. Use "edge" or "drop".')
    name, offsets = resolved.sources[0].name, tuple(resolved.offsets.tolist())
    known = [i for i, other in enumerate(plan.regions) if (other.source, other.encoder) == (name, encoder)]
    number = known[0] if known else len(plan.regions)
    if known:
        merged = tuple(sorted({*plan.regions[number].offsets, *offsets}))
        plan.regions[number] = replace(plan.regions[number], offsets=merged)
    else:
        plan.regions.append(RowRegions(name, encoder, tuple(sorted(set(offsets))), feature.final))
    for place, offset in enumerate(offsets):
        suffix = "" if resolved.window_shape == () else f"_{place}"
        yield OutField(suffix, encoder, "region", resolved.key, number, offset)


def _why_not(feature: Feature) -> str:
    """Return why values of varying size are of no field that FFCV has."""
    if feature.kind != "image":
        return "it varies in size, and FFCV's arrays do not. Leave it out, or make it one size."
    return (
        "FFCV's images have 3 channels of uint8, and others have to be of one size. Read folders, Hugging Face's data "
        "sets and WebDataset's shards with channels=3 (grey to RGB, without alpha), or leave it out."
    )
