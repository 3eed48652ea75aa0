"""From jobs to batches: read, transform, wrap, in whichever thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from stepwell.errors import LoaderError
from stepwell.loader.batch import Batch, nest
from stepwell.loader.jobs import Job, find_anchors
from stepwell.loader.memory import ArenaPool, PinnedBlock, import_torch, pins_by_default, to_torch
from stepwell.loader.transforms import BatchKey, TransformChain, WholeTransform, samples_of
from stepwell.transforms.images import ImageLayout

if TYPE_CHECKING:
    import numpy.typing as npt

    from stepwell.kernels.draws import Draws
    from stepwell.loader.settings import LoaderSettings
    from stepwell.order import Share
    from stepwell.windows.blocks import HeldRows
    from stepwell.windows.fields import ResolvedField
    from stepwell.windows.reader import Drawing

__all__ = ["Builder", "RowReader"]


class RowReader(Protocol):
    """What reads the rows of a batch (`stepwell.windows.WindowReader`; `stepwell.replay` has another)."""

    @property
    def fields(self) -> Mapping[str, ResolvedField]:
        """What is read, by key."""

    def num_bytes(self, num_anchors: int, /) -> int:
        """Return the bytes of memory that a batch takes."""

    def read(
        self,
        rows: Any,
        memory: npt.NDArray[np.uint8] | None = None,
        /,
        *,
        held: HeldRows | None = None,
        draws: Drawing | None = None,
    ) -> dict[str, Any]:
        """Return the arrays of a batch by key, views of ``memory``."""


class Builder:
    """Build batches: read, transform, wrap.

    Attributes:
        torch: the module, for batches of tensors; else None.
        is_pinned: whether they lie in page-locked memory.
        is_plain: whether nothing else is done with what was read than what transforms of whole batches do.

    Notes:
        Builds in any number of threads at once. Knows nothing of iterators and threads.
    """

    def __init__(
        self,
        reader: RowReader,
        settings: LoaderSettings,
        transform: WholeTransform | None = None,
        max_free: int = 2,
        group: int = 1,
    ) -> None:
        self._reader, self._seed = reader, settings.seed
        self._batch_size, self._group = settings.batch_size, group
        self._num_bytes = reader.num_bytes(settings.batch_size)
        transforms = {key: found.field.transforms for key, found in reader.fields.items()}
        self._chain = TransformChain(
            transforms,
            transform,
            samples_of(reader.fields),
            arenas=lambda num_bytes: ArenaPool(num_bytes * settings.batch_size, max_free),
        )
        self._in_place = frozenset(key for key in self._chain.in_place if _holds_images(reader.fields[key]))
        # a batch that was read alone has memory of its own size, so that keeping it keeps no more
        self._pool = ArenaPool(self._num_bytes, max_free)
        self._group_pool = (
            self._pool if group == 1 else ArenaPool(reader.num_bytes(group * settings.batch_size), max_free)
        )
        self.torch = import_torch() if settings.to == "torch" else None
        pins = settings.pin_memory
        self.is_pinned = self.torch is not None and (pins_by_default() if pins is None else pins)
        self._is_nested = settings.nested
        # batches are handed over as they were read
        self._is_unwrapped = self.torch is None and not (self._chain or settings.nested or settings.pad)
        self.is_plain = not settings.nested and not any(transforms.values())
        if settings.nested:
            nest(dict.fromkeys(reader.fields))

    def build(self, jobs: list[Job]) -> Iterator[tuple[Job, Batch]]:
        """Yield the batches of jobs, of one order."""
        if jobs[0].anchors is None:
            find_anchors(jobs)
        at = num_alone = 0
        while at < len(jobs):
            size = 1 if num_alone or self._group == 1 else self._num_together(jobs, at)
            together = jobs[at : at + size]
            try:
                if size == 1 and not self.is_pinned and jobs[at].share.num_rows == self._batch_size:
                    blocks, memory, pinned = jobs[at].blocks, self._pool.lease(self._num_bytes), None
                    held = None if blocks is None else blocks.wait(self._in_place)
                    draws = partial(self._draws, together)
                    found = [self._reader.read(jobs[at].anchors, memory, held=held, draws=draws)]
                    # what has a name here between two batches is not recycled
                    del memory
                else:
                    found, pinned = self._read_jobs(together)
            except LoaderError:
                if size == 1:
                    raise
                # read one by one, only the batch that it belongs to raises
                num_alone = size
                continue
            at, num_alone = at + size, max(num_alone - 1, 0)
            for job in together:
                if self._is_unwrapped:
                    yield job, Batch(found.pop(), job.share.spans[0].epoch, job.index, None, job.anchors)
                else:
                    yield job, self._finished(found.pop(), job, pinned)

    def batch(self, share: Share, anchors: npt.NDArray[np.int64], index: int) -> Batch:
        """Return one batch.

        Args:
            share: what the rank gets of it.
            anchors: int64 [share.num_rows].
            index: its number within the epoch.
        """
        (values,) = self.read(anchors, BatchKey.of(self._seed, share))
        return Batch(values, share.epoch, index, self._valid(share), anchors)

    def read(self, rows: Any, key: BatchKey, number: int = 1) -> list[dict[str, Any]]:
        """Return what batches of equal size hold, which are read at once."""
        memory, pinned = self._memory(key.num_rows)
        values = self._reader.read(rows, memory, draws=key.draws)
        del memory
        if number == 1:
            return [self.finished(values, key, pinned)]
        if self._chain.is_by_row:
            pieces = _cut(self._chain.apply(values, key), key.num_rows // number, number)
        else:
            pieces = _cut(values, key.num_rows // number, number)
            pieces = [self._chain.apply(piece, own) for piece, own in zip(pieces, key.pieces(number), strict=True)]
        return [self._wrapped(piece, pinned) for piece in pieces]

    def finished(self, values: dict[str, Any], key: BatchKey, pinned: PinnedBlock | None = None) -> dict[str, Any]:
        """Return a batch of what was read."""
        return values if self._is_unwrapped else self._wrapped(self._chain.apply(values, key), pinned)

    def _num_together(self, jobs: list[Job], at: int) -> int:
        """Return how many jobs are read at once: full ones without repeats."""
        num = 0
        for job in jobs[at : at + self._group]:
            share = job.share
            if share.num_rows != self._batch_size or share.num_valid not in {None, share.num_rows}:
                break
            num += 1
        return max(num, 1)

    def _read_jobs(self, jobs: list[Job]) -> tuple[list[dict[str, Any]], PinnedBlock | None]:
        """Return what some jobs hold, read at once, the last one first."""
        anchors: Any = jobs[0].anchors
        held = None if jobs[0].blocks is None else jobs[0].blocks.wait(self._in_place)
        if len(jobs) > 1:
            anchors = np.concatenate([job.anchors for job in jobs if job.anchors is not None])
        memory, pinned = self._memory(len(anchors))
        values = self._reader.read(anchors, memory, held=held, draws=partial(self._draws, jobs))
        return _cut(values, self._batch_size, len(jobs))[::-1] if len(jobs) > 1 else [values], pinned

    def _draws(self, jobs: list[Job], purpose: str) -> Draws:
        """Return the random numbers of the windows of jobs; made on demand, as few fields draw."""
        return BatchKey.joined([BatchKey.of(self._seed, job.share) for job in jobs]).draws(purpose)

    def _memory(self, size: int) -> tuple[npt.NDArray[np.uint8], PinnedBlock | None]:
        """Return memory to read so many rows into: of the pool, or pinned."""
        num_bytes = self._num_bytes if size == self._batch_size else self._reader.num_bytes(size)
        if self.is_pinned:
            pinned = PinnedBlock(num_bytes, self.torch)
            return pinned.memory, pinned
        return (self._pool if size <= self._batch_size else self._group_pool).lease(num_bytes), None

    def _finished(self, values: dict[str, Any], job: Job, pinned: PinnedBlock | None) -> Batch:
        share = job.share
        if self._chain:
            values = self._chain.apply(values, BatchKey.of(self._seed, share))
        return Batch(self._wrapped(values, pinned), share.epoch, job.index, self._valid(share), job.anchors)

    def _wrapped(self, values: dict[str, Any], pinned: PinnedBlock | None) -> dict[str, Any]:
        if self.torch is not None:
            values = to_torch(values, self.torch, pinned)
        return nest(values) if self._is_nested else values

    def _valid(self, share: Share) -> Any:
        valid = share.valid
        return valid if valid is None or self.torch is None else self.torch.from_numpy(valid)


def _holds_images(field: ResolvedField) -> bool:
    """Return whether each of a field's images lies in one row: steps that are none make one together."""
    return len(ImageLayout.of(field.shape).window) >= len(field.window_shape)


def _cut(values: Mapping[str, Any], size: int, number: int) -> list[dict[str, Any]]:
    """Return the batches, of so many rows each, that were read as one."""
    return [
        {name: array[start : start + size] for name, array in values.items()} for start in range(0, number * size, size)
    ]
