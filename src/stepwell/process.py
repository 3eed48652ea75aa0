"""This process: its CPUs; its number without the system call of `os.getpid`, a tenth of what appending a step takes."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["available_cpus", "this"]


class _Process:
    """Kept by `os.register_at_fork`, so that a fork that Python knows of has its own."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.look()
        os.register_at_fork(after_in_child=self.look)

    def look(self) -> None:
        """Ask for the number."""
        self.pid = os.getpid()


this = _Process()


def available_cpus() -> int:
    """Return the CPUs that this process may run on; all of the machine where the system does not say."""
    count: Any = getattr(os, "process_cpu_count", None)
    if count is not None:
        return int(count() or 1)
    affinity: Any = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
