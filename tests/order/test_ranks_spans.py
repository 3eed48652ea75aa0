import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.order import stream_spans


@given(num=st.integers(1, 30), offset=st.integers(0, 10**30), count=st.integers(0, 100))
def test_spans_cover_the_range_in_order_within_their_epochs(num: int, offset: int, count: int) -> None:
    spans = stream_spans(num, offset, count)
    covered = [span.epoch * num + span.start + i for span in spans for i in range(span.count)]
    assert covered == list(range(offset, offset + count))
    assert all(span.count > 0 and span.start + span.count <= num for span in spans)
    assert len({span.epoch for span in spans}) == len(spans)


@pytest.mark.parametrize(("num", "offset", "count"), [(0, 0, 1), (-1, 0, 1), (5, -1, 1), (5, 0, -1)])
def test_impossible_ranges_are_refused(num: int, offset: int, count: int) -> None:
    with pytest.raises(OrderError):
        stream_spans(num, offset, count)
