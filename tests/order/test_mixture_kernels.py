import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.order.mixture_kernels import BLOCK, deal_blocks

KEY = np.array([3, 4], np.uint64)


@st.composite
def spans(draw: st.DrawFn) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw quotas that sum to a multiple of a block, and phases for them."""
    quotas = draw(st.lists(st.integers(0, 300), min_size=1, max_size=12))
    quotas[draw(st.integers(0, len(quotas) - 1))] += -sum(quotas) % BLOCK or BLOCK
    rests = np.cumsum(quotas[::-1])[::-1]
    phases = [draw(st.integers(0, max(int(rest) - 1, 0))) for rest in rests]
    return np.array(quotas, np.int64), np.array(phases, np.int64)


@given(span=spans())
def test_each_part_gets_its_quota_in_rising_ranks(span: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]) -> None:
    quotas, phases = span
    parts, ranks = deal_blocks(0, quotas.sum() // BLOCK, quotas, phases, KEY)
    for part, quota in enumerate(quotas):
        assert ranks[parts == part].tolist() == list(range(quota))


@given(span=spans(), data=st.data())
def test_a_block_is_the_same_alone_as_among_all(
    span: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]], data: st.DataObject
) -> None:
    quotas, phases = span
    num_blocks = int(quotas.sum()) // BLOCK
    first = data.draw(st.integers(0, num_blocks - 1))
    count = data.draw(st.integers(1, num_blocks - first))
    whole = np.array(deal_blocks(0, num_blocks, quotas, phases, KEY))
    some = np.array(deal_blocks(first, count, quotas, phases, KEY))
    assert np.array_equal(some, whole[:, first * BLOCK : (first + count) * BLOCK])


@given(span=spans())
def test_every_block_is_close_to_the_shares(span: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]) -> None:
    quotas, phases = span
    num_blocks = int(quotas.sum()) // BLOCK
    parts, _ = deal_blocks(0, num_blocks, quotas, phases, KEY)
    blocks = np.array([np.bincount(block, minlength=len(quotas)) for block in parts.reshape(-1, BLOCK)])
    # one step of rounding at either end of a block, for the part and for what the parts before it left over
    assert np.abs(blocks - quotas / num_blocks).max() <= 2 + np.log(len(quotas))


def test_rare_parts_do_not_all_have_their_turn_in_one_block() -> None:
    quotas = np.array([4096 - 20, *[1] * 20], np.int64)
    rests = np.cumsum(quotas[::-1])[::-1]
    phases = (np.random.default_rng(0).random(21) * rests).astype(np.int64)
    parts, _ = deal_blocks(0, 4096 // BLOCK, quotas, phases, KEY)
    # 20 throws into 64 blocks; P(any block gets 5 or more) < 1e-3
    assert np.bincount(np.flatnonzero(parts > 0) // BLOCK).max() < 5


@pytest.mark.parametrize("place", [0, 1, 31, 63])
def test_any_slot_of_a_block_may_go_to_any_part(place: int) -> None:
    quotas = np.array([4096 * 24, 4096 * 40], np.int64)
    parts, _ = deal_blocks(0, 4096, quotas, np.zeros(2, np.int64), KEY)
    share = parts.reshape(-1, BLOCK)[:, place].mean()
    # 4096 draws of probability 40/64: 4.5 standard deviations, p < 1e-5
    assert abs(share - 40 / 64) < 4.5 * np.sqrt(24 * 40 / 64**2 / 4096)


def test_the_largest_span_does_not_overflow() -> None:
    quotas = np.array([(1 << 30) - 1, 1 + BLOCK], np.int64)
    phases = np.array([(1 << 30) + BLOCK - 1, 0], np.int64)
    num_blocks = int(quotas.sum()) // BLOCK
    parts, ranks = deal_blocks(num_blocks - 2, 2, quotas, phases, KEY)
    assert ranks.min() >= 0
    assert max(ranks[parts == 0]) == quotas[0] - 1
