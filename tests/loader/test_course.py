import copy
import itertools
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.loader.course import Course
from stepwell.loader.plans import Place, schedule
from stepwell.loader.settings import LoaderSettings
from stepwell.order import sequential


class Count:
    """An index of so many anchors."""

    def __init__(self, num_anchors: int) -> None:
        self.num_anchors = num_anchors


def run(course: Course, settings: LoaderSettings, size: int, count: int | None = None) -> list[tuple[Place, int]]:
    """Take batches of one iteration, and return where the consumer stood before each and at the end."""
    bound = sequential().bind(Count(size))  # type: ignore[arg-type]
    cursor = course.next_cursor()
    tickets = schedule(bound, settings, cursor)
    course.follow(cursor)
    stood = [course.here()]
    for ticket in itertools.islice(tickets, count):
        cursor.taken = ticket
        stood.append(course.here())
    cursor.is_done = count is None
    return stood


@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 6),
    world=st.integers(1, 3),
    rank=st.integers(0, 2),
    ending=st.sampled_from([{}, {"pad": True}, {"pad": "wrap"}, {"drop_last": True}]),
    epochs=st.sampled_from([1, 2, 3, None]),
    start=st.integers(0, 39),
)
def test_after_some_batches_is_where_the_consumer_stood_then(
    size: int, batch: int, world: int, rank: int, ending: Any, epochs: int | None, start: int
) -> None:
    settings = LoaderSettings(batch_size=batch, world_size=world, rank=rank % world, epochs=epochs, **ending)
    course = Course(epochs)
    if settings.partition(size).num_batches == 0:
        return
    course.move_to(Place(5, start % size), 4)
    stood = run(course, settings, size, 12)
    assert [course.after(number, settings, size) for number in range(len(stood))] == stood
    with pytest.raises(OrderError, match="not handed out"):
        course.after(len(stood), settings, size)


def test_an_iteration_of_which_something_was_taken_counts_as_run() -> None:
    settings = LoaderSettings(batch_size=4)
    course = Course(1)
    for count, epoch in ((None, 0), (0, 1), (1, 1), (2, 2), (None, 3)):
        assert course.next_start() == (Place(epoch, 0), epoch)
        run(course, settings, 10, count)
    assert course.next_start() == (Place(4, 0), 4)


def test_an_endless_iteration_goes_on_where_it_was_left() -> None:
    settings = LoaderSettings(batch_size=4, epochs=None)
    course = Course(None)
    stood = [place for place, _ in run(course, settings, 10, 2) + run(course, settings, 10, 2)]
    assert stood == [Place(0, 0), Place(0, 4), Place(0, 8), Place(0, 8), Place(1, 2), Place(1, 6)]


def test_an_iteration_of_several_epochs_ends_with_its_last_after_it_was_resumed() -> None:
    settings = LoaderSettings(batch_size=4, epochs=3)
    course = Course(3)
    course.move_to(Place(1, 8), 0)
    assert [place.epoch for place, _ in run(course, settings, 10)] == [1, 1, 2, 2, 2]
    assert course.here() == (Place(3, 0), 3)


@pytest.mark.parametrize("copied", [copy.copy, lambda course: pickle.loads(pickle.dumps(course))])
def test_a_copy_stands_where_the_consumer_stood_and_goes_its_own_way(copied: Any) -> None:
    settings = LoaderSettings(batch_size=4)
    course = Course(1)
    run(course, settings, 10, 1)
    other = copied(course)
    assert other.here() == course.here() == (Place(0, 4), 0)
    run(other, settings, 10)
    assert course.here() == (Place(0, 4), 0)


def test_other_anchors_begin_with_a_new_epoch() -> None:
    for epochs, before, after in ((1, Place(2, 4), 3), (None, Place(2, 4), 3), (None, Place(2, 0), 2)):
        course = Course(epochs, before, 2)
        course.begin_anew()
        assert course.next_start() == (Place(after, 0), after)
