"""What went through a table."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counts"]


@dataclass(slots=True)
class Counts:
    """Numbers of items since a table was made or reset; each item counts on its own.

    Args:
        inserts: items put in.
        samples: items drawn, each time they were.
        deletes: items that are gone, whatever the cause: the causes below, and `Table.delete`.
        dropped: removed by the remover, to make room.
        exhausted: drawn ``max_times_sampled`` times.
        evicted: whose steps the ring evicted, or that were deleted from the store.
        unique_samples: items drawn at least once.
        updates: priorities set.
        missed_updates: priorities for items that were gone.
    """

    inserts: int = 0
    samples: int = 0
    deletes: int = 0
    dropped: int = 0
    exhausted: int = 0
    evicted: int = 0
    unique_samples: int = 0
    updates: int = 0
    missed_updates: int = 0

    @property
    def size(self) -> int:
        """Items that are there."""
        return self.inserts - self.deletes
