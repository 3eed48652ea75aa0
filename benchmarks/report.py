"""What a benchmark yields: a row a comparison, printed as one line of JSON each."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

import numpy as np
from timing import Rates

__all__ = ["Row", "compare", "skipped", "within"]

PACKAGES = ("stepwell", "numpy", "numba")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison.

    Args:
        bench: name of the benchmark.
        case: what was done.
        rival: who else did it.
        ratio: our speed over theirs: above 1 we are faster, also where the unit is a time, or bytes used.
        spread: distance of the quartiles of the ratio over the rounds.
        ours: our figure, median over the rounds.
        theirs: the rival's.
        unit: of both.
        memcpy_gb_per_s: of a copy of 64 MiB in the same run.
        target: the ratio to reach, None where none was set.
        skipped: why there are no figures.
    """

    bench: str
    case: str
    rival: str
    ratio: float | None = None
    spread: float | None = None
    ours: float | None = None
    theirs: float | None = None
    unit: str | None = None
    memcpy_gb_per_s: float | None = None
    target: float | None = None
    skipped: str | None = None

    def to_json(self) -> str:
        """Return the row as a line, with the load of the machine and the versions that were compared."""
        values = {name: _rounded(value) for name, value in asdict(self).items()}
        if self.skipped is None:
            del values["skipped"]
        return json.dumps({**values, "load": round(os.getloadavg()[0], 2), "versions": _versions(self.rival)})


def compare(
    bench: str, case: str, rates: Rates, *, ours: str, theirs: str, unit: str, target: float | None = None
) -> Row:
    """Return the row of two contenders of the same rounds."""
    ratio, spread = rates.ratio(ours, theirs)
    return Row(
        bench=bench,
        case=case,
        rival=theirs,
        ratio=ratio,
        spread=spread,
        ours=rates.median(ours),
        theirs=rates.median(theirs),
        unit=unit,
        memcpy_gb_per_s=rates.memcpy_gb_per_s,
        target=target,
    )


def within(
    bench: str, case: str, rival: str, samples: Sequence[float], limit: Sequence[float] | float, **row: Any
) -> Row:
    """Return the row of a time, or of memory: the less the better, so the ratio is limit / sample.

    Args:
        bench: name of the benchmark.
        case: what was done.
        rival: what the limit is.
        samples: one a run.
        limit: to compare with, one for all or one a run.
        row: further columns.
    """
    ratios = np.asarray(limit) / np.asarray(samples)
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    ours, theirs = float(np.median(samples)), float(np.median(limit))
    return Row(bench=bench, case=case, rival=rival, ratio=middle, spread=high - low, ours=ours, theirs=theirs, **row)


def skipped(bench: str, rival: str, *cases: str) -> Iterator[Row]:
    """Yield the rows of a rival that is not installed."""
    for case in cases:
        yield Row(bench=bench, case=case, rival=rival, skipped=f"{rival} is not installed")


@functools.cache
def _versions(rival: str) -> dict[str, str]:
    found = {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}}
    package = rival.split(maxsplit=1)[0].lower()
    # some rivals are no packages: memcpy, a limit, another number of threads
    with contextlib.suppress(metadata.PackageNotFoundError):
        found[package] = metadata.version(package)
    return found


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value
