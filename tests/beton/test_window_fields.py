from hypothesis import given
from hypothesis import strategies as st

from stepwell.beton.window_fields import SharedRows, stride_of

STEADY = st.builds(
    lambda first, stride, length: tuple(first + stride * i for i in range(length)),
    st.integers(-6, 6),
    st.sampled_from([-3, -2, -1, 1, 2, 3]),
    st.integers(1, 6),
)
ANY = st.lists(st.integers(-5, 5), min_size=1, max_size=5).map(tuple)


@given(offsets=STEADY | ANY, spread=st.integers(0, 4), number=st.integers(1, 12), first=st.integers(0, 50))
def test_the_window_of_every_anchor_is_a_run_of_the_rows(offsets, spread, number, first):
    shared = SharedRows(offsets, spread)
    rows = shared.rows(first, number).tolist()
    assert len(rows) == shared.num_rows(number)
    for later in range(spread + 1):
        for anchor, start in enumerate(shared.starts(number, later).tolist()):
            window = [first + anchor + later + offset for offset in offsets]
            assert rows[start : start + len(offsets)] == window


@given(offsets=STEADY, number=st.integers(1, 200))
def test_windows_of_equal_steps_share_all_but_a_few_rows(offsets, number):
    stride = abs(stride_of(offsets))
    assert SharedRows(offsets).num_rows(number) <= number + stride * (len(offsets) - 1)


def test_windows_of_unequal_steps_are_there_one_by_one():
    assert SharedRows((0, 1, 3)).num_rows(5) == 15


@given(offsets=STEADY | ANY, spread=st.integers(0, 3), number=st.integers(1, 30))
def test_more_anchors_never_need_fewer_rows(offsets, spread, number):
    shared = SharedRows(offsets, spread)
    assert shared.num_rows(number) < shared.num_rows(number + 1)
