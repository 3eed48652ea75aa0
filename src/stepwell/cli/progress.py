"""Progress on standard error: a bar on a terminal, silence anywhere else."""

from __future__ import annotations

from typing import Any

__all__ = ["NoBar", "make_bar"]


class NoBar:
    """The bar of a machine without tqdm: it draws nothing."""

    def update(self, amount: int = 1) -> None:
        """Count, and draw nothing."""

    def close(self) -> None:
        """Close, and draw nothing."""

    def __enter__(self) -> NoBar:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def make_bar(total: int | None, unit: str, title: str) -> Any:
    """Return a tqdm bar on standard error, or a `NoBar` where tqdm is not installed.

    Args:
        total: how many units there will be; None when nobody knows.
        unit: the noun after the rate, e.g. ``"windows"``.
        title: what is being done.

    Returns:
        A context manager with ``update(n)``. It draws nothing when standard error is no terminal.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        return NoBar()
    return tqdm(total=total, unit=f" {unit}", desc=title, disable=None, dynamic_ncols=True, unit_scale=True)
