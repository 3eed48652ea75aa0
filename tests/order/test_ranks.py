"""The criteria E1, E2, T1, T4 and T7 of an exact reader, over the whole matrix of sizes."""

from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.order import Partition, Share, even_share, random, sequential, stream_spans
from stepwell.order.ranks import Run

SIZES = [0, 1, 2, 7, 10, 30, 101]
WORLDS = [1, 2, 3, 4, 8]
BATCHES = [1, 4, 7]
MATRIX = list(product(SIZES, WORLDS, BATCHES))


def rows(share: Share) -> list[int]:
    return [position for span in share.spans for position in range(span.start, span.start + span.count)]


def by_rank(num: int, world: int, batch: int, **options: Any) -> list[list[Share]]:
    return [list(Partition(num, batch, rank, world, **options)) for rank in range(world)]


@pytest.mark.parametrize(("num", "world", "batch"), MATRIX)
def test_evaluation_serves_every_position_exactly_once(num: int, world: int, batch: int) -> None:
    ranks = by_rank(num, world, batch)
    assert sorted(p for shares in ranks for share in shares for p in rows(share)) == list(range(num))
    assert {len(shares) for shares in ranks} <= {num // (world * batch), -(-num // (world * batch))}
    for rank, shares in enumerate(ranks):
        assert len(Partition(num, batch, rank, world)) == len(shares)
        assert all(share.num_rows == len(rows(share)) > 0 for share in shares)
        assert all(share.valid is None for share in shares)
        assert all(share.num_rows == batch for share in shares[:-1])


@pytest.mark.parametrize(("num", "world", "batch"), MATRIX)
def test_the_last_batch_is_dealt_evenly(num: int, world: int, batch: int) -> None:
    ranks = by_rank(num, world, batch)
    last = -(-num // (world * batch)) - 1
    sizes = [shares[last].num_rows if last < len(shares) else 0 for shares in ranks] if last >= 0 else [0]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(("num", "world", "batch"), MATRIX)
def test_ranks_one_after_the_other_give_the_order_of_the_epoch(num: int, world: int, batch: int) -> None:
    ranks = by_rank(num, world, batch)
    served = [p for k in range(len(ranks[0])) for shares in ranks if k < len(shares) for p in rows(shares[k])]
    assert served == list(range(num))


@pytest.mark.parametrize(("num", "world", "batch"), MATRIX)
def test_drop_last_gives_every_rank_the_same_full_batches(num: int, world: int, batch: int) -> None:
    ranks = by_rank(num, world, batch, drop_last=True)
    assert [len(shares) for shares in ranks] == [num // (world * batch)] * world
    assert all(share.num_rows == batch for shares in ranks for share in shares)
    served = sorted(p for shares in ranks for share in shares for p in rows(share))
    assert served == list(range(num // (world * batch) * world * batch))


@pytest.mark.parametrize(("num", "world", "batch"), MATRIX)
def test_pad_gives_every_rank_the_same_batches_and_marks_the_repeats(num: int, world: int, batch: int) -> None:
    ranks = by_rank(num, world, batch, pad=True)
    order = sequential().bind(FakeCount(num))  # type: ignore[arg-type]
    assert [len(shares) for shares in ranks] == [ceil(ceil(num / world) / batch)] * world
    valid_anchors = []
    for shares in ranks:
        for share in shares:
            anchors, valid = share.anchors(order), share.valid
            assert valid is not None
            assert anchors.shape == valid.shape == (batch,)
            valid_anchors += anchors[valid].tolist()
    assert sorted(valid_anchors) == list(range(num))


@pytest.mark.parametrize(("num", "world", "batch"), MATRIX)
def test_padding_changes_no_valid_row(num: int, world: int, batch: int) -> None:
    for plain, padded in zip(by_rank(num, world, batch), by_rank(num, world, batch, pad=True), strict=True):
        assert [rows(share) for share in plain] == [rows(share) for share in padded if share.num_valid]


class FakeCount:
    def __init__(self, num_anchors: int) -> None:
        self.num_anchors = num_anchors


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"pad": True}])
@pytest.mark.parametrize(("num", "total"), list(product(SIZES, [8, 24])))
def test_a_global_batch_holds_the_same_for_every_number_of_ranks(num: int, total: int, options: Any) -> None:
    def union(world: int, k: int) -> set[int]:
        parts = (Partition(num, total // world, rank, world, **options) for rank in range(world))
        return {p for part in parts if k < len(part) for p in rows(part.batch(k))}

    worlds = [world for world in WORLDS if total % world == 0]
    for k in range(-(-num // total)):
        assert len({frozenset(union(world, k)) for world in worlds}) == 1


@given(
    num=st.integers(0, 200),
    before=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    after=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    data=st.data(),
)
def test_another_number_of_ranks_goes_on_at_the_exact_next_position(
    num: int, before: tuple[int, int], after: tuple[int, int], data: st.DataObject
) -> None:
    world, batch = before
    first = [Partition(num, batch, rank, world) for rank in range(world)]
    done = data.draw(st.integers(0, max(map(len, first))))
    offset = first[0].consumed(done)
    assert len({part.consumed(done) for part in first}) == 1
    served = [p for part in first for share in list(part)[:done] for p in rows(share)]
    world, batch = after
    for rank in range(world):
        served += [p for share in Partition(num, batch, rank, world, offset=offset) for p in rows(share)]
    assert sorted(served) == list(range(num))


def test_a_resumed_partition_has_the_batches_that_were_left() -> None:
    whole = Partition(101, 4, 1, 3)
    for k in range(len(whole) + 1):
        rest = Partition(101, 4, 1, 3, offset=whole.consumed(k))
        assert [rest.batch(i, epoch=6) for i in range(len(rest))] == [
            whole.batch(i, epoch=6) for i in range(k, len(whole))
        ]


def test_a_share_names_its_epoch_and_asks_the_order_for_it() -> None:
    order = random(4).bind(FakeCount(30))  # type: ignore[arg-type]
    share = Partition(30, 5, 1, 2).batch(1, epoch=9)
    assert share.epoch == 9
    assert np.array_equal(share.anchors(order), order.positions(9, 15, 5))


def test_rows_that_fill_up_repeat_the_ranks_last_row() -> None:
    order = sequential().bind(FakeCount(10))  # type: ignore[arg-type]
    shares = [Partition(10, 3, rank, 2, pad=True).batch(1) for rank in range(2)]
    assert [share.anchors(order).tolist() for share in shares] == [[6, 7, 7], [8, 9, 9]]
    assert all(share.valid is not None and share.valid.tolist() == [True, True, False] for share in shares)


def test_a_rank_with_nothing_has_one_batch_less_or_one_of_padding() -> None:
    assert [len(Partition(7, 3, rank, 2)) for rank in range(2)] == [2, 1]
    share = Partition(7, 3, 1, 2, pad=True).batch(1)
    assert share.valid is not None
    assert not share.valid.any()
    assert share.num_rows == 3


@pytest.mark.parametrize("count", [0, 1, 5, 11, 100])
@pytest.mark.parametrize("world", WORLDS)
def test_even_shares_follow_each_other_and_differ_by_at_most_one(count: int, world: int) -> None:
    shares = [even_share(count, rank, world) for rank in range(world)]
    assert [start for start, _ in shares] == np.cumsum([0] + [size for _, size in shares])[:-1].tolist()
    sizes = [size for _, size in shares]
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_positions": -1}, "num_positions"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"rank": 2}, "rank=2"),
        ({"rank": -1}, "rank"),
        ({"world_size": 0}, "world_size"),
        ({"offset": 11}, "offset=11"),
        ({"drop_last": True, "pad": True}, "drop_last"),
    ],
)
def test_impossible_numbers_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(OrderError, match=named):
        Partition(**{"num_positions": 10, "batch_size": 3, "rank": 0, "world_size": 2, **options})


@pytest.mark.parametrize("k", [-1, 2])
def test_a_batch_that_is_not_there_is_refused(k: int) -> None:
    with pytest.raises(OrderError, match="which has 2"):
        Partition(10, 3, 0, 2).batch(k)


@pytest.mark.parametrize(("num", "world", "batch"), [cell for cell in MATRIX if cell[0]])
def test_the_stream_is_pass_after_pass_in_full_batches(num: int, world: int, batch: int) -> None:
    ranks = [Partition(num, batch, rank, world, is_stream=True) for rank in range(world)]
    num_batches = -(-3 * num // (world * batch))
    shares = [rank.batch(k) for k in range(num_batches) for rank in ranks]
    assert all(share.num_rows == len(rows(share)) == batch and share.valid is None for share in shares)
    served = [(span.epoch, p) for s in shares for span in s.spans for p in range(span.start, span.start + span.count)]
    assert served == [divmod(i, num) for i in range(len(served))]


@given(
    num=st.integers(1, 50),
    before=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    after=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    done=st.integers(0, 40),
    far=st.integers(0, 10**20),
)
def test_a_stream_goes_on_at_the_exact_next_position_under_other_ranks(
    num: int, before: tuple[int, int], after: tuple[int, int], done: int, far: int
) -> None:
    offset = Partition(num, before[1], 0, before[0], offset=far, is_stream=True).consumed(done)
    assert offset == far + done * before[0] * before[1]
    ranks = [Partition(num, after[1], rank, after[0], offset=offset, is_stream=True) for rank in range(after[0])]
    served = [(span.epoch, span.start, span.count) for rank in ranks for span in rank.batch(0).spans]
    positions = [epoch * num + start + i for epoch, start, count in served for i in range(count)]
    assert positions == list(range(offset, offset + after[0] * after[1]))


def test_a_stream_over_nothing_is_refused_and_never_spins() -> None:
    with pytest.raises(OrderError, match="no positions"):
        Partition(0, 4, is_stream=True)


def test_a_batch_across_epochs_takes_each_ones_own_order() -> None:
    order = random(4).bind(FakeCount(10))  # type: ignore[arg-type]
    share = Partition(10, 25, is_stream=True).batch(0)
    expected = np.concatenate([order.positions(0, 0, 10), order.positions(1, 0, 10), order.positions(2, 0, 5)])
    assert np.array_equal(share.anchors(order), expected)


@pytest.mark.parametrize(("num", "world", "batch"), MATRIX)
def test_wrapping_repeats_what_the_epoch_begins_with_and_marks_it(num: int, world: int, batch: int) -> None:
    ranks = by_rank(num, world, batch, pad="wrap")
    whole = world * batch
    assert [len(shares) for shares in ranks] == [-(-num // whole)] * world
    order = random(5).bind(FakeCount(num))  # type: ignore[arg-type]
    epoch = order.positions(0, 0, num).tolist()
    valid, repeats = [], []
    for k in range(len(ranks[0])):
        for shares in ranks:
            share = shares[k]
            assert share.valid is not None
            anchors = share.anchors(order)
            assert rows(share) == [epoch.index(anchor) for anchor in anchors.tolist()]
            assert anchors.shape == share.valid.shape == (batch,)
            valid += anchors[share.valid].tolist()
            repeats += anchors[~share.valid].tolist()
    assert valid == epoch
    assert repeats == [epoch[i % num] for i in range(-num % whole)]
    if num >= whole:
        assert max(np.bincount(valid + repeats), default=1) <= 2


@pytest.mark.parametrize(("num", "world", "batch"), MATRIX)
def test_wrapping_changes_no_valid_row_and_no_name_for_repeating_the_last(num: int, world: int, batch: int) -> None:
    padded, repeated, wrapped = (by_rank(num, world, batch, pad=pad) for pad in (True, "repeat", "wrap"))
    assert padded == repeated
    for shares, others in zip(padded, wrapped, strict=True):
        assert [share.num_valid for share in shares] == [share.num_valid for share in others]
        assert [rows(a)[: a.num_valid] for a in shares] == [rows(b)[: b.num_valid] for b in others]


@pytest.mark.parametrize("offset", [3, 24, 29])
def test_wrapped_repeats_of_a_resumed_epoch_are_of_its_beginning(offset: int) -> None:
    (*_, last) = Partition(30, 4, 1, 2, pad="wrap", offset=offset)
    repeats = rows(last)[last.num_valid :]
    assert repeats == list(range(repeats[0], repeats[0] + len(repeats)))
    assert repeats[-1] == (offset - 30) % 8 - 1


@pytest.mark.parametrize("pad", ["edge", "", 2, None])
def test_a_pad_that_there_is_not_is_refused(pad: Any) -> None:
    with pytest.raises(OrderError, match="repeat"):
        Partition(10, 3, pad=pad)


SIZES_RUNS = [1, 2, 7, 10, 30, 101]
WORLDS_RUNS = [1, 2, 3, 8]


def assigned(partition: Partition, epoch: int, start: int, count: int) -> list[tuple[int, int]]:
    """The (rank, number) of each of some positions."""
    runs = list(partition.runs(epoch, start, count))
    assert all(run.length > 0 for run in runs)
    return [(run.rank, run.number + i) for run in runs for i in range(run.length)]


@pytest.mark.parametrize(("num", "world", "batch"), list(product(SIZES_RUNS, WORLDS_RUNS, BATCHES)))
def test_a_rank_gets_its_positions_of_a_partition_one_after_the_other(num: int, world: int, batch: int) -> None:
    partition = Partition(num, batch, 0, world)
    found = assigned(partition, 5, 0, num)
    for rank in range(world):
        served = [
            position
            for share in Partition(num, batch, rank, world)
            for span in share.spans
            for position in range(span.start, span.start + span.count)
        ]
        assert [found[position] for position in served] == [(rank, number) for number in range(len(served))]
        assert partition.rank_sizes(5)[rank] == len(served)
    assert sum(partition.rank_sizes(5)) == num


@pytest.mark.parametrize(("num", "world", "batch"), list(product(SIZES_RUNS, WORLDS_RUNS, BATCHES)))
@pytest.mark.parametrize("offset", [0, 5, 10**20])
def test_a_rank_gets_its_positions_of_a_stream_one_after_the_other(
    num: int, world: int, batch: int, offset: int
) -> None:
    partition = Partition(num, batch, 0, world, is_stream=True, offset=offset)
    first = offset // num + 1
    found = {epoch: assigned(partition, epoch, 0, num) for epoch in range(first, first + 3)}
    num_batches = 6 * num // (world * batch) + 6
    for rank in range(world):
        stream = Partition(num, batch, rank, world, offset=offset, is_stream=True)
        spans = [span for k in range(num_batches) for span in stream.batch(k).spans]
        for epoch, places in found.items():
            served = [p for span in spans if span.epoch == epoch for p in range(span.start, span.start + span.count)]
            assert [places[p] for p in served] == [(rank, number) for number in range(len(served))]
            assert partition.rank_sizes(epoch)[rank] == len(served)


@settings(deadline=None, max_examples=50)
@given(data=st.data(), num=st.integers(1, 60), world=st.integers(1, 4), batch=st.integers(1, 9), stream=st.booleans())
def test_any_range_is_dealt_as_the_whole_is(
    data: st.DataObject, num: int, world: int, batch: int, stream: bool
) -> None:
    partition = Partition(num, batch, 0, world, is_stream=stream)
    start = data.draw(st.integers(0, num))
    end = data.draw(st.integers(start, num))
    assert assigned(partition, 3, start, end - start) == assigned(partition, 3, 0, num)[start:end]


def test_one_rank_has_everything_in_one_run_whatever_the_batch_size() -> None:
    assert list(Partition(10, 3).runs(4, 2, 7)) == [Run(0, 2, 7)]


@pytest.mark.parametrize("wrong", [{"num_positions": -1}, {"batch_size": 0}, {"world_size": 0}, {"offset": -1}])
def test_impossible_numbers_are_refused_by_name_of_runs(wrong: dict[str, Any]) -> None:
    with pytest.raises(OrderError, match=next(iter(wrong))):
        Partition(**{"num_positions": 10, **wrong})


@given(num=st.integers(1, 30), offset=st.integers(0, 10**30), count=st.integers(0, 100))
def test_spans_cover_the_range_in_order_within_their_epochs(num: int, offset: int, count: int) -> None:
    spans = stream_spans(num, offset, count)
    covered = [span.epoch * num + span.start + i for span in spans for i in range(span.count)]
    assert covered == list(range(offset, offset + count))
    assert all(span.count > 0 and span.start + span.count <= num for span in spans)
    assert len({span.epoch for span in spans}) == len(spans)


@pytest.mark.parametrize(("num", "offset", "count"), [(0, 0, 1), (-1, 0, 1), (5, -1, 1), (5, 0, -1)])
def test_impossible_ranges_are_refused(num: int, offset: int, count: int) -> None:
    with pytest.raises(OrderError):
        stream_spans(num, offset, count)
