import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.loader.plans import Cursor, Place, draft, schedule
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
def test_drafts_made_together_are_those_made_one_by_one(
    settings: LoaderSettings, num_anchors: int, consumed: int, group: int
) -> None:
    cursor = Cursor(Place(1, min(consumed, num_anchors)), 1, settings.epochs)
    tickets = list(itertools.islice(schedule(Labelled(num_anchors), settings, cursor), group))
    drafts = draft(tickets) if tickets else []
    assert [d.ticket for d in drafts] == tickets
    for each in drafts:
        assert each.anchors.tolist() == each.share.anchors(each.ticket.plan.order).tolist()
        assert len(each.anchors) == each.share.num_rows


@given(SETTINGS, st.integers(1, 30), st.integers(0, 20))
def test_a_schedule_goes_on_from_any_place_as_if_never_stopped(
    settings: LoaderSettings, num_anchors: int, taken: int
) -> None:
    order = Labelled(num_anchors)
    whole = list(itertools.islice(schedule(order, settings, Cursor(Place(0, 0), 0, settings.epochs)), 40))
    cursor = Cursor(Place(0, 0), 0, settings.epochs)
    if whole[:taken]:
        cursor.taken = whole[:taken][-1]
    rest = schedule(order, settings, Cursor(cursor.place, 0, settings.epochs))
    expected = [d.anchors.tolist() for ticket in whole[taken:] for d in draft([ticket])]
    found = [d.anchors.tolist() for ticket in itertools.islice(rest, len(expected)) for d in draft([ticket])]
    assert found == expected


def test_a_cursor_that_is_done_stands_at_the_next_epoch() -> None:
    cursor = Cursor(Place(2, 3), 1, 4)
    assert cursor.place == Place(2, 3)
    cursor.is_done = True
    assert cursor.place == Place(5, 0)


@pytest.mark.parametrize("settings", [LoaderSettings(epochs=None), LoaderSettings(epochs=None, drop_last=True)])
def test_endless_epochs_of_nothing_are_refused(settings: LoaderSettings) -> None:
    with pytest.raises(OrderError, match="endless"):
        schedule(Labelled(0), settings, Cursor(Place(0, 0), 0, None))
