"""What `Writer` and `VectorWriter` share: whose they are, the tables that hold them, how they are closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self

from stepwell.errors import DiskFullError, WriterClosedError
from stepwell.process import this
from stepwell.schema import Schema
from stepwell.store.back_pressure import NO_FLAGS, WriterGate
from stepwell.store.beneath import CLOSED, GO_ON, system_errors
from stepwell.store.layout import SEGMENTS
from stepwell.store.records import Sync
from stepwell.store.ring import RingClock
from stepwell.store.sealing import SealQueue
from stepwell.store.segment_writer import Presence

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from stepwell.store.store import Store

__all__ = ["BaseWriter"]


class BaseWriter:
    """Writes into a store, in one thread at a time, and after a fork only in the parent."""

    # how a new one is made, for messages
    _maker = "store.writer()"

    def __init__(self, store: Store, *, sync: Sync) -> None:
        self._store = store
        self._sync: Sync = sync
        self._pid = this.pid
        # closed for what would write, and also sealed
        self._is_closed = self._is_done = False
        self._presence = Presence(str(store.path))
        self._clock: RingClock | None = None
        # called with the name of each segment before there is one, from any thread
        self.on_segment: Callable[[str], None] | None = None
        # which tables hold writers, and the way through their limits
        self._limits = NO_FLAGS
        self._gate: WriterGate | None = None
        is_ring = store.capacity is not None
        self._seals = SealQueue(
            sync=sync != "none",
            sealed=store.evictor.evict if is_ring else (lambda: None),
            has_statistics=not is_ring,
        )

    def close(self) -> None:
        """Seal the segments and refresh the store that made this writer. May be called twice.

        Episodes that are still open are kept, marked ``interrupted``. Where a Ctrl-C comes, it may be called again, and
        goes on.

        Raises:
            DiskFullError: no space for the seal; the steps are kept, the next open seals them.
        """
        if self._is_done or self._pid != this.pid:
            return
        self._is_closed = True
        self._presence.end()
        if self._gate is not None:
            self._gate.close()
        try:
            self._seal_all()
            self._seals.wait()
            self._seals.check()
        except Exception as error:
            self._is_done = True
            self._release()
            if isinstance(error, OSError):
                self._raise_from(error)
            raise
        self._release()
        self._is_done = True
        self._show()

    def flush(self) -> None:
        """Wait until all that was appended is on the disk, whatever ``sync`` says; but for episodes in memory."""
        self._check_usable()
        self._sync_open()
        try:
            self._seals.sync(f"{self._store.path}/{SEGMENTS}")
        except OSError as error:
            self._raise_from(error)

    @property
    def schema(self) -> Schema | None:
        """The store's features; None until the first step of a store that was created without a schema."""
        return self._store.schema

    @property
    def num_dropped(self) -> int:
        """Steps that were dropped, as the limiter of a table wanted it: see `stepwell.replay.Table`."""
        return 0 if self._gate is None else self._gate.num_dropped

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise WriterClosedError(
            f"a writer is of one process. Send the store, which is as small as its path, and call {self._maker} there."
        )

    def _seal_all(self) -> None:
        """Begin to seal all segments, open episodes as interrupted ones."""
        raise NotImplementedError

    def _sync_open(self) -> None:
        """Wait until what was appended to segments that are still open is on the disk."""
        raise NotImplementedError

    def _release(self) -> None:
        """Let go of what the writer held beside its segments."""

    def _show(self) -> None:
        """Let the store show what was written."""
        self._store.refresh()
        self._store.save_table()

    def _open_ring(self, schema: Schema) -> None:
        """Map the clock of the ring, and find the tables that hold its writers."""
        path = str(self._store.path)
        self._clock = RingClock(path, schema)
        self._limits, self._gate = self._clock.flags, WriterGate(path, self._clock.flags)

    def _is_admitted(self, steps: int, ends: int = 0) -> bool:
        """Wait for the tables that hold the writers of this ring; False where steps are to be dropped."""
        try:
            return self._gate is None or self._gate.admits(steps, ends)
        except OSError as error:
            self._raise_from(error)

    def _raise_from(self, error: OSError) -> NoReturn:
        """Raise an error of the system as one of stepwell, which says whether the writer may go on."""
        with system_errors(self._store.path, is_writing=True):
            if isinstance(error, DiskFullError) and self._is_closed:
                raise DiskFullError(str(error).replace(GO_ON, CLOSED)) from error
            raise error

    def _check_usable(self) -> None:
        if self._pid != this.pid:
            raise WriterClosedError(
                f"this writer belongs to process {self._pid}, this is {this.pid}. "
                "Make a writer of its own in each process."
            )
        if self._is_closed:
            raise WriterClosedError(f"the writer is closed. Call {self._maker} for a new one.")
