import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.loader.jobs import Position, find_anchors, grouped, schedule, with_anchors
from stepwell.loader.settings import LoaderSettings
from stepwell.order import BoundOrder, check_range


@dataclass(frozen=True)
class Labelled(BoundOrder):
    """Visits 1000 * epoch + position, which names both."""

    num_anchors: int

    @property
    def num_positions(self) -> int:
        return self.num_anchors

    def positions(self, epoch: int, start: int, count: int) -> np.ndarray:
        check_range(self, epoch, start, count)
        return 1000 * epoch + np.arange(start, start + count)


SETTINGS = st.builds(
    LoaderSettings,
    batch_size=st.integers(1, 9),
    epochs=st.just(None) | st.integers(1, 3),
    world_size=st.integers(1, 3),
    drop_last=st.just(False),
    pad=st.booleans(),
)


@given(SETTINGS, st.integers(1, 30), st.integers(0, 40), st.integers(1, 12))
def test_anchors_found_together_are_those_found_one_by_one(
    settings: LoaderSettings, num_anchors: int, consumed: int, group: int
) -> None:
    start, order = Position(1, min(consumed, num_anchors)), Labelled(num_anchors)
    last_epoch = None if settings.epochs is None else settings.epochs
    jobs = list(itertools.islice(schedule(order, settings, start, last_epoch), group))
    if jobs:
        find_anchors(jobs)
    for job in jobs:
        assert job.anchors is not None
        assert job.anchors.tolist() == job.share.anchors(job.order).tolist()
        assert len(job.anchors) == job.share.num_rows


@given(SETTINGS, st.integers(0, 2), st.integers(1, 30), st.integers(0, 40))
def test_jobs_are_the_batches_of_the_rank(settings: LoaderSettings, rank: int, num_anchors: int, consumed: int) -> None:
    settings = replace(settings, rank=rank % settings.world_size)
    consumed = min(consumed, num_anchors)
    jobs = list(itertools.islice(schedule(Labelled(num_anchors), settings, Position(0, consumed), settings.epochs), 12))
    if settings.is_stream:
        stream = settings.stream(num_anchors, consumed)
        expected = [(stream.batch(k), divmod(stream.consumed(k + 1), num_anchors)) for k in range(len(jobs))]
        assert [job.index for job in jobs] == [
            stream.consumed(k) % num_anchors // stream.global_batch_size for k in range(len(jobs))
        ]
    else:
        first = settings.partition(num_anchors, consumed)
        shares = [(first, 0, k) for k in range(first.num_batches)]
        whole = settings.partition(num_anchors)
        for epoch in range(1, 14):
            shares += [(whole, epoch, k) for k in range(whole.num_batches)]
        expected = [(p.batch(k, epoch=epoch), (epoch, p.consumed(k + 1))) for p, epoch, k in shares][: len(jobs)]
        assert [job.index for job in jobs] == [p.offset // p.global_batch_size + k for p, _, k in shares][: len(jobs)]
    assert [(job.share, job.end) for job in jobs] == expected


@given(SETTINGS, st.integers(1, 30), st.integers(0, 20), st.integers(1, 7))
def test_a_schedule_goes_on_from_any_place_as_if_never_stopped(
    settings: LoaderSettings, num_anchors: int, taken: int, together: int
) -> None:
    order, last_epoch = Labelled(num_anchors), None if settings.epochs is None else settings.epochs - 1
    whole = list(itertools.islice(schedule(order, settings, Position(0, 0), last_epoch), 40))
    taken = min(taken, len(whole))
    start = Position(*whole[taken - 1].end) if taken else Position(0, 0)
    rest = itertools.islice(schedule(order, settings, start, last_epoch), len(whole) - taken)
    find_anchors(whole)
    expected = [job.anchors.tolist() for job in whole[taken:] if job.anchors is not None]
    found = [job.anchors.tolist() for job in with_anchors(rest, together) if job.anchors is not None]
    assert found == expected


def test_jobs_are_grouped_in_order() -> None:
    jobs = list(schedule(Labelled(10), LoaderSettings(batch_size=2), Position(0, 0), 0))
    assert list(grouped(iter(jobs), 2)) == [jobs[:2], jobs[2:4], jobs[4:]]


@pytest.mark.parametrize("settings", [LoaderSettings(epochs=None), LoaderSettings(epochs=None, drop_last=True)])
def test_endless_epochs_of_nothing_are_refused(settings: LoaderSettings) -> None:
    with pytest.raises(OrderError, match="endless"):
        schedule(Labelled(0), settings, Position(0, 0), None)
