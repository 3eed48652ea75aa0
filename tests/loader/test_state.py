import copy
import itertools
import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import OrderError, StateError
from stepwell.loader.jobs import Position, schedule
from stepwell.loader.settings import LoaderSettings
from stepwell.loader.state import Cursor, LoaderState, describe_order
from stepwell.order import BoundPooled, Partition, mixed, pooled, random, sequential, weighted
from stepwell.windows import Blocks

STATE = LoaderState(
    snapshot="abc", order="Random(seed=0)", seed=0, epoch=1, consumed=7, first_epoch=0, batch_size=3, world_size=2
)
SAME = replace(STATE, num_positions=10)


def test_state_survives_json() -> None:
    assert LoaderState.from_json(json.loads(json.dumps(STATE.to_json()))) == STATE


@pytest.mark.parametrize("record", [{}, {"format": 2}, {"format": 1}, [], None, {**STATE.to_json(), "epoch": -1}])
def test_what_is_not_a_state_is_refused(record) -> None:
    with pytest.raises(StateError):
        LoaderState.from_json(record)


@pytest.mark.parametrize(
    ("change", "both"),
    [
        ({"snapshot": "xyz"}, ("abc", "xyz")),
        ({"order": "Sequential()"}, (r"Random\(seed=0\)", r"Sequential\(\)")),
        ({"seed": 5}, ("seed 0", "seed 5")),
        ({"num_positions": 6}, ("7", "6")),
    ],
)
def test_a_state_of_something_else_is_refused_naming_both(change: dict, both: tuple[str, str]) -> None:
    STATE.check(SAME)
    with pytest.raises(StateError, match=f"{both[0]}.*{both[1]}"):
        STATE.check(replace(SAME, **change))


def test_orders_are_told_apart_by_their_weights() -> None:
    weights = np.ones(5000)
    other = weights.copy()
    other[2500] = 2
    assert describe_order(weighted(episodes=weights)) == describe_order(weighted(episodes=weights.copy()))
    assert describe_order(weighted(episodes=weights)) != describe_order(weighted(episodes=other))
    nested = [mixed([1, 1], order=weighted(episodes=w)) for w in (weights, other)]
    assert describe_order(nested[0]) != describe_order(nested[1])
    assert describe_order(random(1)) != describe_order(random(2)) != describe_order(sequential())


def test_description_of_a_long_order_is_short_and_still_distinct() -> None:
    long = [mixed([1.0] * 999 + [last]) for last in (1.0, 2.0)]
    assert len(describe_order(long[0])) < 400
    assert describe_order(long[0]) != describe_order(long[1])


@pytest.mark.parametrize("ranks", [(3, 1), (4, 2), (6, 1)])
def test_ranks_with_their_own_blocks_need_their_batch_size_and_number_in_mid_epoch(ranks: tuple[int, int]) -> None:
    batch_size, world_size = ranks
    own = replace(SAME, batch_size=batch_size, world_size=world_size)
    STATE.check(SAME, depends_on_ranks=True)
    STATE.check(own)
    both = f"batch_size=3 and world_size=2.*batch_size={batch_size} and world_size={world_size}.*end of an epoch"
    with pytest.raises(StateError, match=both):
        STATE.check(own, depends_on_ranks=True)


@pytest.mark.parametrize("consumed", [0, 10])
def test_between_epochs_ranks_may_change(consumed: int) -> None:
    replace(STATE, consumed=consumed).check(replace(SAME, batch_size=5, world_size=7), depends_on_ranks=True)


def test_a_rank_alone_may_change_its_batch_size_in_mid_epoch() -> None:
    alone = replace(STATE, world_size=1)
    alone.check(replace(SAME, batch_size=5, world_size=1), depends_on_ranks=True)
    with pytest.raises(StateError, match="world_size=2"):
        alone.check(SAME, depends_on_ranks=True)


def test_orders_that_depend_on_how_anchors_are_cut_are_told_apart_by_that() -> None:
    def cut(*starts: int) -> BoundPooled:
        blocks = Blocks(np.array(starts), np.zeros((0, 7), np.int64), np.zeros(1, np.int64), 1)
        return BoundPooled(blocks, 8, 0, Partition(starts[-1]))

    order = pooled(1000)
    assert describe_order(order, cut(0, 4, 9)) == describe_order(order, cut(0, 4, 9))
    assert describe_order(order, cut(0, 4, 9)) != describe_order(order, cut(0, 5, 9)) != describe_order(order)
    assert len(describe_order(order, cut(0, 4, 9))) < 400


def test_a_state_of_another_snapshot_tells_how_much_both_hold_and_older_states_do_not() -> None:
    told = replace(STATE, num_positions=12, num_episodes=1)
    with pytest.raises(StateError, match=r"'abc' \(1 episode, 12 positions\), .*'xyz' \(3 episodes, 10 positions\)"):
        told.check(replace(SAME, snapshot="xyz", num_episodes=3))
    older = {name: value for name, value in told.to_json().items() if not name.startswith("num_")}
    assert LoaderState.from_json(older) == STATE
    LoaderState.from_json(older).check(SAME)


class Count:
    """An index of so many anchors."""

    def __init__(self, num_anchors: int) -> None:
        self.num_anchors = num_anchors


def run(cursor: Cursor, settings: LoaderSettings, size: int, count: int | None = None) -> list[tuple[Position, int]]:
    """Take batches of an iteration, and return where the consumer stood before each and at the end."""
    bound = sequential().bind(Count(size))  # type: ignore[arg-type]
    cursor.has_begun = True
    stood = [cursor.here]
    for job in itertools.islice(schedule(bound, settings, cursor.start, cursor.last_epoch), count):
        cursor.end = job.end
        stood.append(cursor.here)
    cursor.is_done = count is None
    return stood


@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 6),
    world=st.integers(1, 3),
    rank=st.integers(0, 2),
    ending=st.sampled_from([{}, {"pad": True}, {"pad": "wrap"}, {"drop_last": True}]),
    epochs=st.sampled_from([1, 2, 3, None]),
    start=st.integers(0, 39),
)
def test_after_some_batches_is_where_the_consumer_stood_then(
    size: int, batch: int, world: int, rank: int, ending: Any, epochs: int | None, start: int
) -> None:
    settings = LoaderSettings(batch_size=batch, world_size=world, rank=rank % world, epochs=epochs, **ending)
    if settings.partition(size).num_batches == 0:
        return
    cursor = Cursor(epochs, Position(5, start % size), 4)
    stood = run(cursor, settings, size, 12)
    assert [cursor.after(number, settings, size) for number in range(len(stood))] == stood
    with pytest.raises(OrderError, match="not handed out"):
        cursor.after(len(stood), settings, size)


def test_an_iteration_of_which_something_was_taken_counts_as_run() -> None:
    settings = LoaderSettings(batch_size=4)
    cursor = Cursor(1)
    for count, epoch in ((None, 0), (0, 1), (1, 1), (2, 2), (None, 3)):
        cursor = cursor.following()
        assert (cursor.start, cursor.first_epoch) == (Position(epoch, 0), epoch)
        run(cursor, settings, 10, count)
    assert cursor.following().start == (4, 0)


def test_an_endless_iteration_goes_on_where_it_was_left() -> None:
    settings = LoaderSettings(batch_size=4, epochs=None)
    first = Cursor(None)
    stood = run(first, settings, 10, 2) + run(first.following(), settings, 10, 2)
    assert [place for place, _ in stood] == [(0, 0), (0, 4), (0, 8), (0, 8), (1, 2), (1, 6)]


def test_an_iteration_of_several_epochs_ends_with_its_last_after_it_was_resumed() -> None:
    settings = LoaderSettings(batch_size=4, epochs=3)
    cursor = Cursor(3, Position(1, 8), 0)
    assert [place.epoch for place, _ in run(cursor, settings, 10)] == [1, 1, 2, 2, 2]
    assert cursor.here == ((3, 0), 3)


def test_a_cursor_that_is_done_stands_at_the_next_epoch() -> None:
    cursor = Cursor(4, Position(2, 3), 1)
    assert cursor.position == (2, 3)
    cursor.is_done = True
    assert cursor.position == (5, 0)


@pytest.mark.parametrize("copied", [copy.copy, lambda cursor: pickle.loads(pickle.dumps(cursor))])
def test_a_copy_stands_where_the_consumer_stood_and_goes_its_own_way(copied: Any) -> None:
    settings = LoaderSettings(batch_size=4)
    cursor = Cursor(1)
    run(cursor, settings, 10, 1)
    other = copied(cursor)
    assert other.here == cursor.here == ((0, 4), 0)
    assert other.following().start == (0, 4)
    run(other, settings, 10)
    assert cursor.here == ((0, 4), 0)


def test_other_anchors_begin_with_a_new_epoch() -> None:
    for epochs, before, after in ((1, (2, 4), 3), (None, (2, 4), 3), (None, (2, 0), 2)):
        cursor = Cursor(epochs, Position(*before), 2).at_next_epoch()
        assert cursor.here == ((after, 0), after)
