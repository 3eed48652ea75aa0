"""The short way into a table does what the long way does: same items, same order, same draws, same counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.replay import Queue, SampleToInsertRatio, Table
from stepwell.replay.patterns import Pattern
from stepwell.replay.selectors import Fifo, Lifo, MaxHeap, Prioritized, Uniform
from stepwell.schema import Array

COLUMNS = ("episode", "row", "length", "priority", "times_sampled", "sequence", "touched", "generation")

patterns = st.builds(
    Pattern,
    length=st.integers(1, 3),
    every=st.integers(1, 2),
    ahead=st.integers(0, 2),
    behind=st.integers(0, 1),
    ends=st.sampled_from(["keep", "drop"]),
) | st.builds(Pattern, length=st.integers(1, 3), at=st.just("end"))
actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 40)),
        st.tuples(st.just("end"), st.booleans()),
        st.tuples(st.just("sample"), st.integers(1, 6)),
        st.tuples(st.just("delete"), st.integers(0, 3)),
    ),
    min_size=5,
    max_size=25,
)


@settings(deadline=None, max_examples=50, suppress_health_check=list(HealthCheck))
@given(
    actions,
    patterns,
    st.sampled_from(["uniform", Prioritized]),
    st.integers(5, 60),
    st.sampled_from([None, 25, 4000]),
    st.sampled_from([None, SampleToInsertRatio(1.0, 5, 12.0)]),
)
def test_a_table_that_goes_the_short_way_is_the_one_that_never_does(
    tmp_path_factory, actions, pattern, sampler, max_size, capacity, limiter
):
    path = tmp_path_factory.mktemp("growing") / "a.well"
    store = stepwell.create(path, {"value": Array(dtype="int64")}, capacity=capacity)
    tables = [
        Table(
            store,
            max_size=max_size,
            sampler=sampler if isinstance(sampler, str) else sampler(0.7),
            pattern=pattern,
            limiter=limiter,
            seed=3,
        )
        for _ in range(2)
    ]
    tables[1]._intake._shape = None
    tables[1].history.grow = lambda: None
    with store.writer() as writer:
        is_open = False
        for action, argument in actions:
            if action == "append":
                for value in range(argument):
                    writer.append(value=value)
                    is_open = True
                    if value % 3 or argument < 9:
                        assert len({table.follow() for table in tables}) == 1
            elif action == "end" and is_open:
                writer.end_episode(truncated=argument)
                is_open = False
            elif action == "delete" and store.refresh() and len(store.episodes) > argument + is_open:
                store.delete_episodes(argument)
            elif action == "sample":
                sample_both(tables, argument)
            assert_same(tables)


def sample_both(tables, count):
    can_sample = [table.can_sample(count) for table in tables]
    if not all(can_sample):
        return
    samples = [table.sample(count) for table in tables]
    for one, other in zip(*samples, strict=True):
        np.testing.assert_array_equal(one, other)
    for table, sample in zip(tables, samples, strict=True):
        table.update_priorities(sample.keys, np.arange(count) % 3 * 1.5)


def assert_same(tables):
    for table in tables:
        table.follow()
    one, other = (table._contents for table in tables)
    assert one.counts == other.counts
    assert (one.num_drops, one.sampler.num, one.remover.num) == (other.num_drops, other.sampler.num, other.remover.num)
    np.testing.assert_array_equal(one.items.slots, other.items.slots)
    slots = one.items.slots
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(one.items, name)[slots], getattr(other.items, name)[slots])


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_steps_of_one_writer_go_the_short_way(tmp_path, sampler, monkeypatch):
    store = stepwell.create(tmp_path / "a.well", {"value": Array(dtype="int64")}, capacity=5000)
    table = Table(store, sampler=sampler, max_size=5000)
    with store.writer() as writer:
        for _ in range(10):
            writer.add_episode({"value": range(500)})
    # no segment is sealed or removed any more
    with store.writer() as writer:
        writer.append(value=0)
        table.follow()
        # whatever goes the long way from here on fails
        monkeypatch.setattr("stepwell.replay.contents.Contents.insert", None)
        monkeypatch.setattr("stepwell.replay.contents.Contents.evict", None)
        monkeypatch.setattr("stepwell.replay.history.History.advance", None)
        for value in range(400):
            writer.append(value=value)
            table.follow()
    assert (table.info.counts.inserts, table.info.counts.evicted, table.size) == (5399, 400, 4999)


@pytest.mark.parametrize("selectors", [(Uniform(), Lifo()), (MaxHeap(), Fifo()), (Fifo(), Fifo())])
def test_other_selectors_have_no_short_way(tmp_path, selectors):
    sampler, remover = selectors
    table = Table(stepwell.create(tmp_path / "a.well"), sampler=sampler, remover=remover)
    assert not table._contents.grows_in_one


def test_an_item_of_an_episode_s_end_waits_where_the_limiter_says_so(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"value": Array(dtype="int64")})
    table = Table(store, pattern=Pattern(at="end", ahead=0), limiter=Queue(1))
    with store.writer() as writer:
        for value in range(3):
            writer.append(value=value)
            table.follow()
            # no step is new when the end comes
            writer.end_episode(truncated=True)
            table.follow()
    assert (table.size, table.info.num_pending) == (1, 2)
