"""The state of a loader: a few integers that say where the consumer stands."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from stepwell.errors import StateError
from stepwell.order import BoundOrder, Order
from stepwell.store.counting import counted

__all__ = ["LoaderState", "describe_order"]

FORMAT = 1
MAX_TEXT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """Where a consumer stands, in JSON types and at most 1 KiB.

    Args:
        snapshot: `WindowReader.snapshot_id`: which anchors there are.
        order: the order and its seed, as text.
        seed: of the loader.
        epoch: the epoch that goes on.
        consumed: positions of it that all ranks together have got.
        first_epoch: the epoch with which the iteration began, so that ``epochs=3`` still ends after three.
        batch_size: when the state was taken; needed to go on only in mid-epoch where ranks have lanes of their own.
        world_size: likewise.
        num_positions: of an epoch, told where the snapshot is another; None in states of older versions.
        num_episodes: of the view, likewise.
    """

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
    def from_json(cls, record: Mapping[str, Any]) -> LoaderState:
        """Return the state that `to_json` wrote.

        Raises:
            StateError: not a state of a loader, or of a newer format.
        """
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

    def check(
        self,
        *,
        snapshot: str,
        order: str,
        seed: int,
        num_positions: int,
        num_episodes: int | None = None,
        batch_size: int = 0,
        world_size: int = 1,
        is_laned: bool = False,
    ) -> None:
        """Check that a loader can go on from this state.

        Args:
            snapshot: of the loader.
            order: of the loader.
            seed: of the loader.
            num_positions: of the loader's epoch.
            num_episodes: of the loader's view.
            batch_size: of the loader.
            world_size: of the loader.
            is_laned: whether the order of several ranks depends on these two (`BoundOrder.is_laned`).

        Raises:
            StateError: it has other anchors, or visits them in another order; the message names both.
        """
        if self.snapshot != snapshot:
            raise StateError(
                f"the state is of snapshot {self.snapshot!r}{_counts(self.num_episodes, self.num_positions)}, this "
                f"loader reads snapshot {snapshot!r}{_counts(num_episodes, num_positions)}. "
                "Select the same episodes of the same store and the same fields, as they were when the state was taken."
            )
        if (self.order, self.seed) != (order, seed):
            raise StateError(
                f"the state is of order {self.order} with seed {self.seed}, "
                f"this loader has order {order} with seed {seed}. "
                "Make the loader with the order and seed of the state."
            )
        if self.consumed > num_positions:
            raise StateError(f"the state has consumed {self.consumed} positions of an epoch of {num_positions}.")
        if is_laned and 0 < self.consumed < num_positions:
            self._check_ranks(batch_size, world_size)

    def _check_ranks(self, batch_size: int, world_size: int) -> None:
        is_alone = self.world_size == world_size == 1
        if not is_alone and (self.batch_size, self.world_size) != (batch_size, world_size):
            raise StateError(
                f"the state is of the middle of an epoch with batch_size={self.batch_size} and "
                f"world_size={self.world_size}, this loader has batch_size={batch_size} and world_size={world_size}. "
                "A pooled order gives each rank blocks of its own, which depend on both: make the loader with those of "
                "the state, or take a state at the end of an epoch."
            )


def _counts(num_episodes: int | None, num_positions: int | None) -> str:
    if num_episodes is None or num_positions is None:
        return ""
    return f" ({counted(num_episodes, 'episode')}, {counted(num_positions, 'position')})"


def describe_order(order: Order, bound: BoundOrder | None = None) -> str:
    """Return an order as text: equal for equal orders, different for others, and short.

    Args:
        order: the config.
        bound: what it became over the loader's anchors, where that may differ for the same set of them.
    """
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
