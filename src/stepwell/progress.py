"""Progress on standard error: a bar on a terminal, silence anywhere else."""

from __future__ import annotations

import shutil
import time
from typing import Any

from stepwell.errors import MissingDependencyError

__all__ = ["NoBar", "RateBar", "make_bar"]


class NoBar:
    """The bar of a machine without tqdm: it counts, and draws nothing."""

    def __init__(self) -> None:
        self.n = 0

    def update(self, amount: int = 1) -> None:
        """Count."""
        self.n += amount

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> NoBar:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def make_bar(total: int | None, unit: str, title: str | None = None, *, wanted: bool | None = None) -> Any:
    """Return a tqdm bar on standard error, or a `NoBar` without tqdm; ``wanted`` None: on a terminal only."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        if wanted:
            raise MissingDependencyError.of("tqdm", "cli") from error
        return NoBar()

    class Bar(tqdm):  # type: ignore[misc]
        # tqdm's monitor is a thread that outlives its bars
        monitor_interval = 0

    # some pseudo-terminals say that they are 0 wide and 0 high, and tqdm would draw nothing there
    size = shutil.get_terminal_size()
    is_large = total is None or total > 1000
    return Bar(
        total=total,
        unit=f" {unit}",
        desc=title,
        disable=None if wanted is None else not wanted,
        ncols=size.columns,
        nrows=size.lines,
        unit_scale=is_large,
    )


class RateBar:
    """A bar of items that also shows steps/s and MB/s; see `make_bar`."""

    def __init__(self, total: int | None, unit: str, wanted: bool | None) -> None:
        self._bar, self._total = make_bar(total, unit, wanted=wanted), total
        self._began = time.perf_counter()

    def show(self, num_items: int, num_steps: int, num_bytes: int) -> None:
        """Show how much there is by now, items of an earlier run included."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        if num_steps or num_bytes:
            rates = f"{num_steps / seconds:,.0f} steps/s, {num_bytes / seconds / 1e6:,.1f} MB/s"
            self._bar.set_postfix_str(rates, refresh=False)
        # a conversion also reads rows before the first that is shown
        known = num_items if self._total is None else min(num_items, self._total)
        self._bar.update(known - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()
