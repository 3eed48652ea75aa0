"""From positions to a batch: everything that happens to one batch, in one place, in whichever thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from stepwell.errors import LoaderError
from stepwell.loader.arenas import ArenaPool
from stepwell.loader.batch import Batch, nest
from stepwell.loader.handover import PinnedBlock, import_torch, pins_by_default, to_torch
from stepwell.loader.plans import Draft, Ticket
from stepwell.loader.transforms import BatchKey, TransformChain, WholeTransform, samples_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from stepwell.loader.settings import LoaderSettings
    from stepwell.order import Share
    from stepwell.windows.held import HeldRows
    from stepwell.windows.placed import Drawing
    from stepwell.windows.resolved import ResolvedField

# what was read of a batch: values, what its random numbers depend on, the memory it is in where that is page-locked,
# and whether it was transformed
Fetched = tuple[dict[str, Any], BatchKey, PinnedBlock | None, bool]

__all__ = ["BatchBuilder", "Fetched", "Prepared", "Reader"]


class Prepared(NamedTuple):
    """A batch that is to be built.

    Args:
        draft: what it holds.
        values: what was read of it together with other batches; None: it is read by itself.
        pinned: the memory that they are in, where that is page-locked.
    """

    draft: Draft
    values: dict[str, Any] | None = None
    pinned: PinnedBlock | None = None


class Reader(Protocol):
    """What reads a batch (`stepwell.windows.WindowReader`; `stepwell.replay` has another)."""

    @property
    def fields(self) -> Mapping[str, ResolvedField]:
        """What is read, by key."""

    def num_bytes(self, num_anchors: int, /) -> int:
        """Return the bytes of memory that a batch takes."""

    def read(
        self,
        anchors: Any,
        memory: npt.NDArray[np.uint8] | None = None,
        /,
        *,
        held: HeldRows | None = None,
        draws: Drawing | None = None,
    ) -> dict[str, Any]:
        """Return the arrays of a batch by key, views of ``memory``."""


class BatchBuilder:
    """Build batches: read, transform, wrap.

    Args:
        reader: of the windows; its fields say their transforms.
        settings: of the loader.
        transform: of the whole batch, one or several, or None.
        max_free: batches whose memory is kept for the next, or groups of them.
        group: batches that `read_several` or `prepare` reads at once, at most.

    Raises:
        MissingDependencyError: batches are for torch, which is not installed.
        WindowError: keys that cannot be nested.

    Notes:
        Builds in any number of threads at once. Knows nothing of iterators and threads.
    """

    __slots__ = (
        "_batch_size",
        "_chain",
        "_group",
        "_group_pool",
        "_is_nested",
        "_is_pinned",
        "_num_bytes",
        "_pool",
        "_reader",
        "_seed",
        "_torch",
    )

    def __init__(
        self,
        reader: Reader,
        settings: LoaderSettings,
        transform: WholeTransform | None = None,
        max_free: int = 2,
        group: int = 1,
    ) -> None:
        self._reader = reader
        self._batch_size = settings.batch_size
        self._group = group
        self._num_bytes = reader.num_bytes(settings.batch_size)
        self._seed = settings.seed
        transforms = {key: found.field.transforms for key, found in reader.fields.items()}
        self._chain = TransformChain(
            transforms,
            transform,
            samples_of(reader.fields),
            arenas=lambda num_bytes: ArenaPool(num_bytes * settings.batch_size, max_free),
        )
        # who keeps a batch that was read alone keeps no more than that
        self._pool = ArenaPool(self._num_bytes, max_free)
        self._group_pool = (
            self._pool if group == 1 else ArenaPool(reader.num_bytes(group * settings.batch_size), max_free)
        )
        self._torch = import_torch() if settings.to == "torch" else None
        pins = settings.pin_memory
        self._is_pinned = self._torch is not None and (pins_by_default() if pins is None else pins)
        self._is_nested = settings.nested
        if settings.nested:
            nest(dict.fromkeys(reader.fields))

    def build(self, draft: Draft, held: HeldRows | None = None) -> tuple[Ticket, Batch]:
        """Return a batch with the ticket it was asked for.

        Args:
            draft: what it holds.
            held: its rows, where they are in memory.

        Raises:
            LoaderError: it could not be read or transformed.
        """
        ticket, share, anchors = draft
        return ticket, self.build_share(share, anchors, ticket.plan.index(ticket.number), held)

    def prepare(self, drafts: Sequence[Draft]) -> Iterator[Prepared]:
        """Yield batches to build, full ones read several at once: a small one costs more to ask for than to copy."""
        for is_full, alike in groupby(drafts, self._is_full):
            together = list(alike)
            size = self._group if is_full else 1
            for start in range(0, len(together), size):
                yield from self._prepared(together[start : start + size])

    def build_prepared(self, prepared: Prepared) -> tuple[Ticket, Batch]:
        """Return a batch with the ticket it was asked for; see `build`.

        Raises:
            LoaderError: it could not be read or transformed.
        """
        draft, values, pinned = prepared
        if values is None:
            return self.build(draft)
        ticket, share, anchors = draft
        if self._chain:
            values = self._chain.apply(values, BatchKey.of(self._seed, share))
        return ticket, self._batch(self._wrapped(values, pinned), share, anchors, ticket.plan.index(ticket.number))

    def _is_full(self, draft: Draft) -> bool:
        """Return whether a batch is of the usual size, without repeats."""
        share = draft.share
        return share.num_rows == self._batch_size and share.num_valid in {None, share.num_rows}

    def _prepared(self, drafts: list[Draft]) -> list[Prepared]:
        if len(drafts) == 1:
            return [Prepared(drafts[0])]
        anchors = np.concatenate([each.anchors for each in drafts])
        try:
            # few fields draw, and keys take their time
            values, pinned = self._read(anchors, lambda purpose: self._key_of(drafts).draws(purpose), None)
        except LoaderError:
            # it belongs to one of them, which finds it again
            return [Prepared(each) for each in drafts]
        pieces = _cut(values, self._batch_size, len(drafts))
        return [Prepared(each, piece, pinned) for each, piece in zip(drafts, pieces, strict=True)]

    def _key_of(self, drafts: Sequence[Draft]) -> BatchKey:
        """Return the key of full batches, one after the other."""
        parts = (part for each in drafts for part in BatchKey.of(self._seed, each.share).parts)
        return BatchKey(self._seed, tuple(parts), len(drafts) * self._batch_size)

    def build_share(
        self, share: Share, anchors: npt.NDArray[np.int64], index: int, held: HeldRows | None = None
    ) -> Batch:
        """Return a batch.

        Args:
            share: what the rank gets of it.
            anchors: int64 [share.num_rows].
            index: its number within the epoch.
            held: its rows, where they are in memory.

        Raises:
            LoaderError: it could not be read or transformed.
        """
        return self._batch(self.read(anchors, BatchKey.of(self._seed, share), held), share, anchors, index)

    def _batch(self, values: dict[str, Any], share: Share, anchors: npt.NDArray[np.int64], index: int) -> Batch:
        valid: Any = share.valid
        if valid is not None and self._torch is not None:
            valid = self._torch.from_numpy(valid)
        return Batch(values, share.epoch, index, valid, anchors)

    def read(self, positions: Any, key: BatchKey, held: HeldRows | None = None) -> dict[str, Any]:
        """Return what a batch holds.

        Args:
            positions: n anchors, as the reader takes them: int64 [n], positions in its index.
            key: what random numbers of transforms depend on.
            held: the rows, where they are in memory.

        Raises:
            LoaderError: it could not be read or transformed.
        """
        values, pinned = self._read(positions, key.draws, held)
        return self.finish(values, key, pinned, False)

    def read_several(self, positions: Any, key: BatchKey, number: int) -> list[dict[str, Any]]:
        """Return what batches of equal size hold that are read at once: each what `read` would return of it.

        Args:
            positions: of the rows of all batches, one batch after the other.
            key: of all of them together, of one part.
            number: of batches. What is held of one keeps the memory of all.

        Raises:
            LoaderError: they could not be read or transformed.
        """
        if number == 1:
            return [self.read(positions, key)]
        return [self.finish(*piece) for piece in self.fetch(positions, key, number)]

    def fetch(self, positions: Any, key: BatchKey, number: int) -> list[Fetched]:
        """Read batches as `read_several`, but leave what comes after reading, unless it goes by rows, to `finish`.

        Raises:
            LoaderError: they could not be read.
        """
        values, pinned = self._read(positions, key.draws, None)
        if number == 1:
            return [(values, key, pinned, False)]
        if is_done := self._chain.is_by_row:
            values = self._chain.apply(values, key)
        pieces = _cut(values, key.num_rows // number, number)
        return [(piece, each, pinned, is_done) for piece, each in zip(pieces, key.pieces(number), strict=True)]

    def _read(self, positions: Any, draws: Drawing, held: HeldRows | None) -> tuple[dict[str, Any], PinnedBlock | None]:
        size = len(positions)
        num_bytes = self._num_bytes if size == self._batch_size else self._reader.num_bytes(size)
        pinned = PinnedBlock(num_bytes, self._torch) if self._is_pinned else None
        pool = self._pool if size <= self._batch_size else self._group_pool
        memory = pool.lease(num_bytes) if pinned is None else pinned.memory
        return self._reader.read(positions, memory, held=held, draws=draws), pinned

    def finish(
        self, values: dict[str, Any], key: BatchKey, pinned: PinnedBlock | None, is_done: bool
    ) -> dict[str, Any]:
        """Transform and wrap one of the batches that were fetched; its dict may have got more keys.

        Raises:
            LoaderError: it could not be transformed.
        """
        if self._chain and not is_done:
            values = self._chain.apply(values, key)
        return self._wrapped(values, pinned)

    def _wrapped(self, values: dict[str, Any], pinned: PinnedBlock | None) -> dict[str, Any]:
        if self._torch is not None:
            values = to_torch(values, self._torch, pinned)
        return nest(values) if self._is_nested else values


def _cut(values: Mapping[str, Any], size: int, number: int) -> list[dict[str, Any]]:
    """Return the batches, of so many rows each, that were read as one."""
    return [
        {name: array[start : start + size] for name, array in values.items()} for start in range(0, number * size, size)
    ]
