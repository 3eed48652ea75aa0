"""Where the consumer of a loader stands: while it iterates, from one iteration to the next, and in a saved state.

::

    for batch in loader: ...      epoch 0            a loop that took a batch counts as run
    for batch in loader: break    epoch 1, left      the next runs epoch 2; with epochs=None it goes on where it was
    loader.load_state_dict(...)                      the next goes on there
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import OrderError, StateError
from stepwell.loader.jobs import Position
from stepwell.order import BoundOrder, Order
from stepwell.sizes import counted

if TYPE_CHECKING:
    from stepwell.loader.settings import LoaderSettings
    from stepwell.windows import WindowReader

__all__ = ["Cursor", "LoaderState", "describe_order"]

BEGINNING = Position(0, 0)
FORMAT = 1
MAX_TEXT = 300


class Cursor:
    """Where the consumer of one iteration stands.

    Attributes:
        end: where the consumer stands after the batches that it took; None while it took none.
        is_done: whether the iteration came to its end.
        has_begun: whether there is an iteration; else it is about to begin.

    Notes:
        Written by the consumer's thread alone, once a batch. Pickled, it stands there as one that has not begun.
    """

    __slots__ = ("end", "epochs", "first_epoch", "has_begun", "is_done", "start")

    def __init__(self, epochs: int | None, start: Position = BEGINNING, first_epoch: int = 0) -> None:
        self.epochs, self.start, self.first_epoch = epochs, start, first_epoch
        self.end: tuple[int, int] | None = None
        self.is_done = self.has_begun = False

    @property
    def last_epoch(self) -> int | None:
        """The epoch with which the iteration ends; None: endless."""
        return None if self.epochs is None else max(self.first_epoch + self.epochs - 1, self.start.epoch)

    @property
    def position(self) -> Position:
        """What the consumer gets next."""
        if self.is_done and self.last_epoch is not None:
            return Position(self.last_epoch + 1, 0)
        return self.start if self.end is None else Position(*self.end)

    @property
    def here(self) -> tuple[Position, int]:
        """What the consumer gets next, and the epoch with which its iteration began."""
        position = self.position
        return position, position.epoch if self.is_done else self.first_epoch

    def following(self) -> Cursor:
        """Return the cursor of the next iteration."""
        position, first_epoch = self.position, self.first_epoch
        if self.has_begun and self.epochs is not None:
            # an epoch that was begun counts as run; one of which nothing was taken does not
            first_epoch = position.epoch + (position.consumed > 0)
            position = Position(first_epoch, 0)
        # endless epochs are one stream: a consumer of a few batches at a time comes to the end of an epoch, too
        return Cursor(self.epochs, position, first_epoch)

    def at_next_epoch(self) -> Cursor:
        """Return the cursor of an iteration over other anchors: it runs the next epoch from its beginning."""
        start = self.following().start
        epoch = start.epoch + (start.consumed > 0)
        return Cursor(self.epochs, Position(epoch, 0), epoch)

    def after(self, num_taken: int, settings: LoaderSettings, num_positions: int) -> tuple[Position, int]:
        """Return what `here` is for a consumer that took ``num_taken`` batches of the iteration."""
        found, limit = self.start, self.position
        if num_taken:
            found = _after(found, num_taken, settings, num_positions) or Position(limit.epoch + 1, 1)
        if found > limit:
            raise OrderError(
                f"num_taken={num_taken}, and the iteration has not handed out so many batches. "
                "Count those that were taken since the latest for began."
            )
        return found, self.first_epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return Cursor, (self.epochs, *self.here)


def _after(start: Position, taken: int, settings: LoaderSettings, num_positions: int) -> Position | None:
    """Return where a consumer stands after some batches, at least one; None where an epoch has none."""
    if settings.is_stream:
        offset = start.epoch * num_positions + start.consumed
        return Position(*divmod(settings.stream(num_positions, offset).consumed(taken), num_positions))
    rest, whole = settings.partition(num_positions, start.consumed), settings.partition(num_positions)
    if taken <= rest.num_batches:
        return Position(start.epoch, rest.consumed(taken))
    if whole.num_batches == 0:
        return None
    epochs, last = divmod(taken - rest.num_batches - 1, whole.num_batches)
    return Position(start.epoch + 1 + epochs, whole.consumed(last + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """Where a consumer stands, in JSON types and at most 1 KiB."""

    snapshot: str
    order: str
    seed: int
    epoch: int
    consumed: int
    first_epoch: int
    batch_size: int
    world_size: int
    num_positions: int | None = None
    num_episodes: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON types."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def of(
        cls,
        reader: WindowReader,
        order: Order,
        bound: BoundOrder,
        settings: LoaderSettings,
        here: tuple[Position, int],
    ) -> LoaderState:
        """Return the state of a consumer."""
        position, first_epoch = here
        return cls(
            snapshot=reader.snapshot_id,
            order=describe_order(order, bound),
            seed=settings.seed,
            epoch=position.epoch,
            consumed=position.consumed,
            first_epoch=first_epoch,
            batch_size=settings.batch_size,
            world_size=settings.world_size,
            num_positions=bound.num_positions,
            num_episodes=reader.view.num_episodes,
        )

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> LoaderState:
        """Return the state that `to_json` wrote."""
        found = record.get("format") if isinstance(record, Mapping) else None
        if found != FORMAT:
            raise StateError(
                f"not a loader state of format {FORMAT}: {_shorten(repr(record), 80)}. Give what state_dict() returned."
            )
        missing = sorted(field.name for field in fields(cls) if field.default is MISSING and field.name not in record)
        if missing:
            raise StateError(
                f"the loader state lacks {', '.join(missing)}. Give what state_dict() returned, unchanged."
            )
        state = cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})
        counts = (state.epoch, state.consumed, state.first_epoch)
        if any(not isinstance(count, int) or count < 0 for count in counts):
            raise StateError(
                f"the loader state has (epoch, consumed, first_epoch) = {counts}. Allowed: ints of 0 or more."
            )
        return state

    def check(self, own: LoaderState, *, depends_on_ranks: bool = False) -> None:
        """Check that a loader can go on from this state."""
        if self.snapshot != own.snapshot:
            raise StateError(
                f"the state is of snapshot {self.snapshot!r}{self._counts}, this loader reads snapshot "
                f"{own.snapshot!r}{own._counts}. "
                "Select the same episodes of the same store and the same fields, as they were when the state was taken."
            )
        if (self.order, self.seed) != (own.order, own.seed):
            raise StateError(
                f"the state is of order {self.order} with seed {self.seed}, "
                f"this loader has order {own.order} with seed {own.seed}. "
                "Make the loader with the order and seed of the state."
            )
        num_positions = own.num_positions or 0
        if self.consumed > num_positions:
            raise StateError(f"the state has consumed {self.consumed} positions of an epoch of {num_positions}.")
        if depends_on_ranks and 0 < self.consumed < num_positions:
            self._check_ranks(own.batch_size, own.world_size)

    @property
    def _counts(self) -> str:
        if self.num_episodes is None or self.num_positions is None:
            return ""
        return f" ({counted(self.num_episodes, 'episode')}, {counted(self.num_positions, 'position')})"

    def _check_ranks(self, batch_size: int, world_size: int) -> None:
        is_alone = self.world_size == world_size == 1
        if not is_alone and (self.batch_size, self.world_size) != (batch_size, world_size):
            raise StateError(
                f"the state is of the middle of an epoch with batch_size={self.batch_size} and "
                f"world_size={self.world_size}, this loader has batch_size={batch_size} and world_size={world_size}. "
                "A pooled order gives each rank blocks of its own, which depend on both: make the loader with those of "
                "the state, or take a state at the end of an epoch."
            )


def describe_order(order: Order, bound: BoundOrder | None = None) -> str:
    """Return an order as text: equal for equal orders, different for others, and short."""
    text = repr(order) if type(order).__repr__ is not object.__repr__ else type(order).__qualname__
    weights = b"".join(_arrays_of(order))
    digest = "" if bound is None else bound.digest
    return (
        _shorten(text, MAX_TEXT)
        + (f" with weights {zlib.crc32(weights):08x}" if weights else "")
        + (f" over {digest}" if digest else "")
    )


def _arrays_of(value: object) -> Iterator[bytes]:
    """Yield the bytes of every array within a config; their repr shows a few values at most."""
    if isinstance(value, np.ndarray):
        yield value.tobytes()
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _arrays_of(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _arrays_of(getattr(value, field.name))


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[: limit // 2]}... (crc32 {zlib.crc32(text.encode()):08x} of {len(text)} characters)"
