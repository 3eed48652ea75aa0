import pickle
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.order import BoundPooled, Partition, Pooled, make_order, mixed, pooled, random
from stepwell.windows import Blocks

Int64s = npt.NDArray[np.int64]

SIZES = st.one_of(
    st.lists(st.just(1), min_size=1, max_size=60),
    st.lists(st.integers(1, 9), min_size=1, max_size=60),
    st.lists(st.sampled_from([1, 40, 300]), min_size=1, max_size=20),
)


def blocks_of(sizes: list[int], max_bytes: int = 100) -> Blocks:
    starts = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return Blocks(starts, np.zeros((0, 7), np.int64), np.zeros(len(starts), np.int64), max_bytes)


def bound_of(sizes: list[int], num_slots: int, *, seed: int = 0, **ranks: Any) -> BoundPooled:
    blocks = blocks_of(sizes)
    # the ranks of an epoch that is no part of a stream share it from its beginning
    offset = ranks.pop("offset", 0) * ranks.get("is_stream", False)
    return BoundPooled(blocks, num_slots, seed, Partition(int(blocks.starts[-1]), **ranks, offset=offset))


def rank_positions(num: int, ranks: dict[str, Any], rank: int, epoch: int) -> Int64s:
    """The positions of an epoch that a rank gets."""
    batch, world = ranks["batch_size"], ranks["world_size"]
    if not ranks["is_stream"]:
        spans = [span for share in Partition(num, batch, rank, world) for span in share.spans]
    else:
        stream = Partition(num, batch, rank, world, offset=ranks["offset"], is_stream=True)
        count = ((epoch + 1) * num - ranks["offset"]) // (batch * world) + 1
        spans = [span for k in range(count) for span in stream.batch(k).spans if span.epoch == epoch]
    return np.concatenate([np.arange(span.start, span.start + span.count) for span in spans] or [np.zeros(0, np.int64)])


@dataclass
class FakeIndex:
    """An index whose anchors are cut into given blocks, whatever is asked."""

    cut: Blocks
    # bytes of a block up to which so many bytes are loaded more than once
    small_bytes: int = 0
    more_bytes: int = 0
    asked: int = 0

    @property
    def num_anchors(self) -> int:
        return int(self.cut.starts[-1])

    def blocks(self, max_bytes: int) -> Blocks:
        self.asked = max_bytes
        return replace(self.cut, num_bytes=10_000 + self.more_bytes * (max_bytes <= self.small_bytes))


RANKS = st.fixed_dictionaries(
    {
        "batch_size": st.integers(1, 7),
        "world_size": st.integers(1, 4),
        "is_stream": st.booleans(),
        "offset": st.integers(0, 30),
    }
)
ALONE = {"batch_size": 3, "world_size": 1, "is_stream": False, "offset": 0}


@settings(deadline=None, max_examples=80)
@given(sizes=SIZES, num_slots=st.integers(4, 70), ranks=RANKS, seed=st.integers(0, 2**100), epoch=st.integers(1, 99))
@example(sizes=[1], num_slots=4, ranks=ALONE, seed=0, epoch=0)
@example(sizes=[5] * 4, num_slots=4, ranks=ALONE, seed=0, epoch=0)
@example(sizes=[5] * 5, num_slots=4, ranks=ALONE, seed=0, epoch=0)
@example(sizes=[1] * 61, num_slots=60, ranks=ALONE, seed=0, epoch=2**70)
def test_every_anchor_comes_exactly_once_an_epoch(
    sizes: list[int], num_slots: int, ranks: dict[str, Any], seed: int, epoch: int
) -> None:
    bound = bound_of(sizes, num_slots, seed=seed, **ranks)
    num = bound.num_positions
    assert num == sum(sizes)
    assert np.array_equal(np.sort(bound.positions(epoch, 0, num)), np.arange(num))


@settings(deadline=None, max_examples=50)
@given(data=st.data(), sizes=SIZES, num_slots=st.integers(4, 70), ranks=RANKS)
def test_any_range_is_answered_as_in_the_whole_epoch(
    data: st.DataObject, sizes: list[int], num_slots: int, ranks: dict[str, Any]
) -> None:
    bound = bound_of(sizes, num_slots, **ranks)
    whole = bound.positions(2, 0, bound.num_positions)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    # one that has answered nothing else, and one that has
    assert np.array_equal(bound.for_ranks(bound.partition).positions(2, start, end - start), whole[start:end])
    assert np.array_equal(bound.positions(2, start, end - start), whole[start:end])


@settings(deadline=None, max_examples=80)
@given(sizes=SIZES, num_slots=st.integers(4, 70), ranks=RANKS, epoch=st.integers(0, 3))
def test_a_position_draws_from_few_blocks_which_change_one_at_a_time(
    sizes: list[int], num_slots: int, ranks: dict[str, Any], epoch: int
) -> None:
    if ranks["is_stream"]:
        epoch += -(-ranks["offset"] // sum(sizes))
    bound = bound_of(sizes, num_slots, **ranks)
    anchors = bound.positions(epoch, 0, bound.num_positions)
    loaded: list[int] = []
    for rank in range(ranks["world_size"]):
        mine = rank_positions(bound.num_positions, ranks, rank, epoch)
        if not len(mine):
            continue
        drawn = bound.blocks.block_of(anchors[mine])
        own = bound.entering(epoch, int(mine[0]), len(sizes)).tolist()
        # a rank loads the blocks that it draws from, each once, and no others
        assert sorted(own) == np.unique(drawn).tolist()
        loaded += own
        num_resident = len(own) if len(own) <= num_slots else bound.num_resident
        before = 0
        for position, block in zip(mine.tolist(), drawn.tolist(), strict=True):
            coming = bound.entering(epoch, position, len(sizes)).tolist()
            first = len(own) - len(coming)
            assert coming == own[first:]
            assert block in coming[:num_resident]
            assert len(coming) >= num_resident
            assert first >= before
            before = first
    # a block at the cut of two ranks is in both, no other is
    assert len(loaded) <= len(sizes) + ranks["world_size"] - 1


def test_blocks_that_left_are_drawn_no_more_and_those_to_come_are() -> None:
    bound = bound_of([50] * 100, 20)
    drawn = bound.blocks.block_of(bound.positions(0, 0, 5000))
    assert bound.num_resident == 18
    for position in range(0, 5000, 37):
        coming = bound.entering(0, position, 100).tolist()
        needed = set(drawn[position:].tolist())
        assert set(coming[18:]) <= needed <= set(coming)


def test_every_round_draws_from_all_resident_blocks_alike() -> None:
    # rounds of 1,000 positions in mid-epoch: 20 from each of 50 resident blocks
    bound = bound_of([1000] * 400, 56)
    num_resident = bound.num_resident
    assert num_resident == 49
    starts = [p for p in range(150_000, 250_000) if _enters(bound, p)][:3]
    counts = np.bincount(bound.blocks.block_of(bound.positions(0, starts[0], starts[1] - starts[0])), minlength=400)
    resident = bound.entering(0, starts[0], num_resident)
    assert counts[resident].sum() == starts[1] - starts[0]
    assert set(counts[resident].tolist()) <= {1000 // 49, 1000 // 49 + 1}


def _enters(bound: BoundPooled, position: int) -> bool:
    return bound.entering(0, position, 1)[0] != bound.entering(0, position - 1, 1)[0]


def test_what_fits_is_drawn_from_as_a_whole() -> None:
    bound = bound_of([10] * 30, 30)
    assert bound.num_resident == 30
    assert len(bound.entering(0, 299, 100)) == 30
    halves = bound.blocks.block_of(bound.positions(0, 0, 300)).reshape(2, 150)
    assert all(len(np.unique(half)) > 25 for half in halves)


def test_epochs_and_seeds_have_unrelated_orders() -> None:
    orders = {
        bound_of([7] * 30, 10, seed=seed).positions(epoch, 0, 210).tobytes() for seed in range(5) for epoch in range(5)
    }
    assert len(orders) == 25


def test_one_rank_is_served_alike_for_any_batch_size() -> None:
    bound = bound_of([7] * 30, 10)
    for batch_size in (1, 4, 64):
        again = bound.for_ranks(Partition(210, batch_size, is_stream=True, offset=13))
        assert np.array_equal(again.positions(1, 0, 210), bound.positions(1, 0, 210))


def test_threads_that_ask_at_once_get_what_one_gets() -> None:
    bound = bound_of([5] * 200, 20)
    expected = {epoch: bound.for_ranks(bound.partition).positions(epoch, 0, 1000) for epoch in range(20)}
    wrong: list[int] = []

    def ask(number: int) -> None:
        for epoch in range(20):
            start = (number * 131 + epoch * 37) % 900
            if not np.array_equal(bound.positions(epoch, start, 100), expected[epoch][start : start + 100]):
                wrong.append(epoch)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(("epoch", "start", "count"), [(-1, 0, 1), (0, -1, 1), (0, 9, 2), (0, 0, -1)])
def test_positions_out_of_bounds_are_refused(epoch: int, start: int, count: int) -> None:
    with pytest.raises(OrderError):
        bound_of([5, 5], 4).positions(epoch, start, count)


def test_entering_ends_with_the_epoch_and_refuses_what_lies_beyond() -> None:
    bound = bound_of([5] * 10, 5)
    assert len(bound.entering(0, 0, 100)) == 10
    assert len(bound.entering(0, 0, 3)) == 3
    assert len(bound.entering(0, 49, 100)) == bound.num_resident
    assert bound.entering(0, 50, 100).tolist() == []
    with pytest.raises(OrderError):
        bound.entering(0, 51, 1)


def test_binding_asks_for_blocks_of_a_share_of_the_pool() -> None:
    index = FakeIndex(blocks_of([3] * 1000, max_bytes=90))
    bound = pooled(6400, seed=4, blocks=64).bind(index)
    assert index.asked == 100
    assert (bound.num_slots, bound.num_resident, bound.seed) == (71, 63, 4)


@pytest.mark.parametrize(
    ("small_bytes", "more_bytes", "expected"),
    [(0, 0, 25), (99, 500, 25), (25, 501, 50), (50, 501, 100), (100, 2500, 100), (100, 2501, 200)],
)
def test_a_pool_has_as_many_blocks_as_load_few_rows_twice(small_bytes: int, more_bytes: int, expected: int) -> None:
    index = FakeIndex(blocks_of([3] * 1000, max_bytes=90), small_bytes, more_bytes)
    pooled(6400).bind(index)
    assert index.asked == expected


def test_a_pool_for_less_than_four_blocks_is_refused_with_what_it_needs() -> None:
    index = FakeIndex(blocks_of([3] * 10, max_bytes=5000))
    with pytest.raises(OrderError, match=r"pooled\(bytes=20000\)"):
        pooled("19 kB").bind(index)
    bound = pooled("20 kB").bind(index)
    assert (bound.num_slots, bound.num_resident) == (4, 2)


def test_fewer_blocks_need_only_to_fit() -> None:
    with pytest.raises(OrderError):
        pooled(9_999).bind(FakeIndex(blocks_of([3] * 2, max_bytes=5000)))
    assert pooled(10_000).bind(FakeIndex(blocks_of([3] * 2, max_bytes=5000))).num_resident == 2
    nothing_held = pooled(10).bind(FakeIndex(blocks_of([9], max_bytes=0)))
    assert np.array_equal(np.sort(nothing_held.positions(0, 0, 9)), np.arange(9))


def test_nothing_to_visit_is_an_epoch_of_nothing() -> None:
    bound = pooled(100).bind(FakeIndex(blocks_of([], max_bytes=0)))
    assert (bound.num_positions, len(bound.positions(3, 0, 0)), len(bound.entering(0, 0, 5))) == (0, 0, 0)


def test_the_config_prints_compares_and_pickles_with_its_bytes_as_a_number() -> None:
    order = pooled("512 MiB", seed=3)
    assert repr(order) == "Pooled(bytes=536870912, seed=3, blocks=None)"
    assert order == Pooled(512 << 20, 3) == pickle.loads(pickle.dumps(order)) == make_order(pooled(512 << 20, seed=3))
    assert hash(order) == hash(Pooled(512 << 20, 3))
    assert order != pooled("512 MB", seed=3)
    assert make_order("pooled", seed=3) == order


def test_a_bound_order_pickles_and_goes_on_alike() -> None:
    bound = bound_of([5] * 20, 8, batch_size=3, world_size=2)
    whole = bound.positions(1, 0, 100)
    assert np.array_equal(pickle.loads(pickle.dumps(bound)).positions(1, 0, 100), whole)


@pytest.mark.parametrize(
    ("options", "named"), [({"bytes": 0}, "bytes"), ({"seed": -1}, "seed"), ({"blocks": 3}, "blocks")]
)
def test_impossible_settings_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OrderError, match=named):
        pooled(**{"bytes": 100, **options})


def test_a_partition_of_another_epoch_is_refused() -> None:
    with pytest.raises(OrderError, match="11 positions for an order of 10"):
        bound_of([5, 5], 4).for_ranks(Partition(11))


def test_a_mixture_of_pooled_orders_is_refused_with_what_to_do(make_index: Any) -> None:
    with pytest.raises(OrderError, match=r"mixed.*random\(.*pooled\("):
        mixed([1, 1], order=[random(1), pooled(1000)]).bind(make_index([[3, 2], [4]]))
