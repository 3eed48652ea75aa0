"""From positions to a batch: everything that happens to one batch, in one place, in whichever thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from stepwell.loader.arenas import ArenaPool
from stepwell.loader.batch import Batch, nest
from stepwell.loader.handover import PinnedBlock, import_torch, pins_by_default, to_torch
from stepwell.loader.plans import Draft, Ticket
from stepwell.loader.transforms import BatchKey, TransformChain, WholeTransform, samples_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stepwell.loader.settings import LoaderSettings
    from stepwell.order import Share
    from stepwell.windows.held import HeldRows
    from stepwell.windows.placed import Drawing
    from stepwell.windows.resolved import ResolvedField

# what was read of a batch: values, what its random numbers depend on, the memory it is in where that is page-locked,
# and whether it was transformed
Fetched = tuple[dict[str, Any], BatchKey, PinnedBlock | None, bool]

__all__ = ["BatchBuilder", "Fetched", "Reader"]


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
        group: batches that `read_several` reads at once, at most.

    Raises:
        MissingDependencyError: batches are for torch, which is not installed.
        WindowError: keys that cannot be nested.

    Notes:
        Builds in any number of threads at once. Knows nothing of iterators and threads.
    """

    __slots__ = (
        "_batch_size",
        "_chain",
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
        values = self.read(anchors, BatchKey.of(self._seed, share), held)
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
        values, pinned = self._read(positions, key, held)
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
        values, pinned = self._read(positions, key, None)
        if number == 1:
            return [(values, key, pinned, False)]
        if is_done := self._chain.is_by_row:
            values = self._chain.apply(values, key)
        size = key.num_rows // number
        starts = range(0, key.num_rows, size)
        return [
            ({name: array[start : start + size] for name, array in values.items()}, each, pinned, is_done)
            for start, each in zip(starts, key.pieces(number), strict=True)
        ]

    def _read(self, positions: Any, key: BatchKey, held: HeldRows | None) -> tuple[dict[str, Any], PinnedBlock | None]:
        size = len(positions)
        num_bytes = self._num_bytes if size == self._batch_size else self._reader.num_bytes(size)
        pinned = PinnedBlock(num_bytes, self._torch) if self._is_pinned else None
        pool = self._pool if size <= self._batch_size else self._group_pool
        memory = pool.lease(num_bytes) if pinned is None else pinned.memory
        return self._reader.read(positions, memory, held=held, draws=key.draws), pinned

    def finish(
        self, values: dict[str, Any], key: BatchKey, pinned: PinnedBlock | None, is_done: bool
    ) -> dict[str, Any]:
        """Transform and wrap one of the batches that were fetched; its dict may have got more keys.

        Raises:
            LoaderError: it could not be transformed.
        """
        if self._chain and not is_done:
            values = self._chain.apply(values, key)
        if self._torch is not None:
            values = to_torch(values, self._torch, pinned)
        return nest(values) if self._is_nested else values
