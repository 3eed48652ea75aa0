"""Frames on their way into a store: pictures are encoded by several threads, so that a control loop need not wait.

::

    put ── copy ──> threads: Codec.encode ──┐
     ^                                      v
     └── room <── Writer.append_batch <── frames in order, as many as are ready
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from stepwell.codecs import Codec, codec_class, make_codec
from stepwell.errors import StepError
from stepwell.schema import Feature, Schema
from stepwell.store import EncodedRows, Writer

__all__ = ["FrameQueue"]

MAX_THREADS = 8
MIN_SLOTS = 2
# a batch is stored at once, and only then may its slots be used again
MAX_BATCH = 16

Step = Mapping[str, Any]


class FrameQueue:
    """Store steps in order, the pictures of PNG and JPEG cameras encoded in the background.

    Video is encoded in the background by the writer itself: without other cameras steps go straight to it.

    Args:
        writer: takes the steps.
        schema: of the store.
        queue_bytes: what the steps that wait may have; two always may.

    Notes:
        `put`, `wait` and `drop` are for one thread. An error in the background is raised by all calls until `drop`, and
        the steps put meanwhile are lost: an episode must not have a gap.
    """

    def __init__(self, writer: Writer, schema: Schema, queue_bytes: int) -> None:
        self._writer, self._schema = writer, schema
        self._codecs = {name: make_codec(feature) for name, feature in schema.items() if _is_slow(feature)}
        step_bytes = sum(feature.row_bytes for feature in schema.values() if not feature.is_ragged)
        self._slots = threading.Semaphore(max(MIN_SLOTS, queue_bytes // max(1, step_bytes)))
        self._waiting: deque[tuple[Step, dict[str, Future[bytes]]]] = deque()
        self._error: BaseException | None = None
        # threads begin with the first frame
        num_threads = min(MAX_THREADS, len(os.sched_getaffinity(0)), max(1, 2 * len(self._codecs)))
        self._encoders = ThreadPoolExecutor(num_threads, thread_name_prefix="stepwell-encode")
        self._storing = ThreadPoolExecutor(1, thread_name_prefix="stepwell-store")

    def put(self, step: Step) -> None:
        """Take a step that the schema allows; waits while the queue is full."""
        if not self._codecs:
            self._writer.append(step)
            return
        self._check()
        self._slots.acquire()
        kept = {name: np.array(value) if isinstance(value, np.ndarray) else value for name, value in step.items()}
        rows = {
            name: self._encoders.submit(self._encode, codec, kept.pop(name)) for name, codec in self._codecs.items()
        }
        self._waiting.append((kept, rows))
        self._storing.submit(self._store_ready)

    def wait(self) -> None:
        """Wait until every step is stored.

        Raises:
            BaseException: what was raised in the background.
        """
        self._wait()
        self._check()

    def drop(self) -> None:
        """Let go of the steps that are not stored yet, and of an error: their episode is to be discarded."""
        self._error = self._error or StepError("the steps that waited were dropped.")
        self._wait()
        self._error = None

    def close(self) -> None:
        """Store what was put and end the threads."""
        self._wait()
        self._storing.shutdown()
        self._encoders.shutdown()

    def _encode(self, codec: Codec, value: Any) -> bytes:
        # nobody will store it
        return b"" if self._error is not None else codec.encode(value)

    def _wait(self) -> None:
        if self._codecs:
            self._storing.submit(lambda: None).result()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _store_ready(self) -> None:
        """Store the steps at the head of the queue that are encoded; at least one, and none if another call did."""
        batch: list[tuple[Step, dict[str, Future[bytes]]]] = []
        while self._waiting and len(batch) < MAX_BATCH and (not batch or _is_ready(self._waiting[0][1])):
            step, rows = self._waiting.popleft()
            batch.append((step, rows))
            # for the first one only: the others are ready
            wait(rows.values())
        try:
            if batch and self._error is None:
                self._writer.append_batch(self._columns(batch))
        except BaseException as error:
            self._error = error
        finally:
            self._slots.release(len(batch))

    def _columns(self, batch: Sequence[tuple[Step, Mapping[str, Future[bytes]]]]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for name, feature in self._schema.items():
            if name in self._codecs:
                columns[name] = EncodedRows(rows[name].result() for _, rows in batch)
            else:
                values = [step[name] for step, _ in batch]
                columns[name] = values if feature.is_ragged else np.array(values, feature.np_dtype)
        return columns


def _is_ready(rows: Mapping[str, Future[bytes]]) -> bool:
    return all(future.done() for future in rows.values())


def _is_slow(feature: Feature) -> bool:
    return feature.kind == "image" and not feature.is_raw and not codec_class(feature).is_sequential
