"""Windows of a store as fields of a ``.beton`` file: the FFCV field of each, and the rows that its samples share.

::

    a number a step                               IntField, FloatField: in the row
    array of one size, any window                 NDArrayField; a run of rows that samples share    `SharedRows`
    raw images of one size                        NDArrayField with a time axis, RGBImageField without
    JPEG files, images of any size, text, bytes   RGBImageField, BytesField: one for each offset, named NAME_0, NAME_1;
                                                  a step's row is one region, whatever windows it is in
    combined or computed columns                  NDArrayField, each window by itself

A window of consecutive steps is a run of the episode's rows. Rows outside of the episode are repeated before and after
it, so that padded windows are runs, too. For every second or third step the rows form as many chains::

    episode             0 1 2 3 4 5                 anchors 0 .. 5
    [-1, 0, 1], edge    0|0 1 2 3 4 5|5             the window of anchor 0 is the run at 0, that of anchor 1 at 1, ...
    [0, 2], edge        0 2 4|5    1 3 5|5          anchors 0, 2, 4 in the first chain, 1, 3, 5 in the second
    [0, 3, 4], edge     0 3 4  1 4 5  2 5 5 ...     no equal steps: each window by itself

Fields with windows of the same steps at other offsets, such as observation and next observation, share the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from stepwell.beton.encoding import (
    ArrayEncoder,
    BytesEncoder,
    Encoder,
    FloatEncoder,
    ImageEncoder,
    IntEncoder,
    check_names,
)
from stepwell.beton.layout import RAW_MODE
from stepwell.errors import SchemaError
from stepwell.schema import Feature
from stepwell.windows.fields import ResolvedField

__all__ = ["OutField", "RowRegions", "SharedColumn", "SharedRows", "WindowPlan", "plan_windows", "stride_of"]


@dataclass(frozen=True, slots=True)
class SharedColumn:
    """Rows of one feature of fixed size, in the order of `SharedRows`."""

    source: str
    dtype: np.dtype[Any]
    row_bytes: int
    rows: SharedRows
    is_zero: bool
    is_final: bool


@dataclass(frozen=True, slots=True)
class RowRegions:
    """Rows of one feature that are a region each."""

    source: str
    encoder: Encoder
    offsets: tuple[int, ...]
    is_final: bool


@dataclass(frozen=True, slots=True)
class OutField:
    """A field of the file."""

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
    """All fields of a file, and what they share."""

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
    """Return how windows are written."""
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


Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SharedRows:
    """The rows of one feature that the windows of consecutive anchors need, in order."""

    offsets: tuple[int, ...]
    spread: int = 0

    @property
    def length(self) -> int:
        """Rows of a window."""
        return len(self.offsets)

    def num_rows(self, number: int) -> int:
        """Return how many rows the windows of some consecutive anchors need."""
        anchors = number + self.spread
        return anchors + self._num_chains(anchors) * (self.length - 1)

    def rows(self, first: int, number: int) -> Int64s:
        """Return these rows; some may lie outside of the episode."""
        anchors = number + self.spread
        stride = stride_of(self.offsets)
        if stride is None:
            windows: Int64s = first + np.arange(anchors)[:, None] + np.array(self.offsets)
            return windows.reshape(-1)
        begin = first + self.offsets[0] + (0 if stride > 0 else anchors - 1)
        chains = range(self._num_chains(anchors))
        return np.concatenate(
            [
                begin
                + np.sign(stride) * chain
                + stride * np.arange(self._chain_anchors(chain, anchors) + self.length - 1)
                for chain in chains
            ]
        ).astype(np.int64)

    def starts(self, number: int, later: int = 0) -> Int64s:
        """Return at which of the rows each anchor's window begins, int64 [number]."""
        anchors = number + self.spread
        stride = stride_of(self.offsets)
        wanted = np.arange(number) + later
        if stride is None:
            return wanted * self.length
        # anchors are dealt out from the end where windows run backwards
        dealt = wanted if stride > 0 else anchors - 1 - wanted
        chains = np.array([self._chain_anchors(chain, anchors) for chain in range(self._num_chains(anchors))], np.int64)
        firsts = np.cumsum(chains + self.length - 1) - (chains + self.length - 1)
        found: Int64s = firsts[dealt % len(chains)] + dealt // len(chains)
        return found

    def _num_chains(self, anchors: int) -> int:
        stride = stride_of(self.offsets)
        return anchors if stride is None else min(abs(stride), anchors)

    def _chain_anchors(self, chain: int, anchors: int) -> int:
        chains = self._num_chains(anchors)
        return -(-(anchors - chain) // chains)


def stride_of(offsets: Sequence[int]) -> int | None:
    """Return the step between offsets where it is the same everywhere, and None elsewhere."""
    return _stride(tuple(offsets))


# called for every piece, of the few windows that a file has
@lru_cache(maxsize=256)
def _stride(offsets: tuple[int, ...]) -> int | None:
    if len(offsets) == 1:
        return 1
    steps = {after - before for before, after in pairwise(offsets)}
    return steps.pop() if len(steps) == 1 and 0 not in steps else None
