"""Where encoded rows lie: offsets are checked before anyone follows them."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from stepwell.kernels.spans import announce, spans


def spans_of(offsets, size, rows):
    offsets = np.asarray(offsets, np.uint64)
    bases = np.array([0, offsets.__array_interface__["data"][0]], np.int64)
    begins, ends = np.full(len(rows), 77, np.int64), np.full(len(rows), 77, np.int64)
    segments = np.ones(len(rows), np.int64)
    wrong = spans(bases, np.array([0, size], np.int64), segments, np.array(rows, np.int64), begins, ends)
    return wrong, begins.tolist(), ends.tolist()


def test_spans_are_pairs_of_offsets_and_no_row_is_empty():
    assert spans_of([0, 5, 5, 9], 9, [2, 0, -1, 1]) == (-1, [5, 0, 0, 5], [9, 5, 0, 5])


@pytest.mark.parametrize(
    ("offsets", "size"),
    [
        ([0, 5, 4, 9], 9),
        ([0, 5, 9, 10], 8),
        ([0, 1 << 63, 1 << 63, 5], 9),
        ([0, 5, 2**64 - 1, 2**64 - 1], 9),
        ([0, 10, 10, 10], 9),
    ],
)
def test_offsets_that_cannot_be_are_reported_by_index(offsets, size):
    wrong, *_ = spans_of(offsets, size, [0, 1])
    assert wrong in {0, 1}


def test_announcing_any_part_of_a_map_does_no_harm(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 256)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as map_:
        data = np.frombuffer(map_, np.uint8)
        base = data.__array_interface__["data"][0]
        announce(np.array([base, base + 5, base + 65_535, base]), np.array([65_536, 1, 1, 0]))
        assert data[257] == 1
        del data
