import json

import numpy as np
import pytest

from stepwell.errors import StateError
from stepwell.loader.states import LoaderState, describe_order
from stepwell.order import mixed, random, sequential, weighted

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
