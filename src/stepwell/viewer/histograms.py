"""How the numbers of a feature are spread: of the episodes that a filter lets through, beside all."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.store import Store
from stepwell.viewer.listing import choose_episodes
from stepwell.windows.fields import schema_of

__all__ = ["Histograms"]

NUM_BINS, MAX_EPISODES, MAX_VALUES, NUM_KEPT = 40, 500, 4_000_000, 64


class Histograms:
    """Counts of a feature's values, an axis each.

    Of more than MAX_EPISODES episodes evenly spaced ones are read, and ``num_read`` says so; of
    more than MAX_VALUES numbers every n-th step is counted.

    Args:
        store: open for reading.

    Notes:
        Safe for any number of threads; what was counted is kept until the store grows.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counted = functools.lru_cache(NUM_KEPT)(self._count)

    def __call__(
        self, name: str, *, end: str = "", min_length: int = 0, where: str = "", mark: str = ""
    ) -> dict[str, Any]:
        """Return ``axes``: of each ``low`` and ``high`` of all, fractions and statistics of all and of those chosen.

        Args:
            name: of an array feature of numbers.
            end: see `choose_episodes`.
            min_length: see `choose_episodes`.
            where: see `choose_episodes`.
            mark: see `choose_episodes`.

        Raises:
            StepwellError: see `choose_episodes`.
        """
        segments, _ = self._store.listing
        state = self._store.marks.data, tuple((each.name, each.num_rows) for each in segments)
        return self._counted(name, (("end", end), ("min_length", min_length), ("where", where), ("mark", mark)), state)

    def _count(self, name: str, choice: tuple[tuple[str, Any], ...], state: object) -> dict[str, Any]:
        """Count; the state of the store makes what is kept of an older one be counted again."""
        table = self._store.episodes
        chosen = choose_episodes(table, **dict(choice))
        everything, selection = np.arange(len(table)), chosen
        whole, num_read = self._values(name, everything)
        part = whole if len(chosen) == len(table) else self._values(name, selection)[0]
        axes = [_spread(whole[:, axis], part[:, axis]) for axis in range(whole.shape[1])]
        return {"axes": axes, "num_read": num_read, "num_all": len(table), "num_chosen": len(chosen)}

    def _values(self, name: str, episodes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], int]:
        """Return the values of evenly spaced episodes, float64 [steps, width], and how many those are."""
        places = np.unique(np.linspace(0, len(episodes) - 1, min(len(episodes), MAX_EPISODES)).astype(np.int64))
        taken = [self._store[int(index)] for index in episodes[places]]
        width = math.prod(schema_of(self._store)[name].fixed_shape)
        stride = max(1, sum(each.length for each in taken) * width // MAX_VALUES)
        rows = [
            np.asarray(each.read_rows(name, 0, each.length)[::stride], np.float64).reshape(-1, width) for each in taken
        ]
        return np.concatenate([np.empty((0, width)), *rows]), len(taken)


def _spread(whole: npt.NDArray[np.float64], part: npt.NDArray[np.float64]) -> dict[str, Any]:
    both = [values[np.isfinite(values)] for values in (whole, part)]
    seen = np.concatenate(both)
    low, high = (float(seen.min()), float(seen.max())) if len(seen) else (0.0, 0.0)
    edges = np.linspace(low, high if high > low else low + 1, NUM_BINS + 1)
    counts = [np.histogram(values, edges)[0] / max(len(values), 1) for values in both]
    told = [_statistics(values) for values in both]
    return {
        "low": low,
        "high": high,
        "all": counts[0].tolist(),
        "chosen": counts[1].tolist(),
        "statistics": {"all": told[0], "chosen": told[1]},
    }


def _statistics(values: npt.NDArray[np.float64]) -> dict[str, float] | None:
    """Return mean, std, min and max of finite values; None of none."""
    if not len(values):
        return None
    return {name: float(getattr(values, name)()) for name in ("mean", "std", "min", "max")}
