"""Rate limiters: Reverb's table of truth, and the closed form against counting one by one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import TableError
from stepwell.replay.contents import Counts
from stepwell.replay.limiters import Limiter, MinSize, Queue, SampleToInsertRatio, Stack

PROBE = SampleToInsertRatio(2.0, 3, 4.0)


def test_limits_of_the_probe_are_those_of_reverb():
    assert (PROBE.min_diff, PROBE.max_diff) == (2.0, 10.0)
    assert (MinSize(5).min_diff, MinSize(5).max_diff) == (-math.inf, math.inf)
    assert (Queue(4).min_diff, Queue(4).max_diff, Queue(4).min_size) == (0.0, 4.0, 1)
    assert (Stack(4).min_diff, Stack(4).max_diff, Stack(4).min_size) == (0.0, 4.0, 1)


@pytest.mark.parametrize(("inserts", "samples"), [(2, 0), (3, 4), (4, 6), (5, 8)])
def test_c6_samples_allowed_after_inserts(inserts, samples):
    assert PROBE.num_samples(Counts(inserts=inserts), 100) == samples


def test_c6_insert_six_waits_for_two_samples():
    assert not PROBE.can_insert(Counts(inserts=5, samples=1))
    assert PROBE.can_insert(Counts(inserts=5, samples=2))


def test_c6_sampling_stops_after_ten_of_six_inserts():
    assert PROBE.can_sample(Counts(inserts=6, samples=9))
    assert not PROBE.can_sample(Counts(inserts=6, samples=10))


def test_c6_deletes_block_sampling_again_but_never_enter_the_ratio():
    assert MinSize(3).can_sample(Counts(inserts=3))
    assert not MinSize(3).can_sample(Counts(inserts=3, deletes=1))
    # below min_size an insert is always allowed, whatever the ratio says
    assert not PROBE.can_insert(Counts(inserts=5))
    assert PROBE.can_insert(Counts(inserts=5, deletes=3))
    assert PROBE.num_samples(Counts(inserts=5, deletes=2), 100) == PROBE.num_samples(Counts(inserts=5), 100)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SampleToInsertRatio(0.0, 1, 5.0), "above 0"),
        (lambda: SampleToInsertRatio(-1.0, 1, 5.0), "above 0"),
        (lambda: SampleToInsertRatio(math.nan, 1, 5.0), "above 0"),
        (lambda: MinSize(0), "at least 1"),
        (lambda: SampleToInsertRatio(1.0, 1, 0.9), "at least 2 apart"),
        (lambda: SampleToInsertRatio(4.0, 1, (0.0, 7.9)), "at least 8 apart"),
        (lambda: SampleToInsertRatio(1.0, 2, (2.1, 9.0)), "Lower min_diff"),
        (lambda: Queue(0), "at least 1"),
        (lambda: Stack(-1), "at least 1"),
        (lambda: Limiter("mine", min_diff=math.nan), "must be numbers"),
    ],
)
def test_c6_numbers_that_cannot_be_are_refused(make, says):
    with pytest.raises(TableError, match=says):
        make()


def test_a_table_too_small_for_its_limiter_is_refused():
    MinSize(10).check_size(10)
    with pytest.raises(TableError, match="Raise max_size"):
        MinSize(11).check_size(10)


limiters = st.one_of(
    st.builds(MinSize, st.integers(1, 6)),
    st.builds(Queue, st.integers(1, 6)),
    st.builds(
        lambda ratio, size, more: SampleToInsertRatio(ratio, size, max(1.0, ratio) + more),
        st.sampled_from([0.1, 0.3, 1.0, 1.7, 4.0]),
        st.integers(1, 6),
        st.floats(0.01, 10),
    ),
)


@given(limiters, st.integers(0, 40), st.integers(0, 60), st.data())
def test_how_many_is_what_asking_one_by_one_gives(limiter, inserts, samples, data):
    deletes = data.draw(st.integers(0, inserts))

    def one_by_one(allowed, key):
        counts, done = Counts(inserts, samples, deletes), 0
        while done < 20 and allowed(counts):
            setattr(counts, key, getattr(counts, key) + 1)
            done += 1
        return done

    counts = Counts(inserts, samples, deletes)
    assert limiter.num_inserts(counts, 20) == one_by_one(limiter.can_insert, "inserts")
    assert limiter.num_samples(counts, 20) == one_by_one(limiter.can_sample, "samples")


@given(limiters)
def test_json_gives_the_limiter_back(limiter):
    assert Limiter.from_json(limiter.to_json()) == limiter


def test_reasons_say_the_numbers():
    assert "2 of the 3 items" in PROBE.why_no_sample(Counts(inserts=2))
    assert "6 inserts * 2 - 10 samples = 2" in PROBE.why_no_sample(Counts(inserts=6, samples=10))
    assert "5 inserts * 2 - 0 samples = 10" in PROBE.why_no_insert(Counts(inserts=5))


def test_limits_may_come_as_a_list():
    assert SampleToInsertRatio(2.0, 3, [2, 10]).min_diff == SampleToInsertRatio(2.0, 3, (2, 10)).min_diff == 2
