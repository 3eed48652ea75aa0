"""Rows of one size, and spans of files: their places are checked before they are copied."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.kernels.spans import announce, copy_spans, take_rows


def address(array):
    return array.__array_interface__["data"][0]


def taken(offsets, blob, rows, size=4):
    offsets, blob = np.asarray(offsets, np.uint64), np.asarray(blob, np.uint8)
    bases, out = np.array([0, address(offsets)], np.int64), np.full((len(rows), size), 77, np.uint8)
    segments = np.ones(len(rows), np.int64)
    blobs, sizes = np.array([0, address(blob)], np.int64), np.array([0, blob.size], np.int64)
    return take_rows(bases, blobs, sizes, segments, np.array(rows, np.int64), out), out.tolist()


def test_rows_of_one_size_are_taken_wherever_they_begin_and_no_row_is_zeros():
    rows = [[4, 5, 6, 7], [0, 0, 0, 0], [0, 1, 2, 3], [4, 5, 6, 7]]
    # the row between them has no value
    assert taken([0, 4, 4, 8], range(8), [2, -1, 0, 2]) == (-1, rows)


@pytest.mark.parametrize(
    ("offsets", "wrong"),
    [([0, 4, 4, 8], 1), ([0, 4, 9, 13], 1), ([0, 4, 8, 12], 2), ([0, 3, 7, 11], 0), ([4, 0, 4, 8], 0)],
)
def test_rows_of_another_size_or_place_are_reported_by_index(offsets, wrong):
    assert taken(offsets, range(8), [0, 1, 2])[0] == wrong


def copied(spans, size=3):
    """Copy spans (file, size, offset) of three files: of five and seven bytes, and one that is not mapped."""
    files = [np.arange(5, dtype=np.uint8), np.arange(10, 17, dtype=np.uint8)]
    numbers, sizes, offsets = np.array(spans).T
    out = np.full((len(spans), size), 77, np.uint8)
    bases, lengths = np.array([*map(address, files), 0]), np.array([5, 7, 100])
    spans = numbers.astype(np.uint32), sizes.astype(np.uint32), offsets.astype(np.int64)
    return copy_spans(*spans, bases, lengths, out), out.tolist()


def test_spans_of_files_are_copied_up_to_their_ends():
    assert copied([(1, 3, 4), (0, 3, 0), (0, 3, 2)]) == (-1, [[14, 15, 16], [0, 1, 2], [2, 3, 4]])
    assert copied([(n % 2, 3, 0) for n in range(200)])[1] == [[0, 1, 2], [10, 11, 12]] * 100


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(1, 4))), st.integers(1, 3))
@settings(deadline=None)
def test_rows_that_follow_each_other_and_others_are_the_slices_of_their_files(runs, size):
    files = [np.arange(100, 140, dtype=np.uint8), np.arange(40, dtype=np.uint8)]
    places = [(file, size * (first + i) + file) for file, first, count in runs for i in range(count)]
    numbers = np.array([file for file, _ in places], np.uint32)
    offsets = np.array([offset for _, offset in places], np.int64)
    bases, out = np.array([*map(address, files)]), np.full((len(places), size), 77, np.uint8)
    sizes = np.full(len(places), size, np.uint32)
    assert copy_spans(numbers, sizes, offsets, bases, np.array([40, 40]), out) == -1
    assert out.tolist() == [files[file][offset : offset + size].tolist() for file, offset in places]


@pytest.mark.parametrize("span", [(0, 3, 3), (1, 3, 5), (1, 3, -1), (1, 3, 2**62), (2, 3, 0), (3, 3, 0), (0, 2, 0)])
def test_a_span_that_is_not_there_is_reported_and_nothing_is_copied(span):
    wrong, out = copied([(1, 3, 4), span, (0, 3, 0)])
    assert wrong == 1 and np.all(np.array(out) == 77)


def test_announcing_any_part_of_a_map_does_no_harm(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 256)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as map_:
        data = np.frombuffer(map_, np.uint8)
        base = data.__array_interface__["data"][0]
        announce(np.array([base, base + 5, base + 65_535, base]), np.array([65_536, 1, 1, 0]))
        assert data[257] == 1
        del data
