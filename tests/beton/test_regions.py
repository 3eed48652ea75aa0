"""The allocation table: sizes by ptr, in any order, shared, empty; and what it may not hold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.beton.layout import ALLOCATION_DTYPE, BetonLayout, FieldDescriptor, Header, row_dtype
from stepwell.beton.regions import RegionTable
from stepwell.errors import FormatError

FIELDS = (FieldDescriptor(1, "i"),)
LAYOUT = BetonLayout(Header(1, 4096, 10, 100_000), FIELDS, row_dtype(FIELDS))


def table_of(*rows):
    return RegionTable(np.array(list(rows), ALLOCATION_DTYPE), LAYOUT, "a.beton")


@given(st.dictionaries(st.integers(1145, 90_000), st.integers(1, 9_000), min_size=1, max_size=30), st.randoms())
def test_sizes_are_found_whatever_the_order_of_the_table(sizes, random):
    # every region is there once or more, by several samples, and empty values have the place of the next
    rows = [(random.randrange(10), ptr, size) for ptr, size in sizes.items() for _ in range(random.randrange(1, 4))]
    rows += [(random.randrange(10), ptr, 0) for ptr in sizes if random.random() < 0.3]
    random.shuffle(rows)
    table = table_of(*rows)
    ptrs = np.array([*sizes, *(ptr + 1 for ptr in sizes if ptr + 1 not in sizes), 2**64 - 1, 0], "u8")
    assert table.sizes_at(ptrs).tolist() == [sizes.get(ptr, 0) for ptr in ptrs.tolist()]
    assert len(table) == len(sizes)


def test_an_empty_table_has_no_sizes():
    assert table_of().sizes_at(np.array([5, 2**64 - 1], "u8")).tolist() == [0, 0]


def test_an_empty_region_may_be_anywhere():
    assert len(table_of((0, 0, 0), (1, 2**64 - 1, 0))) == 0


@pytest.mark.parametrize(
    "row", [(0, 1144, 8), (0, 99_993, 8), (0, 2**64 - 4, 8), (0, 2000, 2**64 - 1), (0, 2**63, 2**63)]
)
def test_a_region_outside_the_pages_is_told_by_row_and_byte(row):
    with pytest.raises(FormatError, match=r"a\.beton: row 1 of the allocation table, at byte 100024,"):
        table_of((0, 2000, 8), row)


def test_two_sizes_at_one_place_are_told_with_both_rows():
    with pytest.raises(
        FormatError, match="row 3 of the allocation table, at byte 100072, has 9 bytes at 2000, where row 0"
    ):
        table_of((0, 2000, 8), (1, 1500, 8), (2, 0, 0), (1, 2000, 9))
