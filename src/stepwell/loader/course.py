"""Where a consumer stands from one iteration to the next, and what a state of it depends on.

::

    for batch in loader: ...      epoch 0            a loop that took a batch counts as run
    for batch in loader: break    epoch 1, left      the next runs epoch 2; with epochs=None it goes on where it was
    loader.load_state_dict(...)                      the next goes on there
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell.errors import OrderError
from stepwell.loader.plans import Cursor, Place
from stepwell.loader.states import LoaderState, describe_order

if TYPE_CHECKING:
    from stepwell.loader.settings import LoaderSettings
    from stepwell.order import BoundOrder, Order
    from stepwell.windows import WindowReader

__all__ = ["Course", "Visit"]

_BEGINNING = Place(0, 0)


class Course:
    """The iterations of one loader, one after the other.

    Args:
        epochs: how many one iteration runs through; None is endless.
        start: where the next begins.
        first_epoch: the epoch with which it, or the one it goes on with, began.

    Notes:
        For the consumer's thread alone. Pickled, it stands where the consumer of the latest iteration stood.
    """

    __slots__ = ("_cursor", "_epochs", "_first_epoch", "_start")

    def __init__(self, epochs: int | None, start: Place = _BEGINNING, first_epoch: int = 0) -> None:
        self._epochs = epochs
        self._cursor: Cursor | None = None
        self._start, self._first_epoch = start, first_epoch

    def next_cursor(self) -> Cursor:
        """Return a cursor at the beginning of the next iteration, which begins when it is given to `follow`."""
        place, first_epoch = self.next_start()
        last_epoch = None if self._epochs is None else max(first_epoch + self._epochs - 1, place.epoch)
        return Cursor(place, first_epoch, last_epoch)

    def follow(self, cursor: Cursor) -> None:
        """Let `here` say where the consumer of an iteration stands."""
        self._cursor = cursor

    def move_to(self, place: Place, first_epoch: int) -> None:
        """Let the next iteration begin at a place."""
        self._start, self._first_epoch, self._cursor = place, first_epoch, None

    def here(self) -> tuple[Place, int]:
        """Return what the consumer gets next, and the epoch with which its iteration began."""
        if self._cursor is None:
            return self._start, self._first_epoch
        place = self._cursor.place
        return place, place.epoch if self._cursor.is_done else self._cursor.first_epoch

    def next_start(self) -> tuple[Place, int]:
        """Return where the next iteration begins, and the epoch with which it (or the one it goes on with) began."""
        if self._cursor is None:
            return self._start, self._first_epoch
        place = self._cursor.place
        if self._epochs is None:
            # one stream: who takes a few batches at a time comes to the end of an epoch, too
            return place, self._cursor.first_epoch
        # an epoch that was begun counts as run; one of which nothing was taken does not
        epoch = place.epoch + (place.consumed > 0)
        return Place(epoch, 0), epoch

    def begin_anew(self) -> None:
        """Let the next iteration run the next epoch from its beginning: the anchors are others."""
        place, _ = self.next_start()
        epoch = place.epoch + (place.consumed > 0)
        self.move_to(Place(epoch, 0), epoch)

    def after(self, num_taken: int, settings: LoaderSettings, num_positions: int) -> tuple[Place, int]:
        """Return what `here` would of a consumer that has got so many batches of the latest iteration.

        Args:
            num_taken: batches, 0 or more.
            settings: of the loader.
            num_positions: of an epoch.

        Raises:
            OrderError: the iteration has not handed out so many.
        """
        if self._cursor is None:
            found, first_epoch, limit = self._start, self._first_epoch, self._start
        else:
            found, first_epoch, limit = self._cursor.start, self._cursor.first_epoch, self._cursor.place
        if num_taken:
            found = _place_after(found, num_taken, settings, num_positions) or Place(limit.epoch + 1, 1)
        if found > limit:
            raise OrderError(
                f"num_taken={num_taken}, and the iteration has not handed out so many batches. "
                "Count those that were taken since the latest for began."
            )
        return found, first_epoch

    def __getstate__(self) -> tuple[int | None, Place, int]:
        return self._epochs, *self.here()

    def __setstate__(self, state: tuple[int | None, Place, int]) -> None:
        self.__init__(*state)  # type: ignore[misc]


def _place_after(start: Place, taken: int, settings: LoaderSettings, num_positions: int) -> Place | None:
    """Return where a consumer stands after some batches, at least one; None where an epoch has none."""
    if settings.is_stream:
        offset = start.epoch * num_positions + start.consumed
        return Place(*divmod(settings.stream(num_positions, offset).consumed(taken), num_positions))
    rest, whole = settings.partition(num_positions, start.consumed), settings.partition(num_positions)
    if taken <= rest.num_batches:
        return Place(start.epoch, rest.consumed(taken))
    if whole.num_batches == 0:
        return None
    epochs, last = divmod(taken - rest.num_batches - 1, whole.num_batches)
    return Place(start.epoch + 1 + epochs, whole.consumed(last + 1))


@dataclass(frozen=True, slots=True)
class Visit:
    """Which anchors are visited, and how: what a state belongs to.

    Args:
        reader: of the windows.
        order: the order's config.
        bound: what it became over the reader's anchors.
        settings: of the loader.
    """

    reader: WindowReader
    order: Order
    bound: BoundOrder
    settings: LoaderSettings

    def state(self, place: Place, first_epoch: int) -> dict[str, Any]:
        """Return the state of a consumer, as at most 1 KiB of JSON types.

        Args:
            place: what it gets next.
            first_epoch: the epoch with which its iteration began.
        """
        return LoaderState(
            snapshot=self.reader.snapshot_id,
            order=describe_order(self.order, self.bound),
            seed=self.settings.seed,
            epoch=place.epoch,
            consumed=place.consumed,
            first_epoch=first_epoch,
            batch_size=self.settings.batch_size,
            world_size=self.settings.world_size,
            num_positions=self.bound.num_positions,
            num_episodes=self.reader.view.num_episodes,
        ).to_json()

    def place_of(self, state_dict: Mapping[str, Any]) -> tuple[Place, int]:
        """Return the place and the first epoch that `state` was given.

        Raises:
            StateError: the state is of other anchors, another order, seed or format; the message names both.
        """
        state = LoaderState.from_json(state_dict)
        state.check(
            snapshot=self.reader.snapshot_id,
            order=describe_order(self.order, self.bound),
            seed=self.settings.seed,
            num_positions=self.bound.num_positions,
            num_episodes=self.reader.view.num_episodes,
            batch_size=self.settings.batch_size,
            world_size=self.settings.world_size,
            is_laned=self.bound.is_laned,
        )
        return Place(state.epoch, state.consumed), state.first_epoch
