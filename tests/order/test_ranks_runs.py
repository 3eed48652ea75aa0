"""`Partition.runs` says of every position what `Partition.batch` does with it."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.order import Partition
from stepwell.order.ranks import Run

SIZES = [1, 2, 7, 10, 30, 101]
WORLDS = [1, 2, 3, 8]
BATCHES = [1, 4, 7]


def assigned(partition: Partition, epoch: int, start: int, count: int) -> list[tuple[int, int]]:
    """The (rank, number) of each of some positions."""
    runs = list(partition.runs(epoch, start, count))
    assert all(run.length > 0 for run in runs)
    return [(run.rank, run.number + i) for run in runs for i in range(run.length)]


@pytest.mark.parametrize(("num", "world", "batch"), list(product(SIZES, WORLDS, BATCHES)))
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


@pytest.mark.parametrize(("num", "world", "batch"), list(product(SIZES, WORLDS, BATCHES)))
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
def test_impossible_numbers_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(OrderError, match=next(iter(wrong))):
        Partition(**{"num_positions": 10, **wrong})
