"""Copies to a GPU by torch, and arrays of JAX, one batch ahead of the consumer and beside its work.

With torch::

    own stream        | copy 0 | copy 1 |        | copy 2 |
    consumer's stream          | wait 0, work on 0    | wait 1, work on 1    |
    take                       ^ 0                    ^ 1

A copy is begun as soon as the batch is built, but never waited for by the processor: the consumer's stream waits for
the event behind it. JAX orders its copies and its work itself (`stepwell.loader.jax_arrays`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from stepwell.errors import LoaderError, OrderError
from stepwell.loader.batch import Batch
from stepwell.loader.memory import import_torch

if TYPE_CHECKING:
    from stepwell.loader.pipeline import Inline, Pipeline
    from stepwell.loader.settings import LoaderSettings

__all__ = ["Copier", "DeviceSource", "TorchCopier", "find_device", "make_copier"]


class Copier(Protocol):
    """What turns the batches of a source into those that the consumer gets; called in the consumer's thread."""

    def begin(self, batch: Batch) -> tuple[Batch, Any]:
        """Begin to copy a batch; return the copy, and what `finish` needs."""

    def finish(self, batch: Batch, event: Any) -> None:
        """Let the consumer's work on a copy come after the copying."""


def make_copier(settings: LoaderSettings, sizes: Iterable[int] = ()) -> Copier | None:
    """Return what copies the batches of a loader, or None: they are handed over as they are built.

    Args:
        settings: of the loader.
        sizes: rows of batches that will come, so that those which a sharding cannot divide are refused at once.
    """
    if settings.to == "jax":
        from stepwell.loader.jax_arrays import JaxCopier

        return JaxCopier(settings.device, settings.sharding, {settings.batch_size, *sizes})
    if settings.device is None:
        return None
    torch = import_torch()
    device = find_device(settings.device, torch)
    return None if device is None else TorchCopier(device, torch)


def find_device(name: str | None, torch: Any) -> Any:
    """Return the torch device that batches are copied to, or None: they stay."""
    if name is None:
        return None
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OrderError(f'device={name!r}. Allowed: "cpu", "cuda" or "cuda:N".') from error
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise OrderError(f'device={name!r}. Allowed: "cpu", "cuda" or "cuda:N"; for others, call .to() on the batch.')
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= found:
        raise LoaderError(
            f"device={name!r}, and torch finds {found} CUDA devices here. "
            'Use device="cpu", or a build of torch with CUDA on a machine that has one.'
        )
    return device


class DeviceSource:
    """The batches of a source, as a copier makes them."""

    def __init__(
        self, source: Inline[Any, tuple[Any, Batch]] | Pipeline[Any, tuple[Any, Batch]], copier: Copier
    ) -> None:
        self._source, self._copier = source, copier
        self._ahead: tuple[Any, Batch, Any] | Exception | None = None

    def take(self) -> tuple[Any, Batch]:
        """Return the next job and batch, and begin to copy the one after it if that is built."""
        ahead, self._ahead = self._ahead, None
        if isinstance(ahead, Exception):
            try:
                raise ahead
            finally:
                # the error's traceback knows this frame, and the frame would know the error: a cycle
                del ahead
        job, batch, event = self._begin() if ahead is None else ahead
        if self._source.is_ready:
            try:
                self._ahead = self._begin()
            except Exception as error:
                # it is of the next batch, and comes in its place
                self._ahead = error
        self._copier.finish(batch, event)
        return job, batch

    def interrupt(self) -> None:
        """Let a consumer that waits in another thread stop waiting."""
        self._source.interrupt()

    def close(self) -> None:
        """Build and copy no more."""
        self._ahead = None
        self._source.close()

    def _begin(self) -> tuple[Any, Batch, Any]:
        job, batch = self._source.take()
        return job, *self._copier.begin(batch)


class TorchCopier:
    """Copies to a GPU, on a stream of their own.

    Notes:
        A batch's memory on the device is used again only after the work that the stream, which was the current one at
        `finish`, had with it; tell torch of others (``tensor.record_stream``).
    """

    def __init__(self, device: Any, torch: Any) -> None:
        self._device, self._torch = device, torch
        self._stream = torch.cuda.Stream(device)

    def begin(self, batch: Batch) -> tuple[Batch, Any]:
        """Begin to copy a batch; return the copy and the event behind it."""
        with self._torch.cuda.stream(self._stream):
            moved = Batch(self._move(batch), batch.epoch, batch.index, self._move(batch.valid), batch.anchors)
            return moved, self._stream.record_event()

    def finish(self, batch: Batch, event: Any) -> None:
        """Let the current stream wait for a copy."""
        current = self._torch.cuda.current_stream(self._device)
        current.wait_event(event)
        self._record(batch, current)

    def _move(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._move(each) for key, each in value.items()}
        return value.to(self._device, non_blocking=True) if self._torch.is_tensor(value) else value

    def _record(self, value: Any, stream: Any) -> None:
        """Keep memory, which belongs to the copies' stream, from being used again before the consumer's work."""
        if isinstance(value, Batch):
            self._record(value.valid, stream)
        if isinstance(value, Mapping):
            for each in value.values():
                self._record(each, stream)
        elif self._torch.is_tensor(value):
            value.record_stream(stream)
