"""How well an order shuffles (criterion T9): how far batches spread, and of how many episodes they are.

Statistical tests with fixed seeds. A true shuffle draws batches without replacement, so what they should look like is
known exactly; a test of `random` fails by chance with the probability that it states.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import stepwell
from stepwell.order import Anchors, Order, pooled, random, sequential
from stepwell.windows import View, WindowReader

NUM_EPISODES, LENGTH, BATCH = 500, 40, 64
NUM_STEPS = NUM_EPISODES * LENGTH
ROW_BYTES = 96
NUM_EPOCHS = 10


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Anchors:
    path: Path = tmp_path_factory.mktemp("shuffles") / "episodes.well"
    store = stepwell.create(path, {"state": stepwell.Array(ROW_BYTES // 4)})
    with store.writer() as writer:
        for _ in range(NUM_EPISODES):
            writer.add_episode({"state": np.zeros((LENGTH, ROW_BYTES // 4), np.float32)})
    store.refresh()
    return WindowReader(View(store), {"state": range(2)}).index


def batches(order: Order, index: Anchors) -> npt.NDArray[np.int64]:
    """Return the batches of some epochs, int64 [n, BATCH]."""
    bound = order.bind(index)
    used = NUM_STEPS - NUM_STEPS % BATCH
    return np.concatenate([bound.positions(epoch, 0, used).reshape(-1, BATCH) for epoch in range(NUM_EPOCHS)])


def spread(found: npt.NDArray[np.int64]) -> float:
    """Return the root mean square spread of the steps in a batch, in units of that of all steps."""
    return float(np.sqrt(found.var(axis=1, ddof=1).mean() / np.arange(NUM_STEPS).var(ddof=1)))


def distinct(found: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Return the number of distinct episodes in each batch, over what a true shuffle has on average."""
    others = np.arange(BATCH)
    expected = NUM_EPISODES * (1 - np.prod((NUM_STEPS - LENGTH - others) / (NUM_STEPS - others)))
    return np.array([len(np.unique(each // LENGTH)) for each in found]) / expected


def test_random_is_a_true_shuffle(index: Anchors) -> None:
    found = batches(random(1), index)
    assert spread(found) >= 0.95
    ratios = distinct(found)
    assert ratios.mean() >= 0.9
    # two-sided, p = 1e-5 each: as many episodes, and as wide, as draws without replacement
    assert abs(ratios.mean() - 1) < 4.42 * ratios.std() / np.sqrt(len(ratios))
    squares = found.var(axis=1, ddof=1) / np.arange(NUM_STEPS).var(ddof=1)
    assert abs(squares.mean() - 1) < 4.42 * squares.std() / np.sqrt(len(squares))


@pytest.mark.parametrize(
    ("share", "least_spread", "least_episodes"), [(0.05, 0.95, 0.9), (0.2, 0.95, 0.9), (1, 0.95, 0.9)]
)
def test_a_pool_of_a_twentieth_of_the_steps_shuffles_nearly_as_well(
    index: Anchors, share: float, least_spread: float, least_episodes: float
) -> None:
    found = batches(pooled(int(share * NUM_STEPS * ROW_BYTES), seed=1), index)
    assert spread(found) >= least_spread
    assert distinct(found).mean() >= least_episodes


def test_the_measures_tell_a_bad_shuffle(index: Anchors) -> None:
    assert spread(batches(sequential(), index)) < 0.01
    assert distinct(batches(sequential(), index)).mean() < 0.1
    # a pool of 1 % of the steps holds too few episodes at a time, and the page says so
    small = distinct(batches(pooled(int(0.02 * NUM_STEPS * ROW_BYTES), seed=1), index))
    assert 0.4 < small.mean() < 0.7


def test_nothing_of_another_epoch_comes_before_an_epoch_is_over(index: Anchors) -> None:
    for order in (random(1), pooled(int(0.05 * NUM_STEPS * ROW_BYTES), seed=1)):
        bound = order.bind(index)
        for epoch in range(2):
            assert np.array_equal(np.sort(bound.positions(epoch, 0, NUM_STEPS)), np.arange(NUM_STEPS))


def test_neighbours_in_an_order_are_not_neighbours_in_the_store(index: Anchors) -> None:
    found = random(1).bind(index).positions(0, 0, NUM_STEPS)
    # two steps of a true shuffle follow each other NUM_STEPS times out of NUM_STEPS, on average once in an epoch:
    # a Poisson number of mean 2 for both directions, above 14 with p < 1e-7
    assert (np.abs(np.diff(found)) == 1).sum() <= 14
