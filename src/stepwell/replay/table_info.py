"""What a table prints: its line, its numbers, the same as HTML and as JSON.

::

    <Table replay  98,112 of 1,000,000 items  uniform  fifo  SampleToInsertRatio(4, 1000, 400)>
      items    98,112   of 1,000,000 at most    3 pending                 0 evicted while pending
      inserts  98,112   1,204/s lately          1,180/s over all
      samples  391,936  4,816/s lately          4,700/s over all          61,002 distinct items
      deletes  0        0 dropped               0 exhausted               0 evicted
      updates  391,900  36 of items long gone
      ratio    3.995    samples an insert       diff 512                  limits of diff (-400, 4400)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.display.html import block, table
from stepwell.replay.contents import Counts
from stepwell.replay.limiters import Limiter

if TYPE_CHECKING:
    from stepwell.replay.items import Items
    from stepwell.replay.table_settings import TableSettings

__all__ = ["RateMeter", "Rates", "SpreadColumns", "TableInfo", "read_columns", "spread_of"]

NUM_BINS, MAX_READ = 40, 1 << 16


@dataclass(frozen=True, slots=True)
class Rates:
    """Items a second."""

    inserts: float
    samples: float
    overall_inserts: float
    overall_samples: float


class RateMeter:
    """Measures rates between looks.

    Args:
        now: seconds of a monotonic clock.
    """

    __slots__ = ("_begin", "_last")

    def __init__(self, now: float) -> None:
        # time, inserts and samples; inserts and samples of a table that was restored count from there on
        self._begin = self._last = (now, 0, 0)

    def restart(self, counts: Counts, now: float) -> None:
        """Count from here on."""
        self._begin = self._last = (now, counts.inserts, counts.samples)

    def measure(self, counts: Counts, now: float, *, advance: bool) -> Rates:
        """Return the rates by now; ``advance`` lets the next look count from here."""
        point = (now, counts.inserts, counts.samples)
        rates = Rates(*_rates(self._last, point), *_rates(self._begin, point))
        if advance:
            self._last = point
        return rates


def _rates(first: tuple[float, int, int], last: tuple[float, int, int]) -> tuple[float, float]:
    seconds = last[0] - first[0]
    return ((last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds) if seconds > 0 else (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What `Table.info` is: numbers as attributes, ``str()`` is the table, notebooks show it as HTML.

    ``table.info()`` is the same as ``table.info``: of a store, `Store.info` is called.

    Args:
        name: of the table.
        size: items that are there.
        max_size: and may be.
        num_pending: items that wait for the limiter.
        num_missed: items whose steps were evicted while they waited.
        sampler: its name; ``remover`` likewise.
        max_times_sampled: draws after which an item goes; 0 for any number.
        limiter: its numbers.
        counts: what went through.
        rates: a second.
        largest_priority: that new items get.
        num_dropped: steps that writers of the ring have dropped by ``back_pressure="drop"``, of any table.

    Example:
        >>> import tempfile
        >>> from stepwell.replay import Table
        >>> from stepwell.testing import tiny_store
        >>> table = Table(tiny_store(f"{tempfile.mkdtemp()}/a.well", lengths=[3, 5]), seed=0)
        >>> sample = table.sample(4)
        >>> table.info.size, table.info.counts.inserts, table.info.counts.samples
        (8, 8, 4)
    """

    name: str
    size: int
    max_size: int
    num_pending: int
    num_missed: int
    sampler: str
    remover: str
    max_times_sampled: int
    limiter: Limiter
    counts: Counts
    rates: Rates
    largest_priority: float
    num_dropped: int = 0

    @classmethod
    def of(
        cls,
        settings: TableSettings,
        counts: Counts,
        rates: Rates,
        *,
        num_pending: int,
        num_missed: int,
        largest_priority: float,
        num_dropped: int,
    ) -> TableInfo:
        """Return the info of a table with these settings; the counts are copied."""
        return cls(
            settings.name,
            counts.size,
            settings.max_size,
            num_pending,
            num_missed,
            settings.sampler,
            settings.remover,
            settings.max_times_sampled,
            settings.limiter,
            replace(counts),
            rates,
            largest_priority,
            num_dropped,
        )

    @property
    def samples_per_insert(self) -> float | None:
        """The ratio that was achieved; None before the first insert."""
        return self.counts.samples / self.counts.inserts if self.counts.inserts else None

    @property
    def diff(self) -> float:
        """Where the table is in the limiter's corridor: ``inserts * samples_per_insert - samples``."""
        return self.counts.inserts * self.limiter.samples_per_insert - self.counts.samples

    @property
    def corridor(self) -> tuple[float, float]:
        """The limiter's limits of `diff`; infinite where there is none."""
        return self.limiter.min_diff, self.limiter.max_diff

    @property
    def line(self) -> str:
        """The table in one line."""
        words = [
            self.name,
            f"{self.size:,} of {self.max_size:,} items",
            self.sampler,
            self.remover,
            self.limiter.name,
        ]
        return f"<Table {'  '.join(words)}>"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells: what, how many, and what belongs to it."""
        counts, rates = self.counts, self.rates
        ratio = "none yet" if self.samples_per_insert is None else f"{self.samples_per_insert:.3f}"
        return [
            (
                "items",
                f"{self.size:,}",
                f"of {self.max_size:,} at most",
                f"{self.num_pending:,} pending",
                f"{self.num_missed:,} evicted while pending",
            ),
            (
                "inserts",
                f"{counts.inserts:,}",
                f"{rates.inserts:,.0f}/s lately",
                f"{rates.overall_inserts:,.0f}/s over all",
                f"{self.num_dropped:,} steps dropped by writers" if self.num_dropped else "",
            ),
            (
                "samples",
                f"{counts.samples:,}",
                f"{rates.samples:,.0f}/s lately",
                f"{rates.overall_samples:,.0f}/s over all",
                f"{counts.unique_samples:,} distinct items",
            ),
            (
                "deletes",
                f"{counts.deletes:,}",
                f"{counts.dropped:,} dropped",
                f"{counts.exhausted:,} exhausted",
                f"{counts.evicted:,} evicted",
            ),
            ("updates", f"{counts.updates:,}", f"{counts.missed_updates:,} of items long gone", "", ""),
            (
                "ratio",
                ratio,
                "samples an insert",
                f"diff {self.diff:g}",
                "limits of diff ({:g}, {:g})".format(*self.corridor),
            ),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON types; an open limit of the corridor is None."""
        return {
            **asdict(self),
            "limiter": self.limiter.to_json(),
            "samples_per_insert": self.samples_per_insert,
            "diff": self.diff,
        }

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        cells = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([self.line, *(f"  {row}".rstrip() for row in cells)])

    __repr__ = __str__

    def __call__(self) -> TableInfo:
        """Return itself, for those who call it as they call `Store.info`."""
        return self

    def _repr_html_(self) -> str:
        return block(self.line, table(self.rows()))


class SpreadColumns(NamedTuple):
    """Numbers of items, an array each, and how many items there are."""

    priority: npt.NDArray[np.float64]
    age: npt.NDArray[np.int64]  # inserts since it came
    staleness: npt.NDArray[np.int64]  # inserts and updates since its priority was set
    draws: npt.NDArray[np.int64]
    num_items: int


def read_columns(items: Items) -> SpreadColumns:
    """Return numbers of the items, of evenly spaced ones where there are many; the table's lock is held."""
    stride = max(1, len(items.generations) // MAX_READ)
    slots = np.arange(0, len(items.generations), stride)
    slots = slots[items.episode[slots] >= 0]
    return SpreadColumns(
        items.priority[slots],
        items.num_inserted - 1 - items.sequence[slots],
        items.num_touched - 1 - items.touched[slots],
        items.times_sampled[slots].astype(np.int64),
        len(items),
    )


def spread_of(columns: SpreadColumns) -> dict[str, Any]:
    """Return histograms of numbers of items, as JSON types.

    Returns:
        ``num_items``; ``num_read``, of which the histograms are; and ``priority``, ``age`` (inserts since an item
        came), ``staleness`` (inserts and updates since its priority was set) and ``draws`` (how often it was drawn),
        each with ``low``, ``high``, ``mean`` and ``counts``, of 40 bins of equal width from ``low`` to ``high``.
    """
    found: dict[str, Any] = {"num_items": columns.num_items, "num_read": len(columns.priority)}
    for name in ("priority", "age", "staleness", "draws"):
        values = np.asarray(getattr(columns, name), np.float64)
        low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
        counts = np.histogram(values, NUM_BINS, (low, high if high > low else low + 1))[0]
        mean = float(values.mean()) if len(values) else 0.0
        found[name] = {"low": low, "high": high, "mean": mean, "counts": counts.tolist()}
    return found
