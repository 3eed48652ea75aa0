from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.order import random, sequential

HUGE = 10**9


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
