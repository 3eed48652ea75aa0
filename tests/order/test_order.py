"""What orders have in common, `sequential` and `random`, and the keys of streams of random numbers."""

import pickle
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.order import BoundOrder, Order, check_range, make_order, mixed, random, sequential, weighted
from stepwell.order.order import derive_key, derive_seed

HUGE = 10**9


@dataclass(frozen=True)
class Backwards(Order):
    def bind(self, index: Any) -> BoundOrder:
        return BoundBackwards(index.num_anchors)


@dataclass(frozen=True)
class BoundBackwards(BoundOrder):
    num_anchors: int

    @property
    def num_positions(self) -> int:
        return self.num_anchors

    def positions(self, epoch: int, start: int, count: int) -> Any:
        check_range(self, epoch, start, count)
        return self.num_anchors - 1 - np.arange(start, start + count)


ORDERS = [
    sequential(),
    random(3),
    weighted(episodes=[1, 0, 2, 1], seed=3),
    weighted(steps=range(1, 31), per="episode", num_samples=100),
    mixed([1, 3], seed=3),
    mixed([1, 3], order=[sequential(), Backwards()], num_samples=500),
    Backwards(),
]


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_any_range_equals_the_same_range_of_the_whole_epoch(order: Order, make_index: Any) -> None:
    bound = order.bind(make_index([[7, 3], [8, 12]]))
    num = bound.num_positions
    for epoch in (0, 1, 5, 10**6):
        whole = bound.positions(epoch, 0, num)
        assert whole.dtype == np.int64
        assert whole.shape == (num,)
        assert whole.min() >= 0
        assert whole.max() < 30
        for start, count in [(0, 0), (num, 0), (0, 1), (num - 1, 1), (num // 3, num // 2)]:
            assert np.array_equal(bound.positions(epoch, start, count), whole[start : start + count])


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_a_range_outside_the_epoch_is_refused(order: Order, make_index: Any) -> None:
    bound = order.bind(make_index([[7, 3], [8, 12]]))
    num = bound.num_positions
    for epoch, start, count in [(-1, 0, 1), (0, -1, 1), (0, 0, -1), (0, 0, num + 1), (0, num, 1)]:
        with pytest.raises(OrderError):
            bound.positions(epoch, start, count)


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_orders_and_bound_orders_survive_pickling(order: Order, make_index: Any) -> None:
    copy = pickle.loads(pickle.dumps(order))
    assert copy == order
    assert repr(copy) == repr(order)
    bound = order.bind(make_index([[7, 3], [8, 12]]))
    again = pickle.loads(pickle.dumps(bound))
    assert np.array_equal(again.positions(2, 0, 30), bound.positions(2, 0, 30))


MAKERS = [
    random,
    lambda seed: weighted(seed=seed, num_samples=seed),
    lambda seed: mixed([1], seed=seed, num_samples=seed),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("seed", [-1, 1.5, True, "1", None])
def test_a_seed_that_is_none_is_refused(make: Any, seed: Any) -> None:
    with pytest.raises(OrderError, match="seed"):
        make(seed)


@pytest.mark.parametrize("make", MAKERS)
def test_an_order_of_numpy_integers_is_that_of_ints(make: Any) -> None:
    assert repr(make(np.int64(3))) == repr(make(3))


@pytest.mark.parametrize(("name", "expected"), [("sequential", sequential()), ("random", random(7))])
def test_orders_have_names(name: str, expected: Order) -> None:
    assert make_order(name, seed=7) == expected


def test_an_order_of_ones_own_is_passed_through() -> None:
    order = Backwards()
    assert make_order(order, seed=7) is order


@pytest.mark.parametrize("order", ["shuffled", None, 3, Backwards])
def test_what_is_no_order_is_refused_with_the_names_there_are(order: Any) -> None:
    with pytest.raises(OrderError, match=r"'sequential', 'random'"):
        make_order(order)


def test_a_function_that_makes_orders_is_no_order_and_is_to_be_called() -> None:
    with pytest.raises(OrderError, match=r"call it: random\(\)"):
        make_order(random)


def test_sequential_is_the_order_of_storage(make_index: Any) -> None:
    bound = sequential().bind(make_index([[3, 2], [4]]))
    assert bound.num_positions == 9
    assert bound.positions(4, 0, 9).tolist() == list(range(9))


@given(num=st.integers(0, 2000), seed=st.integers(0, 2**200), epoch=st.integers(0, 2**70))
def test_random_visits_every_anchor_exactly_once_an_epoch(make_index: Any, num: int, seed: int, epoch: int) -> None:
    bound = random(seed).bind(make_index([[num]]))
    assert bound.num_positions == num
    assert np.array_equal(np.sort(bound.positions(epoch, 0, num)), np.arange(num))


def test_no_two_pairs_of_seed_and_epoch_share_an_order(make_index: Any) -> None:
    # 2**32 and the like: numbers that run into their neighbour when they are only strung together
    numbers = [0, 1, 2, 10, 11, 2**32, 2**32 + 1, 2**64, 2**64 + 1]
    index = make_index([[500]])
    orders = {random(seed).bind(index).positions(epoch, 0, 500).tobytes() for seed in numbers for epoch in numbers}
    assert len(orders) == len(numbers) ** 2


def test_random_needs_no_memory_for_a_billion_anchors() -> None:
    class Huge:
        num_anchors = HUGE

    bound = random(1).bind(Huge())  # type: ignore[arg-type]
    values = bound.positions(3, HUGE - 1000, 1000)
    assert len(np.unique(values)) == 1000
    assert values.max() < HUGE


@pytest.mark.parametrize("num_episodes", [100, 1000])
def test_a_batch_of_random_spreads_over_the_episodes(make_index: Any, num_episodes: int) -> None:
    index = make_index([[50] * num_episodes])
    bound = random(5).bind(index)
    batch = 64
    num_batches = index.num_anchors // batch
    batches = bound.positions(0, 0, batch * num_batches).reshape(num_batches, batch)
    distinct = np.mean([len(np.unique(row // 50)) for row in batches])
    expected = num_episodes * (1 - (1 - 1 / num_episodes) ** batch)
    assert distinct >= 0.98 * expected


def test_seed_epoch_and_purpose_are_separate_words() -> None:
    numbers = [0, 1, 11, 2**32, 2**64, 2**128]
    keys = {derive_key(seed, epoch, name).tobytes() for seed, epoch, name in product(numbers, numbers, ["a", "b"])}
    assert len(keys) == 2 * len(numbers) ** 2


def test_keys_do_not_change_between_versions() -> None:
    # resumed runs and published seeds depend on these numbers
    assert derive_key(0, 1, "random").tolist() == [3295685493052497454, 11386078969961340709]
    assert derive_key(0, 1, "random").dtype == np.uint64


def test_derived_seeds_differ_by_seed_and_purpose() -> None:
    assert len({derive_seed(seed, name) for seed in (0, 1) for name in ("part 0", "part 1")}) == 4
