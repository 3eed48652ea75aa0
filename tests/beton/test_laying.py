import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.beton.laying import PageCursor, aligned, check_alignment, check_page_size, too_large
from stepwell.errors import FormatError

PAGE = 64


@given(st.lists(st.lists(st.integers(0, PAGE), max_size=20), max_size=6))
def test_taking_all_is_taking_one_after_the_other(lots):
    one, all_at_once = PageCursor(PAGE, PAGE), PageCursor(PAGE, PAGE)
    for sizes in lots:
        places = all_at_once.take_all(np.array(sizes, np.int64)).tolist()
        assert places == [one.take(size) for size in sizes]
        assert all_at_once.stop == one.stop


@given(st.lists(st.integers(1, PAGE), max_size=60))
def test_units_follow_each_other_and_never_cross_a_page(sizes):
    cursor, end = PageCursor(0, PAGE), 0
    for size in sizes:
        place = cursor.take(size)
        assert place >= end and place // PAGE == (place + size - 1) // PAGE
        # a page is left only where the unit does not fit
        assert place == end or -end % PAGE < size
        end = place + size
    assert cursor.stop == -(-end // PAGE) * PAGE


def test_nothing_taken_has_no_pages():
    cursor = PageCursor(PAGE, PAGE)
    assert cursor.stop == cursor.start
    assert cursor.room == PAGE


@given(st.integers(0, 1000), st.sampled_from([1, 2, 8, 64]))
def test_aligned_takes_up_at_least_a_byte(size, alignment):
    found = int(aligned(size, alignment))
    assert found % alignment == 0 and max(size, 1) <= found < max(size, 1) + alignment


@pytest.mark.parametrize("page_size", [0, 3 << 20, 1 << 15, 1 << 32, "7 MB", -8, 8.0])
def test_page_sizes_that_files_cannot_have_are_refused(page_size):
    with pytest.raises(FormatError, match="page_size="):
        check_page_size(page_size)


def test_page_sizes_may_be_texts():
    assert check_page_size("8 MiB") == check_page_size(8 << 20) == 8 << 20


@pytest.mark.parametrize("align", [0, 3, -8, 128, True, 2.0])
def test_alignments_that_are_none_are_refused(align):
    with pytest.raises(FormatError, match="align="):
        check_alignment(align, PAGE)


def test_what_fits_no_page_is_told_the_page_that_it_needs():
    assert "Give page_size=16777216, or more" in str(too_large("sample 3", "image 9000000", 9_000_000, 8 << 20))
    assert "make it smaller" in str(too_large("sample 3", "image", 3 << 30, 8 << 20))
