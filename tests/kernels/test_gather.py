"""The gather kernel against plain indexing, on memory with guards around every buffer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.kernels import gather as kernel
from stepwell.kernels.places import HI_FINAL, HI_STEP, LO, PLACE_ROWS, ROW, SEGMENT

GUARD = 200


def test_runs_cover_the_window_in_order():
    for offsets in ([0], [3, 4, 5], [2, 1, 0], [0, 0, 1, 1, 2], [-8, -4, 0], [5, 6, -1, 0, 1, 9]):
        covered = [(first + k, start + k) for first, number, start in kernel.runs_of(offsets) for k in range(number)]
        assert covered == [(offset, t) for t, offset in enumerate(offsets)]


def guarded(array):
    """The same bytes inside a buffer of poison, and the address of the first."""
    buffer = np.full(array.nbytes + 2 * GUARD, 0xEE, np.uint8)
    buffer[GUARD : GUARD + array.nbytes] = array.reshape(-1).view(np.uint8)
    return buffer, buffer.__array_interface__["data"][0] + GUARD


@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_windows_of_any_shape_equal_indexing_and_nothing_else_is_touched(data):
    row_bytes = data.draw(st.sampled_from([0, 1, 2, 3, 4, 8, 17, 68, 300]))
    offsets = data.draw(st.lists(st.integers(-6, 6), min_size=1, max_size=6))
    is_zero, is_final, has_mask = (data.draw(st.booleans()) for _ in range(3))
    extra = data.draw(st.sampled_from([0, 5]))  # bytes of another source, interleaved
    columns = [np.random.default_rng(s).integers(0, 200, (12, row_bytes), dtype=np.uint8) for s in range(2)]
    held = [guarded(column) for column in columns]
    anchors = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(2, 8)), min_size=1, max_size=20))
    num, width = len(anchors), len(offsets)

    places = np.zeros((PLACE_ROWS, num), np.int64)
    places[SEGMENT], places[ROW] = np.array(anchors).T
    places[LO], places[HI_STEP], places[HI_FINAL] = 2, 9, 10
    plan = np.zeros((1, kernel.PLAN_COLUMNS), np.int64)
    runs = np.array(kernel.runs_of(offsets), np.int64)
    stride = row_bytes + extra
    mask_at = GUARD + num * width * stride + 64
    values = {
        kernel.ROW_BYTES: row_bytes,
        kernel.NUM_OFFSETS: width,
        kernel.NUM_RUNS: len(runs),
        kernel.MIN_OFFSET: min(offsets),
        kernel.MAX_OFFSET: max(offsets),
        kernel.OUTPUT: GUARD,
        kernel.WINDOW_STRIDE: stride * width,
        kernel.ROW_STRIDE: stride,
        kernel.MASK: mask_at if has_mask else -1,
        kernel.IS_ZERO: is_zero,
        kernel.IS_FINAL: is_final,
    }
    for column, value in values.items():
        plan[0, column] = value
    memory = np.full(mask_at + num * width + GUARD, 0xDD, np.uint8)
    bases = np.array([[address for _, address in held]], np.int64)
    kernel.gather(plan, runs, np.array(offsets, np.int64), bases, places, memory)

    expected = np.full_like(memory, 0xDD)
    for b, (segment, row) in enumerate(anchors):
        for t, offset in enumerate(offsets):
            wanted = row + offset
            inside = min(max(wanted, 2), (10 if is_final else 9) - 1)
            value = columns[segment][inside] if wanted == inside or not is_zero else np.zeros(row_bytes, np.uint8)
            at = GUARD + (b * width + t) * stride
            expected[at : at + row_bytes] = value
            if has_mask:
                expected[mask_at + b * width + t] = wanted != inside
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("num", [0, 1, kernel.AHEAD, kernel.AHEAD + 1, 300])
def test_any_number_of_anchors(num):
    column = np.arange(4000, dtype=np.int32)
    places = np.zeros((PLACE_ROWS, num), np.int64)
    places[ROW] = rows = np.random.default_rng(0).integers(0, 4000, num)
    places[HI_STEP] = 4000
    plan = np.zeros((1, kernel.PLAN_COLUMNS), np.int64)
    plan[0, [kernel.ROW_BYTES, kernel.NUM_OFFSETS, kernel.NUM_RUNS, kernel.WINDOW_STRIDE, kernel.ROW_STRIDE]] = [
        4,
        1,
        1,
        4,
        4,
    ]
    plan[0, kernel.MASK] = -1
    out = np.zeros(num, np.int32)
    bases = np.array([[column.__array_interface__["data"][0]]], np.int64)
    kernel.gather(plan, np.array([[0, 1, 0]]), np.zeros(1, np.int64), bases, places, out.view(np.uint8))
    np.testing.assert_array_equal(out, column[rows])


def test_one_compiled_kernel_serves_every_call():
    compiled = len(kernel.gather.signatures)
    test_any_number_of_anchors(3)
    assert len(kernel.gather.signatures) == max(compiled, 1)
