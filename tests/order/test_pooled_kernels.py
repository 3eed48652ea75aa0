"""The statistical tests have fixed keys: a right kernel fails one of their numbers with the p-value of `MAX_Z`."""

from math import sqrt

import numpy as np
import numpy.typing as npt
import pytest

from stepwell.order.pooled_kernels import COUNT, FIRST, LINE_COLUMNS, SIZE, deal, key_lines, sum_rounds

# P(z > 4.5) = 3.4e-6
MAX_Z = 4.5


def lane_of(sizes: list[int], num_resident: int, key: npt.NDArray[np.uint64]) -> tuple[npt.NDArray, npt.NDArray]:
    lines = np.zeros((len(sizes), LINE_COLUMNS), np.int64)
    lines[:, SIZE] = lines[:, COUNT] = sizes
    lines[:, FIRST] = np.cumsum(sizes) - sizes
    round_starts = np.empty(len(sizes) - num_resident + 2, np.int64)
    key_lines(lines, np.arange(len(sizes)), num_resident, key)
    sum_rounds(lines, num_resident, round_starts)
    return lines, round_starts


def dealt(sizes: list[int], num_resident: int, seed: int) -> npt.NDArray[np.int64]:
    keys = np.random.default_rng(seed).integers(0, 2**64, (2, 2), dtype=np.uint64)
    lines, round_starts = lane_of(sizes, num_resident, keys[0])
    out = np.empty(sum(sizes), np.int64)
    deal(lines, round_starts, num_resident, keys[1], 0, out)
    return out


def test_rounds_hold_the_parts_of_the_example_of_the_order() -> None:
    _, round_starts = lane_of([15] * 5, 3, np.array([1, 2], np.uint64))
    assert round_starts.tolist() == [0, 31, 44, 75]
    drawn = dealt([15] * 5, 3, 0) // 15
    rounds = [drawn[:31], drawn[31:44], drawn[44:]]
    assert [np.bincount(blocks, minlength=5).tolist() for blocks in rounds] == [
        [15, 10, 6, 0, 0],
        [0, 5, 3, 5, 0],
        [0, 0, 6, 10, 15],
    ]


@pytest.mark.parametrize(("num_blocks", "num_resident"), [(400, 56), (70, 56), (280, 230)])
def test_the_first_and_the_last_round_draw_from_the_pool_as_evenly_as_the_docs_say(
    num_blocks: int, num_resident: int
) -> None:
    size = 1000
    _, round_starts = lane_of([size] * num_blocks, num_resident, np.array([1, 2], np.uint64))
    blocks = dealt([size] * num_blocks, num_resident, 0) // size
    for end in (blocks[: round_starts[1]], blocks[round_starts[-2] :]):
        counts = np.bincount(end, minlength=num_blocks)
        counts = counts[counts > 0]
        assert len(counts) == num_resident
        assert counts.max() <= (np.e + 0.1) * counts.min()
    # blocks that enter are not needed in bursts
    assert np.diff(round_starts).min() > 0.84 * size


@pytest.mark.parametrize("size", [*range(1, 20), 255, 256, 257, 258, 1000, 4097])
def test_one_block_of_any_size_is_permuted(size: int) -> None:
    assert np.array_equal(np.sort(dealt([size], 1, size)), np.arange(size))


@pytest.mark.parametrize("size", [2, 3, 7, 8, 24, 300])
def test_each_anchor_of_a_block_is_as_likely_in_each_of_its_rounds(size: int) -> None:
    # block 1 of three is in two rounds: a block's own permutation alone says which of its anchors go to the first
    trials = 2000
    counts = np.zeros(size)
    for seed in range(trials):
        keys = np.random.default_rng([size, seed]).integers(0, 2**64, (2, 2), dtype=np.uint64)
        lines, round_starts = lane_of([1, size, 1], 2, keys[0])
        out = np.empty(round_starts[1], np.int64)
        deal(lines, round_starts, 2, keys[1], 0, out)
        counts[out[out > 0] - 1] += 1
    # an odd size has one more in either round, by its phase
    spread = np.sqrt(trials * (0.25 + 1e-9))
    assert np.abs(counts - trials / 2).max() < MAX_Z * spread


@pytest.mark.parametrize("size", [5, 16, 40])
def test_pairs_of_a_block_are_torn_apart_as_often_as_by_chance(size: int) -> None:
    # whether anchors 0 and d of a block come in the same of two rounds
    trials = 3000
    together = np.zeros(size - 1)
    for seed in range(trials):
        keys = np.random.default_rng([size, seed, 1]).integers(0, 2**64, (2, 2), dtype=np.uint64)
        lines, round_starts = lane_of([1, size, 1], 2, keys[0])
        out = np.empty(round_starts[1], np.int64)
        deal(lines, round_starts, 2, keys[1], 0, out)
        is_early = np.zeros(size, np.bool_)
        is_early[out[out > 0] - 1] = True
        together += is_early[1:] == is_early[0]
    half = size / 2
    low, high = (
        (half - 1) / (size - 1),
        (np.ceil(half) * (np.ceil(half) - 1) + (size // 2) * (size // 2 - 1)) / (size * (size - 1)),
    )
    expected = (low if size % 2 == 0 else high) * trials
    assert np.abs(together - expected).max() < MAX_Z * sqrt(trials * 0.25)


def test_small_blocks_are_spread_over_the_rounds_that_they_stay_for() -> None:
    # blocks of one anchor, in the rounds [j - S + 1, j], one of which draws one anchor on average. Without their phases
    # each would be drawn in its last
    num_resident, blocks = 10, 400
    out = dealt([1] * blocks, num_resident, 3)
    delay = np.arange(blocks)[50:-50] - out[50:-50]
    assert delay.std() > 0.8 * num_resident / sqrt(12)
    assert delay.max() - delay.min() > num_resident / 2
