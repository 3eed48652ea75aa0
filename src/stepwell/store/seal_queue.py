"""Segments that a writer has filled, on their way to being sealed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stepwell.store.beneath import system_error
from stepwell.store.sealing import seal_segment
from stepwell.store.segment_writer import SegmentWriter

__all__ = ["SealQueue"]

# full segments that may wait to be sealed before the writer waits for them
MAX_SEALING = 4


class SealQueue:
    """Seal segments in the background, one after the other.

    Args:
        sync: whether to wait until a sealed segment is on the disk.
        sealed: called after each, in its thread.
        has_statistics: whether each segment gets statistics of its features.

    Notes:
        For one thread. A segment that cannot be sealed stays open, and the next open of the store seals it.
    """

    def __init__(self, *, sync: bool, sealed: Callable[[], object], has_statistics: bool = True) -> None:
        self._sync, self._sealed, self._has_statistics = sync, sealed, has_statistics
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def add(self, segment: SegmentWriter) -> None:
        """Begin to seal a segment that has no open episode; waits when too many are on their way."""
        segment.mark_full()
        if len(self._threads) >= MAX_SEALING:
            self._threads.pop(0).join()
        before = self._threads[-1] if self._threads else None
        thread = threading.Thread(target=self._seal, args=(segment, before), name="stepwell-seal")
        self._threads.append(thread)
        thread.start()

    def wait(self) -> None:
        """Wait until all are sealed."""
        while self._threads:
            self._threads.pop(0).join()

    def check(self) -> None:
        """Raise what was raised in the background, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _seal(self, segment: SegmentWriter, before: threading.Thread | None) -> None:
        if before is not None:
            before.join()
        progress = segment.close()
        try:
            segment.check_synced()
            seal_segment(
                segment.path,
                segment.schema,
                rows=segment.row,
                episodes=segment.num_episodes,
                sync=self._sync,
                has_statistics=self._has_statistics,
                checksums=segment.checksums,
            )
            progress.mark_sealed()
            progress.close()
            self._sealed()
        except OSError as error:
            self._error = system_error(error, segment.path, is_writing=True)
        except BaseException as error:
            self._error = error
        finally:
            progress.close()
