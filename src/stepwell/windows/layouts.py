"""Where the arrays of a batch lie in its memory, and the kernel's plan: computed once for each batch size.

::

    memory  |observation......|pad|observation_is_pad|pad|action........|pad|...
            0                 64-byte aligned        64-byte aligned
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import LoaderError
from stepwell.windows.resolved import ResolvedField, Source

__all__ = ["ALIGNMENT", "GatherTables", "Layout", "Output", "aligned_empty", "gather_tables", "make_layout"]

ALIGNMENT = 64
SlotOf = Callable[[ResolvedField, Source], int | None]


@dataclass(frozen=True, slots=True)
class Output:
    """One array of a batch: its key, and what `numpy.ndarray` needs to view it in the batch's memory."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """A batch of one size.

    Args:
        num_bytes: of the memory.
        outputs: the arrays in it, in the batch's order; ragged fields are not among them.
        plans: for each of the reader's tables the plan, int64 [num_sources, PLAN_COLUMNS], as
            `stepwell.kernels.gather.gather` takes it.
        views: the outputs as plain tuples (key, shape, dtype, offset), which are taken apart for every batch.
    """

    num_bytes: int
    outputs: tuple[Output, ...]
    plans: tuple[npt.NDArray[np.int64], ...]
    views: tuple[tuple[str, tuple[int, ...], np.dtype[Any], int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class GatherTables:
    """What the kernel needs of the raw sources at any batch size.

    Args:
        plan: int64 [num_sources, PLAN_COLUMNS], without the columns that depend on the batch size.
        keys: for each source the key of its field, and its first byte within a row of that field.
        runs: int64 [num_runs, 3].
        offsets: int64 [num_offsets].
    """

    plan: npt.NDArray[np.int64]
    keys: tuple[tuple[str, int], ...]
    runs: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]


def gather_tables(fields: Sequence[ResolvedField], slot_of: SlotOf) -> GatherTables:
    """Return the kernel's tables of the sources that it is to copy.

    Args:
        fields: of the batch.
        slot_of: the row in the table of addresses of a field's source; None where the kernel has nothing to do.
    """
    from stepwell.kernels import gather as kernel

    rows: list[list[int]] = []
    keys: list[tuple[str, int]] = []
    runs: list[tuple[int, int, int]] = []
    offsets: list[int] = []
    for field in fields:
        inner, row_stride = 0, sum(source.row_bytes for source in field.sources)
        field_runs = kernel.runs_of(field.offsets.tolist())
        for source in field.sources:
            slot = slot_of(field, source)
            if slot is not None:
                row = [0] * kernel.PLAN_COLUMNS
                row[kernel.SLOT], row[kernel.ROW_BYTES] = slot, source.row_bytes
                row[kernel.FIRST_OFFSET], row[kernel.NUM_OFFSETS] = len(offsets), len(field.offsets)
                row[kernel.FIRST_RUN], row[kernel.NUM_RUNS] = len(runs), len(field_runs)
                row[kernel.MIN_OFFSET], row[kernel.MAX_OFFSET] = field.min_offset, field.max_offset
                row[kernel.ROW_STRIDE], row[kernel.WINDOW_STRIDE] = row_stride, row_stride * len(field.offsets)
                row[kernel.IS_ZERO], row[kernel.IS_FINAL] = field.pad == "zero", source.is_final
                rows.append(row)
                keys.append((field.key, inner))
            inner += source.row_bytes
        runs += field_runs
        offsets += field.offsets.tolist()
    plan = np.array(rows, dtype=np.int64).reshape(-1, kernel.PLAN_COLUMNS)
    return GatherTables(plan, tuple(keys), np.array(runs, dtype=np.int64), np.array(offsets, dtype=np.int64))


def make_layout(fields: Sequence[ResolvedField], tables: Sequence[GatherTables], num_anchors: int) -> Layout:
    """Return the layout of a batch of ``num_anchors``, with a plan for each of the tables."""
    from stepwell.kernels.gather import MASK, OUTPUT

    outputs: list[Output] = []
    end = 0
    for field in fields:
        if not field.is_ragged:
            outputs.append(Output(field.key, (num_anchors, *field.shape), field.dtype, end))
            end = _aligned(end + num_anchors * field.num_bytes)
        if field.has_mask:
            outputs.append(Output(field.mask_key, (num_anchors, *field.window_shape), np.dtype(np.bool_), end))
            end = _aligned(end + num_anchors * len(field.offsets))
    starts = {output.key: output.offset for output in outputs}
    masks = {field.key: starts.get(field.mask_key, -1) if field.has_mask else -1 for field in fields}
    plans = tuple(each.plan.copy() for each in tables)
    for each, plan in zip(tables, plans, strict=True):
        for row, (key, inner) in zip(plan, each.keys, strict=True):
            row[OUTPUT], row[MASK] = starts[key] + inner, masks[key]
    views = tuple((output.key, output.shape, output.dtype, output.offset) for output in outputs)
    return Layout(end, tuple(outputs), plans, views)


def aligned_empty(num_bytes: int) -> npt.NDArray[np.uint8]:
    """Return new memory that begins at a multiple of 64 bytes, uint8 [num_bytes], not initialised.

    Raises:
        LoaderError: there is not so much.
    """
    try:
        memory = np.empty(num_bytes + ALIGNMENT - 1, dtype=np.uint8)
    except (MemoryError, ValueError) as error:
        raise LoaderError(
            f"a batch takes {num_bytes:,} bytes, and there is not so much memory. Make batches or windows smaller, or "
            "leave out a field; if that is more than it can be, the store's shapes are wrong."
        ) from error
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + num_bytes]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
