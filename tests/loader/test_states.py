import json
from dataclasses import replace

import numpy as np
import pytest

from stepwell.errors import StateError
from stepwell.loader.states import LoaderState, describe_order
from stepwell.order import BoundPooled, Dealing, mixed, pooled, random, sequential, weighted
from stepwell.windows import Blocks

STATE = LoaderState(
    snapshot="abc", order="Random(seed=0)", seed=0, epoch=1, consumed=7, first_epoch=0, batch_size=3, world_size=2
)
SAME = {"snapshot": "abc", "order": "Random(seed=0)", "seed": 0, "num_positions": 10}


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
    STATE.check(**SAME)
    with pytest.raises(StateError, match=f"{both[0]}.*{both[1]}"):
        STATE.check(**{**SAME, **change})


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


LANED = {**SAME, "is_laned": True}


@pytest.mark.parametrize("ranks", [(3, 1), (4, 2), (6, 1)])
def test_ranks_with_lanes_need_their_batch_size_and_number_in_mid_epoch(ranks: tuple[int, int]) -> None:
    batch_size, world_size = ranks
    STATE.check(**LANED, batch_size=3, world_size=2)
    STATE.check(**SAME, batch_size=batch_size, world_size=world_size)
    both = f"batch_size=3 and world_size=2.*batch_size={batch_size} and world_size={world_size}.*end of an epoch"
    with pytest.raises(StateError, match=both):
        STATE.check(**LANED, batch_size=batch_size, world_size=world_size)


@pytest.mark.parametrize("consumed", [0, 10])
def test_between_epochs_lanes_may_be_cut_anew(consumed: int) -> None:
    replace(STATE, consumed=consumed).check(**LANED, batch_size=5, world_size=7)


def test_a_rank_alone_may_change_its_batch_size_in_mid_epoch() -> None:
    alone = replace(STATE, world_size=1)
    alone.check(**LANED, batch_size=5, world_size=1)
    with pytest.raises(StateError, match="world_size=2"):
        alone.check(**LANED, batch_size=3, world_size=2)


def test_orders_that_depend_on_how_anchors_are_cut_are_told_apart_by_that() -> None:
    def cut(*starts: int) -> BoundPooled:
        blocks = Blocks(np.array(starts), np.zeros((0, 7), np.int64), np.zeros(1, np.int64), 1)
        return BoundPooled(blocks, 8, 0, Dealing(starts[-1]))

    order = pooled(1000)
    assert describe_order(order, cut(0, 4, 9)) == describe_order(order, cut(0, 4, 9))
    assert describe_order(order, cut(0, 4, 9)) != describe_order(order, cut(0, 5, 9)) != describe_order(order)
    assert len(describe_order(order, cut(0, 4, 9))) < 400


def test_a_state_of_another_snapshot_tells_how_much_both_hold_and_older_states_do_not() -> None:
    told = replace(STATE, num_positions=12, num_episodes=1)
    with pytest.raises(StateError, match=r"'abc' \(1 episode, 12 positions\), .*'xyz' \(3 episodes, 10 positions\)"):
        told.check(**{**SAME, "snapshot": "xyz", "num_episodes": 3})
    older = {name: value for name, value in told.to_json().items() if not name.startswith("num_")}
    assert LoaderState.from_json(older) == STATE
    LoaderState.from_json(older).check(**SAME)
