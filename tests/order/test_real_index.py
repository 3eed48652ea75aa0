"""The orders over the anchor index of a real view, read through the window reader."""

from pathlib import Path

import numpy as np
import pytest

from stepwell.order import Anchors, Order, Partition, mixed, pooled, random, sequential, weighted
from stepwell.testing import tiny_store
from stepwell.windows import View, WindowReader

LENGTHS = ((5, 3, 8), (4, 9))


@pytest.fixture
def reader(tmp_path: Path) -> WindowReader:
    stores = [tiny_store(tmp_path / f"{number}.well", lengths) for number, lengths in enumerate(LENGTHS)]
    return WindowReader(View(stores), {"reward": "reward", "episode": "episode_index"})


def test_the_real_index_is_what_orders_ask_for(reader: WindowReader) -> None:
    index: Anchors = reader.index
    assert index.num_anchors == 29
    assert index.anchor_starts.tolist() == [0, 5, 8, 16, 20, 29]
    assert index.part_starts.tolist() == [0, 16, 29]
    assert index.episode_starts.tolist() == [0, 3, 5]
    assert len(index.read_steps("reward")) == 29


@pytest.mark.parametrize("order", [sequential(), random(3), pooled(1000, blocks=10)])
def test_two_ranks_read_every_step_of_two_stores_once(reader: WindowReader, order: Order) -> None:
    bound = order.bind(reader.index).for_ranks(Partition(29, 4, world_size=2))
    rewards = [reader.read(share.anchors(bound))["reward"] for rank in range(2) for share in Partition(29, 4, rank, 2)]
    stored = [100 * episode + step for part in LENGTHS for episode, num in enumerate(part) for step in range(num)]
    assert sorted(np.concatenate(rewards).tolist()) == sorted(stored)


def test_weights_come_from_a_feature_of_the_store(reader: WindowReader) -> None:
    bound = weighted(steps="reward", num_samples=2000).bind(reader.index)
    rewards = reader.read(bound.positions(0, 0, 2000))["reward"]
    # a step's reward is its weight, so a reward of 0 is never drawn and the mean is E[r^2] / E[r]
    stored = reader.index.read_steps("reward")
    assert rewards.min() > 0
    expected = (stored**2).sum() / stored.sum()
    assert abs(rewards.mean() - expected) < 4.5 * rewards.std() / np.sqrt(2000)


def test_stores_are_mixed_by_their_shares(reader: WindowReader) -> None:
    bound = mixed([3, 1], num_samples=6400).bind(reader.index)
    positions = bound.positions(0, 0, 6400)
    # one slot from the spans, and one step of rounding at the end of the last block
    assert abs(np.sum(positions < 16) - 4800) <= 2
