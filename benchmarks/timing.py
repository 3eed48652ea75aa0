"""How everything here is timed: contenders take turns in short blocks, and each round gives one ratio.

::

    round 0   | memcpy | ours | numpy | torchrl |
    round 1   | ours | numpy | torchrl | memcpy |      another one begins each round
    round 2   | numpy | torchrl | memcpy | ours |

What the machine does meanwhile hits all contenders of a round alike, so ratios are taken within rounds, and their
median and quartiles over the rounds are what is reported.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["MEMCPY", "Rates", "Settings", "Work", "memcpy_by_threads", "memcpy_gb_per_s", "time_rounds"]

Work = Callable[[], float]
MEMCPY = "memcpy"
MEMCPY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """How long to measure, on how much.

    Args:
        data: an empty directory, for the stores.
        is_quick: toy sizes, to see that a benchmark works; its figures mean nothing.
        rounds: how often each contender has its turn, at least 5 unless quick.
        block_seconds: how long a turn takes.
        store_bytes: of a large store.
    """

    data: Path
    is_quick: bool = False
    rounds: int = 9
    block_seconds: float = 0.25
    store_bytes: int = 2 << 30

    def sized(self, full: int, quick: int) -> int:
        """Return a size: the full one, or the toy one."""
        return quick if self.is_quick else full


@dataclass(frozen=True, slots=True)
class Rates:
    """Units of work a second: for each contender one number a round."""

    by_name: Mapping[str, np.ndarray]

    def median(self, name: str) -> float:
        """Return the median over the rounds."""
        return float(np.median(self.by_name[name]))

    def ratio(self, ours: str, theirs: str) -> tuple[float, float]:
        """Return the median over the rounds of ours / theirs, and the distance of its quartiles."""
        ratios = self.by_name[ours] / self.by_name[theirs]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        return float(middle), float(high - low)

    @property
    def memcpy_gb_per_s(self) -> float:
        """The speed of a copy of 64 MiB in these rounds."""
        return self.median(MEMCPY)


def time_rounds(
    contenders: Mapping[str, Work],
    settings: Settings,
    before: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Rates:
    """Let contenders take turns.

    Args:
        contenders: name to a callable that does some work, and returns how many units it did. `MEMCPY` joins them.
        settings: rounds and the seconds of a turn.
        before: what is done before each turn and not timed; a turn is then one call, however long it takes.
        clock: what time is taken by; `time.process_time`: that of the processor, of all threads of this process.
    """
    contenders = {**contenders, MEMCPY: _memcpy(settings.sized(MEMCPY_BYTES, MEMCPY_BYTES // 64))}
    names = list(contenders)
    for work in contenders.values():
        if before is not None:
            before()
        work()
    if not settings.is_quick:
        gc.collect()
    # what was made before the rounds is not looked through in them
    gc.freeze()
    rates: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(settings.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            if before is not None:
                before()
            rates[name].append(_rate(contenders[name], settings.block_seconds if before is None else 0.0, clock))
    gc.unfreeze()
    return Rates({name: np.array(found) for name, found in rates.items()})


def memcpy_gb_per_s(settings: Settings) -> float:
    """Return the speed of a copy of 64 MiB, for benchmarks of other things than rates."""
    return time_rounds({}, settings).memcpy_gb_per_s


def memcpy_by_threads(pool: ThreadPoolExecutor, threads: int) -> Work:
    """Return the work of copies of 64 MiB by several threads at a time, each between its own arrays, in GB."""
    copies = [_memcpy() for _ in range(threads)]

    def copy_all() -> float:
        return sum(pool.map(lambda copy: copy() + copy(), copies))

    return copy_all


def _memcpy(num_bytes: int = MEMCPY_BYTES) -> Work:
    """Return the work that all else is compared with: a copy of 64 MiB, in GB."""
    source, target = np.ones(num_bytes, np.uint8), np.zeros(num_bytes, np.uint8)

    def copy() -> float:
        np.copyto(target, source)
        return num_bytes / 1e9

    return copy


def _rate(work: Work, seconds: float, clock: Callable[[], float]) -> float:
    units = 0.0
    start = now = clock()
    # a clock of the processor may stand still for a piece of work
    while units == 0 or now - start < seconds or now == start:
        units += work()
        now = clock()
    return units / (now - start)
