"""A progress bar on stderr, when somebody is there to see it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from stepwell.progress import make_bar
from stepwell.recorders.jobs import NUM_BYTES, NUM_ITEMS, NUM_STEPS

__all__ = ["ProgressBar"]


class ProgressBar:
    """Show items, steps/s and MB/s from the counters of the workers.

    Args:
        total: number of items, None when unknown.
        unit: what an item is.
        wanted: None shows it when tqdm is installed and stderr is a terminal.

    Raises:
        MissingDependencyError: it was asked for and tqdm is not installed.
    """

    def __init__(self, total: int | None, unit: str, wanted: bool | None) -> None:
        self._bar = make_bar(total, unit, wanted=wanted)
        self._began = time.perf_counter()
        self._skipped = 0

    def skip(self, num_items: int) -> None:
        """Take in items that were done before."""
        self._skipped += num_items
        self._bar.update(num_items)

    def update(self, counters: Sequence[Sequence[int]]) -> None:
        """Take in the sum of all workers' counters."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        num_steps, num_bytes = (sum(c[place] for c in counters) for place in (NUM_STEPS, NUM_BYTES))
        rates = f"{num_steps / seconds:,.0f} steps/s, {num_bytes / seconds / 1e6:,.1f} MB/s"
        self._bar.set_postfix_str(rates, refresh=False)
        self._bar.update(self._skipped + sum(c[NUM_ITEMS] for c in counters) - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()
