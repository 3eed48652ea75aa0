"""Copies to a GPU, one batch ahead of the consumer and beside its work.

::

    own stream        | copy 0 | copy 1 |        | copy 2 |
    consumer's stream          | wait 0, work on 0    | wait 1, work on 1    |
    take                       ^ 0                    ^ 1

A copy is begun as soon as the batch is built, but never waited for by the processor: the consumer's stream waits for
the event behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepwell.errors import LoaderError, OrderError
from stepwell.loader.batch import Batch

if TYPE_CHECKING:
    from stepwell.loader.pipeline import Inline, Pipeline

__all__ = ["DeviceSource", "find_device"]


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
    """The batches of a source, on a device.

    Notes:
        One consumer. A batch's memory on the device is used again only after the work that the stream, which was the
        current one at `take`, had with it; tell torch of others (``tensor.record_stream``).
    """

    def __init__(
        self,
        source: Inline[Any, tuple[Any, Batch]] | Pipeline[Any, tuple[Any, Batch]],
        device: Any,
        torch: Any,
    ) -> None:
        self._source, self._device, self._torch = source, device, torch
        self._stream = torch.cuda.Stream(device)
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
        current = self._torch.cuda.current_stream(self._device)
        current.wait_event(event)
        self._record(batch, current)
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
        with self._torch.cuda.stream(self._stream):
            moved = Batch(self._move(batch), batch.epoch, batch.index, self._move(batch.valid), batch.anchors)
            return job, moved, self._stream.record_event()

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
